//! All-reduce by recursive halving and doubling, for powers of two: `2 log2(n)` hops, and as few
//! bytes as a ring sends.
//!
//! In step `k` a rank exchanges with the rank whose number differs in bit `k`: each sends the half
//! that the other keeps, and adds what it gets. After all steps each rank holds one finished piece;
//! the same steps backwards gather them. Ranks are numbered node by node, so the first steps, which
//! carry most of the data, stay within a node; between nodes a GPU only meets those in its own
//! place, and each GPU's adapter carries its own part. Everything goes through slots.

use super::builder::{SlotHop, at, copy};
use super::part::Part;
use super::{BlockProgram, Buffer, Modifiers, Op, Range};

/// A partner: the lanes to and from it, what this rank keeps in this step, and what it sends.
struct Step {
    lanes: SlotHop,
    kept: Range,
    sent: Range,
}

/// What one block of one rank does. The number of ranks is a power of two.
pub(super) fn program(part: Part<'_>) -> BlockProgram {
    let mut program = BlockProgram::default();
    let mut steps = steps(part, &mut program);
    let mut ops = Vec::new();
    let last = steps.len().saturating_sub(1);
    for (number, step) in steps.iter_mut().enumerate() {
        halve(&mut ops, step, number == 0, number == last);
    }
    for step in steps.iter_mut().rev() {
        double(&mut ops, step);
    }
    part.finish(&mut program, ops, steps.into_iter().map(|step| step.lanes));
    program
}

fn steps(part: Part<'_>, program: &mut BlockProgram) -> Vec<Step> {
    let (mut first, mut count) = (0, part.rank_count());
    let mut steps = Vec::new();
    for bit in 0..part.rank_count().trailing_zeros() {
        let partner = part.rank ^ (1 << bit);
        count /= 2;
        let (low, high) = (first, first + count);
        let (kept, sent) = if part.rank < partner { (low, high) } else { (high, low) };
        first = kept;
        let lanes = part.lanes(program, partner);
        steps.push(Step { lanes, kept: part.range(kept, count), sent: part.range(sent, count) });
    }
    steps
}

fn halve(ops: &mut Vec<Op>, step: &mut Step, is_first: bool, is_last: bool) {
    let Step { lanes, kept, sent } = step;
    let so_far = if is_first { Buffer::Input } else { Buffer::Output };
    let slot = lanes.sender.claim(ops);
    let modifiers = Modifiers { scale: is_first, finish: false };
    ops.push(copy(slot, at(so_far, *sent), *sent, modifiers));
    lanes.sender.put(ops, *sent);
    let arrived = lanes.receiver.wait(ops);
    ops.push(Op::Reduce {
        destination: at(Buffer::Output, *kept),
        a: arrived,
        b: at(so_far, *kept),
        range: *kept,
        modifiers: Modifiers { scale: is_first, finish: is_last },
    });
    lanes.receiver.release(ops);
}

fn double(ops: &mut Vec<Op>, step: &mut Step) {
    let Step { lanes, kept, sent } = step;
    let slot = lanes.sender.claim(ops);
    ops.push(copy(slot, at(Buffer::Output, *kept), *kept, Modifiers::NONE));
    lanes.sender.put(ops, *kept);
    let arrived = lanes.receiver.wait(ops);
    ops.push(copy(at(Buffer::Output, *sent), arrived, *sent, Modifiers::NONE));
    lanes.receiver.release(ops);
}
