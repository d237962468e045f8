//! Rings and chains in another order than that of ranks: every rank gets what is promised at the
//! place of its number, over lanes between neighbours of the order.

use super::*;

const ON_RINGS: [Algorithm; 7] = [
    Algorithm::RingStaged,
    Algorithm::RingDirect,
    Algorithm::RingHybrid,
    Algorithm::Hierarchical,
    Algorithm::HierarchicalHybrid,
    Algorithm::Chain,
    Algorithm::ChainDirect,
];

/// Are the ranks of this lane neighbours in the order of a node, or on a rail?
fn joins_neighbours(order: &RingOrder, lane: Lane) -> bool {
    let (each, ranks) = (order.rank_count(), Vec::from_iter(order.ranks()));
    if lane.from / each != lane.to / each {
        return lane.from % each == lane.to % each;
    }
    let place = ranks.iter().position(|rank| *rank == lane.from % each).expect("it has one");
    ranks[(place + 1) % ranks.len()] == lane.to % each
}

/// The collective by `algorithm` in small slices, verified, and run on host memory.
fn check(request: &CollectiveRequest, algorithm: Algorithm, limits: &Limits, seed: u64) {
    let mut choice = select(request, limits).expect("valid");
    (choice.algorithm, choice.slots, choice.order) = (algorithm, limits.slots(), limits.order);
    (choice.blocks, choice.slices) = (2, 2);
    choice.set_slice_bytes(32);
    let (order, plan) = (limits.order.expect("there is one"), build(&choice));
    let ports = plan.ranks.iter().flat_map(|rank| &rank.blocks).flat_map(|block| &block.ports);
    for port in ports {
        assert!(joins_neighbours(&order, port.lane), "{request:?}: {}", port.lane);
    }
    let verified = verify(plan, &request.promise());
    let verified = verified.unwrap_or_else(|error| panic!("{choice:?}: {error}"));
    run(request, &verified, seed);
}

/// Any order but that of numbers.
fn random_order(random: &mut fastrand::Rng, ranks: u32) -> RingOrder {
    let mut order: Vec<u32> = (0..ranks).collect();
    loop {
        random.shuffle(&mut order);
        if let Some(order) = RingOrder::new(&order) {
            return order;
        }
    }
}

/// If this fails, a rank's part of a result lies where another one's belongs, or a block waits on a
/// lane that no communicator has.
#[test]
fn results_lie_by_rank_whatever_the_order() {
    let seed = 17;
    let mut random = fastrand::Rng::with_seed(seed);
    println!("seed {seed}");
    for (nodes, each) in [(1, 4), (1, 5), (1, 8), (2, 4), (3, 4)] {
        let ranks = nodes * each;
        for turn in 0..8 {
            let limits = Limits {
                order: Some(random_order(&mut random, each)),
                ranks_per_node: if nodes > 1 { each } else { 0 },
                ..limits(2, 64, 4)
            };
            let root = random.u32(..ranks);
            let ways = [
                (Collective::AllReduce, Algorithm::RingStaged),
                (Collective::AllReduce, Algorithm::RingDirect),
                (Collective::AllReduce, Algorithm::RingHybrid),
                (Collective::AllGather, Algorithm::RingStaged),
                (Collective::AllGather, Algorithm::RingDirect),
                (Collective::ReduceScatter, Algorithm::RingStaged),
                (Collective::Broadcast { root }, Algorithm::Chain),
                (Collective::Broadcast { root }, Algorithm::ChainDirect),
                (Collective::Reduce { root }, Algorithm::Chain),
            ];
            let of_nodes = [
                (Collective::AllReduce, Algorithm::Hierarchical),
                (Collective::AllReduce, Algorithm::HierarchicalHybrid),
            ];
            for &(collective, algorithm) in if nodes > 1 { &of_nodes[..] } else { &ways } {
                let is_direct = matches!(
                    algorithm,
                    Algorithm::RingDirect | Algorithm::RingHybrid | Algorithm::ChainDirect
                );
                let apart =
                    algorithm == Algorithm::RingDirect && collective == Collective::AllReduce;
                let request = CollectiveRequest {
                    collective,
                    in_place: turn % 2 == 1 && !apart,
                    registered: is_direct || algorithm == Algorithm::HierarchicalHybrid,
                    reduce_op: [ReduceOp::Sum, ReduceOp::PreMulSum][turn / 4],
                    ..request(ranks, 4 * random.u64(1..600))
                };
                check(&request, algorithm, &limits, random.u64(..));
            }
        }
    }
}

/// If this fails, a ring of a communicator is built for lanes that it does not have, or another
/// plan is.
#[test]
fn what_goes_around_rings_has_the_order_and_nothing_else() {
    let order = RingOrder::new(&[0, 2, 4, 1, 3]);
    let (mut with, mut without) = (0, 0);
    for (collective, registered) in
        Collective::all(2).into_iter().flat_map(|it| [(it, false), (it, true)])
    {
        for bytes in [0, 4, 8 << 10, 200 << 10, 1 << 20, 16 << 20] {
            if collective == Collective::Barrier && bytes > 0 {
                continue;
            }
            let request = CollectiveRequest { collective, registered, ..request(5, bytes) };
            let limits = Limits { order, low_latency_bytes: 4096, ..limits(4, 1 << 20, 4) };
            let choice = select(&request, &limits).expect("valid");
            let is_ring = ON_RINGS.contains(&choice.algorithm);
            assert_eq!(choice.order, order.filter(|_| is_ring), "{choice:?}");
            if is_ring {
                with += 1
            } else {
                without += 1
            }
            // Of nodes of another size it is no order.
            let ten = CollectiveRequest { rank_count: 10, ..request };
            assert_eq!(select(&ten, &limits).expect("valid").order, None);
        }
    }
    assert!(with > 10 && without > 10, "{with}, {without}");
}

/// If this fails, reductions in the order of ranks ask for lanes between ranks that are no
/// neighbours of a ring.
#[test]
fn reductions_in_the_order_of_ranks_take_lanes_of_pairs() {
    let order = RingOrder::new(&[0, 2, 1, 3]);
    let limits = Limits { order, reproducible: true, ..limits(4, 64 << 10, 4) };
    let choice = select(&request(4, 8 << 20), &limits).expect("valid");
    assert_eq!((choice.algorithm, choice.order), (Algorithm::InRankOrder, None));
    let plan = build(&choice);
    let lanes = plan.ranks.iter().flat_map(|rank| &rank.blocks).flat_map(|block| &block.ports);
    assert!(lanes.into_iter().all(|port| port.lane.index == 0));
    assert_eq!(choice.slots.bytes, limits.pair_slot_bytes);
}
