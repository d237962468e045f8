//! Ring all-reduce whose blocks reach the registered buffers of their neighbours: a ring's messages
//! with neither slots nor engines. NCCL's rings do the same between GPUs with peer access.
//!
//! Chunks go around as in `all_reduce_ring`, and the data is cut as it is there, a message for each
//! chunk. Messages carry no data; they say what is there. Whose threads move it:
//!
//! * *Out of place* ranks push: a sum goes straight into the next rank's output, where that one
//!   adds its input. Stores cross PCI without an answer. Before all rounds each rank lends its
//!   output to the previous one.
//! * *In place* ranks pull: a sum in the next rank's output would destroy what is still to be added
//!   there, so that one reads it from here. The complete sum overwrites what was read before: it
//!   has been at all ranks when it comes around again.
//!
//! A rank's buffers are its own at the end: what was pushed into them has arrived, and what was
//! pulled from them has been credited.

use super::builder::{Ring, SlotHop, Step, at, copy};
use super::part::Part;
use super::{BlockProgram, Buffer, Modifiers, Op, Operand, Range};
use ringdove_kernels::element::ReduceOp;

/// What a message carries.
const EMPTY: Range = Range { extent: 0, length: 0 };

/// What one block of one rank does.
pub(super) fn program(part: Part<'_>) -> BlockProgram {
    let mut program = BlockProgram::default();
    if part.choice.rounds == 0 {
        return program;
    }
    let size = part.rank_count();
    let (next, previous) = ((part.rank + 1) % size, (part.rank + size - 1) % size);
    let (index, slots) = (part.block as u16, part.choice.slots.count);
    let mut hop = |path| program.hop_of_stores(path, index, slots);
    let along = hop([previous, part.rank, next]);
    let back = hop([next, part.rank, previous]);
    let mut walk =
        Walk { part, ring: Ring { index: part.rank, size }, hop: along, ops: Vec::new() };
    if part.choice.request.in_place {
        walk.pull();
        let returned = walk.hop.sender.all_returned();
        program.rounds(part.choice, walk.ended());
        program.once(vec![returned]);
    } else {
        program.once(lend(back));
        walk.push();
        program.rounds(part.choice, walk.ended());
    }
    program
}

/// The previous rank may write this one's output, and this one that of the next.
fn lend(mut back: SlotHop) -> Vec<Op> {
    let mut ops = Vec::new();
    back.sender.claim(&mut ops);
    back.sender.put(&mut ops, EMPTY);
    back.receiver.wait(&mut ops);
    back.receiver.release(&mut ops);
    back.advance(&mut ops);
    ops
}

/// One round.
struct Walk<'a> {
    part: Part<'a>,
    ring: Ring,
    hop: SlotHop,
    ops: Vec<Op>,
}

impl Walk<'_> {
    fn push(&mut self) {
        let first = self.part.range(self.ring.index, 1);
        self.ops.push(copy(self.at_next(first), at(Buffer::Input, first), first, Modifiers::SCALE));
        self.announce();
        for step in self.ring.reduced(1) {
            let range = self.arrived(&step);
            let own = at(Buffer::Output, range);
            self.ops.push(Op::Reduce {
                destination: if step.is_last { own } else { self.at_next(range) },
                a: own,
                b: at(Buffer::Input, range),
                range,
                modifiers: Modifiers { scale: true, finish: step.is_last },
            });
            if step.is_last {
                self.copy_to_next(range);
            }
            self.announce();
            self.hop.receiver.release(&mut self.ops);
        }
        for step in self.ring.gathered(1) {
            let range = self.arrived(&step);
            if !step.is_last {
                self.copy_to_next(range);
                self.announce();
            }
            self.hop.receiver.release(&mut self.ops);
        }
    }

    fn pull(&mut self) {
        let first = self.part.range(self.ring.index, 1);
        if self.part.choice.request.reduce_op == ReduceOp::PreMulSum {
            let (to, from) = (at(Buffer::Output, first), at(Buffer::Input, first));
            self.ops.push(copy(to, from, first, Modifiers::SCALE));
        }
        self.announce();
        for step in self.ring.reduced(1) {
            let range = self.arrived(&step);
            self.ops.push(Op::Reduce {
                destination: at(Buffer::Output, range),
                a: self.hop.receiver.at_peer(Buffer::Output, range),
                b: at(Buffer::Input, range),
                range,
                modifiers: Modifiers { scale: true, finish: step.is_last },
            });
            self.announce();
            self.hop.receiver.release(&mut self.ops);
        }
        for step in self.ring.gathered(1) {
            let range = self.arrived(&step);
            let there = self.hop.receiver.at_peer(Buffer::Output, range);
            self.ops.push(copy(at(Buffer::Output, range), there, range, Modifiers::NONE));
            if !step.is_last {
                self.announce();
            }
            self.hop.receiver.release(&mut self.ops);
        }
    }

    /// Waits for the previous rank's message of a step, and says which chunk it is about.
    fn arrived(&mut self, step: &Step) -> Range {
        self.hop.receiver.wait(&mut self.ops);
        self.part.range(step.part, 1)
    }

    /// Tells the next rank that its chunk is there.
    fn announce(&mut self) {
        self.hop.sender.claim(&mut self.ops);
        self.hop.sender.put(&mut self.ops, EMPTY);
    }

    fn at_next(&self, range: Range) -> Operand {
        self.hop.sender.at_peer(Buffer::Output, range)
    }

    fn copy_to_next(&mut self, range: Range) {
        let there = self.at_next(range);
        self.ops.push(copy(there, at(Buffer::Output, range), range, Modifiers::NONE));
    }

    /// The ops of the round.
    fn ended(self) -> Vec<Op> {
        let mut ops = self.ops;
        self.hop.advance(&mut ops);
        ops
    }
}
