//! Each collective's plans, wrong in the ways in which a builder gets them wrong: each is refused,
//! for the right reason.

use super::mutation::{Change, try_mutants};
use crate::plan::tests::collectives::{choose, is_possible, low_latency_ways, ways};
use crate::plan::tests::{limits, request};
use crate::plan::*;
use ringdove_kernels::element::ReduceOp;

/// Four ranks, root 1, two slices a round, two rounds of which the last is clipped; or, where
/// messages hold whole parts, one round.
fn cases() -> Vec<(CollectiveRequest, Plan)> {
    let case = |(collective, algorithm)| {
        // None is empty, and the last one is clipped in the second round.
        let bytes = if has_chunks_of_slices(collective, algorithm) { 484 } else { 100 };
        let request = CollectiveRequest { collective, ..request(4, bytes) };
        let choice = choose(&request, algorithm, &limits(1, 64, 4), 32);
        let messages = match choice.algorithm {
            // Messages that differ in size, or one for each pair.
            Algorithm::Halving | Algorithm::TwoShot => (1, 1),
            _ if choice.is_in_whole_parts() => (2, 1),
            _ => (2, 2),
        };
        assert_eq!((choice.slices, choice.rounds), messages, "{choice:?}");
        (request, build(&choice))
    };
    ways(1).into_iter().map(case).collect()
}

/// Does each rank own a chunk of several slices in a round?
fn has_chunks_of_slices(collective: Collective, algorithm: Algorithm) -> bool {
    algorithm == Algorithm::InRankOrder && collective != Collective::ReduceScatter
}

fn reason(plan: Plan, request: &CollectiveRequest) -> Option<Reason> {
    verify(plan, &request.promise()).err().map(|error| *error.reason)
}

/// Every segment of every rank.
fn segments(plan: &mut Plan) -> impl Iterator<Item = (usize, &mut Segment)> {
    let ranks = plan.ranks.iter_mut().enumerate();
    ranks.flat_map(|(rank, program)| {
        program
            .blocks
            .iter_mut()
            .flat_map(move |block| block.segments.iter_mut().map(move |it| (rank, it)))
    })
}

/// For each case and each op that `wanted` takes, the plan with `edit` done to this op's place.
/// `expected` says what it may be refused for. Each collective must have such ops.
fn each(
    wanted: impl Fn(&Op, &BlockProgram) -> bool,
    edit: impl Fn(&mut Vec<Op>, usize),
    expected: impl Fn(&Reason) -> bool,
) {
    each_of(&cases(), wanted, edit, expected);
}

fn each_of(
    cases: &[(CollectiveRequest, Plan)],
    wanted: impl Fn(&Op, &BlockProgram) -> bool,
    edit: impl Fn(&mut Vec<Op>, usize),
    expected: impl Fn(&Reason) -> bool,
) {
    for (request, plan) in cases {
        let mut tried = 0;
        for (rank, program) in plan.ranks.iter().enumerate() {
            let block = &program.blocks[0];
            let Some(segment) = block.segments.first() else { continue };
            for (place, op) in segment.ops.iter().enumerate() {
                if !wanted(op, block) {
                    continue;
                }
                tried += 1;
                let mut plan = plan.clone();
                edit(&mut plan.ranks[rank].blocks[0].segments[0].ops, place);
                let reason = reason(plan, request);
                let refused = reason.as_ref().is_some_and(&expected);
                assert!(refused, "{request:?}, rank {rank}, {op:?}: {reason:?}");
            }
        }
        assert!(tried > 0, "{request:?} has no such op");
    }
}

fn side(op: &Op, block: &BlockProgram) -> Option<Side> {
    op.port().map(|port| block.ports[usize::from(port)].side)
}

#[test]
fn a_wait_for_data_that_is_left_out() {
    let is_arrival = |op: &Op, block: &BlockProgram| {
        matches!(op, Op::WaitSignal { .. }) && side(op, block) == Some(Side::Receive)
    };
    each(
        is_arrival,
        |ops, place| {
            ops.remove(place);
        },
        |reason| matches!(reason, Reason::NotArrived { .. }),
    );
}

#[test]
fn a_wait_for_a_free_slot_that_is_left_out() {
    // Of two slices, the second one's wait covers the first one's slot in the round after.
    let is_credit = |op: &Op, block: &BlockProgram| {
        matches!(op, Op::WaitSignal { .. }) && side(op, block) == Some(Side::Send)
    };
    each(
        is_credit,
        |ops, place| {
            ops.remove(place);
        },
        |reason| matches!(reason, Reason::SlotNotFree { .. }),
    );
}

#[test]
fn a_credit_that_is_not_returned() {
    each(
        |op, _| matches!(op, Op::Credit { .. }),
        |ops, place| {
            ops.remove(place);
        },
        |reason| matches!(reason, Reason::Unbalanced { .. } | Reason::Deadlock(_)),
    );
}

#[test]
fn a_credit_that_is_returned_before_the_data_was_read() {
    for (request, plan) in cases() {
        for rank in 0..4 {
            let mut plan = plan.clone();
            let Some(segment) = plan.ranks[rank].blocks[0].segments.first_mut() else { continue };
            let credit = segment.ops.iter().position(|op| matches!(op, Op::Credit { .. }));
            let Some(credit) = credit else { continue };
            let op = segment.ops.remove(credit);
            let wait = |it: &Op| matches!(it, Op::WaitSignal { .. }) && it.port() == op.port();
            let wait = segment.ops[..credit].iter().rposition(wait).expect("waited for");
            segment.ops.insert(wait + 1, op);
            let reason = reason(plan, &request);
            let returned =
                matches!(reason, Some(Reason::SlotReturned { .. } | Reason::SlotInUse { .. }));
            assert!(returned, "{request:?}, rank {rank}: {reason:?}");
        }
    }
}

#[test]
fn a_message_that_is_not_sent() {
    each(
        |op, _| matches!(op, Op::Put { .. }),
        |ops, place| {
            ops.remove(place);
        },
        |reason| {
            let order = matches!(reason, Reason::MessageOrder { .. });
            order || matches!(reason, Reason::Deadlock(_) | Reason::Unbalanced { .. })
        },
    );
}

#[test]
fn a_message_that_is_sent_twice() {
    each(
        |op, _| matches!(op, Op::Put { .. }),
        |ops, place| ops.insert(place, ops[place]),
        |reason| matches!(reason, Reason::MessageOrder { .. }),
    );
}

/// What goes into a slot is taken 32 bytes further on: from the other slice, or another part.
#[test]
fn chunks_that_are_swapped() {
    let into_slot = |op: &Op, _: &BlockProgram| match op {
        Op::Copy { destination, source, .. } => {
            matches!((destination, source), (Operand::Slot { .. }, Operand::Buffer { .. }))
        }
        _ => false,
    };
    let sends: Vec<_> = cases();
    each_of(
        &sends,
        into_slot,
        |ops, place| {
            if let Op::Copy { source: Operand::Buffer { offset, .. }, .. } = &mut ops[place] {
                *offset ^= 32;
            }
        },
        wrong_value,
    );
}

/// The result is written to the place of another slice.
#[test]
fn results_that_are_swapped() {
    each(
        |op, _| {
            let buffer =
                |at: &Operand| matches!(at, Operand::Buffer { buffer: Buffer::Output, .. });
            match op {
                Op::Copy { destination, .. } => buffer(destination),
                // Partial sums in the output are read again: that is another test's.
                Op::Reduce { destination, a, b, .. } => {
                    buffer(destination) && !buffer(a) && !buffer(b)
                }
                _ => false,
            }
        },
        |ops, place| {
            if let Op::Copy { destination, .. } | Op::Reduce { destination, .. } = &mut ops[place]
                && let Operand::Buffer { offset, .. } = destination
            {
                *offset ^= 32;
            }
        },
        wrong_value,
    );
}

fn wrong_value(reason: &Reason) -> bool {
    matches!(
        reason,
        Reason::WrongResult { .. }
            | Reason::Unmapped { .. }
            | Reason::Undefined { .. }
            | Reason::TooManyTerms { .. }
            | Reason::Race { .. }
    )
}

fn reductions() -> Vec<(CollectiveRequest, Plan)> {
    let cases: Vec<_> = cases().into_iter().filter(|(it, _)| it.collective.reduces()).collect();
    assert_eq!(cases.len(), 12);
    cases
}

#[test]
fn a_contribution_that_is_left_out() {
    each_of(
        &reductions(),
        |op, _| matches!(op, Op::Reduce { .. }),
        |ops, place| {
            if let Op::Reduce { destination, a, range, modifiers, .. } = ops[place] {
                ops[place] = Op::Copy { destination, source: a, range, modifiers };
            }
        },
        |reason| matches!(reason, Reason::WrongResult { .. }),
    );
}

#[test]
fn a_contribution_that_counts_twice() {
    each_of(
        &reductions(),
        |op, _| matches!(op, Op::Reduce { .. }),
        |ops, place| {
            if let Op::Reduce { destination, b, range, modifiers, .. } = ops[place] {
                let modifiers = Modifiers { scale: false, ..modifiers };
                ops.insert(
                    place + 1,
                    Op::Reduce { destination, a: destination, b, range, modifiers },
                );
            }
        },
        |reason| matches!(reason, Reason::WrongResult { .. } | Reason::TooManyTerms { .. }),
    );
}

/// An average that is divided at every rank, and one that is not divided.
#[test]
fn a_reduction_that_is_finished_early_or_not_at_all() {
    for (request, plan) in reductions() {
        let request = CollectiveRequest { reduce_op: ReduceOp::Avg, ..request };
        verify(plan.clone(), &request.promise()).expect("right for an average, too");
        for finished in [true, false] {
            let mut plan = plan.clone();
            for (_, segment) in segments(&mut plan) {
                for op in &mut segment.ops {
                    if let Op::Reduce { modifiers, .. } = op {
                        modifiers.finish = finished;
                    }
                }
            }
            let reason = reason(plan, &request).expect("wrong");
            let right = match finished {
                true => matches!(reason, Reason::AfterFinish),
                false => matches!(reason, Reason::WrongResult { .. }),
            };
            assert!(right, "{request:?}, {finished}: {reason}");
        }
    }
}

/// Lanes that end at another rank than the plan's.
#[test]
fn data_that_is_written_to_the_wrong_rank() {
    for (request, plan) in cases() {
        for rank in 0..4 {
            let mut plan = plan.clone();
            let ports = &mut plan.ranks[rank].blocks[0].ports;
            let Some(end) = ports.iter_mut().find(|end| end.side == Side::Send) else { continue };
            let other = (0..4).find(|it| *it != end.lane.to && *it != end.lane.from);
            end.lane.to = other.expect("four ranks");
            let error = verify(plan, &request.promise()).expect_err("goes astray");
            let astray = matches!(
                *error.reason,
                Reason::Deadlock(_) | Reason::SharedPort { .. } | Reason::Unbalanced { .. }
            );
            assert!(astray, "{request:?}, rank {rank}: {error}");
        }
    }
}

#[test]
fn a_rank_that_is_skipped() {
    for (request, plan) in cases() {
        for rank in 0..4 {
            let mut plan = plan.clone();
            for block in &mut plan.ranks[rank].blocks {
                block.segments.clear();
            }
            let reason = reason(plan, &request).expect("somebody misses it");
            let missed = matches!(
                reason,
                Reason::Deadlock(_) | Reason::Unbalanced { .. } | Reason::WrongResult { .. }
            );
            assert!(missed, "{request:?}, rank {rank}: {reason}");
        }
    }
}

/// A barrier whose last step is left out, on all ranks alike, waits for nobody in vain; and yet
/// some rank has no word of another.
#[test]
fn a_barrier_that_leaves_somebody_behind() {
    let request = CollectiveRequest { collective: Collective::Barrier, ..request(5, 0) };
    let choice = select(&request, &limits(1, 64, 2)).expect("valid");
    let mut plan = build(&choice);
    for (_, segment) in segments(&mut plan) {
        let last = |op: &Op| op.port().is_some_and(|port| port >= 4);
        segment.ops.retain(|op| !last(op));
    }
    let reason = reason(plan, &request).expect("a step is missing");
    assert!(matches!(reason, Reason::NotMet { .. }), "{reason}");
}

/// Every single change to every op, at the root and at another rank.
#[test]
fn one_change_is_refused_or_does_no_harm() {
    for (collective, algorithm) in [ways(1), low_latency_ways(1)].concat() {
        for (reduce_op, in_place) in [(ReduceOp::PreMulSum, false), (ReduceOp::Avg, true)] {
            let request = CollectiveRequest { collective, reduce_op, in_place, ..request(3, 76) };
            let request = match is_possible(&request, algorithm) {
                true => request,
                // Without scaling.
                false if algorithm == Algorithm::AllPairs => {
                    CollectiveRequest { reduce_op: ReduceOp::Sum, ..request }
                }
                // Each rank has a piece of it.
                false => CollectiveRequest { rank_count: 4, bytes: 108, ..request },
            };
            let request = match has_chunks_of_slices(collective, algorithm) {
                true => CollectiveRequest { bytes: 172, ..request },
                false => request,
            };
            let plan = build(&choose(&request, algorithm, &limits(1, 32, 4), 32));
            for rank in [1, 2] {
                let counts = try_mutants(&request, &plan, rank);
                println!("{collective:?}, {algorithm:?}, rank {rank}: {counts:?}");
                for always in [Change::Message, Change::Advance, Change::Arrival] {
                    let (tried, accepted) = counts.get(&always).copied().unwrap_or_default();
                    assert_eq!(accepted, 0, "{always:?} of {tried}");
                }
            }
        }
    }
}
