//! All-gather, reduce-scatter and all-to-all of small parts in `log2(n)` hops, rounded up, for any
//! number of ranks: Bruck's algorithm. Each hop goes to the rank `d` places away, for `d` = 1, 2,
//! 4 ..., and carries the parts of many ranks in one message. So a rank talks with few others.
//!
//! * *All-gather*: before the hop of distance `d` a rank has `d` parts, from its own on. It sends
//!   as many of them as are missing at the rank `d` places before it, and receives as many from
//!   the rank `d` places after it.
//! * *Reduce-scatter*: the same hops backwards, in the other order. A rank sends the rank `d`
//!   places after it the sums for that one and those behind it. Nothing is stored in between: what
//!   has arrived stays in its slots until the end, and each sum is made of the input and of all
//!   that has arrived for it, in the slot in which it leaves.
//! * *All-to-all*: a block of data which has to go `k` places goes `d` of them for each bit `d` of
//!   `k`, smallest first. It waits for its next hop in the part of the output which it would have
//!   if it stayed: in the end each is in its place. What it overwrites there is the block that has
//!   as far to go, and leaves in the same message. In place, this part may hold input that has not
//!   left. So there it waits where the input for `k` places away stood, and in the end parts of the
//!   output change places, by way of a slot.
//!
//! All-gather and all-to-all cut what a hop carries into messages that fit a slot, and receive one
//! for each that they send. What a hop of a reduce-scatter carries is one message.

use super::builder::copy;
use super::piece::{Piece, cut, distances, pack, total, unpack, whole};
use super::{BlockProgram, Buffer, Choice, Collective, Modifiers, Op, Operand, RankProgram};

/// What one rank does.
pub(super) fn program(choice: &Choice, rank: u32) -> RankProgram {
    let mut walk = Walk { choice, rank, program: BlockProgram::default(), ops: Vec::new() };
    if choice.rounds > 0 {
        match choice.request.collective {
            Collective::AllGather => walk.all_gather(),
            Collective::ReduceScatter => walk.reduce_scatter(),
            _ => walk.all_to_all(),
        }
    }
    let Walk { mut program, ops, .. } = walk;
    if !ops.is_empty() {
        program.in_whole_parts(choice, ops);
    }
    RankProgram { blocks: vec![program] }
}

/// One rank's only block.
struct Walk<'a> {
    choice: &'a Choice,
    rank: u32,
    program: BlockProgram,
    ops: Vec<Op>,
}

/// What came from a rank: sums for so many ranks, from this one on.
struct Arrived {
    parts: u32,
    slot: Operand,
}

impl Walk<'_> {
    fn all_gather(&mut self) {
        let size = self.choice.request.rank_count;
        if !self.choice.request.in_place {
            let input = Operand::Buffer { buffer: Buffer::Input, offset: 0 };
            self.keep_own_part(input);
        }
        for distance in distances(size) {
            let count = distance.min(size - distance);
            let (to, from) = (self.before(distance), self.after(distance));
            let sent = self.choice.parts(Buffer::Output, self.rank, count);
            let received = self.choice.parts(Buffer::Output, from, count);
            self.swap(to, from, &sent, &received);
        }
    }

    fn all_to_all(&mut self) {
        let size = self.choice.request.rank_count;
        let in_place = self.choice.request.in_place;
        if !in_place {
            self.keep_own_part(self.choice.part(Buffer::Input, self.rank, whole(0)));
        }
        for distance in distances(size) {
            let (mut sent, mut received) = (Vec::new(), Vec::new());
            for first in (distance..size).step_by(2 * distance as usize) {
                // Blocks with `first` places or more to go, of which `distance` is the next bit.
                // The first has not moved yet; the others are where earlier hops have left them.
                let count = distance.min(size - first);
                let last = self.before(first + count - 1);
                if in_place {
                    sent.extend(self.choice.parts(Buffer::Output, self.after(first), count));
                    continue;
                }
                sent.extend(self.choice.parts(Buffer::Output, last, count - 1));
                sent.extend(self.choice.parts(Buffer::Input, self.after(first), 1));
                received.extend(self.choice.parts(Buffer::Output, last, count));
            }
            let received = if in_place { &sent } else { &received };
            self.swap(self.after(distance), self.before(distance), &sent, received);
        }
        if in_place {
            self.mirror();
        }
    }

    /// Parts as far before this rank's as others are behind it change places with those.
    fn mirror(&mut self) {
        let size = self.choice.request.rank_count;
        let neighbours = [self.before(1), self.rank, self.after(1)];
        let hop = self.program.hop(neighbours, 0, self.choice.slots.count);
        // The slot of the next message, which is not sent.
        let slot = hop.sender.claim(&mut self.ops);
        for distance in 1..size.div_ceil(2) {
            let [before, after] = [self.before(distance), self.after(distance)]
                .map(|rank| self.choice.parts(Buffer::Output, rank, 1));
            let all = total(&before);
            for start in (0..all).step_by(self.choice.slice_bytes as usize) {
                let end = all.min(start + u64::from(self.choice.slice_bytes));
                let [before, after] = [&before, &after].map(|part| cut(part, start, end));
                pack(&mut self.ops, slot, &before);
                for (to, from) in before.iter().zip(&after) {
                    self.ops.push(copy(to.place, from.place, to.range(), Modifiers::NONE));
                }
                unpack(&mut self.ops, &after, slot);
            }
        }
    }

    fn keep_own_part(&mut self, input: Operand) {
        let part = whole(self.choice.request.bytes);
        let output = self.choice.part(Buffer::Output, self.rank, whole(0));
        self.ops.push(copy(output, input, part, Modifiers::NONE));
    }

    /// Sends and receives pieces of one size, in messages that fit a slot.
    fn swap(&mut self, to: u32, from: u32, sent: &[Piece], received: &[Piece]) {
        let mut hop = self.program.hop([from, self.rank, to], 0, self.choice.slots.count);
        let (ops, all) = (&mut self.ops, total(sent));
        for start in (0..all).step_by(self.choice.slice_bytes as usize) {
            let end = all.min(start + u64::from(self.choice.slice_bytes));
            let slot = hop.sender.claim(ops);
            pack(ops, slot, &cut(sent, start, end));
            hop.sender.put(ops, whole(end - start));
            let arrived = hop.receiver.wait(ops);
            unpack(ops, &cut(received, start, end), arrived);
            hop.receiver.release(ops);
        }
        hop.advance(ops);
    }

    fn reduce_scatter(&mut self) {
        let (size, bytes) = (self.choice.request.rank_count, self.choice.request.bytes);
        let (mut hops, mut arrived) = (Vec::new(), Vec::new());
        for distance in distances(size).rev() {
            let (to, from) = (self.after(distance), self.before(distance));
            let mut hop = self.program.hop([from, self.rank, to], 0, self.choice.slots.count);
            let parts = distance.min(size - distance);
            let slot = hop.sender.claim(&mut self.ops);
            self.sum(slot, distance, parts, &arrived);
            hop.sender.put(&mut self.ops, whole(u64::from(parts) * bytes));
            arrived.push(Arrived { parts, slot: hop.receiver.wait(&mut self.ops) });
            hops.push(hop);
        }
        self.sum(Operand::Buffer { buffer: Buffer::Output, offset: 0 }, 0, 1, &arrived);
        for mut hop in hops {
            hop.receiver.release(&mut self.ops);
            hop.advance(&mut self.ops);
        }
    }

    /// Makes `to` the sums for `count` ranks, of which the first is `first` places after this one,
    /// of the input and of what has arrived. Only what arrived first may end among them.
    fn sum(&mut self, to: Operand, first: u32, count: u32, arrived: &[Arrived]) {
        let bytes = self.choice.request.bytes;
        let end = first + count;
        let split = arrived.first().map_or(end, |arrived| arrived.parts.clamp(first, end));
        let mut done = 0;
        for (first, end) in [(first, split), (split, end)] {
            let terms: Vec<_> = arrived.iter().filter(|it| first < it.parts).collect();
            let mut at = u64::from(first) * bytes;
            for own in self.choice.parts(Buffer::Input, self.after(first), end - first) {
                let terms: Vec<_> = terms.iter().map(|term| term.slot.behind(at)).collect();
                self.combine(to.behind(done), own, &terms);
                done += own.bytes;
                at += own.bytes;
            }
        }
    }

    /// `own` and `terms`, of which there are as many as hops before; after the last hop the sum is
    /// complete.
    fn combine(&mut self, destination: Operand, own: Piece, terms: &[Operand]) {
        let range = own.range();
        if terms.is_empty() {
            self.ops.push(copy(destination, own.place, range, Modifiers::SCALE));
        }
        let is_complete = matches!(destination, Operand::Buffer { .. });
        for (number, &a) in terms.iter().enumerate() {
            let (is_first, is_last) = (number == 0, number + 1 == terms.len());
            let b = if is_first { own.place } else { destination };
            let modifiers = Modifiers { scale: is_first, finish: is_last && is_complete };
            self.ops.push(Op::Reduce { destination, a, b, range, modifiers });
        }
    }

    fn after(&self, places: u32) -> u32 {
        (self.rank + places) % self.choice.request.rank_count
    }

    fn before(&self, places: u32) -> u32 {
        let size = self.choice.request.rank_count;
        (self.rank + size - places) % size
    }
}
