//! One rank on the I/O thread: it finds the root, takes its place in the tree, and then carries
//! calls, failures and farewells.
//!
//! ```text
//! seek root → Join → Welcome → seek the parent → Linked → first call (assembly) → live
//! ```
//!
//! A failure that any rank notices floods the tree (and goes to the root while there is one); every
//! rank keeps the first that it receives, passes it to its neighbours and closes its connections.

mod calls;
mod collect;
mod note;
mod report;
mod seek;

use super::address::localised;
use super::connection::Identity;
use super::frame::MESSAGE_BYTES_MAX;
use super::handshake::{Hello, PROTOCOL, Role};
use super::message::{Call, Join, Message, Term, Welcome, decode, encode};
use super::net::{ConnectionId, Event, TaskId, Wire};
use super::reactor::{Request, Task};
use super::root::{ADDRESSES_MAX, version_error};
use super::shared::Shared;
use super::tree::Tree;
use super::unique_id::Secret;
use super::{after, early_bytes_max};
use crate::error::{BootstrapError, Error};
use crate::id::Rank;
use calls::{Calling, LINGER};
use collect::Collect;
use report::Later;
use seek::Seeker;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long nobody has to listen where a root was, before it is believed to have ended.
const ROOT_GONE: Duration = Duration::from_secs(5);

/// What a rank knows before it begins.
pub(super) struct Plan {
    pub rank: Rank,
    pub rank_count: u32,
    pub secret: Secret,
    pub terms: Vec<Term>,
    pub timeout: Duration,
    /// How long one connection may take to be made.
    pub limit: Duration,
    pub root: Vec<SocketAddr>,
    /// The root listened before anybody could look for it.
    pub root_was_open: bool,
    pub listener: Option<TcpListener>,
    pub listens: Listens,
}

/// What a rank publishes about its listener.
pub(super) struct Listens {
    pub port: u16,
    /// Published as they are: the user chose them, or the job is on this machine alone.
    pub fixed: Vec<SocketAddr>,
    /// Published if the way to the root does not show a better one.
    pub fallback: Vec<SocketAddr>,
    /// Under which link-local addresses of others are reached.
    pub scope: u32,
}

enum RootSide {
    Seeking(Seeker),
    Joined(ConnectionId, SocketAddr),
    /// Not needed any more.
    Gone,
}

enum Parent {
    /// The root has not answered yet.
    Unknown,
    /// This rank is the top.
    Nobody,
    Seeking(Rank, Seeker),
    Linked(Rank, ConnectionId),
    /// It said farewell.
    Left(Rank, Option<ConnectionId>),
}

struct Child {
    rank: Rank,
    has_left: bool,
}

/// See the module's documentation.
pub(super) struct Member {
    id: TaskId,
    plan: Plan,
    started: Instant,
    root: RootSide,
    tree: Option<Tree>,
    parent: Parent,
    children: BTreeMap<ConnectionId, Child>,
    collect: Collect,
    calling: Option<Calling>,
    later: Later,
    live: bool,
    /// The owner has left; until then this process relays for the others.
    leaving_until: Option<Instant>,
    finished: bool,
    shared: Arc<Shared>,
}

impl Member {
    pub fn new(id: TaskId, mut plan: Plan, shared: Arc<Shared>, now: Instant) -> Self {
        let scope = plan.listens.scope;
        let root: Vec<_> =
            std::mem::take(&mut plan.root).into_iter().map(|a| localised(a, scope)).collect();
        let own = identity(&plan, Role::Join);
        Self {
            id,
            started: now,
            root: RootSide::Seeking(Seeker::new(root, own, now)),
            tree: None,
            parent: Parent::Unknown,
            children: BTreeMap::new(),
            collect: Collect::new(),
            calling: None,
            later: Later::default(),
            live: false,
            leaving_until: None,
            finished: false,
            shared,
            plan,
        }
    }
}

fn identity(plan: &Plan, role: Role) -> Identity {
    Identity {
        secret: plan.secret,
        hello: Hello::new(role, plan.rank),
        limit: plan.limit,
        early_bytes_max: early_bytes_max(plan.rank_count),
    }
}

impl Task for Member {
    fn start(&mut self, net: &mut dyn Wire) {
        // Of the I/O thread's clock, from which the time that `new` was given may differ.
        self.started = net.now();
        if let RootSide::Seeking(seeker) = &mut self.root {
            seeker.begin_at(self.started);
        }
        let Some(listener) = self.plan.listener.take() else { return };
        if let Err(cause) = net.listen(self.id, listener, identity(&self.plan, Role::Parent)) {
            let what = "cannot listen for child ranks".to_owned();
            self.end_with(&Error::System { what, cause: cause.to_string() });
        }
    }

    fn event(&mut self, net: &mut dyn Wire, event: Event) {
        if self.finished {
            return;
        }
        match event {
            Event::Opened { connection, hello, address, accepted: true } => {
                self.child_came(net, connection, hello, address);
            }
            Event::Opened { connection, hello, address, accepted: false } => {
                self.reached(net, connection, hello, address);
            }
            Event::Message { connection, bytes } => match decode(&bytes) {
                Some((message, behind)) => self.message(net, connection, message, behind, &bytes),
                None if !self.is_neighbour(connection) => {}
                None => self.fail(net, self.protocol(connection, "an invalid message")),
            },
            Event::Closed { connection, cause } => self.closed(net, connection, cause),
        }
    }

    fn request(&mut self, net: &mut dyn Wire, request: Request) {
        if self.finished {
            return;
        }
        match request {
            Request::Call { call, bytes, limit } => self.begin(net, call, bytes, limit),
            Request::End(fault) => self.fail(net, fault),
            Request::Note { to, bytes } => self.send_note(net, to, &bytes),
            Request::Later(delay, report) => self.later.add(after(net.now(), delay), report),
            Request::Leave => self.leave(net),
        }
    }

    fn tick(&mut self, net: &mut dyn Wire) {
        if self.finished {
            return;
        }
        if let RootSide::Seeking(seeker) = &mut self.root {
            seeker.tick(net, self.id);
        }
        if let Parent::Seeking(_, seeker) = &mut self.parent {
            seeker.tick(net, self.id);
        }
        if self.live {
            self.watch_calls(net);
        } else {
            self.watch_assembly(net);
        }
        let now = net.now();
        self.send_to_parent(net, Some(now));
        self.pass_on(net);
    }

    fn deadline(&self) -> Option<Instant> {
        let seeking = match (&self.root, &self.parent) {
            (RootSide::Seeking(seeker), _) | (_, Parent::Seeking(_, seeker)) => seeker.deadline(),
            _ => None,
        };
        let own = if self.live { self.calls_deadline() } else { Some(self.assembly_deadline()) };
        seeking.into_iter().chain(own).chain(self.later.deadline()).min()
    }

    fn is_finished(&self) -> bool {
        self.finished
    }

    fn broken(&mut self, net: &mut dyn Wire, what: String) {
        self.fail(net, BootstrapError::Panicked { by: self.me().to_string(), what });
    }
}

impl Member {
    fn me(&self) -> Rank {
        self.plan.rank
    }

    fn connection_to_parent(&self) -> Option<ConnectionId> {
        match self.parent {
            Parent::Linked(_, parent) => Some(parent),
            Parent::Left(_, parent) => parent,
            Parent::Unknown | Parent::Nobody | Parent::Seeking(..) => None,
        }
    }

    fn is_neighbour(&self, connection: ConnectionId) -> bool {
        matches!(self.root, RootSide::Joined(root, _) if root == connection)
            || self.connection_to_parent() == Some(connection)
            || self.children.contains_key(&connection)
    }

    /// Our connection reached somebody who holds the secret.
    fn reached(&mut self, net: &mut dyn Wire, at: ConnectionId, hello: Hello, address: SocketAddr) {
        if hello.version != PROTOCOL {
            return self.end_with(&version_error(self.me(), address, hello.version));
        }
        match &mut self.root {
            RootSide::Seeking(seeker) if seeker.attempt() == Some(at) => {
                self.root = RootSide::Joined(at, address);
                let spent = net.now().saturating_duration_since(self.started);
                let join = Join {
                    rank_count: self.plan.rank_count,
                    terms: std::mem::take(&mut self.plan.terms),
                    addresses: self.listens_at(net.local_address(at)),
                    remaining: self.plan.timeout.saturating_sub(spent),
                };
                return net.send(at, &Message::Join(join));
            }
            _ => {}
        }
        let Parent::Seeking(parent, seeker) = &mut self.parent else { return };
        if hello.rank != *parent {
            net.end(at);
            return seeker.failed(format!("{} listens there, not {parent}", hello.rank), net.now());
        }
        self.parent = Parent::Linked(*parent, at);
        net.admit(at, MESSAGE_BYTES_MAX);
        if let RootSide::Joined(root, _) = self.root {
            net.send(root, &Message::Linked);
        }
        self.contribute(net, Call::Assemble, Vec::new());
    }

    /// The addresses to publish. The way to the root shows which of ours leads to the job;
    /// a loopback there shows nothing to others.
    fn listens_at(&self, towards_root: Option<SocketAddr>) -> Vec<SocketAddr> {
        let Listens { port, fixed, fallback, .. } = &self.plan.listens;
        if !fixed.is_empty() {
            return fixed.iter().copied().take(ADDRESSES_MAX).collect();
        }
        let towards_root = towards_root.map(|mut address| {
            address.set_port(*port);
            address
        });
        let is_loopback = towards_root.is_some_and(|address| address.ip().is_loopback());
        let (before, after) = if is_loopback { (None, towards_root) } else { (towards_root, None) };
        let others = fallback.iter().copied().filter(|address| Some(*address) != towards_root);
        before.into_iter().chain(others.take(ADDRESSES_MAX - 1)).chain(after).collect()
    }

    /// Somebody with the secret came to our listener.
    fn child_came(
        &mut self,
        net: &mut dyn Wire,
        at: ConnectionId,
        hello: Hello,
        address: SocketAddr,
    ) {
        let rank = hello.rank;
        // Before our own Welcome has come we cannot judge, and take whoever holds the secret.
        let expected = self.tree.is_none_or(|tree| tree.children(self.me()).contains(&rank.0));
        let is_new = !self.children.values().any(|child| child.rank == rank);
        if hello.version != PROTOCOL || !expected || !is_new || self.live {
            net.log_limited(self.id, &mut |left_out| {
                let rank = rank.0;
                tracing::warn!(%address, rank, expected, is_new, left_out, "refused a child rank");
            });
            return net.end(at);
        }
        self.children.insert(at, Child { rank, has_left: false });
        // Until we know our place, it waits as others may who have no place here.
        if self.tree.is_some() {
            net.admit(at, early_bytes_max(self.plan.rank_count));
        }
    }

    fn message(
        &mut self,
        net: &mut dyn Wire,
        from: ConnectionId,
        message: Message,
        behind: &[u8],
        whole: &[u8],
    ) {
        let is_root = matches!(self.root, RootSide::Joined(root, _) if root == from);
        // One that has left still relays.
        let is_above = self.connection_to_parent() == Some(from);
        let is_child = self.children.contains_key(&from);
        match message {
            Message::Fault(fault) if is_root || is_above || is_child => {
                self.relay(net, from, fault)
            }
            Message::Welcome(welcome) if is_root && self.tree.is_none() => {
                self.welcomed(net, welcome);
            }
            Message::Up(up) if is_child => self.up(net, from, up, behind),
            Message::Down(down) if is_above => self.down(net, &down, behind, whole),
            Message::Expired { sequence, call, waited } if is_child => {
                self.expired(net, sequence, call, waited);
            }
            Message::Report if is_child => {
                let child = &self.children[&from];
                self.shared.receive(child.rank, behind);
            }
            Message::Note { from: source, to } if is_above || is_child => {
                self.note(net, from, source, to, behind);
            }
            Message::Leaving if is_above || is_child => self.neighbour_leaves(net, from),
            // Of a neighbour that is none any more, or was refused.
            _ if !self.is_neighbour(from) => {}
            other => self.fail(net, self.protocol(from, &other.summary())),
        }
    }

    /// The root knows all ranks, and sends this one its place.
    fn welcomed(&mut self, net: &mut dyn Wire, welcome: Welcome) {
        let tree = Tree { rank_count: self.plan.rank_count, fan_out: welcome.fan_out.max(1) };
        self.tree = Some(tree);
        self.shared.update(|state| state.parent = tree.parent(self.plan.rank));
        let children = tree.children(self.me());
        let (known, strangers): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.children)
                .into_iter()
                .partition(|(_, child)| children.contains(&child.rank.0));
        self.children = known;
        for (connection, child) in strangers {
            net.log_limited(self.id, &mut |left_out| {
                let rank = child.rank.0;
                tracing::warn!(rank, left_out, "a rank connected to the wrong parent");
            });
            net.end(connection);
        }
        for &child in self.children.keys() {
            net.admit(child, early_bytes_max(self.plan.rank_count));
        }
        let Some(parent) = tree.parent(self.me()) else {
            self.parent = Parent::Nobody;
            return self.contribute(net, Call::Assemble, Vec::new());
        };
        if welcome.parent.is_empty() {
            let expected = format!("an address of {parent}, the parent of {}", self.me());
            let (peer, seen) = ("the root".to_owned(), "none".to_owned());
            return self.fail(net, BootstrapError::Protocol { peer, expected, seen });
        }
        let scope = self.plan.listens.scope;
        let places = welcome.parent.into_iter().take(ADDRESSES_MAX);
        let places = places.map(|address| localised(address, scope)).collect();
        let own = identity(&self.plan, Role::Child);
        self.parent = Parent::Seeking(parent, Seeker::new(places, own, net.now()));
    }

    fn closed(&mut self, net: &mut dyn Wire, connection: ConnectionId, cause: String) {
        match &mut self.root {
            RootSide::Seeking(seeker) if seeker.attempt() == Some(connection) => {
                return seeker.failed(cause, net.now());
            }
            RootSide::Joined(root, address) if *root == connection => {
                let address = address.to_string();
                self.root = RootSide::Gone;
                return self.fail(net, BootstrapError::RootLost { address, cause });
            }
            _ => {}
        }
        match &mut self.parent {
            Parent::Seeking(_, seeker) if seeker.attempt() == Some(connection) => {
                return seeker.failed(cause, net.now());
            }
            Parent::Linked(rank, parent) if *parent == connection => {
                let rank = *rank;
                return self.lost(net, rank, cause);
            }
            Parent::Left(_, parent) if *parent == Some(connection) => *parent = None,
            _ => {}
        }
        let Some(&Child { rank, has_left }) = self.children.get(&connection) else { return };
        if !self.live && !self.collect.has(rank) {
            // It gave up on a slow handshake and may try again. If it has died, the root knows.
            self.children.remove(&connection);
        } else if !has_left {
            self.lost(net, rank, cause);
        }
    }

    fn lost(&mut self, net: &mut dyn Wire, rank: Rank, cause: String) {
        self.fail(net, BootstrapError::Lost { rank, by: Some(self.me()), cause });
    }

    /// When the assembly must have succeeded. The root, which knows who is missing, gets the
    /// chance to say so first.
    fn assembly_deadline(&self) -> Instant {
        let timeout = self.plan.timeout;
        let deadline = self.started
            + match (&self.root, &self.parent) {
                // It says what it tried, before the root can only say that it is missing.
                (RootSide::Joined(..), Parent::Seeking(..)) => timeout.mul_f64(0.9),
                (RootSide::Joined(..), _) => timeout + grace(timeout),
                _ => timeout,
            };
        match &self.root {
            RootSide::Seeking(seeker) if self.plan.root_was_open => {
                let gone = seeker.refused_since().map(|since| since + ROOT_GONE);
                gone.map_or(deadline, |gone| gone.min(deadline))
            }
            _ => deadline,
        }
    }

    fn watch_assembly(&mut self, net: &mut dyn Wire) {
        if self.assembly_deadline() > net.now() {
            return;
        }
        let (target, tried) = match (&self.root, &self.parent) {
            (RootSide::Seeking(seeker), _)
                if self.plan.root_was_open && seeker.refused_since().is_some() =>
            {
                let target = "the root of the job, which has ended with the job or its process";
                (target.into(), seeker.tried())
            }
            (RootSide::Seeking(seeker), _) => ("the root of the job".into(), seeker.tried()),
            (_, Parent::Seeking(parent, seeker)) => {
                (format!("{parent}, its parent in the tree"), seeker.tried())
            }
            (RootSide::Joined(_, address), _) => {
                let tried = format!("{address}: it answered once and has not answered since");
                ("the root of the job".into(), tried)
            }
            _ => ("the others".into(), "nothing".into()),
        };
        let waited = net.now().saturating_duration_since(self.started);
        let rank = self.me();
        self.fail(net, BootstrapError::Unreachable { rank, target, tried, waited });
    }

    /// Ends the job for everybody, for a reason that this rank found.
    fn fail(&mut self, net: &mut dyn Wire, fault: BootstrapError) {
        self.relay(net, mio::Token(0), fault);
    }

    /// Ends the job for everybody but the one who sent the notice.
    fn relay(&mut self, net: &mut dyn Wire, from: ConnectionId, fault: BootstrapError) {
        let message = encode(&Message::Fault(fault.clone()));
        let parent = self.connection_to_parent();
        let root = match self.root {
            RootSide::Joined(root, _) => Some(root),
            _ => None,
        };
        let all = self.children.keys().copied().chain(parent).chain(root);
        all.filter(|&neighbour| neighbour != from)
            .for_each(|neighbour| net.send_bytes(neighbour, &message));
        // The process may end as soon as its owner knows.
        net.flush();
        self.end_with(&fault.into());
    }

    /// Ends this task with `error`; sends nothing.
    fn end_with(&mut self, error: &Error) {
        if self.leaving_until.is_none() {
            tracing::debug!(rank = self.plan.rank.0, %error, "control plane failed");
        }
        self.finished = true;
        self.shared.fail(error);
    }

    fn protocol(&self, from: ConnectionId, seen: &str) -> BootstrapError {
        let peer = self.children.get(&from).map(|child| child.rank.to_string());
        BootstrapError::Protocol {
            peer: peer.unwrap_or_else(|| format!("the root or the parent of {}", self.me())),
            expected: "a message that fits the state of the connection".into(),
            seen: seen.into(),
        }
    }

    fn leave(&mut self, net: &mut dyn Wire) {
        if !self.live {
            let why = "it timed out before all ranks had joined".to_owned();
            return self.fail(net, BootstrapError::Aborted { by: self.me(), why });
        }
        self.send_to_parent(net, None);
        self.leaving_until = Some(net.now() + LINGER);
        self.say_farewell(net);
    }
}

impl Drop for Member {
    /// Whoever waits for a rank whose I/O thread died of a bug gets the error now, not at its
    /// deadline.
    fn drop(&mut self) {
        if !self.finished {
            self.shared.fail(&Error::EngineStopped {
                engine: "bootstrap I/O thread".into(),
                why: "it ended early; an earlier message gives the reason".into(),
            });
        }
    }
}

/// How much longer than the root, or the top, a rank waits: they know who is missing.
pub(super) fn grace(timeout: Duration) -> Duration {
    (timeout / 10).clamp(Duration::from_millis(500), Duration::from_secs(5))
}
