//! What the warps of a block share: its memory and its barriers.

/// Barriers of a block.
pub const BARRIERS: usize = 16;
/// Past generations of a barrier whose results are kept: a warp may be late to look.
const HISTORY: usize = 8;
/// The barrier of the cluster, behind those that have numbers.
pub const CLUSTER_BARRIER: u8 = BARRIERS as u8;

/// What a finished barrier found out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BarrierResult {
    /// Threads whose predicate held.
    pub held: u32,
    /// Threads that gave a predicate.
    pub asked: u32,
}

/// One barrier.
#[derive(Clone, Debug, Default)]
struct BarrierState {
    generation: u64,
    /// Threads that have arrived.
    threads: u32,
    /// The same in whole warps, as `bar.sync a, b` counts.
    slots: u32,
    /// `b`, where one was given.
    expected: Option<u32>,
    result: BarrierResult,
    history: [BarrierResult; HISTORY],
}

/// One arrival at a barrier.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Threads that arrive.
    pub threads: u32,
    /// The same in whole warps.
    pub slots: u32,
    /// The thread count given, if any.
    pub expected: Option<u32>,
    /// Threads whose predicate holds; None where none was given.
    pub held: Option<u32>,
}

/// Clears a block's memory. Many kernels have none, and where they do little else, the call of
/// `memset` for nothing took a sixth of their time (2026-11-27).
#[inline(always)]
pub(super) fn wipe(bytes: &mut [u8]) {
    if !bytes.is_empty() {
        bytes.fill(0);
    }
}

/// Shared memory, barriers and the count of live threads.
#[derive(Debug)]
pub struct BlockMemory {
    /// Shared memory.
    pub bytes: Vec<u8>,
    barriers: Vec<BarrierState>,
    live_threads: u32,
    /// Somebody has arrived at one.
    has_arrivals: bool,
    /// Barriers that were completed so far.
    pub completions: u64,
    /// The block's place in the grid.
    pub index: [u32; 3],
    /// The multiprocessor that it runs on.
    pub multiprocessor: u32,
}

impl BlockMemory {
    /// For a block of so many threads.
    pub fn new(bytes: usize, threads: u32, index: [u32; 3], multiprocessor: u32) -> Self {
        Self {
            bytes: vec![0; bytes],
            barriers: vec![BarrierState::default(); BARRIERS + 1],
            live_threads: threads,
            has_arrivals: false,
            completions: 0,
            index,
            multiprocessor,
        }
    }

    /// The same for another block of the launch.
    pub fn restart(&mut self, threads: u32, index: [u32; 3]) {
        wipe(&mut self.bytes);
        if self.has_arrivals {
            self.barriers.fill(BarrierState::default());
            self.has_arrivals = false;
        }
        (self.live_threads, self.completions, self.index) = (threads, 0, index);
    }

    /// Arrives; gives the generation to wait for the end of.
    pub fn arrive(&mut self, id: u8, arrival: Arrival) -> u64 {
        self.has_arrivals = true;
        let barrier = &mut self.barriers[usize::from(id)];
        let generation = barrier.generation;
        barrier.threads += arrival.threads;
        barrier.slots += arrival.slots;
        barrier.expected = arrival.expected.or(barrier.expected);
        if let Some(held) = arrival.held {
            barrier.result.held += held;
            barrier.result.asked += arrival.threads;
        }
        self.complete(usize::from(id));
        generation
    }

    /// Ends the generation if all have come.
    fn complete(&mut self, id: usize) {
        let barrier = &mut self.barriers[id];
        let full = match barrier.expected {
            Some(expected) => barrier.slots >= expected,
            None => barrier.threads >= self.live_threads,
        };
        if barrier.threads == 0 || !full {
            return;
        }
        barrier.history[barrier.generation as usize % HISTORY] = barrier.result;
        barrier.generation += 1;
        (barrier.threads, barrier.slots, barrier.expected) = (0, 0, None);
        barrier.result = BarrierResult::default();
        self.completions += 1;
    }

    /// Threads ended: barriers of the whole block wait for them no longer.
    pub fn threads_ended(&mut self, count: u32) {
        self.live_threads -= count;
        if !self.has_arrivals {
            return;
        }
        for id in 0..self.barriers.len() {
            self.complete(id);
        }
    }

    /// The result of a barrier's generation, once it is past.
    pub fn barrier_result(&self, id: u8, generation: u64) -> Option<BarrierResult> {
        let barrier = &self.barriers[usize::from(id)];
        (barrier.generation > generation).then(|| barrier.history[generation as usize % HISTORY])
    }
}
