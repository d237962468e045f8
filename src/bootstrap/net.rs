//! The sockets of the I/O thread: listeners, connections, their deadlines. It knows who owns a
//! connection, and nothing of what is said on it.

use super::connection::{Connection, Happening, Identity, text};
use super::handshake::Hello;
use super::message::{Message, encode};
use super::timers::Timers;
use super::unique_id::random_bytes;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Strangers that one listener lets stand in its door. The oldest must go for a new one: a rank's
/// handshake takes milliseconds, a stranger's silence lasts.
const PENDING_MAX: usize = 1024;
/// Connections accepted in a row before others get their turn.
const ACCEPTS_MAX: usize = 256;
/// When to try again after the system had no descriptor for a new connection.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// A machine that vanished without a word is noticed after about idle + probes * interval.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

/// Something that runs on the I/O thread and owns connections.
pub(super) type TaskId = u64;
/// A connection; never used twice.
pub(super) type ConnectionId = Token;

const WAKER: Token = Token(0);

/// What a task is told about its connections.
pub(super) enum Event {
    /// The other end is authenticated. `accepted`: it came to our listener.
    Opened { connection: ConnectionId, hello: Hello, address: SocketAddr, accepted: bool },
    /// A whole message.
    Message { connection: ConnectionId, bytes: Vec<u8> },
    /// The connection is gone, and why.
    Closed { connection: ConnectionId, cause: String },
}

struct Slot {
    connection: Connection,
    /// `None`: its task is done with it, it only says farewell.
    owner: Option<TaskId>,
}

struct Door {
    listener: TcpListener,
    owner: TaskId,
    own: Identity,
}

/// See the module's documentation.
pub(super) struct Net {
    poll: Poll,
    slots: HashMap<Token, Slot>,
    doors: HashMap<Token, Door>,
    /// Of connections that are not open yet or not any more, and of doors.
    timers: Timers<Token>,
    /// Connections with bytes left to read, or something new to write.
    due: HashSet<Token>,
    events: VecDeque<(TaskId, Event)>,
    next: usize,
    scratch: Vec<u8>,
    /// Held here too: a waker that is dropped takes its last call with it.
    _waker: Arc<Waker>,
    pub now: Instant,
}

impl Net {
    pub fn new() -> io::Result<(Self, Arc<Waker>)> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let net = Self {
            poll,
            slots: HashMap::new(),
            doors: HashMap::new(),
            timers: Timers::new(),
            due: HashSet::new(),
            events: VecDeque::new(),
            next: 1,
            scratch: Vec::new(),
            _waker: waker.clone(),
            now: Instant::now(),
        };
        Ok((net, waker))
    }

    fn token(&mut self) -> Token {
        let token = Token(self.next);
        self.next += 1;
        token
    }

    /// Nothing is open.
    pub fn is_idle(&self) -> bool {
        self.slots.is_empty() && self.doors.is_empty()
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
        self.doors.insert(token, Door { listener, owner, own });
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
                self.slots.insert(token, Slot { connection, owner: Some(owner) });
                self.due.insert(token);
            }
            Err(error) => {
                let event = Event::Closed { connection: token, cause: text(error) };
                self.events.push_back((owner, event));
            }
        }
        token
    }

    /// Sends a message that has nothing behind it.
    pub fn send(&mut self, connection: ConnectionId, message: &Message) {
        self.send_bytes(connection, &encode(message));
    }

    /// Sends the bytes of a message, which other connections may share. A connection that is gone
    /// swallows them: its owner has been or will be told.
    pub fn send_bytes(&mut self, connection: ConnectionId, bytes: &Arc<[u8]>) {
        if let Some(slot) = self.slots.get_mut(&connection) {
            slot.connection.send(bytes);
            self.due.insert(connection);
        }
    }

    /// Our end of a connection.
    pub fn local_address(&self, connection: ConnectionId) -> Option<SocketAddr> {
        let slot = self.slots.get(&connection)?;
        slot.connection.socket.local_addr().ok().map(canonical)
    }

    /// Ends a connection once everything that was sent has gone out. Its owner hears of it no more.
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
        self.close_doors(owner);
        let theirs = |(&token, slot): (&Token, &Slot)| (slot.owner == Some(owner)).then_some(token);
        let tokens: Vec<_> = self.slots.iter().filter_map(theirs).collect();
        tokens.into_iter().for_each(|token| self.end(token));
    }

    /// Stops listening for a task.
    pub fn close_doors(&mut self, owner: TaskId) {
        self.doors.retain(|_, door| door.owner != owner);
        // Whoever still stands in the door has nobody to talk to.
        self.strangers(owner).into_iter().for_each(|token| drop(self.forget(token)));
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
        self.timers.first()
    }

    /// Waits for the network, at most until `until`, and moves what can be moved.
    pub fn turn(&mut self, ready: &mut Events, until: Option<Instant>) -> io::Result<()> {
        // Rounded up: waking a moment too early would only spin.
        let wait = until.map(|until| {
            let wait = until.saturating_duration_since(Instant::now());
            if wait.is_zero() { wait } else { wait + Duration::from_millis(1) }
        });
        match self.poll.poll(ready, wait) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            polled => polled?,
        }
        self.now = Instant::now();
        self.due.extend(ready.iter().map(|event| event.token()));
        self.move_due();
        self.end_late();
        Ok(())
    }

    /// Writes what was queued, without waiting.
    pub fn flush(&mut self) {
        self.move_due();
    }

    fn move_due(&mut self) {
        for token in std::mem::take(&mut self.due) {
            if self.doors.contains_key(&token) {
                self.accept(token);
            } else {
                self.move_one(token);
            }
        }
    }

    fn move_one(&mut self, token: Token) {
        let Some(Slot { connection, owner }) = self.slots.get_mut(&token) else { return };
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
        let moved = connection.turn(&mut self.scratch, report);
        if connection.more {
            self.due.insert(token);
        }
        self.timers.set(token, connection.deadline);
        if let Err(cause) = moved {
            self.lose(token, cause);
        }
    }

    fn forget(&mut self, token: Token) -> Option<Slot> {
        self.timers.set(token, None);
        self.slots.remove(&token)
    }

    /// Forgets a connection that failed, and tells whom it concerns.
    fn lose(&mut self, token: Token, cause: String) {
        let Some(slot) = self.forget(token) else { return };
        let Some(owner) = slot.owner else { return };
        if slot.connection.accepted && !slot.connection.is_open() {
            let address = slot.connection.address;
            tracing::warn!(%address, %cause, "refused a connection to the bootstrap port");
            return;
        }
        self.events.push_back((owner, Event::Closed { connection: token, cause }));
    }

    fn end_late(&mut self) {
        for token in self.timers.expired(self.now) {
            if self.doors.contains_key(&token) {
                self.accept(token);
            } else if let Some(slot) = self.slots.get(&token) {
                let cause = slot.connection.late();
                self.lose(token, cause);
            }
        }
    }

    /// Takes in everybody who stands before a door.
    fn accept(&mut self, door: Token) {
        for _ in 0..ACCEPTS_MAX {
            let Some(Door { listener, owner, own }) = self.doors.get_mut(&door) else {
                return;
            };
            let (owner, own) = (*owner, *own);
            match listener.accept() {
                Ok((socket, address)) => self.take_in(owner, own, socket, address),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    // The one that matters: no descriptor is left. A stranger gives up his.
                    tracing::warn!(%error, "cannot accept a connection; is `ulimit -n` too low?");
                    if self.show_out(owner, 1) {
                        continue;
                    }
                    // The event does not come again for those who already stand there.
                    self.timers.set(door, Some(self.now + ACCEPT_RETRY));
                    return;
                }
            }
        }
        // Others get their turn first.
        self.due.insert(door);
    }

    fn take_in(
        &mut self,
        owner: TaskId,
        own: Identity,
        mut socket: TcpStream,
        address: SocketAddr,
    ) {
        let token = self.token();
        let interest = Interest::READABLE | Interest::WRITABLE;
        let address = canonical(address);
        let registered = self.poll.registry().register(&mut socket, token, interest);
        let own = match registered.and_then(|()| fresh(own)) {
            Ok(own) => own,
            Err(error) => {
                tracing::warn!(%address, %error, "cannot take a connection in");
                return;
            }
        };
        tune(&socket);
        self.show_out(owner, PENDING_MAX);
        let connection = Connection::accepted(socket, address, own, self.now);
        self.slots.insert(token, Slot { connection, owner: Some(owner) });
        self.due.insert(token);
    }

    /// Sends the oldest stranger in a task's door away if there are `limit` of them.
    fn show_out(&mut self, owner: TaskId, limit: usize) -> bool {
        if self.slots.len() < limit {
            return false;
        }
        let strangers = self.strangers(owner);
        let oldest = strangers.iter().min().filter(|_| strangers.len() >= limit);
        if let Some(&oldest) = oldest {
            self.lose(oldest, "too many connections wait for their handshake".into());
        }
        oldest.is_some()
    }

    /// Connections that a task's listener accepted and that have not proved anything yet.
    fn strangers(&self, owner: TaskId) -> Vec<Token> {
        let stranger = |(&token, slot): (&Token, &Slot)| {
            let pending = slot.connection.accepted && !slot.connection.is_open();
            (pending && slot.owner == Some(owner)).then_some(token)
        };
        self.slots.iter().filter_map(stranger).collect()
    }
}

/// The identity with a nonce that no other connection has.
fn fresh(mut own: Identity) -> io::Result<Identity> {
    own.hello.nonce = random_bytes().map_err(|error| io::Error::other(error.to_string()))?;
    Ok(own)
}

/// An IPv4 address that a listener for both families shows as IPv6, as IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

/// Small messages go out at once, and a machine that vanished is noticed. Both are improvements
/// without which the rest works, so a system that refuses them is no error.
fn tune(socket: &TcpStream) {
    let socket = socket2::SockRef::from(socket);
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    if let Err(error) = socket.set_tcp_keepalive(&keepalive).and(socket.set_tcp_nodelay(true)) {
        tracing::debug!(%error, "cannot tune a bootstrap connection");
    }
    let unacknowledged = KEEPALIVE_IDLE + KEEPALIVE_INTERVAL * KEEPALIVE_PROBES;
    if let Err(error) = socket.set_tcp_user_timeout(Some(unacknowledged)) {
        tracing::debug!(%error, "cannot bound unacknowledged data");
    }
}
