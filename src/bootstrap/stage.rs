//! Roots and ranks of jobs on a network that whoever drives them plays, with time of its own: what
//! runs on the I/O thread otherwise, one step at a time. For simulations.
//!
//! Connections that the network reports as opened are authenticated: whoever plays it lets nobody
//! else in. It reports messages of one connection whole and in order.

use super::connection::Identity;
use super::frame::EARLY_BYTES_MAX;
use super::handshake::{Hello, Role};
use super::member::{Listens, Member, Plan};
use super::message::Call;
use super::net::{ConnectionId, Event, TaskId, Wire};
use super::reactor::{Request, Task};
use super::root::RootTask;
use super::shared::Shared;
use super::{Secret, Term, handshake_limit};
use crate::error::{BootstrapError, Error};
use crate::id::Rank;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The rank in the hello of a root, which is none.
const NO_RANK: Rank = Rank(u32::MAX);

/// The network of one task.
pub trait Network {
    /// The time.
    fn now(&self) -> Instant;

    /// Begins to connect, and gives the connection a number that was never used, and is not 0.
    fn connect(&mut self, to: SocketAddr) -> usize;

    /// Sends a message. A connection that is gone swallows it.
    fn send(&mut self, connection: usize, bytes: &[u8]);

    /// Ends a connection once everything that was sent has gone out.
    fn end(&mut self, connection: usize);

    /// Accepts nobody any more.
    fn stop_listening(&mut self);
}

/// A rank of a job, before it begins.
#[derive(Clone, Debug)]
pub struct Joining {
    /// This rank.
    pub rank: Rank,
    /// Number of ranks.
    pub rank_count: u32,
    /// Names and values that must be equal on all ranks.
    pub terms: Vec<Term>,
    /// How long it waits for the others.
    pub timeout: Duration,
    /// Where the root is.
    pub root: SocketAddr,
    /// Where this rank listens for others.
    pub listens_at: SocketAddr,
}

/// A root, or a rank.
pub struct Staged {
    task: Box<dyn Task>,
    /// Of a rank.
    shared: Option<Arc<Shared>>,
}

impl Staged {
    /// The root of a job, whose tree has at most `fan_out` children of each rank.
    pub fn root(address: SocketAddr, fan_out: u32, now: Instant) -> Self {
        let own = Identity {
            secret: Secret([0; 32]),
            hello: Hello::new(Role::Root, NO_RANK),
            limit: Duration::ZERO,
            early_bytes_max: EARLY_BYTES_MAX,
        };
        let task = RootTask::new(0, own, (fan_out, address.to_string()), now);
        Self { task: Box::new(task), shared: None }
    }

    /// A rank.
    pub fn rank(joining: Joining, now: Instant) -> Self {
        let Joining { rank, rank_count, terms, timeout, root, listens_at } = joining;
        let (port, fixed) = (listens_at.port(), vec![listens_at]);
        let plan = Plan {
            rank,
            rank_count,
            secret: Secret([0; 32]),
            terms,
            timeout,
            limit: handshake_limit(timeout),
            root: vec![root],
            root_was_open: false,
            listener: None,
            listens: Listens { port, fixed, fallback: Vec::new(), scope: 0 },
        };
        let shared = Arc::<Shared>::default();
        let task = Member::new(0, plan, Arc::clone(&shared), now);
        Self { task: Box::new(task), shared: Some(shared) }
    }

    /// How long a connection may take to be made, if joining may take `timeout`.
    pub fn connecting_limit(timeout: Duration) -> Duration {
        handshake_limit(timeout)
    }

    /// A connection to `peer`, or to the root if that is `None`, is open. `accepted`: it came to
    /// our listener.
    pub fn opened(
        &mut self,
        network: &mut dyn Network,
        (connection, peer): (usize, Option<Rank>),
        address: SocketAddr,
        accepted: bool,
    ) {
        let hello = Hello::new(Role::Join, peer.unwrap_or(NO_RANK));
        let connection = mio::Token(connection);
        let event = Event::Opened { connection, hello, address, accepted };
        self.task.event(&mut Adapter(network), event);
    }

    /// A message has come in.
    pub fn message(&mut self, network: &mut dyn Network, connection: usize, bytes: Vec<u8>) {
        let event = Event::Message { connection: mio::Token(connection), bytes };
        self.task.event(&mut Adapter(network), event);
    }

    /// A connection is gone, and why.
    pub fn closed(&mut self, network: &mut dyn Network, connection: usize, cause: String) {
        let event = Event::Closed { connection: mio::Token(connection), cause };
        self.task.event(&mut Adapter(network), event);
    }

    /// Events were handled, or the deadline has passed.
    pub fn tick(&mut self, network: &mut dyn Network) {
        self.task.tick(&mut Adapter(network));
    }

    /// When [`tick`](Self::tick) must come at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        self.task.deadline()
    }

    /// It can be forgotten; its connections end.
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Begins an all-gather of all ranks: as `ControlPlane::begin_all_gather`.
    pub fn gather(&mut self, network: &mut dyn Network, bytes: Vec<u8>, limit: Duration) {
        self.ask(network, Request::Call { call: Call::AllGather, bytes, limit });
    }

    /// Sends another rank some bytes: as `ControlPlane::send_note`.
    pub fn note(&mut self, network: &mut dyn Network, to: Rank, bytes: Vec<u8>) {
        self.ask(network, Request::Note { to, bytes });
    }

    /// Has `handler` called with what others send by [`note`](Self::note): as
    /// `ControlPlane::on_note`.
    pub fn on_note(&self, handler: impl FnMut(Rank, &[u8]) + Send + 'static) {
        if let Some(shared) = &self.shared {
            shared.on_note(Box::new(handler));
        }
    }

    /// Ends the job: as `ControlPlane::abort`.
    pub fn abort(&mut self, network: &mut dyn Network, by: Rank, why: &str) {
        let fault = BootstrapError::Aborted { by, why: why.to_owned() };
        self.ask(network, Request::End(fault));
    }

    /// The rank makes no more calls, as when a `ControlPlane` is dropped; a root's owner drops it.
    pub fn leave(&mut self, network: &mut dyn Network) {
        self.ask(network, Request::Leave);
    }

    fn ask(&mut self, network: &mut dyn Network, request: Request) {
        self.task.request(&mut Adapter(network), request);
    }

    /// All ranks are connected, as far as this rank knows.
    pub fn is_live(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.lock().live)
    }

    /// All ranks' bytes, once the all-gather has ended well.
    pub fn take_result(&mut self) -> Option<Vec<Vec<u8>>> {
        self.shared.as_ref()?.lock().result.take()
    }

    /// The error that ended the job for this rank.
    pub fn failure(&self) -> Option<Error> {
        self.shared.as_ref()?.lock().failure.clone()
    }
}

/// A network as tasks use it.
struct Adapter<'a>(&'a mut dyn Network);

impl Wire for Adapter<'_> {
    fn now(&self) -> Instant {
        self.0.now()
    }

    fn listen(&mut self, _: TaskId, _: std::net::TcpListener, _: Identity) -> io::Result<()> {
        // Staged tasks have no listener: the network knows where they are.
        Err(io::ErrorKind::Unsupported.into())
    }

    fn stop_listening(&mut self, _: TaskId) {
        self.0.stop_listening();
    }

    fn connect(&mut self, _: TaskId, to: SocketAddr, _: Identity) -> ConnectionId {
        mio::Token(self.0.connect(to))
    }

    fn send_bytes(&mut self, connection: ConnectionId, bytes: &Arc<[u8]>) {
        self.0.send(connection.0, bytes);
    }

    fn flush(&mut self) {}

    fn local_address(&self, _: ConnectionId) -> Option<SocketAddr> {
        // Ranks publish the address that they were given.
        None
    }

    fn admit(&mut self, _: ConnectionId, _: usize) {}

    fn end(&mut self, connection: ConnectionId) {
        self.0.end(connection.0);
    }

    fn log_limited(&mut self, _: TaskId, log: &mut dyn FnMut(u64)) {
        log(0);
    }
}
