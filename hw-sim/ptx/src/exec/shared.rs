//! What the warps of a block share: its memory and its barriers.

use super::cluster::Cluster;

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
pub(super) struct BarrierState {
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

impl BarrierState {
    /// Takes an arrival. Gives the generation to wait for the end of.
    pub(super) fn arrive(&mut self, arrival: Arrival) -> u64 {
        self.threads += arrival.threads;
        self.slots += arrival.slots;
        self.expected = arrival.expected.or(self.expected);
        if let Some(held) = arrival.held {
            self.result.held += held;
            self.result.asked += arrival.threads;
        }
        self.generation
    }

    /// Ends the generation if all of so many threads have come. Says whether they have.
    pub(super) fn complete(&mut self, live_threads: u32) -> bool {
        let full = match self.expected {
            Some(expected) => self.slots >= expected,
            None => self.threads >= live_threads,
        };
        if self.threads == 0 || !full {
            return false;
        }
        self.history[self.generation as usize % HISTORY] = self.result;
        self.generation += 1;
        (self.threads, self.slots, self.expected) = (0, 0, None);
        self.result = BarrierResult::default();
        true
    }

    /// The result of a generation, once it is past.
    pub(super) fn past(&self, generation: u64) -> Option<BarrierResult> {
        (self.generation > generation).then(|| self.history[generation as usize % HISTORY])
    }
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
    pub(super) live_threads: u32,
    /// Somebody has arrived at one.
    has_arrivals: bool,
    /// Barriers that were completed so far, in all blocks of the cluster.
    pub completions: u64,
    /// The block's place in the grid.
    pub index: [u32; 3],
    /// The multiprocessor that it runs on.
    pub multiprocessor: u32,
    /// The rest of its cluster, while it runs. None where the cluster has no other block.
    pub(super) cluster: Option<Box<Cluster>>,
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
            cluster: None,
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
        if id == CLUSTER_BARRIER
            && let Some(cluster) = &mut self.cluster
        {
            let (generation, is_past) = cluster.arrive(arrival);
            self.completions += u64::from(is_past);
            return generation;
        }
        self.has_arrivals = true;
        let generation = self.barriers[usize::from(id)].arrive(arrival);
        self.complete(usize::from(id));
        generation
    }

    /// Ends the generation if all have come.
    fn complete(&mut self, id: usize) {
        self.completions += u64::from(self.barriers[id].complete(self.live_threads));
    }

    /// Threads ended: barriers of the whole block wait for them no longer.
    pub fn threads_ended(&mut self, count: u32) {
        self.live_threads -= count;
        if let Some(cluster) = &mut self.cluster {
            self.completions += u64::from(cluster.threads_ended(count));
        }
        if !self.has_arrivals {
            return;
        }
        for id in 0..self.barriers.len() {
            self.complete(id);
        }
    }

    /// The result of a barrier's generation, once it is past.
    pub fn barrier_result(&self, id: u8, generation: u64) -> Option<BarrierResult> {
        match &self.cluster {
            Some(cluster) if id == CLUSTER_BARRIER => cluster.barrier_result(generation),
            _ => self.barriers[usize::from(id)].past(generation),
        }
    }
}
