//! Two-shot all-reduce over nodes of `m` ranks each, which reach each other's memory: every rank
//! stores its peers' chunks into their slots and reduces its own; engines reduce that with those of
//! its *rail* (the ranks in the same place on the other nodes); and the rank stores the result to
//! all of its node. Two hops on a node whatever `m`, and between nodes as few bytes as a ring.
//!
//! The data is cut round-major: in round `r`, block `b` handles `m` chunks of `slices` pieces each,
//! and chunk `j` belongs to the ranks in place `j`. A block does all three phases of its part: it
//! waits for no other block of its rank, and while it waits for another node, other blocks have the
//! links. In each round it first begins what goes between nodes, then reduces the next round on its
//! node, and only then waits for the other nodes:
//!
//! * *Two nodes* swap their chunks, of one piece each: one hop, after which both add the same two
//!   terms. A swap begins as soon as its chunk is reduced, before the one of the round before it is
//!   waited for: a whole round hides the way to the other node.
//! * *More* reduce their chunks around a ring, of as many pieces as there are nodes. A ring begins
//!   when the one before it has ended: with two messages of each rank under way, and two slots, it
//!   would wait for itself.
//!
//! Everything goes through slots, so any buffers will do. In place this is right, too: a rank
//! writes a chunk of its output only after it has sent, or added, the input that stood there.

use super::builder::{Ring, SlotHop, at, copy};
use super::{BlockProgram, Buffer, Choice, Modifiers, Op, Range, RankProgram, Segment};

/// What one rank does. Ranks of a node follow one another.
pub(super) fn program(choice: &Choice, rank: u32) -> RankProgram {
    let block = |block| Walk { choice, rank, block }.program();
    RankProgram { blocks: (0..choice.blocks).map(block).collect() }
}

/// A rank of the node, and the lanes to and from it.
struct Peer {
    place: u32,
    lanes: SlotHop,
}

/// The lanes that a block uses, within one segment.
struct Lanes {
    /// Those of the node, in the order in which they are served.
    peers: Vec<Peer>,
    rail: SlotHop,
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
        let Some(last) = self.choice.rounds.checked_sub(1) else { return program };
        self.segment(&mut program, 1, |ops, lanes| {
            self.reduce_on_node(ops, lanes, 0);
            self.begin_swap(ops, lanes, 0);
        });
        if last > 0 {
            self.segment(&mut program, last, |ops, lanes| {
                self.begin_ring(ops, lanes, 0);
                self.reduce_on_node(ops, lanes, 1);
                self.begin_swap(ops, lanes, 1);
                self.end_round(ops, lanes, 0);
            });
        }
        self.segment(&mut program, 1, |ops, lanes| {
            self.begin_ring(ops, lanes, last);
            self.end_round(ops, lanes, last);
        });
        program
    }

    /// Appends a segment of so many rounds.
    fn segment(
        &self,
        program: &mut BlockProgram,
        rounds: u32,
        write: impl FnOnce(&mut Vec<Op>, &mut Lanes),
    ) {
        let (mut ops, mut lanes) = (Vec::new(), self.lanes(program));
        write(&mut ops, &mut lanes);
        lanes.peers.into_iter().for_each(|peer| peer.lanes.advance(&mut ops));
        lanes.rail.advance(&mut ops);
        // Not every segment uses both ends of each lane.
        ops.retain(|op| !matches!(op, Op::Advance { signals: 0, completions: 0, .. }));
        let (round_stride, limit) = (self.choice.round_bytes(), self.choice.request.bytes);
        program.segments.push(Segment { rounds, round_stride, limit, ops });
    }

    fn lanes(&self, program: &mut BlockProgram) -> Lanes {
        let (per_node, nodes) = (self.choice.ranks_per_node, self.nodes());
        let (place, node) = (self.rank % per_node, self.rank / per_node);
        let (index, slots) = (self.block as u16, self.choice.slots.count);
        let peer = |step| {
            let place = (place + step) % per_node;
            let peer = node * per_node + place;
            let lanes = program.hop_of_stores([peer, self.rank, peer], index, slots);
            Peer { place, lanes }
        };
        let peers = (1..per_node).map(peer).collect();
        let on_rail = |node: u32| node % nodes * per_node + place;
        let path = [on_rail(node + nodes - 1), self.rank, on_rail(node + 1)];
        Lanes { peers, rail: program.rail(path, index, slots) }
    }

    /// This rank's chunk of round `round` ends in the output, reduced over the node.
    fn reduce_on_node(&self, ops: &mut Vec<Op>, lanes: &mut Lanes, round: u32) {
        for piece in 0..self.choice.slices {
            for Peer { place, lanes } in &mut lanes.peers {
                let range = self.range(round, *place, piece);
                lanes.sender.send(ops, at(Buffer::Input, range), range, Modifiers::SCALE);
            }
            let range = self.range(round, self.place(), piece);
            // Data arrives from the rank before this one first: it is the one that begins here.
            for (number, Peer { lanes, .. }) in lanes.peers.iter_mut().rev().enumerate() {
                let arrived = lanes.receiver.wait(ops);
                let is_first = number == 0;
                let so_far = if is_first { Buffer::Input } else { Buffer::Output };
                ops.push(Op::Reduce {
                    destination: at(Buffer::Output, range),
                    a: arrived,
                    b: at(so_far, range),
                    range,
                    modifiers: Modifiers { scale: is_first, finish: false },
                });
                lanes.receiver.release(ops);
            }
        }
    }

    /// Do two nodes swap chunks?
    fn swaps(&self) -> bool {
        self.nodes() == 2
    }

    /// The chunk goes to the other one of two nodes.
    fn begin_swap(&self, ops: &mut Vec<Op>, lanes: &mut Lanes, round: u32) {
        if self.swaps() {
            self.send_on_rail(ops, lanes, round, 0);
        }
    }

    /// The first piece goes around the rail of more than two nodes.
    fn begin_ring(&self, ops: &mut Vec<Op>, lanes: &mut Lanes, round: u32) {
        if !self.swaps() {
            self.send_on_rail(ops, lanes, round, self.ring().index);
        }
    }

    fn send_on_rail(&self, ops: &mut Vec<Op>, lanes: &mut Lanes, round: u32, piece: u32) {
        let range = self.range(round, self.place(), piece);
        lanes.rail.sender.send(ops, at(Buffer::Output, range), range, Modifiers::NONE);
    }

    /// The chunk is reduced over all nodes, and goes to all ranks of this one.
    fn end_round(&self, ops: &mut Vec<Op>, lanes: &mut Lanes, round: u32) {
        match self.swaps() {
            true => self.end_swap(ops, &mut lanes.rail, round),
            false => self.end_ring(ops, &mut lanes.rail, round),
        }
        self.gather_on_node(ops, lanes, round);
    }

    fn end_swap(&self, ops: &mut Vec<Op>, rail: &mut SlotHop, round: u32) {
        let range = self.range(round, self.place(), 0);
        let (arrived, output) = (rail.receiver.wait(ops), at(Buffer::Output, range));
        let modifiers = Modifiers { scale: false, finish: true };
        ops.push(Op::Reduce { destination: output, a: arrived, b: output, range, modifiers });
        rail.receiver.release(ops);
    }

    /// As a ring of all ranks does it, in the output.
    fn end_ring(&self, ops: &mut Vec<Op>, rail: &mut SlotHop, round: u32) {
        let ring = self.ring();
        let range = |piece| self.range(round, self.place(), piece);
        for step in ring.reduced(1) {
            let range = range(step.part);
            let (arrived, output) = (rail.receiver.wait(ops), at(Buffer::Output, range));
            let destination = rail.sender.claim(ops);
            let modifiers = Modifiers { scale: false, finish: step.is_last };
            ops.push(Op::Reduce { destination, a: arrived, b: output, range, modifiers });
            rail.sender.put(ops, range);
            rail.receiver.release(ops);
            if step.is_last {
                ops.push(copy(output, destination, range, Modifiers::NONE));
            }
        }
        let landing = ring.gathered(1).map(|step| {
            let range = range(step.part);
            (at(Buffer::Output, range), range, step.is_last)
        });
        rail.gather(ops, landing);
    }

    /// The finished chunk goes to all ranks of the node.
    fn gather_on_node(&self, ops: &mut Vec<Op>, lanes: &mut Lanes, round: u32) {
        for piece in 0..self.choice.slices {
            let range = self.range(round, self.place(), piece);
            for Peer { lanes, .. } in &mut lanes.peers {
                lanes.sender.send(ops, at(Buffer::Output, range), range, Modifiers::NONE);
            }
            for Peer { place, lanes } in lanes.peers.iter_mut().rev() {
                let range = self.range(round, *place, piece);
                let arrived = lanes.receiver.wait(ops);
                ops.push(copy(at(Buffer::Output, range), arrived, range, Modifiers::NONE));
                lanes.receiver.release(ops);
            }
        }
    }

    fn nodes(&self) -> u32 {
        self.choice.request.rank_count / self.choice.ranks_per_node
    }

    /// Of this rank on its node.
    fn place(&self) -> u32 {
        self.rank % self.choice.ranks_per_node
    }

    /// Of this rank's node on the rail.
    fn ring(&self) -> Ring {
        Ring { index: self.rank / self.choice.ranks_per_node, size: self.nodes() }
    }

    fn range(&self, round: u32, chunk: u32, piece: u32) -> Range {
        let Choice { ranks_per_node, slices, slice_bytes, .. } = *self.choice;
        let chunks = u64::from(self.block) * u64::from(ranks_per_node) + u64::from(chunk);
        let pieces = chunks * u64::from(slices) + u64::from(piece);
        let before = u64::from(round) * self.choice.round_bytes();
        Range { extent: before + pieces * u64::from(slice_bytes), length: slice_bytes }
    }
}
