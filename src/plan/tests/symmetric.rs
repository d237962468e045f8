//! All-reduces between the registered buffers of all ranks: right results, and what the verifier
//! refuses.

use super::*;

/// So small pieces that there are several rounds, of which the last is clipped.
pub(in crate::plan) fn symmetric(
    rank_count: u32,
    count: u64,
    in_place: bool,
    reduce_op: ReduceOp,
) -> Case {
    let request = CollectiveRequest {
        in_place,
        reduce_op,
        registered: true,
        ..request(rank_count, 4 * count)
    };
    let limits =
        Limits { stores: true, store_blocks: 3, nvlink: true, symmetric: true, ..limits(3, 64, 4) };
    let large = CollectiveRequest { bytes: 1 << 20, ..request };
    let choice = select(&large, &limits).expect("valid");
    assert_eq!((choice.algorithm, choice.stores), (Algorithm::Symmetric, true), "{request:?}");
    let mut choice = Choice { request, ..choice };
    choice.blocks = limits.blocks_max;
    choice.set_slice_bytes(16);
    (request, choice)
}

type Case = (CollectiveRequest, Choice);

/// If this fails, an all-reduce between registered buffers is wrong, or cannot be run.
#[test]
fn data_goes_from_all_inputs_to_all_outputs() {
    for rank_count in 2..=8 {
        for count in [1, 7, 100, 613] {
            for (in_place, reduce_op) in [
                (false, ReduceOp::Sum),
                (true, ReduceOp::Sum),
                (false, ReduceOp::Avg),
                (true, ReduceOp::Max),
            ] {
                let (request, choice) = symmetric(rank_count, count, in_place, reduce_op);
                let verified = verify(build(&choice), &request.promise());
                let verified = verified.unwrap_or_else(|error| panic!("{choice:?}: {error}"));
                assert!(verified.plan().reaches_peers());
                let mut kinds = verified.lanes().iter().map(|lane| lane.kind);
                assert!(kinds.all(|kind| kind == LaneKind::Stores));
                run(&request, &verified, count);
            }
        }
    }
}

/// If this fails, a scaled sum reads what nobody has scaled, or a plan is taken whose memory no
/// rank reaches.
#[test]
fn what_cannot_go_this_way_goes_another() {
    let all =
        Limits { stores: true, store_blocks: 3, nvlink: true, symmetric: true, ..limits(3, 64, 4) };
    let registered = CollectiveRequest { registered: true, ..request(4, 1 << 20) };
    let taken = |request: &CollectiveRequest, limits: &Limits| {
        let all = candidates(request, limits).expect("valid");
        all.iter().any(|choice| choice.algorithm == Algorithm::Symmetric)
    };
    assert!(taken(&registered, &all));
    assert!(!taken(&CollectiveRequest { registered: false, ..registered }, &all));
    let scaled = CollectiveRequest { reduce_op: ReduceOp::PreMulSum, ..registered };
    assert!(!taken(&scaled, &all));
    assert!(!taken(&registered, &Limits { symmetric: false, ..all }));
    assert!(!taken(&registered, &Limits { store_blocks: 0, ..all }));
    assert!(!taken(&registered, &Limits { reproducible: true, ..all }));
    assert!(!taken(&registered, &Limits { ranks_per_node: 2, ..all }));
    assert!(!taken(&CollectiveRequest { rank_count: 17, ..registered }, &all));
    let gather = CollectiveRequest { collective: Collective::AllGather, ..registered };
    assert!(!taken(&gather, &all));
    // A plan of a file may want what a communicator lacks.
    let (_, choice) = symmetric(3, 613, false, ReduceOp::Sum);
    let plan = build(&choice);
    assert_eq!(lacks(&plan, &all, &|_, _| true), None);
    let missing = lacks(&plan, &Limits { symmetric: false, ..all }, &|_, _| true)
        .expect("no way to the peers");
    assert!(missing.contains("registered buffers of other ranks"), "{missing}");
}

/// What the verifier says once `edit` has changed the segments of every block.
fn refused(edit: impl Fn(&mut Vec<Segment>)) -> String {
    let (request, choice) = symmetric(3, 613, false, ReduceOp::Sum);
    let mut plan = build(&choice);
    let blocks = plan.ranks.iter_mut().flat_map(|rank| &mut rank.blocks);
    blocks.for_each(|block| edit(&mut block.segments));
    verify(plan, &request.promise()).expect_err("wrong after the change").to_string()
}

/// The first peer's place that the ops of a round name, at a receive port or at a send port.
fn at_peer(ops: &[Op], reads: bool) -> Operand {
    let place = |op: &Op| match *op {
        Op::Reduce { a: place @ Operand::Peer { .. }, .. } if reads => Some(place),
        Op::Copy { destination: place @ Operand::Peer { .. }, .. } if !reads => Some(place),
        _ => None,
    };
    ops.iter().find_map(place).expect("a peer's place")
}

/// If these fail, threads may reach memory that its rank has not lent, or has taken back.
#[test]
fn buffers_are_reached_between_lending_and_return_alone() {
    let waits = |op: &Op| matches!(op, Op::WaitSignal { value: 1.., .. });
    let before = refused(|segments| segments[0].ops.retain(|op| !waits(op)));
    assert!(before.contains("rank 1's input") && before.contains("before"), "{before}");
    let late = refused(|segments| {
        let returned = segments[2].ops.remove(0);
        assert!(matches!(returned, Op::Credit { .. }));
        segments[0].ops.push(returned);
    });
    assert!(late.contains("may still be going on when the kernel has ended"), "{late}");
    let unread = refused(|segments| segments[2].ops.retain(|op| !waits(op)));
    assert!(unread.contains("may still be going on when the kernel has ended"), "{unread}");
}

/// If these fail, the executor is given places that it cannot reach, or data passes a link twice.
#[test]
fn peers_are_reached_along_the_lanes_that_data_takes() {
    let backwards = refused(|segments| {
        let sends = at_peer(&segments[1].ops, false);
        for op in &mut segments[1].ops {
            if let Op::Reduce { a, .. } = op {
                *a = sends;
            }
        }
    });
    assert!(backwards.contains("read at a receive port"), "{backwards}");
    let across = refused(|segments| {
        let (from, to) = (at_peer(&segments[1].ops, true), at_peer(&segments[1].ops, false));
        for op in &mut segments[1].ops {
            if let Op::Copy { destination, source, .. } = op {
                (*destination, *source) = (to, from);
            }
        }
    });
    assert!(across.contains("one peer at most"), "{across}");
    let scratch = refused(|segments| {
        for op in &mut segments[1].ops {
            if let Op::Copy { destination: Operand::Peer { buffer, .. }, .. } = op {
                *buffer = Buffer::Scratch;
            }
        }
    });
    assert!(scratch.contains("the rank's own"), "{scratch}");
    let (request, choice) = symmetric(3, 613, false, ReduceOp::Sum);
    let request = CollectiveRequest { registered: false, ..request };
    let error = verify(build(&choice), &request.promise()).expect_err("no registered buffers");
    assert!(error.to_string().contains("registered buffers alone"), "{error}");
}

/// The same data around a ring whose ranks reach their neighbours' buffers.
pub(in crate::plan) fn ring_symmetric(
    rank_count: u32,
    count: u64,
    in_place: bool,
    reduce_op: ReduceOp,
) -> Case {
    let (request, choice) = symmetric(rank_count, count, in_place, ReduceOp::Sum);
    let request = CollectiveRequest { reduce_op, ..request };
    (request, Choice { request, algorithm: Algorithm::RingSymmetric, ..choice })
}

/// If this fails, an all-reduce around a ring of registered buffers is wrong, or cannot be run.
#[test]
fn data_goes_around_between_the_buffers_of_neighbours() {
    for rank_count in 2..=8 {
        for count in [1, 7, 100, 613] {
            for reduce_op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max, ReduceOp::PreMulSum] {
                for in_place in [false, true] {
                    let (request, choice) = ring_symmetric(rank_count, count, in_place, reduce_op);
                    let verified = verify(build(&choice), &request.promise());
                    let verified = verified.unwrap_or_else(|error| panic!("{choice:?}: {error}"));
                    assert!(verified.plan().reaches_peers());
                    let lanes = verified.lanes();
                    assert!(lanes.iter().all(|lane| lane.kind == LaneKind::Stores));
                    run(&request, &verified, count);
                }
            }
        }
    }
}

/// A ring of three, pulling, with an edit of rank 0's round.
fn ring_with(edit: impl Fn(&mut Vec<Op>)) -> Result<Verified, VerifyError> {
    let (request, choice) = ring_symmetric(3, 613, true, ReduceOp::Sum);
    let mut plan = build(&choice);
    edit(&mut plan.ranks[0].blocks[0].segments[0].ops);
    verify(plan, &request.promise())
}

/// If this fails, positions of lanes drift apart from launch to launch, or a plan file makes the
/// verifier count for ever.
#[test]
fn one_credit_stands_for_all_messages_of_a_round() {
    let count = |op: &Op| matches!(op, Op::Credit { messages: 4, .. });
    ring_with(|ops| assert_eq!(ops.iter().filter(|op| count(op)).count(), 1)).unwrap();
    for other in [0, 3, 5] {
        let error = ring_with(|ops| {
            for op in ops {
                if let Op::Credit { messages, .. } = op {
                    *messages = other;
                }
            }
        });
        let error = error.expect_err("credits for other messages").to_string();
        let expected = match other {
            0 => "for a message at least",
            3 => "nothing moves any more",
            _ => "credits",
        };
        assert!(error.contains(expected), "{other}: {error}");
    }
}

/// If this fails, a rank takes its buffer for its own while its neighbour still reads it.
#[test]
fn what_is_pulled_is_credited_after_it_was_read() {
    let early = ring_with(|ops| {
        let at = ops.iter().position(|op| matches!(op, Op::Credit { .. })).unwrap();
        let credit = ops.remove(at);
        ops.insert(0, credit);
    });
    let early = early.expect_err("credits before anything was read").to_string();
    assert!(early.contains("may still be going on"), "{early}");
}
