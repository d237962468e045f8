//! Broadcast and reduce along a chain of all ranks, through slots, or between registered outputs:
//! for data that is large enough to fill the chain. Each rank sends as much as it receives,
//! whatever the number of ranks.
//!
//! * *Broadcast*: the chain begins at the root. A rank sends what arrives on from the slot that it
//!   arrived in, and copies it to the output meanwhile. Between registered outputs, the root copies
//!   its input to its output, and each rank sends on from there.
//! * *Reduce*: the chain ends at the root. Each rank adds its input to what arrives. The first one
//!   puts its input without a copy, if it is registered.
//!
//! Data is cut as in `ring`. What is in place concerns the root alone, and no other rank's program.

use super::builder::{DirectReceiver, DirectSender, SlotHop, SlotReceiver, SlotSender, at, copy};
use super::{
    Algorithm, BlockProgram, Buffer, Choice, Collective, Lane, Modifiers, Op, PortIndex, Range,
    RankProgram, Side,
};

/// What one rank does.
pub(super) fn program(choice: &Choice, rank: u32) -> RankProgram {
    let blocks = (0..choice.blocks).map(|block| Link { choice, rank, block }.program());
    RankProgram { blocks: blocks.collect() }
}

/// One rank's place in one block's chain.
struct Link<'a> {
    choice: &'a Choice,
    rank: u32,
    block: u32,
}

impl Link<'_> {
    fn program(&self) -> BlockProgram {
        let mut program = BlockProgram::default();
        if self.choice.rounds == 0 {
            return program;
        }
        let request = &self.choice.request;
        let (is_broadcast, root) = match request.collective {
            Collective::Broadcast { root } => (true, root),
            collective => (false, collective.root().expect("reduce has a root")),
        };
        let size = request.rank_count;
        let begin = if is_broadcast { root } else { (root + 1) % size };
        let place = (self.rank + size - begin) % size;
        let is_direct = self.choice.algorithm == Algorithm::ChainDirect;
        let lane = |from, to| match is_direct {
            true => Lane::direct(from, to, self.block as u16),
            false => Lane::slotted(from, to, self.block as u16),
        };
        let receive = (place > 0).then(|| {
            let previous = (self.rank + size - 1) % size;
            program.port(lane(previous, self.rank), Side::Receive)
        });
        let send = (place + 1 < size)
            .then(|| program.port(lane(self.rank, (self.rank + 1) % size), Side::Send));
        if is_direct {
            self.direct(&mut program, receive, send);
            return program;
        }
        let slot_count = self.choice.slots.count;
        let mut ops = Vec::new();
        match (receive, send) {
            (None, Some(send)) => {
                let sender = SlotSender::new(send, slot_count);
                let read = self.choice.sends_from_input().then(|| sender.all_read());
                self.first(&mut ops, sender);
                program.rounds(self.choice, ops);
                program.once(read.into_iter().collect());
                return program;
            }
            (Some(receive), None) => self.last(&mut ops, SlotReceiver::new(receive)),
            (Some(receive), Some(send)) => {
                self.middle(&mut ops, SlotHop::new(send, receive, slot_count));
            }
            (None, None) => unreachable!("a chain has at least two ranks"),
        }
        program.rounds(self.choice, ops);
        program
    }

    fn is_broadcast(&self) -> bool {
        matches!(self.choice.request.collective, Collective::Broadcast { .. })
    }

    fn direct(
        &self,
        program: &mut BlockProgram,
        receive: Option<PortIndex>,
        send: Option<PortIndex>,
    ) {
        let (mut receiver, mut sender) =
            (receive.map(DirectReceiver::new), send.map(DirectSender::new));
        let grant = receiver.iter().map(DirectReceiver::grant);
        let granted = sender.iter().flat_map(DirectSender::wait_grant);
        program.once(grant.chain(granted).collect());
        let mut ops = Vec::new();
        for range in self.choice.slices(self.block) {
            match &mut receiver {
                Some(receiver) => receiver.wait(&mut ops),
                None if self.choice.request.in_place => {}
                None => ops.push(self.copy_own(range)),
            }
            if let Some(sender) = &mut sender {
                let output = at(Buffer::Output, range);
                sender.put(&mut ops, output, output, range);
            }
        }
        let drain = sender.iter().map(DirectSender::drain).collect();
        if let Some(sender) = sender {
            sender.advance(&mut ops);
        }
        if let Some(receiver) = receiver {
            receiver.advance(&mut ops);
        }
        program.rounds(self.choice, ops);
        program.once(drain);
    }

    /// Copies a slice of the root's input to its output.
    fn copy_own(&self, range: Range) -> Op {
        copy(at(Buffer::Output, range), at(Buffer::Input, range), range, Modifiers::NONE)
    }

    fn first(&self, ops: &mut Vec<Op>, mut sender: SlotSender) {
        for range in self.choice.slices(self.block) {
            let input = at(Buffer::Input, range);
            match self.choice.sends_from_input() {
                true => sender.forward(ops, input, range),
                false => sender.send(ops, input, range, self.choice.contribution()),
            }
        }
        if self.is_broadcast() && !self.choice.request.in_place {
            ops.extend(self.choice.slices(self.block).map(|range| self.copy_own(range)));
        }
        sender.advance(ops);
    }

    fn middle(&self, ops: &mut Vec<Op>, mut hop: SlotHop) {
        if self.is_broadcast() {
            let output = |range| at(Buffer::Output, range);
            hop.gather(
                ops,
                self.choice.slices(self.block).map(|range| (output(range), range, false)),
            );
        } else {
            for range in self.choice.slices(self.block) {
                let arrived = hop.receiver.wait(ops);
                let destination = hop.sender.claim(ops);
                let b = at(Buffer::Input, range);
                let modifiers = Modifiers::SCALE;
                ops.push(Op::Reduce { destination, a: arrived, b, range, modifiers });
                hop.sender.put(ops, range);
                hop.receiver.release(ops);
            }
        }
        hop.advance(ops);
    }

    fn last(&self, ops: &mut Vec<Op>, mut receiver: SlotReceiver) {
        for range in self.choice.slices(self.block) {
            let arrived = receiver.wait(ops);
            let destination = at(Buffer::Output, range);
            ops.push(match self.is_broadcast() {
                true => copy(destination, arrived, range, Modifiers::NONE),
                false => Op::Reduce {
                    destination,
                    a: arrived,
                    b: at(Buffer::Input, range),
                    range,
                    modifiers: Modifiers { scale: true, finish: true },
                },
            });
            receiver.release(ops);
        }
        receiver.advance(ops);
    }
}
