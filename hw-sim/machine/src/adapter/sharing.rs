//! A receiving end of an extended reliable connection (XRC) that several processes serve.
//!
//! A message may be for a shared receive queue of another process than the one that has made the
//! queue pair: both have opened the XRC domain by the same file. Only the process that has the
//! queue may touch its memory, so processes take turns. The owner begins. Whoever finds a message
//! for another process's queue gives that one the turn, at the beginning of the message and after
//! all earlier ones; it then plays the receiving end as a *deputy*, on the same file.
//!
//! What the next one has to know is in the file: how many messages were carried out, whether one of
//! them is a read under way, and the attributes. If the process whose turn it is dies, the owner
//! takes the turn back and refuses what that one has begun; if the owner dies, another process that
//! has opened the queue pair becomes the owner ([`super::holding`]), and without one it is gone.

use super::completion::{Completion, CompletionStatus, Operation};
use super::connection::Connection;
use super::device::{AsyncEvent, Element, Events};
use super::link::{Link, REQUESTS};
use super::receive::ReceiveQueue;
use super::record::{FIRST, Record};
use super::responder::{ReceiveSide, Responded, Step};
use super::window::Party;
use super::xrc::DomainName;
use crate::fabric::{Fabric, ProcessId, holders};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

/// How often the owner looks whether the process whose turn it is lives, and the others whether the
/// owner does.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Where the file has what processes tell each other.
const TURN: usize = 320;
const EXECUTED: usize = 328;
const READ: usize = 336;
const FAILURE: usize = 344;
const DOMAIN: usize = 360;

/// Hears of no event: those of a queue pair are its owner's.
pub(super) struct Nobody;

impl Events for Nobody {
    fn raise(&self, _: AsyncEvent, _: Element) {}
    fn completed(&self, _: u64) {}
}

fn pack((pid, nonce): ProcessId) -> u64 {
    u64::from(pid) << 32 | u64::from(nonce)
}

impl Link {
    /// Says which domain's queues messages are for, and that processes take turns.
    pub fn share(&self, fabric: &Fabric, domain: &DomainName) {
        domain.store(&self.segment, DOMAIN);
        holders::begin(&self.segment);
        // The first finds room.
        holders::enter(&self.segment, fabric.own_id, |holder| fabric.is_alive(holder));
        self.give_turn(fabric.own_id);
        self.begin_turns();
    }

    /// The domain of whose queues messages are.
    pub fn domain(&self) -> Option<DomainName> {
        DomainName::load(&self.segment, DOMAIN)
    }

    fn turn_word(&self) -> &AtomicU64 {
        self.segment.word64(TURN)
    }

    /// Whose turn it is, whoever the owner is.
    pub fn turn(&self) -> ProcessId {
        // Acquire pairs with `give_turn`: what the one before has done and said is seen.
        let word = self.turn_word().load(Ordering::Acquire);
        ((word >> 32) as u32, word as u32)
    }

    /// Gives the turn away, which this process has.
    fn give_turn(&self, to: ProcessId) {
        // Pairs with the fence of `Peer::wake`: whoever wakes us for a new message has left it
        // where the next one looks.
        self.turn_word().store(pack(to), Ordering::SeqCst);
    }

    /// Takes the turn of a process that has died.
    fn take_turn(&self, dead: ProcessId, own: ProcessId) {
        let (order, word) = (Ordering::SeqCst, self.turn_word());
        let _ = word.compare_exchange(pack(dead), pack(own), order, order);
    }

    fn executed(&self) -> &AtomicU64 {
        self.segment.word64(EXECUTED)
    }

    /// One more than the number of the message that is a read under way; 0: none.
    fn read_under_way(&self) -> &AtomicU64 {
        self.segment.word64(READ)
    }

    /// One more than the number of the event that a deputy has ended the queue pair with; 0: none.
    fn failure(&self) -> &AtomicU32 {
        self.segment.word32(FAILURE)
    }
}

impl Connection {
    /// Does it play the end of a queue pair that another process sees to?
    pub(super) fn is_deputy(&self) -> bool {
        self.turns.is_some() && !self.owns(&self.link.read().unwrap())
    }

    fn is_turn(&self, link: &Link) -> bool {
        self.turns.is_none() || link.turn() == self.host.fabric.own_id
    }

    /// Is there something to do about turns, or, where it is this process's turn, a request?
    pub(super) fn has_requests(&self, link: &Link) -> bool {
        if self.turns.is_some() && !self.is_turn(link) {
            return false;
        }
        let waits = !REQUESTS.is_empty(&link.segment) && !self.stalled.load(Ordering::SeqCst);
        let failed = self.turns.is_some() && link.failure().load(Ordering::Relaxed) != 0;
        waits || failed && self.owns(link)
    }

    /// May this process carry out requests now? Takes in what the one before has left.
    pub(super) fn takes_turn(&self, side: &mut ReceiveSide, outcome: &mut Responded) -> bool {
        let link = self.link.read().unwrap().clone();
        if !self.follow(&link) {
            self.flush_begun(side);
            return false;
        }
        if !self.is_turn(&link) {
            side.has_turn = false;
            self.watch(side, &link);
            if !self.is_turn(&link) {
                return false;
            }
        }
        if !side.has_turn {
            self.take_in(side, &link, outcome);
        }
        side.settings = link.shown_attributes();
        true
    }

    /// A message that has come in part will not come whole.
    pub(super) fn flush_begun(&self, side: &mut ReceiveSide) {
        if let Some(request) = side.take_current() {
            let status = CompletionStatus::Flushed;
            let flushed = Completion::new(request.id, Operation::Receive, status, self.number);
            self.report_received(side, flushed, true);
        }
    }

    /// The owner sees to it that the process whose turn it is can take it, and lives; others see
    /// to it that the owner does.
    fn watch(&self, side: &mut ReceiveSide, link: &Link) {
        let now = Instant::now();
        if side.looked.is_some_and(|looked| now - looked < LOOK_EVERY) {
            return;
        }
        side.looked = Some(now);
        self.inherit(link);
        if !self.owns(link) {
            return;
        }
        let turn = link.turn();
        let process = self.host.fabric.process(turn).filter(|process| process.is_alive());
        match process {
            Some(process) => {
                if !REQUESTS.is_empty(&link.segment) {
                    // It may have had no room for the word.
                    process.post(self.device.endpoint.pack(self.number));
                    process.adapters().wake();
                }
            }
            None => link.take_turn(turn, self.host.fabric.own_id),
        }
    }

    fn take_in(&self, side: &mut ReceiveSide, link: &Link, outcome: &mut Responded) {
        // Pairs with the fence of `Peer::wake`.
        fence(Ordering::SeqCst);
        // Relaxed: read after the turn, whose acquire orders them.
        let executed = link.executed().load(Ordering::Relaxed);
        side.resume(link, executed);
        if self.has_answer_ring(side) {
            self.acknowledge(side, outcome);
        }
        // A read whose process has died will not be answered.
        if link.read_under_way().load(Ordering::Relaxed) == executed + 1 {
            side.refuse(executed, CompletionStatus::RemoteInvalidRequest);
        }
        let failure = link.failure().swap(0, Ordering::Relaxed);
        outcome.failure = failure.checked_sub(1).map(AsyncEvent::of_queue_pair);
    }

    /// Notes for the next one what was carried out, before the request is taken out of the ring.
    pub(super) fn note(&self, side: &ReceiveSide) {
        if self.turns.is_none() {
            return;
        }
        let link = self.link.read().unwrap();
        // Release: whoever sees that a read has ended sees that it was carried out.
        link.executed().store(side.executed, Ordering::Release);
        let reads = side.reads().map_or(0, |message| message + 1);
        link.read_under_way().store(reads, Ordering::Release);
    }

    /// Gives another process the turn.
    fn hand_over(&self, side: &mut ReceiveSide, to: ProcessId, outcome: &mut Responded) -> Step {
        let Some(process) = self.host.fabric.process(to) else { return Step::Again };
        self.acknowledge(side, outcome);
        self.note(side);
        side.has_turn = false;
        let link = self.link.read().unwrap();
        let to_owner = link.owner() == to;
        link.give_turn(to);
        if !to_owner {
            // Where there is no room, the owner tries again.
            process.post(self.device.endpoint.pack(self.number));
        }
        process.adapters().wake();
        Step::Idle
    }

    /// A deputy that has to end the queue pair leaves that to the owner.
    pub(super) fn report_to_owner(&self, side: &mut ReceiveSide, outcome: &mut Responded) {
        let link = self.link.read().unwrap().clone();
        if let (false, Some(event)) = (self.owns(&link), outcome.failure) {
            outcome.failure = None;
            link.failure().store(1 + event as u32, Ordering::Relaxed);
            if self.is_turn(&link) {
                self.hand_over(side, link.owner(), outcome);
            }
        }
    }

    /// A process ends its part: what it has begun is refused by the owner, if that one still lives.
    pub(super) fn give_back_turn(&self, side: &mut ReceiveSide, link: &Link) {
        side.has_turn = false;
        let (own, owner) = (self.host.fabric.own_id, link.owner());
        if link.turn() == own && owner != own {
            link.give_turn(owner);
            if let Some(process) = self.host.fabric.process(owner) {
                process.adapters().wake();
            }
        }
    }

    /// Finds the shared receive queue that a message names. A step where there is none, or where it
    /// is another process's.
    pub(super) fn find_named(
        &self,
        side: &mut ReceiveSide,
        record: &Record,
        outcome: &mut Responded,
    ) -> Option<Step> {
        if record.flags & FIRST != 0 {
            // Data that has not landed yet may be of another queue's domain.
            self.place(side);
            let number = record.shared_queue;
            side.named = self.xrc.as_ref().and_then(|xrc| xrc.queue(number));
            if let (None, Some(xrc), Some(_)) = (&side.named, &self.xrc, self.turns)
                && let Some(process) = xrc.queue_elsewhere(&self.host.fabric, number)
            {
                return Some(self.hand_over(side, process, outcome));
            }
        }
        side.named
            .is_none()
            .then(|| side.refuse(record.message, CompletionStatus::RemoteInvalidRequest))
    }

    /// Where the message finds its receive request.
    pub(super) fn queue<'a>(&'a self, side: &'a ReceiveSide) -> &'a ReceiveQueue {
        side.named.as_ref().unwrap_or(&self.receive_queue)
    }

    /// On whose behalf the message touches memory.
    pub(super) fn party_of(&self, side: &ReceiveSide) -> Party {
        let xrc = side.named.as_ref().and_then(|queue| queue.xrc.as_ref());
        xrc.map_or(self.party(), |xrc| Party { domain: xrc.domain, ..self.party() })
    }

    /// Reports the end of a receive request where its queue does.
    pub(super) fn report_received(
        &self,
        side: &ReceiveSide,
        completion: Completion,
        solicited: bool,
    ) {
        match side.named.as_ref().and_then(|queue| queue.xrc.as_ref()) {
            Some(xrc) => self.report_in(&xrc.completions, completion, solicited),
            None => self.report(completion, solicited),
        }
    }
}
