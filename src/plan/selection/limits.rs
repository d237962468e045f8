//! What a communicator has for its plans.

use super::{LOW_LATENCY_BYTES_MAX, LOW_LATENCY_SLOTS, PAIR_SLOT_BYTES_MAX, PlanError, require};
use crate::plan::{GRANULE_BYTES, RingOrder, SlotShape};
use ringdove_kernels::op::ll_bytes;

/// What a communicator has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// The most blocks of a launch; each block of a ring has lanes of its own.
    pub blocks_max: u32,
    /// Bytes of one slot, a multiple of 16.
    pub slot_bytes: u32,
    /// The same of slots between ranks that are no neighbours of a ring: at most
    /// [`Limits::pair_slot_bytes_max`], and less where so many pairs have to share the memory.
    pub pair_slot_bytes: u32,
    /// Slots of each lane: a power of two, at least 2.
    pub slot_count: u32,
    /// The most bytes of data in one LL message, a multiple of 16; 0 without LL lanes.
    pub low_latency_bytes: u32,
    /// LL messages go by stores of the sender's GPU, between all ranks; else by an engine.
    pub stores: bool,
    /// Lanes of stores with slots from each rank to each other of its node, and as many between
    /// neighbours on a rail, which as many blocks use; or 0.
    pub store_blocks: u32,
    /// NVLink joins all GPUs of a node, each to each.
    pub nvlink: bool,
    /// Threads of each rank of the node read and write registered buffers of each other one.
    pub symmetric: bool,
    /// Ranks of each node, where all nodes have the same number and their ranks follow one another;
    /// else 0: plans do not distinguish nodes.
    pub ranks_per_node: u32,
    /// The order in which rings and chains pass the ranks of a node, where it is not that of their
    /// numbers: lanes for each block are between neighbours in this order.
    pub order: Option<RingOrder>,
    /// Each element of a reduction is computed by one expression, whatever the plan: see
    /// [`Algorithm::InRankOrder`](crate::plan::Algorithm::InRankOrder).
    pub reproducible: bool,
    /// Sends and receives of so many bytes, and of more messages than a lane has slots, begin with
    /// the receiver's grant; `None`: there are no grants.
    pub granted_bytes: Option<u64>,
}

impl Limits {
    /// The slots of each lane.
    pub fn slots(&self) -> SlotShape {
        SlotShape { bytes: self.slot_bytes, count: self.slot_count }
    }

    /// These, on one node, where memory is no matter; without LL messages, not reproducible.
    pub fn new(blocks_max: u32, slot_bytes: u32, slot_count: u32) -> Self {
        Self {
            blocks_max,
            slot_bytes,
            pair_slot_bytes: Self::pair_slot_bytes_max(slot_bytes),
            slot_count,
            low_latency_bytes: 0,
            stores: false,
            store_blocks: 0,
            nvlink: false,
            symmetric: false,
            ranks_per_node: 0,
            order: None,
            reproducible: false,
            granted_bytes: None,
        }
    }

    /// Bytes of a slot between ranks that are no neighbours, where memory is no matter.
    pub fn pair_slot_bytes_max(slot_bytes: u32) -> u32 {
        slot_bytes.min(PAIR_SLOT_BYTES_MAX)
    }

    /// The slots of each LL lane. Two suffice: see `all_pairs`.
    pub fn low_latency_slots(&self) -> SlotShape {
        let bytes = ll_bytes(u64::from(self.low_latency_bytes)) as u32;
        SlotShape { bytes, count: LOW_LATENCY_SLOTS }
    }

    pub(in crate::plan) fn check(&self) -> Result<(), PlanError> {
        let [bytes, pair_bytes, count] =
            [self.slot_bytes, self.pair_slot_bytes, self.slot_count].map(u64::from);
        require(self.blocks_max > 0, "blocks of a launch", "at least 1", 0)?;
        for (what, bytes) in [("slot bytes", bytes), ("slot bytes of pairs", pair_bytes)] {
            let shaped = bytes >= GRANULE_BYTES && bytes.is_multiple_of(GRANULE_BYTES);
            require(shaped, what, "a multiple of 16, at least 16", bytes)?;
        }
        // With one slot, a ring in which everybody has sent waits for itself.
        let counted = count >= 2 && count.is_power_of_two();
        require(counted, "slots of a lane", "a power of two, at least 2", count)?;
        let low_latency = u64::from(self.low_latency_bytes);
        let fits =
            low_latency.is_multiple_of(GRANULE_BYTES) && low_latency <= LOW_LATENCY_BYTES_MAX;
        require(fits, "bytes of an LL message", "a multiple of 16, at most 1 MiB", low_latency)
    }
}
