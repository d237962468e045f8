//! The requester's side of a queue pair: from the send queue to the peer's ring, and from its
//! answers to completions.

use super::completion::{Completion, CompletionStatus};
use super::connection::Connection;
use super::counters::{Counter, Tally};
use super::datagram::Receivers;
use super::device::{AsyncEvent, PortState};
use super::fault::Verdict;
use super::link::{Link, PIECE_BYTES, Peer, REQUESTS, RESPONSES};
use super::record::{AT_FIRST, FIRST, IMMEDIATE, INVALIDATE, LAST, Record, RecordKind, SOLICITED};
use super::state::{Attributes, QueuePairState};
use super::transport::Transport;
use super::work::{Verb, Work};
use crate::fabric::{Reader, Writer};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The requester's side.
#[derive(Debug)]
pub(super) struct SendSide {
    pub settings: Attributes,
    link: Link,
    life: u64,
    queue: VecDeque<Work>,
    /// How many at the front of the queue have been sent whole.
    sent: usize,
    /// Bytes of the next one that have been sent, and whether its first piece has.
    sent_bytes: u64,
    started: bool,
    next_message: u64,
    reads: u32,
    /// Where requests go, once the peer is there.
    outlet: Option<(Arc<Peer>, Writer<Record>)>,
    /// Where datagrams go.
    receivers: Receivers,
    responses: Reader<Record>,
    refused: Option<(u64, CompletionStatus)>,
    hold_until: Option<Instant>,
    judged: bool,
    unreachable_since: Option<Instant>,
    /// How often the oldest message would have been sent again since then.
    retried: u32,
    /// The message that found no receive request, and until when it may.
    receiver_deadline: Option<(u64, Instant)>,
    drained_told: bool,
    pub tally: Tally,
}

impl SendSide {
    pub fn new(link: Link, life: u64) -> Self {
        Self {
            settings: Attributes::default(),
            responses: Reader::new(Arc::clone(&link.segment), RESPONSES),
            link,
            life,
            queue: VecDeque::new(),
            sent: 0,
            sent_bytes: 0,
            started: false,
            next_message: 0,
            reads: 0,
            outlet: None,
            receivers: Receivers::default(),
            refused: None,
            hold_until: None,
            judged: false,
            unreachable_since: None,
            retried: 0,
            receiver_deadline: None,
            drained_told: false,
            tally: Tally::default(),
        }
    }

    /// Requests that have not completed.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Does the peer owe an answer?
    pub fn awaits(&self) -> bool {
        self.sent > 0 || self.started
    }

    pub fn add(&mut self, work: Work) {
        self.queue.push_back(work);
    }

    /// The next request has set off, whole.
    fn advance(&mut self, read: bool) {
        self.reads += u32::from(read);
        self.sent += 1;
        self.tally.add(Counter::SentMessages, 1);
        (self.sent_bytes, self.started, self.judged) = (0, false, false);
        self.next_message += 1;
    }

    /// Takes all requests out: they will not be carried out.
    pub fn take_all(&mut self) -> impl Iterator<Item = Work> {
        (self.sent, self.sent_bytes, self.started, self.reads) = (0, 0, false, 0);
        std::mem::take(&mut self.queue).into_iter()
    }

    /// The request with this message number, if it has set off and not completed.
    fn work_of(&mut self, message: u64) -> Option<&mut Work> {
        let before = |work: &Work| work.message < message;
        let mut index = self.queue.partition_point(before);
        while self.queue.get(index)?.request.verb.is_local() {
            index += 1;
        }
        let set_off = self.sent + usize::from(self.started);
        self.queue.get_mut(index).filter(|work| index < set_off && work.message == message)
    }
}

/// Result of an attempt to send a piece.
enum Piecewise {
    /// The whole message is on its way.
    Whole,
    /// A piece of it is.
    Part,
    /// There is no room.
    Full,
    /// The request cannot be carried out.
    Failed(CompletionStatus),
}

impl Connection {
    /// Sends as much as there is room for. True if anything went.
    pub(super) fn transmit(&self, side: &mut SendSide, failed: &mut bool) -> bool {
        let mut went = false;
        if self.fail_by_reset(side) {
            *failed = true;
            return true;
        }
        // Relaxed: a hint for the service thread.
        self.held.store(false, Ordering::Relaxed);
        while side.sent < side.queue.len() {
            let state = self.state();
            if state != QueuePairState::ReadyToSend
                && !(state == QueuePairState::SendDrained && side.started)
            {
                break;
            }
            let work = &side.queue[side.sent];
            let (fence, read) = (work.request.fence, work.request.verb.is_read());
            let waits = fence && side.reads > 0;
            let too_many = read && side.reads >= u32::from(side.settings.reads.max(1));
            if work.failure.is_some() || waits || too_many {
                break;
            }
            if work.request.verb.is_local() {
                if !self.carry_out(side) {
                    break;
                }
                continue;
            }
            if !self.may_go(side) {
                break;
            }
            if self.transport == Transport::Datagram {
                let own_key = side.settings.queue_key;
                let SendSide { queue, sent, receivers, .. } = &mut *side;
                let work = &mut queue[*sent];
                match self.send_datagram(receivers, own_key, &work.request) {
                    Ok(true) => {
                        let length = work.length;
                        side.tally.sent(length, self.device.description.mtu);
                        side.advance(false);
                        went = true;
                        continue;
                    }
                    // Nobody knows who waits for room in a ring that all write into.
                    Ok(false) => self.held.store(true, Ordering::Relaxed),
                    Err(status) => work.fail(status),
                }
                break;
            }
            if self.transport == Transport::Unreliable && !self.has_receiver(side) {
                // Lost, and nobody is told.
                side.advance(false);
                went = true;
                continue;
            }
            if !self.has_outlet(side) {
                // The peer may come: look again soon.
                self.held.store(true, Ordering::Relaxed);
                break;
            }
            match self.send_piece(side) {
                Piecewise::Whole => {
                    side.advance(read);
                    went = true;
                }
                Piecewise::Part => went = true,
                Piecewise::Full => break,
                Piecewise::Failed(status) => {
                    let index = side.sent;
                    side.queue[index].fail(status);
                    break;
                }
            }
        }
        if went && let Some((peer, _)) = &side.outlet {
            peer.wake(&self.host.fabric);
        }
        // A request that fails before it sets off may be the oldest, or one that is done already.
        let ends =
            |work: &Work| work.failure.is_some() || (work.request.verb.is_local() && work.answered);
        let unanswered = !self.transport.is_reliable() && side.sent > 0;
        if unanswered || side.queue.front().is_some_and(ends) {
            self.complete(side, failed);
        }
        went
    }

    /// Carries out the next request, in which the peer takes no part. False if it failed. Requests
    /// before it may be under way still: whoever needs their end asks for a fence.
    fn carry_out(&self, side: &mut SendSide) -> bool {
        let (index, message) = (side.sent, side.next_message);
        let work = &mut side.queue[index];
        let (regions, party) = (&self.host.regions, self.party());
        let done = match &work.request.verb {
            Verb::Bind(request) => regions.bind(party, request),
            _ => regions.invalidate(party, work.request.remote_key),
        };
        if let Err(status) = done {
            work.fail(status);
            return false;
        }
        (work.message, work.answered) = (message, true);
        side.sent += 1;
        true
    }

    /// Asks the faults about the next message, once. False if it has to wait, or has failed.
    fn may_go(&self, side: &mut SendSide) -> bool {
        if let Some(until) = side.hold_until {
            if Instant::now() < until {
                self.held.store(true, Ordering::Relaxed);
                return false;
            }
            side.hold_until = None;
        }
        if side.judged {
            return true;
        }
        side.judged = true;
        let verdict = self.device.at_message(self.ordinal, side.next_message);
        side.tally.add(Counter::Faults, u64::from(verdict != Verdict::Send));
        match verdict {
            Verdict::Send => true,
            Verdict::Lose => {
                self.device.begin_loss();
                true
            }
            Verdict::PortDown => {
                self.device.take_port_down();
                true
            }
            Verdict::Flap(time) => {
                self.device.flap(time);
                true
            }
            Verdict::Reset => {
                self.device.reset();
                false
            }
            Verdict::Fail { code } => {
                let index = side.sent;
                side.queue[index].failure = Some((CompletionStatus::Fatal, code));
                self.raise(AsyncEvent::QueuePairFatal);
                false
            }
            Verdict::Hold(time) => {
                side.hold_until = Some(Instant::now() + time);
                self.held.store(true, Ordering::Relaxed);
                false
            }
        }
    }

    /// Is there anybody that a message of an unreliable connection could reach?
    fn has_receiver(&self, side: &mut SendSide) -> bool {
        self.has_outlet(side)
            && side.outlet.as_ref().is_some_and(|(peer, _)| peer.is_there(&self.host.fabric))
    }

    /// Connects to the peer's ring, if the peer is there.
    fn has_outlet(&self, side: &mut SendSide) -> bool {
        if self.device.port_state() == PortState::Down || self.device.loses() {
            return false;
        }
        if side.outlet.is_none()
            && let Some(peer) = self.peer()
            && peer.claim(side.life, side.settings.send_number)
        {
            let writer = Writer::new(Arc::clone(&peer.link.segment), REQUESTS);
            side.outlet = Some((peer, writer));
        }
        side.outlet.as_ref().is_some_and(|(peer, _)| peer.link.takes_requests())
    }

    /// Sends the next piece of the next message.
    fn send_piece(&self, side: &mut SendSide) -> Piecewise {
        let Some((_, writer)) = &mut side.outlet else { return Piecewise::Full };
        let work = &mut side.queue[side.sent];
        let request = &work.request;
        work.message = side.next_message;
        let (kind, payload) = match request.verb {
            Verb::Send | Verb::SendAndInvalidate => (RecordKind::Send, work.length),
            Verb::Write => (RecordKind::Write, work.length),
            Verb::Read => (RecordKind::Read, 0),
            Verb::CompareSwap => (RecordKind::CompareSwap, 0),
            Verb::FetchAdd => (RecordKind::FetchAdd, 0),
            Verb::Bind(_) | Verb::LocalInvalidate => {
                return Piecewise::Failed(CompletionStatus::LocalOperation);
            }
        };
        let piece = (payload - side.sent_bytes).min(PIECE_BYTES);
        let Some(room) = writer.reserve(piece as usize) else { return Piecewise::Full };
        if let Err(status) = self.gather(&request.data, side.sent_bytes, piece, room) {
            return Piecewise::Failed(status);
        }
        let mut record = Record::new(kind, work.message);
        record.length = piece as u32;
        record.address = request.remote_address.wrapping_add(side.sent_bytes);
        record.key = request.remote_key;
        record.total = work.length as u32;
        record.offset = side.sent_bytes as u32;
        record.operands = [request.operand, request.swap];
        record.immediate = request.immediate.unwrap_or(0);
        record.shared_queue = request.shared_queue;
        let whole = side.sent_bytes + piece == payload;
        record.flags = [
            (side.sent_bytes == 0, FIRST),
            (whole, LAST),
            (request.immediate.is_some(), IMMEDIATE),
            (request.solicited, SOLICITED),
            (matches!(request.verb, Verb::SendAndInvalidate), INVALIDATE),
        ]
        .into_iter()
        .filter_map(|(set, flag)| set.then_some(flag))
        .sum();
        writer.commit(&record);
        side.tally.sent(piece, self.device.description.mtu);
        side.sent_bytes += piece;
        side.started = true;
        if whole { Piecewise::Whole } else { Piecewise::Part }
    }

    /// Takes answers in and completes requests, oldest first. True if anything was done.
    pub(super) fn complete(&self, side: &mut SendSide, failed: &mut bool) -> bool {
        let mut worked = self.take_answers(side);
        // Acquire pairs with the responder's release: what it did is visible.
        let acknowledged = side.link.acknowledged().load(Ordering::Acquire);
        self.acknowledged_seen.store(acknowledged, Ordering::Relaxed);
        while let Some(front) = side.queue.front() {
            if let Some((status, code)) = front.failure {
                self.fail_front(side, status, code);
                *failed = true;
                return true;
            }
            let verb = front.request.verb;
            let by_answer = verb.is_read() || verb.is_local();
            // Nobody tells of a message on an unreliable transport: it is done once it has set off.
            let done = if by_answer {
                front.answered
            } else {
                !self.transport.is_reliable() || acknowledged > front.message
            };
            if side.sent == 0 || !done {
                break;
            }
            let signaled = self.signal_all || front.request.signaled;
            let mut completion = Completion::new(
                front.request.id,
                front.request.verb.operation(),
                CompletionStatus::Success,
                self.number,
            );
            completion.length = front.length as u32;
            side.queue.pop_front();
            side.sent -= 1;
            worked = true;
            if signaled {
                self.report(completion, false);
            }
        }
        let front = side.queue.front().filter(|_| side.sent > 0 || side.started);
        if let (Some((message, status)), Some(front)) = (side.refused, front)
            && message == front.message
            && !front.request.verb.is_local()
        {
            self.fail_front(side, status, status.vendor_code());
            *failed = true;
            return true;
        }
        self.report_drained(side);
        worked
    }

    fn report_drained(&self, side: &mut SendSide) {
        let draining = self.state() == QueuePairState::SendDrained;
        let idle = side.sent == 0 && !side.started;
        if draining && idle && side.settings.drained_event && !side.drained_told {
            self.raise(AsyncEvent::SendDrained);
        }
        side.drained_told = draining && idle;
    }

    /// Reads the response ring.
    fn take_answers(&self, side: &mut SendSide) -> bool {
        let (mut worked, mut wake) = (false, false);
        while let Some((record, payload)) = side.responses.peek() {
            worked = true;
            match record.kind {
                RecordKind::ReadData | RecordKind::AtomicResult => {
                    self.take_data(side, &record, payload)
                }
                RecordKind::Nak => {
                    side.refused =
                        Some((record.message, CompletionStatus::from_number(record.operands[0])));
                }
                RecordKind::ReceiverNotReady => self.receiver_not_ready(side, &record),
                // Nothing that a responder sends.
                _ => {}
            }
            wake |= side.responses.consume(&record);
        }
        if wake && let Some((peer, _)) = &side.outlet {
            peer.wake(&self.host.fabric);
        }
        worked
    }

    fn take_data(&self, side: &mut SendSide, record: &Record, payload: u64) {
        let (data, length) = match record.kind {
            RecordKind::AtomicResult => (record.operands.as_ptr() as u64, 8),
            _ => (payload, u64::from(record.length)),
        };
        side.tally.received(length, self.device.description.mtu);
        let last = record.flags & LAST != 0;
        let Some(work) = side.work_of(record.message) else { return };
        let offset = u64::from(record.offset);
        let fits = work.request.verb.is_read() && offset + length <= work.length;
        let landed = if fits {
            self.scatter(&work.request.data, offset, length, data)
        } else {
            Err(CompletionStatus::Fatal)
        };
        if let Err(status) = landed {
            work.fail(status);
        }
        if last && fits {
            work.answered = true;
            side.reads = side.reads.saturating_sub(1);
        }
    }

    fn receiver_not_ready(&self, side: &mut SendSide, record: &Record) {
        side.tally.add(Counter::ReceiverNotReady, 1);
        // Seven times is for ever, says the specification.
        let retries = side.settings.receiver_retries;
        if retries < 7 {
            let waits = record.flags & AT_FIRST == 0;
            let time = Duration::from_micros(record.operands[0]) * u32::from(retries);
            if waits {
                side.receiver_deadline = Some((record.message, Instant::now() + time));
            }
            if retries == 0 {
                side.refused = Some((record.message, CompletionStatus::ReceiverNotReady));
            }
        }
    }

    /// Ends the oldest request with an error, and the queue pair with it.
    fn fail_front(&self, side: &mut SendSide, status: CompletionStatus, code: u32) {
        let Some(work) = side.queue.pop_front() else { return };
        let operation = work.request.verb.operation();
        let mut completion = Completion::new(work.request.id, operation, status, self.number);
        completion.vendor_code = code;
        self.report(completion, true);
        let whole = self.transport.is_reliable() || status == CompletionStatus::Fatal;
        let state = if whole { QueuePairState::Error } else { QueuePairState::SendError };
        self.enter_error(side, state);
    }

    /// Enters an error state from inside the requester's side.
    fn enter_error(&self, side: &mut SendSide, state: QueuePairState) {
        self.set_state(state);
        self.flush_send(side);
    }

    /// The adapter was reset: what waits is flushed, as drivers of real adapters do then. True if
    /// the queue pair has failed by it now.
    fn fail_by_reset(&self, side: &mut SendSide) -> bool {
        let fails = self.device.is_reset() && self.state() == QueuePairState::ReadyToSend;
        if fails {
            self.enter_error(side, QueuePairState::Error);
        }
        fails
    }

    /// Reports every request as not carried out.
    pub(super) fn flush_send(&self, side: &mut SendSide) {
        for work in side.take_all() {
            let operation = work.request.verb.operation();
            let (id, status) = (work.request.id, CompletionStatus::Flushed);
            self.report(Completion::new(id, operation, status, self.number), true);
        }
    }

    /// Sees whether a peer that should answer still can. True if the queue pair has failed.
    pub(super) fn see_to_times(&self, side: &mut SendSide, now: Instant) -> bool {
        let Some(front) = side.queue.front() else {
            (side.unreachable_since, side.receiver_deadline, side.retried) = (None, None, 0);
            return false;
        };
        if !self.transport.is_reliable() {
            return false;
        }
        let first = front.message;
        if let Some((message, until)) = side.receiver_deadline
            && now >= until
        {
            side.receiver_deadline = None;
            let acknowledged = side.link.acknowledged().load(Ordering::Acquire);
            if acknowledged <= message && first == message {
                let status = CompletionStatus::ReceiverNotReady;
                self.fail_front(side, status, status.vendor_code());
                return true;
            }
        }
        let there = self.device.port_state() == PortState::Active
            && !self.device.loses()
            && side.outlet.as_ref().is_some_and(|(peer, _)| peer.is_there(&self.host.fabric));
        if there
            || !matches!(self.state(), QueuePairState::ReadyToSend | QueuePairState::SendDrained)
        {
            (side.unreachable_since, side.retried) = (None, 0);
            return false;
        }
        let since = *side.unreachable_since.get_or_insert(now);
        // The specification's unit is 4.096 microseconds, times two to the code; 0 is for ever.
        let Attributes { timeout, retries, .. } = side.settings;
        let each = Duration::from_nanos(4096u64 << timeout);
        if timeout == 0 {
            return false;
        }
        let waited = (now - since).as_nanos() / each.as_nanos();
        let retried = waited.min(u128::from(retries)) as u32;
        side.tally.add(Counter::Retries, u64::from(retried.saturating_sub(side.retried)));
        side.retried = retried.max(side.retried);
        if waited <= u128::from(retries) {
            return false;
        }
        let status = CompletionStatus::RetryExceeded;
        self.fail_front(side, status, status.vendor_code());
        true
    }
}
