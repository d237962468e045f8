//! Ops that one pass over memory may carry together.

use super::symmetric::symmetric;
use super::*;
use crate::plan::fuse::behind;

/// Ports of a block of rank 0: lanes of stores to and from ranks 1 and 2, each twice.
fn ports() -> Vec<LaneEnd> {
    let lane = |from, to| Lane { from, to, index: 0, kind: LaneKind::Stores };
    let ends = [1, 2].map(|peer| {
        let send = LaneEnd { lane: lane(0, peer), side: Side::Send };
        [send, LaneEnd { lane: lane(peer, 0), side: Side::Receive }]
    });
    ends.concat()
}

const RANGE: Range = Range { extent: 64, length: 128 };

fn own(buffer: Buffer) -> Operand {
    Operand::Buffer { buffer, offset: 64 }
}

fn of_peer(port: u16, buffer: Buffer) -> Operand {
    Operand::Peer { port, buffer, offset: 64 }
}

fn copy(destination: Operand, source: Operand) -> Op {
    Op::Copy { destination, source, range: RANGE, modifiers: Modifiers::NONE }
}

fn add(a: Operand) -> Op {
    let destination = own(Buffer::Output);
    let modifiers = Modifiers::NONE;
    Op::Reduce { destination, a, b: destination, range: RANGE, modifiers }
}

/// If this fails, the blocks of a symmetric plan read and write what they sum up again for each
/// peer.
#[test]
fn a_symmetric_plan_is_summed_up_in_one_pass() {
    let (_, choice) = symmetric(4, 613, true, ReduceOp::Sum);
    let plan = build(&choice);
    for block in plan.ranks.iter().flat_map(|rank| &rank.blocks) {
        let ops = &block.segments[1].ops;
        let counts: Vec<usize> =
            (0..ops.len()).map(|place| behind(&ops[place..], &block.ports)).collect();
        assert_eq!(counts, [5, 4, 3, 2, 1, 0]);
    }
}

/// If this fails, what goes along changes the result.
#[test]
fn only_what_leaves_results_as_they_are_goes_along() {
    use Buffer::{Input, Output, Scratch};
    let ports = ports();
    let count = |ops: &[Op]| behind(ops, &ports);
    let first = add(of_peer(1, Input));
    assert_eq!(count(&[first, add(of_peer(3, Input)), copy(of_peer(0, Output), own(Output))]), 2);
    assert_eq!(count(&[copy(of_peer(0, Output), own(Output)), copy(own(Scratch), own(Output))]), 1);
    let elsewhere = Operand::Peer { port: 3, buffer: Input, offset: 80 };
    let range = Range { extent: 64, length: 112 };
    let slot = |message| Operand::Slot { port: 1, message, offset: 0 };
    for (what, ops) in [
        (
            "another sum",
            vec![first, {
                let (destination, b) = (own(Scratch), own(Scratch));
                let modifiers = Modifiers::NONE;
                Op::Reduce { destination, a: of_peer(3, Input), b, range: RANGE, modifiers }
            }],
        ),
        (
            "a shorter range",
            vec![first, {
                let (destination, source) = (of_peer(0, Output), own(Output));
                Op::Copy { destination, source, range, modifiers: Modifiers::NONE }
            }],
        ),
        ("a copy of something else", vec![first, copy(of_peer(0, Output), own(Input))]),
        ("the sum so far", vec![first, add(own(Output))]),
        ("what may be the sum so far", vec![first, add(own(Input))]),
        ("what an address leads to", vec![first, add(Operand::Address(1 << 40))]),
        (
            "two messages, perhaps of one slot",
            vec![copy(slot(0), own(Input)), copy(slot(4), own(Input))],
        ),
        ("a wait", vec![first, Op::WaitSignal { port: 1, value: 1 }]),
        (
            "a peer's memory beside what is read there",
            vec![add(elsewhere), copy(of_peer(2, Output), own(Output))],
        ),
        (
            "own memory beside what is written there",
            vec![copy(Operand::Buffer { buffer: Output, offset: 80 }, own(Input)), {
                copy(own(Output), own(Input))
            }],
        ),
    ] {
        assert_eq!(count(&ops), 0, "{what}");
    }
    // Behind a copy nothing is added: the copy would have it, too.
    let ops = [first, copy(of_peer(0, Output), own(Output)), add(of_peer(3, Input))];
    assert_eq!(count(&ops), 1);
}
