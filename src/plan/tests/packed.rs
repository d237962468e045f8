//! Plans along packed trees: right results on random forests, and what is refused.

use super::*;
use crate::plan::shared;
use std::sync::Arc;

/// A tree of random links, of which those between nodes go along rails.
fn random_tree(
    random: &mut fastrand::Rng,
    (rank_count, per_node): (u32, u32),
    root: u32,
) -> (u32, Vec<(u32, u32)>) {
    let mut reached = vec![root];
    let mut links = Vec::new();
    while links.len() + 1 < rank_count as usize {
        let from = reached[random.usize(..reached.len())];
        let to = random.u32(..rank_count);
        let joined = from / per_node == to / per_node || from % per_node == to % per_node;
        if joined && !reached.contains(&to) {
            reached.push(to);
            links.push((from, to));
        }
    }
    (root, links)
}

fn random_forest(
    random: &mut fastrand::Rng,
    shape: (u32, u32),
    roots: &[u32],
    trees_per_root: u32,
) -> Arc<Forest> {
    let of_root = |root: &u32| vec![*root; trees_per_root as usize];
    let roots: Vec<u32> = roots.iter().flat_map(of_root).collect();
    let trees: Vec<_> = roots.into_iter().map(|root| random_tree(random, shape, root)).collect();
    Arc::new(Forest::new(shape.0, &trees).expect("spanning trees"))
}

/// Slots so small that rounds use them again.
fn small(request: &CollectiveRequest, per_node: u32, forest: &Arc<Forest>) -> Choice {
    let ranks_per_node = if per_node == request.rank_count { 0 } else { per_node };
    let limits = Limits {
        stores: true,
        store_blocks: 2 * forest.trees().len() as u32,
        ranks_per_node,
        ..limits(1, 64, 4)
    };
    let mut choice = select_packed(request, &limits, forest).expect("a plan");
    choice.slots = SlotShape { bytes: 32, count: 2 };
    choice.slices = 3;
    choice.set_slice_bytes(32);
    choice
}

fn collectives(root: u32) -> [(Collective, bool); 5] {
    [
        (Collective::AllReduce, true),
        (Collective::AllGather, true),
        (Collective::ReduceScatter, true),
        (Collective::Broadcast { root }, false),
        (Collective::Reduce { root }, false),
    ]
}

/// If this fails, data goes wrong along trees that a packer may well make.
#[test]
fn random_forests_carry_every_collective() {
    let seed = std::env::var("RINGDOVE_TEST_SEED").map_or(17, |seed| seed.parse().unwrap());
    println!("RINGDOVE_TEST_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for (rank_count, per_node) in [(2, 2), (3, 3), (5, 5), (8, 8), (4, 2), (6, 3), (6, 2), (8, 2)] {
        let root = random.u32(..rank_count);
        for (collective, from_all) in collectives(root) {
            let roots = if from_all { (0..rank_count).collect() } else { vec![root] };
            let trees = random.u32(1..=2);
            let forest = random_forest(&mut random, (rank_count, per_node), &roots, trees);
            for (count, in_place, reduce_op) in [
                (1, false, ReduceOp::Sum),
                (100, true, ReduceOp::Avg),
                (2000, false, ReduceOp::PreMulSum),
                (1237, true, ReduceOp::Sum),
            ] {
                let request = CollectiveRequest {
                    collective,
                    in_place,
                    reduce_op,
                    ..request(rank_count, 4 * count)
                };
                let choice = small(&request, per_node, &forest);
                let verified = verify(build(&choice), &request.promise());
                let verified =
                    verified.unwrap_or_else(|error| panic!("{request:?} {forest:?}: {error}"));
                run(&request, &verified, count);
            }
        }
    }
}

/// If this fails, ranks read again for each child what they pass on.
#[test]
fn what_a_rank_passes_on_shares_a_pass() {
    let tree = (0, vec![(0, 1), (1, 2), (1, 3)]);
    let forest = Arc::new(Forest::new(4, &[tree]).expect("a tree"));
    let limits = Limits { stores: true, store_blocks: 4, ..limits(4, 1 << 20, 4) };
    let collective = Collective::Broadcast { root: 0 };
    let request = CollectiveRequest { collective, ..request(4, 4096) };
    let choice = select_packed(&request, &limits, &forest).expect("a plan");
    // To its output and to two children; of the root, to one child; of the others, to the output.
    for (rank, behind) in [(0, 1), (1, 2), (2, 0), (3, 0)] {
        let block = &program(&choice, rank).blocks[0];
        let ops = &block.segments[0].ops;
        let first = ops.iter().position(|op| matches!(op, Op::Copy { .. })).expect("a copy");
        assert_eq!(shared(&ops[first..], &block.ports).1, behind, "rank {rank}");
    }
}

/// A reduction to rank 0 along one tree in which rank 1 has two children, and a rank's first block.
fn to_rank_0(element_bytes: u32, rank: u32) -> (CollectiveRequest, Choice, BlockProgram) {
    let tree = (0, vec![(0, 1), (1, 2), (1, 3)]);
    let forest = Arc::new(Forest::new(4, &[tree]).expect("a tree"));
    let limits = Limits { stores: true, store_blocks: 4, ..limits(4, 1 << 20, 4) };
    let collective = Collective::Reduce { root: 0 };
    let request = CollectiveRequest { collective, element_bytes, ..request(4, 4096) };
    let choice = select_packed(&request, &limits, &forest).expect("a plan");
    let block = program(&choice, rank).blocks.swap_remove(0);
    (request, choice, block)
}

fn adds(op: &Op) -> bool {
    matches!(op, Op::Reduce { .. })
}

/// If this fails, ranks read again for each child what they have added up.
#[test]
fn what_children_have_sent_shares_a_pass_where_there_is_one() {
    // Bytes have no such pass: for them the sum would be read from the parent's slot again.
    for (element_bytes, behind) in [(4, 1), (2, 1), (1, 0)] {
        let (.., block) = to_rank_0(element_bytes, 1);
        let ops = &block.segments[0].ops;
        let first = ops.iter().position(adds).expect("a sum");
        assert_eq!(shared(&ops[first..], &block.ports).1, behind, "{element_bytes}");
        let grows = |op: &&Op| matches!(op, Op::Reduce { destination, b, .. } if b == destination);
        let sums = ops[first..].iter().take_while(|op| !matches!(op, Op::Put { .. }));
        assert_eq!(sums.filter(grows).count(), behind, "{element_bytes}");
    }
}

/// If this fails, a block adds to what is its peer's, or to what was there before.
#[test]
fn a_sum_grows_in_a_slot_between_claim_and_put_alone() {
    let refused = |what: &str, edit: &dyn Fn(&mut Vec<Op>, usize), part: &str| {
        let (request, choice, _) = to_rank_0(4, 1);
        let mut plan = build(&choice);
        verify(plan.clone(), &request.promise()).expect("right as it is");
        let ops = &mut plan.ranks[1].blocks[0].segments[0].ops;
        let second = ops.iter().position(adds).expect("a sum") + 1;
        assert!(adds(&ops[second]) && matches!(ops[second + 1], Op::Put { .. }), "{ops:?}");
        edit(ops, second);
        let error = verify(plan, &request.promise()).expect_err(what).to_string();
        assert!(error.contains(part), "{what}: {error}");
    };
    refused("added behind the put", &|ops, at| ops.swap(at, at + 1), "has been put");
    refused("added to nothing", &|ops, at| _ = ops.remove(at - 1), "hold nothing yet");
    let unclaimed = |op: &Op| !matches!(op, Op::WaitSignal { value, .. } if *value <= 0);
    refused("not claimed", &|ops, _| ops.retain(unclaimed), "credit");
    let other = |ops: &mut Vec<Op>, at: usize| {
        if let Op::Reduce { destination, a, b, .. } = &mut ops[at] {
            (*a, *b) = (*destination, *a);
        }
    };
    refused("read as another term", &other, "only a sum that grows there");
    let copied = |ops: &mut Vec<Op>, at: usize| {
        let Op::Reduce { destination: source, range, modifiers, .. } = ops[at] else { return };
        let destination = Operand::Buffer { buffer: Buffer::Scratch, offset: 0 };
        ops.insert(at + 1, Op::Copy { destination, source, range, modifiers });
    };
    refused("copied from there", &copied, "only a sum that grows there");
}

/// If this fails, blocks that share a tree lose data, or do not share it.
#[test]
fn several_blocks_share_a_tree() {
    let mut random = fastrand::Rng::with_seed(3);
    let forest = random_forest(&mut random, (4, 4), &[0, 1, 2, 3], 1);
    let limits = Limits { stores: true, store_blocks: 32, ..limits(4, 1 << 20, 4) };
    let many = 4 * (32 / forest.uses_max(true)).min(24);
    assert!(many > 4);
    for (bytes, blocks) in [(4096, 4), (1 << 20, many.min(32)), (1 << 30, many)] {
        let request = CollectiveRequest { bytes, ..request(4, bytes) };
        let choice = select_packed(&request, &limits, &forest).expect("a plan");
        assert_eq!(choice.blocks, blocks, "{bytes}");
        let proved = stand_in(&choice).unwrap_or(choice.clone());
        assert_eq!(proved.blocks, blocks);
        let verified = verify(build(&proved), &proved.request.promise()).expect("a proof");
        if bytes < 1 << 20 {
            run(&proved.request, &verified, bytes);
        }
    }
}

/// If this fails, a communicator refuses its own plan: it has no room for more.
#[test]
fn programs_fit_the_memory_for_plans() {
    let seed = 11;
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut longest = 0;
    // As behind switches: paths whose neighbours are at all distances, with the root in the middle.
    let paths = |ranks: u32| {
        let rank = move |place: u32, turn: u32| match place % 2 {
            1 => (place.div_ceil(2) + turn) % ranks,
            _ => (ranks - place / 2 + turn) % ranks,
        };
        let middle = ranks / 2;
        let tree = |turn| {
            let down = (middle + 1..ranks).map(|at| (rank(at - 1, turn), rank(at, turn)));
            let up = (0..middle).rev().map(|at| (rank(at + 1, turn), rank(at, turn)));
            (rank(middle, turn), down.chain(up).collect())
        };
        let trees: Vec<_> = (0..ranks).map(tree).collect();
        Arc::new(Forest::new(ranks, &trees).expect("paths"))
    };
    for ranks in 2..=8 {
        let roots: Vec<_> = (0..ranks).collect();
        let forests =
            (1..=6).map(|trees| random_forest(&mut random, (ranks, ranks), &roots, trees));
        for forest in forests.chain([paths(ranks)]) {
            let request = request(ranks, 1 << 30);
            let limits = Limits { stores: true, store_blocks: 32, ..limits(4, 1 << 20, 4) };
            // Where more trees use a link than there are lanes, there is no plan.
            let Ok(choice) = select_packed(&request, &limits, &forest) else { continue };
            let draft = Draft::of(choice);
            let bytes = (0..ranks).map(|rank| draft.encoded(rank).0.len()).max().expect("ranks");
            longest = longest.max(bytes);
            assert!(bytes <= 3 << 20, "{ranks} ranks, {}: {bytes}", forest.trees().len());
        }
    }
    assert!(longest > 2 << 20, "{longest} bytes at most");
}

/// If this fails, the plan that is proved in place of a long one has other programs.
#[test]
fn what_stands_in_for_a_long_plan_has_its_programs() {
    let mut random = fastrand::Rng::with_seed(5);
    let forest = random_forest(&mut random, (8, 8), &[0, 1, 2, 3, 4, 5, 6, 7], 2);
    let request = request(8, 100 << 20);
    let limits = Limits { stores: true, store_blocks: 16, ..limits(4, 1 << 20, 4) };
    let long = select_packed(&request, &limits, &forest).expect("a plan");
    let short = stand_in(&long).expect("too long to be unrolled");
    assert!(short.rounds < long.rounds && short.round_bytes() == long.round_bytes());
    for rank in 0..8 {
        let (long, short) = (program(&long, rank), program(&short, rank));
        for (long, short) in long.blocks.iter().zip(&short.blocks) {
            assert_eq!(long.ports, short.ports);
            assert_eq!(long.segments.len(), short.segments.len());
            // The last round alone lies elsewhere: it is the last of fewer.
            let (last, others) = long.segments.split_last().expect("segments");
            let (last_short, others_short) = short.segments.split_last().expect("segments");
            for (long, short) in others.iter().zip(others_short) {
                assert_eq!(long.ops, short.ops);
            }
            assert_eq!(last.ops.len(), last_short.ops.len());
        }
    }
}

/// If this fails, a plan may be run that reads what has not come, or overwrites what is not read.
#[test]
fn every_wait_and_every_credit_is_needed() {
    let mut random = fastrand::Rng::with_seed(9);
    let forest = random_forest(&mut random, (4, 2), &[0, 1, 2, 3], 1);
    // Whole rounds: what is clipped away does nothing, and may be left out.
    let round_bytes = small(&request(4, 4096), 2, &forest).round_bytes();
    let request = request(4, 3 * round_bytes);
    let choice = small(&request, 2, &forest);
    let plan = build(&choice);
    verify(plan.clone(), &request.promise()).expect("right as it is");
    let mut left_out = 0;
    for rank in 0..4 {
        for block in 0..plan.ranks[rank].blocks.len() {
            for segment in 0..plan.ranks[rank].blocks[block].segments.len() {
                let count = plan.ranks[rank].blocks[block].segments[segment].ops.len();
                for place in (0..count).step_by(3) {
                    let mut changed = plan.clone();
                    changed.ranks[rank].blocks[block].segments[segment].ops.remove(place);
                    let op = &plan.ranks[rank].blocks[block].segments[segment].ops[place];
                    let refused = verify(changed, &request.promise());
                    assert!(refused.is_err(), "rank {rank} block {block}: without {op:?}");
                    left_out += 1;
                }
            }
        }
    }
    println!("{left_out} plans without one op, each refused");
    assert!(left_out > 100);
}

#[test]
fn what_trees_do_not_carry_is_refused() {
    let mut random = fastrand::Rng::with_seed(1);
    let from_all = random_forest(&mut random, (3, 3), &[0, 1, 2], 1);
    let from_one = random_forest(&mut random, (3, 3), &[1], 1);
    let limits = Limits { stores: true, store_blocks: 3, ..limits(4, 1 << 20, 4) };
    let select = |collective, ranks, forest: &Arc<Forest>| {
        let request = CollectiveRequest { collective, ..request(ranks, 4096) };
        select_packed(&request, &limits, forest).map_err(|error| error.to_string())
    };
    select(Collective::AllReduce, 3, &from_one).expect("up to one rank and down again");
    select(Collective::Reduce { root: 1 }, 3, &from_one).expect("its root");
    for (collective, ranks, forest, part) in [
        (Collective::AllToAll, 3, &from_all, "a collective that trees carry"),
        (Collective::AllReduce, 4, &from_all, "ranks of the trees"),
        (Collective::AllGather, 3, &from_one, "root of the trees"),
        (Collective::Broadcast { root: 0 }, 3, &from_one, "root of the trees"),
        (Collective::Broadcast { root: 0 }, 3, &from_all, "root of the trees"),
    ] {
        let error = select(collective, ranks, forest).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
    let few = Limits { store_blocks: 1, ..limits };
    let error = select_packed(&request(3, 64), &few, &from_all).unwrap_err().to_string();
    assert!(error.contains("at most the lanes of stores"), "{error}");
}
