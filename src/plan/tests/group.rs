//! Send and receive: any pairs, any order within the group.

use super::*;
use proptest::prelude::*;

const ELEMENT: Element = Element {
    bytes: 1,
    reduce_op: ReduceOp::Sum,
    scalar: 1,
    rank_count: 1,
    algebra: Algebra::Integers,
};

/// Lists of transfers for a world, from (from, to, bytes) messages: each rank names them in an
/// order of its own, but those of one pair and direction in the order of the messages.
fn world(
    rank_count: u32,
    messages: &[(u32, u32, u64)],
    random: &mut fastrand::Rng,
) -> Vec<Vec<PointToPoint>> {
    let mut lists: Vec<Vec<PointToPoint>> = vec![Vec::new(); rank_count as usize];
    let mut ends = vec![16u64; rank_count as usize];
    for &(from, to, bytes) in messages {
        for (rank, peer, direction) in [(from, to, Direction::Send), (to, from, Direction::Receive)]
        {
            let address = ends[rank as usize];
            ends[rank as usize] += bytes + 3;
            let registered = random.bool();
            let transfer = PointToPoint { peer, direction, address, bytes, registered };
            let list = &mut lists[rank as usize];
            let kin = |it: &PointToPoint| (it.peer, it.direction) == (peer, direction);
            let first = list.iter().rposition(kin).map_or(0, |place| place + 1);
            let place = first + random.usize(..=list.len() - first);
            list.insert(place, transfer);
        }
    }
    lists
}

fn run(lists: &[Vec<PointToPoint>], verified: &Verified, random: &mut fastrand::Rng) {
    let mut host = host(verified, ELEMENT, 3);
    for (rank, list) in lists.iter().enumerate() {
        let end = list.iter().map(|it| it.address + it.bytes).max().unwrap_or(0);
        host.ranks[rank].memory[2] = (0..end).map(|_| random.u8(..)).collect();
    }
    let before: Vec<Vec<u8>> = host.ranks.iter().map(|rank| rank.memory[2].clone()).collect();
    host.launch(random).expect("not stuck");
    for (rank, list) in lists.iter().enumerate() {
        let mut expected = before[rank].clone();
        for peer in 0..lists.len() {
            let of = |list: &[PointToPoint], peer: usize, direction| {
                let mut list = list.to_vec();
                list.retain(|it| it.peer as usize == peer && it.direction == direction);
                list
            };
            let receives = of(list, peer, Direction::Receive);
            let sends = of(&lists[peer], rank, Direction::Send);
            for (receive, send) in receives.iter().zip(&sends) {
                let source = &before[peer][send.address as usize..][..send.bytes as usize];
                expected[receive.address as usize..][..receive.bytes as usize]
                    .copy_from_slice(source);
            }
        }
        assert!(host.ranks[rank].memory[2] == expected, "rank {rank} of {lists:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Whatever order each rank names its peers in, and whichever memory is registered, everything
    /// arrives where it should.
    #[test]
    fn groups_deliver_in_any_order(
        rank_count in 1..=5u32,
        pairs in prop::collection::vec((0..5u32, 0..5u32, 0..400u64), 0..12),
        slots_log2 in 1..4u32,
        granted_bytes in prop::option::of(0..300u64),
        seed in any::<u64>(),
    ) {
        let mut random = fastrand::Rng::with_seed(seed);
        let fold = |(from, to, bytes)| (from % rank_count, to % rank_count, bytes);
        let messages: Vec<_> = pairs.into_iter().map(fold).collect();
        let lists = world(rank_count, &messages, &mut random);
        let limits = Limits { granted_bytes, ..limits(1, 48, 1 << slots_log2) };
        let all = group_plan(&lists, &limits).expect("valid");
        for (rank, list) in (0..).zip(&lists) {
            // What a rank builds from its own list alone is what the world's plan has for it.
            let own = group(rank, rank_count, list, &limits).expect("valid");
            prop_assert_eq!(
                &own.plan.ranks[rank as usize].blocks, &all.plan.ranks[rank as usize].blocks
            );
            verify(own.plan, &own.promise).map_err(|error| {
                TestCaseError::fail(format!("rank {rank} of {lists:?}: {error}"))
            })?;
        }
        let verified = verify(all.plan, &all.promise)
            .map_err(|error| TestCaseError::fail(format!("{lists:?}: {error}")))?;
        run(&lists, &verified, &mut random);
    }
}

/// If this fails, what is registered at both ends is copied all the same, or a sender that knows
/// nothing of the receiver's memory is planned otherwise than one that does.
#[test]
fn registered_memory_at_both_ends_is_not_copied() {
    let limits = Limits { granted_bytes: Some(1), ..limits(1, 64, 2) };
    let list = |peer, direction, registered| {
        vec![PointToPoint { peer, direction, address: 0, bytes: 1000, registered }]
    };
    for (sends, receives) in [(false, false), (false, true), (true, false), (true, true)] {
        let world = [list(1, Direction::Send, sends), list(0, Direction::Receive, receives)];
        let all = group_plan(&world, &limits).expect("valid");
        let copies = |rank: usize| {
            let segments = all.plan.ranks[rank].blocks[0].segments.iter();
            segments.flat_map(|it| &it.ops).any(|op| matches!(op, Op::Copy { .. }))
        };
        assert_eq!([copies(0), copies(1)], [!sends, !receives]);
        let verified = verify(all.plan, &all.promise).expect("a correct plan");
        for seed in 0..20 {
            run(&world, &verified, &mut fastrand::Rng::with_seed(seed));
        }
    }
}

#[test]
fn a_large_transfer_is_cut_into_messages() {
    let limits = limits(4, 1 << 20, 8);
    let send = PointToPoint {
        peer: 1,
        direction: Direction::Send,
        address: 4096,
        bytes: (1 << 30) + 1,
        registered: false,
    };
    let group = group(0, 2, &[send], &limits).expect("valid");
    let segment = &group.plan.ranks[0].blocks[0].segments[0];
    assert_eq!((segment.rounds, segment.round_stride), (1025, 1 << 20));
    verify(group.plan, &group.promise).expect("a correct plan");
}

#[test]
fn lists_that_make_no_sense_are_refused() {
    let limits = limits(1, 64, 2);
    let send = |peer, bytes| PointToPoint {
        peer,
        direction: Direction::Send,
        address: 0,
        bytes,
        registered: false,
    };
    let unmatched = group(0, 2, &[send(0, 4)], &limits).expect_err("nobody receives");
    assert!(unmatched.to_string().contains("exchanges with itself"), "{unmatched}");
    assert!(group(0, 2, &[send(2, 4)], &limits).is_err());
    assert!(group(2, 2, &[], &limits).is_err());
    let wraps = PointToPoint { address: u64::MAX, ..send(1, 4) };
    assert!(group(0, 2, &[wraps], &limits).is_err());
}

#[test]
fn a_world_whose_lists_disagree_is_not_verified() {
    let limits = limits(1, 64, 2);
    let send = PointToPoint {
        peer: 1,
        direction: Direction::Send,
        address: 0,
        bytes: 128,
        registered: false,
    };
    let receive = PointToPoint {
        peer: 0,
        direction: Direction::Receive,
        address: 0,
        bytes: 192,
        registered: false,
    };
    let group = group_plan(&[vec![send], vec![receive]], &limits).expect("each list is valid");
    let error = verify(group.plan, &group.promise).expect_err("sizes differ");
    assert!(matches!(*error.reason, Reason::Deadlock(ref stuck) if stuck.len() == 1), "{error}");
}

#[test]
fn receives_that_overlap_are_refused() {
    let limits = limits(1, 64, 2);
    let receive = |peer, address| {
        let direction = Direction::Receive;
        PointToPoint { peer, direction, address, bytes: 32, registered: false }
    };
    let error = group(0, 3, &[receive(1, 0), receive(2, 16)], &limits).expect_err("byte 16");
    let expected = PlanError::Overlap { rank: 0, first: (0, 32), second: (16, 48) };
    assert_eq!(error, expected, "{error}");

    // Should the builder ever let one through, the verifier would not.
    let (one, other) = (receive(1, 0), receive(2, 100));
    let mut group = group(0, 3, &[one, other], &limits).expect("apart");
    for op in &mut group.plan.ranks[0].blocks[1].segments[0].ops {
        if let Op::Copy { destination: Operand::Address(address), .. } = op {
            *address = 0;
        }
    }
    let error = verify(group.plan, &group.promise).expect_err("both write byte 0");
    assert!(matches!(*error.reason, Reason::Race { .. }), "{error}");
}

#[test]
fn memory_may_be_sent_twice_but_not_received_into_meanwhile() {
    let limits = limits(1, 64, 2);
    let transfer = |peer, direction, address| PointToPoint {
        peer,
        direction,
        address,
        bytes: 32,
        registered: false,
    };
    let [send, receive] = [Direction::Send, Direction::Receive];
    let twice = [transfer(1, send, 0), transfer(2, send, 16), transfer(1, receive, 48)];
    let all = group(0, 3, &twice, &limits).expect("sends may share memory");
    verify(all.plan, &all.promise).expect("correct");

    let into_source = [transfer(1, send, 0), transfer(2, receive, 16)];
    assert!(matches!(group(0, 3, &into_source, &limits), Err(PlanError::Overlap { .. })));

    // To itself, in place: nothing moves, and others may send the same bytes.
    let in_place = [transfer(0, send, 0), transfer(0, receive, 0), transfer(1, send, 0)];
    let all = group(0, 3, &in_place, &limits).expect("nothing is written");
    verify(all.plan, &all.promise).expect("correct");

    // A self-receive at an offset is a write.
    let shifted = [transfer(0, send, 0), transfer(0, receive, 16)];
    assert!(matches!(group(0, 3, &shifted, &limits), Err(PlanError::Overlap { .. })));
}
