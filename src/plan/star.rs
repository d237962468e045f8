//! Gather, scatter, broadcast and reduce between the root and every other rank, through slots: one
//! hop.
//!
//! The root's work is divided by peers: the peer `k` places behind it is block `(k - 1) %
//! blocks`'s. Every other rank has one block. A reduction has one block at the root, too, for it
//! combines what all peers send. What is in place concerns the root alone, and no other rank's
//! program.

use super::builder::{SlotReceiver, SlotSender, at, copy};
use super::{BlockProgram, Buffer, Choice, Collective, Modifiers, Op, Operand, Range, RankProgram};

/// What one rank does.
pub(super) fn program(choice: &Choice, rank: u32) -> RankProgram {
    let root = choice.request.collective.root().expect("a star has a root");
    let star = Star { choice, root };
    if choice.rounds == 0 {
        return RankProgram { blocks: vec![BlockProgram::default()] };
    }
    let blocks = match rank == root {
        true => (0..choice.blocks).map(|block| star.root_program(block)).collect(),
        false => vec![star.peer_program(rank)],
    };
    RankProgram { blocks }
}

struct Star<'a> {
    choice: &'a Choice,
    root: u32,
}

impl Star<'_> {
    fn peer_program(&self, rank: u32) -> BlockProgram {
        let mut program = BlockProgram::default();
        let mut ops = Vec::new();
        if self.to_root() {
            let mut sender = program.sender(rank, self.root, 0, self.choice.slots.count);
            for range in self.choice.slices(0) {
                sender.send(&mut ops, at(Buffer::Input, range), range, self.choice.contribution());
            }
            sender.advance(&mut ops);
        } else {
            let mut receiver = program.receiver(self.root, rank, 0);
            for range in self.choice.slices(0) {
                let arrived = receiver.wait(&mut ops);
                let output = at(Buffer::Output, range);
                ops.push(copy(output, arrived, range, Modifiers::NONE));
                receiver.release(&mut ops);
            }
            receiver.advance(&mut ops);
        }
        program.rounds(self.choice, ops);
        program
    }

    fn root_program(&self, block: u32) -> BlockProgram {
        let size = self.choice.request.rank_count;
        let peers: Vec<u32> = (1..size)
            .filter(|step| (step - 1) % self.choice.blocks == block)
            .map(|step| (self.root + step) % size)
            .collect();
        let mut program = BlockProgram::default();
        let mut ops = Vec::new();
        if self.to_root() {
            self.collect(&mut program, &mut ops, &peers);
        } else {
            self.spread(&mut program, &mut ops, &peers);
        }
        if block == 0 && !self.choice.request.in_place {
            self.own_part(&mut ops);
        }
        program.rounds(self.choice, ops);
        program
    }

    /// Takes what each peer sends.
    fn collect(&self, program: &mut BlockProgram, ops: &mut Vec<Op>, peers: &[u32]) {
        let reduces = self.choice.request.collective.reduces();
        let receiver = |&peer: &u32| program.receiver(peer, self.root, 0);
        let mut receivers: Vec<SlotReceiver> = peers.iter().map(receiver).collect();
        for range in self.choice.slices(0) {
            for (number, (&peer, receiver)) in peers.iter().zip(&mut receivers).enumerate() {
                let arrived = receiver.wait(ops);
                let output = at(Buffer::Output, range);
                let (is_first, is_last) = (number == 0, number + 1 == peers.len());
                let so_far = if is_first { at(Buffer::Input, range) } else { output };
                ops.push(match reduces {
                    true => Op::Reduce {
                        destination: output,
                        a: arrived,
                        b: so_far,
                        range,
                        modifiers: Modifiers { scale: is_first, finish: is_last },
                    },
                    false => copy(
                        self.choice.part(Buffer::Output, peer, range),
                        arrived,
                        range,
                        Modifiers::NONE,
                    ),
                });
                receiver.release(ops);
            }
        }
        for receiver in receivers {
            receiver.advance(ops);
        }
    }

    /// Sends each peer what it gets.
    fn spread(&self, program: &mut BlockProgram, ops: &mut Vec<Op>, peers: &[u32]) {
        let slot_count = self.choice.slots.count;
        let sender = |&peer: &u32| program.sender(self.root, peer, 0, slot_count);
        let mut senders: Vec<SlotSender> = peers.iter().map(sender).collect();
        for range in self.choice.slices(0) {
            for (&peer, sender) in peers.iter().zip(&mut senders) {
                sender.send(ops, self.source(peer, range), range, self.choice.contribution());
            }
        }
        for sender in senders {
            sender.advance(ops);
        }
    }

    /// What the root gets from itself. A reduction has it already.
    fn own_part(&self, ops: &mut Vec<Op>) {
        for range in self.choice.slices(0) {
            let (to, from) = match self.choice.request.collective {
                Collective::Reduce { .. } => return,
                Collective::Gather { .. } => {
                    (self.choice.part(Buffer::Output, self.root, range), at(Buffer::Input, range))
                }
                _ => (at(Buffer::Output, range), self.source(self.root, range)),
            };
            ops.push(copy(to, from, range, Modifiers::NONE));
        }
    }

    /// What the root has for `rank`.
    fn source(&self, rank: u32, range: Range) -> Operand {
        match self.choice.request.collective {
            Collective::Scatter { .. } => self.choice.part(Buffer::Input, rank, range),
            _ => at(Buffer::Input, range),
        }
    }

    fn to_root(&self) -> bool {
        let collective = self.choice.request.collective;
        matches!(collective, Collective::Gather { .. } | Collective::Reduce { .. })
    }
}
