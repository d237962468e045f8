//! Clusters: blocks that run side by side and reach each other's shared memory.
//!
//! The blocks of a cluster run by turns in one [`super::block::Block`], so that one worker has all
//! of their memory, and all of them are there from the beginning. The block whose turn it is holds
//! the cluster; the memories of the others lie in it.
//!
//! An address that names another block holds its rank, plus one, above the bits of an offset in
//! shared memory. Without a rank it is the block's own. Hardware has another layout, which PTX
//! leaves open; there, the address of a variable tells blocks apart as well.

use super::access::try_each_lane;
use super::fault::{FaultKind, Trouble};
use super::matrix::memory::Base;
use super::place::Place;
use super::program::{Access, Atomic, Space};
use super::registers::{LANES, each_lane};
use super::shared::{Arrival, BarrierResult, BarrierState, BlockMemory};
use super::warp::{Context, Warp};
use super::windows;
use crate::kernel::{Clock, Launch};
use crate::memory::Memory;

/// Where the rank is in an address of shared memory. No block has as much.
pub const RANK_SHIFT: u32 = 24;
/// The offset in a block's memory.
const OFFSET: u64 = (1 << RANK_SHIFT) - 1;

/// The rank that an offset in the window of shared memory names; None for the block itself.
pub(super) fn rank_in(offset: u64) -> Option<u64> {
    (offset >> RANK_SHIFT).checked_sub(1)
}

/// The rank of the block in which an address of shared memory is, as the block `own` has it.
pub fn rank_of(address: u64, own: u64) -> u64 {
    rank_in(address & windows::OFFSET).unwrap_or(own)
}

/// The same place in the block of this rank.
pub(super) fn place_in(address: u64, rank: u64) -> u64 {
    let kept = address & !(windows::OFFSET ^ OFFSET);
    kept | (rank & 0xff).wrapping_add(1) << RANK_SHIFT
}

/// What the blocks of a cluster share.
#[derive(Debug)]
pub struct Cluster {
    /// Memories of the blocks, by rank. That of the block that runs is elsewhere, and an empty one
    /// in its place.
    members: Vec<BlockMemory>,
    /// Rank of the block that runs.
    rank: usize,
    barrier: BarrierState,
    live_threads: u32,
}

impl Cluster {
    /// Of blocks that begin, each with so many threads.
    pub fn new(members: Vec<BlockMemory>, threads: u32) -> Self {
        let live_threads = threads * members.len() as u32;
        Self { members, rank: 0, barrier: BarrierState::default(), live_threads }
    }

    /// An arrival at the cluster's barrier: its generation, and whether that is past by it.
    pub fn arrive(&mut self, arrival: Arrival) -> (u64, bool) {
        let generation = self.barrier.arrive(arrival);
        (generation, self.barrier.complete(self.live_threads))
    }

    /// Threads ended, and count as if they had arrived. Says whether the barrier is past by it.
    pub fn threads_ended(&mut self, count: u32) -> bool {
        self.live_threads -= count;
        self.barrier.complete(self.live_threads)
    }

    /// What a generation of the cluster's barrier found, once it is past.
    pub fn barrier_result(&self, generation: u64) -> Option<BarrierResult> {
        self.barrier.past(generation)
    }
}

impl BlockMemory {
    /// The memory of the first block of a cluster, with those of the others in it.
    pub fn of_cluster(mut members: Vec<Self>, threads: u32) -> Self {
        if members.len() == 1
            && let Some(only) = members.pop()
        {
            return only;
        }
        let mut first = Self::new(0, 0, [0; 3], 0);
        if let Some(slot) = members.first_mut() {
            std::mem::swap(&mut first, slot);
        }
        first.cluster = Some(Box::new(Cluster::new(members, threads)));
        first
    }

    /// The block's rank in its cluster.
    pub fn rank(&self) -> usize {
        self.cluster.as_ref().map_or(0, |cluster| cluster.rank)
    }

    /// Becomes the memory of the cluster's block of this rank.
    pub fn switch(&mut self, rank: usize) {
        let Some(mut cluster) = self.cluster.take() else { return };
        if cluster.rank != rank {
            let completions = self.completions;
            std::mem::swap(self, &mut cluster.members[cluster.rank]);
            std::mem::swap(self, &mut cluster.members[rank]);
            (cluster.rank, self.completions) = (rank, completions);
        }
        self.cluster = Some(cluster);
    }

    /// Begins again, as the first block of another cluster whose blocks lie at these places.
    pub fn restart_cluster(&mut self, threads: u32, places: impl Iterator<Item = [u32; 3]>) {
        let mut blocks = 0;
        for (rank, place) in places.enumerate() {
            self.switch(rank);
            self.restart(threads, place);
            blocks += 1;
        }
        self.switch(0);
        if let Some(cluster) = &mut self.cluster {
            cluster.barrier = BarrierState::default();
            cluster.live_threads = threads * blocks;
        }
    }

    /// The bytes that an offset in the cluster's shared memory leads to. None where there is no
    /// such block, its threads have ended, or it has no such bytes.
    fn in_cluster(&mut self, offset: u64, length: usize) -> Option<&mut [u8]> {
        let start = usize::try_from(offset & OFFSET).ok()?;
        let bytes = match (rank_in(offset), &mut self.cluster) {
            (None, _) => &mut self.bytes,
            (Some(0), None) => &mut self.bytes,
            (Some(rank), Some(cluster)) if rank == cluster.rank as u64 => &mut self.bytes,
            (Some(rank), Some(cluster)) => {
                let member = cluster.members.get_mut(usize::try_from(rank).ok()?)?;
                (member.live_threads > 0).then_some(&mut member.bytes)?
            }
            (Some(_), None) => return None,
        };
        bytes.get_mut(start..start.checked_add(length)?)
    }

    /// Uses the bytes of a lane's address in the cluster's shared memory, if they are there.
    pub(super) fn within_cluster<R>(
        &mut self,
        (lane, address): (usize, u64),
        length: usize,
        use_them: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, Box<Trouble>> {
        match self.in_cluster(address & windows::OFFSET, length) {
            Some(found) => Ok(use_them(found)),
            None => Err(self.outside_cluster(lane, address, length)),
        }
    }

    /// Why there are no such bytes.
    fn outside_cluster(&self, lane: usize, address: u64, length: usize) -> Box<Trouble> {
        let trouble = Trouble::at(FaultKind::SharedOutOfBounds, lane, address, length);
        let Some(rank) = rank_in(address & windows::OFFSET) else { return trouble };
        let own = self.rank() as u64;
        let detail = match &self.cluster {
            Some(cluster) if rank != own => match cluster.members.get(rank as usize) {
                Some(member) if member.live_threads == 0 => {
                    format!("block {rank} of the cluster has ended")
                }
                Some(_) => format!("in block {rank} of the cluster"),
                None => {
                    format!("block {rank} of a cluster of {} blocks", cluster.members.len())
                }
            },
            None if rank > 0 => format!("block {rank} of a cluster of one block"),
            _ => String::new(),
        };
        Box::new(Trouble { detail, ..*trouble })
    }
}

impl Launch {
    /// Blocks of a cluster on each axis.
    pub fn cluster_shape(&self) -> [u32; 3] {
        self.cluster.unwrap_or([1; 3]).map(|extent| extent.max(1))
    }

    /// Blocks of a cluster.
    pub fn cluster_blocks(&self) -> u32 {
        self.cluster_shape().iter().product()
    }

    /// Clusters of the grid on each axis.
    pub fn clusters(&self) -> [u32; 3] {
        let shape = self.cluster_shape();
        std::array::from_fn(|axis| self.grid[axis] / shape[axis])
    }

    /// Places in the grid of a cluster's blocks, in the order of their ranks.
    pub(crate) fn blocks_of(&self, cluster: [u32; 3]) -> impl Iterator<Item = [u32; 3]> + use<> {
        let shape = self.cluster_shape();
        (0..shape.iter().product()).map(move |rank: u32| {
            let [x, y, _] = shape;
            let own = [rank % x, rank / x % y, rank / (x * y)];
            std::array::from_fn(|axis| cluster[axis] * shape[axis] + own[axis])
        })
    }
}

/// `mapa` and `getctarank`.
#[derive(Clone, Debug)]
pub struct ClusterAddress {
    /// Destination.
    pub d: u32,
    /// An address of shared memory.
    pub a: u32,
    /// Both have 64 bits, else 32. A rank has 32.
    pub is_wide: bool,
    /// Slot of the rank of the block whose address is wanted; None: the rank is.
    pub rank: Option<u32>,
}

/// `st.async` and `red.async`: a change of a block's shared memory, after which a barrier there
/// counts its bytes.
#[derive(Clone, Debug)]
pub struct AsyncChange {
    /// What is changed.
    pub change: Change,
    /// The barrier.
    pub barrier: Base,
}

/// What an [`AsyncChange`] does.
#[derive(Clone, Debug)]
pub enum Change {
    /// Stores.
    Store(Access),
    /// Reads, modifies and writes.
    Reduce(Atomic),
}

impl Warp {
    /// `mapa` and `getctarank`
    #[inline(never)]
    pub(super) fn cluster_address<M: Memory, C: Clock>(
        &mut self,
        context: &Context<'_, M, C>,
        operation: &ClusterAddress,
        active: u32,
    ) {
        let addresses: [u64; LANES] = match operation.is_wide {
            true => *self.registers.get::<u64>(operation.a),
            false => self.registers.get::<u32>(operation.a).map(u64::from),
        };
        let Some(slot) = operation.rank else {
            let own = context.block.rank() as u64;
            let ranks = addresses.map(|address| rank_of(address, own) as u32);
            return self.registers.put(operation.d, &ranks, active);
        };
        let ranks = *self.registers.get::<u32>(slot);
        let is_alone = context.block.cluster.is_none();
        let mapped: [u64; LANES] = std::array::from_fn(|lane| match ranks[lane] {
            // The only block keeps to the quick ways of its own memory.
            0 if is_alone => addresses[lane],
            rank => place_in(addresses[lane], rank.into()),
        });
        match operation.is_wide {
            true => self.registers.put(operation.d, &mapped, active),
            false => self.registers.put(operation.d, &mapped.map(|it| it as u32), active),
        }
    }

    /// `st.async` and `red.async`. PTX lets the change happen later; here it happens at once.
    #[inline(never)]
    pub(super) fn change_async<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        operation: &AsyncChange,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        let (base, narrow, offset, length) = match &operation.change {
            Change::Store(access) => {
                (access.base, access.narrow_base, access.offset, access.lane_bytes())
            }
            Change::Reduce(atomic) => {
                (atomic.base, atomic.narrow_base, atomic.offset, atomic.ty.size_bytes())
            }
        };
        let targets = self.addresses(base, narrow, offset);
        let Base { space, slot, narrow, offset } = operation.barrier;
        let barriers = self.addresses(slot, narrow, offset);
        let own = context.block.rank() as u64;
        try_each_lane(active, |lane| {
            let (target, barrier) = (rank_of(targets[lane], own), rank_of(barriers[lane], own));
            if target == barrier {
                return Ok(());
            }
            let kind = FaultKind::InvalidBarrier;
            let trouble = Trouble::at(kind, lane, barriers[lane], size_of::<u64>());
            let detail = format!("it is in block {barrier} of the cluster, the data in {target}");
            Err(Box::new(Trouble { detail, ..*trouble }))
        })?;
        match &operation.change {
            Change::Store(access) => self.store(context, access, active)?,
            Change::Reduce(atomic) => self.atomic(context, atomic, active)?,
        }
        self.watch.clear();
        try_each_lane(active, |lane| {
            let place = Place { space, address: barriers[lane], lane, word: size_of::<u64>() };
            self.complete_bytes(context, place, length)
        })
    }
}

/// The lanes of these whose address lies in the memory of the block itself, as far as the address
/// says.
pub(super) fn own_lanes(addresses: &[u64; LANES], lanes: u32) -> u32 {
    let mut own = 0;
    each_lane(lanes, |lane| {
        own |= u32::from(rank_in(addresses[lane] & windows::OFFSET).is_none()) << lane;
    });
    own
}

/// The space of an address in the window of shared memory: that of the block or of the cluster.
pub(super) fn space_of(address: u64) -> Space {
    match rank_in(address & windows::OFFSET) {
        None => Space::Shared,
        Some(_) => Space::Cluster,
    }
}
