//! All-to-all and all-gather by direct exchange between registered buffers: every rank puts what
//! every other rank gets straight into that one's output.
//!
//! Steps and blocks are those of `exchange`. A receiver grants its output once for a launch, to all
//! peers of the block, before any sender of the block waits; so no order of ranks can deadlock.
//!
//! * *All-to-all*: from the input, which must not be the output: peers write there meanwhile.
//! * *All-gather*: from the rank's own part of the output, where the block, which is the only one,
//!   copies the input first. So the others need not know where the input is.

use super::builder::{DirectReceiver, DirectSender, at, copy};
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

/// One step: a peer to send to, and another one to receive from.
struct Step {
    to: u32,
    sender: DirectSender,
    receiver: DirectReceiver,
}

impl Exchange<'_> {
    fn program(&self) -> BlockProgram {
        let mut program = BlockProgram::default();
        if self.choice.rounds == 0 {
            return program;
        }
        let mut steps = self.steps(&mut program);
        let grants = steps.iter().map(|step| step.receiver.grant());
        let granted = steps.iter().flat_map(|step| step.sender.wait_grant());
        program.once(grants.chain(granted).collect());
        let mut ops = Vec::new();
        for range in self.choice.slices(0) {
            if self.is_gather() {
                self.copy_own(&mut ops, range);
            }
            let own_place = self.own_place(range);
            for Step { to, sender, .. } in &mut steps {
                sender.put(&mut ops, self.source(*to, range), own_place, range);
            }
        }
        if !self.is_gather() && self.block == 0 {
            self.choice.slices(0).for_each(|range| self.copy_own(&mut ops, range));
        }
        for _ in self.choice.slices(0) {
            steps.iter_mut().for_each(|step| step.receiver.wait(&mut ops));
        }
        let drains = steps.iter().map(|step| step.sender.drain()).collect();
        for Step { sender, receiver, .. } in steps {
            sender.advance(&mut ops);
            receiver.advance(&mut ops);
        }
        program.rounds(self.choice, ops);
        program.once(drains);
        program
    }

    fn steps(&self, program: &mut BlockProgram) -> Vec<Step> {
        let size = self.choice.request.rank_count;
        let own = |step: &u32| (step.min(&(size - step)) - 1) % self.choice.blocks == self.block;
        let step = |step: u32| {
            let (to, from) = ((self.rank + step) % size, (self.rank + size - step) % size);
            let send = program.port(Lane::direct(self.rank, to, 0), Side::Send);
            let receive = program.port(Lane::direct(from, self.rank, 0), Side::Receive);
            Step { to, sender: DirectSender::new(send), receiver: DirectReceiver::new(receive) }
        };
        (1..size).filter(own).map(step).collect()
    }

    fn is_gather(&self) -> bool {
        self.choice.request.collective == Collective::AllGather
    }

    /// This rank's part of an output, its own one or a peer's.
    fn own_place(&self, range: Range) -> Operand {
        self.choice.part(Buffer::Output, self.rank, range)
    }

    /// What this rank has for `rank`.
    fn source(&self, rank: u32, range: Range) -> Operand {
        match self.is_gather() {
            true => self.own_place(range),
            false => self.choice.part(Buffer::Input, rank, range),
        }
    }

    /// Copies this rank's own part, unless it is in place.
    fn copy_own(&self, ops: &mut Vec<Op>, range: Range) {
        let own = match self.is_gather() {
            true if self.choice.request.in_place => return,
            true => at(Buffer::Input, range),
            false => self.choice.part(Buffer::Input, self.rank, range),
        };
        ops.push(copy(self.own_place(range), own, range, Modifiers::NONE));
    }
}
