//! All-reduce by recursive halving and doubling, for powers of two: `2 log2(n)` hops, and as few
//! bytes as a ring sends.
//!
//! In step `k` a rank exchanges with the rank whose number differs in bit `k`: each sends the half
//! that the other keeps, and adds what it gets. After all steps each rank holds one finished piece;
//! the same steps backwards gather them. Ranks are numbered node by node, so the first steps, which
//! carry most of the data, stay within a node; between nodes a GPU only meets those in its own
//! place, and each GPU's adapter carries its own part. Everything goes through slots.

use super::builder::{SlotReceiver, SlotSender, at, copy};
use super::{BlockProgram, Buffer, LaneId, LaneKind, Modifiers, Op, Range, Segment, Side};

/// One block of one rank.
pub(super) struct Halving {
    pub(super) rank: u32,
    /// A power of two.
    pub(super) rank_count: u32,
    pub(super) block: u32,
    pub(super) blocks: u32,
    /// Bytes of the piece that one rank finishes.
    pub(super) piece: u32,
    pub(super) slot_count: u32,
    pub(super) rounds: u32,
    /// Bytes of the collective.
    pub(super) limit: u64,
}

/// Both lanes to a partner.
struct Exchange {
    sender: SlotSender,
    receiver: SlotReceiver,
    /// Pieces that this rank keeps in this step, and those that it sends: first and how many.
    kept: (u32, u32),
    sent: (u32, u32),
}

impl Halving {
    pub(super) fn program(&self) -> BlockProgram {
        let mut program = BlockProgram::default();
        let mut steps = self.steps(&mut program);
        let mut ops = Vec::new();
        let last = steps.len().saturating_sub(1);
        for (number, step) in steps.iter_mut().enumerate() {
            self.halve(&mut ops, step, number == 0, number == last);
        }
        for step in steps.iter_mut().rev() {
            self.double(&mut ops, step);
        }
        for Exchange { sender, receiver, .. } in steps {
            sender.advance(&mut ops);
            receiver.advance(&mut ops);
        }
        let round = u64::from(self.rank_count) * u64::from(self.piece);
        program.segments.push(Segment {
            rounds: self.rounds,
            round_stride: u64::from(self.blocks) * round,
            limit: self.limit,
            ops,
        });
        program
    }

    fn steps(&self, program: &mut BlockProgram) -> Vec<Exchange> {
        let (mut first, mut count) = (0, self.rank_count);
        let mut steps = Vec::new();
        for bit in 0..self.rank_count.trailing_zeros() {
            let partner = self.rank ^ (1 << bit);
            let kind = LaneKind::Slots;
            let lane = |from, to| LaneId { from, to, index: self.block as u16, kind };
            let send = program.port(lane(self.rank, partner), Side::Send);
            let receive = program.port(lane(partner, self.rank), Side::Receive);
            count /= 2;
            let (low, high) = ((first, count), (first + count, count));
            let (kept, sent) = if self.rank < partner { (low, high) } else { (high, low) };
            first = kept.0;
            let sender = SlotSender::new(send, self.slot_count);
            steps.push(Exchange { sender, receiver: SlotReceiver::new(receive), kept, sent });
        }
        steps
    }

    fn halve(&self, ops: &mut Vec<Op>, step: &mut Exchange, is_first: bool, is_last: bool) {
        let so_far = if is_first { Buffer::Input } else { Buffer::Output };
        let sent = self.range(step.sent);
        let slot = step.sender.claim(ops);
        let modifiers = Modifiers { scale: is_first, finish: false };
        ops.push(copy(slot, at(so_far, sent), sent, modifiers));
        step.sender.put(ops, sent);
        let kept = self.range(step.kept);
        let arrived = step.receiver.wait(ops);
        ops.push(Op::Reduce {
            destination: at(Buffer::Output, kept),
            a: arrived,
            b: at(so_far, kept),
            range: kept,
            modifiers: Modifiers { scale: is_first, finish: is_last },
        });
        step.receiver.release(ops);
    }

    fn double(&self, ops: &mut Vec<Op>, step: &mut Exchange) {
        let (mine, theirs) = (self.range(step.kept), self.range(step.sent));
        let slot = step.sender.claim(ops);
        ops.push(copy(slot, at(Buffer::Output, mine), mine, Modifiers::NONE));
        step.sender.put(ops, mine);
        let arrived = step.receiver.wait(ops);
        ops.push(copy(at(Buffer::Output, theirs), arrived, theirs, Modifiers::NONE));
        step.receiver.release(ops);
    }

    fn range(&self, (first, count): (u32, u32)) -> Range {
        let before = u64::from(self.block) * u64::from(self.rank_count) + u64::from(first);
        Range { extent: before * u64::from(self.piece), length: count * self.piece }
    }
}
