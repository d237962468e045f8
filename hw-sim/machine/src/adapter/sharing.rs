//! A receiving end of an extended reliable connection (XRC) that several processes serve.
//!
//! A message may be for a shared receive queue of another process than the one that has made the
//! queue pair: both have opened the XRC domain by the same file. Only the process that has the
//! queue may touch its memory, so processes take turns. The owner begins. Whoever finds a message
//! for another process's queue gives that one the turn, at the beginning of the message and after
//! all earlier ones; it then plays the receiving end as a *deputy*, on the same file.
//!
//! What the next one has to know is in the file: how many messages were carried out, whether one of
//! them is a read under way, and the owner's settings. If the process whose turn it is dies, the
//! owner takes the turn back and refuses what that one has begun; if the owner dies, the queue pair
//! is gone, as it is with real adapters if nobody else has opened it.

use super::completion::{Completion, CompletionStatus, Operation};
use super::connection::Connection;
use super::device::{AsyncEvent, Element, Events};
use super::link::{Link, REQUESTS};
use super::receive::ReceiveQueue;
use super::record::{FIRST, Record};
use super::responder::{ReceiveSide, Responded, Step};
use super::state::Attributes;
use super::turns::Turns;
use super::window::Party;
use super::xrc::DomainName;
use crate::fabric::ProcessId;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

/// How often the owner looks whether the process whose turn it is lives, and a deputy whether the
/// owner does.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Where the file has what processes tell each other.
const TURN: usize = 320;
const EXECUTED: usize = 328;
const READ: usize = 336;
const FAILURE: usize = 344;
const ACCESS: usize = 348;
const RECEIVER_TIMER: usize = 352;
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
    pub fn share(&self, domain: &DomainName) {
        domain.store(&self.segment, DOMAIN);
        self.begin_turns();
    }

    /// The domain of whose queues messages are.
    pub fn domain(&self) -> Option<DomainName> {
        DomainName::load(&self.segment, DOMAIN)
    }

    fn turn_word(&self) -> &AtomicU64 {
        self.segment.word64(TURN)
    }

    /// Whose turn it is; None: the owner's.
    pub fn turn(&self) -> Option<ProcessId> {
        // Acquire pairs with `give_turn`: what the one before has done and said is seen.
        let word = self.turn_word().load(Ordering::Acquire);
        (word != 0).then_some(((word >> 32) as u32, word as u32))
    }

    /// Gives the turn away.
    fn give_turn(&self, to: Option<ProcessId>) {
        // Pairs with the fence of `Peer::wake`: whoever wakes us for a new message has left it
        // where the next one looks.
        self.turn_word().store(to.map_or(0, pack), Ordering::SeqCst);
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

    /// Shows deputies what they need of the owner's settings.
    pub fn show_settings(&self, settings: &Attributes) {
        let timer = settings.receiver_timer.into();
        // Relaxed: the state that follows publishes them.
        self.segment.word32(ACCESS).store(settings.access, Ordering::Relaxed);
        self.segment.word32(RECEIVER_TIMER).store(timer, Ordering::Relaxed);
    }

    fn settings(&self) -> Attributes {
        let word = |at| self.segment.word32(at).load(Ordering::Relaxed);
        let receiver_timer = word(RECEIVER_TIMER) as u8;
        Attributes { access: word(ACCESS), receiver_timer, ..Attributes::default() }
    }
}

impl Connection {
    /// Does it play the end of a queue pair that another process has made?
    pub(super) fn is_deputy(&self) -> bool {
        matches!(self.turns, Some(Turns::Deputy { .. }))
    }

    fn is_turn(&self, link: &Link) -> bool {
        match (self.turns, link.turn()) {
            (None, _) => true,
            (Some(Turns::Owner), turn) => turn.is_none(),
            (Some(Turns::Deputy { .. }), turn) => turn == Some(self.host.fabric.own_id),
        }
    }

    /// Is there something to do about turns, or, where it is this process's turn, a request?
    pub(super) fn has_requests(&self, link: &Link) -> bool {
        if self.turns.is_some() && !self.is_turn(link) {
            return false;
        }
        let waits = !REQUESTS.is_empty(&link.segment) && !self.stalled.load(Ordering::SeqCst);
        let failed =
            self.turns == Some(Turns::Owner) && link.failure().load(Ordering::Relaxed) != 0;
        waits || failed
    }

    /// May this process carry out requests now? Takes in what the one before has left.
    pub(super) fn takes_turn(&self, side: &mut ReceiveSide, outcome: &mut Responded) -> bool {
        let link = self.link.read().unwrap().clone();
        if self.is_deputy() && !self.follow(&link) {
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
        true
    }

    /// A message that has come in part will not come whole.
    fn flush_begun(&self, side: &mut ReceiveSide) {
        if let Some(request) = side.take_current() {
            let status = CompletionStatus::Flushed;
            let flushed = Completion::new(request.id, Operation::Receive, status, self.number);
            self.report_received(side, flushed, true);
        }
    }

    /// The owner sees to it that the process whose turn it is can take it, and lives.
    fn watch(&self, side: &mut ReceiveSide, link: &Link) {
        let Some(turn) = link.turn().filter(|_| self.turns == Some(Turns::Owner)) else { return };
        let now = Instant::now();
        if side.looked.is_some_and(|looked| now - looked < LOOK_EVERY) {
            return;
        }
        side.looked = Some(now);
        let process = self.host.fabric.process(turn).filter(|process| process.is_alive());
        match process {
            Some(process) => {
                if !REQUESTS.is_empty(&link.segment) {
                    // It may have had no room for the word.
                    process.post(self.device.endpoint.pack(self.number));
                    process.adapters().wake();
                }
            }
            None => link.give_turn(None),
        }
    }

    fn take_in(&self, side: &mut ReceiveSide, link: &Link, outcome: &mut Responded) {
        // Pairs with the fence of `Peer::wake`.
        fence(Ordering::SeqCst);
        // Relaxed: read after the turn, whose acquire orders them.
        let executed = link.executed().load(Ordering::Relaxed);
        side.resume(link, executed);
        if self.is_deputy() {
            side.settings = link.settings();
        }
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
        let to_owner = self.turns == Some(Turns::Deputy { owner: to });
        self.link.read().unwrap().give_turn(Some(to).filter(|_| !to_owner));
        if !to_owner {
            // Where there is no room, the owner tries again.
            process.post(self.device.endpoint.pack(self.number));
        }
        process.adapters().wake();
        Step::Idle
    }

    /// A deputy that has to end the queue pair leaves that to the owner.
    pub(super) fn report_to_owner(&self, side: &mut ReceiveSide, outcome: &mut Responded) {
        if let (Some(Turns::Deputy { owner }), Some(event)) = (self.turns, outcome.failure) {
            outcome.failure = None;
            let link = self.link.read().unwrap().clone();
            link.failure().store(1 + event as u32, Ordering::Relaxed);
            if self.is_turn(&link) {
                self.hand_over(side, owner, outcome);
            }
        }
    }

    /// A deputy ends: what it has begun is refused by the owner, if that one still lives.
    pub(super) fn retire(&self, side: &mut ReceiveSide) {
        let link = self.link.read().unwrap().clone();
        self.flush_begun(side);
        if let (Some(Turns::Deputy { owner }), true) = (self.turns, self.is_turn(&link)) {
            side.has_turn = false;
            link.give_turn(None);
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
