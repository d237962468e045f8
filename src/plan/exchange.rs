//! All-to-all, all-gather and reduce-scatter by direct exchange: every rank sends to every other
//! rank what that one gets, through slots, in one hop.
//!
//! In step `k` a rank sends to the rank `k` places after it, and receives from the one `k` places
//! before it: no receiver is everybody's first, and each lane has one step. A block does the sends
//! of all its steps before it waits, so no order of ranks can deadlock.
//!
//! Steps `k` and `n - k` are of one block. So an all-to-all in place is right: what arrives in step
//! `k` takes the place of what was sent in step `n - k` of the same round. A reduce-scatter has one
//! block, for it combines what all peers send.

use super::builder::{SlotReceiver, SlotSender, at, copy};
use super::{
    BlockProgram, Buffer, Choice, Collective, Lane, Modifiers, Op, Operand, Range, RankProgram,
    Side,
};

/// What one rank does.
pub(super) fn program(choice: &Choice, rank: u32) -> RankProgram {
    let blocks = (0..choice.blocks).map(|block| Exchange { choice, rank, block }.program());
    RankProgram { blocks: blocks.collect() }
}

/// One block of one rank.
struct Exchange<'a> {
    choice: &'a Choice,
    rank: u32,
    block: u32,
}

/// One step: a peer to send to, and one to receive from.
struct Step {
    to: u32,
    sender: SlotSender,
    from: u32,
    receiver: SlotReceiver,
}

impl Exchange<'_> {
    fn program(&self) -> BlockProgram {
        let mut program = BlockProgram::default();
        if self.choice.rounds == 0 {
            return program;
        }
        let mut steps = self.steps(&mut program);
        let mut ops = Vec::new();
        for range in self.choice.slices(0) {
            for Step { to, sender, .. } in &mut steps {
                let modifiers = self.choice.contribution();
                sender.send(&mut ops, self.source(*to, range), range, modifiers);
            }
        }
        let request = &self.choice.request;
        if self.block == 0 && !request.in_place && !request.collective.reduces() {
            for range in self.choice.slices(0) {
                let own = self.source(self.rank, range);
                ops.push(copy(
                    self.choice.part(Buffer::Output, self.rank, range),
                    own,
                    range,
                    Modifiers::NONE,
                ));
            }
        }
        let last = steps.len().saturating_sub(1);
        for range in self.choice.slices(0) {
            for (number, Step { from, receiver, .. }) in steps.iter_mut().enumerate() {
                let arrived = receiver.wait(&mut ops);
                ops.push(match request.collective {
                    Collective::ReduceScatter => self.reduce(
                        arrived,
                        range,
                        Modifiers { scale: number == 0, finish: number == last },
                    ),
                    _ => copy(
                        self.choice.part(Buffer::Output, *from, range),
                        arrived,
                        range,
                        Modifiers::NONE,
                    ),
                });
                receiver.release(&mut ops);
            }
        }
        for Step { sender, receiver, .. } in steps {
            sender.advance(&mut ops);
            receiver.advance(&mut ops);
        }
        program.rounds(self.choice, ops);
        program
    }

    fn steps(&self, program: &mut BlockProgram) -> Vec<Step> {
        let size = self.choice.request.rank_count;
        let own = |step: &u32| (step.min(&(size - step)) - 1) % self.choice.blocks == self.block;
        let step = |step: u32| {
            let (to, from) = ((self.rank + step) % size, (self.rank + size - step) % size);
            let send = program.port(Lane::slotted(self.rank, to, 0), Side::Send);
            let receive = program.port(Lane::slotted(from, self.rank, 0), Side::Receive);
            let sender = SlotSender::new(send, self.choice.slots.count);
            Step { to, sender, from, receiver: SlotReceiver::new(receive) }
        };
        (1..size).filter(own).map(step).collect()
    }

    /// What this rank has for `rank`.
    fn source(&self, rank: u32, range: Range) -> Operand {
        match self.choice.request.collective {
            Collective::AllGather => at(Buffer::Input, range),
            _ => self.choice.part(Buffer::Input, rank, range),
        }
    }

    /// Adds what has arrived to the output, or, if it came first (and scales), to this rank's
    /// input.
    fn reduce(&self, arrived: Operand, range: Range, modifiers: Modifiers) -> Op {
        let output = at(Buffer::Output, range);
        let own = || self.choice.part(Buffer::Input, self.rank, range);
        Op::Reduce {
            destination: output,
            a: arrived,
            b: if modifiers.scale { own() } else { output },
            range,
            modifiers,
        }
    }
}
