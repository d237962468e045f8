//! Jobs of many ranks in one process, each rank with a thread.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use ringdove::bootstrap::{ControlPlane, JoinRequest, Root, UniqueId};
use ringdove::id::Rank;
use ringdove::{Error, Settings};
use socket2::{Domain, Socket, Type};
use std::net::SocketAddr;
use std::process::Command;
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Enough for a debug build's frames; a thousand of them cost little.
const STACK_BYTES: usize = 256 << 10;

/// Settings on the loopback, with this timeout.
pub fn settings(timeout_ms: u64) -> Settings {
    Settings {
        bootstrap_timeout: Duration::from_millis(timeout_ms),
        bootstrap_interface: "lo".into(),
        ..Settings::default()
    }
}

/// Settings under which nothing expires on a healthy machine, with a deep tree.
pub fn patient() -> Settings {
    Settings { bootstrap_fan_out: 3, ..settings(60_000) }
}

pub fn entry(id: UniqueId, rank: u32, rank_count: u32) -> JoinRequest {
    JoinRequest { id, rank: Rank(rank), rank_count, terms: Vec::new() }
}

/// Runs `work` once for each of these ranks, all at once, and returns what came of it, in order.
pub fn each_rank<T: Send>(
    ranks: impl IntoIterator<Item = u32>,
    work: impl Fn(u32) -> T + Sync,
) -> Vec<T> {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|rank| {
                let builder = Builder::new().stack_size(STACK_BYTES);
                builder.spawn_scoped(scope, move || work(rank)).unwrap()
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A whole job: every rank joins, and works with its plane.
pub fn job<T: Send>(
    rank_count: u32,
    settings: &Settings,
    work: impl Fn(ControlPlane) -> T + Sync,
) -> Vec<T> {
    let root = Root::open(settings).unwrap();
    let id = root.id();
    each_rank(0..rank_count, |rank| {
        work(ControlPlane::join(entry(id, rank, rank_count), settings).unwrap())
    })
}

/// The planes of a job that stands, for tests in which a plane must outlive a rank's work.
pub fn planes(rank_count: u32, settings: &Settings) -> Vec<ControlPlane> {
    job(rank_count, settings, |plane| plane)
}

/// The errors of ranks that all must fail.
pub fn errors<T>(results: Vec<Result<T, Error>>) -> Vec<Error> {
    let failed = |(rank, result): (usize, Result<T, Error>)| match result {
        Ok(_) => panic!("the {rank}. rank did not notice"),
        Err(error) => error,
    };
    results.into_iter().enumerate().map(failed).collect()
}

/// Each message holds all of these parts.
pub fn all_say(errors: &[Error], parts: &[&str]) {
    for error in errors {
        let message = error.to_string();
        for part in parts {
            assert!(message.contains(part), "lacks {part:?}: {message}");
        }
    }
}

/// Fails the test if `work` takes longer than `limit`.
pub fn within<T>(limit: Duration, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let value = work();
    let took = started.elapsed();
    assert!(took < limit, "took {took:?}, expected less than {limit:?}");
    value
}

/// An id on its way to another process.
pub fn to_text(id: &UniqueId) -> String {
    id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// And back.
pub fn from_text(text: &str) -> UniqueId {
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    let bytes: Vec<u8> = (0..text.len()).step_by(2).map(byte).collect();
    UniqueId::from_bytes(bytes.try_into().unwrap())
}

/// Descriptors of one rank at its peak: listener, both ends of its connections to root and parent.
const DESCRIPTORS_EACH: u64 = 6;

/// As many ranks as were asked for, or as this machine's limit of descriptors allows.
pub fn ranks_possible(wanted: u32) -> u32 {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let needed = u64::from(wanted) * DESCRIPTORS_EACH + 200;
    if soft < needed {
        setrlimit(Resource::RLIMIT_NOFILE, needed.min(hard), hard).unwrap();
    }
    let possible = wanted.min(((hard.max(soft) - 200) / DESCRIPTORS_EACH) as u32);
    if possible < wanted {
        let short = format!("{possible} ranks instead of {wanted}: `ulimit -Hn` is {hard}");
        tally::skip("descriptors", &short);
    }
    possible
}

/// Runs a test of this program in its own process.
pub fn in_a_process_of_its_own(test: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}\n{errors}");
    println!("{text}");
}

/// A free port of this host, which the system gives only to those who ask for it by number, as long
/// as this socket lives. It never listens.
pub fn hold_port() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}
