//! When an all-reduce of several nodes goes over lanes of stores on each node, and over lanes of
//! the rails between them (`all_reduce_two_shot_nodes`): where all nodes have the same number of
//! ranks, 2 to 8, which reach each other's memory, and at most 64 together.
//!
//! The limits come from the timing model. Modelled times in µs on nodes of eight A100
//! (`dgx-a100`), beside those of the best plan through slots by the proxy (`--stores never`):
//!
//! | bytes   | 2 nodes | by the proxy | 4 nodes | by the proxy | 8 nodes | by the proxy |
//! |---------|---------|--------------|---------|--------------|---------|--------------|
//! | 8 KiB   | 10.8    | 37.8         | 42.6    | 42.6         | 47.5    | 47.5         |
//! | 64 KiB  | 12.7    | 53.2         | 49.1    | 62.5         | 71.8    | 71.8         |
//! | 256 KiB | 16.7    | 78.4         | 54.2    | 109          | 115     | 118          |
//! | 1 MiB   | 25.6    | 521          | 70.3    | 426          | 137     | 461          |
//! | 4 MiB   | 52.4    | 589          | 114     | 1049         | 189     | 2059         |
//! | 24 MiB  | 198     | 1216         | 379     | 2246         | 498     | 4263         |
//! | 256 MiB | 1952    | 7199         | 2959    | 7825         | 4514    | 8386         |
//! | 1 GiB   | 7674    | 28153        | 9537    | 31194        | 16607   | 32457        |
//!
//! Two nodes win at every size, and so do three (29 against 43 µs at 8 KiB). A ring over more has
//! two more hops for each further node, of some 7 µs each; in this time the plans in few hops,
//! which it has to beat, move 48 KiB ([`BYTES_PER_NODE`]): below, the times are theirs.
//!
//! **Blocks.** Each message between nodes takes the proxy about 0.7 µs with its credit, and each
//! MiB takes a lone block about 155 µs. So `messages * blocks * 0.7 + bytes / blocks * 155`, the
//! time, is least where `blocks` is about the root of `bytes / messages / 4 KiB`
//! ([`BYTES_PER_MESSAGE`]).
//!
//! **Messages.** In the first round and in the last one, links and adapters wait for each other.
//! So up to eight rounds of whole slots two nodes have more rounds of smaller messages: at least
//! two rounds, down to 8 KiB. Modelled times in µs, with the most blocks:
//!
//! | bytes  | 8 KiB | 16 KiB | 32 KiB |
//! |--------|-------|--------|--------|
//! | 4 MiB  | 52    | 60     | 60     |
//! | 8 MiB  | 103   | 82     | 120    |
//! | 16 MiB | 196   | 138    | 167    |
//! | 64 MiB | 757   | 501    | 513    |

use super::stores::{BYTES_MAX, STORE_SLOTS};
use super::{ALL_PAIRS_RANKS_MAX, Choice, Limits};
use crate::plan::{Collective, CollectiveRequest, PROVED_RANKS_MAX};

/// See above: up to so many nodes it wins at every size.
const RING_NODES_MIN: u64 = 3;
/// And over more from so many bytes on for each node.
const BYTES_PER_NODE: u64 = 48 << 10;
/// The blocks follow from it: see above.
const BYTES_PER_MESSAGE: u64 = 4 << 10;
/// Messages between two nodes are not cut below this for the sake of more rounds, and not below
/// the second one from two rounds of them on.
const SWAP_BYTES: [u64; 2] = [8 << 10, 16 << 10];
/// From so many rounds of whole slots on, there are enough of them.
const ROUNDS_ENOUGH: u64 = 8;
/// Blocks, times nodes, of more than two nodes: a block's program has ops for each node, and those
/// of all blocks have to fit the memory for plans.
const RING_BLOCKS: u32 = 128;

impl Choice {
    /// Makes this a choice over lanes of stores on each of several nodes. Gives the most bytes of a
    /// message.
    pub(super) fn set_stores_on_nodes(&mut self, limits: &Limits) -> u64 {
        let nodes = self.request.rank_count / self.ranks_per_node;
        (self.stores, self.slots) = (true, STORE_SLOTS);
        let (messages, blocks_max) = match nodes {
            2 => (1, u32::MAX),
            _ => (2 * (u64::from(nodes) - 1), RING_BLOCKS / nodes),
        };
        // Two nodes swap whole chunks.
        self.slices = if nodes == 2 { 1 } else { nodes };
        let wanted = (self.request.bytes / (messages * BYTES_PER_MESSAGE)).isqrt().max(1) as u32;
        self.blocks = wanted.min(limits.store_blocks_max()).min(blocks_max);
        let slot = u64::from(STORE_SLOTS.bytes);
        let chunks = u64::from(self.blocks) * u64::from(self.ranks_per_node);
        match self.request.bytes / chunks {
            part if nodes == 2 && part < ROUNDS_ENOUGH * slot => {
                (part / 2).clamp(SWAP_BYTES[0], SWAP_BYTES[1])
            }
            _ => slot,
        }
    }
}

/// Does a request go over lanes of stores on each of several nodes?
pub(super) fn goes_by_stores_on_nodes(
    request: &CollectiveRequest,
    limits: &Limits,
    per_node: u32,
) -> bool {
    let nodes = u64::from(request.rank_count / per_node);
    let least = nodes.saturating_sub(RING_NODES_MIN) * BYTES_PER_NODE;
    limits.store_blocks > 0
        && request.collective == Collective::AllReduce
        && nodes > 1
        && (2..=ALL_PAIRS_RANKS_MAX).contains(&per_node)
        && request.rank_count <= PROVED_RANKS_MAX
        && request.bytes >= least
        && (limits.nvlink || request.bytes <= BYTES_MAX)
}
