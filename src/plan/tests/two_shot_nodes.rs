//! Two-shot over nodes: every division into nodes, verified and run; when it is chosen.

use super::*;
use proptest::prelude::*;

/// What a communicator has whose nodes have lanes of stores, over NVLink.
fn nodes_of(per_node: u32) -> Limits {
    let base = limits(4, 512 << 10, 4);
    Limits { stores: true, store_blocks: 32, nvlink: true, ranks_per_node: per_node, ..base }
}

/// A choice with messages so small that rounds use the slots again.
fn choose(
    request: &CollectiveRequest,
    per_node: u32,
    blocks: u32,
    slots: SlotShape,
    slice_bytes: u32,
) -> Choice {
    // As for a size at which it is chosen, whatever the number of nodes.
    let large = CollectiveRequest { bytes: 64 << 20, ..*request };
    let mut choice = select(&large, &nodes_of(per_node)).expect("valid");
    assert_eq!((choice.algorithm, choice.stores), (Algorithm::TwoShotNodes, true), "{large:?}");
    (choice.request, choice.blocks, choice.slots) = (*request, blocks, slots);
    choice.set_slice_bytes(slice_bytes);
    choice
}

fn check(request: &CollectiveRequest, choice: &Choice, seed: u64) {
    let verified = verify(build(choice), &request.promise());
    let verified = verified.unwrap_or_else(|error| panic!("{choice:?}: {error}"));
    if choice.rounds > 0 {
        let nodes = |lane: &Lane| [lane.from, lane.to].map(|rank| rank / choice.ranks_per_node);
        for lane in verified.lanes() {
            let [from, to] = nodes(lane);
            let kind = if from == to { LaneKind::Stores } else { LaneKind::Rail };
            assert_eq!(lane.kind, kind, "{lane}");
        }
    }
    run(request, &verified, seed);
}

#[test]
fn every_division_into_nodes_is_right() {
    let slots = SlotShape { bytes: 32, count: 2 };
    for (nodes, per_node) in [(2, 2), (2, 3), (2, 8), (3, 2), (3, 3), (4, 2), (5, 2)] {
        for bytes in [0, 4, 64, 1020, 4096, 10_004] {
            for (reduce_op, in_place) in [(ReduceOp::Avg, false), (ReduceOp::PreMulSum, true)] {
                let ranks = nodes * per_node;
                let request = CollectiveRequest { reduce_op, in_place, ..request(ranks, bytes) };
                check(&request, &choose(&request, per_node, 2, slots, 32), bytes);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    #[test]
    fn random_shapes_are_right(
        (nodes, per_node) in (2u32..5, 2u32..5),
        words in 1u64..2000,
        reduce_op in prop::sample::select(vec![
            ReduceOp::Sum, ReduceOp::Max, ReduceOp::Avg, ReduceOp::PreMulSum,
        ]),
        in_place: bool,
        (blocks, slots_log2) in (1u32..4, 1u32..4),
        slice in 1u32..4,
        seed: u64,
    ) {
        let request =
            CollectiveRequest { reduce_op, in_place, ..request(nodes * per_node, 4 * words) };
        let slots = SlotShape { bytes: 64, count: 1 << slots_log2 };
        check(&request, &choose(&request, per_node, blocks, slots, 16 * slice), seed);
    }
}

/// If this fails, sizes that a communicator really asks for are wrong, which small slots do not
/// show: the least and the most blocks, the last round clipped, or in full.
#[test]
fn plans_of_real_sizes_are_proved() {
    for (nodes, per_node, bytes) in [
        (2, 8, 4),
        (2, 8, 8 << 10),
        (2, 2, 70_000),
        (2, 8, 1_000_004),
        (2, 4, (24 << 20) + 4),
        (3, 2, 1 << 20),
        (4, 4, (4 << 20) - 4),
    ] {
        let request = request(nodes * per_node, bytes);
        let choice = select(&request, &nodes_of(per_node)).expect("valid");
        assert_eq!(choice.algorithm, Algorithm::TwoShotNodes, "{request:?}");
        let proved = verify(build(&choice), &request.promise());
        proved.unwrap_or_else(|error| panic!("{choice:?}: {error}"));
    }
}

/// If this fails, messages of some sizes begin where no access of 16 bytes may.
#[test]
fn messages_of_every_size_are_whole_granules() {
    for (nodes, per_node) in [(2, 2), (2, 3), (2, 7), (2, 8), (3, 4), (5, 3)] {
        for bytes in (4..24 << 20).step_by(4 * 9973) {
            let choice = select(&request(nodes * per_node, bytes), &nodes_of(per_node));
            let slice = choice.expect("valid").slice_bytes;
            let granules = slice > 0 && u64::from(slice).is_multiple_of(GRANULE_BYTES);
            assert!(granules, "{nodes} x {per_node}, {bytes} bytes: {slice}");
        }
    }
}

/// If this fails, ranks store where nobody said that they may, or engines have what stores would
/// move faster.
#[test]
fn it_is_chosen_where_stores_reach_all_of_each_node() {
    let algorithm = |ranks, bytes, limits: Limits| {
        select(&request(ranks, bytes), &limits).expect("valid").algorithm
    };
    let two_shot = Algorithm::TwoShotNodes;
    for bytes in [4, 8 << 10, 24 << 20, 3 << 30] {
        assert_eq!(algorithm(16, bytes, nodes_of(8)), two_shot, "{bytes}");
        assert_eq!(algorithm(4, bytes, nodes_of(2)), two_shot, "{bytes}");
        for (ranks, limits) in [
            (16, Limits { store_blocks: 0, ..nodes_of(8) }),
            (16, nodes_of(1)),
            (18, nodes_of(9)),
            (128, nodes_of(8)),
            (16, Limits { reproducible: true, ..nodes_of(8) }),
        ] {
            assert_ne!(algorithm(ranks, bytes, limits), two_shot, "{ranks} {bytes} {limits:?}");
        }
        let over_pci = Limits { nvlink: false, ..nodes_of(8) };
        assert_eq!(algorithm(16, bytes, over_pci) == two_shot, bytes <= 1 << 20, "{bytes}");
    }
    // A ring over many nodes is slow for few bytes.
    for (nodes, least) in [(3, 0), (4, 48 << 10), (8, 240 << 10)] {
        assert_eq!(algorithm(8 * nodes, least.max(4), nodes_of(8)), two_shot, "{nodes} nodes");
        assert!(least == 0 || algorithm(8 * nodes, least - 4, nodes_of(8)) != two_shot);
    }
}

/// If this fails, a communicator refuses its own plan: it has no room for more.
#[test]
fn programs_fit_the_memory_for_plans() {
    for per_node in 2..=8 {
        for nodes in 2..=64 / per_node {
            let request = request(nodes * per_node, 1 << 30);
            let draft = Draft::new(Pattern::Selected, &request, &nodes_of(per_node));
            let (bytes, _) = draft.expect("valid").encoded(0);
            assert!(bytes.len() <= 2 << 20, "{nodes} x {per_node}: {} bytes", bytes.len());
        }
    }
}

/// If this fails, what is proved in place of a long plan is not what runs, or it is long itself.
#[test]
fn what_stands_for_a_long_plan_has_its_programs() {
    // Where ops stand in the data is the block's and the round's.
    fn placeless(op: &Op) -> Op {
        let mut op = *op;
        let place = |it: &mut Operand| {
            if let Operand::Buffer { offset, .. } = it {
                *offset = 0;
            }
        };
        match &mut op {
            Op::Copy { destination, source, range, .. } => {
                [destination, source].into_iter().for_each(place);
                range.extent = 0;
            }
            Op::Reduce { destination, a, b, range, .. } => {
                [destination, a, b].into_iter().for_each(place);
                range.extent = 0;
            }
            Op::Put { range, .. } => range.extent = 0,
            _ => {}
        }
        op
    }
    let one_node = Limits { ranks_per_node: 0, ..nodes_of(1) };
    for (ranks, bytes, limits) in [
        (16, (24 << 20) + 4, nodes_of(8)),
        (16, 3 << 30, nodes_of(8)),
        (64, 1 << 30, nodes_of(8)),
        (12, 1 << 30, nodes_of(2)),
        (8, (1 << 30) - 100, one_node),
        (8, 100 << 30, one_node),
    ] {
        let request = request(ranks, bytes);
        let choice = select(&request, &limits).expect("valid");
        let small = stand_in(&choice).expect("it is long");
        assert_eq!((small.blocks, small.rounds), (2, 3), "{choice:?}");
        let is_whole = |it: &Choice| it.request.bytes.is_multiple_of(it.round_bytes());
        assert!(!is_whole(&small) || is_whole(&choice), "clipped as it is");
        verify(build(&small), &small.request.promise()).expect("right");
        for rank in [0, ranks - 1] {
            own_part(&choice, rank).expect("each op is right");
            let [whole, small] = [&choice, &small].map(|it| program(it, rank).blocks);
            for (number, block) in (0..).zip(whole) {
                let stands = &small[number % 2];
                assert_eq!(block.segments.len(), stands.segments.len());
                for (segment, other) in block.segments.iter().zip(&stands.segments) {
                    assert_eq!(segment.rounds == 1, other.rounds == 1 || choice.rounds == 3);
                    assert!(segment.ops.iter().map(placeless).eq(other.ops.iter().map(placeless)));
                }
                let lanes = |ports: &[LaneEnd]| -> Vec<_> {
                    ports.iter().map(|it| (it.lane.from, it.lane.to, it.side)).collect()
                };
                assert_eq!(lanes(&block.ports), lanes(&stands.ports));
                assert!(block.ports.iter().all(|port| usize::from(port.lane.index) == number));
            }
        }
    }
    assert_eq!(stand_in(&select(&request(16, 1 << 20), &nodes_of(2)).expect("valid")), None);
}
