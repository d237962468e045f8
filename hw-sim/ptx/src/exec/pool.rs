//! How warps begin, and what becomes of them afterwards.

use std::sync::Mutex;

use super::program::Program;
use super::registers::{FULL, LANES, Registers};
use super::shared::wipe;
use super::warp::{Fragment, State, Warp};
use super::watch::Watch;
use crate::kernel::Launch;

/// Warps that blocks of a kernel have left behind, for its next blocks: what they are made of takes
/// longer to allocate than many a kernel to run.
#[derive(Debug, Default)]
pub struct WarpPool(Mutex<Vec<Warp>>);

/// What a pool keeps, in bytes of registers and local memory. All warps of a grid whose blocks wait
/// for each other should fit: 2,048 of a kernel with 250 registers do.
const POOLED_BYTES_MAX: usize = 128 << 20;

impl WarpPool {
    /// Takes up to `count` warps.
    fn take(&self, count: usize) -> Vec<Warp> {
        let Ok(mut pool) = self.0.lock() else { return Vec::new() };
        let kept = pool.len().saturating_sub(count);
        pool.split_off(kept)
    }

    /// Gives warps back.
    pub fn give(&self, warps: Vec<Warp>) {
        if let Ok(mut pool) = self.0.lock() {
            let each = warps.first().map_or(1, Warp::bytes);
            let room = (POOLED_BYTES_MAX / each).saturating_sub(pool.len());
            pool.extend(warps.into_iter().take(room));
        }
    }
}

/// A copy of its own kernel starts with a pool.
impl Clone for WarpPool {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Warp {
    /// The warps of a cluster's blocks, in order; each block has so many.
    pub fn of_cluster(launch: &Launch, block_warps: usize) -> Vec<Self> {
        let program = &launch.kernel.program;
        let count = block_warps * launch.cluster_blocks() as usize;
        let mut warps = program.pool.take(count);
        while warps.len() < count {
            warps.push(Self::fresh(program));
        }
        for (number, warp) in warps.iter_mut().enumerate() {
            warp.restart(launch, (number % block_warps) as u32, 0);
        }
        warps
    }

    /// Bytes of its registers and its local memory, and about as many as it has beside them.
    fn bytes(&self) -> usize {
        const BESIDE: usize = 4096;
        self.registers.bytes_used() + self.local.len() + BESIDE
    }

    fn fresh(program: &Program) -> Self {
        Self {
            registers: Registers::new(program.rows, &program.constant_rows, program.predicates),
            fragments: Vec::new(),
            live: 0,
            number: 0,
            shape: [0; 3],
            thread_index: Box::new([[0; LANES]; 3]),
            local: vec![0; program.local_bytes as usize * LANES],
            returns: Vec::new(),
            saved: vec![Vec::new(); LANES],
            watch: Watch::default(),
            forced: false,
            cluster_generation: 0,
            scratch: Box::default(),
            strides: Box::default(),
        }
    }

    /// Begins another block of the same launch. What it computed for the one before and what is the
    /// same for this one is still there. Gives how many instructions the program has there that are
    /// not run again.
    pub fn follow(&mut self, launch: &Launch, number: u32) -> u64 {
        let program = &launch.kernel.program;
        // It has run to its end, and so over all of its start.
        let is_there = self.live == 0 && self.number == number;
        self.restart(launch, number, if is_there { program.follow } else { 0 });
        if is_there { program.followed } else { 0 }
    }

    /// Begins anew, as the warp that holds threads `number * 32` and on. Registers keep old values,
    /// as they do on a device; PTX gives an unwritten register no value.
    fn restart(&mut self, launch: &Launch, number: u32, pc: u32) {
        let first = number * LANES as u32;
        let count = launch.block_threads().saturating_sub(first).min(LANES as u32);
        self.live = if count == LANES as u32 { FULL } else { (1 << count) - 1 };
        let shape = launch.block.map(|extent| extent.max(1));
        if (self.number, self.shape) != (number, shape) {
            let [width, height, _] = shape;
            for lane in 0..LANES {
                let thread = first + lane as u32;
                self.thread_index[0][lane] = thread % width;
                self.thread_index[1][lane] = thread / width % height;
                self.thread_index[2][lane] = thread / (width * height);
            }
            (self.number, self.shape) = (number, shape);
        }
        if !self.returns.is_empty() {
            // Only calls have moved it.
            *self.registers.get_mut::<u64>(launch.kernel.program.frame) = [0; LANES];
            self.saved.iter_mut().for_each(Vec::clear);
        }
        let start = Fragment { pc, mask: self.live, depth: 0, state: State::Ready, spent: 0 };
        self.fragments.clear();
        self.fragments.push(start);
        wipe(&mut self.local);
        self.watch.restart();
        self.forced = false;
    }
}
