//! Drafts: an all-reduce of any size of world, whose programs are made one rank at a time.
//!
//! A draft is for those who look at programs without running them: a timing model of 16,384 ranks
//! has no use for a proof that takes the memory of all of them. What a communicator runs goes
//! through [`verify`](super::verify); a draft becomes such a plan with [`Draft::plan`].

use super::encode::encode;
use super::selection::{Limits, PlanError};
use super::{
    Algorithm, Choice, CollectiveRequest, Forest, GRANULE_BYTES, LaneEnd, Plan, RankProgram,
};
use ringdove_kernels::descriptor::LENGTH_BYTES_MAX;
use ringdove_kernels::op::BLOCK_PORTS_MAX;
use std::cell::Cell;
use std::sync::Arc;

/// Ways to all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// What [`select`](super::select) chooses.
    Selected,
    /// Everyone with everyone, in two hops; at most 17 ranks.
    TwoShot,
    /// Recursive halving and doubling; powers of two, at most 65,536.
    Halving,
    /// Along packed trees: [`Draft::packed`] makes it, which has the trees.
    Trees,
}

/// An all-reduce, rank by rank. Programs are a function of the choice, which holds `in_place` only
/// where they differ by it: equal drafts have equal programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    choice: Choice,
}

impl Draft {
    /// What a choice makes.
    pub fn of(mut choice: Choice) -> Self {
        // It has had its say in the algorithm, and no other builder asks for it.
        choice.request.in_place &= choice.algorithm == Algorithm::RingSymmetric;
        Self { choice }
    }

    /// A pattern through slots, in exactly `blocks` blocks.
    ///
    /// # Errors
    /// Numbers that the pattern cannot do: one rank, too many for a block's ports, not a power of
    /// two.
    pub fn new(
        pattern: Pattern,
        request: &CollectiveRequest,
        limits: &Limits,
    ) -> Result<Self, PlanError> {
        limits.check()?;
        let ranks = request.rank_count;
        let refuse =
            |expected| Err(PlanError::Number { what: "ranks", expected, seen: u64::from(ranks) });
        let selected = super::select(request, limits)?;
        // Messages of a round in units of one piece, and the lanes of a block.
        let pieces_max = match pattern {
            Pattern::Selected => return Ok(Self::of(selected)),
            Pattern::TwoShot if !(2..=BLOCK_PORTS_MAX as u32 / 2 + 1).contains(&ranks) => {
                return refuse("2 to 17 for two-shot: a block has 32 ports");
            }
            Pattern::TwoShot => 1,
            Pattern::Halving if !ranks.is_power_of_two() || !(2..=1 << 16).contains(&ranks) => {
                return refuse("a power of two from 2 to 65536 for halving");
            }
            Pattern::Halving => u64::from(ranks) / 2,
            Pattern::Trees => return refuse("trees that are packed for the machine"),
        };
        let message_max = u64::from(limits.slot_bytes).min(LENGTH_BYTES_MAX);
        let piece_max = message_max / pieces_max / GRANULE_BYTES * GRANULE_BYTES;
        if piece_max == 0 {
            let seen = u64::from(limits.slot_bytes);
            let expected = "at least 8 for each rank";
            return Err(PlanError::Number { what: "slot bytes", expected, seen });
        }
        let blocks = limits.blocks_max;
        let pieces = u64::from(blocks) * u64::from(ranks);
        let rounds = request.bytes.div_ceil(pieces * piece_max).max(1);
        let piece = request.bytes.div_ceil(pieces * rounds).next_multiple_of(GRANULE_BYTES);
        let piece = piece.max(GRANULE_BYTES) as u32;
        let algorithm = match pattern {
            Pattern::TwoShot => Algorithm::TwoShot,
            _ => Algorithm::Halving,
        };
        let (slots, thread_count) = (limits.slots(), 256);
        let mut choice = Choice { algorithm, blocks, slices: 1, slots, thread_count, ..selected };
        (choice.stores, choice.order) = (false, None);
        choice.set_slice_bytes(piece);
        Ok(Self::of(choice))
    }

    /// A plan along packed trees, as a communicator has it.
    ///
    /// # Errors
    /// As [`select_packed`](super::select_packed).
    pub fn packed(
        request: &CollectiveRequest,
        limits: &Limits,
        forest: &Arc<Forest>,
    ) -> Result<Self, PlanError> {
        super::select_packed(request, limits, forest).map(Self::of)
    }

    /// Number of ranks.
    pub fn rank_count(&self) -> u32 {
        self.choice.request.rank_count
    }

    /// One rank's program.
    pub fn program(&self, rank: u32) -> RankProgram {
        super::program(&self.choice, rank)
    }

    /// One rank's program as bytes, and the port table that it refers to.
    pub fn encoded(&self, rank: u32) -> (Vec<u8>, Vec<LaneEnd>) {
        let program = self.program(rank);
        let table: Vec<LaneEnd> =
            program.blocks.iter().flat_map(|block| block.ports.iter().copied()).collect();
        let Choice { thread_count, slots, .. } = self.choice;
        let plan = Plan { ranks: vec![program], thread_count, slots };
        // Ports are asked for in the order of the table, each once.
        let next = Cell::new(0);
        let resolve = |_: LaneEnd| Some(next.replace(next.get() + 1));
        let bytes = encode(&plan, 0, &resolve).expect("rank 0 of one, and every port resolves");
        (bytes, table)
    }

    /// The whole plan, to be verified.
    pub fn plan(&self) -> Plan {
        super::build(&self.choice)
    }
}
