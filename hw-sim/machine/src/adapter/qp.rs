//! Queue pairs: how they go from state to state, and how their two sides take turns.

use super::completion::{Completion, CompletionQueue, CompletionStatus, Operation, Polled};
use super::connection::{Connection, ConnectionRequest};
use super::counters::Counter;
use super::device::{self, AsyncEvent, Device, Events};
use super::error::{Result, VerbsError};
use super::host::Host;
use super::link::{self, Link, RESPONSES};
use super::receive::{ReceiveQueue, Receiver, XrcDomain};
use super::requester::SendSide;
use super::responder::ReceiveSide;
use super::state::{self, Attributes, QueuePairState};
use super::transport::Transport;
use super::turns::Turns;
use super::work::{Data, ReceiveRequest, SendRequest, Work};
use crate::profile::OutOfOrder;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Instant;

/// Polls between two looks of the service thread from which a queue pair counts as polled.
const POLLS_MIN: u64 = 64;

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
    /// How its messages travel.
    pub transport: Transport,
    /// The protection domain.
    pub domain: u64,
    /// Where send requests complete.
    pub send_queue: Arc<CompletionQueue>,
    /// Where receive requests complete.
    pub receive_completions: Arc<CompletionQueue>,
    /// The shared receive queue, if it has none of its own.
    pub shared: Option<Arc<ReceiveQueue>>,
    /// The XRC domain of a queue pair that receives for one.
    pub xrc: Option<Arc<XrcDomain>>,
    /// Sizes.
    pub capacity: Capacity,
    /// Every send request reports success.
    pub signal_all: bool,
    /// Receives its events.
    pub events: Arc<dyn Events>,
    /// The owner's identifier.
    pub handle: u64,
}

/// Where a queue pair is: its number and file, and how processes take part in it.
pub(super) struct Place {
    pub number: u32,
    pub link: Link,
    pub ordinal: u32,
    pub turns: Option<Turns>,
}

/// Result of a pass over both sides.
#[derive(Debug, Default)]
struct Pass {
    /// Something moved.
    worked: bool,
    /// Requests have set off, and the peer has not answered.
    awaits: bool,
}

/// A queue pair.
pub struct QueuePair {
    /// Sizes.
    pub capacity: Capacity,
    pub(super) connection: Connection,
    /// Held while the state changes, before the sides' locks: send, then receive.
    attributes: Mutex<Attributes>,
    send: Mutex<SendSide>,
    pub(super) receive: Mutex<ReceiveSide>,
    pub(super) destroyed: AtomicBool,
    last_receive_told: AtomicBool,
    polls: AtomicU64,
    polls_seen: AtomicU64,
}

impl QueuePair {
    /// Makes a queue pair of an adapter.
    pub(super) fn make(
        host: &Arc<Host>,
        device: &Arc<Device>,
        request: QueuePairRequest,
    ) -> Result<Arc<Self>> {
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
        let (number, link) = Link::make(&host.fabric, device.endpoint, None)?;
        if request.transport == Transport::Datagram {
            link.take_datagrams();
        }
        let domain = request.xrc.as_ref().and_then(|xrc| xrc.name);
        if let Some(name) = &domain {
            link.share(&host.fabric, name);
        }
        let ordinal = device.count_queue_pair();
        let turns = domain.map(|_| Turns::Maker);
        let place = Place { number, link, ordinal, turns };
        Ok(Self::build(host, device, request, place))
    }

    /// A queue pair with this number, file and part in it.
    pub(super) fn build(
        host: &Arc<Host>,
        device: &Arc<Device>,
        request: QueuePairRequest,
        Place { number, link, ordinal, turns }: Place,
    ) -> Arc<Self> {
        let capacity = request.capacity;
        let receive_queue = request.shared.unwrap_or_else(|| {
            ReceiveQueue::own(capacity.receive_requests, capacity.receive_pieces)
        });
        let (send, mut receive) = (
            SendSide::new(link.clone(), link::new_life(&host.fabric)),
            ReceiveSide::new(&link, ordinal.into()),
        );
        let is_deputy = turns == Some(Turns::Guest);
        receive.has_turn = !is_deputy;
        let pair = Arc::new(Self {
            capacity,
            connection: Connection::new(ConnectionRequest {
                number,
                transport: request.transport,
                link,
                ordinal,
                receive_queue,
                signal_all: request.signal_all,
                domain: request.domain,
                xrc: request.xrc,
                turns,
                device: Arc::clone(device),
                host: Arc::clone(host),
                send_completions: request.send_queue,
                receive_completions: request.receive_completions,
                handle: request.handle,
                events: request.events,
            }),
            attributes: Mutex::default(),
            send: Mutex::new(send),
            receive: Mutex::new(receive),
            destroyed: AtomicBool::new(false),
            last_receive_told: AtomicBool::new(false),
            polls: AtomicU64::new(0),
            polls_seen: AtomicU64::new(0),
        });
        let user = Arc::downgrade(&pair);
        let Connection { send_completions, receive_completions, receive_queue, .. } =
            &pair.connection;
        send_completions.add_user(user.clone());
        if !Arc::ptr_eq(send_completions, receive_completions) {
            receive_completions.add_user(user.clone());
        }
        if let Some(xrc) = &pair.connection.xrc {
            if is_deputy { &xrc.deputies } else { &xrc.receivers }.add(user.clone());
        }
        receive_queue.add_user(user);
        device.counters.add(Counter::PairsMade, u64::from(!is_deputy));
        pair
    }

    /// Its number on the adapter.
    pub fn number(&self) -> u32 {
        self.connection.number
    }

    /// Does every send request report success?
    pub fn signals_all(&self) -> bool {
        self.connection.signal_all
    }

    /// How its messages travel.
    pub fn transport(&self) -> Transport {
        self.connection.transport
    }

    /// Its protection domain.
    pub(super) fn domain(&self) -> u64 {
        self.connection.domain
    }

    /// Its state.
    pub fn state(&self) -> QueuePairState {
        if self.connection.turns.is_some() {
            self.connection.follow(&self.connection.link.read().unwrap());
        }
        self.connection.state()
    }

    /// Do plain writes land in order?
    pub fn lands_in_order(&self) -> bool {
        self.connection.host.out_of_order != OutOfOrder::Always
    }

    /// Its attributes.
    pub fn attributes(&self) -> Attributes {
        if self.connection.turns.is_some() {
            return self.shared_attributes();
        }
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
        let others = match self.connection.turns {
            Some(_) => Some(self.take_over(&mut attributes)?),
            None => None,
        };
        let from = self.state();
        if believed.is_some_and(|believed| believed != from) {
            let text = format!("the queue pair is in {from:?}, not in {believed:?}");
            return Err(VerbsError::Invalid(text));
        }
        let to = to.unwrap_or(from);
        let next = state::change(self.connection.transport, from, to, &attributes, new, named)?;
        if to == QueuePairState::Error {
            drop(attributes);
            self.fail(None);
            return Ok(());
        }
        if named & state::mask::MTU != 0 && next.mtu > self.connection.device.mtu_code() {
            let text = format!("path MTU code {}: above the port's", next.mtu);
            return Err(VerbsError::Invalid(text));
        }
        if to == QueuePairState::Reset {
            self.reset()?;
        } else {
            if named & state::mask::ADDRESS != 0 {
                self.connection.connect(&next)?;
            }
            self.send.lock().unwrap().settings = next;
            self.receive.lock().unwrap().settings = next;
        }
        *attributes = next;
        if self.connection.turns.is_some() {
            self.connection.link.read().unwrap().show_attributes(&next);
        }
        self.connection.set_state(to);
        drop((attributes, others));
        // The peer may have been quicker.
        self.progress_by_service(Instant::now());
        Ok(())
    }

    fn reset(&self) -> Result<()> {
        let connection = &self.connection;
        connection.leave();
        let (mut send, mut receive) = (self.send.lock().unwrap(), self.receive.lock().unwrap());
        // The peer keeps the old file and sees that nobody is behind it any more.
        connection.link.read().unwrap().show_gone();
        let counters = &connection.device.counters;
        counters.collect(&mut send.tally);
        counters.collect(&mut receive.tally);
        let fabric = &connection.host.fabric;
        let (_, link) = Link::make(fabric, connection.device.endpoint, Some(connection.number))?;
        if connection.transport == Transport::Datagram {
            link.take_datagrams();
        }
        if let Some(name) = connection.xrc.as_ref().and_then(|xrc| xrc.name) {
            link.share(fabric, &name);
        }
        *send = SendSide::new(link.clone(), link::new_life(fabric));
        *receive = ReceiveSide::new(&link, connection.ordinal.into());
        // The locks that are held order what it stores.
        connection.restart(link);
        // Relaxed: the same.
        self.last_receive_told.store(false, Ordering::Relaxed);
        connection.forget_completions();
        Ok(())
    }

    /// Ends the queue pair: its peer gets no answer any more. One that others hold goes on.
    pub fn destroy(&self) {
        let connection = &self.connection;
        let is_shared = connection.turns.is_some();
        if is_shared {
            self.close(1);
        }
        if connection.turns == Some(Turns::Guest) {
            return;
        }
        let _changing = self.attributes.lock().unwrap();
        connection.leave();
        // Whoever is in the middle of a message finishes it first. A thread that comes to the lock
        // later finds no request whose memory an answer could still change.
        let counters = &connection.device.counters;
        let mut send = self.send.lock().unwrap();
        drop(send.take_all());
        counters.collect(&mut send.tally);
        drop(send);
        counters.collect(&mut self.receive.lock().unwrap().tally);
        // Relaxed: asked for by the thread that destroyed it, or by one that synchronised with it.
        if self.destroyed.swap(true, Ordering::Relaxed) {
            return;
        }
        if !is_shared {
            connection.end(&connection.link.read().unwrap());
        }
        connection.send_completions.remove_user(self);
        connection.receive_completions.remove_user(self);
        connection.receive_queue.remove_user(self);
        connection.xrc.iter().for_each(|xrc| xrc.receivers.remove(self));
        connection.host.regions.forget_queue_pair(connection.party());
        connection.forget_completions();
        // Without queue pairs, the service thread sleeps.
        counters.publish();
    }

    /// Has it been destroyed? The service thread may still know it.
    pub(super) fn is_destroyed(&self) -> bool {
        self.destroyed.load(Ordering::Relaxed)
    }

    /// Goes into the error state and flushes both queues.
    fn fail(&self, event: Option<AsyncEvent>) {
        if self.connection.is_deputy() {
            return self.fail_as_deputy(event);
        }
        if self.state() == QueuePairState::Reset {
            return;
        }
        self.connection.set_state(QueuePairState::Error);
        let mut send = self.send.lock().unwrap();
        self.connection.flush_send(&mut send);
        drop(send);
        self.flush_receive();
        if let Some(event) = event {
            self.connection.raise(event);
        }
    }

    fn flush_receive(&self) {
        let connection = &self.connection;
        let mut receive = self.receive.lock().unwrap();
        let mut requests: Vec<_> = receive.take_current().into_iter().collect();
        if connection.receive_queue.is_shared() {
            // Relaxed: under the lock of the receive side.
            if !self.last_receive_told.swap(true, Ordering::Relaxed) {
                connection.raise(AsyncEvent::LastReceiveReached);
            }
        } else {
            requests.extend(connection.receive_queue.drain());
        }
        for request in requests {
            let flushed = Completion::new(
                request.id,
                Operation::Receive,
                CompletionStatus::Flushed,
                connection.number,
            );
            connection.report_received(&receive, flushed, true);
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
            _ if self.transport().is_xrc() => Err(VerbsError::Invalid(
                "a queue pair of an extended connection has no receive queue".into(),
            )),
            _ if self.connection.receive_queue.is_shared() => Err(VerbsError::Invalid(
                "the queue pair has a shared receive queue: post to that".into(),
            )),
            _ => self.connection.receive_queue.post(request),
        }
    }

    /// After receive requests were posted: lets a message go on that waited for one.
    pub fn resume_receiving(&self) {
        if self.state() == QueuePairState::Error {
            self.flush_receive();
        } else if self.connection.stalled.load(Ordering::SeqCst) {
            self.progress_by_service(Instant::now());
        }
    }

    /// Does a thread poll so often that it plays the engine?
    pub(super) fn has_poller(&self) -> bool {
        self.connection.link.read().unwrap().is_polling()
    }

    /// Sees whether a thread that polled still does.
    pub(super) fn look_at_poller(&self) {
        let polls = self.polls.load(Ordering::Relaxed);
        let seen = self.polls_seen.swap(polls, Ordering::Relaxed);
        if polls - seen < POLLS_MIN && self.has_poller() {
            self.connection.link.read().unwrap().set_polling(false);
        }
    }

    /// Moves messages as far as they go, and sees to times. True if something moved.
    pub(super) fn progress_by_service(&self, now: Instant) -> bool {
        self.progress(Some(now)).worked
    }

    /// Does something wait that can go on?
    pub(super) fn has_work(&self) -> bool {
        if !self.state().receives() {
            return false;
        }
        let link = self.connection.link.read().unwrap();
        let acknowledged = link.acknowledged().load(Ordering::Acquire);
        let answers = acknowledged != self.connection.acknowledged_seen.load(Ordering::Relaxed)
            || !RESPONSES.is_empty(&link.segment);
        answers && self.connection.turns.is_none() || self.connection.has_requests(&link)
    }

    /// Does something wait for a time?
    pub(super) fn is_held(&self) -> bool {
        self.connection.held.load(Ordering::Relaxed)
            || self.connection.receive_held.load(Ordering::Relaxed)
    }

    /// One pass over both sides. With a time it waits for the sides' locks and sees to timeouts;
    /// without, a side that another thread plays is left to it.
    fn progress(&self, now: Option<Instant>) -> Pass {
        let mut pass = Pass::default();
        let mut failure = None;
        if let Some(mut receive) = lock(&self.receive, now.is_some()) {
            let outcome = self.connection.respond(&mut receive);
            pass.worked |= outcome.worked;
            failure = outcome.failure;
            if now.is_some() {
                self.connection.device.counters.collect(&mut receive.tally);
            }
        }
        if let Some(event) = failure {
            self.fail(Some(event));
        }
        let mut failed = false;
        // What processes share sends nothing.
        if self.connection.turns.is_none()
            && let Some(mut send) = lock(&self.send, now.is_some())
        {
            pass.worked |= self.connection.complete(&mut send, &mut failed);
            if !failed {
                pass.worked |= self.connection.transmit(&mut send, &mut failed);
            }
            if let (false, Some(now)) = (failed, now) {
                failed = self.connection.see_to_times(&mut send, now);
            }
            pass.awaits = send.awaits();
            if now.is_some() {
                self.connection.device.counters.collect(&mut send.tally);
            }
        }
        if failed && self.state() == QueuePairState::Error {
            self.flush_receive();
        }
        if self.connection.overrun.swap(false, Ordering::Relaxed)
            && self.state() != QueuePairState::Error
        {
            self.fail(Some(AsyncEvent::QueuePairFatal));
        }
        pass
    }
}

impl Polled for QueuePair {
    fn progress_by_poll(&self) -> bool {
        let polls = 1 + self.polls.fetch_add(1, Ordering::Relaxed);
        if polls - self.polls_seen.load(Ordering::Relaxed) == POLLS_MIN && !self.has_poller() {
            self.connection.link.read().unwrap().set_polling(true);
            // So that the service thread looks, soon, whether we still poll.
            self.connection.host.fabric.own.adapters().wake();
        }
        self.progress(None).awaits
    }

    fn poller_leaves(&self) {
        if self.has_poller() {
            self.polls_seen.store(self.polls.load(Ordering::Relaxed), Ordering::Relaxed);
            self.connection.link.read().unwrap().set_polling(false);
        }
        self.progress(None);
    }
}

impl Receiver for QueuePair {
    fn resume(&self) {
        self.resume_receiving();
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
        if !(matches!(state, QueuePairState::ReadyToSend | QueuePairState::SendDrained)
            || state.flushes_sends())
        {
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
        let transport = pair.connection.transport;
        if !transport.carries(request.verb) {
            let text = format!("{:?} by a queue pair of {transport:?}", request.verb);
            return Err(VerbsError::Invalid(text));
        }
        if (transport == Transport::Datagram) != request.to.is_some() {
            let text = "an address handle is for datagrams, and they need one";
            return Err(VerbsError::Invalid(text.into()));
        }
        let length = request.data.length();
        if seen > most as usize || length > device::MESSAGE_MAX {
            let text = format!("a send request of {seen} {what} (at most {most}), {length} bytes");
            return Err(VerbsError::Invalid(text));
        }
        if request.verb.is_read() && matches!(request.data, Data::Inline(_)) {
            return Err(VerbsError::Invalid("reads and atomics cannot use inline data".into()));
        }
        self.side.add(Work::new(request));
        self.side.tally.add(Counter::Posts, 1);
        Ok(())
    }

    /// Sends what was added, as far as it goes now.
    pub fn finish(mut self) {
        if self.pair.state().flushes_sends() {
            self.pair.connection.flush_send(&mut self.side);
            return;
        }
        let mut failed = false;
        self.pair.connection.transmit(&mut self.side, &mut failed);
        drop(self.side);
        if failed && self.pair.state() == QueuePairState::Error {
            self.pair.flush_receive();
        }
    }
}
