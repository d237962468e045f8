//! Occupancy of a GPU: the blocks that are resident on its multiprocessors.

use crate::clusters;
use crate::description::GpuModel;
use crate::error::{Error, Result};
use crate::footprint::Footprint;
use hwsim_ptx::Kernel;
use std::ops::Range;

/// Threads of a block at most, on every architecture.
pub const BLOCK_THREADS_MAX: u32 = 1024;
/// Extents of a block at most.
pub const BLOCK_EXTENT_MAX: [u32; 3] = [1024, 1024, 64];
/// Extents of a grid at most.
pub const GRID_EXTENT_MAX: [u32; 3] = [i32::MAX as u32, 65535, 65535];
/// One multiprocessor.
#[derive(Clone, Copy, Debug, Default)]
struct Multiprocessor {
    blocks: u32,
    threads: u32,
    shared_bytes: u32,
    registers: u32,
}

/// Where the blocks of a cluster are: mostly one block alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    /// The multiprocessor of the first block.
    first: u32,
    /// Those of the others.
    others: Vec<u32>,
}

impl Room {
    /// The multiprocessors, in the order of the blocks' ranks.
    pub fn units(&self) -> impl Iterator<Item = u32> + '_ {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }
}

/// The multiprocessors of a GPU.
#[derive(Debug)]
pub(crate) struct Occupancy {
    model: GpuModel,
    units: Vec<Multiprocessor>,
    /// Those on which a cluster may be.
    gpcs: Vec<Range<usize>>,
    next: usize,
}

impl Occupancy {
    pub fn new(model: GpuModel) -> Self {
        let units = vec![Multiprocessor::default(); model.multiprocessors as usize];
        let gpcs = clusters::gpcs(&model);
        Self { model, units, gpcs, next: 0 }
    }

    fn has_room(&self, index: usize, block: &Footprint) -> bool {
        let (unit, model) = (&self.units[index], &self.model);
        unit.blocks < model.blocks_per_multiprocessor
            && unit.threads + block.threads <= model.threads_per_multiprocessor
            && u64::from(unit.shared_bytes + block.shared_bytes)
                <= model.shared_memory_per_multiprocessor
            && unit.registers + block.registers <= model.registers_per_multiprocessor
    }

    fn take(&mut self, index: usize, block: &Footprint) {
        let unit = &mut self.units[index];
        unit.blocks += 1;
        unit.threads += block.threads;
        unit.shared_bytes += block.shared_bytes;
        unit.registers += block.registers;
        self.next = (index + 1) % self.units.len();
    }

    /// A multiprocessor with room for the block, which it then has.
    pub fn place(&mut self, block: &Footprint) -> Option<u32> {
        let count = self.units.len();
        let index =
            (0..count).map(|i| (self.next + i) % count).find(|&i| self.has_room(i, block))?;
        self.take(index, block);
        Some(index as u32)
    }

    /// Room for a cluster of so many blocks, which they then have: all of them or none.
    pub fn place_cluster(&mut self, block: &Footprint, count: u32) -> Option<Room> {
        if count == 1 {
            return Some(Room { first: self.place(block)?, others: Vec::new() });
        }
        // Where the multiprocessor is that follows the last one that was taken.
        let gpcs = self.gpcs.len();
        let at = self.gpcs.iter().position(|gpc| gpc.contains(&self.next)).unwrap_or(0);
        (0..gpcs).find_map(|turn| {
            let gpc = self.gpcs[(at + turn) % gpcs].clone();
            self.place_within(gpc, block, count as usize)
        })
    }

    /// The same on these multiprocessors: one block to each, then again.
    fn place_within(&mut self, gpc: Range<usize>, block: &Footprint, count: usize) -> Option<Room> {
        let mut taken: Vec<u32> = Vec::with_capacity(count);
        while taken.len() < count {
            let before = taken.len();
            for index in gpc.clone() {
                if taken.len() < count && self.has_room(index, block) {
                    self.take(index, block);
                    taken.push(index as u32);
                }
            }
            if taken.len() == before {
                taken.iter().for_each(|&index| self.release(index, block));
                return None;
            }
        }
        let others = taken.split_off(1);
        Some(Room { first: taken[0], others })
    }

    /// The blocks of a cluster ended.
    pub fn release_cluster(&mut self, room: &Room, block: &Footprint) {
        room.units().for_each(|index| self.release(index, block));
    }

    /// The block ended.
    pub fn release(&mut self, index: u32, block: &Footprint) {
        let unit = &mut self.units[index as usize];
        unit.blocks -= 1;
        unit.threads -= block.threads;
        unit.shared_bytes -= block.shared_bytes;
        unit.registers -= block.registers;
    }
}

/// Refuses a launch that no multiprocessor could ever hold, as the driver does.
pub fn check_launch(
    model: &GpuModel,
    kernel: &Kernel,
    grid: [u32; 3],
    block: [u32; 3],
    dynamic_shared: u32,
    shared_limit: u32,
) -> Result<()> {
    let shape = |what: &str, extents: [u32; 3], limits: [u32; 3]| {
        let fits = extents.iter().zip(limits).all(|(&extent, limit)| (1..=limit).contains(&extent));
        if fits {
            Ok(())
        } else {
            Err(Error::InvalidValue(format!("{what} {extents:?}: each extent is 1 to {limits:?}")))
        }
    };
    shape("grid", grid, GRID_EXTENT_MAX)?;
    shape("block", block, BLOCK_EXTENT_MAX)?;
    let threads = block.iter().map(|&extent| u64::from(extent)).product::<u64>();
    if threads > u64::from(BLOCK_THREADS_MAX) {
        let text = format!("a block of {threads} threads: at most {BLOCK_THREADS_MAX}");
        return Err(Error::InvalidValue(text));
    }
    if let Some(limit) = kernel.max_block {
        let limit_threads = limit.iter().map(|&extent| u64::from(extent.max(1))).product::<u64>();
        if kernel.block_is_exact && limit.map(|extent| extent.max(1)) != block {
            let text = format!("kernel {} requires blocks of {limit:?}: {block:?}", kernel.name);
            return Err(Error::InvalidValue(text));
        }
        if threads > limit_threads {
            let text = format!("kernel {} has blocks of at most {limit:?}", kernel.name);
            return Err(Error::InvalidValue(text));
        }
    }
    if dynamic_shared > shared_limit {
        let text =
            format!("{dynamic_shared} bytes of dynamic shared memory: at most {shared_limit}");
        return Err(Error::InvalidValue(text));
    }
    if Footprint::of(model, kernel, threads as u32, dynamic_shared).blocks_per_multiprocessor(model)
        == 0
    {
        let text =
            format!("kernel {}: a block of {threads} threads fits no multiprocessor", kernel.name);
        return Err(Error::OutOfResources(text));
    }
    Ok(())
}
