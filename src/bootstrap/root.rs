//! The root: where ranks meet. It counts them, compares what they bring, gives each the address of
//! its parent in the tree, and goes away once the tree stands. Its work and its memory are
//! proportional to the number of ranks. While it is there it is also the way on which a failure
//! reaches ranks that are not connected to one another yet.

use super::address;
use super::connection::Identity;
use super::frame::EARLY_BYTES_MAX;
use super::handshake::{Hello, PROTOCOL, Role};
use super::message::{Join, Message, Term, Welcome, decode, encode};
use super::net::{ConnectionId, Event, TaskId, Wire};
use super::reactor::{Reactor, Request, Task};
use super::shared::Shared;
use super::tree::Tree;
use super::unique_id::{Secret, UniqueId};
use super::{RANKS_MAX, after, early_bytes_max, handshake_limit};
use crate::error::{BootstrapError, Error, Result};
use crate::id::Rank;
use crate::settings::Settings;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most addresses that a rank is known by.
pub(super) const ADDRESSES_MAX: usize = 4;
/// How much later than the first ranks of a launcher others may come: interpreters start, and load
/// what programs import.
const LATE_MAX: Duration = Duration::from_secs(10);
/// The rank in the root's hello: it is none.
const NO_RANK: Rank = Rank(u32::MAX);

/// The meeting place of one job, served by this process until every rank has been there and the
/// ranks are connected. Dropping it earlier ends the rendezvous with an error on every rank; see
/// [`Root::detach`].
#[derive(Debug)]
pub struct Root {
    id: UniqueId,
    task: TaskId,
    reactor: Arc<Reactor>,
    ended: Arc<Shared>,
    detached: bool,
}

impl Root {
    /// Opens a meeting place on a free port of the interface that `settings` choose, with a fresh
    /// secret.
    ///
    /// # Errors
    /// [`Error::NotFound`] where no interface fits, [`Error::System`] where no port can be had.
    pub fn open(settings: &Settings) -> Result<Self> {
        let (listener, addresses) = Self::listen(settings)?;
        Self::serve(listener, UniqueId::of_open_root(&addresses, Secret::random()?), settings)
    }

    /// A listener on a free port of the interface that `settings` choose, and its addresses.
    ///
    /// # Errors
    /// As [`Root::open`].
    pub(super) fn listen(settings: &Settings) -> Result<(TcpListener, Vec<SocketAddr>)> {
        let mut choice = address::choose_from_system(&settings.bootstrap_interface)?;
        let listener = if choice.is_loopback() {
            choice.addresses.truncate(1);
            address::listen(&choice.addresses)?
        } else {
            address::listen(&address::wildcards(0))?
        };
        let addresses = choice.with_port(address::port(&listener)?);
        Ok((listener, addresses))
    }

    /// Serves the job of `id` on a listener that was made before.
    ///
    /// # Errors
    /// [`Error::Argument`] for bytes that are no id, [`Error::System`] where the system refuses.
    pub fn serve(listener: TcpListener, id: UniqueId, settings: &Settings) -> Result<Self> {
        let reactor = Reactor::get()?;
        let task = reactor.task_id();
        let own = Identity {
            secret: id.secret()?,
            hello: Hello::new(Role::Root, NO_RANK),
            limit: handshake_limit(settings.bootstrap_timeout),
            early_bytes_max: EARLY_BYTES_MAX,
        };
        let address = listener.local_addr().map_or_else(|e| e.to_string(), |a| a.to_string());
        let state = RootTask::new(task, own, (settings.bootstrap_fan_out, address), Instant::now());
        let ended = Arc::<Shared>::default();
        let tells = Ended(ended.clone());
        reactor.start(task, RootTask { listener: Some(listener), _ended: tells, ..state });
        Ok(Self { id, task, reactor, ended, detached: false })
    }

    /// The name of the job, for all its ranks.
    pub fn id(&self) -> UniqueId {
        self.id
    }

    /// Leaves the meeting place to itself: it serves until the job is assembled or has failed, or
    /// until the process ends. While no rank has come, that is without limit.
    pub fn detach(mut self) {
        self.detached = true;
    }

    /// For a process that ends where its rank could not join. Where ranks disagree, all of them
    /// are alive: waits until each has come and knows, ten seconds at most. One that came later
    /// would find nobody, and not learn why.
    pub fn wait_for_late<T>(&self, joined: &Result<T>) {
        let disagree = match joined {
            Err(Error::Disagreement { .. }) => true,
            Err(Error::Bootstrap(error)) => matches!(**error, BootstrapError::Version { .. }),
            _ => false,
        };
        if disagree {
            self.ended.wait(LATE_MAX, |state| state.gone.then_some(()));
        }
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        if !self.detached {
            self.reactor.request(self.task, Request::Leave);
        }
    }
}

/// Tells that the task has ended: nobody of whom it knows has to come any more.
#[derive(Default)]
struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.update(|state| state.gone = true);
    }
}

/// A rank that has come.
struct Joined {
    connection: ConnectionId,
    address: SocketAddr,
    listens_at: Vec<SocketAddr>,
    /// Connected to its parent.
    linked: bool,
    /// The tree stands, as far as this rank knows.
    assembled: bool,
}

/// The first rank to come; all others are compared with it.
struct First {
    rank: Rank,
    rank_count: u32,
    terms: Vec<Term>,
}

pub(super) struct RootTask {
    id: TaskId,
    own: Identity,
    listener: Option<TcpListener>,
    fan_out: u32,
    address: String,
    first: Option<First>,
    ranks: BTreeMap<Rank, Joined>,
    /// Open connections: who it claims to be, from where, and whether it has joined.
    visitors: BTreeMap<ConnectionId, (Hello, SocketAddr, bool)>,
    fault: Option<BootstrapError>,
    /// Ranks that were sent the fault.
    notified: u32,
    /// Ranks that need the root no more.
    left: u32,
    /// The earliest end of any rank's patience.
    deadline: Option<Instant>,
    opened: Instant,
    finished: bool,
    /// Tells when it is dropped.
    _ended: Ended,
}

impl Task for RootTask {
    fn start(&mut self, net: &mut dyn Wire) {
        // Of the I/O thread's clock, from which the time that `new` was given may differ.
        self.opened = net.now();
        let Some(listener) = self.listener.take() else { return };
        if let Err(error) = net.listen(self.id, listener, self.own) {
            tracing::error!(address = %self.address, %error, "the bootstrap root cannot listen");
            self.finished = true;
        }
    }

    fn event(&mut self, net: &mut dyn Wire, event: Event) {
        match event {
            Event::Opened { connection, hello, address, .. } => {
                self.visitors.insert(connection, (hello, address, false));
                if hello.version != PROTOCOL {
                    // It sees our version in our hello and fails by itself, in its own words.
                    self.fail(
                        net,
                        BootstrapError::Version {
                            rank: hello.rank,
                            address: address.to_string(),
                            theirs: hello.version,
                            root: PROTOCOL,
                        },
                    );
                }
            }
            Event::Message { connection, bytes } => {
                if !self.visitors.contains_key(&connection) {
                    // It sent more than was asked before it received its release.
                } else if let Some((message, _)) = decode(&bytes) {
                    self.message(net, connection, message);
                } else if let Some((hello, ..)) = self.visitors.get(&connection) {
                    let peer = hello.rank.to_string();
                    self.fail(net, protocol(peer, "a message of the protocol", "other bytes"));
                }
            }
            Event::Closed { connection, cause } => self.closed(net, connection, cause),
        }
    }

    fn request(&mut self, net: &mut dyn Wire, request: Request) {
        if !matches!(request, Request::Leave) || self.finished {
            return;
        }
        let cause = "its owner has dropped it".into();
        self.fail(net, BootstrapError::RootLost { address: self.address.clone(), cause });
        self.finished = true;
    }

    fn tick(&mut self, net: &mut dyn Wire) {
        if self.deadline.is_none_or(|deadline| deadline > net.now()) {
            return;
        }
        if self.fault.is_none() {
            self.fail_for_missing(net);
        }
        self.finished = true;
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn is_finished(&self) -> bool {
        self.finished
    }

    fn broken(&mut self, net: &mut dyn Wire, what: String) {
        self.fail(net, BootstrapError::Panicked { by: "the root of the job".into(), what });
        self.finished = true;
    }
}

impl RootTask {
    /// One without a listener, which hands out a tree of this `fan_out`. `address` is for messages.
    pub fn new(
        id: TaskId,
        own: Identity,
        (fan_out, address): (u32, String),
        opened: Instant,
    ) -> Self {
        Self {
            id,
            own,
            listener: None,
            fan_out,
            address,
            first: None,
            ranks: BTreeMap::new(),
            visitors: BTreeMap::new(),
            fault: None,
            notified: 0,
            left: 0,
            deadline: None,
            opened,
            finished: false,
            _ended: Ended::default(),
        }
    }

    fn message(&mut self, net: &mut dyn Wire, connection: ConnectionId, message: Message) {
        let Some(&(hello, address, joined)) = self.visitors.get(&connection) else { return };
        let rank = hello.rank;
        match message {
            Message::Join(join) if !joined => {
                self.visitors.insert(connection, (hello, address, true));
                self.join(net, connection, rank, address, join);
            }
            // Only who has joined has an entry; the rank that a hello claims is not enough.
            Message::Linked if joined => {
                if let Some(entry) = self.ranks.get_mut(&rank) {
                    entry.linked = true;
                }
            }
            Message::Assembled if joined => self.leave(net, connection, rank),
            Message::Fault(fault) if joined => self.fail(net, fault),
            other => {
                let expected = if joined { "a rank's message to the root" } else { "a join" };
                self.fail(net, protocol(rank.to_string(), expected, &other.summary()));
            }
        }
    }

    fn join(
        &mut self,
        net: &mut dyn Wire,
        connection: ConnectionId,
        rank: Rank,
        address: SocketAddr,
        join: Join,
    ) {
        if !(1..=RANKS_MAX).contains(&join.rank_count) {
            let expected = format!("a job of 1 to {RANKS_MAX} ranks");
            let seen = format!("one of {}", join.rank_count);
            return self.fail(net, protocol(rank.to_string(), &expected, &seen));
        }
        net.admit(connection, early_bytes_max(join.rank_count));
        let until = after(net.now(), join.remaining);
        self.deadline = Some(self.deadline.map_or(until, |deadline| deadline.min(until)));
        if let Some(fault) = &self.fault {
            let fault = Message::Fault(fault.clone());
            self.dismiss(net, connection, &encode(&fault));
            return self.finish_when_all_know(join.rank_count);
        }
        let first = self.first.get_or_insert_with(|| First {
            rank,
            rank_count: join.rank_count,
            terms: join.terms.clone(),
        });
        let rank_count = first.rank_count;
        let refused = disagreement(first, rank, &join).or_else(|| {
            (rank.0 >= rank_count).then(|| BootstrapError::OutOfRange {
                rank,
                rank_count,
                address: address.to_string(),
            })
        });
        let refused = refused.or_else(|| {
            self.ranks.get(&rank).map(|joined| BootstrapError::Duplicate {
                rank,
                first: joined.address.to_string(),
                second: address.to_string(),
            })
        });
        if let Some(fault) = refused {
            return self.fail(net, fault);
        }
        let mut listens_at = join.addresses;
        listens_at.truncate(ADDRESSES_MAX);
        let joined = Joined { connection, address, listens_at, linked: false, assembled: false };
        self.ranks.insert(rank, joined);
        tracing::debug!(rank = rank.0, %address, "joined");
        if self.ranks.len() == rank_count as usize {
            self.welcome(net, rank_count);
        }
    }

    /// Everybody is here: each rank learns its place.
    fn welcome(&mut self, net: &mut dyn Wire, rank_count: u32) {
        let tree = Tree { rank_count, fan_out: self.fan_out };
        for (&rank, joined) in &self.ranks {
            let parent = tree.parent(rank).and_then(|parent| self.ranks.get(&parent));
            let parent = parent.map(|joined| joined.listens_at.clone()).unwrap_or_default();
            let welcome = Welcome { fan_out: self.fan_out, parent };
            net.send(joined.connection, &Message::Welcome(welcome));
        }
        tracing::debug!(
            ranks = rank_count,
            after = ?net.now().saturating_duration_since(self.opened),
            "all ranks have joined"
        );
    }

    fn leave(&mut self, net: &mut dyn Wire, connection: ConnectionId, rank: Rank) {
        let Some(joined) = self.ranks.get_mut(&rank) else { return };
        if std::mem::replace(&mut joined.assembled, true) {
            return;
        }
        self.left += 1;
        self.visitors.remove(&connection);
        net.end(connection);
        self.finished |= self.left as usize == self.ranks.len();
    }

    fn closed(&mut self, net: &mut dyn Wire, connection: ConnectionId, cause: String) {
        let Some((hello, address, joined)) = self.visitors.remove(&connection) else { return };
        if joined && self.fault.is_none() {
            self.fail(net, BootstrapError::Lost { rank: hello.rank, by: None, cause });
        } else {
            let rank = hello.rank.0;
            net.log_limited(self.id, &mut |left_out| {
                tracing::warn!(%address, rank, %cause, left_out, "a rank left before joining");
            });
        }
    }

    fn fail_for_missing(&mut self, net: &mut dyn Wire) {
        let rank_count = self.first.as_ref().map_or(0, |first| first.rank_count);
        let all_here = self.ranks.len() == rank_count as usize;
        let present = |rank: &Rank| {
            self.ranks.get(rank).is_some_and(|joined| !all_here || joined.linked || rank.0 == 0)
        };
        let mut missing: Vec<_> = (0..rank_count).map(Rank).filter(|rank| !present(rank)).collect();
        if missing.is_empty() {
            // All are linked, and yet the tree does not stand.
            let waits = |rank: &Rank| self.ranks.get(rank).is_some_and(|joined| !joined.assembled);
            missing = (0..rank_count).map(Rank).filter(waits).collect();
        }
        let what =
            if all_here { "the ranks to connect to one another" } else { "the ranks to join" };
        let waited = net.now().saturating_duration_since(self.opened);
        let what = what.to_owned();
        self.fail(net, BootstrapError::Missing { what, missing, rank_count, waited });
    }

    /// Sends it to everybody who is here, and later to everybody who comes.
    fn fail(&mut self, net: &mut dyn Wire, fault: BootstrapError) {
        if self.fault.is_some() {
            return;
        }
        tracing::warn!(address = %self.address, %fault, "the rendezvous failed");
        let message = encode(&Message::Fault(fault.clone()));
        self.fault = Some(fault);
        let joined = self.visitors.iter().filter(|(_, (hello, _, joined))| {
            // One of another version does not understand more than our hello.
            *joined || hello.version != PROTOCOL
        });
        let joined: Vec<_> = joined.map(|(&connection, _)| connection).collect();
        for connection in joined {
            self.dismiss(net, connection, &message);
        }
        let rank_count = self.first.as_ref().map_or(u32::MAX, |first| first.rank_count);
        self.finish_when_all_know(rank_count);
    }

    fn dismiss(&mut self, net: &mut dyn Wire, connection: ConnectionId, fault: &Arc<[u8]>) {
        net.send_bytes(connection, fault);
        net.end(connection);
        self.visitors.remove(&connection);
        self.notified += 1;
    }

    fn finish_when_all_know(&mut self, rank_count: u32) {
        self.finished |= self.notified + self.left >= rank_count;
    }
}

/// What this rank brings and the first one brought otherwise.
fn disagreement(first: &First, rank: Rank, join: &Join) -> Option<BootstrapError> {
    let differ = |what: String, value: String, peer_value: String| {
        Some(BootstrapError::Disagreement { what, rank, value, peer: first.rank, peer_value })
    };
    if join.rank_count != first.rank_count {
        let what = "the number of ranks".to_owned();
        return differ(what, join.rank_count.to_string(), first.rank_count.to_string());
    }
    let (what, value, peer_value) = difference(&join.terms, &first.terms)?;
    differ(what, value, peer_value)
}

/// The first term in which `ours` and `theirs` differ, with both values.
pub(super) fn difference(ours: &[Term], theirs: &[Term]) -> Option<(String, String, String)> {
    let value = |terms: &[Term], name: &str| {
        let found = terms.iter().find(|(other, _)| other == name);
        found.map_or_else(|| "nothing".to_owned(), |(_, value)| value.clone())
    };
    ours.iter().chain(theirs).find_map(|(name, _)| {
        let (ours, theirs) = (value(ours, name), value(theirs, name));
        (ours != theirs).then(|| (name.clone(), ours, theirs))
    })
}

fn protocol(peer: String, expected: &str, seen: &str) -> BootstrapError {
    BootstrapError::Protocol { peer, expected: expected.into(), seen: seen.into() }
}

impl std::fmt::Debug for Reactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reactor")
    }
}

/// The error of a rank that speaks another version than the root, as the rank itself reports it.
pub(super) fn version_error(rank: Rank, address: SocketAddr, root: u16) -> Error {
    let address = address.to_string();
    BootstrapError::Version { rank, address, theirs: PROTOCOL, root }.into()
}
