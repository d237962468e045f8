//! Ring all-reduce: reduce-scatter around the ring, then all-gather around the same ring.
//!
//! The data is cut round-major: in round `r`, block `b` handles `n` chunks, chunk `j` at
//! `((r * blocks + b) * n + j) * chunk`. A chunk is `slices` messages, so that while one slice
//! travels, others are reduced or travel too; blocks add to that.
//!
//! At ring index `i`, chunk `i` starts its way: it goes to `i + 1`, which adds its own input, and
//! so on, until index `i - 1` has added the last contribution. From there the finished chunk goes
//! around once more. Three forms of the same walk:
//!
//! * *Staged*: every hop goes through slots. Works for any buffers.
//! * *Direct*: both buffers are registered and distinct. Partial sums land in the peer's output,
//!   where the peer adds its input. No staging and no copy, except that a pre-multiplied sum must
//!   scale the starting chunk first: into this rank's own output, which nobody needs until the
//!   finished chunk comes back.
//! * *Hybrid*: registered, and in place or between nodes. In place, a partial sum that landed in
//!   the output would destroy input that is still to be added, so reduce-scatter is staged. The
//!   all-gather is direct: a finished chunk holds every rank's contribution, so every rank has read
//!   that part of its input. It also means that every rank has come to the call, so no grant is
//!   needed, which between nodes would cost a way.

use super::builder::{DirectHop, Ring, SlotHop, Step, at, copy};
use super::{Algorithm, BlockProgram, Buffer, Choice, Modifiers, Op, Range, RankProgram};
use ringdove_kernels::element::ReduceOp;

/// What one rank does.
pub(super) fn program(choice: &Choice, rank: u32) -> RankProgram {
    let blocks = (0..choice.blocks).map(|block| Walk::new(choice, rank, block).program());
    RankProgram { blocks: blocks.collect() }
}

/// One rank's walk around one block's ring.
struct Walk<'a> {
    choice: &'a Choice,
    block: u32,
    ring: Ring,
    rank: u32,
    next: u32,
    previous: u32,
}

impl<'a> Walk<'a> {
    fn new(choice: &'a Choice, rank: u32, block: u32) -> Self {
        let size = choice.request.rank_count;
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        Self { choice, block, ring: Ring { index: rank, size }, rank, next, previous }
    }

    fn program(&self) -> BlockProgram {
        let mut program = BlockProgram::default();
        if self.choice.rounds == 0 {
            return program;
        }
        match self.choice.algorithm {
            Algorithm::RingStaged => self.staged(&mut program),
            Algorithm::RingDirect => self.direct(&mut program),
            Algorithm::RingHybrid => self.hybrid(&mut program),
            _ => unreachable!("each of the others has a builder of its own"),
        }
        program
    }

    fn staged(&self, program: &mut BlockProgram) {
        let mut hop = self.slot_hop(program);
        let mut ops = Vec::new();
        self.start_staged(&mut ops, &mut hop);
        for step in self.ring.reduced(self.choice.slices) {
            let range = self.range(step.part, step.slice);
            let arrived = hop.receiver.wait(&mut ops);
            let slot = hop.sender.claim(&mut ops);
            ops.push(Op::Reduce {
                destination: slot,
                a: arrived,
                b: at(Buffer::Input, range),
                range,
                modifiers: Modifiers { scale: true, finish: step.is_last },
            });
            // Forward first: the peer waits for it, while the local copy can happen meanwhile.
            hop.sender.put(&mut ops, range);
            hop.receiver.release(&mut ops);
            if step.is_last {
                ops.push(copy(at(Buffer::Output, range), slot, range, Modifiers::NONE));
            }
        }
        let steps = self.ring.gathered(self.choice.slices);
        let landing = |step: Step| {
            let range = self.range(step.part, step.slice);
            (at(Buffer::Output, range), range, step.is_last)
        };
        hop.gather(&mut ops, steps.map(landing));
        hop.advance(&mut ops);
        program.rounds(self.choice, ops);
    }

    fn direct(&self, program: &mut BlockProgram) {
        let mut hop = program.direct_hop(self.path(), self.block as u16);
        program.once(hop.handshake());
        let mut ops = Vec::new();
        for slice in 0..self.choice.slices {
            let range = self.range(self.ring.index, slice);
            if self.choice.request.reduce_op == ReduceOp::PreMulSum {
                let (to, from) = (at(Buffer::Output, range), at(Buffer::Input, range));
                ops.push(copy(to, from, range, Modifiers::SCALE));
                hop.put(&mut ops, Buffer::Output, range);
            } else {
                hop.put(&mut ops, Buffer::Input, range);
            }
        }
        for step in self.ring.reduced(self.choice.slices) {
            let range = self.range(step.part, step.slice);
            hop.wait(&mut ops);
            ops.push(Op::Reduce {
                destination: at(Buffer::Output, range),
                a: at(Buffer::Output, range),
                b: at(Buffer::Input, range),
                range,
                modifiers: Modifiers { scale: true, finish: step.is_last },
            });
            hop.put(&mut ops, Buffer::Output, range);
        }
        self.gather_direct(&mut ops, &mut hop);
        let drain = hop.drain();
        hop.advance(&mut ops);
        program.rounds(self.choice, ops);
        program.once(drain);
    }

    fn hybrid(&self, program: &mut BlockProgram) {
        let mut staged = self.slot_hop(program);
        let mut hop = program.direct_hop(self.path(), self.block as u16);
        let mut ops = Vec::new();
        self.start_staged(&mut ops, &mut staged);
        for step in self.ring.reduced(self.choice.slices) {
            let range = self.range(step.part, step.slice);
            let arrived = staged.receiver.wait(&mut ops);
            let destination = match step.is_last {
                true => at(Buffer::Output, range),
                false => staged.sender.claim(&mut ops),
            };
            ops.push(Op::Reduce {
                destination,
                a: arrived,
                b: at(Buffer::Input, range),
                range,
                modifiers: Modifiers { scale: true, finish: step.is_last },
            });
            if step.is_last {
                hop.put(&mut ops, Buffer::Output, range);
            } else {
                staged.sender.put(&mut ops, range);
            }
            staged.receiver.release(&mut ops);
        }
        self.gather_direct(&mut ops, &mut hop);
        let drain = hop.drain();
        staged.advance(&mut ops);
        hop.advance(&mut ops);
        program.rounds(self.choice, ops);
        program.once(drain);
    }

    /// Sends this rank's starting chunk through slots.
    fn start_staged(&self, ops: &mut Vec<Op>, hop: &mut SlotHop) {
        for slice in 0..self.choice.slices {
            let range = self.range(self.ring.index, slice);
            hop.sender.send(ops, at(Buffer::Input, range), range, Modifiers::SCALE);
        }
    }

    /// Finished chunks land in the output; all but the last go on.
    fn gather_direct(&self, ops: &mut Vec<Op>, hop: &mut DirectHop) {
        for step in self.ring.gathered(self.choice.slices) {
            hop.wait(ops);
            if !step.is_last {
                hop.put(ops, Buffer::Output, self.range(step.part, step.slice));
            }
        }
    }

    fn range(&self, chunk: u32, slice: u32) -> Range {
        let length = self.choice.slice_bytes;
        let chunks_before = u64::from(self.block) * u64::from(self.ring.size) + u64::from(chunk);
        let slices_before = chunks_before * u64::from(self.choice.slices) + u64::from(slice);
        Range { extent: slices_before * u64::from(length), length }
    }

    fn slot_hop(&self, program: &mut BlockProgram) -> SlotHop {
        program.hop(self.path(), self.block as u16, self.choice.slots.count)
    }

    /// The previous rank, this one, and the next one.
    fn path(&self) -> [u32; 3] {
        [self.previous, self.rank, self.next]
    }
}
