//! One block of a grid, or the blocks of a cluster: their warps take turns.

use std::sync::Arc;

use super::fault::{Fault, FaultKind, Trouble};
use super::registers::LANES;
use super::shared::BlockMemory;
use super::warp::{Context, Pause, State, Warp};
use crate::kernel::{Clock, Launch, RESERVED_SHARED_BYTES};
use crate::memory::Memory;

/// Warp instructions of one turn of a warp.
const TURN: u64 = 4096;

impl Drop for Block {
    fn drop(&mut self) {
        let pool = &self.launch.kernel.program.pool;
        pool.give(std::mem::take(&mut self.warps));
    }
}

/// How far a block came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All threads have ended.
    Finished,
    /// Every live warp napped, spins, or is at a barrier: let others run.
    Waiting,
    /// The budget is spent.
    Budget,
}

/// How a turn of one warp ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// All its threads have ended.
    Finished,
    /// It napped, or polls: it may run again.
    Waiting,
    /// It stands at a barrier, and runs no further until others arrive.
    Barrier,
    /// The budget is spent.
    Budget,
}

/// What a block waits for that runs no further by itself.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// Every place that its warps looked at is in [`Block::looks`], and they saw nothing new when
    /// they looked last.
    pub is_complete: bool,
    /// It read a clock in the meantime: time may end the wait, too.
    pub is_timed: bool,
}

/// A block that runs, or is about to, with those that share its cluster.
#[derive(Debug)]
pub struct Block {
    launch: Arc<Launch>,
    /// That of the block that runs; those of the others of its cluster lie in it.
    memory: BlockMemory,
    /// Block after block.
    warps: Vec<Warp>,
    /// How many of them a block has.
    block_warps: usize,
    /// The warp whose turn is next.
    next: usize,
    /// Warp instructions since somebody asked.
    spent: u64,
}

impl Block {
    /// The block at `index` of a launch's grid, on multiprocessor `sm`; or its cluster at `index`
    /// among all clusters, all on this one.
    pub fn new(launch: Arc<Launch>, index: [u32; 3], sm: u32) -> Self {
        Self::on(launch, index, std::iter::once(sm))
    }

    /// The same, each block of the cluster on the next of these multiprocessors, or on the last.
    pub fn on(
        launch: Arc<Launch>,
        index: [u32; 3],
        mut multiprocessors: impl Iterator<Item = u32>,
    ) -> Self {
        let threads = launch.block_threads();
        let shared = match launch.kernel.uses_reserved_shared {
            true => launch.reserved_shared() + u64::from(RESERVED_SHARED_BYTES),
            false => launch.shared_bytes(),
        };
        let mut sm = 0;
        let memory = |place: [u32; 3]| {
            sm = multiprocessors.next().unwrap_or(sm);
            BlockMemory::new(shared as usize, threads, place, sm)
        };
        let members = launch.blocks_of(index).map(memory).collect();
        let memory = BlockMemory::of_cluster(members, threads);
        let block_warps = threads.div_ceil(LANES as u32) as usize;
        let warps = Warp::of_cluster(&launch, block_warps);
        Self { memory, warps, block_warps, next: 0, spent: 0, launch }
    }

    /// Becomes another block of the same launch, on the same multiprocessor: as [`Block::new`], but
    /// what a block is made of is there already.
    pub fn restart(&mut self, index: [u32; 3]) {
        let threads = self.launch.block_threads();
        if self.memory.cluster.is_none() {
            self.memory.restart(threads, index);
        } else {
            self.memory.restart_cluster(threads, self.launch.blocks_of(index));
        }
        for (number, warp) in self.warps.iter_mut().enumerate() {
            // They count as run: a program's instructions do not depend on who runs it.
            self.spent += warp.follow(&self.launch, (number % self.block_warps) as u32);
        }
        self.next = 0;
    }

    /// The block's place in the grid; of a cluster, that of the block that ran last.
    pub fn index(&self) -> [u32; 3] {
        self.memory.index
    }

    /// Runs until done, or every warp waits, or `budget` warp instructions were spent.
    ///
    /// # Errors
    ///
    /// The fault that ends the kernel. The block must not be run again.
    #[allow(clippy::result_large_err)] // At most one for each kernel.
    pub fn run<M: Memory>(
        &mut self,
        memory: &M,
        clock: &impl Clock,
        budget: u64,
    ) -> Result<Progress, Fault> {
        self.run_on(memory, &mut M::Cursor::default(), clock, budget)
    }

    /// The same, with what is remembered of memory from the block before.
    ///
    /// # Errors
    ///
    /// As [`Block::run`].
    #[allow(clippy::result_large_err)] // At most one for each kernel.
    pub fn run_on<M: Memory>(
        &mut self,
        memory: &M,
        cursor: &mut M::Cursor,
        clock: &impl Clock,
        budget: u64,
    ) -> Result<Progress, Fault> {
        let launch = Arc::clone(&self.launch);
        let mut left = budget;
        loop {
            let completions = self.memory.completions;
            let (mut live, mut ran, mut napped) = (false, false, false);
            for _ in 0..self.warps.len() {
                let number = self.next;
                self.next = (self.next + 1) % self.warps.len();
                let warp = &mut self.warps[number];
                if warp.live == 0 {
                    continue;
                }
                if self.memory.cluster.is_some() {
                    self.memory.switch(number / self.block_warps);
                }
                // Warps of a block mostly walk over the same memory: one cursor for all.
                let mut context = Context {
                    memory,
                    cursor: &mut *cursor,
                    clock,
                    launch: &launch,
                    program: &launch.kernel.program,
                    block: &mut self.memory,
                };
                let turn = TURN.min(left);
                let mut rest = turn;
                let pause = match warp.run(&mut context, &mut rest) {
                    Ok(pause) => pause,
                    Err((trouble, pc)) => return Err(self.fault(&launch, number, *trouble, pc)),
                };
                left -= turn - rest;
                self.spent += turn - rest;
                match pause {
                    Pause::Done => {}
                    Pause::Nap => (live, napped) = (true, true),
                    Pause::Barrier => live = true,
                    Pause::Budget => (live, ran) = (true, true),
                }
                if left == 0 {
                    let any = self.warps.iter().any(|warp| warp.live != 0);
                    return Ok(if any { Progress::Budget } else { Progress::Finished });
                }
            }
            if !live {
                return Ok(Progress::Finished);
            }
            if ran || completions != self.memory.completions {
                continue;
            }
            if napped {
                return Ok(Progress::Waiting);
            }
            return Err(self.stuck(&launch));
        }
    }

    /// How many warps it has.
    pub fn warps(&self) -> usize {
        self.warps.len()
    }

    /// Has this warp threads that have not ended?
    pub fn is_live(&self, warp: usize) -> bool {
        self.warps[warp].live != 0
    }

    /// A number that grows when a barrier of it completes.
    pub fn barriers_passed(&self) -> u64 {
        self.memory.completions
    }

    /// Runs one warp for at most `budget` instructions: for those who decide themselves whose turn
    /// it is.
    ///
    /// # Errors
    ///
    /// The fault that ends the kernel. The block must not be run again.
    #[allow(clippy::result_large_err)] // At most one for each kernel.
    pub fn run_warp<M: Memory>(
        &mut self,
        memory: &M,
        clock: &impl Clock,
        number: usize,
        budget: u64,
    ) -> Result<Turn, Fault> {
        let launch = Arc::clone(&self.launch);
        self.memory.switch(number / self.block_warps);
        let warp = &mut self.warps[number];
        let mut cursor = M::Cursor::default();
        let mut context = Context {
            memory,
            cursor: &mut cursor,
            clock,
            launch: &launch,
            program: &launch.kernel.program,
            block: &mut self.memory,
        };
        let mut rest = budget;
        let pause = warp.run(&mut context, &mut rest);
        self.spent += budget - rest;
        match pause {
            Ok(Pause::Done) => Ok(Turn::Finished),
            Ok(Pause::Nap) => Ok(Turn::Waiting),
            Ok(Pause::Barrier) => Ok(Turn::Barrier),
            Ok(Pause::Budget) => Ok(Turn::Budget),
            Err((trouble, pc)) => Err(self.fault(&launch, number, *trouble, pc)),
        }
    }

    /// Warp instructions that it has run since this was called last.
    pub fn take_spent(&mut self) -> u64 {
        std::mem::take(&mut self.spent)
    }

    /// The warps that are not just waiting for others of the block.
    fn polling(&self) -> impl Iterator<Item = &Warp> {
        self.warps.iter().filter(|warp| warp.live != 0 && warp.has_napped())
    }

    /// What it waits for, after [`Progress::Waiting`].
    pub fn wait(&self) -> Wait {
        let is_complete = self.polling().all(|warp| warp.watch.is_complete());
        Wait { is_complete, is_timed: self.polling().any(|warp| warp.watch.timed) }
    }

    /// A number that grows when it does something between two waits.
    pub fn effects(&self) -> u64 {
        self.warps.iter().map(|warp| warp.watch.effects).sum()
    }

    /// The places in global memory that it looked at since it last did something: addresses, and
    /// the bytes that were there.
    pub fn looks(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.polling().flat_map(|warp| warp.watch.looks())
    }

    /// A digest of all that decides what it does next, but for memory outside and the clock. If it
    /// comes again and the block did nothing meanwhile, the block will go on like that until what
    /// it looked at changes.
    pub fn digest(&self) -> u64 {
        self.polling().fold(0, |digest, warp| warp.digest(digest))
    }

    /// Every warp waits at a barrier, and no barrier can complete.
    fn stuck(&mut self, launch: &Launch) -> Fault {
        let waiting = |warp: &Warp| {
            warp.fragments.iter().any(|fragment| matches!(fragment.state, State::Barrier { .. }))
        };
        let number = self.warps.iter().position(waiting).unwrap_or(0);
        self.memory.switch(number / self.block_warps);
        let fragment = self.warps[number].fragments.first();
        let (pc, mask) = fragment.map_or((0, 1), |fragment| (fragment.pc, fragment.mask));
        self.fault(launch, number, *Trouble::new(FaultKind::DivergentBarrier, mask), pc)
    }

    /// Puts names to a trouble.
    fn fault(&self, launch: &Launch, number: usize, trouble: Trouble, pc: u32) -> Fault {
        let program = &launch.kernel.program;
        let line = program.code.get(pc as usize).map_or(0, |instruction| instruction.line);
        let (instruction, source) = program.text(line);
        Fault {
            kind: trouble.kind,
            kernel: launch.kernel.name.clone(),
            block: self.memory.index,
            thread: self.warps[number].thread_of(trouble.lane),
            line,
            instruction: instruction.to_owned(),
            source: source.to_owned(),
            address: trouble.address,
            bytes: trouble.bytes,
            detail: trouble.detail,
        }
    }
}
