//! Gather, scatter, broadcast and reduce between the root and every other rank, through slots: one
//! hop.
//!
//! The root's work is divided by peers: the peer `k` places behind it is block `(k - 1) %
//! blocks`'s. Every other rank has one block. A reduction has one block at the root, too, for it
//! combines what all peers send. What is in place concerns the root alone, and no other rank's
//! program.

use super::builder::{SlotReceiver, SlotSender, copy, part};
use super::{
    BlockProgram, Buffer, Choice, Collective, Lane, LaneKind, Modifiers, Op, Operand, Range,
    RankProgram, Side,
};

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
            let port = program.port(lane(rank, self.root), Side::Send);
            let mut sender = SlotSender::new(port, self.choice.slots.count);
            for range in self.slices() {
                self.send(&mut ops, &mut sender, part(Buffer::Input, 0, range), range);
            }
            sender.advance(&mut ops);
        } else {
            let port = program.port(lane(self.root, rank), Side::Receive);
            let mut receiver = SlotReceiver::new(port);
            for range in self.slices() {
                let arrived = receiver.wait(&mut ops);
                let output = part(Buffer::Output, 0, range);
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
        let receiver =
            |&peer: &u32| SlotReceiver::new(program.port(lane(peer, self.root), Side::Receive));
        let mut receivers: Vec<SlotReceiver> = peers.iter().map(receiver).collect();
        for range in self.slices() {
            for (number, (&peer, receiver)) in peers.iter().zip(&mut receivers).enumerate() {
                let arrived = receiver.wait(ops);
                let output = part(Buffer::Output, 0, range);
                let (is_first, is_last) = (number == 0, number + 1 == peers.len());
                let so_far = if is_first { part(Buffer::Input, 0, range) } else { output };
                ops.push(match reduces {
                    true => Op::Reduce {
                        destination: output,
                        a: arrived,
                        b: so_far,
                        range,
                        modifiers: Modifiers { scale: is_first, finish: is_last },
                    },
                    false => {
                        copy(self.of(Buffer::Output, peer, range), arrived, range, Modifiers::NONE)
                    }
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
        let sender = |&peer: &u32| {
            SlotSender::new(program.port(lane(self.root, peer), Side::Send), slot_count)
        };
        let mut senders: Vec<SlotSender> = peers.iter().map(sender).collect();
        for range in self.slices() {
            for (&peer, sender) in peers.iter().zip(&mut senders) {
                self.send(ops, sender, self.source(peer, range), range);
            }
        }
        for sender in senders {
            sender.advance(ops);
        }
    }

    /// What the root gets from itself. A reduction has it already.
    fn own_part(&self, ops: &mut Vec<Op>) {
        for range in self.slices() {
            let (to, from) = match self.choice.request.collective {
                Collective::Reduce { .. } => return,
                Collective::Gather { .. } => {
                    (self.of(Buffer::Output, self.root, range), part(Buffer::Input, 0, range))
                }
                _ => (part(Buffer::Output, 0, range), self.source(self.root, range)),
            };
            ops.push(copy(to, from, range, Modifiers::NONE));
        }
    }

    /// Copies `from` into the next slot, and sends it.
    fn send(&self, ops: &mut Vec<Op>, sender: &mut SlotSender, from: Operand, range: Range) {
        let slot = sender.claim(ops);
        ops.push(copy(slot, from, range, self.choice.contribution()));
        sender.put(ops, range);
    }

    /// What the root has for `rank`.
    fn source(&self, rank: u32, range: Range) -> Operand {
        match self.choice.request.collective {
            Collective::Scatter { .. } => self.of(Buffer::Input, rank, range),
            _ => part(Buffer::Input, 0, range),
        }
    }

    fn to_root(&self) -> bool {
        let collective = self.choice.request.collective;
        matches!(collective, Collective::Gather { .. } | Collective::Reduce { .. })
    }

    fn slices(&self) -> impl Iterator<Item = Range> {
        (0..self.choice.slices).map(|slice| self.choice.slice(0, slice))
    }

    /// `range` of the part of `rank`.
    fn of(&self, buffer: Buffer, rank: u32, range: Range) -> Operand {
        part(buffer, u64::from(rank) * self.choice.request.bytes, range)
    }
}

fn lane(from: u32, to: u32) -> Lane {
    Lane { from, to, index: 0, kind: LaneKind::Slots }
}
