//! All-reduce by recursive doubling: `log2(n)` hops, each of all data. In step `k` a rank swaps its
//! sum with the rank whose number differs in bit `k`, so nodes that hold a power of two of ranks,
//! which follow one another, come first, and each rank sends one message to each power of two of
//! nodes.
//!
//! Where the number of ranks is no power of two, each rank behind the largest one gives its input
//! to the rank so many places before it, and gets the result from there: two more hops.
//!
//! All ranks get the same bits. Both of a pair add the same two values: the first time each takes
//! its own contribution from the slot in which it sends it, scaled and rounded.

use super::builder::{SlotHop, at, copy};
use super::piece::distances;
use super::{BlockProgram, Buffer, Choice, Modifiers, Op, Operand, Range, RankProgram};

/// What one rank does.
pub(super) fn program(choice: &Choice, rank: u32) -> RankProgram {
    let mut program = BlockProgram::default();
    if choice.rounds > 0 {
        let size = choice.request.rank_count;
        let doubled = 1 << size.ilog2();
        let mut walk = Walk { choice, rank, program };
        let ops = match rank < doubled {
            true => walk.doubling(doubled, rank + doubled < size),
            false => walk.folded(rank - doubled),
        };
        program = walk.program;
        program.rounds(choice, ops);
    }
    RankProgram { blocks: vec![program] }
}

/// One rank's only block.
struct Walk<'a> {
    choice: &'a Choice,
    rank: u32,
    program: BlockProgram,
}

impl Walk<'_> {
    /// A rank of the first `doubled`, to which one behind them is folded, or not.
    fn doubling(&mut self, doubled: u32, has_folded: bool) -> Vec<Op> {
        let mut ops = Vec::new();
        let mut folded = has_folded.then(|| self.pair(self.rank + doubled));
        let mut pairs: Vec<_> = distances(doubled).map(|bit| self.pair(self.rank ^ bit)).collect();
        if let Some(folded) = &mut folded {
            for range in self.choice.slices(0) {
                let input = at(Buffer::Input, range);
                add(&mut ops, folded, input, range, Modifiers::SCALE);
            }
        }
        let last = pairs.len() - 1;
        for (number, pair) in pairs.iter_mut().enumerate() {
            let is_input = number == 0 && !has_folded;
            let mut own = Vec::new();
            for range in self.choice.slices(0) {
                let from = if is_input { Buffer::Input } else { Buffer::Output };
                let slot = pair.sender.claim(&mut ops);
                let modifiers = Modifiers { scale: is_input, finish: false };
                ops.push(copy(slot, at(from, range), range, modifiers));
                pair.sender.put(&mut ops, range);
                own.push(if is_input { slot } else { at(Buffer::Output, range) });
            }
            for (range, own) in self.choice.slices(0).zip(own) {
                let modifiers = Modifiers { scale: false, finish: number == last };
                add(&mut ops, pair, own, range, modifiers);
            }
        }
        if let Some(folded) = &mut folded {
            for range in self.choice.slices(0) {
                folded.sender.send(&mut ops, at(Buffer::Output, range), range, Modifiers::NONE);
            }
        }
        for pair in pairs.into_iter().chain(folded) {
            pair.advance(&mut ops);
        }
        ops
    }

    /// A rank that leaves its part to `partner`.
    fn folded(&mut self, partner: u32) -> Vec<Op> {
        let mut ops = Vec::new();
        let mut pair = self.pair(partner);
        for range in self.choice.slices(0) {
            pair.sender.send(&mut ops, at(Buffer::Input, range), range, Modifiers::SCALE);
        }
        for range in self.choice.slices(0) {
            let arrived = pair.receiver.wait(&mut ops);
            ops.push(copy(at(Buffer::Output, range), arrived, range, Modifiers::NONE));
            pair.receiver.release(&mut ops);
        }
        pair.advance(&mut ops);
        ops
    }

    /// The lanes to and from another rank.
    fn pair(&mut self, partner: u32) -> SlotHop {
        self.program.hop([partner, self.rank, partner], 0, self.choice.slots.count)
    }
}

/// Makes the output what arrives from `pair` and `own`, combined.
fn add(ops: &mut Vec<Op>, pair: &mut SlotHop, own: Operand, range: Range, modifiers: Modifiers) {
    let a = pair.receiver.wait(ops);
    let destination = at(Buffer::Output, range);
    ops.push(Op::Reduce { destination, a, b: own, range, modifiers });
    pair.receiver.release(ops);
}
