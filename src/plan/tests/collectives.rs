//! The collectives other than all-reduce: every plan gives every rank what is promised.

use super::*;
use proptest::prelude::*;

/// Every collective with its algorithms, for `root`.
pub(in crate::plan) fn ways(root: u32) -> Vec<(Collective, Algorithm)> {
    vec![
        (Collective::AllReduce, Algorithm::Doubling),
        (Collective::AllReduce, Algorithm::Halving),
        (Collective::AllReduce, Algorithm::TwoShot),
        (Collective::AllReduce, Algorithm::InRankOrder),
        (Collective::ReduceScatter, Algorithm::InRankOrder),
        (Collective::Reduce { root }, Algorithm::InRankOrder),
        (Collective::AllGather, Algorithm::Bruck),
        (Collective::ReduceScatter, Algorithm::Bruck),
        (Collective::AllToAll, Algorithm::Bruck),
        (Collective::Broadcast { root }, Algorithm::Tree),
        (Collective::Reduce { root }, Algorithm::Tree),
        (Collective::Gather { root }, Algorithm::Tree),
        (Collective::Scatter { root }, Algorithm::Tree),
        (Collective::AllGather, Algorithm::RingStaged),
        (Collective::AllGather, Algorithm::Exchange),
        (Collective::ReduceScatter, Algorithm::RingStaged),
        (Collective::ReduceScatter, Algorithm::Exchange),
        (Collective::AllToAll, Algorithm::Exchange),
        (Collective::Broadcast { root }, Algorithm::Chain),
        (Collective::Broadcast { root }, Algorithm::Star),
        (Collective::Reduce { root }, Algorithm::Chain),
        (Collective::Reduce { root }, Algorithm::Star),
        (Collective::Gather { root }, Algorithm::Star),
        (Collective::Scatter { root }, Algorithm::Star),
    ]
}

fn all_ways(root: u32) -> Vec<(Collective, Algorithm)> {
    [ways(root), direct_ways(root), low_latency_ways(root)].concat()
}

/// Collectives, other than all-reduce, between registered buffers.
pub(in crate::plan) fn direct_ways(root: u32) -> Vec<(Collective, Algorithm)> {
    vec![
        (Collective::AllGather, Algorithm::RingDirect),
        (Collective::AllGather, Algorithm::ExchangeDirect),
        (Collective::AllToAll, Algorithm::ExchangeDirect),
        (Collective::Broadcast { root }, Algorithm::ChainDirect),
    ]
}

/// Every collective with data, by LL messages.
pub(in crate::plan) fn low_latency_ways(root: u32) -> Vec<(Collective, Algorithm)> {
    let with_data = Collective::all(root).into_iter().filter(|it| *it != Collective::Barrier);
    with_data.map(|collective| (collective, Algorithm::AllPairs)).collect()
}

/// Is there such a plan? Where not, selection does not choose it.
pub(in crate::plan) fn is_possible(request: &CollectiveRequest, algorithm: Algorithm) -> bool {
    match algorithm {
        Algorithm::Halving => request.rank_count.is_power_of_two(),
        Algorithm::ExchangeDirect => {
            request.collective == Collective::AllGather || !request.in_place
        }
        Algorithm::AllPairs => !request.scales() || request.collective == Collective::AllReduce,
        _ => true,
    }
}

/// The choice of `algorithm` for `request`, with slices of `slice_bytes`, in slots that are as
/// large as it needs.
pub(in crate::plan) fn choose(
    request: &CollectiveRequest,
    algorithm: Algorithm,
    limits: &Limits,
    slice_bytes: u32,
) -> Choice {
    let mut choice = select(request, limits).expect("a valid request");
    if request.rank_count > 1 {
        choice.algorithm = algorithm;
        choice.blocks = limits.blocks_max;
        choice.slices = 2.min(limits.slot_count / 2);
        choice.slots = limits.slots();
        if algorithm == Algorithm::AllPairs {
            choice.all_pairs(&Limits { low_latency_bytes: slice_bytes, ..*limits });
        } else {
            choice.set_blocks(limits);
        }
        choice.slice_bytes = slice_bytes;
        let needed = choice.slot_bytes_needed().next_multiple_of(GRANULE_BYTES) as u32;
        choice.slots.bytes = choice.slots.bytes.max(needed);
    }
    choice.set_slice_bytes(slice_bytes);
    choice
}

pub(super) fn check(request: &CollectiveRequest, choice: &Choice, seed: u64) {
    let verified = verify(build(choice), &request.promise());
    let verified = verified.unwrap_or_else(|error| panic!("{choice:?}: {error}"));
    run(request, &verified, seed);
}

#[test]
fn every_root_count_and_number_of_ranks_is_right() {
    for rank_count in [1, 2, 3, 4, 5, 8] {
        for root in 0..rank_count {
            for count in [0, 1, 3, 17, 64, 65] {
                for (collective, algorithm) in all_ways(root) {
                    if root > 0 && collective.root().is_none() {
                        continue;
                    }
                    for in_place in [false, true] {
                        let request = CollectiveRequest {
                            collective,
                            in_place,
                            ..request(rank_count, 4 * count)
                        };
                        if is_possible(&request, algorithm) {
                            let choice = choose(&request, algorithm, &limits(2, 64, 4), 32);
                            check(&request, &choice, count);
                        }
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Any collective, ranks, root, count, element size, reduction, slots and interleaving.
    /// Proptest prints the case that fails, its seed with it.
    #[test]
    fn every_rank_gets_what_is_promised(
        rank_count in 1..=9u32,
        root in 0..9u32,
        way in 0..all_ways(0).len(),
        sizes in (0..4u32, 0..300u64, 1..4u32, 1..5u32, 1..4u32),
        reduce_op in prop::sample::select(ReduceOp::ALL.to_vec()),
        in_place: bool,
        per_node_is_one: bool,
        seed: u64,
    ) {
        let (element_log2, count, blocks_max, granules, slots_log2) = sizes;
        let (collective, algorithm) = all_ways(root % rank_count)[way];
        let element_bytes = 1 << element_log2;
        let request = CollectiveRequest {
            collective,
            element_bytes,
            reduce_op,
            in_place,
            ..request(rank_count, count * u64::from(element_bytes))
        };
        prop_assume!(is_possible(&request, algorithm));
        let ranks_per_node = u32::from(per_node_is_one);
        let limits = Limits { ranks_per_node, ..limits(blocks_max, 64, 1 << slots_log2) };
        check(&request, &choose(&request, algorithm, &limits, granules * 16), seed);
    }
}

#[test]
fn what_selection_chooses_is_right_as_it_is() {
    for rank_count in [2, 4] {
        for bytes in [4, 508, 4 << 10, (32 << 10) + 4, (100 << 10) + 12] {
            for (collective, _) in ways(1) {
                let request = CollectiveRequest { collective, ..request(rank_count, bytes) };
                for ranks_per_node in [0, 1, if rank_count == 4 { 2 } else { 0 }] {
                    // Without LL messages, up to 4 KiB with them, and one granule less than that.
                    for low_latency_bytes in [0, 4096, 4080] {
                        let limits =
                            Limits { ranks_per_node, low_latency_bytes, ..limits(4, 16 << 10, 4) };
                        let choice = select(&request, &limits).expect("valid");
                        check(&request, &choice, bytes);
                    }
                }
            }
        }
    }
}

/// If this fails, a rank that knows whether its own call is in place, and not whether the root's
/// is, runs another program than the plan that was verified has for it.
#[test]
fn whether_the_root_is_in_place_matters_to_the_root_alone() {
    // Through slots, and in LL messages where they go.
    for (bytes, low_latency_bytes) in [(100, 0), (100, 4096), (100 << 10, 0)] {
        for (collective, _) in ways(2) {
            let Some(root) = collective.root() else { continue };
            let apart_request = CollectiveRequest { collective, ..request(5, bytes) };
            let in_place = CollectiveRequest { in_place: true, ..apart_request };
            let limits = Limits { low_latency_bytes, ..limits(4, 4096, 4) };
            let [apart, in_place] = [apart_request, in_place]
                .map(|request| build(&select(&request, &limits).expect("valid")));
            for rank in (0..5).filter(|rank| *rank != root) {
                let rank = rank as usize;
                assert_eq!(apart.ranks[rank], in_place.ranks[rank], "{collective:?}");
            }
            // And the root may run the plan of a call that is not in place.
            let promise = CollectiveRequest { in_place: true, ..apart_request }.promise();
            verify(apart, &promise).unwrap_or_else(|error| panic!("{collective:?}: {error}"));
        }
    }
}

#[test]
fn selection_covers_every_size_of_every_collective() {
    let limits = limits(4, 512 << 10, 8);
    for log2 in (0..33).step_by(3) {
        for rank_count in [1, 2, 3, 8, 17, 40] {
            for (collective, _) in ways(rank_count - 1) {
                let bytes = (1u64 << log2) / 4 * 4;
                let request = CollectiveRequest { collective, ..request(rank_count, bytes) };
                let choice = select(&request, &limits).expect("valid");
                let covered = u64::from(choice.rounds) * choice.round_bytes();
                assert!(covered >= bytes && choice.slice_bytes.is_multiple_of(16), "{choice:?}");
                assert!(rank_count == 1 || choice.slice_bytes <= choice.slots.bytes, "{choice:?}");
                // A block of too many ports is refused when the plan is verified.
                let plan = build(&choice);
                let blocks = plan.ranks.iter().flat_map(|rank| &rank.blocks);
                assert!(blocks.map(|block| block.ports.len()).max() <= Some(32), "{choice:?}");
            }
        }
    }
}

#[test]
fn roots_and_sizes_that_do_not_exist_are_refused() {
    let limits = limits(1, 64, 4);
    let refused = |collective, bytes| {
        let request = CollectiveRequest { collective, ..request(4, bytes) };
        select(&request, &limits).expect_err("out of range").to_string()
    };
    let root = refused(Collective::Broadcast { root: 4 }, 64);
    assert_eq!(root, "root: expected less than the number of ranks, got 4");
    assert!(refused(Collective::AllGather, 1 << 38).contains("less than 1 TiB"));
    assert!(refused(Collective::AllToAll, 1 << 63).contains("less than 1 TiB"));
    assert!(refused(Collective::ReduceScatter, 6).contains("a whole number of elements"));
    assert!(refused(Collective::Barrier, 4).contains("0 for a barrier"));
}

/// The verifier's proof of a barrier, seen from outside: with one rank missing, nobody passes.
#[test]
fn nobody_passes_a_barrier_before_all_have_come() {
    for rank_count in 1..=9u32 {
        for algorithm in [Algorithm::Dissemination, Algorithm::AllPairs] {
            let request =
                CollectiveRequest { collective: Collective::Barrier, ..request(rank_count, 0) };
            let choice = choose(&request, algorithm, &limits(1, 64, 2), 16);
            let verified = verify(build(&choice), &request.promise());
            let verified = verified.unwrap_or_else(|error| panic!("{rank_count} ranks: {error}"));
            run(&request, &verified, 1);
            nobody_passes_without_all(&request, &verified);
        }
    }
}

fn nobody_passes_without_all(request: &CollectiveRequest, verified: &Verified) {
    let rank_count = request.rank_count as usize;
    for missing in 0..rank_count {
        let mut host = host(verified, element(request), 5);
        // Its block has no segments, and ends at once.
        let header = size_of::<ringdove_kernels::op::PlanHeader>();
        let count =
            header + std::mem::offset_of!(ringdove_kernels::op::BlockProgram, segment_count);
        host.ranks[missing].program[count..count + 4].fill(0);
        let stuck = host.launch(&mut fastrand::Rng::with_seed(7)).err().unwrap_or_default();
        for rank in (0..rank_count).filter(|rank| *rank != missing) {
            assert!(stuck.contains(&format!("rank {rank} segment")), "{missing}: {stuck}");
        }
    }
}

/// If this fails, a registered input is copied before it goes out, or is written or given back
/// while an engine still reads it; or a rank that stages for itself sends other messages than its
/// peers expect.
#[test]
fn registered_inputs_go_out_as_they_lie() {
    let is_from_input = |op: &Op| {
        let input = |it: &Operand| matches!(it, Operand::Buffer { buffer: Buffer::Input, .. });
        matches!(op, Op::Put { source, .. } if input(source))
    };
    let limits = limits(2, 128 << 10, 4);
    for (rank_count, root) in [(2, 0), (3, 1), (5, 4)] {
        for collective in [Collective::ReduceScatter, Collective::Reduce { root }] {
            for (bytes, in_place) in [(2 << 20, false), (2 << 20, true), ((1 << 20) + 4, false)] {
                let staged =
                    CollectiveRequest { collective, in_place, ..request(rank_count, bytes) };
                let registered = CollectiveRequest { registered: true, ..staged };
                let [choice, other] =
                    [registered, staged].map(|it| select(&it, &limits).expect("valid"));
                check(&registered, &choice, bytes);
                let [plan, other] = [&choice, &other].map(build);
                let puts = |plan: &Plan, rank: usize| {
                    let segments = plan.ranks[rank].blocks.iter().flat_map(|it| &it.segments);
                    segments.flat_map(|it| &it.ops).filter(|op| is_from_input(op)).count()
                };
                let all =
                    |plan| (0..rank_count as usize).map(|rank| puts(plan, rank)).sum::<usize>();
                assert!(all(&plan) > 0, "{choice:?}");
                assert_eq!(all(&other), 0, "{choice:?}");
                // One rank stages.
                let mut mixed = plan.clone();
                mixed.ranks[1] = other.ranks[1].clone();
                let verified = verify(mixed, &registered.promise());
                let verified = verified.unwrap_or_else(|error| panic!("{choice:?}: {error}"));
                run(&registered, &verified, 3);
                let scaled = CollectiveRequest { reduce_op: ReduceOp::PreMulSum, ..registered };
                let scaled = select(&scaled, &limits).expect("valid");
                assert_eq!(all(&build(&scaled)), 0, "what is scaled is copied");
            }
        }
    }
}

/// If this fails, registered outputs of a few nodes of several ranks are staged, or one block cuts
/// data into fewer pieces than staging does.
#[test]
fn registered_outputs_on_several_nodes_are_written_in_place() {
    let limits = Limits { ranks_per_node: 3, ..limits(4, 128 << 10, 4) };
    for (rank_count, collective, algorithm) in [
        (6, Collective::Broadcast { root: 4 }, Algorithm::ChainDirect),
        (6, Collective::AllGather, Algorithm::ExchangeDirect),
        (18, Collective::AllGather, Algorithm::RingDirect),
        (66, Collective::AllGather, Algorithm::RingStaged),
        (66, Collective::Broadcast { root: 0 }, Algorithm::Chain),
    ] {
        let staged = CollectiveRequest { collective, ..request(rank_count, (1 << 20) + 4) };
        let registered = CollectiveRequest { registered: true, ..staged };
        let choice = select(&registered, &limits).expect("valid");
        assert_eq!(choice.algorithm, algorithm, "{rank_count} ranks, {collective:?}");
        if rank_count <= 18 {
            check(&registered, &choice, 7);
        }
        if algorithm == Algorithm::ChainDirect {
            let staged = select(&staged, &limits).expect("valid");
            assert_eq!((choice.blocks, choice.slice_bytes), (staged.blocks, staged.slice_bytes));
        }
    }
}
