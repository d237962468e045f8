//! The sockets of the I/O thread: listeners, connections, their deadlines. It knows who owns a
//! connection, and nothing of what is said on it.

use super::connection::{Connection, Happening, Identity, text};
use super::handshake::Hello;
use super::listeners::{Listener, Pending};
use super::message::{Message, encode};
use super::timers::Timers;
use super::unique_id::random_bytes;
use super::user::Users;
use crate::lived::{Clock, SLEEP_MAX};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use std::any::Any;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A machine that vanished without a word is noticed after about idle + probes * interval.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

/// Something that runs on the I/O thread and owns connections.
pub(super) type TaskId = u64;
/// A connection; never used twice.
pub(super) type ConnectionId = Token;

const WAKER: Token = Token(0);

/// Events of a connection, for the task that owns it.
pub(super) enum Event {
    /// The other end is authenticated. `accepted`: it came to our listener.
    Opened { connection: ConnectionId, hello: Hello, address: SocketAddr, accepted: bool },
    /// A whole message.
    Message { connection: ConnectionId, bytes: Vec<u8> },
    /// The connection is gone, and why.
    Closed { connection: ConnectionId, cause: String },
}

/// The network, as tasks use it.
pub(super) trait Wire {
    /// The time.
    fn now(&self) -> Instant;

    /// Accepts connections for `owner` from now on.
    fn listen(
        &mut self,
        owner: TaskId,
        listener: std::net::TcpListener,
        own: Identity,
    ) -> io::Result<()>;

    /// Stops listening for a task.
    fn stop_listening(&mut self, owner: TaskId);

    /// Begins to connect. Failures are reported as [`Event::Closed`], never here.
    fn connect(&mut self, owner: TaskId, to: SocketAddr, own: Identity) -> ConnectionId;

    /// Sends the bytes of a message, which other connections may share. A connection that is gone
    /// swallows them: its owner gets, or has got, the event.
    fn send_bytes(&mut self, connection: ConnectionId, bytes: &Arc<[u8]>);

    /// Sends a message that has nothing behind it.
    fn send(&mut self, connection: ConnectionId, message: &Message) {
        self.send_bytes(connection, &encode(message));
    }

    /// Writes what was queued, without waiting.
    fn flush(&mut self);

    /// Our end of a connection.
    fn local_address(&self, connection: ConnectionId) -> Option<SocketAddr>;

    /// The connection belongs to the job now: it has no deadline, and may send messages of up to
    /// `message_bytes_max` bytes.
    fn admit(&mut self, connection: ConnectionId, message_bytes_max: usize);

    /// Ends a connection once everything that was sent has gone out. Its owner gets no more events
    /// of it.
    fn end(&mut self, connection: ConnectionId);

    /// Logs what a task refused, or counts it if something was logged less than a second ago. `log`
    /// gets the number of refusals that were only counted since the last line.
    fn log_limited(&mut self, owner: TaskId, log: &mut dyn FnMut(u64));
}

impl Wire for Net {
    fn now(&self) -> Instant {
        self.now
    }

    fn listen(
        &mut self,
        owner: TaskId,
        listener: std::net::TcpListener,
        own: Identity,
    ) -> io::Result<()> {
        self.listen(owner, listener, own)
    }

    fn stop_listening(&mut self, owner: TaskId) {
        self.stop_listening(owner);
    }

    fn connect(&mut self, owner: TaskId, to: SocketAddr, own: Identity) -> ConnectionId {
        self.connect(owner, to, own)
    }

    fn send_bytes(&mut self, connection: ConnectionId, bytes: &Arc<[u8]>) {
        if let Some(slot) = self.slots.get_mut(&connection) {
            slot.connection.send(bytes);
            self.due.insert(connection);
        }
    }

    fn flush(&mut self) {
        self.move_due();
    }

    fn local_address(&self, connection: ConnectionId) -> Option<SocketAddr> {
        let slot = self.slots.get(&connection)?;
        slot.connection.socket.local_addr().ok().map(canonical)
    }

    fn admit(&mut self, connection: ConnectionId, message_bytes_max: usize) {
        self.admit(connection, message_bytes_max);
    }

    fn end(&mut self, connection: ConnectionId) {
        self.end(connection);
    }

    fn log_limited(&mut self, owner: TaskId, log: &mut dyn FnMut(u64)) {
        self.log_limited(owner, log);
    }
}

pub(super) struct Slot {
    pub(super) connection: Connection,
    /// `None`: its task is done with it, it only says farewell.
    pub(super) owner: Option<TaskId>,
    /// The task among whose pending connections it is.
    pub(super) pending_for: Option<TaskId>,
}

/// See the module's documentation.
pub(super) struct Net {
    pub(super) poll: Poll,
    pub(super) slots: HashMap<Token, Slot>,
    pub(super) listeners: HashMap<Token, Listener>,
    /// Of every task that listens.
    pub(super) pending: HashMap<TaskId, Pending>,
    /// Tasks with refusals that were counted and not logged.
    pub(super) left_out: HashSet<TaskId>,
    /// Of connections that are not open yet or not any more, and of listeners.
    pub(super) timers: Timers<Token>,
    /// Connections with bytes left to read, or something new to write.
    pub(super) due: HashSet<Token>,
    events: VecDeque<(TaskId, Event)>,
    next: usize,
    scratch: Vec<u8>,
    pub(super) users: Users,
    /// Held here too: a waker that is dropped takes its last call with it.
    _waker: Arc<Waker>,
    clock: Clock,
    /// The time of all deadlines here, and of those of tasks: at the last turn.
    pub now: Instant,
}

impl Net {
    pub fn new() -> io::Result<(Self, Arc<Waker>)> {
        let (poll, mut clock) = (Poll::new()?, Clock::new());
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let net = Self {
            poll,
            slots: HashMap::new(),
            listeners: HashMap::new(),
            pending: HashMap::new(),
            left_out: HashSet::new(),
            timers: Timers::new(),
            due: HashSet::new(),
            events: VecDeque::new(),
            next: 1,
            scratch: Vec::new(),
            users: Users::default(),
            _waker: waker.clone(),
            now: clock.look(),
            clock,
        };
        Ok((net, waker))
    }

    pub(super) fn token(&mut self) -> Token {
        let token = Token(self.next);
        self.next += 1;
        token
    }

    /// Nothing is open.
    pub fn is_idle(&self) -> bool {
        self.slots.is_empty() && self.listeners.is_empty()
    }

    /// Accepts connections for `owner` from now on.
    pub fn listen(
        &mut self,
        owner: TaskId,
        listener: std::net::TcpListener,
        own: Identity,
    ) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
        let token = self.token();
        self.poll.registry().register(&mut listener, token, Interest::READABLE)?;
        self.listeners.insert(token, Listener { listener, owner, own });
        self.pending.entry(owner).or_default();
        Ok(())
    }

    /// Begins to connect. Failures are reported as [`Event::Closed`], never here.
    pub fn connect(&mut self, owner: TaskId, to: SocketAddr, own: Identity) -> ConnectionId {
        let token = self.token();
        let opened = fresh(own).and_then(|own| Ok((own, TcpStream::connect(to)?)));
        let opened = opened.and_then(|(own, mut socket)| {
            let interest = Interest::READABLE | Interest::WRITABLE;
            self.poll.registry().register(&mut socket, token, interest)?;
            tune(&socket);
            Ok((own, socket))
        });
        match opened {
            Ok((own, socket)) => {
                let connection = Connection::connecting(socket, to, own, self.now);
                let slot = Slot { connection, owner: Some(owner), pending_for: None };
                self.slots.insert(token, slot);
                self.due.insert(token);
            }
            Err(error) => {
                let event = Event::Closed { connection: token, cause: text(error) };
                self.events.push_back((owner, event));
            }
        }
        token
    }

    /// Ends a connection once everything that was sent has gone out. Its owner gets no more events
    /// of it.
    pub fn end(&mut self, connection: ConnectionId) {
        let now = self.now;
        if let Some(slot) = self.slots.get_mut(&connection) {
            slot.owner = None;
            if slot.connection.is_open() {
                slot.connection.end(now);
                self.due.insert(connection);
            } else {
                self.forget(connection);
            }
        }
    }

    /// Ends all that a task owns.
    pub fn end_all(&mut self, owner: TaskId) {
        self.stop_listening(owner);
        let theirs = |(&token, slot): (&Token, &Slot)| (slot.owner == Some(owner)).then_some(token);
        let tokens: Vec<_> = self.slots.iter().filter_map(theirs).collect();
        tokens.into_iter().for_each(|token| self.end(token));
        self.end_pending(owner);
    }

    /// The next thing that happened, and to whom.
    pub fn event(&mut self) -> Option<(TaskId, Event)> {
        self.events.pop_front()
    }

    /// When the net itself must be looked at again.
    pub fn deadline(&self) -> Option<Instant> {
        if !self.due.is_empty() || !self.events.is_empty() {
            return Some(self.now);
        }
        self.log_deadline().into_iter().chain(self.timers.first()).min()
    }

    /// Waits for the network, at most until `until`, and moves what can be moved.
    pub fn turn(&mut self, ready: &mut Events, until: Option<Instant>) -> io::Result<()> {
        // Rounded up: waking a moment too early would only spin.
        let wait = until.map(|until| {
            let wait = until.saturating_duration_since(self.clock.look());
            if wait.is_zero() { wait } else { (wait + Duration::from_millis(1)).min(SLEEP_MAX) }
        });
        match self.poll.poll(ready, wait) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            polled => polled?,
        }
        self.now = self.clock.look();
        self.due.extend(ready.iter().map(|event| event.token()));
        self.move_due();
        self.end_late();
        self.log_left_out();
        Ok(())
    }

    fn move_due(&mut self) {
        for token in std::mem::take(&mut self.due) {
            if self.listeners.contains_key(&token) {
                self.accept(token);
            } else {
                self.move_one(token);
            }
        }
    }

    fn move_one(&mut self, token: Token) {
        let Some(Slot { connection, owner, .. }) = self.slots.get_mut(&token) else { return };
        let (owner, address, accepted) = (*owner, connection.address, connection.accepted);
        let events = &mut self.events;
        let report = |happening| {
            let Some(owner) = owner else { return };
            let event = match happening {
                Happening::Opened(hello) => {
                    Event::Opened { connection: token, hello, address, accepted }
                }
                Happening::Message(bytes) => Event::Message { connection: token, bytes },
            };
            events.push_back((owner, event));
        };
        let (users, scratch) = (&mut self.users, &mut self.scratch);
        // What one connection brings must not end the thread that all of them share.
        let turn = AssertUnwindSafe(|| connection.turn(users, scratch, report));
        let moved = catch_unwind(turn).unwrap_or_else(|panic| {
            Err(format!("a bug of the library, please report it: {}", panic_text(&*panic)))
        });
        if connection.more {
            self.due.insert(token);
        }
        self.timers.set(token, connection.deadline);
        match moved {
            Ok(()) => self.note_authenticated(token),
            Err(cause) => self.lose(token, cause),
        }
    }

    pub(super) fn forget(&mut self, token: Token) -> Option<Slot> {
        self.timers.set(token, None);
        let slot = self.slots.remove(&token)?;
        self.remove_pending(token, slot.pending_for);
        Some(slot)
    }

    /// Forgets a connection that failed, and passes the error to whom it concerns.
    pub(super) fn lose(&mut self, token: Token, cause: String) {
        let Some(slot) = self.forget(token) else { return };
        let Some(owner) = slot.owner else { return };
        if slot.connection.accepted && !slot.connection.is_authenticated() {
            return self.log_refusal(owner, slot.connection.address, &cause);
        }
        self.events.push_back((owner, Event::Closed { connection: token, cause }));
    }

    fn end_late(&mut self) {
        for token in self.timers.expired(self.now) {
            if self.listeners.contains_key(&token) {
                self.accept(token);
            } else if let Some(slot) = self.slots.get(&token) {
                let cause = slot.connection.late();
                self.lose(token, cause);
            }
        }
    }
}

/// What a panic said.
pub(super) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message")
}

/// The identity with a nonce that no other connection has.
pub(super) fn fresh(mut own: Identity) -> io::Result<Identity> {
    own.hello.nonce = random_bytes().map_err(|error| io::Error::other(error.to_string()))?;
    Ok(own)
}

/// An IPv4 address that a listener for both families shows as IPv6, as IPv4.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

/// Small messages go out at once, and a machine that vanished is noticed. Both are improvements
/// without which the rest works, so a system that refuses them is no error.
pub(super) fn tune(socket: &TcpStream) {
    let socket = socket2::SockRef::from(socket);
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    if let Err(error) = socket.set_tcp_keepalive(&keepalive).and(socket.set_tcp_nodelay(true)) {
        tracing::debug!(%error, "cannot set options of a bootstrap connection");
    }
    let unacknowledged = KEEPALIVE_IDLE + KEEPALIVE_INTERVAL * KEEPALIVE_PROBES;
    if let Err(error) = socket.set_tcp_user_timeout(Some(unacknowledged)) {
        tracing::debug!(%error, "cannot bound unacknowledged data");
    }
}
