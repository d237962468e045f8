//! Hierarchical all-reduce over nodes of `m` ranks each: reduce-scatter around each node,
//! all-reduce around each *rail* (the ranks with the same place on their nodes), all-gather around
//! each node. Data crosses between nodes on all rails at once, each with its share, and in fewer
//! hops than one ring through all ranks would need: `2 (m - 1) + 2 (k - 1)` for `k` nodes.
//!
//! The data is cut round-major, as for the ring: in round `r`, block `b` handles `m` chunks of `k`
//! pieces, of `slices` messages each. After the first phase, place `l` of a node holds chunk
//! `l + 1`, reduced over its node, in its output; the rails reduce it piece by piece; the last
//! phase takes the finished chunks around the node. Everything goes through slots.
//!
//! In place it is right too: a rank writes a chunk of its output only after it has added that
//! chunk of its input, or when nobody needs it any more.

use super::builder::{Ring, SlotHop, Step, at, copy};
use super::{BlockProgram, Buffer, Choice, Modifiers, Op, Range, RankProgram, Segment};

/// What one rank does. Ranks of a node follow one another.
pub(super) fn program(choice: &Choice, rank: u32) -> RankProgram {
    let blocks = (0..choice.blocks).map(|block| Walk { choice, rank, block }.program());
    RankProgram { blocks: blocks.collect() }
}

/// One rank's part of one block's work.
struct Walk<'a> {
    choice: &'a Choice,
    rank: u32,
    block: u32,
}

impl Walk<'_> {
    fn program(&self) -> BlockProgram {
        let mut program = BlockProgram::default();
        if self.choice.rounds == 0 {
            return program;
        }
        let (per_node, nodes) = (self.choice.ranks_per_node, self.nodes());
        let (place, node) = (self.rank % per_node, self.rank / per_node);
        let around_node = Ring { index: place, size: per_node };
        let rail = Ring { index: node, size: nodes };
        let on_node = |place: u32| node * per_node + place % per_node;
        let on_rail = |node: u32| node % nodes * per_node + place;
        let mut inner = self.hop(&mut program, on_node(place + 1), on_node(place + per_node - 1));
        let mut outer = self.hop(&mut program, on_rail(node + 1), on_rail(node + nodes - 1));
        let mut ops = Vec::new();
        for piece in 0..nodes {
            self.reduce_on_node(&mut ops, &mut inner, around_node, piece);
        }
        self.all_reduce_on_rail(&mut ops, &mut outer, rail, around_node.own());
        for piece in 0..nodes {
            self.gather_on_node(&mut ops, &mut inner, around_node, piece);
        }
        inner.advance(&mut ops);
        outer.advance(&mut ops);
        program.segments.push(Segment {
            rounds: self.choice.rounds,
            round_stride: self.choice.round_bytes(),
            limit: self.choice.request.bytes,
            ops,
        });
        program
    }

    /// Piece `piece` of every chunk: this rank's own ends in the output, reduced over the node.
    fn reduce_on_node(&self, ops: &mut Vec<Op>, hop: &mut SlotHop, ring: Ring, piece: u32) {
        let slices = self.choice.slices;
        for slice in 0..slices {
            let range = self.range(ring.index, piece, slice);
            hop.sender.send(ops, at(Buffer::Input, range), range, Modifiers::SCALE);
        }
        for step in ring.reduced(slices) {
            let range = self.range(step.part, piece, step.slice);
            let arrived = hop.receiver.wait(ops);
            let destination = match step.is_last {
                true => at(Buffer::Output, range),
                false => hop.sender.claim(ops),
            };
            let b = at(Buffer::Input, range);
            let modifiers = Modifiers::SCALE;
            ops.push(Op::Reduce { destination, a: arrived, b, range, modifiers });
            if !step.is_last {
                hop.sender.put(ops, range);
            }
            hop.receiver.release(ops);
        }
    }

    /// This rank's chunk, reduced over its node, becomes the reduction over all nodes.
    fn all_reduce_on_rail(&self, ops: &mut Vec<Op>, hop: &mut SlotHop, rail: Ring, chunk: u32) {
        let slices = self.choice.slices;
        for slice in 0..slices {
            let range = self.range(chunk, rail.index, slice);
            hop.sender.send(ops, at(Buffer::Output, range), range, Modifiers::NONE);
        }
        for step in rail.reduced(slices) {
            let range = self.range(chunk, step.part, step.slice);
            let arrived = hop.receiver.wait(ops);
            let slot = hop.sender.claim(ops);
            ops.push(Op::Reduce {
                destination: slot,
                a: arrived,
                b: at(Buffer::Output, range),
                range,
                modifiers: Modifiers { scale: false, finish: step.is_last },
            });
            // The last one is complete: it is also the first to go around.
            hop.sender.put(ops, range);
            hop.receiver.release(ops);
            if step.is_last {
                ops.push(copy(at(Buffer::Output, range), slot, range, Modifiers::NONE));
            }
        }
        let steps = rail.gathered(slices);
        let landing = |step: Step| {
            let range = self.range(chunk, step.part, step.slice);
            (at(Buffer::Output, range), range, step.is_last)
        };
        hop.gather(ops, steps.map(landing));
    }

    /// Finished pieces go around the node.
    fn gather_on_node(&self, ops: &mut Vec<Op>, hop: &mut SlotHop, ring: Ring, piece: u32) {
        let slices = self.choice.slices;
        for slice in 0..slices {
            let range = self.range(ring.own(), piece, slice);
            hop.sender.send(ops, at(Buffer::Output, range), range, Modifiers::NONE);
        }
        let steps = ring.gathered(slices);
        let landing = |step: Step| {
            let range = self.range(step.part, piece, step.slice);
            (at(Buffer::Output, range), range, step.is_last)
        };
        hop.gather(ops, steps.map(landing));
    }

    fn nodes(&self) -> u32 {
        self.choice.request.rank_count / self.choice.ranks_per_node
    }

    fn range(&self, chunk: u32, piece: u32, slice: u32) -> Range {
        let length = self.choice.slice_bytes;
        let chunks = u64::from(self.block) * u64::from(self.choice.ranks_per_node);
        let pieces = (chunks + u64::from(chunk)) * u64::from(self.nodes()) + u64::from(piece);
        let slices = pieces * u64::from(self.choice.slices) + u64::from(slice);
        Range { extent: slices * u64::from(length), length }
    }

    fn hop(&self, program: &mut BlockProgram, next: u32, previous: u32) -> SlotHop {
        let slots = self.choice.slots.count;
        program.hop([previous, self.rank, next], self.block as u16, slots)
    }
}
