//! The shared part of a queue pair: what its requester and its responder both know, where they
//! report, and the way to the peer.

use super::address::{Endpoint, Route};
use super::completion::{Completion, CompletionQueue, CompletionStatus, Operation};
use super::counters::Counter;
use super::device::{AsyncEvent, Device, Element, Events, PortState};
use super::error::Result;
use super::host::Host;
use super::link::{Link, Peer};
use super::receive::{ReceiveQueue, XrcDomain};
use super::state::{Attributes, QueuePairState};
use super::transport::Transport;
use super::turns::Turns;
use super::window::Party;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

/// How long to wait before a peer that was not there is looked for again.
const LOOK_AGAIN: Duration = Duration::from_micros(500);

/// A queue pair's connection.
pub(super) struct Connection {
    /// Its number on the adapter.
    pub number: u32,
    /// Every send request reports success.
    pub signal_all: bool,
    pub transport: Transport,
    /// Its receive queue.
    pub receive_queue: Arc<ReceiveQueue>,
    pub domain: u64,
    /// The XRC domain for whose queues it receives.
    pub xrc: Option<Arc<XrcDomain>>,
    /// Where processes take turns to carry out its requests.
    pub turns: Option<Turns>,
    /// There, the handles of this process's program, each of a maker's counted once.
    pub handles: AtomicU32,
    pub device: Arc<Device>,
    pub host: Arc<Host>,
    /// Its place in the order of creation, which faults go by.
    pub ordinal: u32,
    pub send_completions: Arc<CompletionQueue>,
    pub receive_completions: Arc<CompletionQueue>,
    /// The responder has stopped, and nothing goes on before somebody else acts.
    pub stalled: AtomicBool,
    /// How many messages the requester knows to be carried out.
    pub acknowledged_seen: AtomicU64,
    /// A completion found its queue full.
    pub overrun: AtomicBool,
    /// The requester waits for a time.
    pub held: AtomicBool,
    /// The responder waits for a time.
    pub receive_held: AtomicBool,
    pub link: RwLock<Link>,
    state: AtomicU32,
    peer: Mutex<PeerSlot>,
    handle: u64,
    events: Arc<dyn Events>,
}

#[derive(Default)]
struct PeerSlot {
    destination: Option<(Endpoint, u32)>,
    peer: Option<Arc<Peer>>,
    looked: Option<Instant>,
}

/// What a connection is made of.
pub(super) struct ConnectionRequest {
    pub number: u32,
    pub transport: Transport,
    pub link: Link,
    pub ordinal: u32,
    pub receive_queue: Arc<ReceiveQueue>,
    pub signal_all: bool,
    pub domain: u64,
    pub xrc: Option<Arc<XrcDomain>>,
    pub turns: Option<Turns>,
    pub device: Arc<Device>,
    pub host: Arc<Host>,
    pub send_completions: Arc<CompletionQueue>,
    pub receive_completions: Arc<CompletionQueue>,
    pub handle: u64,
    pub events: Arc<dyn Events>,
}

impl Connection {
    /// A connection without a peer.
    pub fn new(request: ConnectionRequest) -> Self {
        Self {
            number: request.number,
            transport: request.transport,
            signal_all: request.signal_all,
            receive_queue: request.receive_queue,
            domain: request.domain,
            xrc: request.xrc,
            turns: request.turns,
            handles: AtomicU32::new(u32::from(request.turns == Some(Turns::Maker))),
            device: request.device,
            host: request.host,
            ordinal: request.ordinal,
            send_completions: request.send_completions,
            receive_completions: request.receive_completions,
            stalled: AtomicBool::new(true),
            acknowledged_seen: AtomicU64::new(0),
            overrun: AtomicBool::new(false),
            held: AtomicBool::new(false),
            receive_held: AtomicBool::new(false),
            link: RwLock::new(request.link),
            state: AtomicU32::new(QueuePairState::Reset as u32),
            peer: Mutex::default(),
            handle: request.handle,
            events: request.events,
        }
    }

    /// On whose behalf its peer touches memory.
    pub fn party(&self) -> Party {
        Party { domain: self.domain, queue_pair: self.number }
    }

    /// Its state.
    pub fn state(&self) -> QueuePairState {
        // Acquire pairs with `set_state`.
        QueuePairState::from_number(self.state.load(Ordering::Acquire))
            .unwrap_or(QueuePairState::Error)
    }

    /// Enters a state, and shows it to the peer.
    pub fn set_state(&self, state: QueuePairState) {
        self.state.store(state as u32, Ordering::Release);
        self.link.read().unwrap().show_state(state);
    }

    /// Takes over the state and the peer that the file shows. False if the queue pair
    /// receives no more.
    pub fn follow(&self, link: &Link) -> bool {
        let state = link.shown_state();
        // Release, as in `set_state`.
        self.state.store(state.map_or(QueuePairState::Reset, |s| s) as u32, Ordering::Release);
        let mut slot = self.peer.lock().unwrap();
        let destination = link.partner();
        if slot.destination != destination {
            *slot = PeerSlot { destination, ..PeerSlot::default() };
        }
        state.is_some_and(QueuePairState::receives)
    }

    /// Goes back to the first state. What the peer sees of it is up to the caller.
    pub fn leave(&self) {
        self.state.store(QueuePairState::Reset as u32, Ordering::Release);
    }

    /// Begins anew with another file. The caller holds the locks of both sides.
    pub fn restart(&self, link: Link) {
        *self.link.write().unwrap() = link;
        *self.peer.lock().unwrap() = PeerSlot::default();
        if !self.receive_queue.is_shared() {
            self.receive_queue.drain();
        }
        // Relaxed: the locks that are held order them.
        self.acknowledged_seen.store(0, Ordering::Relaxed);
        self.overrun.store(false, Ordering::Relaxed);
        self.held.store(false, Ordering::Relaxed);
    }

    /// Takes its completions out of both queues.
    pub fn forget_completions(&self) {
        self.send_completions.forget(self.number);
        self.receive_completions.forget(self.number);
    }

    /// From now on talks to the queue pair that the attributes name, and listens to no other.
    pub fn connect(&self, attributes: &Attributes) -> Result<()> {
        let port = self.port_of(&attributes.route)?;
        let destination = port.map(|port| (port, attributes.peer));
        let mut slot = self.peer.lock().unwrap();
        *slot = PeerSlot { destination, ..PeerSlot::default() };
        let peer = destination.map_or(0, |(endpoint, number)| endpoint.pack(number));
        self.link.read().unwrap().listen(peer, attributes.receive_number);
        Ok(())
    }

    /// The port that a route leads to.
    pub fn port_of(&self, route: &Route) -> Result<Option<Endpoint>> {
        self.device.port_of(route)
    }

    /// The other end, if it is there.
    pub fn peer(&self) -> Option<Arc<Peer>> {
        let mut slot = self.peer.lock().unwrap();
        if slot.peer.is_none() {
            let (endpoint, number) = slot.destination?;
            let now = Instant::now();
            let recently = slot.looked.is_some_and(|looked| now - looked < LOOK_AGAIN);
            if recently || self.device.port_state() == PortState::Down {
                return None;
            }
            slot.looked = Some(now);
            let me = self.device.endpoint.pack(self.number);
            slot.peer = Peer::open(&self.host.fabric, endpoint, number, me);
        }
        slot.peer.clone()
    }

    /// Tells of an event of this queue pair.
    pub fn raise(&self, event: AsyncEvent) {
        self.events.raise(event, Element::QueuePair(self.handle));
    }

    /// Reports a completion; notes if the queue overran.
    pub fn report(&self, completion: Completion, solicited: bool) {
        let queue = match completion.operation {
            Operation::Receive | Operation::ReceiveWrite => &self.receive_completions,
            _ => &self.send_completions,
        };
        self.report_in(queue, completion, solicited);
    }

    /// The same, in this queue.
    pub fn report_in(&self, queue: &CompletionQueue, completion: Completion, solicited: bool) {
        if !matches!(completion.status, CompletionStatus::Success | CompletionStatus::Flushed) {
            self.device.counters.add(Counter::Failures, 1);
        }
        if !queue.push(completion, solicited) {
            // Relaxed: read by the thread that holds one of the sides.
            self.overrun.store(true, Ordering::Relaxed);
        }
    }
}
