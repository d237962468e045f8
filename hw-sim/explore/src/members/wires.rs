//! The network between tasks: connections, and what is on the way, in simulated time.

use ringdove::bootstrap::stage::Network;
use ringdove::id::Rank;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// After so long the system gives up a connection whose other end does not answer.
const KEEPALIVE: Duration = Duration::from_secs(25);

/// What reaches a task.
#[derive(Clone, Debug)]
pub enum Item {
    /// A connection is open; with whom, and whether it came to the task's own address.
    Opened { peer: Option<Rank>, address: SocketAddr, accepted: bool },
    /// Bytes.
    Message(Vec<u8>),
    /// It is gone.
    Closed(String),
}

/// Something that will happen.
#[derive(Clone, Debug)]
pub enum Event {
    /// An attempt reaches the address that it was made to.
    Knock { from: usize, connection: usize, to: SocketAddr },
    /// Something reaches one end of a connection.
    Arrival { connection: usize, item: Item },
    /// The system gives a connection up.
    Silence { connection: usize },
}

/// One end of a connection.
struct End {
    node: usize,
    other: usize,
    /// Nothing overtakes what was sent before.
    last_arrival: Duration,
    is_open: bool,
}

/// All connections.
pub struct Wires {
    random: fastrand::Rng,
    began: Instant,
    /// Since the beginning.
    pub elapsed: Duration,
    ends: BTreeMap<usize, End>,
    next: usize,
    /// Who listens, and where.
    places: BTreeMap<SocketAddr, usize>,
    /// Address and rank of each node, a root being none.
    names: BTreeMap<usize, (SocketAddr, Option<Rank>)>,
    /// By time, and by the order in which they were made.
    events: BTreeMap<(Duration, u64), Event>,
    serial: u64,
    cut_off: Vec<usize>,
    limit: Duration,
}

impl Wires {
    /// None. A connection that nobody answers is given up after `limit`.
    pub fn new(seed: u64, limit: Duration) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            began: Instant::now(),
            elapsed: Duration::ZERO,
            ends: BTreeMap::new(),
            next: 1,
            places: BTreeMap::new(),
            names: BTreeMap::new(),
            events: BTreeMap::new(),
            serial: 0,
            cut_off: Vec::new(),
            limit,
        }
    }

    /// The time, as tasks see it.
    pub fn now(&self) -> Instant {
        self.began + self.elapsed
    }

    /// How long after the beginning a moment is.
    pub fn since_begin(&self, moment: Instant) -> Duration {
        moment.saturating_duration_since(self.began)
    }

    /// A node listens from now on, as a rank, or as a root.
    pub fn listen(&mut self, node: usize, at: SocketAddr, rank: Option<Rank>) {
        self.places.insert(at, node);
        self.names.insert(node, (at, rank));
    }

    /// Mostly short, now and then long.
    fn delay(&mut self) -> Duration {
        let longest_us = [5, 5, 200, 200, 20_000, 200_000][self.random.usize(..6)];
        Duration::from_micros(self.random.u64(..=longest_us))
    }

    fn add(&mut self, at: Duration, event: Event) {
        self.serial += 1;
        self.events.insert((at, self.serial), event);
    }

    /// Sends something to one end, behind all that was sent there before.
    fn push(&mut self, connection: usize, item: Item) {
        let due = self.elapsed + self.delay();
        let Some(end) = self.ends.get_mut(&connection) else { return };
        let (from, to) = (end.other, end.node);
        end.last_arrival = end.last_arrival.max(due);
        let at = end.last_arrival;
        let from = self.ends.get(&from).map_or(to, |end| end.node);
        if !self.is_cut_off(from) && !self.is_cut_off(to) {
            self.add(at, Event::Arrival { connection, item });
        }
    }

    fn is_cut_off(&self, node: usize) -> bool {
        self.cut_off.contains(&node)
    }

    /// When the next thing happens.
    pub fn next_at(&self) -> Option<Duration> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the next thing that reaches a task: node, connection, what. `None` where it reaches
    /// nobody.
    pub fn take(&mut self) -> Option<(usize, usize, Item)> {
        let ((at, _), event) = self.events.pop_first()?;
        self.elapsed = self.elapsed.max(at);
        match event {
            Event::Knock { from, connection, to } => {
                self.knock(from, connection, to);
                None
            }
            Event::Arrival { connection, item } => {
                let end = self.ends.get(&connection).filter(|end| end.is_open)?;
                let node = end.node;
                if matches!(item, Item::Closed(_)) {
                    self.ends.remove(&connection);
                }
                Some((node, connection, item))
            }
            Event::Silence { connection } => {
                let end = self.ends.remove(&connection).filter(|end| end.is_open)?;
                Some((end.node, connection, Item::Closed("it does not answer".to_owned())))
            }
        }
    }

    /// An attempt comes to where somebody may listen.
    fn knock(&mut self, from: usize, connection: usize, to: SocketAddr) {
        let is_wanted = self.ends.get(&connection).is_some_and(|end| end.is_open);
        let (Some(&node), true) = (self.places.get(&to), is_wanted) else {
            return self.push(connection, Item::Closed("connection refused".to_owned()));
        };
        if self.is_cut_off(node) || self.is_cut_off(from) {
            return self.add(self.elapsed + self.limit, Event::Silence { connection });
        }
        let accepted = self.next;
        self.next += 1;
        let end = End { node, other: connection, last_arrival: self.elapsed, is_open: true };
        self.ends.insert(accepted, end);
        if let Some(end) = self.ends.get_mut(&connection) {
            end.other = accepted;
        }
        let ((address, caller), (_, rank)) = (self.names[&from], self.names[&node]);
        // Whoever accepts is sure of the other end first: its proof is the last of the handshake.
        let item = Item::Opened { peer: caller, address, accepted: true };
        self.add(self.elapsed, Event::Arrival { connection: accepted, item });
        self.push(connection, Item::Opened { peer: rank, address: to, accepted: false });
    }

    /// Open connections of a node.
    pub fn connections_of(&self, node: usize) -> Vec<usize> {
        let own = self.ends.iter().filter(|(_, end)| end.node == node && end.is_open);
        own.map(|(connection, _)| *connection).collect()
    }

    /// A connection breaks: both ends learn of it, and what is on the way is lost, or is not.
    pub fn reset(&mut self, connection: usize) {
        let Some(end) = self.ends.get(&connection) else { return };
        for broken in [connection, end.other] {
            if self.random.bool() {
                self.lose(broken);
            }
            self.push(broken, Item::Closed("connection reset by peer".to_owned()));
        }
    }

    /// What is on the way to one end does not come.
    fn lose(&mut self, end: usize) {
        let is_lost = |event: &Event| match event {
            Event::Arrival { connection, .. } => *connection == end,
            _ => false,
        };
        self.events.retain(|_, event| !is_lost(event));
    }

    /// The process of a node dies: nobody listens there, and its connections break.
    pub fn kill(&mut self, node: usize) {
        self.places.retain(|_, listener| *listener != node);
        for connection in self.connections_of(node) {
            self.reset(connection);
            self.ends.remove(&connection);
        }
    }

    /// Nothing reaches a node any more, or comes from it.
    pub fn cut_off(&mut self, node: usize) {
        self.cut_off.push(node);
        for connection in self.connections_of(node) {
            let other = self.ends[&connection].other;
            for end in [connection, other] {
                self.lose(end);
                self.add(self.elapsed + KEEPALIVE, Event::Silence { connection: end });
            }
        }
    }

    /// A task is over: its connections end, behind what was sent.
    pub fn end_all(&mut self, node: usize) {
        self.places.retain(|_, listener| *listener != node);
        let mut port = Port { wires: self, node };
        port.wires.connections_of(node).into_iter().for_each(|connection| port.end(connection));
    }
}

/// The network, as one task uses it.
pub struct Port<'a> {
    /// All connections.
    pub wires: &'a mut Wires,
    /// Whose it is.
    pub node: usize,
}

impl Network for Port<'_> {
    fn now(&self) -> Instant {
        self.wires.now()
    }

    fn connect(&mut self, to: SocketAddr) -> usize {
        let connection = self.wires.next;
        self.wires.next += 1;
        let last_arrival = self.wires.elapsed;
        let end = End { node: self.node, other: 0, last_arrival, is_open: true };
        self.wires.ends.insert(connection, end);
        let at = self.wires.elapsed + self.wires.delay();
        self.wires.add(at, Event::Knock { from: self.node, connection, to });
        connection
    }

    fn send(&mut self, connection: usize, bytes: &[u8]) {
        let Some(end) = self.wires.ends.get(&connection).filter(|end| end.is_open) else { return };
        let other = end.other;
        self.wires.push(other, Item::Message(bytes.to_vec()));
    }

    fn end(&mut self, connection: usize) {
        let Some(end) = self.wires.ends.get_mut(&connection) else { return };
        end.is_open = false;
        let other = end.other;
        self.wires.push(other, Item::Closed("the other end closed it".to_owned()));
    }

    fn stop_listening(&mut self) {
        let node = self.node;
        self.wires.places.retain(|_, listener| *listener != node);
    }
}
