//! Small worlds that are wrong in one known way, and what the verifier says of each.

use crate::plan::tests::limits;
use crate::plan::*;
use ringdove_kernels::element::ReduceOp;

fn request(in_place: bool, registered: bool) -> Request {
    Request {
        collective: Collective::AllReduce,
        rank_count: 3,
        bytes: 768,
        element_bytes: 4,
        reduce_op: ReduceOp::Sum,
        in_place,
        registered,
    }
}

fn choice(request: &Request) -> Choice {
    let mut choice = select(request, &limits(2, 64, 4)).expect("valid");
    choice.algorithm = match (request.registered, request.in_place) {
        (false, _) => Algorithm::RingStaged,
        (true, false) => Algorithm::RingDirect,
        (true, true) => Algorithm::RingHybrid,
    };
    choice.slices = 2;
    choice.set_slice_bytes(64);
    choice
}

/// The error of a plan in which `edit` changed something.
fn refused(request: &Request, edit: impl Fn(&mut Plan)) -> VerifyError {
    let mut plan = build(&choice(request));
    verify(plan.clone(), &request.promise()).expect("right before the change");
    edit(&mut plan);
    verify(plan, &request.promise()).expect_err("wrong after the change")
}

fn staged(edit: impl Fn(&mut Plan)) -> VerifyError {
    refused(&request(false, false), edit)
}

/// Changes the first op of rank 0 that `edit` takes.
fn first(plan: &mut Plan, edit: impl Fn(&mut Op) -> bool) {
    let segments = &mut plan.ranks[0].blocks[0].segments;
    assert!(segments.iter_mut().flat_map(|segment| &mut segment.ops).any(edit), "no such op");
}

#[test]
fn shapes_that_no_launch_can_have_are_named() {
    let edits: [(&str, fn(&mut Plan)); 6] = [
        ("threads: expected a multiple of 32 up to 1024, seen 100", |plan| plan.thread_count = 100),
        ("slot bytes: expected a multiple of 16, seen 24", |plan| plan.slots.bytes = 24),
        ("slots: expected a power of two, seen 3", |plan| plan.slots.count = 3),
        ("blocks: expected 1 to 65536", |plan| plan.ranks[1].blocks.clear()),
        ("the promise is for 3 ranks, the plan for 2", |plan| plan.ranks.truncate(2)),
        ("at most 2^26", |plan| {
            let segment = &mut plan.ranks[0].blocks[0].segments[0];
            (segment.rounds, segment.round_stride) = (u32::MAX, 0);
        }),
    ];
    for (expected, edit) in edits {
        let error = staged(edit).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn ports_belong_to_one_block_and_do_what_their_side_does() {
    let foreign = staged(|plan| plan.ranks[0].blocks[0].ports[0].lane.from = 2);
    assert!(matches!(*foreign.reason, Reason::ForeignPort { .. }), "{foreign}");
    let shared = staged(|plan| {
        let block = plan.ranks[0].blocks[0].clone();
        plan.ranks[0].blocks.push(block);
    });
    assert!(matches!(*shared.reason, Reason::SharedPort { other: 0, .. }), "{shared}");
    let many = staged(|plan| {
        let mut port = plan.ranks[0].blocks[0].ports[0];
        for index in 10..42 {
            port.lane.index = index;
            plan.ranks[0].blocks[0].ports.push(port);
        }
    });
    assert!(many.to_string().contains("at most 32"), "{many}");
    let unknown = staged(|plan| {
        first(plan, |op| match op {
            Op::Credit { port } => {
                *port = 7;
                true
            }
            _ => false,
        });
    });
    assert_eq!(*unknown.reason, Reason::UnknownPort { port: 7, ports: 2 });
    let side = staged(|plan| {
        first(plan, |op| match op {
            Op::Credit { port } => {
                *port ^= 1;
                true
            }
            _ => false,
        });
    });
    assert!(matches!(*side.reason, Reason::WrongPort { .. }), "{side}");
}

#[test]
fn puts_that_the_engine_or_the_encoding_cannot_do_are_refused() {
    let long = refused(&request(false, true), |plan| {
        first(plan, |op| match op {
            Op::Put { range, .. } => {
                range.length = (4 << 20) + 16;
                true
            }
            _ => false,
        });
    });
    assert!(long.to_string().contains("at most 4 MiB"), "{long}");
    let mixed = staged(|plan| {
        first(plan, |op| match op {
            Op::Put { destination, .. } => {
                *destination = Place::Buffer { buffer: Buffer::Output, offset: 0 };
                true
            }
            _ => false,
        });
    });
    assert!(mixed.to_string().contains("a slotted lane moves slots"), "{mixed}");
    let outside = staged(|plan| {
        first(plan, |op| match op {
            Op::Put { range, .. } => {
                range.length += 16;
                true
            }
            _ => false,
        });
    });
    let reason = Reason::OutsideSlot { offset: 0, length: 80, slot_bytes: 64 };
    assert_eq!(*outside.reason, reason);
}

#[test]
fn a_rank_that_does_nothing_leaves_the_others_stuck_and_they_say_on_what() {
    let error = staged(|plan| plan.ranks[0].blocks[0].segments.clear());
    let Reason::Deadlock(stuck) = &*error.reason else { panic!("{error}") };
    assert_eq!(stuck.len(), 2);
    assert!(error.to_string().contains("receive port of lane 0->1 slots 0"), "{error}");
    assert!(error.to_string().contains("needs 1, only 0 raised"), "{error}");
}

#[test]
fn as_many_slices_as_slots_block_the_ring() {
    let request = request(false, false);
    let mut choice = choice(&request);
    choice.slots.count = 2;
    let error = verify(build(&choice), &request.promise()).expect_err("everybody waits for credit");
    assert!(matches!(*error.reason, Reason::Deadlock(ref stuck) if stuck.len() == 3), "{error}");
}

#[test]
fn a_slot_given_back_before_it_is_read_is_noticed() {
    // Even for the last message, which nothing in this launch would overwrite.
    let error = staged(|plan| {
        let ops = &mut plan.ranks[0].blocks[0].segments[0].ops;
        let last = ops.iter().rposition(|op| matches!(op, Op::Credit { .. })).expect("a credit");
        ops.swap(last - 1, last);
    });
    assert!(matches!(*error.reason, Reason::SlotReturned { .. }), "{error}");
}

#[test]
fn the_first_message_needs_the_credit_of_an_earlier_launch() {
    let error = staged(|plan| {
        assert!(matches!(plan.ranks[0].blocks[0].segments[0].ops[0], Op::WaitSignal { .. }));
        plan.ranks[0].blocks[0].segments[0].ops.remove(0);
    });
    let reason = Reason::SlotNotFree { message: 0, needed: -3, observed: -4 };
    assert_eq!(*error.reason, reason, "{error}");
}

#[test]
fn a_kernel_that_ends_before_its_sources_are_read_is_refused() {
    let error = refused(&request(false, true), |plan| {
        plan.ranks[0].blocks[0].segments.pop();
    });
    let expected =
        "rank 0's output at the end: read by the engine on lane 0->1 direct 0 may still be";
    assert!(error.to_string().contains(expected), "{error}");
}

#[test]
fn a_direct_put_without_a_grant_races_with_what_the_peer_did_before() {
    let error = refused(&request(false, true), |plan| {
        for rank in &mut plan.ranks {
            rank.blocks[0].segments.remove(0);
        }
    });
    assert!(error.to_string().contains("what ran on rank 1 before"), "{error}");
}

#[test]
fn in_place_partial_sums_may_not_land_in_the_buffer() {
    // The direct walk, right for distinct buffers, promised for one.
    let separate = request(false, true);
    let in_place = request(true, true);
    let error =
        verify(build(&choice(&separate)), &in_place.promise()).expect_err("overwrites input");
    assert!(matches!(*error.reason, Reason::Race { .. } | Reason::WrongResult { .. }), "{error}");
}

#[test]
fn a_plan_for_sums_does_not_pass_for_a_scaled_sum() {
    let sum = request(false, true);
    let scaled = Request { reduce_op: ReduceOp::PreMulSum, ..sum };
    let error = verify(build(&choice(&sum)), &scaled.promise()).expect_err("inputs put unscaled");
    assert!(matches!(*error.reason, Reason::WrongResult { .. }), "{error}");
}

#[test]
fn writing_the_input_is_refused_unless_in_place() {
    let error = staged(|plan| {
        let into_output = |op: &mut Op| match op {
            Op::Copy { destination: Place::Buffer { buffer, .. }, .. } => {
                *buffer = Buffer::Input;
                true
            }
            _ => false,
        };
        first(plan, into_output);
    });
    assert!(matches!(*error.reason, Reason::InputModified { .. }), "{error}");
}

#[test]
fn a_missing_wait_for_data_is_a_typed_error_at_the_op() {
    let error = staged(|plan| {
        let receive = |op: &Op| matches!(op, Op::WaitSignal { port: 1, .. });
        let ops = &mut plan.ranks[1].blocks[0].segments[0].ops;
        let wait = ops.iter().position(receive).expect("a wait for an arrival");
        ops.remove(wait);
    });
    assert!(matches!(error.site, Site::Op { rank: 1, block: 0, segment: 0, round: 0, .. }));
    assert_eq!(*error.reason, Reason::NotArrived { message: 0, observed: 0 });
}
