//! Drafts: an all-reduce of any size of world, whose programs are made one rank at a time.
//!
//! A draft is for those who look at programs without running them: a timing model of 16,384 ranks
//! has no use for a proof that takes the memory of all of them. What a communicator runs goes
//! through [`verify`](super::verify); a draft becomes such a plan with [`Draft::plan`].

use super::builder::{SlotReceiver, SlotSender};
use super::encode::encode;
use super::selection::{Limits, PlanError};
use super::{
    BlockProgram, Choice, CollectiveRequest, GRANULE_BYTES, Lane, LaneEnd, LaneKind, Op, Plan,
    Range, RankProgram, Segment, Side, SlotShape, all_reduce_halving, all_reduce_two_shot,
};
use ringdove_kernels::descriptor::LENGTH_BYTES_MAX;
use ringdove_kernels::op::BLOCK_PORTS_MAX;
use std::cell::Cell;

/// Ways to all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// What [`select`](super::select) chooses.
    Selected,
    /// Everyone with everyone, in two hops; at most 17 ranks.
    TwoShot,
    /// Recursive halving and doubling; powers of two, at most 65,536.
    Halving,
}

/// An all-reduce, rank by rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    shape: Shape,
    thread_count: u32,
    slots: SlotShape,
    rank_count: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Shape {
    /// What [`select`](super::select) chooses. Programs are a function of the choice, which holds
    /// `in_place` no more: equal drafts have equal programs.
    Chosen(Box<Choice>),
    Blocks {
        pattern: Pattern,
        cut: Cut,
    },
}

/// How data is cut, round-major as the ring's is: in round `r`, block `b` handles one piece for
/// each rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) rank_count: u32,
    blocks: u32,
    /// Bytes of the piece that one rank finishes.
    piece: u32,
    slot_count: u32,
    rounds: u32,
    /// Bytes of the collective.
    limit: u64,
}

/// One block of one rank.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) cut: &'a Cut,
    pub(super) rank: u32,
    pub(super) block: u32,
}

/// Both ends of the lanes to and from another rank.
pub(super) struct Exchange {
    pub(super) sender: SlotSender,
    pub(super) receiver: SlotReceiver,
}

impl Part<'_> {
    /// `count` pieces, the first of which is number `first` of the block's.
    pub(super) fn range(&self, first: u32, count: u32) -> Range {
        let before = u64::from(self.block) * u64::from(self.cut.rank_count) + u64::from(first);
        Range { extent: before * u64::from(self.cut.piece), length: count * self.cut.piece }
    }

    /// The block's lanes to and from `peer`.
    pub(super) fn exchange(&self, program: &mut BlockProgram, peer: u32) -> Exchange {
        let (index, kind) = (self.block as u16, LaneKind::Slots);
        let lane = |from, to| Lane { from, to, index, kind };
        let send = program.port(lane(self.rank, peer), Side::Send);
        let receive = program.port(lane(peer, self.rank), Side::Receive);
        let sender = SlotSender::new(send, self.cut.slot_count);
        Exchange { sender, receiver: SlotReceiver::new(receive) }
    }

    /// Ends the program: `ops` are one round of it, `lanes` those that they use.
    pub(super) fn finish(
        &self,
        program: &mut BlockProgram,
        mut ops: Vec<Op>,
        lanes: impl IntoIterator<Item = Exchange>,
    ) {
        for Exchange { sender, receiver } in lanes {
            sender.advance(&mut ops);
            receiver.advance(&mut ops);
        }
        let round = u64::from(self.cut.rank_count) * u64::from(self.cut.piece);
        program.segments.push(Segment {
            rounds: self.cut.rounds,
            round_stride: u64::from(self.cut.blocks) * round,
            limit: self.cut.limit,
            ops,
        });
    }
}

impl Draft {
    /// What was selected.
    fn selected(mut choice: Choice) -> Self {
        // It has had its say in the algorithm, and no builder asks for it.
        choice.request.in_place = false;
        let (thread_count, slots) = (choice.thread_count, choice.slots);
        let rank_count = choice.request.rank_count;
        Self { shape: Shape::Chosen(Box::new(choice)), thread_count, slots, rank_count }
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
        // Messages of a round in units of one piece, and the lanes of a block.
        let pieces_max = match pattern {
            Pattern::Selected => return Ok(Self::selected(super::select(request, limits)?)),
            Pattern::TwoShot if !(2..=BLOCK_PORTS_MAX as u32 / 2 + 1).contains(&ranks) => {
                return refuse("2 to 17 for two-shot: a block has 32 ports");
            }
            Pattern::TwoShot => 1,
            Pattern::Halving if !ranks.is_power_of_two() || !(2..=1 << 16).contains(&ranks) => {
                return refuse("a power of two from 2 to 65536 for halving");
            }
            Pattern::Halving => u64::from(ranks) / 2,
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
        let rounds = if request.bytes == 0 { 0 } else { rounds };
        let rounds = u32::try_from(rounds).unwrap_or(u32::MAX);
        let (slot_count, limit) = (limits.slot_count, request.bytes);
        let cut = Cut { rank_count: ranks, blocks, piece, slot_count, rounds, limit };
        let shape = Shape::Blocks { pattern, cut };
        Ok(Self { shape, thread_count: 256, slots: limits.slots(), rank_count: ranks })
    }

    /// Number of ranks.
    pub fn rank_count(&self) -> u32 {
        self.rank_count
    }

    /// One rank's program.
    pub fn program(&self, rank: u32) -> RankProgram {
        match self.shape {
            Shape::Chosen(ref choice) => super::program(choice, rank),
            Shape::Blocks { pattern, ref cut } => {
                let block = |block| {
                    let part = Part { cut, rank, block };
                    match pattern {
                        Pattern::TwoShot => all_reduce_two_shot::program(part),
                        _ => all_reduce_halving::program(part),
                    }
                };
                RankProgram { blocks: (0..cut.blocks).map(block).collect() }
            }
        }
    }

    /// One rank's program as bytes, and the port table that it refers to.
    pub fn encoded(&self, rank: u32) -> (Vec<u8>, Vec<LaneEnd>) {
        let program = self.program(rank);
        let table: Vec<LaneEnd> =
            program.blocks.iter().flat_map(|block| block.ports.iter().copied()).collect();
        let plan =
            Plan { ranks: vec![program], thread_count: self.thread_count, slots: self.slots };
        // Ports are asked for in the order of the table, each once.
        let next = Cell::new(0);
        let resolve = |_: LaneEnd| Some(next.replace(next.get() + 1));
        let bytes = encode(&plan, 0, &resolve).expect("rank 0 of one, and every port resolves");
        (bytes, table)
    }

    /// The whole plan, to be verified.
    pub fn plan(&self) -> Plan {
        let ranks = (0..self.rank_count).map(|rank| self.program(rank)).collect();
        Plan { ranks, thread_count: self.thread_count, slots: self.slots }
    }
}
