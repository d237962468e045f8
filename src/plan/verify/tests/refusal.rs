//! Small worlds that are wrong in one known way, and what the verifier says of each.

use crate::plan::tests::limits;
use crate::plan::*;
use proptest::prelude::*;
use ringdove_kernels::element::ReduceOp;

fn request(in_place: bool, registered: bool) -> CollectiveRequest {
    CollectiveRequest {
        collective: Collective::AllReduce,
        rank_count: 3,
        bytes: 768,
        element_bytes: 4,
        reduce_op: ReduceOp::Sum,
        in_place,
        registered,
    }
}

fn choice(request: &CollectiveRequest) -> Choice {
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
fn refused(request: &CollectiveRequest, edit: impl Fn(&mut Plan)) -> VerifyError {
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
    type Edit = fn(&mut Plan);
    let edits: [(&str, Edit); 6] = [
        ("threads: expected a multiple of 32 up to 640, seen 100", |plan| plan.thread_count = 100),
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
    let credited = |edit: fn(&mut PortIndex, &mut u16)| {
        staged(|plan| {
            first(plan, |op| match op {
                Op::Credit { port, messages } => {
                    edit(port, messages);
                    true
                }
                _ => false,
            });
        })
    };
    let unknown = credited(|port, _| *port = 7);
    assert_eq!(*unknown.reason, Reason::UnknownPort { port: 7, ports: 2 });
    let at_once = credited(|_, messages| *messages = 2);
    assert!(at_once.to_string().contains("several credits at once"), "{at_once}");
    let side = credited(|port, _| *port ^= 1);
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
                *destination = Operand::Buffer { buffer: Buffer::Output, offset: 0 };
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
fn a_completion_does_not_say_that_the_data_has_arrived() {
    let lane = |kind| Lane { from: 0, to: 1, index: 0, kind };
    let range = Range { extent: 0, length: 16 };
    let at = |buffer| Operand::Buffer { buffer, offset: 0 };
    let slot = Operand::Slot { port: 1, message: 0, offset: 0 };
    let put = |port, destination, source, completion| Op::Put {
        port,
        destination,
        source,
        range,
        arrival: true,
        completion,
    };
    let copy =
        |destination, source| Op::Copy { destination, source, range, modifiers: Modifiers::NONE };
    // Direct first; once its source is free, a message through a slot tells the peer to go on.
    let sender = vec![
        Op::WaitSignal { port: 0, value: 1 },
        put(0, at(Buffer::Output), at(Buffer::Input), true),
        Op::WaitCompletion { port: 0, value: 1 },
        Op::WaitSignal { port: 1, value: -1 },
        copy(slot, at(Buffer::Input)),
        put(1, slot, slot, false),
    ];
    let receiver = |first: Op| {
        vec![
            Op::Credit { port: 0, messages: 1 },
            first,
            copy(at(Buffer::Output), at(Buffer::Output)),
        ]
    };
    let verify_with = |first| {
        let program = |side, ops| {
            let end = |kind| LaneEnd { lane: lane(kind), side };
            let ports = vec![end(LaneKind::Direct), end(LaneKind::Slots)];
            let segments = vec![Segment { rounds: 1, round_stride: 0, limit: 16, ops }];
            RankProgram { blocks: vec![BlockProgram { ports, segments }] }
        };
        let ranks =
            vec![program(Side::Send, sender.clone()), program(Side::Receive, receiver(first))];
        let plan = Plan { ranks, thread_count: 32, slots: SlotShape { bytes: 16, count: 2 } };
        let request = CollectiveRequest { rank_count: 2, bytes: 16, ..request(false, true) };
        verify(plan, &request.promise()).expect_err("no all-reduce either way")
    };
    let by_message = verify_with(Op::WaitSignal { port: 1, value: 1 });
    assert!(matches!(*by_message.reason, Reason::Race { .. }), "{by_message}");
    let by_arrival = verify_with(Op::WaitSignal { port: 0, value: 1 });
    assert!(!matches!(*by_arrival.reason, Reason::Race { .. }), "{by_arrival}");
}

#[test]
fn in_place_partial_sums_may_not_land_in_the_buffer() {
    // The direct walk, right for distinct buffers, promised for one.
    let separate = request(false, true);
    let in_place = request(true, true);
    let error =
        verify(build(&choice(&separate)), &in_place.promise()).expect_err("overwrites input");
    // What should be the rank's own input holds a partial sum already.
    assert!(matches!(*error.reason, Reason::TooManyTerms { seen: 4, ranks: 3 }), "{error}");
}

#[test]
fn a_plan_for_sums_does_not_pass_for_a_scaled_sum() {
    let sum = request(false, true);
    let scaled = CollectiveRequest { reduce_op: ReduceOp::PreMulSum, ..sum };
    let error = verify(build(&choice(&sum)), &scaled.promise()).expect_err("inputs put unscaled");
    assert!(matches!(*error.reason, Reason::WrongResult { .. }), "{error}");
}

#[test]
fn only_the_own_contribution_is_scaled() {
    // Each rank may have a scalar of its own, so nobody can scale what another one sent.
    let request = CollectiveRequest { reduce_op: ReduceOp::PreMulSum, ..request(false, false) };
    let error = refused(&request, |plan| {
        first(plan, |op| match op {
            Op::Reduce { a, b, .. } => {
                std::mem::swap(a, b);
                true
            }
            _ => false,
        });
    });
    assert!(matches!(*error.reason, Reason::ForeignScale { .. }), "{error}");
}

#[test]
fn writing_the_input_is_refused_unless_in_place() {
    let error = staged(|plan| {
        let into_output = |op: &mut Op| match op {
            Op::Copy { destination: Operand::Buffer { buffer, .. }, .. } => {
                *buffer = Buffer::Input;
                true
            }
            _ => false,
        };
        first(plan, into_output);
    });
    assert!(matches!(*error.reason, Reason::InputModified { .. }), "{error}");
}

proptest! {
    /// Malformed plans end in an error (or happen to be fine), never in a panic.
    #[test]
    fn no_plan_makes_the_verifier_panic(
        blocks in prop::collection::vec(prop::collection::vec(any_op(), 0..10), 2),
        rounds in 0..4u32,
        stride in number(),
        limit in number(),
    ) {
        let end = |from, to, kind, side| {
            LaneEnd { lane: Lane { from, to, index: 0, kind }, side }
        };
        let program = |(rank, ops): (u32, Vec<Op>)| {
            let ports = vec![
                end(rank, 1 - rank, LaneKind::Slots, Side::Send),
                end(1 - rank, rank, LaneKind::Slots, Side::Receive),
                end(rank, 1 - rank, LaneKind::Direct, Side::Send),
                end(1 - rank, rank, LaneKind::Direct, Side::Receive),
            ];
            let segments = vec![Segment { rounds, round_stride: stride, limit, ops }];
            RankProgram { blocks: vec![BlockProgram { ports, segments }] }
        };
        let plan = Plan {
            ranks: (0..).zip(blocks).map(program).collect(),
            thread_count: 32,
            slots: SlotShape { bytes: 64, count: 2 },
        };
        let request =
            CollectiveRequest { rank_count: 2, reduce_op: ReduceOp::Avg, ..request(true, false) };
        if let Err(error) = verify(plan, &request.promise()) {
            prop_assert!(!error.to_string().is_empty());
        }
    }
}

/// Numbers that plans use, and the ends of the range.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..4u64, Just(16), Just(64), Just(1 << 61), Just(1 << 62), Just(u64::MAX)]
}

fn any_place() -> impl Strategy<Value = Operand> {
    let slot = (0..5u16, number(), number());
    prop_oneof![
        number().prop_map(|offset| Operand::Buffer { buffer: Buffer::Input, offset }),
        number().prop_map(|offset| Operand::Buffer { buffer: Buffer::Output, offset }),
        number().prop_map(Operand::Address),
        slot.prop_map(|(port, message, offset)| {
            Operand::Slot { port, message: message as u32, offset }
        }),
    ]
}

fn any_op() -> impl Strategy<Value = Op> {
    let range = (number(), number());
    let range = range.prop_map(|(extent, length)| Range { extent, length: length as u32 });
    let flags = (any::<bool>(), any::<bool>());
    let places = (any_place(), any_place(), any_place());
    (0..7u32, 0..5u16, range, places, flags, number()).prop_map(
        |(code, port, range, (destination, a, b), (first, second), number)| {
            let modifiers = Modifiers { scale: first, finish: second };
            match code {
                0 => Op::Copy { destination, source: a, range, modifiers },
                1 => Op::Reduce { destination, a, b, range, modifiers },
                2 => {
                    let (arrival, completion) = (first, second);
                    Op::Put { port, destination, source: a, range, arrival, completion }
                }
                3 => Op::Credit { port, messages: 1 },
                4 => Op::WaitSignal { port, value: number as i64 },
                5 => Op::WaitCompletion { port, value: number as i64 },
                _ => Op::Advance { port, signals: number as u32, completions: u32::from(first) },
            }
        },
    )
}

#[test]
fn a_sum_that_doubles_itself_is_cut_short() {
    let error = refused(&request(false, true), |plan| {
        let segment = &mut plan.ranks[0].blocks[0].segments[1];
        let double = segment.ops.iter().find_map(|op| match *op {
            Op::Reduce { destination, a, range, modifiers, .. } => {
                Some(Op::Reduce { destination, a, b: a, range, modifiers })
            }
            _ => None,
        });
        let place = segment.ops.iter().position(|op| matches!(op, Op::Reduce { .. }));
        for _ in 0..64 {
            segment.ops.insert(place.expect("a reduction"), double.expect("a reduction"));
        }
    });
    assert!(matches!(*error.reason, Reason::TooManyTerms { .. }), "{error}");
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
