//! Peers that hold the secret and mean harm: numbers that overflow, names of others, too much, too
//! early, too late. Whatever they do ends in a typed error of their own job, or in nothing; jobs
//! beside it in the same process never notice.

use super::frame::EARLY_BYTES_MAX;
use super::handshake::{Hello, Role};
use super::message::{Call, Down, Join, Message, Up, Welcome};
use super::peer_tests::{Raw, failure, join, settings, start};
use super::{ControlPlane, Root};
use crate::error::BootstrapError;
use crate::id::Rank;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

/// A job of one in this process: it shares the I/O thread with those that are attacked.
pub(super) fn a_job_beside_goes_on() {
    let settings = settings(20_000);
    let root = Root::open(&settings).unwrap();
    let plane = start(root.id(), 0, 1, &settings);
    plane.assembled().unwrap();
    assert_eq!(plane.all_gather(b"beside").unwrap(), [b"beside"]);
}

/// Holds the secret and has not joined.
pub(super) fn visitor(root: &Root, rank: u32) -> Raw {
    let (address, secret) = (root.id().addresses().unwrap()[0], root.id().secret().unwrap());
    Raw::connect(address, secret, Hello::new(Role::Join, Rank(rank)))
}

fn sees_the_end(raw: &mut Raw, limit: Duration) {
    raw.socket.set_read_timeout(Some(limit)).unwrap();
    match raw.socket.read_to_end(&mut Vec::new()) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("still connected after {limit:?}: {error}"),
    }
}

/// Ranks 0 and 1 of two, which assemble although somebody stands beside them.
fn a_job_of_two_goes_on(root: &Root) {
    let settings = settings(20_000);
    let planes = [0, 1].map(|rank| start(root.id(), rank, 2, &settings));
    planes.iter().for_each(|plane| plane.assembled().unwrap());
    std::thread::scope(|scope| {
        for plane in &planes {
            scope.spawn(|| assert_eq!(plane.all_gather(b"x").unwrap(), [b"x", b"x"]));
        }
    });
}

#[test]
fn a_rank_that_would_wait_for_ever_overflows_no_clock() {
    let settings = settings(20_000);
    let root = Root::open(&settings).unwrap();
    let plane = start(root.id(), 0, 2, &settings);
    for remaining in [Duration::MAX, Duration::from_secs(u64::MAX), Duration::ZERO] {
        let root = Root::open(&settings).unwrap();
        let mut raw = visitor(&root, 1);
        let Message::Join(usual) = join(2, Vec::new()) else { unreachable!() };
        raw.send(&Message::Join(Join { remaining, ..usual }), &[]);
        if !remaining.is_zero() {
            drop(raw);
            let error = failure(&start(root.id(), 0, 2, &settings));
            assert!(matches!(error, BootstrapError::Lost { rank: Rank(1), .. }), "{error}");
        }
        a_job_beside_goes_on();
    }
    // The control plane of before has not noticed anything either.
    let other = start(root.id(), 1, 2, &settings);
    plane.assembled().and_then(|()| other.assembled()).unwrap();
}

#[test]
fn a_number_of_ranks_that_no_machine_has_is_refused_before_anything_is_counted() {
    for rank_count in [0, u32::MAX, (1 << 20) + 1] {
        let settings = settings(20_000);
        let root = Root::open(&settings).unwrap();
        let mut raw = visitor(&root, 1);
        let started = Instant::now();
        raw.send(&join(rank_count, Vec::new()), &[]);
        // Has it been judged? The connection says so.
        sees_the_end_or_fault(&mut raw);
        let error = failure(&start(root.id(), 0, 2, &settings));
        let text = error.to_string();
        assert!(matches!(error, BootstrapError::Protocol { .. }), "{text}");
        assert!(text.contains("rank 1") && text.contains(&rank_count.to_string()), "{text}");
        assert!(started.elapsed() < Duration::from_secs(10), "it did not wait for a timeout");
    }
}

fn sees_the_end_or_fault(raw: &mut Raw) {
    assert!(matches!(raw.receive(), Message::Fault(_)));
}

#[test]
fn who_has_not_joined_may_send_64_kib_and_not_a_byte_more() {
    let root = Root::open(&settings(20_000)).unwrap();
    let mut raw = visitor(&root, 1);
    let too_much = raw.seal(&vec![0; EARLY_BYTES_MAX + 1].into());
    // It may be refused while this is being written.
    let _ = raw.socket.write_all(&too_much);
    sees_the_end(&mut raw, Duration::from_secs(10));
    a_job_of_two_goes_on(&root);
}

#[test]
fn who_proves_itself_and_does_not_join_is_shown_out() {
    let root = Root::open(&settings(2_000)).unwrap();
    let mut raw = visitor(&root, 1);
    // Half of the timeout, and what a busy machine adds to it.
    sees_the_end(&mut raw, Duration::from_secs(10));
    a_job_of_two_goes_on(&root);
}

#[test]
fn an_entry_belongs_to_who_joined_and_not_to_who_claims_its_rank() {
    for message in [Message::Linked, Message::Assembled, Message::Leaving] {
        let settings = settings(20_000);
        let root = Root::open(&settings).unwrap();
        let mut seated = Raw::joined(&root.id(), 0, 2, Vec::new());
        let mut raw = visitor(&root, 0);
        raw.send(&message, &[]);
        let Message::Fault(fault) = seated.receive() else { panic!("no fault") };
        let text = fault.to_string();
        assert!(matches!(fault, BootstrapError::Protocol { .. }), "{text}");
        assert!(text.contains("expected a join"), "{text}");
    }
}

#[test]
fn a_place_in_the_tree_without_an_address_is_an_error_and_no_endless_search() {
    let settings = settings(20_000);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let secret = super::Secret::random().unwrap();
    let id = super::UniqueId::with(&[listener.local_addr().unwrap()], secret);
    let plane = start(id, 1, 2, &settings);
    let mut root = Raw::accept(&listener, secret, Hello::new(Role::Root, Rank(u32::MAX)));
    assert!(matches!(root.receive(), Message::Join(_)));
    root.send(&Message::Welcome(Welcome { fan_out: 0, parent: Vec::new() }), &[]);
    let error = failure(&plane);
    assert!(error.to_string().contains("an address of rank 0"), "{error}");
}

/// A job of three that stands: rank 0, at the top, and rank 2 are real, rank 1 is in our hands.
pub(super) struct Below {
    _root: Root,
    pub top: ControlPlane,
    other: ControlPlane,
    pub raw: Raw,
}

fn assemble() -> Message {
    let parts = vec![(Rank(1), 0)];
    Message::Up(Up { sequence: 0, call: Call::Assemble, by: Rank(1), parts })
}

pub(super) fn below_a_rank() -> Below {
    let settings = settings(20_000);
    let root = Root::open(&settings).unwrap();
    let nowhere: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let mut at_root = Raw::joined(&root.id(), 1, 3, vec![nowhere]);
    let top = start(root.id(), 0, 3, &settings);
    let other = start(root.id(), 2, 3, &settings);
    let Message::Welcome(welcome) = at_root.receive() else { panic!("no welcome") };
    let hello = Hello::new(Role::Child, Rank(1));
    let mut raw = Raw::connect(welcome.parent[0], root.id().secret().unwrap(), hello);
    raw.send(&assemble(), &[]);
    assert!(matches!(raw.receive(), Message::Down(_)));
    at_root.send(&Message::Assembled, &[]);
    top.assembled().unwrap();
    Below { _root: root, top, other, raw }
}

fn contribution(sequence: u64, parts: &[(u32, u32)]) -> Message {
    let parts = parts.iter().map(|&(rank, bytes)| (Rank(rank), bytes)).collect();
    Message::Up(Up { sequence, call: Call::Barrier, by: Rank(1), parts })
}

#[test]
fn contributions_that_lie_end_the_job_with_the_liar_named() {
    let up = |sequence, call, by: u32| {
        Message::Up(Up { sequence, call, by: Rank(by), parts: Vec::new() })
    };
    let zero_lengths: Vec<_> = (0..1_000_000).map(|_| (1, 0)).collect();
    let attacks: [(&str, Message, &[u8]); 11] = [
        ("another rank's", contribution(1, &[(2, 0)]), b""),
        ("the receiver's own", contribution(1, &[(0, 0)]), b""),
        ("a rank's that is none", contribution(1, &[(u32::MAX, 0)]), b""),
        ("its own twice", contribution(1, &[(1, 1), (1, 1)]), b"ab"),
        ("its own a million times", contribution(1, &zero_lengths), b""),
        ("more than follows", contribution(1, &[(1, u32::MAX)]), b"short"),
        ("less than follows", contribution(1, &[(1, 1)]), b"longer"),
        ("of a call to come", contribution(u64::MAX, &[(1, 0)]), b""),
        ("of a call that is over", contribution(0, &[(1, 0)]), b""),
        ("in the name of another", up(1, Call::Barrier, 2), b""),
        ("downwards", Message::Down(Down { sequence: 1, lengths: vec![0; 3] }), b""),
    ];
    for (name, message, behind) in attacks {
        let mut below = below_a_rank();
        below.raw.send(&message, &[behind]);
        let error = failure(&below.top);
        let BootstrapError::Protocol { peer, .. } = &error else { panic!("{name}: {error}") };
        assert_eq!(peer, "rank 1", "{name}: {error}");
    }
    a_job_beside_goes_on();
}

#[test]
fn messages_out_of_place_end_the_job_with_their_sender_named() {
    let welcome = Welcome { fan_out: u32::MAX, parent: Vec::new() };
    let terms = vec![("a".to_owned(), "b".repeat(100_000))];
    let Message::Join(usual) = join(3, Vec::new()) else { unreachable!() };
    let long = Message::Join(Join { terms, ..usual });
    for message in [Message::Welcome(welcome), Message::Linked, Message::Assembled, long] {
        let mut below = below_a_rank();
        below.raw.send(&message, &[]);
        let error = failure(&below.top);
        let BootstrapError::Protocol { peer, seen, .. } = &error else { panic!("{error}") };
        assert!(peer == "rank 1" && seen.len() < 300, "{peer}: {} bytes", seen.len());
    }
}

/// If this fails, a rank speaks in the name of others, or sends notes around in circles.
#[test]
fn notes_of_others_and_notes_that_lead_back_end_the_job_with_their_sender_named() {
    for (from, to) in [(2, 0), (0, 2), (u32::MAX, 0), (1, 3), (1, u32::MAX), (1, 1)] {
        let mut below = below_a_rank();
        below.raw.send(&Message::Note { from: Rank(from), to: Rank(to) }, &[b"x"]);
        let error = failure(&below.top);
        let BootstrapError::Protocol { peer, .. } = &error else { panic!("{error}") };
        assert_eq!(peer, "rank 1", "{from} to {to}: {error}");
    }
    let mut below = below_a_rank();
    let (notes, received) = std::sync::mpsc::channel();
    below.other.on_note(move |rank, bytes| notes.send((rank, bytes.to_vec())).unwrap());
    below.raw.send(&Message::Note { from: Rank(1), to: Rank(2) }, &[b"a true one"]);
    let seen = received.recv_timeout(Duration::from_secs(10)).unwrap();
    assert_eq!(seen, (Rank(1), b"a true one".to_vec()));
}

#[test]
fn an_unknown_tag_is_refused_though_it_is_authentic() {
    let mut below = below_a_rank();
    let bytes = below.raw.seal(&[11, 0, 0].as_slice().into());
    below.raw.socket.write_all(&bytes).unwrap();
    assert!(matches!(failure(&below.top), BootstrapError::Protocol { .. }));
}

#[test]
fn an_early_end_names_who_ended() {
    let below = below_a_rank();
    drop(below.raw);
    let error = failure(&below.top);
    assert!(matches!(error, BootstrapError::Lost { rank: Rank(1), .. }), "{error}");
}

#[test]
fn a_flood_of_what_is_allowed_changes_nothing() {
    let mut below = below_a_rank();
    let foreign = Message::Expired { sequence: 9, call: Call::Agree, waited: Duration::MAX };
    for _ in 0..5_000 {
        below.raw.send(&Message::Report, &[&[7; 100]]);
        below.raw.send(&foreign, &[]);
    }
    below.raw.send(&contribution(1, &[(1, 0)]), &[]);
    std::thread::scope(|scope| {
        scope.spawn(|| below.other.barrier().unwrap());
        below.top.barrier().unwrap();
    });
}

#[test]
fn a_second_process_with_a_ranks_place_is_refused_and_the_first_stays() {
    let settings = settings(20_000);
    let root = Root::open(&settings).unwrap();
    let nowhere: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let mut at_root = Raw::joined(&root.id(), 1, 2, vec![nowhere]);
    let top = start(root.id(), 0, 2, &settings);
    let Message::Welcome(welcome) = at_root.receive() else { panic!("no welcome") };
    let secret = root.id().secret().unwrap();
    let child = |rank| Raw::connect(welcome.parent[0], secret, Hello::new(Role::Child, Rank(rank)));
    let mut first = child(1);
    // Known to the top before the others come: a note has been received.
    let (notes, received) = std::sync::mpsc::channel();
    top.on_child_message(move |rank, _| notes.send(rank).unwrap());
    first.send(&Message::Report, &[b"here"]);
    assert_eq!(received.recv_timeout(Duration::from_secs(10)), Ok(Rank(1)));
    for mut intruder in [child(1), child(0), child(7)] {
        intruder.send(&contribution(0, &[(1, 0)]), &[]);
        sees_the_end(&mut intruder, Duration::from_secs(10));
    }
    first.send(&assemble(), &[]);
    top.assembled().unwrap();
}
