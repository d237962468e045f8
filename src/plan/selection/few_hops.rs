//! When plans of few hops win: recursive doubling and halving, two-shot, trees, Bruck's algorithm.
//!
//! The rules count messages that follow one another and bytes. Their constants come from the timing
//! model (`hwsim predict all-reduce --engine proxy`, one block, slots of 128 KiB: what pairs of
//! ranks have). Modelled times, in µs:
//!
//! | machine        | size    | rings | doubling | two-shot | halving |
//! |----------------|---------|-------|----------|----------|---------|
//! | pcie4          | 64 KiB  | 103   |          | 46       | 79      |
//! | dgx1v          | 256 KiB | 269   |          | 103      | 182     |
//! | dgx-a100       | 64 KiB  | 176   |          | 62       | 64      |
//! | dgx-a100       | 1 MiB   | 268   |          | 154      | 337     |
//! | dgx-a100 x 2   | 8 KiB   | 217   | 38       | 70       | 67      |
//! | dgx-a100 x 2   | 256 KiB |       | 99       | 78       | 99      |
//! | dgx-a100 x 2   | 1 MiB   | 521   |          | 170      | 387     |
//! | dgx-a100 x 8   | 128 KiB |       | 93       |          | 98      |
//! | dgx-a100 x 8   | 256 KiB |       | 150      |          | 118     |
//! | dgx-a100 x 8   | 2 MiB   | 1534  |          |          | 919     |
//!
//! A link carries about 64 KiB in the time of one hop: ARK's software engine (NSDI 2023, figure 8:
//! two GPUs over PCIe v3) needs 11.1 µs for a message and then moves 13.1 GB/s, which makes 145 KB,
//! of which half is taken, for these plans copy each message into a slot and out of it.

use super::{Algorithm, Choice, Limits, ONE_HOP_BYTES_MAX, ONE_HOP_RANKS_MAX};
use crate::plan::{Collective, CollectiveRequest, GRANULE_BYTES};

/// Bytes that a link carries in the time of one hop: see above.
const HOP_BYTES: u64 = 64 << 10;
/// Up to this, recursive doubling comes before plans that send less in more messages: see above.
const DOUBLING_BYTES_MAX: u64 = 128 << 10;
/// The same where there are none: recursive halving wants a power of two of ranks.
const DOUBLING_BYTES_MAX_ALONE: u64 = 256 << 10;
/// Up to this, two-shot wins everywhere: see above. Its ranks have a port for each other one.
const TWO_SHOT_BYTES_MAX: u64 = 512 << 10;
/// Above this, a rank's part of a ring over nodes would have more than
/// [`ENCODED_BYTES_MAX`](crate::plan::ENCODED_BYTES_MAX) bytes.
const RING_RANKS_MAX: u32 = 8192;
/// Up to this, of one part, Bruck's all-to-all wins. Of `n` ranks, it moves `log2(n) / 2` times
/// as much as an exchange and copies it twice, and saves about two descriptors for each rank: the
/// message and its credit, which take ARK's engine 2.5 µs each (the same figure, small messages).
/// For 64 to 256 ranks both are even at 2 to 3 KiB.
const BRUCK_PART_BYTES_MAX: u64 = 1 << 10;

impl Choice {
    /// True if messages hold whole parts of several ranks, and so the data is not cut into rounds.
    pub(in crate::plan) fn is_in_whole_parts(&self) -> bool {
        let parts = self.request.collective;
        let on_tree = matches!(parts, Collective::Gather { .. } | Collective::Scatter { .. });
        self.algorithm == Algorithm::Bruck || self.algorithm == Algorithm::Tree && on_tree
    }

    /// The bytes that one slot has to hold at least, where messages hold parts of several ranks.
    #[cfg(test)]
    pub(in crate::plan) fn slot_bytes_needed(&self) -> u64 {
        match self.algorithm {
            Algorithm::Halving => {
                u64::from(self.request.rank_count / 2) * u64::from(self.slice_bytes)
            }
            _ if self.is_in_whole_parts() => message_bytes(&self.request),
            _ => 0,
        }
    }
}

/// The bytes of the largest message that holds whole parts and is not cut.
fn message_bytes(request: &CollectiveRequest) -> u64 {
    match request.collective {
        Collective::ReduceScatter | Collective::Gather { .. } | Collective::Scatter { .. } => {
            parts_of_message(request.rank_count).saturating_mul(request.bytes)
        }
        _ => 0,
    }
}

/// The most parts in one message of a tree or of a reduce-scatter in few hops: those of the ranks
/// behind the largest power of two below `ranks`, or of the ranks up to half of it.
fn parts_of_message(ranks: u32) -> u64 {
    let distance = (ranks.max(2) - 1).ilog2();
    let distance = 1 << distance;
    u64::from((ranks.max(2) - distance).max(distance / 2))
}

/// The plan of few hops for an all-reduce, where it wins.
pub(super) fn all_reduce(request: &CollectiveRequest, limits: &Limits) -> Option<Algorithm> {
    let (ranks, bytes) = (request.rank_count, request.bytes);
    let levels = u64::from(ranks.ilog2());
    let folds = if ranks.is_power_of_two() { 0 } else { 2 };
    // Rings send every byte about twice, and at least so many messages one after another.
    let around = 2 * (u64::from(ranks) - 1);
    let hops = levels + folds;
    let doubling = bytes * hops.saturating_sub(2) <= HOP_BYTES * around.saturating_sub(hops);
    let slot_bytes = u64::from(limits.pair_slot_bytes);
    let two_shot = (3..=ONE_HOP_RANKS_MAX).contains(&ranks)
        && bytes <= TWO_SHOT_BYTES_MAX.min(slot_bytes * u64::from(ranks));
    // Half of a round goes in the first message, and rounds do not overlap.
    let rounds = bytes.div_ceil(2 * slot_bytes);
    let halving = ranks > ONE_HOP_RANKS_MAX
        && ranks.is_power_of_two()
        && slot_bytes >= GRANULE_BYTES * u64::from(ranks / 2)
        && rounds * 2 * levels <= around;
    match bytes {
        _ if ranks > RING_RANKS_MAX => Some(Algorithm::Doubling),
        _ if doubling && bytes <= DOUBLING_BYTES_MAX => Some(Algorithm::Doubling),
        _ if two_shot => Some(Algorithm::TwoShot),
        _ if halving => Some(Algorithm::Halving),
        _ if doubling && bytes <= DOUBLING_BYTES_MAX_ALONE && ranks > ONE_HOP_RANKS_MAX => {
            Some(Algorithm::Doubling)
        }
        _ => None,
    }
}

/// The plan of few hops for a collective other than all-reduce, where it wins.
pub(super) fn other(request: &CollectiveRequest, limits: &Limits) -> Option<Algorithm> {
    let (ranks, bytes) = (request.rank_count, request.bytes);
    if ranks <= ONE_HOP_RANKS_MAX {
        return None;
    }
    let is_small = bytes <= ONE_HOP_BYTES_MAX;
    let slot_bytes = u64::from(limits.pair_slot_bytes);
    let fits = || message_bytes(request) <= slot_bytes;
    let wins = match request.collective {
        Collective::AllGather => is_small,
        Collective::ReduceScatter => is_small && fits(),
        Collective::AllToAll => bytes <= BRUCK_PART_BYTES_MAX,
        Collective::Gather { .. } | Collective::Scatter { .. } => fits(),
        Collective::Broadcast { .. } | Collective::Reduce { .. } => {
            // All messages pass each level of the tree, one after another; in a chain they follow
            // one another.
            let levels = u64::from((ranks - 1).ilog2() + 1);
            bytes.div_ceil(slot_bytes.min(HOP_BYTES)) * levels < u64::from(ranks - 1)
        }
        Collective::AllReduce | Collective::Barrier => false,
    };
    let algorithm = match request.collective {
        Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => {
            Algorithm::Bruck
        }
        _ => Algorithm::Tree,
    };
    wins.then_some(algorithm)
}
