//! Two-shot all-reduce: every rank sends every other rank its chunk, reduces its own, and sends
//! the result to all. Two hops whatever the number of ranks, where a ring has `2 (n - 1)`: the
//! walk for small data, and for ranks that all reach one another at full rate.
//!
//! The data is cut round-major as the ring's is: in round `r`, block `b` handles `n` chunks, and
//! chunk `j` belongs to rank `j`. Everything goes through slots, so any buffers will do. A rank
//! serves its peers in the order `rank + 1`, `rank + 2`, ...: no receiver is everybody's first.

use super::builder::{SlotReceiver, SlotSender, at, copy};
use super::{BlockProgram, Buffer, LaneId, LaneKind, Modifiers, Op, Range, Segment, Side};

/// One block of one rank.
pub(super) struct TwoShot {
    pub(super) rank: u32,
    pub(super) rank_count: u32,
    pub(super) block: u32,
    pub(super) blocks: u32,
    /// Bytes of one chunk: of one message.
    pub(super) chunk: u32,
    pub(super) slot_count: u32,
    pub(super) rounds: u32,
    /// Bytes of the collective.
    pub(super) limit: u64,
}

/// A peer, and the two ends of lanes to and from it.
struct Peer {
    rank: u32,
    sender: SlotSender,
    receiver: SlotReceiver,
}

impl TwoShot {
    pub(super) fn program(&self) -> BlockProgram {
        let mut program = BlockProgram::default();
        let mut peers: Vec<Peer> = (1..self.rank_count)
            .map(|step| self.peer(&mut program, (self.rank + step) % self.rank_count))
            .collect();
        let mut ops = Vec::new();
        self.scatter(&mut ops, &mut peers);
        self.gather(&mut ops, &mut peers);
        for Peer { sender, receiver, .. } in peers {
            sender.advance(&mut ops);
            receiver.advance(&mut ops);
        }
        let round = u64::from(self.rank_count) * u64::from(self.chunk);
        program.segments.push(Segment {
            rounds: self.rounds,
            round_stride: u64::from(self.blocks) * round,
            limit: self.limit,
            ops,
        });
        program
    }

    fn peer(&self, program: &mut BlockProgram, rank: u32) -> Peer {
        let kind = LaneKind::Slots;
        let lane = |from, to| LaneId { from, to, index: self.block as u16, kind };
        let send = program.port(lane(self.rank, rank), Side::Send);
        let receive = program.port(lane(rank, self.rank), Side::Receive);
        let sender = SlotSender::new(send, self.slot_count);
        Peer { rank, sender, receiver: SlotReceiver::new(receive) }
    }

    /// Each rank ends up with the reduction of its own chunk.
    fn scatter(&self, ops: &mut Vec<Op>, peers: &mut [Peer]) {
        for peer in peers.iter_mut() {
            let range = self.range(peer.rank);
            let slot = peer.sender.claim(ops);
            ops.push(copy(slot, at(Buffer::Input, range), range, Modifiers::SCALE));
            peer.sender.put(ops, range);
        }
        let (range, last) = (self.range(self.rank), peers.len() - 1);
        // Data arrives from the rank before this one first: it is the one that begins here.
        for (number, peer) in peers.iter_mut().rev().enumerate() {
            let arrived = peer.receiver.wait(ops);
            let is_first = number == 0;
            let so_far = if is_first { Buffer::Input } else { Buffer::Output };
            ops.push(Op::Reduce {
                destination: at(Buffer::Output, range),
                a: arrived,
                b: at(so_far, range),
                range,
                modifiers: Modifiers { scale: is_first, finish: number == last },
            });
            peer.receiver.release(ops);
        }
    }

    /// Each rank's finished chunk goes to all.
    fn gather(&self, ops: &mut Vec<Op>, peers: &mut [Peer]) {
        let range = self.range(self.rank);
        for peer in peers.iter_mut() {
            let slot = peer.sender.claim(ops);
            ops.push(copy(slot, at(Buffer::Output, range), range, Modifiers::NONE));
            peer.sender.put(ops, range);
        }
        for peer in peers.iter_mut().rev() {
            let range = self.range(peer.rank);
            let arrived = peer.receiver.wait(ops);
            ops.push(copy(at(Buffer::Output, range), arrived, range, Modifiers::NONE));
            peer.receiver.release(ops);
        }
    }

    fn range(&self, chunk: u32) -> Range {
        let before = u64::from(self.block) * u64::from(self.rank_count) + u64::from(chunk);
        Range { extent: before * u64::from(self.chunk), length: self.chunk }
    }
}
