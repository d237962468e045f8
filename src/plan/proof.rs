//! What is proved of a plan that is long.
//!
//! A proof unrolls all rounds of all ranks. A plan over lanes of stores moves a little in each
//! round of many blocks, so that of a gigabyte would take longer than hundreds of its launches. But
//! its blocks do the same, on lanes and on data of their own, and its rounds do the same, on data
//! of their own. So where the whole is long, a plan of two blocks and three rounds stands for it,
//! the last one clipped: in it two blocks are beside each other, rounds use slots again, and each
//! segment runs. Each rank's own part of the whole is checked op by op ([`own_part`]), as those of
//! large worlds are. Blocks of packed trees ([`Algorithm::Packed`]) have trees of their own: there
//! the plan of three rounds has all blocks. Tests compare the programs of both, and prove long
//! plans as a whole.
//!
//! [`own_part`]: super::own_part

use super::{Algorithm, Choice, program};

/// Ops in all rounds of all ranks up to which the whole is proved: a fraction of a second.
const OPS_MAX: u64 = 1 << 17;
/// Blocks and rounds of a plan that stands for others.
const BLOCKS: u32 = 2;
const ROUNDS: u64 = 3;

/// The choice whose plan is proved for that of `choice`; `None`: its own. All ranks answer alike.
pub fn stand_in(choice: &Choice) -> Option<Choice> {
    if !choice.stores || unrolled(choice) <= OPS_MAX {
        return None;
    }
    if choice.algorithm == Algorithm::Packed {
        return Some(fewer_rounds(choice));
    }
    let blocks = choice.blocks.min(BLOCKS);
    let mut small = Choice { blocks, ..choice.clone() };
    let block_bytes = choice.round_bytes() / u64::from(choice.blocks);
    let rounds = u64::from(choice.rounds).min(ROUNDS);
    // What the last round has: blocks that have all of their bytes, one that has some, others.
    let last = choice.request.bytes - (u64::from(choice.rounds) - 1) * choice.round_bytes();
    let clipped = match last < block_bytes {
        true => last,
        false => (block_bytes + last % block_bytes).min(u64::from(blocks) * block_bytes),
    };
    small.request.bytes = (rounds - 1) * u64::from(blocks) * block_bytes + clipped;
    small.set_slice_bytes(choice.slice_bytes);
    Some(small)
}

/// Of packed trees each block has its own, so all of them are proved, in three rounds.
fn fewer_rounds(choice: &Choice) -> Choice {
    let mut small = choice.clone();
    let rounds = u64::from(choice.rounds).min(ROUNDS);
    let last = choice.request.bytes - (u64::from(choice.rounds) - 1) * choice.round_bytes();
    small.request.bytes = (rounds - 1) * choice.round_bytes() + last;
    small.set_slice_bytes(choice.slice_bytes);
    small
}

/// Ops in all rounds of all ranks, of which each has as many as the first.
fn unrolled(choice: &Choice) -> u64 {
    let program = program(choice, 0);
    let segments = program.blocks.iter().flat_map(|block| &block.segments);
    let ops: u64 = segments.map(|it| it.ops.len() as u64 * u64::from(it.rounds)).sum();
    ops * u64::from(choice.request.rank_count)
}
