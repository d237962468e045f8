//! Plans along packed trees: which there are, in how many blocks and messages.
//!
//! A block has one tree, and takes lanes of stores between the ranks alone that a link of it joins:
//! so there are more blocks than lanes between two ranks. Where there are fewer trees, and enough
//! data, several blocks share a tree, each with a part of its data: a link carries what the blocks
//! that use it store, and one block does not fill it.

use super::stores::STORE_SLOTS;
use super::{Algorithm, Choice, Limits, PlanError, choice, finish, require, row};
use crate::plan::{Collective, CollectiveRequest, Forest};
use std::sync::Arc;

/// So many blocks, and trees, for each lane of stores between two ranks, at most: 96 blocks by
/// default, the 48 trees of the optimum of eight V100s in two blocks each. A V100 runs 320 such
/// blocks at a time, if the executor has 64 registers for each of 256 threads.
pub(crate) const TREES_PER_LANE: u32 = 3;
/// A tree's data is not spread over more blocks below this for each.
const BYTES_PER_BLOCK: u64 = 32 << 10;
/// Messages of a round, where there is so much data: while one goes up a tree, those before it
/// come down.
const SLICES_MAX: u64 = 16;
/// Messages of a round of all links of a rank: a communicator has memory for programs of 3 MiB, of
/// which an all-reduce takes up to 0.95 KiB for each.
const LINK_SLICES_MAX: u64 = 3200;
/// Messages are not cut below this for the sake of more of them.
const SLICE_BYTES_MIN: u64 = 4 << 10;

impl Choice {
    /// Equal parts into which the data of one root, or of an all-reduce, is cut in each round.
    pub(in crate::plan) fn parts_of_data(&self) -> u32 {
        match (&self.forest, self.request.collective) {
            (Some(forest), Collective::AllReduce) if forest.root().is_none() => self.blocks,
            (Some(forest), _) => forest.trees_per_root() * self.blocks_of_tree(),
            (None, _) => self.blocks,
        }
    }

    /// Blocks that share a tree.
    pub(crate) fn blocks_of_tree(&self) -> u32 {
        let trees = self.forest.as_ref().map_or(1, |forest| forest.trees().len() as u32);
        self.blocks / trees
    }
}

/// The plan along the trees of `forest`, over lanes of stores, and of rails between nodes.
///
/// # Errors
/// A collective that trees do not carry; a forest of other ranks or roots, or with more trees than
/// there are such lanes; a number in `request` or `limits` that no plan can be built for.
pub fn select_packed(
    request: &CollectiveRequest,
    limits: &Limits,
    forest: &Arc<Forest>,
) -> Result<Choice, PlanError> {
    limits.check()?;
    request.check()?;
    let ranks = request.rank_count;
    let carried = match request.collective {
        Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter => None,
        Collective::Broadcast { root } | Collective::Reduce { root } => Some(root),
        _ => {
            let (what, expected) = ("parts for other ranks", "a collective that trees carry");
            return Err(PlanError::Number { what, expected, seen: request.bytes });
        }
    };
    let seen = forest.rank_count();
    require(seen == ranks, "ranks of the trees", "the ranks of the collective", seen.into())?;
    // All ranks reduce to one and hear from it: so an all-reduce may have one root.
    let fits = forest.root() == carried || request.collective == Collective::AllReduce;
    let root = forest.root().map_or(u64::MAX, u64::from);
    require(fits, "root of the trees", "that of the collective, or all ranks", root)?;
    let trees = forest.trees().len() as u32;
    let (lanes, uses) = (limits.store_blocks, forest.uses_max(request.collective.reduces()));
    let expected = "at most the lanes of stores of two ranks";
    require(uses <= lanes, "trees with a link between two ranks", expected, uses.into())?;
    let per_node = if limits.ranks_per_node == 0 { ranks } else { limits.ranks_per_node };

    let mut choice = choice(request, limits, per_node, Algorithm::Packed, row(request.bytes));
    choice.forest = Some(forest.clone());
    (choice.stores, choice.slots, choice.blocks) = (true, STORE_SLOTS, trees);
    let of_tree = request.bytes / u64::from(choice.parts_of_data());
    let most = (TREES_PER_LANE * lanes / trees).min(lanes / uses).max(1);
    let shares = (of_tree / BYTES_PER_BLOCK).clamp(1, most.into());
    choice.blocks = trees * shares as u32;
    let of_block = request.bytes / u64::from(choice.parts_of_data());
    let most = (LINK_SLICES_MAX / (shares * forest.links_max())).clamp(1, SLICES_MAX);
    choice.slices = (of_block / SLICE_BYTES_MIN).clamp(1, most) as u32;
    choice.thread_count = 256;
    Ok(finish(choice, STORE_SLOTS.bytes.into()))
}
