//! Bytes and texts that nobody meant: everything that reads what comes from outside reads mutations
//! of what is right, some thousands of them in a second. `RINGDOVE_FUZZ_SEED` replays a run.
//!
//! What was found once stays in `tests/fixtures/bootstrap`: a folder for each reader, one case a
//! file, bytes in hexadecimal or variables by line; `#` begins a comment.

use super::address::HostPort;
use super::environment::Launch;
use super::environment_tests::{OPEN_MPI, SLURM, TORCHRUN};
use super::frame::{MESSAGE_BYTES_MAX, Opener, Sealer};
use super::handshake::tests::{hello, keys};
use super::handshake::{Client, HELLO_BYTES, Role, Server};
use super::hostile_tests::{a_job_beside_goes_on, below_a_rank, visitor};
use super::message::{Call, Down, Join, Message, Up, Welcome, decode, encode_with};
use super::peer_tests::{join, settings, start};
use super::unique_id::check;
use super::{RANKS_MAX, Root, Secret, UniqueId};
use crate::error::{BootstrapError, Error};
use crate::id::Rank;
use fastrand::Rng;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// The generator of one test, which says how to repeat it.
fn generator() -> Rng {
    let seed = std::env::var("RINGDOVE_FUZZ_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(0x5eed_2026);
    println!("RINGDOVE_FUZZ_SEED={seed}");
    Rng::with_seed(seed)
}

/// One to four changes of the kinds that readers stumble over.
fn mutate(bytes: &[u8], random: &mut Rng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..random.usize(1..=4) {
        let at = random.usize(0..=bytes.len());
        let end = (at + random.usize(0..=9)).min(bytes.len());
        match random.u8(0..8) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.u8(0..8),
            1 if at < bytes.len() => bytes[at] = random.choice([0, 1, 0x7f, 0x80, 0xff]).unwrap(),
            2 => bytes.insert(at, random.u8(..)),
            3 => drop(bytes.drain(at..end)),
            4 => bytes.truncate(at),
            // The largest numbers in postcard's encoding, and in ours.
            5 => drop(bytes.splice(at..end, [[0xff; 9].as_slice(), &[1]].concat())),
            6 => drop(bytes.splice(at..end, [0xff, 0xff, 0xff, 0xff, 0x0f])),
            _ => {
                let piece = bytes[at..end].to_vec();
                let to = random.usize(0..=bytes.len());
                drop(bytes.splice(to..to, piece));
            }
        }
    }
    bytes
}

/// The cases that are kept for one reader, comments taken off; there must be some.
fn kept(reader: &str) -> Vec<(String, String)> {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/bootstrap").join(reader);
    let files =
        fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let case = |path: std::path::PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let lines = text.lines().map(|line| line.split('#').next().unwrap().trim());
        let lines: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
        (path.display().to_string(), lines.join("\n"))
    };
    let cases: Vec<_> = files.map(|entry| case(entry.unwrap().path())).collect();
    assert!(!cases.is_empty(), "{} is empty", folder.display());
    cases
}

/// The same, for readers of bytes.
fn kept_bytes(reader: &str) -> Vec<Vec<u8>> {
    let bytes = |(path, text): (String, String)| {
        let byte = |word| u8::from_str_radix(word, 16).unwrap_or_else(|e| panic!("{path}: {e}"));
        text.split_whitespace().map(byte).collect()
    };
    kept(reader).into_iter().map(bytes).collect()
}

/// One message of each kind, and what may follow it.
fn messages() -> Vec<(Message, &'static [u8])> {
    let parts = vec![(Rank(1), 3), (Rank(2), 0), (Rank(300), 2)];
    let fault = BootstrapError::Missing {
        what: "the ranks to join".into(),
        missing: vec![Rank(3), Rank(7)],
        rank_count: 9,
        waited: Duration::from_millis(1500),
    };
    let waited = Duration::from_secs(60);
    let call = Call::Broadcast { from: Rank(2) };
    let addresses = vec!["127.0.0.1:9".parse().unwrap(), "[fd00::1%3]:70".parse().unwrap()];
    vec![
        (join(3, addresses.clone()), b""),
        (Message::Welcome(Welcome { fan_out: 32, parent: addresses }), b""),
        (Message::Linked, b""),
        (Message::Assembled, b""),
        (Message::Fault(fault), b""),
        (Message::Up(Up { sequence: 1, call, by: Rank(1), parts }), b"abcde"),
        (Message::Down(Down { sequence: 1, lengths: vec![1, 0, 2] }), b"abc"),
        (Message::Expired { sequence: 1, call: Call::Agree, waited }, b""),
        (Message::Leaving, b""),
        (Message::Report, b"report"),
    ]
}

fn read_message(bytes: &[u8]) {
    let Some((message, behind)) = decode(bytes) else { return };
    assert!(behind.len() < bytes.len() && message.summary().len() < 1000);
    // What it means does not depend on how it was written.
    let again = encode_with(&message, &[behind]);
    assert_eq!(decode(&again), Some((message, behind)));
}

#[test]
fn no_bytes_break_the_reader_of_messages() {
    kept_bytes("message").iter().for_each(|bytes| read_message(bytes));
    let mut random = generator();
    let whole: Vec<_> = messages().iter().map(|(m, behind)| encode_with(m, &[behind])).collect();
    for _ in 0..30_000 {
        let bytes = random.choice(&whole).unwrap();
        read_message(&mutate(bytes, &mut random));
    }
}

#[test]
fn no_bytes_break_the_reader_of_hellos() {
    let secret = Secret([7; 32]);
    let read = |bytes: &[u8]| {
        let Some(bytes) = bytes.first_chunk::<HELLO_BYTES>() else { return };
        if let Ok((server, _)) = Server::answer(&secret, hello(Role::Root, 2), bytes) {
            assert!(server.finish(&[1; 32]).is_err());
        }
        let client = Client::new(secret, hello(Role::Join, 1)).0;
        if let Ok((prover, _)) = client.prove(bytes) {
            assert!(prover.finish(&[1; 32]).is_err());
        }
    };
    kept_bytes("hello").iter().for_each(|bytes| read(bytes));
    let mut random = generator();
    for _ in 0..10_000 {
        let role = random.choice([Role::Join, Role::Root, Role::Child]).unwrap();
        let mut bytes = mutate(&hello(role, 3).encode(), &mut random);
        bytes.resize(HELLO_BYTES, 0);
        read(&bytes);
    }
}

#[test]
fn a_changed_stream_of_frames_gives_its_unchanged_start_and_no_more() {
    let sent: [&[u8]; 4] = [b"one", b"", &[7; 5_000], b"four"];
    let read = |bytes: &[u8]| {
        let mut opener = Opener::new(&keys().1, MESSAGE_BYTES_MAX);
        let (mut rest, mut count) = (bytes, 0);
        while let Ok((taken @ 1.., message)) = opener.open(rest) {
            rest = &rest[taken..];
            if let Some(message) = message {
                assert_eq!(message, sent[count], "message {count}");
                count += 1;
            }
        }
        count
    };
    let mut sealer = Sealer::new(&keys().0);
    let mut stream = Vec::new();
    for message in sent {
        sealer.seal(&message.into(), |segment| stream.extend_from_slice(segment.bytes()));
    }
    assert_eq!(read(&stream), sent.len());
    kept_bytes("frame").iter().for_each(|bytes| drop(read(bytes).to_string()));
    let mut random = generator();
    (0..5_000).for_each(|_| assert!(read(&mutate(&stream, &mut random)) <= sent.len()));
}

#[test]
fn no_bytes_break_the_reader_of_ids() {
    let read = |bytes: &[u8]| {
        let mut whole = [0; UniqueId::BYTES];
        whole.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
        // As it came, and with the checksum that somebody who means it can make.
        let mut meant = whole;
        let sum = check(&meant);
        meant[UniqueId::BYTES - sum.len()..].copy_from_slice(&sum);
        for id in [whole, meant].map(UniqueId::from_bytes) {
            match id.addresses() {
                Ok(addresses) => assert!(addresses.len() <= 3 && id.secret().is_ok()),
                Err(error) => assert!(matches!(error, Error::Argument { .. }), "{error}"),
            }
        }
    };
    kept_bytes("id").iter().for_each(|bytes| read(bytes));
    let mut random = generator();
    let addresses = ["10.0.0.1:1".parse().unwrap(), "[fe80::1%9]:65535".parse().unwrap()];
    let id = UniqueId::with(&addresses, Secret([9; 32]));
    (0..10_000).for_each(|_| read(&mutate(id.as_bytes(), &mut random)));
}

fn read_environment(variables: &[(String, String)]) {
    let launch = Launch::from_lookup(|name| {
        let found = variables.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.clone())
    });
    match launch {
        Ok(None) => {}
        Ok(Some(launch)) => {
            assert!(launch.rank < launch.rank_count && launch.root.port > 0, "{launch:?}");
            assert!(launch.rank_count <= RANKS_MAX, "{launch:?}");
            assert!(launch.local_rank.is_none_or(|rank| rank < launch.rank_count), "{launch:?}");
        }
        Err(error) => assert!(matches!(error, Error::Environment { .. }), "{error}"),
    }
}

#[test]
fn no_variables_break_the_reader_of_launchers() {
    for (_, text) in kept("launch") {
        let pair = |line: &str| {
            let (name, value) = line.split_once('=').unwrap();
            (name.to_owned(), value.to_owned())
        };
        read_environment(&text.lines().map(pair).collect::<Vec<_>>());
    }
    const WRONG: [&str; 6] = ["", "-1", "4294967296", "99999999999999999999", "[", "é"];
    let mut random = generator();
    let more = [
        ("RINGDOVE_BOOTSTRAP_ADDRESS", "[fe80::1%eth0]:9000"),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        ("MASTER_PORT", "65535"),
        ("SLURM_STEP_NODELIST", "rack[1-2]node[003-010,12],gpu7"),
        // Short, since every one that is long enough takes milliseconds.
        ("RINGDOVE_BOOTSTRAP_SECRET", "short"),
    ];
    for _ in 0..20_000 {
        let base = random.choice([&TORCHRUN[..], &SLURM, &OPEN_MPI]).unwrap();
        let mut variables: Vec<(String, String)> = Vec::new();
        let extra: Vec<_> = more.iter().filter(|_| random.u8(..) < 20).collect();
        for &(name, value) in extra.into_iter().chain(base) {
            let value = match random.u8(0..8) {
                0 => continue,
                1 => String::from_utf8_lossy(&mutate(value.as_bytes(), &mut random)).into_owned(),
                2 => random.choice(WRONG).unwrap().into(),
                _ => value.to_owned(),
            };
            variables.push((name.into(), value));
        }
        read_environment(&variables);
    }
}

#[test]
fn no_text_breaks_the_reader_of_hosts_and_ports() {
    let mut random = generator();
    for _ in 0..20_000 {
        let base = random.choice(["node7:9000", "[fe80::1%eth0]:5", "10.0.0.1:65535"]).unwrap();
        let text = String::from_utf8_lossy(&mutate(base.as_bytes(), &mut random)).into_owned();
        if let Some(parsed) = HostPort::parse(&text) {
            assert_eq!(HostPort::parse(&parsed.to_string()), Some(parsed), "{text:?}");
        }
    }
}

/// The message, or the start of it, as bytes that hold whatever the generator makes of them.
fn any_message(random: &mut Rng) -> Vec<u8> {
    let all = messages();
    let (message, behind) = random.choice(&all).unwrap();
    mutate(&encode_with(message, &[behind]), random)
}

fn is_expected(error: &BootstrapError) -> bool {
    // A panic would be an error of the right type, too; it is what this looks for.
    !matches!(error, BootstrapError::Panicked { .. })
}

#[test]
fn a_rank_below_that_says_anything_ends_its_job_in_an_error_and_no_other() {
    let mut random = generator();
    for round in 0..40 {
        let mut below = below_a_rank();
        for _ in 0..random.usize(1..4) {
            let bytes = below.raw.seal(&any_message(&mut random).into());
            // It may have been shown out meanwhile.
            let _ = below.raw.socket.write_all(&bytes);
        }
        drop(below.raw);
        match below.top.barrier() {
            Ok(()) => panic!("round {round}: a barrier without one of its ranks"),
            Err(Error::Bootstrap(error)) => assert!(is_expected(&error), "round {round}: {error}"),
            Err(Error::Aborted { .. } | Error::Disagreement { .. }) => {}
            Err(other) => panic!("round {round}: {other}"),
        }
    }
    a_job_beside_goes_on();
}

#[test]
fn a_visitor_of_the_root_who_says_anything_ends_its_job_or_nothing() {
    let mut random = generator();
    let Message::Join(usual) = join(2, Vec::new()) else { unreachable!() };
    for round in 0..16 {
        // Whoever joins as rank 1 and goes is missed at once; who does not join, after this.
        let settings = settings(400);
        let root = Root::open(&settings).unwrap();
        let mut raw = visitor(&root, 1);
        if random.bool() {
            raw.send(&Message::Join(Join { ..usual.clone() }), &[]);
        }
        let bytes = raw.seal(&any_message(&mut random).into());
        let _ = raw.socket.write_all(&bytes);
        drop(raw);
        let plane = start(root.id(), 0, 2, &settings);
        match plane.assembled() {
            Ok(()) => panic!("round {round}: a job of two assembled with one"),
            Err(Error::Bootstrap(error)) => assert!(is_expected(&error), "round {round}: {error}"),
            Err(Error::Aborted { .. } | Error::Disagreement { .. }) => {}
            Err(other) => panic!("round {round}: {other}"),
        }
    }
    a_job_beside_goes_on();
    // The I/O thread serves new jobs, too.
    let settings = settings(20_000);
    let root = Root::open(&settings).unwrap();
    drop(visitor(&root, 1));
    let planes = [0, 1].map(|rank| start(root.id(), rank, 2, &settings));
    planes.iter().for_each(|plane| plane.assembled().unwrap());
}
