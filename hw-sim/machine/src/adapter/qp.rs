//! Queue pairs: what both sides share, and how they go from state to state.

use super::address::Endpoint;
use super::completion::{Completion, CompletionQueue, CompletionStatus, Operation};
use super::device::{self, AsyncEvent, Device, Element, Events, PortState};
use super::error::{Result, VerbsError};
use super::link::{Link, Peer};
use super::network::Network;
use super::receive::ReceiveQueue;
use super::requester::{SendSide, Work};
use super::responder::ReceiveSide;
use super::state::{self, Attributes, QueuePairState};
use super::work::{Data, ReceiveRequest, SendRequest};
use crate::description::LinkLayer;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, TryLockError};
use std::time::{Duration, Instant};

/// Polls between two looks of the service thread from which a queue pair counts as polled.
const POLLS_MIN: u64 = 64;
/// How long to wait before a peer that was not there is looked for again.
const LOOK_AGAIN: Duration = Duration::from_micros(500);

/// Sizes of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Send requests.
    pub send_requests: u32,
    /// Receive requests.
    pub receive_requests: u32,
    /// Pieces of a send request.
    pub send_pieces: u32,
    /// Pieces of a receive request.
    pub receive_pieces: u32,
    /// Bytes of inline data.
    pub inline: u32,
}

/// A queue pair to make.
pub struct QueuePairRequest {
    /// The protection domain.
    pub domain: u64,
    /// Where send requests complete.
    pub send_queue: Arc<CompletionQueue>,
    /// Where receive requests complete.
    pub receive_completions: Arc<CompletionQueue>,
    /// The shared receive queue, if it has none of its own.
    pub shared: Option<Arc<ReceiveQueue>>,
    /// Sizes.
    pub capacity: Capacity,
    /// Every send request reports success.
    pub signal_all: bool,
    /// Receives its events.
    pub events: Arc<dyn Events>,
    /// The owner's identifier.
    pub handle: u64,
}

/// A reliable connected queue pair.
pub struct QueuePair {
    /// Its number on the adapter.
    pub number: u32,
    /// Sizes.
    pub capacity: Capacity,
    /// Every send request reports success.
    pub signal_all: bool,
    /// Its receive queue.
    pub receive_queue: Arc<ReceiveQueue>,
    pub(super) domain: u64,
    pub(super) device: Arc<Device>,
    pub(super) network: Arc<Network>,
    /// Its place in the order of creation, which faults go by.
    pub(super) ordinal: u32,
    pub(super) send_completions: Arc<CompletionQueue>,
    pub(super) receive_completions: Arc<CompletionQueue>,
    pub(super) stalled: AtomicBool,
    pub(super) acknowledged_seen: AtomicU64,
    pub(super) overrun: AtomicBool,
    destroyed: AtomicBool,
    last_receive_told: AtomicBool,
    pub(super) held: AtomicBool,
    pub(super) receive_held: AtomicBool,
    handle: u64,
    events: Arc<dyn Events>,
    state: AtomicU32,
    /// Held while the state changes, before the sides' locks: send, then receive.
    attributes: Mutex<Attributes>,
    link: RwLock<Link>,
    peer: Mutex<PeerSlot>,
    send: Mutex<SendSide>,
    receive: Mutex<ReceiveSide>,
    polls: AtomicU64,
    polls_seen: AtomicU64,
}

#[derive(Default)]
struct PeerSlot {
    destination: Option<(Endpoint, u32)>,
    peer: Option<Arc<Peer>>,
    looked: Option<Instant>,
}

impl QueuePair {
    /// Makes a queue pair of an adapter.
    pub fn make(device: &Arc<Device>, request: QueuePairRequest) -> Result<Arc<Self>> {
        let network = device.network.upgrade();
        let network = network
            .ok_or_else(|| VerbsError::Invalid("the adapter's network was closed".into()))?;
        let capacity = request.capacity;
        for (what, seen, most) in [
            ("send requests", capacity.send_requests, device::REQUESTS_MAX),
            ("receive requests", capacity.receive_requests, device::REQUESTS_MAX),
            ("pieces of a send request", capacity.send_pieces, device::PIECES_MAX),
            ("pieces of a receive request", capacity.receive_pieces, device::PIECES_MAX),
            ("bytes of inline data", capacity.inline, device::INLINE_MAX),
        ] {
            if seen > most {
                let text = format!("a queue pair with {seen} {what}: at most {most}");
                return Err(VerbsError::Invalid(text));
            }
        }
        let (number, link) = Link::make(&network.fabric, device.endpoint, None)?;
        let receive_queue = request.shared.unwrap_or_else(|| {
            ReceiveQueue::own(capacity.receive_requests, capacity.receive_pieces)
        });
        let life = Self::life(&network);
        let ordinal = device.count_queue_pair();
        let pair = Arc::new(Self {
            number,
            capacity,
            signal_all: request.signal_all,
            receive_queue,
            domain: request.domain,
            device: Arc::clone(device),
            ordinal,
            send_completions: request.send_queue,
            receive_completions: request.receive_completions,
            stalled: AtomicBool::new(true),
            acknowledged_seen: AtomicU64::new(0),
            overrun: AtomicBool::new(false),
            destroyed: AtomicBool::new(false),
            last_receive_told: AtomicBool::new(false),
            held: AtomicBool::new(false),
            receive_held: AtomicBool::new(false),
            handle: request.handle,
            events: request.events,
            state: AtomicU32::new(QueuePairState::Reset as u32),
            attributes: Mutex::default(),
            send: Mutex::new(SendSide::new(link.clone(), life)),
            receive: Mutex::new(ReceiveSide::new(&link, ordinal.into())),
            link: RwLock::new(link),
            peer: Mutex::default(),
            polls: AtomicU64::new(0),
            polls_seen: AtomicU64::new(0),
            network,
        });
        pair.send_completions.add_user(&pair);
        if !Arc::ptr_eq(&pair.send_completions, &pair.receive_completions) {
            pair.receive_completions.add_user(&pair);
        }
        pair.receive_queue.add_user(&pair);
        pair.network.service.add(&pair);
        Ok(pair)
    }

    /// Do plain writes land in order?
    pub fn lands_in_order(&self) -> bool {
        !self.network.out_of_order
    }

    /// A number for the time until the next reset, which no other queue pair of the fabric has.
    fn life(network: &Network) -> u64 {
        let (pid, nonce) = network.fabric.own_id;
        1 << 63
            | u64::from(pid) << 32
            | u64::from(nonce & 0xff) << 24
            | u64::from(network.fabric.serial() & 0xff_ffff)
    }

    /// Its state.
    pub fn state(&self) -> QueuePairState {
        // Acquire pairs with `set_state`.
        QueuePairState::from_number(self.state.load(Ordering::Acquire))
            .unwrap_or(QueuePairState::Error)
    }

    fn set_state(&self, state: QueuePairState) {
        self.state.store(state as u32, Ordering::Release);
        self.link.read().unwrap().show_state(state);
    }

    /// Its attributes.
    pub fn attributes(&self) -> Attributes {
        *self.attributes.lock().unwrap()
    }

    /// Changes attributes, and the state.
    pub fn modify(
        &self,
        to: Option<QueuePairState>,
        believed: Option<QueuePairState>,
        new: &Attributes,
        named: u32,
    ) -> Result<()> {
        let mut attributes = self.attributes.lock().unwrap();
        let from = self.state();
        if believed.is_some_and(|believed| believed != from) {
            let text = format!("the queue pair is in {from:?}, not in {believed:?}");
            return Err(VerbsError::Invalid(text));
        }
        let to = to.unwrap_or(from);
        let next = state::change(from, to, &attributes, new, named)?;
        if to == QueuePairState::Error {
            drop(attributes);
            self.fail(None);
            return Ok(());
        }
        if named & state::mask::MTU != 0 && next.mtu > self.device.mtu_code() {
            let text = format!("path MTU code {}: above the port's", next.mtu);
            return Err(VerbsError::Invalid(text));
        }
        if to == QueuePairState::Reset {
            self.reset()?;
        } else {
            if named & state::mask::ADDRESS != 0 {
                let destination = self.destination(&next)?;
                let mut slot = self.peer.lock().unwrap();
                *slot = PeerSlot { destination, ..PeerSlot::default() };
                let peer = destination.map_or(0, |(endpoint, number)| endpoint.pack(number));
                self.link.read().unwrap().listen(peer, next.receive_number);
            }
            self.send.lock().unwrap().settings = next;
            self.receive.lock().unwrap().settings = next;
        }
        *attributes = next;
        self.set_state(to);
        drop(attributes);
        // The peer may have been quicker.
        self.progress_by_service(Instant::now());
        Ok(())
    }

    /// The port that a route leads to.
    fn destination(&self, attributes: &Attributes) -> Result<Option<(Endpoint, u32)>> {
        let (route, layer) = (attributes.route, self.device.description.link_layer);
        let gids = self.device.endpoint.gids(layer);
        let endpoint = match route.gid {
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
            // An address that nobody has is noticed when nobody answers.
            None => Endpoint::from_lid(route.lid),
        };
        Ok(endpoint.map(|endpoint| (endpoint, attributes.peer)))
    }

    fn reset(&self) -> Result<()> {
        self.state.store(QueuePairState::Reset as u32, Ordering::Release);
        let (mut send, mut receive) = (self.send.lock().unwrap(), self.receive.lock().unwrap());
        // The peer keeps the old file and sees that nobody is behind it any more.
        self.link.read().unwrap().show_gone();
        let fabric = &self.network.fabric;
        let (_, link) = Link::make(fabric, self.device.endpoint, Some(self.number))?;
        *send = SendSide::new(link.clone(), Self::life(&self.network));
        *receive = ReceiveSide::new(&link, self.ordinal.into());
        *self.link.write().unwrap() = link;
        *self.peer.lock().unwrap() = PeerSlot::default();
        if !self.receive_queue.is_shared() {
            self.receive_queue.drain();
        }
        // Relaxed: the locks that are held order them.
        self.acknowledged_seen.store(0, Ordering::Relaxed);
        self.overrun.store(false, Ordering::Relaxed);
        self.held.store(false, Ordering::Relaxed);
        self.last_receive_told.store(false, Ordering::Relaxed);
        self.send_completions.forget(self.number);
        self.receive_completions.forget(self.number);
        Ok(())
    }

    /// Ends the queue pair: its peer gets no answer any more.
    pub fn destroy(&self) {
        let _changing = self.attributes.lock().unwrap();
        self.state.store(QueuePairState::Reset as u32, Ordering::Release);
        // Whoever is in the middle of a message finishes it first.
        drop(self.send.lock().unwrap());
        drop(self.receive.lock().unwrap());
        self.link.read().unwrap().show_gone();
        // Relaxed: asked for by the thread that destroyed it, or by one that synchronised with it.
        if self.destroyed.swap(true, Ordering::Relaxed) {
            return;
        }
        Link::remove(&self.network.fabric, self.device.endpoint, self.number);
        self.send_completions.remove_user(self);
        self.receive_completions.remove_user(self);
        self.receive_queue.remove_user(self);
        self.send_completions.forget(self.number);
        self.receive_completions.forget(self.number);
    }

    /// Has it been destroyed? The service thread may still know it.
    pub(super) fn is_destroyed(&self) -> bool {
        self.destroyed.load(Ordering::Relaxed)
    }

    /// The other end, if it is there.
    pub(super) fn peer(&self) -> Option<Arc<Peer>> {
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
            slot.peer = Peer::open(&self.network.fabric, endpoint, number, me);
        }
        slot.peer.clone()
    }

    /// Tells of an event of this queue pair.
    pub(super) fn raise(&self, event: AsyncEvent) {
        self.events.raise(event, Element::QueuePair(self.handle));
    }

    /// Reports a completion; notes if the queue overran.
    pub(super) fn report(&self, completion: Completion, solicited: bool) {
        let queue = match completion.operation {
            Operation::Receive | Operation::ReceiveWrite => &self.receive_completions,
            _ => &self.send_completions,
        };
        if !queue.push(completion, solicited) {
            // Relaxed: read by the thread that holds one of the sides.
            self.overrun.store(true, Ordering::Relaxed);
        }
    }

    /// Goes into the error state and flushes both queues.
    pub(super) fn fail(&self, event: Option<AsyncEvent>) {
        if self.state() == QueuePairState::Reset {
            return;
        }
        self.set_state(QueuePairState::Error);
        let mut send = self.send.lock().unwrap();
        self.flush_send(&mut send);
        drop(send);
        self.flush_receive();
        if let Some(event) = event {
            self.raise(event);
        }
    }

    /// Enters the error state from inside the send side.
    pub(super) fn enter_error(&self, send: &mut SendSide) {
        self.set_state(QueuePairState::Error);
        self.flush_send(send);
    }

    fn flush_send(&self, send: &mut SendSide) {
        for work in send.take_all() {
            let operation = work.request.verb.operation();
            let id = work.request.id;
            self.report(
                Completion::new(id, operation, CompletionStatus::Flushed, self.number),
                true,
            );
        }
    }

    pub(super) fn flush_receive(&self) {
        let mut receive = self.receive.lock().unwrap();
        let mut requests: Vec<_> = receive.take_current().into_iter().collect();
        if self.receive_queue.is_shared() {
            // Relaxed: under the lock of the receive side.
            if !self.last_receive_told.swap(true, Ordering::Relaxed) {
                self.raise(AsyncEvent::LastReceiveReached);
            }
        } else {
            requests.extend(self.receive_queue.drain());
        }
        for request in requests {
            let flushed = Completion::new(
                request.id,
                Operation::Receive,
                CompletionStatus::Flushed,
                self.number,
            );
            self.report(flushed, true);
        }
    }

    /// Opens the send queue for new requests.
    pub fn posting(&self) -> Posting<'_> {
        Posting { pair: self, side: self.send.lock().unwrap() }
    }

    /// Posts a receive request, to the queue pair's own queue.
    pub fn post_receive(&self, request: ReceiveRequest) -> Result<()> {
        match self.state() {
            QueuePairState::Reset => Err(VerbsError::Invalid("the queue pair is in Reset".into())),
            _ if self.receive_queue.is_shared() => Err(VerbsError::Invalid(
                "the queue pair has a shared receive queue: post to that".into(),
            )),
            _ => self.receive_queue.post(request),
        }
    }

    /// After receive requests were posted: lets a message go on that waited for one.
    pub fn resume_receiving(&self) {
        if self.state() == QueuePairState::Error {
            self.flush_receive();
        } else if self.stalled.load(Ordering::SeqCst) {
            self.progress_by_service(Instant::now());
        }
    }

    /// Moves messages as far as they go, as a thread that polls.
    pub(super) fn progress_by_poll(&self) {
        let polls = 1 + self.polls.fetch_add(1, Ordering::Relaxed);
        if polls - self.polls_seen.load(Ordering::Relaxed) == POLLS_MIN && !self.has_poller() {
            self.link.read().unwrap().set_polling(true);
            // So that the service thread looks, soon, whether we still poll.
            self.network.fabric.own.adapters().wake();
        }
        self.progress(None);
    }

    /// The program will sleep: from now on the service thread is to be woken.
    pub(super) fn poller_leaves(&self) {
        if self.has_poller() {
            self.polls_seen.store(self.polls.load(Ordering::Relaxed), Ordering::Relaxed);
            self.link.read().unwrap().set_polling(false);
        }
        self.progress(None);
    }

    /// Does a thread poll so often that it plays the engine?
    pub(super) fn has_poller(&self) -> bool {
        self.link.read().unwrap().is_polling()
    }

    /// Sees whether a thread that polled still does.
    pub(super) fn look_at_poller(&self) {
        let polls = self.polls.load(Ordering::Relaxed);
        let seen = self.polls_seen.swap(polls, Ordering::Relaxed);
        if polls - seen < POLLS_MIN && self.has_poller() {
            self.link.read().unwrap().set_polling(false);
        }
    }

    /// Moves messages as far as they go, and sees to times. True if something moved.
    pub(super) fn progress_by_service(&self, now: Instant) -> bool {
        self.progress(Some(now))
    }

    /// Does something wait that can go on?
    pub(super) fn has_work(&self) -> bool {
        if !matches!(
            self.state(),
            QueuePairState::ReadyToReceive
                | QueuePairState::ReadyToSend
                | QueuePairState::SendDrained
        ) {
            return false;
        }
        let link = self.link.read().unwrap();
        let acknowledged = link.acknowledged().load(Ordering::Acquire);
        acknowledged != self.acknowledged_seen.load(Ordering::Relaxed)
            || !super::link::RESPONSES.is_empty(&link.segment)
            || (!super::link::REQUESTS.is_empty(&link.segment)
                && !self.stalled.load(Ordering::SeqCst))
    }

    /// Does something wait for a time?
    pub(super) fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed) || self.receive_held.load(Ordering::Relaxed)
    }

    /// One pass over both sides. With a time it waits for the sides' locks and sees to timeouts;
    /// without, a side that another thread plays is left to it.
    fn progress(&self, now: Option<Instant>) -> bool {
        let mut worked = false;
        let mut failure = None;
        if let Some(mut receive) = lock(&self.receive, now.is_some()) {
            let outcome = self.respond(&mut receive);
            worked |= outcome.worked;
            failure = outcome.failure;
        }
        if let Some(event) = failure {
            self.fail(Some(event));
        }
        let mut failed = false;
        if let Some(mut send) = lock(&self.send, now.is_some()) {
            worked |= self.complete(&mut send, &mut failed);
            if !failed {
                worked |= self.transmit(&mut send, &mut failed);
            }
            if let (false, Some(now)) = (failed, now) {
                failed = self.see_to_times(&mut send, now);
            }
        }
        if failed {
            self.flush_receive();
        }
        if self.overrun.swap(false, Ordering::Relaxed) && self.state() != QueuePairState::Error {
            self.fail(Some(AsyncEvent::QueuePairFatal));
        }
        worked
    }
}

fn lock<T>(side: &Mutex<T>, wait: bool) -> Option<MutexGuard<'_, T>> {
    if wait {
        return Some(side.lock().unwrap());
    }
    match side.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Poisoned(poison)) => Some(poison.into_inner()),
    }
}

/// The send queue, open for new requests; they set off with [`Posting::finish`].
pub struct Posting<'a> {
    pair: &'a QueuePair,
    side: MutexGuard<'a, SendSide>,
}

impl Posting<'_> {
    /// Is there room for so many requests?
    pub fn has_room(&self, count: usize) -> bool {
        self.side.waiting() + count <= self.pair.capacity.send_requests as usize
    }

    /// Adds a request.
    pub fn push(&mut self, request: SendRequest) -> Result<()> {
        let (pair, capacity) = (self.pair, &self.pair.capacity);
        let state = pair.state();
        if !matches!(
            state,
            QueuePairState::ReadyToSend | QueuePairState::SendDrained | QueuePairState::Error
        ) {
            return Err(VerbsError::Invalid(format!("send requests in state {state:?}")));
        }
        if self.side.waiting() >= capacity.send_requests as usize {
            let text = format!("the send queue is full: {} requests", capacity.send_requests);
            return Err(VerbsError::Full(text));
        }
        let (what, seen, most) = match &request.data {
            Data::Pieces(pieces) => ("pieces", pieces.len(), capacity.send_pieces),
            Data::Inline(bytes) => ("bytes of inline data", bytes.len(), capacity.inline),
        };
        let length = request.data.length();
        if seen > most as usize || length > device::MESSAGE_MAX {
            let text = format!("a send request of {seen} {what} (at most {most}), {length} bytes");
            return Err(VerbsError::Invalid(text));
        }
        if request.verb.is_read() && matches!(request.data, Data::Inline(_)) {
            return Err(VerbsError::Invalid("reads and atomics cannot use inline data".into()));
        }
        self.side.add(Work::new(request));
        Ok(())
    }

    /// Sends what was added, as far as it goes now.
    pub fn finish(mut self) {
        if self.pair.state() == QueuePairState::Error {
            self.pair.flush_send(&mut self.side);
            return;
        }
        let mut failed = false;
        self.pair.transmit(&mut self.side, &mut failed);
        drop(self.side);
        if failed {
            self.pair.flush_receive();
        }
    }
}
