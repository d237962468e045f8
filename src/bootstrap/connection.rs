//! One TCP connection of the I/O thread: connecting, handshake, frames, farewell.

use super::frame::{Fragment, MESSAGE_BYTES_MAX, Opener, PAYLOAD_BYTES_MAX, Sealer};
use super::handshake::{
    Client, HELLO_BYTES, Hello, Keys, PROOF_BYTES, Prover, Refusal, Server, check_start,
};
use super::net::canonical;
use super::unique_id::Secret;
use super::user::Users;
use mio::net::TcpStream;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Read};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;
/// Reads in a row before other connections get their turn.
const READS_MAX: usize = 16;
/// The most bytes that wait to go out on one connection.
const QUEUE_BYTES_MAX: usize = MESSAGE_BYTES_MAX + (64 << 20);
/// The cause of the end where nobody listens.
pub(super) const REFUSED: &str = "connection refused";
/// How long a connection that says farewell may take to get rid of its last bytes.
const FAREWELL: Duration = Duration::from_secs(2);

/// Who one end is, for the handshake.
#[derive(Clone, Copy)]
pub(super) struct Identity {
    pub secret: Secret,
    pub hello: Hello,
    /// How long connecting and handshake may take. One that was accepted has the same time again
    /// to take its place in the job.
    pub limit: Duration,
    /// The most bytes of a message before the connection belongs to the job.
    pub early_bytes_max: usize,
}

/// How far a connection is.
enum Stage {
    /// The system is connecting.
    Connecting(Identity),
    /// Our hello is out.
    AwaitsAnswer(Client),
    /// Our proof is out.
    AwaitsServerProof(Prover),
    /// Accepted; nothing is known yet.
    AwaitsHello(Identity),
    /// Our answer is out.
    AwaitsProof(Server),
    Open(Box<(Sealer, Opener)>),
    /// Refused, or in the middle of a step: nothing can be sent or taken.
    Between,
    /// Nobody is interested any more; the last bytes go out.
    Farewell,
}

/// What a connection reports.
pub(super) enum Happening {
    Opened(Hello),
    Message(Vec<u8>),
}

pub(super) struct Connection {
    pub socket: TcpStream,
    pub address: SocketAddr,
    /// We accepted it; otherwise we connected.
    pub accepted: bool,
    authenticated: bool,
    owner_checked: bool,
    stage: Stage,
    inbound: Vec<u8>,
    outbound: VecDeque<Fragment>,
    outbound_bytes: usize,
    /// Of the other end's messages, and of the wait for its place in the job: see [`Identity`].
    early_bytes_max: usize,
    limit: Duration,
    /// When connecting, handshake, joining or farewell must be over.
    pub deadline: Option<Instant>,
    /// Reading stopped for fairness, not because there was no more.
    pub more: bool,
}

impl Connection {
    pub fn connecting(socket: TcpStream, address: SocketAddr, own: Identity, now: Instant) -> Self {
        Self::new(socket, address, own, Stage::Connecting(own), now)
    }

    pub fn accepted(socket: TcpStream, address: SocketAddr, own: Identity, now: Instant) -> Self {
        Self::new(socket, address, own, Stage::AwaitsHello(own), now)
    }

    fn new(
        socket: TcpStream,
        address: SocketAddr,
        own: Identity,
        stage: Stage,
        now: Instant,
    ) -> Self {
        Self {
            socket,
            address,
            accepted: matches!(stage, Stage::AwaitsHello(_)),
            authenticated: false,
            owner_checked: false,
            stage,
            inbound: Vec::new(),
            outbound: VecDeque::new(),
            outbound_bytes: 0,
            early_bytes_max: own.early_bytes_max,
            limit: own.limit,
            deadline: Some(now + own.limit),
            more: false,
        }
    }

    pub fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Open(_))
    }

    /// The other end has shown that it holds the secret.
    pub fn is_authenticated(&self) -> bool {
        self.authenticated
    }

    /// The connection belongs to the job.
    pub fn admit(&mut self, message_bytes_max: usize) {
        if let Stage::Open(ends) = &mut self.stage {
            ends.1.set_message_bytes_max(message_bytes_max);
            self.deadline = None;
        }
    }

    pub fn is_ending(&self) -> bool {
        matches!(self.stage, Stage::Farewell)
    }

    /// Queues a message. `message` is shared by all connections that it goes to.
    pub fn send(&mut self, message: &Arc<[u8]>) {
        if let Stage::Open(ends) = &mut self.stage {
            let (outbound, bytes) = (&mut self.outbound, &mut self.outbound_bytes);
            ends.0.seal(message, |fragment| {
                *bytes += fragment.bytes().len();
                outbound.push_back(fragment);
            });
        }
    }

    /// Lets what is queued go out, then closes. The other end keeps reading until then, so its
    /// last messages are not lost to a reset.
    pub fn end(&mut self, now: Instant) {
        self.stage = Stage::Farewell;
        self.deadline = Some(now + FAREWELL);
        self.inbound = Vec::new();
    }

    /// What is wrong with a connection whose deadline has passed.
    pub fn late(&self) -> String {
        match self.stage {
            Stage::Connecting(_) => "no answer in time".into(),
            Stage::Open(_) => "it has the secret, but did not join in time".into(),
            _ => format!("it did not finish the handshake in time ({} bytes)", self.inbound.len()),
        }
    }

    /// Moves bytes as far as they go without waiting; reports to `report`.
    ///
    /// # Errors
    /// The reason why the connection is of no more use.
    pub fn turn(
        &mut self,
        users: &mut Users,
        scratch: &mut Vec<u8>,
        mut report: impl FnMut(Happening),
    ) -> Result<(), String> {
        if let Stage::Connecting(own) = self.stage {
            if !self.connected()? {
                return Ok(());
            }
            let (client, hello) = Client::new(own.secret, own.hello);
            self.stage = Stage::AwaitsAnswer(client);
            self.queue(&hello);
        }
        // What the other end said before it went still counts, so reading comes first.
        let read = self.read(users, scratch, &mut report);
        let written = self.write();
        read.and(written).map_err(|cause| match self.stage {
            Stage::AwaitsServerProof(_) => {
                format!("{cause} after it had received our proof: it may have another secret")
            }
            _ => cause,
        })
    }

    fn connected(&self) -> Result<bool, String> {
        if let Some(error) = self.socket.take_error().map_err(text)? {
            return Err(text(error));
        }
        match self.socket.peer_addr() {
            // A port from which the system also takes ports for outgoing connections, and nobody
            // listens there yet: TCP then lets a connection meet itself, and hold the root's port.
            Ok(peer) if self.socket.local_addr().is_ok_and(|own| own == peer) => {
                Err("no process listens there: the connection reached itself".into())
            }
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(text(error)),
        }
    }

    fn read(
        &mut self,
        users: &mut Users,
        scratch: &mut Vec<u8>,
        report: &mut impl FnMut(Happening),
    ) -> Result<(), String> {
        scratch.resize(READ_BYTES, 0);
        self.more = false;
        for _ in 0..READS_MAX {
            match self.socket.read(scratch) {
                Ok(0) => return Err("it closed the connection".into()),
                Ok(_) if self.is_ending() => {}
                Ok(bytes) => {
                    self.inbound.extend_from_slice(&scratch[..bytes]);
                    self.digest(users, report)?;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(text(error)),
            }
        }
        self.more = true;
        Ok(())
    }

    /// Takes what is complete off the inbound bytes.
    fn digest(
        &mut self,
        users: &mut Users,
        report: &mut impl FnMut(Happening),
    ) -> Result<(), String> {
        let mut at = 0;
        // Bounded: every turn takes bytes off, changes the stage, or ends the loop.
        loop {
            let rest = &self.inbound[at..];
            match std::mem::replace(&mut self.stage, Stage::Between) {
                Stage::Open(mut ends) => {
                    let opened = ends.1.open(rest);
                    self.stage = Stage::Open(ends);
                    let (taken, message) = opened.map_err(|error| error.to_string())?;
                    message.map(Happening::Message).map(&mut *report);
                    if taken == 0 {
                        break;
                    }
                    at += taken;
                }
                // Once it has answered, its socket has an owner: see `user`.
                stage @ Stage::AwaitsAnswer(_) if !rest.is_empty() && !self.owner_checked => {
                    self.stage = stage;
                    self.check_owner(users)?;
                }
                stage => match self.greet(stage, at).map_err(|refusal| refusal.to_string())? {
                    None => break,
                    Some((taken, hello)) => {
                        at += taken;
                        hello.map(Happening::Opened).map(&mut *report);
                    }
                },
            }
        }
        self.inbound.drain(..at);
        // A large frame once is no reason to keep its buffer for ever.
        if self.inbound.is_empty() && self.inbound.capacity() > PAYLOAD_BYTES_MAX {
            self.inbound = Vec::new();
        }
        Ok(())
    }

    /// Refuses another user of this machine who listens in the root's or a rank's place, before
    /// it sees our proof.
    fn check_owner(&mut self, users: &mut Users) -> Result<(), String> {
        self.owner_checked = true;
        let own = self.socket.local_addr().map_err(text)?;
        users.check(canonical(own), canonical(self.address))
    }

    /// One step of the handshake: bytes taken, and the other end's hello if that was the last
    /// step. `None`: more bytes are needed.
    fn greet(
        &mut self,
        stage: Stage,
        at: usize,
    ) -> Result<Option<(usize, Option<Hello>)>, Refusal> {
        let rest = &self.inbound[at..];
        match stage {
            Stage::AwaitsHello(own) => {
                check_start(rest)?;
                let Some(hello) = rest.first_chunk::<HELLO_BYTES>() else {
                    self.stage = Stage::AwaitsHello(own);
                    return Ok(None);
                };
                let (server, answer) = Server::answer(&own.secret, own.hello, hello)?;
                self.stage = Stage::AwaitsProof(server);
                self.queue(&answer);
                Ok(Some((HELLO_BYTES, None)))
            }
            Stage::AwaitsAnswer(client) => {
                check_start(rest)?;
                let Some(hello) = rest.first_chunk::<HELLO_BYTES>() else {
                    self.stage = Stage::AwaitsAnswer(client);
                    return Ok(None);
                };
                let (prover, proof) = client.prove(hello)?;
                self.stage = Stage::AwaitsServerProof(prover);
                self.queue(&proof);
                Ok(Some((HELLO_BYTES, None)))
            }
            Stage::AwaitsProof(server) => {
                let Some(proof) = rest.first_chunk::<PROOF_BYTES>() else {
                    self.stage = Stage::AwaitsProof(server);
                    return Ok(None);
                };
                let (own_proof, keys, hello) = server.finish(proof)?;
                self.queue(&own_proof);
                self.open(&keys);
                Ok(Some((PROOF_BYTES, Some(hello))))
            }
            Stage::AwaitsServerProof(prover) => {
                let Some(proof) = rest.first_chunk::<PROOF_BYTES>() else {
                    self.stage = Stage::AwaitsServerProof(prover);
                    return Ok(None);
                };
                let (keys, hello) = prover.finish(proof)?;
                self.open(&keys);
                Ok(Some((PROOF_BYTES, Some(hello))))
            }
            stage @ (Stage::Connecting(_) | Stage::Open(_) | Stage::Between | Stage::Farewell) => {
                self.stage = stage;
                Ok(None)
            }
        }
    }

    fn open(&mut self, keys: &Keys) {
        let opener = Opener::new(keys, self.early_bytes_max);
        self.stage = Stage::Open(Box::new((Sealer::new(keys), opener)));
        self.authenticated = true;
        self.deadline = self.deadline.filter(|_| self.accepted).map(|at| at + self.limit);
    }

    fn queue(&mut self, bytes: &[u8]) {
        self.outbound_bytes += bytes.len();
        self.outbound.push_back(Fragment::whole(bytes.into()));
    }

    /// Writes what the system takes.
    pub fn write(&mut self) -> Result<(), String> {
        while !self.outbound.is_empty() {
            let slices: Vec<_> =
                self.outbound.iter().take(64).map(|part| IoSlice::new(part.bytes())).collect();
            // Not `write_vectored`: in a program that is not Rust's, writing to a connection that
            // the other end has closed would raise SIGPIPE and kill it.
            let socket = socket2::SockRef::from(&self.socket);
            match socket.send_vectored_with_flags(&slices, nix::libc::MSG_NOSIGNAL) {
                Ok(bytes) => self.forget(bytes),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return self.check_queue(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(text(error)),
            }
        }
        if self.is_ending() {
            self.socket.shutdown(Shutdown::Write).map_err(text)?;
        }
        Ok(())
    }

    /// Bounds what waits for an end that does not read. A rank has one call in flight, so a healthy
    /// one never has so much.
    fn check_queue(&self) -> Result<(), String> {
        if self.outbound_bytes > QUEUE_BYTES_MAX {
            return Err(format!(
                "it does not read: {} bytes are queued for it",
                self.outbound_bytes
            ));
        }
        Ok(())
    }

    fn forget(&mut self, mut bytes: usize) {
        self.outbound_bytes -= bytes;
        while let Some(first) = self.outbound.front_mut() {
            let length = first.bytes().len();
            if bytes < length {
                first.advance(bytes);
                return;
            }
            bytes -= length;
            self.outbound.pop_front();
        }
    }
}

/// The system's words for what went wrong.
pub(super) fn text(error: io::Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionRefused => REFUSED.into(),
        ErrorKind::ConnectionReset => "connection reset".into(),
        _ => error.to_string(),
    }
}
