//! LL plans of all collectives, wrong in the ways in which a builder gets them wrong: each is
//! refused, for the right reason.

use crate::plan::tests::collectives::{choose, low_latency_ways};
use crate::plan::tests::{limits, request};
use crate::plan::*;

/// Four ranks, root 1, two rounds of which the last is clipped; and a barrier.
fn cases() -> Vec<(CollectiveRequest, Plan)> {
    let barrier = (Collective::Barrier, Algorithm::AllPairs);
    let case = |(collective, algorithm)| {
        let bytes = if collective == Collective::Barrier { 0 } else { 76 };
        let request = CollectiveRequest { collective, ..request(4, bytes) };
        (request, build(&choose(&request, algorithm, &limits(1, 64, 4), 64)))
    };
    let mut cases: Vec<_> = low_latency_ways(1).into_iter().map(case).collect();
    cases.push(case(barrier));
    cases
}

/// For each case and each op that `wanted` takes, the plan with `edit` done to this op's place:
/// `expected` says what it may be refused for. Returns in how many cases there is such an op.
fn each(
    wanted: impl Fn(&Op) -> bool,
    edit: impl Fn(&mut Vec<Op>, usize),
    expected: impl Fn(&Reason) -> bool,
) -> usize {
    let mut found = 0;
    for (request, plan) in cases() {
        verify(plan.clone(), &request.promise()).expect("right before the change");
        let mut tried = 0;
        for (rank, program) in plan.ranks.iter().enumerate() {
            for (place, op) in program.blocks[0].segments[0].ops.iter().enumerate() {
                if !wanted(op) {
                    continue;
                }
                tried += 1;
                let mut plan = plan.clone();
                edit(&mut plan.ranks[rank].blocks[0].segments[0].ops, place);
                let error = verify(plan, &request.promise()).err();
                let refused = error.as_ref().is_some_and(|error| expected(&error.reason));
                assert!(refused, "{request:?}, rank {rank}, {op:?}: {error:?}");
            }
        }
        found += usize::from(tried > 0);
    }
    found
}

fn remove(ops: &mut Vec<Op>, place: usize) {
    ops.remove(place);
}

/// All collectives and the barrier.
const ALL: usize = 9;

#[test]
fn a_message_that_is_not_packed() {
    let is_refused = |reason: &Reason| matches!(reason, Reason::NotPacked { .. });
    assert_eq!(each(|op| matches!(op, Op::Pack { .. }), remove, is_refused), ALL);
}

/// Also one without data: its receiver would not know what has been read.
#[test]
fn a_message_that_is_not_sent() {
    let found = each(
        |op| matches!(op, Op::Put { .. }),
        remove,
        |reason| {
            let order = matches!(reason, Reason::MessageOrder { .. });
            order || matches!(reason, Reason::Deadlock(_) | Reason::Unbalanced { .. })
        },
    );
    assert_eq!(found, ALL);
}

#[test]
fn a_message_that_is_sent_twice() {
    let found = each(
        |op| matches!(op, Op::Put { .. }),
        |ops, place| ops.insert(place, ops[place]),
        |reason| matches!(reason, Reason::MessageOrder { .. }),
    );
    assert_eq!(found, ALL);
}

/// If this passed, the next message could take the slot of one that was not read: of a message
/// without data, too.
#[test]
fn a_message_that_is_not_waited_for() {
    let found = each(
        |op| matches!(op, Op::Collect { .. }),
        remove,
        |reason| {
            let in_step = matches!(reason, Reason::NotInStep { .. });
            in_step || matches!(reason, Reason::Unbalanced { .. } | Reason::NotMet { .. })
        },
    );
    assert_eq!(found, ALL);
}

#[test]
fn data_that_is_left_out_of_a_message() {
    let found = each(
        |op| matches!(op, Op::Pack { source: Some(_), .. }),
        |ops, place| {
            if let Op::Pack { source, .. } = &mut ops[place] {
                *source = None;
            }
        },
        |reason| matches!(reason, Reason::NoData { .. }),
    );
    assert_eq!(found, ALL - 1);
}

/// What was packed without data is taken for data.
#[test]
fn a_message_without_data_that_is_copied() {
    let found = each(
        |op| matches!(op, Op::Collect { destination: None, .. }),
        |ops, place| {
            let Op::Collect { first, message, range, .. } = ops[place] else { return };
            let destination = Some(Operand::Buffer { buffer: Buffer::Output, offset: 0 });
            let (own, before, count, finish) = (None, 0, 1, false);
            ops[place] =
                Op::Collect { destination, own, before, first, count, message, range, finish };
        },
        |reason| matches!(reason, Reason::NoData { .. } | Reason::Unmapped { .. }),
    );
    assert_eq!(found, 5, "those with a root, and the barrier");
}

#[test]
fn data_that_is_taken_and_not_kept() {
    let found = each(
        |op| matches!(op, Op::Collect { destination: Some(_), .. }),
        |ops, place| {
            if let Op::Collect { destination, own, before, finish, .. } = &mut ops[place] {
                (*destination, *own, *before, *finish) = (None, None, 0, false);
            }
        },
        |reason| matches!(reason, Reason::WrongResult { .. }),
    );
    assert_eq!(found, ALL - 1);
}

/// What is packed, or the place that a message is copied to, is 16 bytes off.
#[test]
fn places_that_are_swapped() {
    let wrong = |reason: &Reason| {
        let value = matches!(reason, Reason::WrongResult { .. } | Reason::Unmapped { .. });
        value || matches!(reason, Reason::Undefined { .. } | Reason::Race { .. })
    };
    let shift = |place: &mut Option<Operand>| {
        if let Some(Operand::Buffer { offset, .. }) = place {
            *offset ^= 16;
        }
    };
    let packed = each(
        |op| matches!(op, Op::Pack { source: Some(_), .. }),
        |ops, place| {
            if let Op::Pack { source, .. } = &mut ops[place] {
                shift(source);
            }
        },
        wrong,
    );
    let collected = each(
        |op| matches!(op, Op::Collect { destination: Some(_), .. }),
        |ops, place| {
            if let Op::Collect { destination, .. } = &mut ops[place] {
                shift(destination);
            }
        },
        wrong,
    );
    assert_eq!((packed, collected), (ALL - 1, ALL - 1));
}

/// One contribution less, and one twice.
#[test]
fn contributions_that_are_left_out_or_count_twice() {
    let is_reduction = |op: &Op| matches!(op, Op::Collect { own: Some(_), .. });
    let without = each(
        is_reduction,
        |ops, place| {
            if let Op::Collect { destination, own: Some(own), before, range, .. } = ops[place] {
                // The messages are waited for, and dropped.
                let to = destination.expect("a reduction has one");
                let modifiers = Modifiers::NONE;
                ops.insert(place + 1, Op::Copy { destination: to, source: own, range, modifiers });
                assert!(before < 4);
            }
        },
        |reason| matches!(reason, Reason::WrongResult { .. }),
    );
    let twice = each(
        is_reduction,
        |ops, place| {
            if let Op::Collect { destination: Some(a), own: Some(b), range, .. } = ops[place] {
                let modifiers = Modifiers::NONE;
                ops.insert(place + 1, Op::Reduce { destination: a, a, b, range, modifiers });
            }
        },
        |reason| matches!(reason, Reason::WrongResult { .. } | Reason::TooManyTerms { .. }),
    );
    assert_eq!((without, twice), (3, 3));
}

#[test]
fn a_rank_that_is_skipped_and_data_for_the_wrong_rank() {
    for (request, plan) in cases() {
        for rank in 0..4 {
            let mut skipped = plan.clone();
            skipped.ranks[rank].blocks[0].segments.clear();
            let reason = verify(skipped, &request.promise()).expect_err("missed").reason;
            assert!(matches!(*reason, Reason::Deadlock(_)), "{request:?}, rank {rank}: {reason}");
            // Each of two peers gets the other's message.
            let mut astray = plan.clone();
            astray.ranks[rank].blocks[0].ports.swap(0, 1);
            let error = verify(astray, &request.promise()).err();
            let is_all_one = sends_one_message(&plan.ranks[rank].blocks[0]);
            assert_eq!(error.is_none(), is_all_one, "{request:?}, rank {rank}: {error:?}");
        }
    }
}

/// Do the first two ports send what is packed once? Then nobody sees that they are swapped.
fn sends_one_message(block: &BlockProgram) -> bool {
    let source = |wanted: PortIndex| {
        let ops = &block.segments[0].ops;
        ops.iter().find_map(|op| match *op {
            Op::Put { port, source: Operand::Slot { port: from, .. }, .. } if port == wanted => {
                Some(from)
            }
            _ => None,
        })
    };
    source(0) == source(1)
}

/// Any LL collectives one after another on the same lanes, as one program, in which a rank may be
/// ahead of others: if this fails, a word of one call is taken for another's, or a slot is written
/// that has not been read.
#[test]
fn collectives_follow_one_another_on_the_same_lanes() {
    for seed in 0..48 {
        let mut random = fastrand::Rng::with_seed(seed);
        let rank_count = random.u32(2..6);
        let last = [Collective::AllReduce, Collective::AllToAll][random.usize(..2)];
        let bytes = 4 * random.u64(1..40);
        let parts = if last == Collective::AllToAll { u64::from(rank_count) } else { 1 };
        let request_of =
            |collective, bytes| CollectiveRequest { collective, ..request(rank_count, bytes) };
        let all_bytes = bytes * u64::from(rank_count);
        let last = request_of(last, all_bytes / parts);
        let program = |request: &CollectiveRequest| {
            build(&choose(request, Algorithm::AllPairs, &limits(1, 64, 4), 64))
        };
        let mut plan = program(&request_of(Collective::AllReduce, all_bytes));
        for _ in 0..random.usize(..8) {
            let ways = low_latency_ways(random.u32(..rank_count));
            let (collective, _) = ways[random.usize(..ways.len())];
            let next = match random.u32(..8) {
                0 => request_of(Collective::Barrier, 0),
                // No more than the last one has.
                _ => request_of(collective, 4 * random.u64(1..=bytes / 4)),
            };
            follow(&mut plan, &program(&next));
        }
        follow(&mut plan, &program(&last));
        let verified = verify(plan, &last.promise())
            .unwrap_or_else(|error| panic!("seed {seed}, {last:?}: {error}"));
        for run in 0..4 {
            let result = crate::plan::tests::try_run(&last, &verified, seed * 4 + run);
            assert_eq!(result, Ok(()), "seed {seed}, run {run}, {last:?}");
        }
    }
}

/// Appends the segments of `next` to those of `plan`, which keeps its ports.
fn follow(plan: &mut Plan, next: &Plan) {
    for (rank, other) in plan.ranks.iter_mut().zip(&next.ranks) {
        let (block, other) = (&mut rank.blocks[0], &other.blocks[0]);
        let place = |port: PortIndex| {
            let end = other.ports[usize::from(port)];
            block.ports.iter().position(|it| *it == end).expect("the same lanes") as PortIndex
        };
        let slot = |operand: Operand| match operand {
            Operand::Slot { port, message, offset } => {
                Operand::Slot { port: place(port), message, offset }
            }
            operand => operand,
        };
        let segments = other.segments.iter().map(|segment| {
            let ops = segment.ops.iter().flat_map(|&op| renumbered(op, &place, &slot));
            Segment { ops: ops.collect(), ..segment.clone() }
        });
        let segments: Vec<Segment> = segments.collect();
        block.segments.extend(segments);
    }
}

/// The op with other ports. What waits at several ports, which stand apart then, becomes several.
fn renumbered(
    op: Op,
    place: &impl Fn(PortIndex) -> PortIndex,
    slot: &impl Fn(Operand) -> Operand,
) -> Vec<Op> {
    match op {
        Op::Pack { port, message, source, range } => {
            vec![Op::Pack { port: place(port), message, source, range }]
        }
        Op::Put { port, destination, source, range, arrival, completion } => {
            let (port, destination, source) = (place(port), slot(destination), slot(source));
            vec![Op::Put { port, destination, source, range, arrival, completion }]
        }
        Op::Advance { port, signals, completions } => {
            vec![Op::Advance { port: place(port), signals, completions }]
        }
        Op::Collect { destination: None, own, before, first, count, message, range, finish } => {
            let one = |port| Op::Collect {
                destination: None,
                own,
                before,
                first: place(port),
                count: 1,
                message,
                range,
                finish,
            };
            (first..first + count).map(one).collect()
        }
        Op::Collect { destination, own, before, first, count, message, range, finish } => {
            let first = place(first);
            vec![Op::Collect { destination, own, before, first, count, message, range, finish }]
        }
        op => vec![op],
    }
}
