//! All-reduces in which each block works on its own pieces, one for each rank, with the same blocks
//! of other ranks.
//!
//! Data is cut round-major as the ring's is: in round `r`, block `b` handles one piece for each
//! rank.

use super::builder::SlotHop;
use super::{BlockProgram, Choice, Op, Range, RankProgram};

/// One block of one rank.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) choice: &'a Choice,
    pub(super) rank: u32,
    pub(super) block: u32,
}

/// What one rank does: `block` makes each block's program.
pub(super) fn program<'a>(
    choice: &'a Choice,
    rank: u32,
    block: impl Fn(Part<'a>) -> BlockProgram,
) -> RankProgram {
    let part = |number| Part { choice, rank, block: number };
    RankProgram { blocks: (0..choice.blocks).map(|number| block(part(number))).collect() }
}

impl Part<'_> {
    pub(super) fn rank_count(&self) -> u32 {
        self.choice.request.rank_count
    }

    /// `count` pieces, the first of which is number `first` of the block's.
    pub(super) fn range(&self, first: u32, count: u32) -> Range {
        let before = u64::from(self.block) * u64::from(self.rank_count()) + u64::from(first);
        let piece = self.choice.slice_bytes;
        Range { extent: before * u64::from(piece), length: count * piece }
    }

    /// The block's lanes to and from `peer`.
    pub(super) fn lanes(&self, program: &mut BlockProgram, peer: u32) -> SlotHop {
        let (index, slots) = (self.block as u16, self.choice.slots.count);
        match self.choice.stores {
            true => program.hop_of_stores([peer, self.rank, peer], index, slots),
            false => program.hop([peer, self.rank, peer], index, slots),
        }
    }

    /// Ends the program: `ops` are one round of it, `lanes` those that they use.
    pub(super) fn finish(
        &self,
        program: &mut BlockProgram,
        mut ops: Vec<Op>,
        lanes: impl IntoIterator<Item = SlotHop>,
    ) {
        lanes.into_iter().for_each(|lanes| lanes.advance(&mut ops));
        program.rounds(self.choice, ops);
    }
}
