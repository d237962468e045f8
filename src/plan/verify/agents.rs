//! Who acts: blocks and lanes' engines, and the signals by which they know of each other.

use super::super::display::Named;
use super::super::{BlockProgram, Lane, LaneKind, Op, Segment, Side};
use super::clock::{Clock, Epoch};
use super::error::Site;
use super::low_latency::Messages;
use super::scope::Scope;
use super::world::Spot;
use std::collections::VecDeque;
use std::rc::Rc;

/// A signal: how often it was raised, and what was known each time. Only the moments that a wait
/// may still ask for are kept.
#[derive(Default)]
pub(super) struct Signal {
    pub(super) raised: i64,
    kept: VecDeque<Rc<Clock>>,
}

impl Signal {
    pub(super) fn raise(&mut self, known: &Clock) {
        self.raised += 1;
        self.kept.push_back(Rc::new(known.clone()));
    }

    /// What was known when the signal became `value`. Of later moments, which the waiter might see
    /// by luck, nothing is taken: so the order found holds in every run.
    pub(super) fn known_at(&mut self, value: i64) -> Option<Rc<Clock>> {
        let first_kept = self.raised - self.kept.len() as i64 + 1;
        for _ in first_kept..value {
            self.kept.pop_front();
        }
        if value < first_kept { None } else { self.kept.pop_front() }
    }
}

/// A lane with its engine.
///
/// The engine is two agents, which handle one put after another (R11): one reads sources, the other
/// writes destinations. A completion tells of the first alone: the source may be reused then, but
/// the data may still be on its way.
pub(super) struct LaneState {
    pub(super) id: Lane,
    /// The reading agent; the writing one has the next number.
    pub(super) agent: u32,
    pub(super) read_clock: Clock,
    pub(super) write_clock: Clock,
    pub(super) puts: i64,
    pub(super) messages: Messages,
    pub(super) arrivals: Signal,
    pub(super) credits: Signal,
    pub(super) completions: Signal,
    /// The grants that were given, in order.
    pub(super) grants: Vec<Granted>,
}

/// What a receiver has granted.
#[derive(Clone, Copy)]
pub(super) struct Granted {
    /// The message whose credit came early.
    pub(super) message: i64,
    /// Where the messages go from this one on; `None`: into their slots.
    pub(super) place: Option<Spot>,
}

impl LaneState {
    pub(super) fn new(id: Lane, (agent, scope): &(u32, Scope)) -> Self {
        Self {
            id,
            agent: *agent,
            read_clock: Clock::new(scope),
            write_clock: Clock::new(scope),
            puts: 0,
            messages: Messages::default(),
            arrivals: Signal::default(),
            credits: Signal::default(),
            completions: Signal::default(),
            grants: Vec::new(),
        }
    }

    /// How many messages' slots are free once so many credits have come: the credit that is a grant
    /// frees none, and the one after it two.
    pub(super) fn freed(&self, credits: i64) -> i64 {
        let grant = self.grants.binary_search_by_key(&credits, |grant| grant.message + 1);
        credits - i64::from(grant.is_ok())
    }

    /// Is the credit for the second message after a grant still to come?
    pub(super) fn owes_credit(&self) -> bool {
        self.freed(self.credits.raised) != self.credits.raised
    }

    /// Takes a put that a block rings knowing `ringer`: the moments of its read and its write.
    pub(super) fn ring(&mut self, ringer: &Clock) -> (Epoch, Epoch) {
        self.read_clock.join(ringer);
        let read = self.read_clock.tick(self.agent);
        self.write_clock.join(&self.read_clock);
        (read, self.write_clock.tick(self.agent + 1))
    }

    /// True if messages use slots that credits free.
    pub(super) fn slotted(&self) -> bool {
        matches!(self.id.kind, LaneKind::Slots | LaneKind::Stores | LaneKind::Rail)
    }

    /// True if blocks write the receiver's slots themselves.
    pub(super) fn stores(&self) -> bool {
        self.id.kind == LaneKind::Stores
    }

    /// True if messages announce themselves.
    pub(super) fn is_low_latency(&self) -> bool {
        self.id.kind == LaneKind::LowLatency
    }
}

/// A block's port.
#[derive(Clone, Copy)]
pub(super) struct Port {
    pub(super) lane: usize,
    pub(super) side: Side,
    pub(super) position: i64,
    pub(super) completion_position: i64,
    /// The highest signal value that the block has waited for.
    pub(super) observed: i64,
}

/// A block and how far it has come.
pub(super) struct Block<'p> {
    pub(super) rank: u32,
    pub(super) number: u32,
    pub(super) program: &'p BlockProgram,
    pub(super) agent: u32,
    pub(super) clock: Clock,
    pub(super) ports: Vec<Port>,
    pub(super) segment: usize,
    pub(super) round: u32,
    pub(super) op: usize,
}

impl<'p> Block<'p> {
    /// The next op, if there is one.
    pub(super) fn current(&mut self) -> Option<(&'p Segment, &'p Op)> {
        loop {
            let segment = self.program.segments.get(self.segment)?;
            if self.round < segment.rounds
                && let Some(op) = segment.ops.get(self.op)
            {
                return Some((segment, op));
            }
            let again = self.round + 1 < segment.rounds && !segment.ops.is_empty();
            (self.segment, self.round) =
                if again { (self.segment, self.round + 1) } else { (self.segment + 1, 0) };
            self.op = 0;
        }
    }

    pub(super) fn site(&self) -> Site {
        let op = self.program.segments.get(self.segment).and_then(|it| it.ops.get(self.op));
        let ports = &self.program.ports;
        Site::Op {
            rank: self.rank,
            block: self.number,
            segment: self.segment as u32,
            round: self.round,
            op: self.op as u32,
            text: op.map_or("end".to_owned(), |op| Named { op, ports }.to_string()),
        }
    }
}

/// What came of an attempt to take a step.
pub(super) enum Step {
    Taken,
    Waiting { expected: i64, seen: i64 },
    Ended,
}
