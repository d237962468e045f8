//! One adapter as a process sees it: limits, port, events.

use super::address::{Endpoint, Route};
use super::counters::{Counter, Counters};
use super::error::{Result, VerbsError};
use super::fault::{AdapterFaults, Verdict};
use crate::description::{Adapter, LinkLayer};
use crate::fault::{SWITCH, Switched};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// Requests of one queue at most.
pub const REQUESTS_MAX: u32 = 32768;
/// Pieces of one request at most.
pub const PIECES_MAX: u32 = 30;
/// Bytes of inline data at most.
pub const INLINE_MAX: u32 = 1024;
/// Entries of a completion queue at most.
pub const COMPLETIONS_MAX: u32 = 1 << 22;
/// Reads and atomics under way on a queue pair at most.
pub const READS_MAX: u32 = 16;
/// Bytes of a message at most.
pub const MESSAGE_MAX: u64 = 1 << 30;

/// Asynchronous events, with the numbers of the verbs interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum AsyncEvent {
    /// A completion queue overran.
    CompletionQueueError = 0,
    /// A queue pair failed.
    QueuePairFatal = 1,
    /// A request of the peer was malformed.
    QueuePairRequestError = 2,
    /// A request of the peer had no right.
    QueuePairAccessError = 3,
    /// The send queue has drained.
    SendDrained = 5,
    /// The adapter is reset.
    DeviceFatal = 8,
    /// The port came up.
    PortActive = 9,
    /// The port went down.
    PortError = 10,
    /// A shared receive queue fell below its limit.
    ReceiveQueueLimit = 15,
    /// A queue pair in error takes no more from its shared receive queue.
    LastReceiveReached = 16,
}

impl AsyncEvent {
    /// The event of a queue pair that has this number; a failure if there is none.
    pub(super) fn of_queue_pair(number: u32) -> Self {
        [Self::QueuePairRequestError, Self::QueuePairAccessError]
            .into_iter()
            .find(|event| *event as u32 == number)
            .unwrap_or(Self::QueuePairFatal)
    }
}

/// Subject of an event: a port, or an object by its owner's identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// A completion queue.
    Queue(u64),
    /// A queue pair.
    QueuePair(u64),
    /// A shared receive queue.
    ReceiveQueue(u64),
    /// A port, counted from 1.
    Port(u8),
}

/// Receives events: an open device.
pub trait Events: Send + Sync {
    /// Something happened.
    fn raise(&self, event: AsyncEvent, element: Element);
    /// An armed completion queue has a completion.
    fn completed(&self, queue: u64);
}

/// A port's state: the numbers of the verbs interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum PortState {
    /// No link.
    Down = 1,
    /// Up.
    Active = 4,
}

/// An adapter.
pub struct Device {
    /// The kind.
    pub description: Adapter,
    /// Its address.
    pub endpoint: Endpoint,
    faults: AdapterFaults,
    /// What the process has switched on since, with what was counted of it.
    switched: Switched<SwitchedFaults>,
    pub(super) counters: Counters,
    port_down: AtomicBool,
    /// When a port that is down comes up again.
    port_up_at: Mutex<Option<Instant>>,
    /// It was reset: nothing that was made of it works any more.
    is_reset: AtomicBool,
    messages: AtomicU64,
    queue_pairs: AtomicU32,
    registrations: AtomicU64,
    /// What it sends is lost from now on.
    loses: AtomicBool,
    listeners: Mutex<Vec<Weak<dyn Events>>>,
}

/// Faults that were switched on, with what was counted from then on.
struct SwitchedFaults {
    faults: AdapterFaults,
    messages: AtomicU64,
    registrations: AtomicU64,
}

impl Device {
    pub(super) fn new(
        description: Adapter,
        endpoint: Endpoint,
        faults: AdapterFaults,
        counters: Counters,
    ) -> Arc<Self> {
        let port_down = AtomicBool::new(faults.port_down_at_start());
        Arc::new(Self {
            description,
            endpoint,
            faults,
            switched: Switched::default(),
            counters,
            port_down,
            port_up_at: Mutex::default(),
            is_reset: AtomicBool::new(false),
            messages: AtomicU64::new(0),
            queue_pairs: AtomicU32::new(0),
            registrations: AtomicU64::new(0),
            loses: AtomicBool::new(false),
            listeners: Mutex::default(),
        })
    }

    /// The state of the port. The look at it brings up a port whose time has come.
    pub fn port_state(&self) -> PortState {
        if self.port_down.load(Ordering::Acquire) && self.is_port_due() {
            // As in `take_port_down`.
            if self.port_down.swap(false, Ordering::AcqRel) {
                self.raise(AsyncEvent::PortActive);
            }
        }
        if self.port_down.load(Ordering::Acquire) { PortState::Down } else { PortState::Active }
    }

    /// How many completions a queue holds that was made for `capacity` of them: these, unless a
    /// fault has it hold fewer.
    pub fn completions_held(&self, capacity: usize) -> usize {
        let most = self.faults.completions_max().and_then(|most| usize::try_from(most).ok());
        most.map_or(capacity, |most| most.min(capacity))
    }

    /// Takes the port down, and notifies all that have the device open.
    pub(super) fn take_port_down(&self) {
        // AcqRel: who sees the port down sees what led to it; one caller raises the event.
        if self.port_down.swap(true, Ordering::AcqRel) {
            return;
        }
        self.raise(AsyncEvent::PortError);
    }

    /// Takes the port down for so long.
    pub(super) fn flap(&self, time: Duration) {
        *self.port_up_at.lock().unwrap() = Some(Instant::now() + time);
        self.take_port_down();
    }

    /// Is it time for the port to come up? Says so once.
    fn is_port_due(&self) -> bool {
        let now = Instant::now();
        self.port_up_at.lock().unwrap().take_if(|due| now >= *due).is_some()
    }

    /// Resets the adapter, and notifies all that have the device open.
    pub(super) fn reset(&self) {
        // Relaxed: who sees it late sends a message more.
        if !self.is_reset.swap(true, Ordering::Relaxed) {
            self.raise(AsyncEvent::DeviceFatal);
        }
    }

    /// Was it reset?
    pub fn is_reset(&self) -> bool {
        self.is_reset.load(Ordering::Relaxed)
    }

    /// Notifies all that have the device open.
    fn raise(&self, event: AsyncEvent) {
        let listeners: Vec<_> =
            self.listeners.lock().unwrap().iter().filter_map(Weak::upgrade).collect();
        for listener in listeners {
            listener.raise(event, Element::Port(1));
        }
    }

    /// Tells of events from now on, as long as the listener lives.
    pub fn add_listener(&self, listener: &Arc<dyn Events>) {
        let mut listeners = self.listeners.lock().unwrap();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(Arc::downgrade(listener));
    }

    fn switched(&self) -> Option<Arc<SwitchedFaults>> {
        self.switched.now(&SWITCH, |list| {
            let (node, name) = (self.endpoint.node, &self.description.name);
            let faults = AdapterFaults::new(node, name, &[], list).ok()?;
            Some(SwitchedFaults { faults, messages: 0.into(), registrations: 0.into() })
        })
    }

    /// Counts a message of this adapter. What happens to it, as the `message`th of the queue pair
    /// that was made as the `queue_pair`th. Asked once for each message.
    pub(super) fn at_message(&self, queue_pair: u32, message: u64) -> Verdict {
        // Relaxed: a count that stands for itself, here and below.
        let of_adapter = self.messages.fetch_add(1, Ordering::Relaxed);
        let verdict = self.faults.at_message(of_adapter, queue_pair, message);
        let Some(switched) = self.switched() else { return verdict };
        let since = switched.messages.fetch_add(1, Ordering::Relaxed);
        let other = switched.faults.at_message(since, queue_pair, message);
        if verdict == Verdict::Send { other } else { verdict }
    }

    /// Does a message find no receive request, the first time that it is looked at?
    pub(super) fn receiver_not_ready(&self, queue_pair: u32, message: u64) -> bool {
        let finds_none = |faults: &AdapterFaults| faults.receiver_not_ready(queue_pair, message);
        finds_none(&self.faults) || self.switched().is_some_and(|now| finds_none(&now.faults))
    }

    /// Counts a registration of memory. True: a fault refuses it.
    pub fn refuses_registration(&self) -> bool {
        let number = self.registrations.fetch_add(1, Ordering::Relaxed);
        let refused_since = self.switched().is_some_and(|now| {
            now.faults.refuses_registration(now.registrations.fetch_add(1, Ordering::Relaxed))
        });
        let refused = self.faults.refuses_registration(number) || refused_since;
        if refused {
            self.counters.add(Counter::Faults, 1);
        }
        refused
    }

    /// From now on what it sends is lost.
    pub(super) fn begin_loss(&self) {
        self.loses.store(true, Ordering::Relaxed);
    }

    /// Is what it sends lost? Relaxed: a late look sends one message more.
    pub(super) fn loses(&self) -> bool {
        self.loses.load(Ordering::Relaxed)
    }

    /// Counts a queue pair of this adapter, from 0.
    pub(super) fn count_queue_pair(&self) -> u32 {
        self.queue_pairs.fetch_add(1, Ordering::Relaxed)
    }

    /// The port that a route leads to. None: an address that nobody has, which is noticed when
    /// nobody answers.
    pub fn port_of(&self, route: &Route) -> Result<Option<Endpoint>> {
        let layer = self.description.link_layer;
        let gids = self.endpoint.gids(layer);
        Ok(match route.gid {
            Some(_) if usize::from(route.own_gid) >= gids.len() => {
                let (seen, most) = (route.own_gid, gids.len());
                let text = format!("own GID index {seen}: the port has {most}");
                return Err(VerbsError::Invalid(text));
            }
            Some(gid) => match Endpoint::from_gid(&gid) {
                None if layer == LinkLayer::Ethernet => {
                    let text = format!("no port of the fabric has the GID {gid:02x?}");
                    return Err(VerbsError::Unreachable(text));
                }
                found => found,
            },
            None if layer == LinkLayer::Ethernet => {
                let text = "a route over Ethernet needs a GID: set is_global and sgid_index";
                return Err(VerbsError::Invalid(text.into()));
            }
            None => Endpoint::from_lid(route.lid),
        })
    }

    /// The largest packet, as the verbs interface counts: 1 for 256 bytes to 5 for 4096.
    pub fn mtu_code(&self) -> u32 {
        self.description.mtu.ilog2() - 7
    }
}
