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
//! pulled from them has been credited. One credit at the end stands for all messages of a round:
//! what orders a chunk's accesses is that it goes around.

use super::builder::{Ring, SlotHop, Step, at, copy};
use super::part::Part;
use super::{BlockProgram, Buffer, Modifiers, Op, Operand, Range};
use ringdove_kernels::element::ReduceOp;

/// What one block of one rank does.
pub(super) fn program(part: Part<'_>) -> BlockProgram {
    let mut program = BlockProgram::default();
    if part.choice.rounds == 0 {
        return program;
    }
    let size = part.rank_count();
    let (next, previous) = ((part.rank + 1) % size, (part.rank + size - 1) % size);
    let (index, slots) = (part.block as u16, part.choice.slots.count);
    let hop = program.hop_of_stores([previous, part.rank, next], index, slots);
    let returned = hop.sender.all_returned();
    let pulls = part.choice.request.in_place;
    if !pulls {
        let back = program.hop_of_stores([next, part.rank, previous], index, slots);
        program.once(lend(back));
    }
    let ring = Ring { index: part.rank, size };
    let walk = Walk { part, pulls, ring, hop, read: 0, ops: Vec::new() };
    program.rounds(part.choice, walk.round());
    if pulls {
        program.once(vec![returned]);
    }
    program
}

/// The previous rank may write this one's output, and this one that of the next.
fn lend(mut back: SlotHop) -> Vec<Op> {
    let mut ops = Vec::new();
    back.sender.announce(&mut ops);
    back.receiver.wait(&mut ops);
    back.receiver.release(&mut ops);
    back.advance(&mut ops);
    ops
}

/// One round.
struct Walk<'a> {
    part: Part<'a>,
    pulls: bool,
    ring: Ring,
    hop: SlotHop,
    /// Messages that have been waited for.
    read: u16,
    ops: Vec<Op>,
}

impl Walk<'_> {
    fn round(mut self) -> Vec<Op> {
        self.start();
        for step in self.ring.reduced(1) {
            let range = self.arrived(&step);
            self.add(range, step.is_last);
            self.hop.sender.announce(&mut self.ops);
        }
        for step in self.ring.gathered(1) {
            let range = self.arrived(&step);
            if self.pulls {
                let there = self.hop.receiver.at_peer(Buffer::Output, range);
                self.copy(at(Buffer::Output, range), there, range);
            } else if !step.is_last {
                self.copy(self.at_next(range), at(Buffer::Output, range), range);
            }
            if !step.is_last {
                self.hop.sender.announce(&mut self.ops);
            }
        }
        self.hop.receiver.release_all(&mut self.ops, self.read);
        self.hop.advance(&mut self.ops);
        self.ops
    }

    /// The chunk that starts its way here: the next rank has it, or reads it.
    fn start(&mut self) {
        let range = self.part.range(self.ring.index, 1);
        // What others read has to lie there scaled.
        if !self.pulls || self.part.choice.request.reduce_op == ReduceOp::PreMulSum {
            let own = at(Buffer::Output, range);
            let to = if self.pulls { own } else { self.at_next(range) };
            self.ops.push(copy(to, at(Buffer::Input, range), range, Modifiers::SCALE));
        }
        self.hop.sender.announce(&mut self.ops);
    }

    /// Waits for the previous rank's message of a step, and says which chunk it is about.
    fn arrived(&mut self, step: &Step) -> Range {
        self.hop.receiver.wait_ahead(&mut self.ops, u32::from(self.read));
        self.read += 1;
        self.part.range(step.part, 1)
    }

    /// Adds this rank's input to the sum so far. Here a sum stays that is pulled, or complete; what
    /// is pushed and complete goes on as well.
    fn add(&mut self, range: Range, is_complete: bool) {
        let own = at(Buffer::Output, range);
        let a = if self.pulls { self.hop.receiver.at_peer(Buffer::Output, range) } else { own };
        let stays = self.pulls || is_complete;
        self.ops.push(Op::Reduce {
            destination: if stays { own } else { self.at_next(range) },
            a,
            b: at(Buffer::Input, range),
            range,
            modifiers: Modifiers { scale: true, finish: is_complete },
        });
        if !self.pulls && is_complete {
            self.copy(self.at_next(range), own, range);
        }
    }

    fn at_next(&self, range: Range) -> Operand {
        self.hop.sender.at_peer(Buffer::Output, range)
    }

    fn copy(&mut self, to: Operand, from: Operand, range: Range) {
        self.ops.push(copy(to, from, range, Modifiers::NONE));
    }
}
