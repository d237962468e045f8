//! Lanes and requests. Both are a cache line each: large worlds wait for memory more than for
//! anything else.

use super::{Engine, SIGNALS, Signal, World};
use crate::machine::Path;
use crate::program::Lane;
use crate::time::Time;

/// No request.
const NONE: u32 = u32::MAX;
/// No block waits here: no count reaches this.
const NOBODY: u32 = u32::MAX;

/// A lane, from both ends.
#[repr(align(64))]
pub(super) struct LaneState {
    raised: [u32; SIGNALS.len()],
    /// What the block at the signal's end waits for.
    expected: [u32; SIGNALS.len()],
    pub from: u32,
    pub to: u32,
    /// The blocks at both ends.
    pub sender: u32,
    pub receiver: u32,
    /// Requests that wait for their turn, as a list: transfers of one lane go in order (R11).
    first: u32,
    last: u32,
    /// Time of its copies.
    pub busy: Time,
    /// Requests that a device engine holds for this lane.
    pub depth: u32,
    pub is_near: bool,
    /// The sender's blocks write into the receiver's slots.
    pub stores: bool,
    /// Something of this lane is with a copy engine, or on the wire.
    pub is_active: bool,
    /// It carries LL messages: no signal is raised (R13).
    pub is_ll: bool,
}

const _: () = assert!(size_of::<LaneState>() == 64);

impl LaneState {
    /// A lane between two blocks.
    pub(super) fn new(lane: &Lane, sender: u32, receiver: u32, is_near: bool) -> Self {
        let &Lane { from, to, .. } = lane;
        Self {
            raised: [0; SIGNALS.len()],
            expected: [NOBODY; SIGNALS.len()],
            from,
            to,
            sender,
            receiver,
            first: NONE,
            last: NONE,
            busy: Time::ZERO,
            depth: 0,
            is_near,
            stores: false,
            is_active: false,
            is_ll: false,
        }
    }

    /// Has the signal come as far? If not, the block at its end is notified when it has.
    pub(super) fn wait(&mut self, signal: Signal, expected: i64) -> bool {
        let is_there = i64::from(self.raised[signal as usize]) >= expected;
        if !is_there {
            // More than that never comes: see `raise`.
            let expected = u32::try_from(expected).unwrap_or(NOBODY).min(NOBODY - 1);
            self.expected[signal as usize] = expected;
        }
        is_there
    }

    /// Raises a signal: its new value, and the block that waited for no more. `None`: there are
    /// more signals than the model counts.
    pub(super) fn raise(&mut self, signal: Signal, count: u32) -> Option<(u32, Option<u32>)> {
        let raised = &mut self.raised[signal as usize];
        *raised = raised.checked_add(count).filter(|&value| value < NOBODY - 1)?;
        let expected = &mut self.expected[signal as usize];
        if *raised < *expected {
            return Some((*raised, None));
        }
        *expected = NOBODY;
        Some((*raised, Some(self.block_at(signal))))
    }

    /// The block that a signal is for.
    fn block_at(&self, signal: Signal) -> u32 {
        match signal {
            Signal::Arrival => self.receiver,
            Signal::Credit | Signal::Completion => self.sender,
        }
    }

    /// Blocks that wait here, for which signal, for what, and what has come.
    pub(super) fn waits(&self) -> impl Iterator<Item = (u32, &'static str, u32, u32)> {
        SIGNALS.into_iter().filter_map(|(name, signal)| {
            let (expected, seen) = (self.expected[signal as usize], self.raised[signal as usize]);
            (expected != NOBODY).then(|| (self.block_at(signal), name, expected, seen))
        })
    }

    pub(super) fn has_next(&self) -> bool {
        self.first != NONE
    }
}

/// A descriptor, or several merged into one transfer.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Request {
    pub bytes: u64,
    pub source: u64,
    pub destination: u64,
    /// For the trace.
    pub since: Time,
    pub lane: u32,
    /// Whose engine.
    pub rank: u32,
    pub raises: [u32; SIGNALS.len()],
    /// Bytes that the fetch unit has not taken yet.
    pub left: u32,
    /// Behind this one on its lane.
    pub next: u32,
    /// Lengths that stand in slots are never merged.
    pub is_slot: bool,
}

const _: () = assert!(size_of::<Request>() == 64);

impl Request {
    /// Without data.
    pub(super) fn signal(lane: u32, raises: [u32; SIGNALS.len()]) -> Self {
        Self {
            bytes: 0,
            source: 0,
            destination: 0,
            since: Time::ZERO,
            lane,
            rank: 0,
            raises,
            left: 0,
            next: NONE,
            is_slot: false,
        }
    }

    /// Has the fetch unit taken some of it?
    pub(super) fn has_begun(&self) -> bool {
        u64::from(self.left) < self.bytes
    }

    /// Credits are the receiver's, and travel against their lane.
    pub(super) fn is_credit(&self) -> bool {
        self.raises[Signal::Credit as usize] > 0
    }
}

impl World<'_> {
    pub(super) fn new_request(&mut self, request: Request) -> u32 {
        if let Some(id) = self.free_requests.pop() {
            self.requests[id as usize] = request;
            return id;
        }
        self.requests.push(request);
        self.requests.len() as u32 - 1
    }

    /// Puts a request behind those of its lane.
    pub(super) fn enqueue(&mut self, id: u32) {
        let request = &mut self.requests[id as usize];
        request.next = NONE;
        let lane = &mut self.lanes[request.lane as usize];
        if lane.first == NONE {
            lane.first = id;
        } else {
            self.requests[lane.last as usize].next = id;
        }
        lane.last = id;
    }

    /// The first request of a lane.
    pub(super) fn front(&self, lane: u32) -> Option<u32> {
        let first = self.lanes[lane as usize].first;
        (first != NONE).then_some(first)
    }

    /// Takes the first request of a lane.
    pub(super) fn dequeue(&mut self, lane: u32) -> Option<u32> {
        let id = self.front(lane)?;
        self.lanes[lane as usize].first = self.requests[id as usize].next;
        Some(id)
    }

    /// Time for the first bit to cross a lane.
    pub(super) fn latency(&self, lane: u32) -> Time {
        let LaneState { from, to, .. } = self.lanes[lane as usize];
        let is_pci = self.setup.engine == Engine::Device;
        self.setup.machine.latency(from, to, is_pci).expect("looked up before the run")
    }

    /// The links of a lane.
    pub(super) fn path(&self, lane: u32) -> Path {
        let lane = &self.lanes[lane as usize];
        self.setup
            .path_into(lane.from, lane.to, self.code.arrival(self.setup.machine.node_of(lane.to)))
            .expect("looked up before the run")
    }
}
