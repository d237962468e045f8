//! Correct plans with one thing changed.
//!
//! Each mutant is either refused, or so changed that nothing can go wrong: then it is run under
//! random interleavings, and has to give the right result twice in a row. What may be accepted at
//! all is listed in `harmless`; whatever else the verifier lets pass fails the test.

use crate::plan::tests::collectives::{choose, direct_ways, is_possible};
use crate::plan::tests::{limits, try_run};
use crate::plan::*;
use ringdove_kernels::element::ReduceOp;
use std::collections::BTreeMap;

/// What was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Change {
    Drop,
    Repeat,
    SwapWithNext,
    Length,
    Extent,
    Offset,
    Message,
    OtherPort,
    OtherBuffer,
    Absent,
    Scale,
    Finish,
    Before,
    Count,
    Arrival,
    Completion,
    WaitMore,
    WaitLess,
    Advance,
    Rounds,
    Stride,
    Limit,
}

struct Mutant {
    change: Change,
    /// The op that was changed, as it was; `None` for a change of the segment.
    op: Option<Op>,
    /// The op after it.
    next: Option<Op>,
    plan: Plan,
}

/// Every place of an op, to be changed.
fn places(op: &mut Op) -> Vec<&mut Operand> {
    match op {
        Op::Copy { destination, source, .. } | Op::Put { destination, source, .. } => {
            vec![destination, source]
        }
        Op::Reduce { destination, a, b, .. } => vec![destination, a, b],
        Op::Pack { source, .. } => source.iter_mut().collect(),
        Op::Collect { destination, own, .. } => destination.iter_mut().chain(own).collect(),
        _ => Vec::new(),
    }
}

/// Every way to change one op.
fn altered(op: Op) -> Vec<(Change, Op)> {
    let mut all = Vec::new();
    let mut with = |change, edit: &dyn Fn(&mut Op)| {
        let mut copy = op;
        edit(&mut copy);
        if copy != op {
            all.push((change, copy));
        }
    };
    for place in 0..3 {
        let edit_place = |edit: &dyn Fn(&mut Operand)| {
            let mut copy = op;
            if let Some(place) = places(&mut copy).into_iter().nth(place) {
                edit(place);
            }
            copy
        };
        let up = edit_place(&|place| match place {
            Operand::Buffer { offset, .. }
            | Operand::Slot { offset, .. }
            | Operand::Granted { offset, .. }
            | Operand::Peer { offset, .. } => *offset += 16,
            Operand::Address(address) => *address += 16,
        });
        with(Change::Offset, &|it| *it = up);
        let down = edit_place(&|place| match place {
            Operand::Buffer { offset, .. }
            | Operand::Granted { offset, .. }
            | Operand::Peer { offset, .. } => {
                *offset = offset.saturating_sub(16);
            }
            Operand::Address(address) => *address -= 16,
            Operand::Slot { .. } => (),
        });
        with(Change::Offset, &|it| *it = down);
        for step in [1, 3, u32::MAX] {
            let other = edit_place(&|place| {
                if let Operand::Slot { message, .. } | Operand::Granted { message, .. } = place {
                    *message = message.wrapping_add(step);
                }
            });
            with(Change::Message, &|it| *it = other);
        }
        let other = edit_place(&|place| {
            if let Operand::Slot { port, .. } | Operand::Peer { port, .. } = place {
                *port ^= 1;
            }
        });
        with(Change::OtherPort, &|it| *it = other);
        let other = edit_place(&|place| {
            if let Operand::Buffer { buffer, .. } | Operand::Peer { buffer, .. } = place {
                *buffer = if *buffer == Buffer::Input { Buffer::Output } else { Buffer::Input };
            }
        });
        with(Change::OtherBuffer, &|it| *it = other);
    }
    alter_fields(op, &mut with);
    all
}

/// Takes a change and how it is made.
type Take<'a> = dyn FnMut(Change, &dyn Fn(&mut Op)) + 'a;

fn alter_fields(op: Op, with: &mut Take<'_>) {
    let range = |edit: &dyn Fn(&mut Range)| {
        let mut copy = op;
        match &mut copy {
            Op::Copy { range, .. }
            | Op::Reduce { range, .. }
            | Op::Pack { range, .. }
            | Op::Collect { range, .. }
            | Op::Put { range, .. } => edit(range),
            _ => (),
        }
        copy
    };
    for (change, copy) in [
        (Change::Length, range(&|range| range.length -= 16)),
        (Change::Length, range(&|range| range.length += 16)),
        (Change::Extent, range(&|range| range.extent += 16)),
        (Change::Extent, range(&|range| range.extent = range.extent.saturating_sub(16))),
    ] {
        with(change, &|it| *it = copy);
    }
    with(Change::Scale, &|it| {
        if let Op::Copy { modifiers, .. } | Op::Reduce { modifiers, .. } = it {
            modifiers.scale ^= true;
        }
    });
    with(Change::Finish, &|it| {
        if let Op::Collect { finish, .. } = it {
            *finish ^= true;
        }
        if let Op::Copy { modifiers, .. } | Op::Reduce { modifiers, .. } = it {
            modifiers.finish ^= true;
        }
    });
    with(Change::Arrival, &|it| {
        if let Op::Put { arrival, .. } = it {
            *arrival ^= true;
        }
    });
    with(Change::Completion, &|it| {
        if let Op::Put { completion, .. } = it {
            *completion ^= true;
        }
    });
    with(Change::OtherPort, &|it| match it {
        Op::Put { port, .. }
        | Op::Pack { port, .. }
        | Op::Collect { first: port, .. }
        | Op::Credit { port, .. }
        | Op::WaitSignal { port, .. }
        | Op::WaitCompletion { port, .. }
        | Op::Advance { port, .. } => *port ^= 1,
        _ => (),
    });
    with(Change::Absent, &|it| {
        if let Op::Pack { source: place, .. } | Op::Collect { destination: place, .. } = it {
            *place = None;
        }
    });
    with(Change::Absent, &|it| {
        if let Op::Collect { own, .. } = it {
            *own = None;
        }
    });
    for by in [1, u32::MAX] {
        with(Change::Message, &|it| {
            if let Op::Pack { message, .. } | Op::Collect { message, .. } = it {
                *message = message.wrapping_add(by);
            }
        });
    }
    for by in [1, u16::MAX] {
        with(Change::Count, &|it| {
            if let Op::Collect { count, .. } = it {
                *count = count.wrapping_add(by);
            }
        });
        with(Change::Before, &|it| {
            if let Op::Collect { before, .. } = it {
                *before = before.wrapping_add(by);
            }
        });
    }
    for (change, by) in [(Change::WaitMore, 1), (Change::WaitLess, -1)] {
        with(change, &|it| {
            if let Op::WaitSignal { value, .. } | Op::WaitCompletion { value, .. } = it {
                *value += by;
            }
        });
    }
    with(Change::Advance, &|it| {
        if let Op::Advance { signals, .. } = it {
            *signals += 1;
        }
    });
    with(Change::Advance, &|it| {
        if let Op::Advance { signals, .. } = it {
            *signals = signals.saturating_sub(1);
        }
    });
    with(Change::Advance, &|it| {
        if let Op::Advance { completions, .. } = it {
            *completions += 1;
        }
    });
}

/// Every mutant of one block's program.
fn mutants(plan: &Plan, rank: usize, block: usize) -> Vec<Mutant> {
    let mut all = Vec::new();
    let segments = &plan.ranks[rank].blocks[block].segments;
    for (number, segment) in segments.iter().enumerate() {
        let mut push = |change, place: Option<usize>, edit: &dyn Fn(&mut Segment)| {
            let mut plan = plan.clone();
            edit(&mut plan.ranks[rank].blocks[block].segments[number]);
            let op = |place: usize| segment.ops.get(place).copied();
            let next = place.and_then(|place| op(place + 1));
            all.push(Mutant { change, op: place.and_then(op), next, plan });
        };
        push(Change::Rounds, None, &|segment| segment.rounds += 1);
        push(Change::Rounds, None, &|segment| segment.rounds -= 1);
        if segment.limit > 0 && segment.round_stride > 0 {
            if segment.rounds > 1 {
                push(Change::Stride, None, &|segment| segment.round_stride += 16);
            }
            push(Change::Limit, None, &|segment| segment.limit += 4);
            push(Change::Limit, None, &|segment| segment.limit -= 4);
        }
        for (place, op) in segment.ops.iter().enumerate() {
            push(Change::Drop, Some(place), &|segment| {
                segment.ops.remove(place);
            });
            push(Change::Repeat, Some(place), &|segment| {
                segment.ops.insert(place, *op);
            });
            if place + 1 < segment.ops.len() {
                push(Change::SwapWithNext, Some(place), &|segment| {
                    segment.ops.swap(place, place + 1);
                });
            }
            for (change, other) in altered(*op) {
                push(change, Some(place), &|segment| segment.ops[place] = other);
            }
        }
    }
    all
}

/// The changes that can be harmless, and why.
fn harmless(mutant: &Mutant, request: &CollectiveRequest) -> bool {
    use Change::*;
    let reduces = request.collective.reduces();
    match (mutant.change, mutant.op) {
        // Flags that the reduction ignores.
        (Scale, _) => reduces && request.reduce_op != ReduceOp::PreMulSum,
        (Finish, _) => reduces && request.reduce_op != ReduceOp::Avg,
        // A wait that another wait implies: arrivals come in order, and in a ring a credit may be
        // implied by an arrival that was waited for. Waiting longer than needed is slow, not wrong,
        // as long as it ends.
        (Drop | WaitLess | WaitMore | Repeat, Some(Op::WaitSignal { .. })) => true,
        (Repeat | WaitLess | WaitMore, Some(Op::WaitCompletion { .. })) => true,
        // The same copy twice; a reduction twice only where it does not read what it wrote.
        (Repeat, Some(Op::Copy { .. } | Op::Pack { .. })) => true,
        // The order of terms is no part of the promise.
        (Before, _) => true,
        (Repeat, Some(Op::Reduce { destination, a, b, .. })) => {
            destination != a && destination != b
        }
        // A message without data stands nowhere.
        (Offset, Some(Op::Put { range: Range { length: 0, .. }, .. })) => true,
        // Neighbours that do not touch each other's port or data.
        (SwapWithNext, _) => true,
        // Clipping hides where a piece that is not the last would end.
        (Length | Extent, _) => true,
        // A wait for another signal that implies the first: its sender waited, or granted, before.
        (OtherPort, Some(Op::WaitSignal { .. })) => true,
        // The finished sum stands in the slot and in the output alike; in place, the buffers are
        // one.
        (OtherBuffer, _) => true,
        // A round behind the end of the data moves nothing; of a segment that only waits, twice.
        (Rounds, _) => true,
        // Of several segments, those that end before the data does clip nothing.
        (Limit, _) => true,
        _ => false,
    }
}

/// Tries every mutant of rank 1's first block; returns how many of each change were accepted.
fn try_all(request: CollectiveRequest, all_pairs: bool) -> BTreeMap<Change, (usize, usize)> {
    let limits = Limits { low_latency_bytes: 32, ..limits(2, 32, 4) };
    let mut choice = select(&request, &limits).expect("valid");
    choice.algorithm = match (request.registered, request.in_place) {
        (false, _) => Algorithm::RingStaged,
        (true, false) => Algorithm::RingDirect,
        (true, true) => Algorithm::RingHybrid,
    };
    (choice.blocks, choice.slices) = (2, 2);
    if all_pairs {
        choice.all_pairs(&limits);
    }
    choice.set_slice_bytes(32);
    try_mutants(&request, &build(&choice), 1)
}

/// Tries every mutant of a rank's first block; returns how many of each change were tried and
/// accepted.
pub(super) fn try_mutants(
    request: &CollectiveRequest,
    plan: &Plan,
    rank: usize,
) -> BTreeMap<Change, (usize, usize)> {
    let promise = request.promise();
    verify(plan.clone(), &promise).expect("the plan itself is right");
    let mut counts: BTreeMap<Change, (usize, usize)> = BTreeMap::new();
    for (number, mutant) in mutants(plan, rank, 0).into_iter().enumerate() {
        let count = counts.entry(mutant.change).or_default();
        count.0 += 1;
        let Ok(verified) = verify(mutant.plan.clone(), &promise) else { continue };
        count.1 += 1;
        let what =
            format!("{:?} of {:?} before {:?}, {request:?}", mutant.change, mutant.op, mutant.next);
        assert!(harmless(&mutant, request), "accepted: {what}");
        // The passes before it have stored the data; on host memory, the put moves it.
        let ports = &plan.ranks[rank].blocks[0].ports;
        let is_stored = |port: u16| ports[usize::from(port)].lane.kind == LaneKind::Stores;
        if matches!(mutant.op, Some(Op::Put { port, .. }) if is_stored(port)) {
            continue;
        }
        for seed in 0..4 {
            let result = try_run(request, &verified, seed * 1000 + number as u64);
            assert!(result.is_ok(), "accepted, but {result:?}: {what}");
        }
    }
    counts
}

fn request(
    in_place: bool,
    registered: bool,
    reduce_op: ReduceOp,
    rank_count: u32,
) -> CollectiveRequest {
    CollectiveRequest {
        collective: Collective::AllReduce,
        rank_count,
        // Two rounds of two blocks; the data ends in block 0's last slice, whose clipping counts.
        bytes: u64::from(rank_count) * (2 * 64 + 64) - 20,
        element_bytes: 4,
        reduce_op,
        in_place,
        registered,
    }
}

#[test]
fn one_change_is_refused_or_does_no_harm() {
    for (in_place, registered) in [(false, false), (true, false), (false, true), (true, true)] {
        for (reduce_op, rank_count) in [(ReduceOp::PreMulSum, 3), (ReduceOp::Avg, 2)] {
            let counts = try_all(request(in_place, registered, reduce_op, rank_count), false);
            println!("in place {in_place}, registered {registered}: {counts:?}");
            for always in [
                Change::Message,
                Change::Advance,
                Change::Arrival,
                Change::Offset,
                Change::Stride,
                Change::Limit,
            ] {
                let (tried, accepted) = counts.get(&always).copied().unwrap_or_default();
                assert_eq!(accepted, 0, "{always:?} of {tried}");
            }
        }
    }
}

/// If this fails, a rail or a node may write into memory that somebody still reads.
#[test]
fn one_change_to_rings_over_nodes_is_refused_or_does_no_harm() {
    let forms = [
        (Algorithm::Hierarchical, false, false),
        (Algorithm::HierarchicalHybrid, true, false),
        (Algorithm::HierarchicalHybrid, true, true),
    ];
    for (algorithm, registered, in_place) in forms {
        let request = CollectiveRequest {
            // Two rounds of one block, the second one clipped.
            bytes: 2 * 128 - 20,
            ..request(in_place, registered, ReduceOp::Avg, 4)
        };
        let limits = Limits { ranks_per_node: 2, ..limits(1, 32, 4) };
        let mut choice = select(&request, &limits).expect("valid");
        (choice.algorithm, choice.slots) = (algorithm, limits.slots());
        (choice.blocks, choice.slices) = (1, 1);
        choice.set_slice_bytes(32);
        assert_eq!(choice.rounds, 2);
        let counts = try_mutants(&request, &build(&choice), 1);
        println!("{algorithm:?}, in place {in_place}: {counts:?}");
        for always in [Change::Message, Change::Advance, Change::Arrival, Change::Offset] {
            let (tried, accepted) = counts.get(&always).copied().unwrap_or_default();
            assert!(tried > 0 && accepted == 0, "{always:?}: {accepted} of {tried}");
        }
    }
}

/// If this fails, a swap or a ring between nodes may take what has not come, or a lane of stores
/// may be written before it was read.
#[test]
fn one_change_to_two_shot_over_nodes_is_refused_or_does_no_harm() {
    for (nodes, in_place) in [(2, false), (2, true), (3, false)] {
        // Three rounds of one block, the last one clipped.
        let pieces = if nodes == 2 { 1 } else { nodes };
        let request = CollectiveRequest {
            bytes: u64::from(3 * 2 * pieces * 16 - 12),
            ..request(in_place, false, ReduceOp::Avg, 2 * nodes)
        };
        let store = Limits { stores: true, store_blocks: 1, nvlink: true, ..limits(1, 32, 4) };
        let mut choice = select(&request, &Limits { ranks_per_node: 2, ..store }).expect("valid");
        assert_eq!(choice.algorithm, Algorithm::TwoShotNodes);
        choice.slots = SlotShape { bytes: 16, count: 2 };
        choice.set_slice_bytes(16);
        assert_eq!((choice.blocks, choice.rounds), (1, 3));
        let counts = try_mutants(&request, &build(&choice), 1);
        println!("{nodes} nodes, in place {in_place}: {counts:?}");
        for always in [Change::Message, Change::Advance, Change::Arrival, Change::Offset] {
            let (tried, accepted) = counts.get(&always).copied().unwrap_or_default();
            assert!(tried > 0 && accepted == 0, "{always:?}: {accepted} of {tried}");
        }
    }
}

/// If this fails, an output is written before its rank has come to the call, or sent on before it
/// has arrived.
#[test]
fn one_change_between_registered_outputs_is_refused_or_does_no_harm() {
    for (collective, algorithm) in direct_ways(2) {
        for in_place in [false, true] {
            let request = CollectiveRequest {
                collective,
                // Two rounds of two slices, of which the last one is clipped.
                bytes: 2 * 64 - 20,
                ..request(in_place, true, ReduceOp::Sum, 3)
            };
            if !is_possible(&request, algorithm) {
                continue;
            }
            let choice = choose(&request, algorithm, &limits(1, 64, 4), 32);
            assert_eq!((choice.slices, choice.rounds), (2, 2));
            let counts = try_mutants(&request, &build(&choice), 0);
            println!("{collective:?}, in place {in_place}: {counts:?}");
            for always in [Change::Advance, Change::Arrival, Change::Offset] {
                let (tried, accepted) = counts.get(&always).copied().unwrap_or_default();
                assert!(tried > 0 && accepted == 0, "{always:?}: {accepted} of {tried}");
            }
        }
    }
}

/// The rules that stand for credits and signals of LL messages: if this fails, a word may be
/// taken for another message's, or a slot written while it is read.
#[test]
fn one_change_to_low_latency_messages_is_refused_or_does_no_harm() {
    for (in_place, reduce_op, rank_count) in
        [(false, ReduceOp::PreMulSum, 3), (true, ReduceOp::Avg, 2), (true, ReduceOp::Sum, 4)]
    {
        let counts = try_all(request(in_place, false, reduce_op, rank_count), true);
        println!("in place {in_place}, {reduce_op:?}: {counts:?}");
        for always in
            [Change::Message, Change::Count, Change::Advance, Change::Arrival, Change::Completion]
        {
            let (tried, accepted) = counts.get(&always).copied().unwrap_or_default();
            assert!(tried > 0 && accepted == 0, "{always:?}: {accepted} of {tried}");
        }
    }
}

/// The rules for a transfer are the same, so a few places suffice; nothing is run here.
#[test]
fn one_change_to_a_group_is_refused_or_does_no_harm() {
    let transfer = |peer, direction, address| PointToPoint {
        peer,
        direction,
        address,
        bytes: 100,
        registered: false,
    };
    let list = [
        transfer(1, Direction::Send, 1024),
        transfer(1, Direction::Send, 2048),
        transfer(1, Direction::Receive, 3072),
    ];
    let limits = limits(1, 32, 2);
    let group = group(0, 2, &list, &limits).expect("valid");
    for block in 0..2 {
        for mutant in mutants(&group.plan, 0, block) {
            let accepted = verify(mutant.plan.clone(), &group.promise).is_ok();
            let allowed = match (mutant.change, mutant.op) {
                // The segment of the first transfer may not be the last, hence a longer last piece
                // is not the same here; flags mean nothing without a reduction.
                (Change::Scale | Change::Finish | Change::SwapWithNext, _) => true,
                (Change::Repeat, Some(Op::WaitSignal { .. } | Op::Copy { .. })) => true,
                // A wait for more credits than are needed, as long as they come.
                (Change::WaitMore, Some(Op::WaitSignal { .. })) => true,
                _ => false,
            };
            assert!(!accepted || allowed, "{:?} of {:?}", mutant.change, mutant.op);
        }
    }
}

/// A sender or a receiver that breaks R15: a change is refused, or it is one that does no harm.
#[test]
fn one_change_to_granted_transfers_is_refused_or_does_no_harm() {
    let limits = Limits { granted_bytes: Some(1), ..limits(1, 32, 2) };
    let mut reasons = BTreeMap::<String, usize>::new();
    let mut accepted = Vec::new();
    for (sends, receives) in [(false, false), (false, true), (true, false), (true, true)] {
        let two = |peer, direction, registered| {
            let transfer =
                |address| PointToPoint { peer, direction, address, bytes: 100, registered };
            [1024, 2048].map(transfer).to_vec()
        };
        let world = [two(1, Direction::Send, sends), two(0, Direction::Receive, receives)];
        let group = group_plan(&world, &limits).expect("valid");
        verify(group.plan.clone(), &group.promise).expect("the plan itself is right");
        let all = (0..2)
            .flat_map(|rank| mutants(&group.plan, rank, 0).into_iter().map(move |it| (rank, it)));
        for (rank, mutant) in all {
            let (puts, takes) = (sends && rank == 0, receives && rank == 1);
            let Err(error) = verify(mutant.plan.clone(), &group.promise) else {
                let harmless = match (mutant.change, mutant.op) {
                    (Change::Scale | Change::Finish | Change::SwapWithNext, _) => true,
                    // The segment of the first message ends before the data does.
                    (Change::Limit, _) => mutant.op.is_none(),
                    // What is not clipped may stand anywhere.
                    (Change::Extent, _) => true,
                    // A slot has no offset.
                    (
                        Change::Offset,
                        Some(Op::Put { destination: Operand::Granted { .. }, .. }),
                    ) => !receives,
                    // Arrivals and completions come in order: the last one stands for all, where
                    // nobody uses the data in between. Such segments have no data.
                    (Change::Stride, None) => takes,
                    // So does the sender's wait for a second grant of the slots.
                    (Change::Drop | Change::WaitLess, Some(Op::WaitSignal { .. })) => {
                        takes || (rank == 0 && !receives)
                    }
                    (Change::Drop | Change::WaitLess, Some(Op::WaitCompletion { .. }))
                    | (Change::Rounds, None) => puts,
                    (Change::Repeat, Some(op)) => matches!(
                        op,
                        Op::WaitSignal { .. } | Op::WaitCompletion { .. } | Op::Copy { .. }
                    ),
                    // A wait for more than is needed, as long as it comes.
                    (Change::WaitMore, Some(Op::WaitSignal { .. })) => true,
                    _ => false,
                };
                if !harmless {
                    accepted.push((mutant.change, mutant.op));
                }
                continue;
            };
            let name = format!("{:?}", error.reason);
            let name = name.split([' ', '(']).next().unwrap_or_default();
            *reasons.entry(name.to_owned()).or_default() += 1;
        }
    }
    assert!(accepted.is_empty(), "accepted: {accepted:?}");
    for expected in ["EarlyGrant", "NotGranted", "SlotNotFree"] {
        assert!(reasons.contains_key(expected), "none was refused for {expected}: {reasons:?}");
    }
}
