//! Which plans reductions get whose results have to be the same bits: those that add up in the order
//! of ranks, and no others. These are all-pairs, for all-reduces in LL messages, and
//! `in_rank_order`, whose groups are chosen here:
//!
//! | ranks    | nodes             | few bytes               | more                         |
//! |----------|-------------------|-------------------------|------------------------------|
//! | up to 17 | one, or of 1 rank | one group               | groups of 1 rank (a chain)   |
//! | up to 17 | of several ranks  | one group               | a node, or a part of it      |
//! | more     | one, or of 1 rank | the most ranks up to 16 | groups of 1 rank             |
//! | more     | of several ranks  | a node, or a part of it | a node, or a part of it      |
//!
//! A chain has the lanes of a ring, with all their blocks and large slots. Exceptions: a
//! reduce-scatter of one group moves two thirds of what a chain does, so it has one group whatever
//! the size; a reduce has one group or a chain.

use super::{Algorithm, Choice, Limits, choice, finish, goes_all_pairs, row};
use crate::plan::{Collective, CollectiveRequest};
use ringdove_kernels::op::BLOCK_PORTS_MAX;

/// The most ranks of one group: two ports for each other one.
const ONE_GROUP_RANKS_MAX: u32 = BLOCK_PORTS_MAX as u32 / 2 + 1;
/// The most ranks of each of several groups: two ports more lead to the others.
const GROUP_RANKS_MAX: u32 = ONE_GROUP_RANKS_MAX - 1;
/// Up to this, of all parts, few hops count for more than large slots and several blocks.
const FEW_HOPS_BYTES_MAX: u64 = 512 << 10;

/// The plan of a reduction of several ranks.
pub(super) fn choose(request: &CollectiveRequest, limits: &Limits, per_node: u32) -> Choice {
    let is_all_reduce = request.collective == Collective::AllReduce;
    let bytes = request.bytes.saturating_mul(request.parts());
    let row = row(bytes);
    if is_all_reduce && goes_all_pairs(request, limits, per_node) {
        let mut choice = choice(request, limits, per_node, Algorithm::AllPairs, row);
        choice.all_pairs(limits);
        return finish(choice, limits.low_latency_bytes.into());
    }
    let mut choice = choice(request, limits, per_node, Algorithm::InRankOrder, row);
    choice.group_ranks = group_ranks(request, per_node, bytes);
    choice.set_blocks(limits);
    let slice_bytes_max = choice.slots.bytes;
    finish(choice, slice_bytes_max.into())
}

/// Ranks of a group, where all parts have so many bytes.
fn group_ranks(request: &CollectiveRequest, per_node: u32, bytes: u64) -> u32 {
    let ranks = request.rank_count;
    let is_small = bytes <= FEW_HOPS_BYTES_MAX;
    let part_of = |all: u32| {
        (1..=GROUP_RANKS_MAX).rev().find(|part| all.is_multiple_of(*part)).expect("1 divides all")
    };
    let of_nodes = 1 < per_node && per_node < ranks;
    match request.collective {
        _ if is_small && ranks <= ONE_GROUP_RANKS_MAX => ranks,
        Collective::Reduce { .. } => 1,
        _ if of_nodes => part_of(per_node),
        Collective::ReduceScatter if ranks <= ONE_GROUP_RANKS_MAX => ranks,
        _ if is_small => part_of(ranks),
        _ => 1,
    }
}
