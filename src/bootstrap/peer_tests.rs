//! Peers that hold the secret and break the protocol: played by hand, over real sockets, against
//! the real root and real ranks.

use super::frame::{MESSAGE_BYTES_MAX, Opener, Sealer};
use super::handshake::{Client, HELLO_BYTES, Hello, Keys, PROOF_BYTES, PROTOCOL, Role, Server};
use super::message::{Call, Join, Message, Up, decode, encode_with};
use super::plane::BUILD_TERM;
use super::{ControlPlane, JoinRequest, Root, Secret, UniqueId};
use crate::error::{BootstrapError, Error};
use crate::id::Rank;
use crate::settings::Settings;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// One end of an authenticated connection, in the hands of a test.
pub(super) struct Raw {
    pub socket: TcpStream,
    sealer: Sealer,
    opener: Opener,
    /// What the other end said of itself.
    hello: Hello,
}

impl Raw {
    pub fn connect(to: SocketAddr, secret: Secret, hello: Hello) -> Self {
        let mut socket = TcpStream::connect(to).unwrap();
        let (client, first) = Client::new(secret, Hello { nonce: [1; 32], ..hello });
        socket.write_all(&first).unwrap();
        let mut answer = [0; HELLO_BYTES];
        socket.read_exact(&mut answer).unwrap();
        let (prover, proof) = client.prove(&answer).unwrap_or_else(|refusal| panic!("{refusal}"));
        socket.write_all(&proof).unwrap();
        let mut proof = [0; PROOF_BYTES];
        socket.read_exact(&mut proof).unwrap();
        let (keys, hello) = prover.finish(&proof).unwrap_or_else(|refusal| panic!("{refusal}"));
        Self::open(socket, &keys, hello)
    }

    fn open(socket: TcpStream, keys: &Keys, hello: Hello) -> Self {
        let opener = Opener::new(keys, MESSAGE_BYTES_MAX);
        Self { socket, sealer: Sealer::new(keys), opener, hello }
    }

    pub fn accept(listener: &TcpListener, secret: Secret, hello: Hello) -> Self {
        let (mut socket, _) = listener.accept().unwrap();
        let mut first = [0; HELLO_BYTES];
        socket.read_exact(&mut first).unwrap();
        let answered = Server::answer(&secret, hello, &first);
        let (server, answer) = answered.unwrap_or_else(|refusal| panic!("{refusal}"));
        socket.write_all(&answer).unwrap();
        let mut proof = [0; PROOF_BYTES];
        socket.read_exact(&mut proof).unwrap();
        let finished = server.finish(&proof).unwrap_or_else(|refusal| panic!("{refusal}"));
        let (proof, keys, hello) = finished;
        socket.write_all(&proof).unwrap();
        Self::open(socket, &keys, hello)
    }

    /// A rank that joins at the root.
    pub fn joined(id: &UniqueId, rank: u32, rank_count: u32, addresses: Vec<SocketAddr>) -> Self {
        let hello = Hello::new(Role::Join, Rank(rank));
        let mut raw = Self::connect(id.addresses().unwrap()[0], id.secret().unwrap(), hello);
        raw.send(&join(rank_count, addresses), &[]);
        raw
    }

    fn frame(&mut self, message: &Message, behind: &[&[u8]]) -> Vec<u8> {
        let message = encode_with(message, behind);
        self.seal(&message)
    }

    /// Any bytes as a message.
    pub fn seal(&mut self, message: &Arc<[u8]>) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.sealer.seal(message, |segment| bytes.extend_from_slice(segment.bytes()));
        bytes
    }

    pub fn send(&mut self, message: &Message, behind: &[&[u8]]) {
        let bytes = self.frame(message, behind);
        self.socket.write_all(&bytes).unwrap();
    }

    /// The next message.
    pub fn receive(&mut self) -> Message {
        self.socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut buffer = Vec::new();
        loop {
            let (_, message) = self.opener.open(&buffer).unwrap();
            if let Some(message) = message {
                return decode(&message).unwrap().0;
            }
            // Byte by byte: nothing of the next message may be taken.
            let mut byte = [0];
            self.socket.read_exact(&mut byte).unwrap();
            buffer.push(byte[0]);
        }
    }
}

pub(super) fn join(rank_count: u32, addresses: Vec<SocketAddr>) -> Message {
    Message::Join(Join {
        rank_count,
        terms: vec![(BUILD_TERM.into(), crate::BUILD.into())],
        addresses,
        remaining: Duration::from_secs(60),
    })
}

pub(super) fn settings(timeout_ms: u64) -> Settings {
    Settings {
        bootstrap_timeout: Duration::from_millis(timeout_ms),
        bootstrap_interface: "lo".into(),
        ..Settings::default()
    }
}

pub(super) fn start(id: UniqueId, rank: u32, rank_count: u32, settings: &Settings) -> ControlPlane {
    let request = JoinRequest { id, rank: Rank(rank), rank_count, terms: Vec::new() };
    ControlPlane::start(request, settings).unwrap()
}

pub(super) fn failure(plane: &ControlPlane) -> BootstrapError {
    match plane.assembled().and_then(|()| plane.barrier()) {
        Err(Error::Bootstrap(error)) => *error,
        other => panic!("{other:?}"),
    }
}

/// A root, a rank that is one of two, and the other one in our hands.
fn beside_a_rank() -> (Root, ControlPlane, Raw) {
    let settings = settings(60_000);
    let root = Root::open(&settings).unwrap();
    let raw = Raw::joined(&root.id(), 1, 3, Vec::new());
    let plane = start(root.id(), 0, 3, &settings);
    (root, plane, raw)
}

#[test]
fn a_rank_of_another_version_is_named_to_all_and_learns_of_it() {
    let settings = settings(60_000);
    let root = Root::open(&settings).unwrap();
    // Has joined, so that it waits when the stranger comes.
    let mut early = Raw::joined(&root.id(), 1, 3, Vec::new());
    let hello = Hello { version: 77, ..Hello::new(Role::Join, Rank(2)) };
    let (address, secret) = (root.id().addresses().unwrap()[0], root.id().secret().unwrap());
    let foreign = Raw::connect(address, secret, hello);
    assert_eq!(foreign.hello.version, PROTOCOL, "it can tell its user");
    let Message::Fault(fault) = early.receive() else { panic!("no fault") };
    assert!(matches!(
        fault,
        BootstrapError::Version { rank: Rank(2), theirs: 77, root: PROTOCOL, .. }
    ));
    let late = failure(&start(root.id(), 0, 3, &settings));
    assert_eq!(late, fault);
}

#[test]
fn a_root_of_another_version_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let secret = Secret::random().unwrap();
    let id = UniqueId::with(&[listener.local_addr().unwrap()], secret);
    let plane = start(id, 3, 4, &settings(60_000));
    let hello = Hello { version: 77, ..Hello::new(Role::Root, Rank(u32::MAX)) };
    let raw = Raw::accept(&listener, secret, hello);
    assert_eq!(raw.hello.rank, Rank(3));
    let error = failure(&plane);
    assert!(matches!(
        error,
        BootstrapError::Version { rank: Rank(3), theirs: PROTOCOL, root: 77, .. }
    ));
}

/// If this fails, the last rank of a job whose ranks disagree finds nobody, where the process of
/// rank 0 has ended meanwhile.
#[test]
fn who_comes_late_learns_that_ranks_disagree() {
    let settings = settings(60_000);
    let root = Root::open(&settings).unwrap();
    let id = root.id();
    let join = |rank, color: &str| {
        let terms = vec![("the color".into(), color.into())];
        let request = JoinRequest { id, rank: Rank(rank), rank_count: 3, terms };
        ControlPlane::start(request, &settings).unwrap()
    };
    let (early, other) = (join(0, "red"), join(1, "blue"));
    let known = early.assembled();
    assert!(matches!(&known, Err(Error::Disagreement { what, .. }) if what == "the color"));
    let late = thread::scope(|scope| {
        let late = scope.spawn(|| {
            thread::sleep(Duration::from_millis(200));
            join(2, "red").assembled()
        });
        root.wait_for_late(&known);
        drop(root);
        late.join().unwrap()
    });
    for seen in [other.assembled(), late] {
        assert!(matches!(&seen, Err(Error::Disagreement { .. })), "{seen:?}");
    }
}

#[test]
fn a_frame_that_is_sent_again_ends_the_job_with_its_sender_named() {
    let settings = settings(60_000);
    let root = Root::open(&settings).unwrap();
    let (address, secret) = (root.id().addresses().unwrap()[0], root.id().secret().unwrap());
    let mut raw = Raw::connect(address, secret, Hello::new(Role::Join, Rank(1)));
    let plane = start(root.id(), 0, 3, &settings);
    let frame = raw.frame(&join(3, Vec::new()), &[]);
    raw.socket.write_all(&[frame.clone(), frame].concat()).unwrap();
    let error = failure(&plane);
    let BootstrapError::Lost { rank: Rank(1), cause, .. } = &error else { panic!("{error}") };
    assert!(cause.contains("replayed"), "{cause}");
}

#[test]
fn an_oversized_frame_is_not_waited_for() {
    let (_root, plane, mut raw) = beside_a_rank();
    raw.socket.write_all(&0x7000_0000u32.to_le_bytes()).unwrap();
    let error = failure(&plane);
    let BootstrapError::Lost { rank: Rank(1), cause, .. } = &error else { panic!("{error}") };
    assert!(cause.contains("a frame of 1879048192 bytes"), "{cause}");
}

#[test]
fn a_rank_that_dies_before_the_job_is_assembled_is_named() {
    let (_root, plane, raw) = beside_a_rank();
    drop(raw);
    let error = failure(&plane);
    assert!(matches!(error, BootstrapError::Lost { rank: Rank(1), by: None, .. }), "{error}");
}

#[test]
fn a_rank_that_proves_itself_and_then_says_nothing_is_missing() {
    let settings = settings(700);
    let root = Root::open(&settings).unwrap();
    let (address, secret) = (root.id().addresses().unwrap()[0], root.id().secret().unwrap());
    let _silent = Raw::connect(address, secret, Hello::new(Role::Join, Rank(1)));
    let error = failure(&start(root.id(), 0, 2, &settings));
    let BootstrapError::Missing { missing, .. } = &error else { panic!("{error}") };
    assert_eq!(*missing, [Rank(1)]);
}

/// If this fails, a rank that comes when the others have failed and gone waits a minute for them.
#[test]
fn a_rank_that_comes_when_the_root_has_ended_does_not_wait_for_it() {
    let settings = settings(60_000);
    let root = Root::open(&settings).unwrap();
    let id = root.id();
    drop(root);
    let error = failure(&start(id, 1, 2, &settings));
    let BootstrapError::Unreachable { target, tried, waited, .. } = &error else {
        panic!("{error}");
    };
    assert!(target.contains("has ended") && tried.contains("connection refused"), "{error}");
    assert!(*waited < Duration::from_secs(30), "{error}");
}

/// If this fails, ranks of a launcher give up before rank 0 has begun to listen.
#[test]
fn a_root_that_nobody_has_seen_may_come_late() {
    let settings = settings(7_000);
    let nowhere = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let id = UniqueId::with(&[nowhere], Secret::random().unwrap());
    let error = failure(&start(id, 1, 2, &settings));
    let BootstrapError::Unreachable { target, waited, .. } = &error else { panic!("{error}") };
    assert!(!target.contains("has ended") && *waited >= Duration::from_secs(7), "{error}");
}

#[test]
fn a_rank_whose_parent_cannot_be_reached_says_where_it_looked() {
    let settings = settings(1_000);
    let root = Root::open(&settings).unwrap();
    // The top listens at a port where nobody is.
    let nowhere = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut top = Raw::joined(&root.id(), 0, 2, vec![nowhere]);
    let plane = start(root.id(), 1, 2, &settings);
    let error = failure(&plane);
    let BootstrapError::Unreachable { rank: Rank(1), target, tried, .. } = &error else {
        panic!("{error}");
    };
    assert!(target.starts_with("rank 0") && tried.contains(&nowhere.to_string()), "{error}");
    assert!(tried.contains("connection refused"), "{error}");
    // And the root tells the others the same.
    assert!(matches!(top.receive(), Message::Welcome(_)));
    assert_eq!(top.receive(), Message::Fault(error));
}

/// A job of two that stands: rank 1 is real, the top is in our hands.
pub(super) fn above_a_rank() -> (Root, ControlPlane, Raw) {
    let settings = settings(60_000);
    let root = Root::open(&settings).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut at_root = Raw::joined(&root.id(), 0, 2, vec![listener.local_addr().unwrap()]);
    let plane = start(root.id(), 1, 2, &settings);
    assert!(matches!(at_root.receive(), Message::Welcome(_)));
    let hello = Hello::new(Role::Parent, Rank(0));
    let mut raw = Raw::accept(&listener, root.id().secret().unwrap(), hello);
    let Message::Up(up) = raw.receive() else { panic!("no contribution") };
    assert_eq!((up.call, up.parts), (Call::Assemble, vec![(Rank(1), 0)]));
    at_root.send(&Message::Assembled, &[]);
    (root, plane, raw)
}

#[test]
fn contributions_that_do_not_fit_the_call_are_refused() {
    let (_root, plane, mut raw) = above_a_rank();
    let down = super::message::Down { sequence: 0, lengths: vec![0, 9] };
    raw.send(&Message::Down(down), &[b"short"]);
    let error = failure(&plane);
    assert!(matches!(error, BootstrapError::Protocol { .. }), "{error}");
}

#[test]
fn a_message_that_is_out_of_place_is_refused() {
    let (_root, plane, mut raw) = above_a_rank();
    let up = Up { sequence: 0, call: Call::Assemble, by: Rank(0), parts: Vec::new() };
    raw.send(&Message::Up(up), &[]);
    let error = failure(&plane);
    assert!(matches!(error, BootstrapError::Protocol { .. }), "{error}");
}

#[test]
fn a_parent_that_falls_silent_is_named_by_those_below() {
    let settings = settings(800);
    let root = Root::open(&settings).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut at_root = Raw::joined(&root.id(), 0, 2, vec![listener.local_addr().unwrap()]);
    let plane = start(root.id(), 1, 2, &settings);
    assert!(matches!(at_root.receive(), Message::Welcome(_)));
    let mut raw =
        Raw::accept(&listener, root.id().secret().unwrap(), Hello::new(Role::Parent, Rank(0)));
    assert!(matches!(raw.receive(), Message::Up(_)));
    let down = super::message::Down { sequence: 0, lengths: vec![0, 0] };
    raw.send(&Message::Down(down), &[]);
    plane.assembled().unwrap();
    // The connection stays open, as that of a stopped process does.
    let error = failure(&plane);
    let BootstrapError::Missing { missing, .. } = &error else { panic!("{error}") };
    assert_eq!(*missing, [Rank(0)]);
    assert!(matches!(raw.receive(), Message::Up(_)));
    assert!(matches!(raw.receive(), Message::Expired { sequence: 1, call: Call::Barrier, .. }));
    assert_eq!(raw.receive(), Message::Fault(error));
}

#[test]
fn bytes_that_are_no_message_are_refused_though_they_are_authentic() {
    let (_root, plane, mut raw) = above_a_rank();
    let bytes = raw.seal(&[0xff; 40].as_slice().into());
    raw.socket.write_all(&bytes).unwrap();
    assert!(matches!(failure(&plane), BootstrapError::Protocol { .. }));
    assert!(matches!(raw.receive(), Message::Fault(_)));
}
