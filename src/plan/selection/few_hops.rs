//! When plans of few hops win: recursive doubling, trees, Bruck's algorithm.
//!
//! The rules count hops and bytes, with one constant: what a link carries while one hop takes
//! place. ARK's software engine (NSDI 2023, figure 8: two GPUs over PCIe v3) needs 11.1 µs for a
//! message and then moves 13.1 GB/s, which makes 145 KB; other links have more of it (MSCCL++ on
//! A100: 4 to 5 µs, over 200 GB/s). Half of the smaller is taken, for these plans copy each message
//! into a slot and out of it. Up to 8 and 16 ranks plans of one hop serve as well.

use super::{ALL_PAIRS_RANKS_MAX, Algorithm, Choice, Limits, ONE_HOP_BYTES_MAX, ONE_HOP_RANKS_MAX};
use crate::plan::{Collective, CollectiveRequest};

/// Bytes that a link carries in the time of one hop: see above.
const HOP_BYTES: u64 = 64 << 10;
/// Up to this, all-reduces run in one block (see the table of [`super`]); rings use more than one
/// block for more, and one pair of ranks has lanes for one block only.
const DOUBLING_BYTES_MAX: u64 = 256 << 10;
/// Up to this, of one part, Bruck's all-to-all wins. Of `n` ranks, it moves `log2(n) / 2` times
/// as much as an exchange and copies it twice, and saves about two descriptors for each rank: the
/// message and its credit, which take 2.5 µs each (the same figure, rate of small messages). For
/// 64 to 256 ranks both are even at 2 to 3 KiB.
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

/// Does recursive doubling win? Rings send every byte about twice, however many ranks there are.
pub(super) fn doubling(request: &CollectiveRequest, per_node: u32) -> bool {
    let ranks = request.rank_count;
    if ranks <= ALL_PAIRS_RANKS_MAX || request.bytes > DOUBLING_BYTES_MAX {
        return false;
    }
    let hops = u64::from(ranks.ilog2() + if ranks.is_power_of_two() { 0 } else { 2 });
    let around = |ranks: u32| 2 * (u64::from(ranks) - 1);
    let hops_of_rings = match per_node {
        1 => around(ranks),
        _ if per_node == ranks => around(ranks),
        _ => around(per_node) + around(ranks / per_node),
    };
    request.bytes * (hops - 2) <= HOP_BYTES * hops_of_rings.saturating_sub(hops)
}

/// The plan of few hops for a collective other than all-reduce, where it wins. What is in place
/// matters where all ranks know it alike.
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
        Collective::AllToAll => bytes <= BRUCK_PART_BYTES_MAX && !request.in_place,
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
