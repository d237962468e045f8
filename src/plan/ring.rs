//! All-gather and reduce-scatter around a ring, through slots, or between registered outputs.
//!
//! Each rank's part is cut round-major: in round `r`, block `b` handles `slices` slices of it, at
//! `((r * blocks + b) * slices + s) * slice_bytes`. Blocks have lanes of their own.
//!
//! * *All-gather*: a rank sends its part to the next one, copies each part that arrives to the
//!   output, and sends all but the last on from the slot that they arrived in. Between registered
//!   outputs, it copies its part to its own output, and sends that and all that arrives from there.
//! * *Reduce-scatter*: the part of rank `p` starts at rank `p + 1`, goes around, and each rank adds
//!   its contribution. At rank `p` it is complete. From registered inputs, rank `p + 1` puts its
//!   own without a copy.
//!
//! In place both are right: all-gather writes each part of the output once and never this rank's
//! own; reduce-scatter writes its own part alone, after it has added it.

use super::builder::{DirectHop, Ring, SlotHop, at, copy};
use super::{
    Algorithm, BlockProgram, Buffer, Choice, Collective, Modifiers, Op, Operand, Range, RankProgram,
};

/// What one rank does.
pub(super) fn program(choice: &Choice, rank: u32) -> RankProgram {
    let blocks = (0..choice.blocks).map(|block| Walk { choice, rank, block }.program());
    RankProgram { blocks: blocks.collect() }
}

/// One rank's walk in one block.
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
        let (request, index) = (&self.choice.request, self.block as u16);
        let size = request.rank_count;
        let ring = Ring { index: self.rank, size };
        let (next, previous) = ((self.rank + 1) % size, (self.rank + size - 1) % size);
        let (path, slots) = ([previous, self.rank, next], self.choice.slots.count);
        if self.choice.algorithm == Algorithm::RingDirect {
            let hop = program.direct_hop(path, index);
            self.gather_direct(&mut program, hop, ring);
            return program;
        }
        let mut hop = program.hop(path, index, slots);
        let mut ops = Vec::new();
        match request.collective {
            Collective::AllGather => self.gather(&mut ops, &mut hop, ring),
            _ => self.reduce(&mut ops, &mut hop, ring),
        }
        let read = self.choice.sends_from_input().then(|| hop.sender.all_read());
        hop.advance(&mut ops);
        program.rounds(self.choice, ops);
        program.once(read.into_iter().collect());
        program
    }

    fn gather(&self, ops: &mut Vec<Op>, hop: &mut SlotHop, ring: Ring) {
        for range in self.choice.slices(self.block) {
            hop.sender.send(ops, at(Buffer::Input, range), range, Modifiers::NONE);
        }
        if !self.choice.request.in_place {
            for range in self.choice.slices(self.block) {
                ops.push(self.copy_own(range));
            }
        }
        hop.gather(ops, self.arrivals(ring));
    }

    fn gather_direct(&self, program: &mut BlockProgram, mut hop: DirectHop, ring: Ring) {
        program.once(hop.handshake());
        let mut ops = Vec::new();
        for range in self.choice.slices(self.block) {
            if !self.choice.request.in_place {
                ops.push(self.copy_own(range));
            }
            let own = self.choice.part(Buffer::Output, self.rank, range);
            hop.sender.put(&mut ops, own, own, range);
        }
        for (landed, range, is_last) in self.arrivals(ring) {
            hop.receiver.wait(&mut ops);
            if !is_last {
                hop.sender.put(&mut ops, landed, landed, range);
            }
        }
        let drain = hop.drain();
        hop.advance(&mut ops);
        program.rounds(self.choice, ops);
        program.once(drain);
    }

    /// Copies a slice of this rank's own part to the output.
    fn copy_own(&self, range: Range) -> Op {
        let own = self.choice.part(Buffer::Output, self.rank, range);
        copy(own, at(Buffer::Input, range), range, Modifiers::NONE)
    }

    /// What arrives in an all-gather: where it belongs, and whether it goes on from here.
    fn arrivals(&self, ring: Ring) -> impl Iterator<Item = (Operand, Range, bool)> {
        let steps = ring.steps(ring.index + ring.size - 1, self.choice.slices);
        steps.map(|step| {
            let range = self.choice.slice(self.block, step.slice);
            (self.choice.part(Buffer::Output, step.part, range), range, step.is_last)
        })
    }

    fn reduce(&self, ops: &mut Vec<Op>, hop: &mut SlotHop, ring: Ring) {
        let first = ring.index + ring.size - 1;
        for range in self.choice.slices(self.block) {
            let from = self.choice.part(Buffer::Input, first % ring.size, range);
            match self.choice.sends_from_input() {
                true => hop.sender.forward(ops, from, range),
                false => hop.sender.send(ops, from, range, Modifiers::SCALE),
            }
        }
        for step in ring.steps(first + ring.size - 1, self.choice.slices) {
            let range = self.choice.slice(self.block, step.slice);
            let arrived = hop.receiver.wait(ops);
            let destination = match step.is_last {
                true => at(Buffer::Output, range),
                false => hop.sender.claim(ops),
            };
            ops.push(Op::Reduce {
                destination,
                a: arrived,
                b: self.choice.part(Buffer::Input, step.part, range),
                range,
                modifiers: Modifiers { scale: true, finish: step.is_last },
            });
            if !step.is_last {
                hop.sender.put(ops, range);
            }
            hop.receiver.release(ops);
        }
    }
}
