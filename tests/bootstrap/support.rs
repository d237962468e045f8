//! Jobs of many ranks in one process, each rank with a thread.

use ringdove::bootstrap::{ControlPlane, Entry, Root, UniqueId};
use ringdove::id::Rank;
use ringdove::{Error, Settings};
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

pub fn entry(id: UniqueId, rank: u32, rank_count: u32) -> Entry {
    Entry { id, rank: Rank(rank), rank_count, terms: Vec::new() }
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
