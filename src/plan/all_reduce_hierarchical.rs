//! Hierarchical all-reduce over nodes of `m` ranks each: reduce-scatter around each node,
//! all-reduce around each *rail* (the ranks with the same place on their nodes), all-gather around
//! each node. Data crosses between nodes on all rails at once, each with its share, and in fewer
//! hops than one ring through all ranks would need: `2 (m - 1) + 2 (k - 1)` for `k` nodes.
//!
//! The data is cut round-major, as for the ring: in round `r`, block `b` handles `m` chunks of `k`
//! pieces, of `slices` messages each. After the first phase, place `l` of a node holds chunk
//! `l + 1`, reduced over its node, in its output; the rails reduce it piece by piece; the last
//! phase takes the finished chunks around the node. Two forms:
//!
//! * *Staged*: everything goes through slots.
//! * *Hybrid*, for registered buffers: partial sums go through slots, finished pieces straight into
//!   the peers' outputs, on the rails and around the nodes. A finished piece holds every rank's
//!   contribution, so every rank has read what it overwrites; so no grant is needed, which would
//!   cost a way between nodes.
//!
//! In place both are right too: a rank writes a chunk of its output only after it has added that
//! chunk of its input, or when nobody needs it any more.

use super::builder::{DirectHop, Ring, SlotHop, Step, at, copy};
use super::{Algorithm, BlockProgram, Buffer, Choice, Modifiers, Op, Range, RankProgram};

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
        let inner = [on_node(place + per_node - 1), on_node(place + 1)];
        let outer = [on_rail(node + nodes - 1), on_rail(node + 1)];
        let mut inner = self.hop(&mut program, inner);
        let mut outer = self.hop(&mut program, outer);
        let mut ops = Vec::new();
        for piece in 0..nodes {
            self.reduce_on_node(&mut ops, &mut inner, around_node, piece);
        }
        self.all_reduce_on_rail(&mut ops, &mut outer, rail, around_node.own());
        for piece in 0..nodes {
            self.gather_on_node(&mut ops, &mut inner, around_node, piece);
        }
        let drains: Vec<_> = [&inner, &outer].into_iter().filter_map(Hop::drain).collect();
        inner.advance(&mut ops);
        outer.advance(&mut ops);
        program.rounds(self.choice, ops);
        program.once(drains.concat());
        program
    }

    /// Piece `piece` of every chunk: this rank's own ends in the output, reduced over the node.
    fn reduce_on_node(&self, ops: &mut Vec<Op>, hop: &mut Hop, ring: Ring, piece: u32) {
        let (hop, slices) = (&mut hop.staged, self.choice.slices);
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
    fn all_reduce_on_rail(&self, ops: &mut Vec<Op>, hop: &mut Hop, rail: Ring, chunk: u32) {
        let slices = self.choice.slices;
        let staged = &mut hop.staged;
        for slice in 0..slices {
            let range = self.range(chunk, rail.index, slice);
            staged.sender.send(ops, at(Buffer::Output, range), range, Modifiers::NONE);
        }
        for step in rail.reduced(slices) {
            let range = self.range(chunk, step.part, step.slice);
            let arrived = staged.receiver.wait(ops);
            // The last one is complete: it is also the first to go around.
            let direct = hop.direct.as_mut().filter(|_| step.is_last);
            let output = at(Buffer::Output, range);
            let destination = match direct {
                Some(_) => output,
                None => staged.sender.claim(ops),
            };
            ops.push(Op::Reduce {
                destination,
                a: arrived,
                b: output,
                range,
                modifiers: Modifiers { scale: false, finish: step.is_last },
            });
            match direct {
                Some(direct) => direct.put(ops, Buffer::Output, range),
                None => staged.sender.put(ops, range),
            }
            staged.receiver.release(ops);
            if step.is_last && destination != output {
                ops.push(copy(output, destination, range, Modifiers::NONE));
            }
        }
        let finished = |step: Step| (self.range(chunk, step.part, step.slice), step.is_last);
        hop.gather(ops, rail.gathered(slices).map(finished));
    }

    /// Finished pieces go around the node.
    fn gather_on_node(&self, ops: &mut Vec<Op>, hop: &mut Hop, ring: Ring, piece: u32) {
        let slices = self.choice.slices;
        for slice in 0..slices {
            let range = self.range(ring.own(), piece, slice);
            match &mut hop.direct {
                Some(direct) => direct.put(ops, Buffer::Output, range),
                None => {
                    let from = at(Buffer::Output, range);
                    hop.staged.sender.send(ops, from, range, Modifiers::NONE);
                }
            }
        }
        let finished = |step: Step| (self.range(step.part, piece, step.slice), step.is_last);
        hop.gather(ops, ring.gathered(slices).map(finished));
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

    /// A hop from the rank `previous` to the rank `next`.
    fn hop(&self, program: &mut BlockProgram, [previous, next]: [u32; 2]) -> Hop {
        let (index, slots) = (self.block as u16, self.choice.slots.count);
        let staged = program.hop([previous, self.rank, next], index, slots);
        let is_hybrid = self.choice.algorithm == Algorithm::HierarchicalHybrid;
        let direct = is_hybrid.then(|| program.direct_hop([previous, self.rank, next], index));
        Hop { staged, direct }
    }
}

/// One step of a ring: through slots, and in the hybrid form also between outputs.
struct Hop {
    staged: SlotHop,
    direct: Option<DirectHop>,
}

impl Hop {
    /// Takes finished pieces as they come (each with whether it is the last) into the output, and
    /// sends all but the last on.
    fn gather(&mut self, ops: &mut Vec<Op>, pieces: impl Iterator<Item = (Range, bool)>) {
        let Some(direct) = &mut self.direct else {
            let landing = |(range, is_last)| (at(Buffer::Output, range), range, is_last);
            return self.staged.gather(ops, pieces.map(landing));
        };
        for (range, is_last) in pieces {
            direct.wait(ops);
            if !is_last {
                direct.put(ops, Buffer::Output, range);
            }
        }
    }

    /// Ends the round.
    fn advance(self, ops: &mut Vec<Op>) {
        self.staged.advance(ops);
        if let Some(direct) = self.direct {
            direct.advance(ops);
        }
    }

    /// What ends a launch in the hybrid form: every source in the caller's memory has been read.
    fn drain(&self) -> Option<Vec<Op>> {
        self.direct.as_ref().map(DirectHop::drain)
    }
}
