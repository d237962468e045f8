//! Which plans reductions get whose results have to be the same bits: those that add up in the
//! order of ranks, and no others. These are all-pairs, for all-reduces in LL messages, and
//! `in_rank_order`, whose groups are chosen here:
//!
//! | ranks    | nodes             | few bytes               | more                         |
//! |----------|-------------------|-------------------------|------------------------------|
//! | up to 17 | one, or of 1 rank | one group               | groups of 1 rank (a chain)   |
//! | up to 17 | of several ranks  | one group               | a node, or a part of it      |
//! | more     | one, or of 1 rank | the most ranks up to 16 | groups of 1 rank             |
//! | more     | of several ranks  | the most ranks up to 16 | a node, or a part of it      |
//!
//! Few bytes are those of one message to each rank. A chain has the lanes of a ring, with all their
//! blocks and large slots. Exceptions: a reduce-scatter of one group moves two thirds of what a
//! chain does, so it has one group whatever the size; a reduce has one group or a chain.
//!
//! Modelled times of one group and of a chain, in µs (`hwsim predict all-reduce --engine proxy`):
//!
//! | machine      | ranks | size    | one group | chain | a node |
//! |--------------|-------|---------|-----------|-------|--------|
//! | pcie4        | 4     | 1 MiB   | 348       | 256   |        |
//! | dgx1v        | 8     | 1 MiB   | 361       | 438   |        |
//! | dgx1v        | 8     | 2 MiB   | 722       | 531   |        |
//! | dgx-a100     | 8     | 1 MiB   | 154       | 380   |        |
//! | dgx-a100     | 8     | 4 MiB   | 608       | 421   |        |
//! | dgx-a100 x 2 | 16    | 2 MiB   | 327       |       | 365    |

use super::{Algorithm, Choice, Limits, choice, finish, row};
use crate::plan::{Collective, CollectiveRequest};
use ringdove_kernels::op::BLOCK_PORTS_MAX;

/// The most ranks of one group: two ports for each other one.
const ONE_GROUP_RANKS_MAX: u32 = BLOCK_PORTS_MAX as u32 / 2 + 1;
/// The most ranks of each of several groups: two ports more lead to the others.
const GROUP_RANKS_MAX: u32 = ONE_GROUP_RANKS_MAX - 1;
/// Pieces are not cut below this: a link carries as much in the time of one hop (see `few_hops`).
const PIECE_BYTES_MIN: u64 = 64 << 10;

/// The plan of a reduction of several ranks.
pub(super) fn choose(request: &CollectiveRequest, limits: &Limits, per_node: u32) -> Choice {
    let bytes = request.bytes.saturating_mul(request.parts());
    let row = row(bytes);
    let mut choice = choice(request, limits, per_node, Algorithm::InRankOrder, row);
    let is_small = bytes <= u64::from(limits.pair_slot_bytes) * u64::from(request.rank_count);
    choice.group_ranks = group_ranks(request, per_node, is_small);
    choice.set_blocks(limits);
    choice.slices = slices(&choice);
    let slice_bytes_max = choice.slots.bytes;
    finish(choice, slice_bytes_max.into())
}

/// Pieces that follow one another: of a chunk, or of a part of it that belongs to one rank.
fn slices(choice: &Choice) -> u32 {
    let Choice { request, blocks, group_ranks, slices, .. } = choice;
    let (chunks, most) = match request.collective {
        Collective::ReduceScatter => (*blocks, *slices),
        _ => (blocks * group_ranks, slices * (request.rank_count / group_ranks)),
    };
    let wanted = request.bytes / u64::from(chunks) / PIECE_BYTES_MIN;
    wanted.clamp(1, most.into()) as u32
}

/// Ranks of a group, where all parts have few bytes, or not.
fn group_ranks(request: &CollectiveRequest, per_node: u32, is_small: bool) -> u32 {
    let ranks = request.rank_count;
    let part_of = |all: u32| {
        (1..=GROUP_RANKS_MAX).rev().find(|part| all.is_multiple_of(*part)).expect("1 divides all")
    };
    let of_nodes = 1 < per_node && per_node < ranks;
    match request.collective {
        _ if is_small && ranks <= ONE_GROUP_RANKS_MAX => ranks,
        Collective::Reduce { .. } => 1,
        _ if is_small => part_of(ranks),
        _ if of_nodes => part_of(per_node),
        Collective::ReduceScatter if ranks <= ONE_GROUP_RANKS_MAX => ranks,
        _ => 1,
    }
}
