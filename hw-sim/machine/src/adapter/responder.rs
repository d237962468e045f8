//! The responder's side of a queue pair: carries out what the peer asks, after checking it.

use super::access::Access;
use super::completion::{Completion, CompletionStatus, Operation};
use super::connection::Connection;
use super::counters::{Counter, Tally};
use super::device::{AsyncEvent, PortState};
use super::link::{Link, PIECE_BYTES, Peer, REQUESTS, RESPONSES};
use super::placement::Unplaced;
use super::receive::ReceiveQueue;
use super::record::{AT_FIRST, FIRST, IMMEDIATE, INVALIDATE, LAST, Record, RecordKind, SOLICITED};
use super::silence::Silence;
use super::state::{Attributes, receiver_timer_us};
use super::transport::Transport;
use super::work::ReceiveRequest;
use crate::fabric::{Reader, Writer, copy};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Pieces in one pass: the thread that polls has other queue pairs, too.
const PIECES_PER_PASS: u32 = 64;

/// The responder's side.
#[derive(Debug)]
pub(super) struct ReceiveSide {
    pub settings: Attributes,
    pub requests: Reader<Record>,
    /// Where answers go, once there was a first request.
    pub outlet: Option<(Arc<Peer>, Writer<Record>)>,
    /// Messages carried out, and how many of them the peer knows of.
    pub executed: u64,
    pub acknowledged: u64,
    /// The message that is being received goes here.
    current: Option<ReceiveRequest>,
    read: Option<ReadJob>,
    refusal: Option<(Record, AsyncEvent)>,
    /// The message whose sender was notified that there is no receive request.
    not_ready: Option<u64>,
    /// The rest of the message that is being received is dropped.
    lost: bool,
    /// The message that a fault has made wait.
    delayed: Option<u64>,
    /// Data that has arrived and lands later, where writes land out of order.
    pub unplaced: Unplaced,
    pub tally: Tally,
    /// A message has ended the queue pair, and is not carried out again before its state says so.
    has_failed: bool,
    silence: Silence,
    /// The shared receive queue that the message names, on an extended connection.
    pub named: Option<Arc<ReceiveQueue>>,
    /// Where processes take turns: it is this one's, as far as this side knows.
    pub has_turn: bool,
    /// When it was last seen to that the process whose turn it is lives.
    pub looked: Option<Instant>,
}

/// A read that is being answered.
#[derive(Debug)]
struct ReadJob {
    message: u64,
    key: u32,
    address: u64,
    length: u64,
    done: u64,
}

/// Result of a pass.
#[derive(Debug, Default)]
pub(super) struct Responded {
    pub worked: bool,
    pub failure: Option<AsyncEvent>,
    pub wake: bool,
}

/// Result of one step.
pub(super) enum Step {
    /// Something was carried out.
    Done,
    /// There is nothing to do.
    Idle,
    /// Nothing goes on before somebody else acts.
    Blocked,
    /// To be tried again soon.
    Again,
    /// The queue pair has failed.
    Failed(AsyncEvent),
}

impl ReceiveSide {
    /// `seed` decides the order in which writes land, where it is random.
    pub fn new(link: &Link, seed: u64) -> Self {
        Self {
            settings: Attributes::default(),
            requests: Reader::new(Arc::clone(&link.segment), REQUESTS),
            outlet: None,
            executed: 0,
            acknowledged: 0,
            current: None,
            read: None,
            refusal: None,
            not_ready: None,
            lost: false,
            delayed: None,
            unplaced: Unplaced::new(seed),
            tally: Tally::default(),
            has_failed: false,
            silence: Silence::default(),
            named: None,
            has_turn: true,
            looked: None,
        }
    }

    /// Takes out the receive request whose message has not come whole.
    pub fn take_current(&mut self) -> Option<ReceiveRequest> {
        self.current.take()
    }

    /// Begins where another process has stopped, after so many messages.
    pub fn resume(&mut self, link: &Link, executed: u64) {
        self.requests = Reader::resume(Arc::clone(&link.segment), REQUESTS);
        (self.outlet, self.named, self.refusal) = (None, None, None);
        // The peer may know of fewer than were carried out.
        (self.executed, self.acknowledged) = (executed, 0);
        (self.read, self.not_ready, self.has_turn) = (None, None, true);
        self.silence.resume(link);
    }

    /// The message that is a read under way.
    pub fn reads(&self) -> Option<u64> {
        self.read.as_ref().map(|job| job.message)
    }

    fn grants(&self, right: Access) -> bool {
        Access(self.settings.access).has(right)
    }

    /// Remembers to refuse a message; the refusal is sent when there is room.
    pub fn refuse(&mut self, message: u64, status: CompletionStatus) -> Step {
        let mut record = Record::new(RecordKind::Nak, message);
        record.operands[0] = status as u64;
        let event = match status {
            CompletionStatus::RemoteAccess => AsyncEvent::QueuePairAccessError,
            CompletionStatus::RemoteInvalidRequest => AsyncEvent::QueuePairRequestError,
            _ => AsyncEvent::QueuePairFatal,
        };
        self.refusal = Some((record, event));
        Step::Done
    }

    /// Sends an answer without data, if there is room.
    fn answer(&mut self, record: &Record) -> bool {
        let Some((_, writer)) = &mut self.outlet else { return false };
        let room = writer.reserve(0).is_some();
        if room {
            writer.commit(record);
        }
        room
    }
}

impl Connection {
    /// Carries out what waits in the request ring.
    pub(super) fn respond(&self, side: &mut ReceiveSide) -> Responded {
        let mut outcome = Responded::default();
        self.stalled.store(false, Ordering::SeqCst);
        // Relaxed: a hint for the service thread.
        self.receive_held.store(false, Ordering::Relaxed);
        let may = self.turns.is_none() || self.takes_turn(side, &mut outcome);
        if !may || outcome.failure.is_some() {
            return outcome;
        }
        let is_silent = side.has_failed || self.device.port_state() == PortState::Down;
        let peer = side.outlet.as_ref().map(|(peer, _)| &**peer);
        if side.silence.see(&self.link, is_silent, peer) || !self.state().receives() {
            // Nobody answers; the peer will notice.
            self.stalled.store(true, Ordering::SeqCst);
            return outcome;
        }
        for _ in 0..PIECES_PER_PASS {
            let step = match self.transport {
                Transport::Datagram => self.receive_datagram(side),
                _ => self.respond_once(side, &mut outcome),
            };
            match step {
                Step::Done => outcome.worked = true,
                Step::Idle => break,
                Step::Again => {
                    self.receive_held.store(true, Ordering::Relaxed);
                    self.stalled.store(true, Ordering::SeqCst);
                    break;
                }
                Step::Blocked => {
                    self.stalled.store(true, Ordering::SeqCst);
                    break;
                }
                Step::Failed(event) => {
                    side.has_failed = true;
                    outcome.failure = Some(event);
                    break;
                }
            }
        }
        self.place(side);
        self.acknowledge(side, &mut outcome);
        if self.turns.is_some() {
            self.report_to_owner(side, &mut outcome);
        }
        outcome
    }

    /// Tells the peer what was carried out.
    pub(super) fn acknowledge(&self, side: &mut ReceiveSide, outcome: &mut Responded) {
        let Some((peer, _)) = &side.outlet else { return };
        if side.executed > side.acknowledged {
            side.acknowledged = side.executed;
            // Release pairs with the requester's acquire: it learns of what is visible.
            peer.link.acknowledged().store(side.executed, Ordering::Release);
            outcome.wake = true;
        }
        if std::mem::take(&mut outcome.wake) {
            peer.wake(&self.host.fabric);
        }
    }

    /// Finds the peer's rings; false if they are not there.
    pub(super) fn has_answer_ring(&self, side: &mut ReceiveSide) -> bool {
        if side.outlet.is_none() {
            side.outlet = self.peer().map(|peer| {
                let writer = Writer::new(Arc::clone(&peer.link.segment), RESPONSES);
                (peer, writer)
            });
        }
        side.outlet.is_some()
    }

    fn respond_once(&self, side: &mut ReceiveSide, outcome: &mut Responded) -> Step {
        if side.read.is_some() {
            let step = self.continue_read(side, outcome);
            self.note(side);
            return step;
        }
        if let Some((record, event)) = side.refusal {
            // What came before is done; the peer must learn of both.
            if !side.answer(&record) {
                return Step::Blocked;
            }
            outcome.wake = true;
            side.refusal = None;
            return Step::Failed(event);
        }
        let Some((record, payload)) = side.requests.peek() else { return Step::Idle };
        if !self.has_answer_ring(side) && self.transport.is_reliable() {
            return Step::Again;
        }
        if self.transport == Transport::Unreliable && self.is_lost(side, &record) {
            outcome.wake |= side.requests.consume(&record);
            return Step::Done;
        }
        if record.message != side.executed {
            return side.refuse(record.message, CompletionStatus::RemoteInvalidRequest);
        }
        if record.flags & FIRST != 0
            && self.transport.is_reliable()
            && self.device.receiver_not_ready(self.ordinal, record.message)
            && side.delayed != Some(record.message)
            && record.needs_receive()
        {
            side.delayed = Some(record.message);
            side.tally.add(Counter::Faults, 1);
            // Without room for the answer the sender only waits.
            outcome.wake |= side.answer(&not_ready_at_first(side, record.message));
            return Step::Again;
        }
        if record.kind != RecordKind::Write {
            self.place(side);
        }
        if self.transport.is_xrc()
            && let Some(step) = self.find_named(side, &record, outcome)
        {
            return step;
        }
        let step = match record.kind {
            RecordKind::Write => self.write(side, &record, payload, outcome),
            RecordKind::Send => self.receive(side, &record, payload, outcome),
            RecordKind::Read => self.start_read(side, &record),
            RecordKind::CompareSwap | RecordKind::FetchAdd => self.atomic(side, &record, outcome),
            _ => side.refuse(record.message, CompletionStatus::RemoteInvalidRequest),
        };
        if self.transport == Transport::Unreliable && side.refusal.take().is_some() {
            // Nobody is told; the message has no more effect.
            side.lost = true;
        }
        if matches!(step, Step::Done) && side.refusal.is_none() {
            self.note(side);
            side.tally.received(u64::from(record.length), self.device.description.mtu);
            outcome.wake |= side.requests.consume(&record);
        }
        step
    }

    /// Is this piece of a message dropped? Messages of an unreliable connection may be lost in
    /// whole or in part, also for want of a receive request: each begins anew.
    fn is_lost(&self, side: &mut ReceiveSide, record: &Record) -> bool {
        if record.flags & FIRST != 0 {
            side.executed = record.message;
            side.lost = false;
        }
        let begins = match record.kind {
            RecordKind::Send => record.flags & FIRST != 0 && side.current.is_none(),
            _ => record.flags & LAST != 0 && record.flags & IMMEDIATE != 0,
        };
        side.lost |= record.message != side.executed || begins && self.receive_queue.is_empty();
        side.lost
    }

    fn write(
        &self,
        side: &mut ReceiveSide,
        record: &Record,
        payload: u64,
        outcome: &mut Responded,
    ) -> Step {
        let length = u64::from(record.length);
        if !side.grants(Access::REMOTE_WRITE) {
            return side.refuse(record.message, CompletionStatus::RemoteAccess);
        }
        let last = record.flags & LAST != 0;
        let announces = last && record.flags & IMMEDIATE != 0;
        if announces && !self.can_receive(side, record, outcome) {
            return Step::Blocked;
        }
        if length > 0 {
            let late = self.host.lands_late(record.key);
            if !late {
                // What may not be passed by others passes none either.
                self.place(side);
            }
            let held = self.host.hold();
            let target = held.resolve_for_peer(
                self.party_of(side),
                record.key,
                (record.address, length),
                Access::REMOTE_WRITE,
            );
            let Ok(target) = target else {
                return side.refuse(record.message, CompletionStatus::RemoteAccess);
            };
            // SAFETY: the region holds the range, and stays while `held` lives; the payload lies
            // in the ring until it is consumed. Later is another array's room of that length.
            unsafe {
                if late {
                    let later = side.unplaced.add(record.key, record.address, length as usize);
                    copy::fetch(later.as_mut_ptr() as u64, payload, later.len());
                } else {
                    self.host.land(target, payload, length as usize);
                }
            }
            held.written(target, length);
        }
        if announces {
            self.place(side);
        }
        if announces && let Some(request) = self.queue(side).take() {
            self.received(side, &request, Operation::ReceiveWrite, record);
        }
        side.executed += u64::from(last);
        Step::Done
    }

    fn receive(
        &self,
        side: &mut ReceiveSide,
        record: &Record,
        payload: u64,
        outcome: &mut Responded,
    ) -> Step {
        if record.flags & FIRST != 0 {
            if side.current.is_none() && !self.can_receive(side, record, outcome) {
                return Step::Blocked;
            }
            // A message that was lost in part has left its request.
            side.current = side.current.take().or_else(|| self.queue(side).take());
        }
        let Some(request) = side.current.take() else {
            return side.refuse(record.message, CompletionStatus::RemoteInvalidRequest);
        };
        let room: u64 = request.pieces.iter().map(|piece| u64::from(piece.length)).sum();
        let landed = if u64::from(record.total) > room {
            Err((CompletionStatus::LocalLength, CompletionStatus::RemoteInvalidRequest))
        } else {
            let part = (u64::from(record.offset), u64::from(record.length));
            self.land(self.party_of(side).domain, &request.pieces, part, payload)
                .map_err(|status| (status, CompletionStatus::RemoteOperation))
                .and_then(|()| self.invalidate_for_peer(side, record))
        };
        if let Err((own, told)) = landed {
            let failed = Completion::new(request.id, Operation::Receive, own, self.number);
            self.report_received(side, failed, true);
            if !self.transport.is_reliable() {
                return Step::Failed(AsyncEvent::QueuePairFatal);
            }
            return side.refuse(record.message, told);
        }
        if record.flags & LAST != 0 {
            self.received(side, &request, Operation::Receive, record);
            side.executed += 1;
        } else {
            side.current = Some(request);
        }
        Step::Done
    }

    /// Takes back the window that a message names, before the message is reported. What the sender
    /// of a bad key is told, the specification leaves open.
    fn invalidate_for_peer(
        &self,
        side: &ReceiveSide,
        record: &Record,
    ) -> Result<(), (CompletionStatus, CompletionStatus)> {
        let told = CompletionStatus::RemoteInvalidRequest;
        if record.flags & LAST == 0 || record.flags & INVALIDATE == 0 {
            return Ok(());
        }
        self.host.regions.invalidate(self.party_of(side), record.key).map_err(|_| (told, told))
    }

    /// Is there a receive request for this message? If not, its sender is notified.
    fn can_receive(
        &self,
        side: &mut ReceiveSide,
        record: &Record,
        outcome: &mut Responded,
    ) -> bool {
        if side.not_ready == Some(record.message)
            && side.outlet.as_ref().is_some_and(|(peer, _)| !peer.link.takes_requests())
        {
            // Its sender has given up meanwhile, and has reported so: too late.
            return false;
        }
        if !self.queue(side).is_empty() {
            return true;
        }
        self.not_ready(side, record, outcome);
        // Once more: a request that was posted meanwhile found nobody who waited.
        self.stalled.store(true, Ordering::SeqCst);
        !self.queue(side).is_empty()
    }

    fn not_ready(&self, side: &mut ReceiveSide, record: &Record, outcome: &mut Responded) {
        let is_new = side.not_ready != Some(record.message);
        if is_new && side.answer(&not_ready_answer(side, record.message)) {
            side.not_ready = Some(record.message);
            outcome.wake = true;
        }
    }

    /// Reports a message that came whole.
    fn received(
        &self,
        side: &ReceiveSide,
        request: &ReceiveRequest,
        operation: Operation,
        record: &Record,
    ) {
        let mut completion =
            Completion::new(request.id, operation, CompletionStatus::Success, self.number);
        completion.length = record.total;
        completion.immediate = (record.flags & IMMEDIATE != 0).then_some(record.immediate);
        completion.invalidated = (record.flags & INVALIDATE != 0).then_some(record.key);
        self.report_received(side, completion, record.flags & SOLICITED != 0);
    }

    fn start_read(&self, side: &mut ReceiveSide, record: &Record) -> Step {
        let length = u64::from(record.total);
        let allowed = side.grants(Access::REMOTE_READ)
            && (length == 0 || {
                let held = self.host.hold();
                held.resolve_for_peer(
                    self.party_of(side),
                    record.key,
                    (record.address, length),
                    Access::REMOTE_READ,
                )
                .is_ok()
            });
        if !allowed {
            return side.refuse(record.message, CompletionStatus::RemoteAccess);
        }
        side.read = Some(ReadJob {
            message: record.message,
            key: record.key,
            address: record.address,
            length,
            done: 0,
        });
        Step::Done
    }

    fn continue_read(&self, side: &mut ReceiveSide, outcome: &mut Responded) -> Step {
        let party = self.party_of(side);
        let (Some(job), Some((_, writer))) = (&mut side.read, &mut side.outlet) else {
            return Step::Idle;
        };
        let piece = (job.length - job.done).min(PIECE_BYTES);
        let Some(room) = writer.reserve(piece as usize) else { return Step::Blocked };
        if piece > 0 {
            let held = self.host.hold();
            let address = job.address + job.done;
            // Checked again: the region may have gone since the read began.
            let source =
                held.resolve_for_peer(party, job.key, (address, piece), Access::REMOTE_READ);
            let Ok(source) = source else {
                let message = job.message;
                side.read = None;
                return side.refuse(message, CompletionStatus::RemoteAccess);
            };
            // SAFETY: the region holds the range, and stays while `held` lives; `room` has
            // `piece` bytes.
            unsafe { copy::fetch(room, source, piece as usize) };
        }
        let mut record = Record::new(RecordKind::ReadData, job.message);
        (record.length, record.offset) = (piece as u32, job.done as u32);
        job.done += piece;
        let last = job.done == job.length;
        record.flags = if last { LAST } else { 0 };
        writer.commit(&record);
        side.tally.sent(piece, self.device.description.mtu);
        outcome.wake = true;
        if last {
            side.read = None;
            side.executed += 1;
        }
        Step::Done
    }

    fn atomic(&self, side: &mut ReceiveSide, record: &Record, outcome: &mut Responded) -> Step {
        if !side.grants(Access::REMOTE_ATOMIC) {
            return side.refuse(record.message, CompletionStatus::RemoteAccess);
        }
        if !record.address.is_multiple_of(8) {
            return side.refuse(record.message, CompletionStatus::RemoteInvalidRequest);
        }
        let party = self.party_of(side);
        let Some((_, writer)) = &mut side.outlet else { return Step::Idle };
        if writer.reserve(0).is_none() {
            return Step::Blocked;
        }
        let held = self.host.hold();
        let (key, need) = (record.key, Access::REMOTE_ATOMIC);
        let target = held.resolve_for_peer(party, key, (record.address, 8), need);
        let target = target.ok().filter(|target| target.is_multiple_of(8));
        let Some(target) = target else {
            return side.refuse(record.message, CompletionStatus::RemoteAccess);
        };
        let [first, second] = record.operands;
        // SAFETY: the region holds the eight bytes, which are aligned; it stays while `held` lives.
        let old = unsafe {
            match record.kind {
                RecordKind::CompareSwap => copy::atomic(target, second, Some(first)),
                _ => copy::atomic(target, first, None),
            }
        };
        held.written(target, 8);
        drop(held);
        let mut answer = Record::new(RecordKind::AtomicResult, record.message);
        answer.operands[0] = old;
        answer.flags = LAST;
        writer.commit(&answer);
        outcome.wake = true;
        side.executed += 1;
        Step::Done
    }
}

/// A message found no receive request: says how long to wait for one.
fn not_ready_answer(side: &ReceiveSide, message: u64) -> Record {
    let mut answer = Record::new(RecordKind::ReceiverNotReady, message);
    answer.operands[0] = receiver_timer_us(side.settings.receiver_timer);
    answer
}

/// The same, once, by a fault. When the next attempt is looked at depends on the threads of this
/// host, so the sender must not count the time: an adapter answers each attempt at once.
fn not_ready_at_first(side: &ReceiveSide, message: u64) -> Record {
    let mut answer = not_ready_answer(side, message);
    answer.flags = AT_FIRST;
    answer
}
