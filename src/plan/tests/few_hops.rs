//! Plans of few hops: right for every number of ranks, chosen for small data of many ranks, and of
//! few hops.

use super::collectives::{check, choose, is_possible, ways};
use super::*;

/// Of [`ways`], those in few hops.
fn few_hops(root: u32) -> impl Iterator<Item = (Collective, Algorithm)> {
    let few = [Algorithm::Doubling, Algorithm::Halving, Algorithm::Tree, Algorithm::Bruck];
    ways(root).into_iter().filter(move |(_, algorithm)| few.contains(algorithm))
}

/// `ceil(log2(ranks))`.
fn levels(ranks: u32) -> usize {
    ranks.next_power_of_two().ilog2() as usize
}

/// If this fails, some number of ranks gets wrong data: powers of two and others, each root's tree.
#[test]
fn every_number_of_ranks_is_right() {
    // Fewer cases of large worlds: the time of each is the square of its number of ranks.
    let all = [(1, false), (1, true), (7, false), (7, true)];
    for rank_count in (1..=17).chain([32, 64]) {
        let (roots, cases) = match rank_count {
            0..=5 => ((0..rank_count).collect(), &all[..]),
            6..=17 => (vec![0, 3, rank_count - 1], &all[1..3]),
            _ => (vec![0, 5], &all[3..]),
        };
        for root in roots {
            for (collective, algorithm) in few_hops(root) {
                if root > 0 && collective.root().is_none() {
                    continue;
                }
                for &(count, in_place) in cases {
                    let reduce_op = if count == 1 { ReduceOp::PreMulSum } else { ReduceOp::Avg };
                    let request = CollectiveRequest {
                        collective,
                        in_place,
                        reduce_op,
                        ..request(rank_count, 4 * count)
                    };
                    if is_possible(&request, algorithm) {
                        let choice = choose(&request, algorithm, &limits(1, 32, 2), 16);
                        check(&request, &choice, 1000 * u64::from(rank_count) + count);
                    }
                }
            }
        }
    }
}

/// If this fails, a rank of a large world talks with many others where few would do: it connects
/// with all of them, and waits for each.
#[test]
fn small_data_of_many_ranks_goes_few_hops() {
    let limits = limits(1, 32 << 10, 4);
    for rank_count in [17, 64, 100, 256, 1000] {
        let all = few_hops(rank_count / 3).map(|(collective, _)| (collective, 8));
        for (collective, bytes) in all.chain([(Collective::Barrier, 0)]) {
            let request = CollectiveRequest { collective, ..request(rank_count, bytes) };
            let choice = select(&request, &limits).expect("valid");
            let program = program(&choice, rank_count / 2);
            let ports: usize = program.blocks.iter().map(|block| block.ports.len()).sum();
            assert!(ports <= 2 * (levels(rank_count) + 1), "{ports} ports: {choice:?}");
        }
    }
}

/// If this fails, selection takes few hops where rings or one hop move less, or a plan whose
/// messages do not fit.
#[test]
fn large_data_and_few_ranks_go_as_before() {
    let few = [Algorithm::Doubling, Algorithm::Halving, Algorithm::Tree, Algorithm::Bruck];
    let chosen = |collective, rank_count, bytes, slot_bytes| {
        let request = CollectiveRequest { collective, ..request(rank_count, bytes) };
        let choice = select(&request, &limits(1, slot_bytes, 4)).expect("valid");
        let few = few.contains(&choice.algorithm);
        assert!(!few || choice.slot_bytes_needed() <= slot_bytes.into(), "{choice:?}");
        few
    };
    for (collective, _) in few_hops(1) {
        // All-reduces go few hops from two ranks on.
        let is_one_hop = collective != Collective::AllReduce;
        assert_eq!(chosen(collective, 8, 8, 4096), !is_one_hop, "{collective:?}");
        assert!(!chosen(collective, 64, 64 << 20, 128 << 10), "{collective:?}");
        assert!(chosen(collective, 64, 64, 4096), "{collective:?}");
    }
    for collective in [Collective::ReduceScatter, Collective::Gather { root: 2 }] {
        assert!(chosen(collective, 64, 128, 4096), "32 parts fit a slot");
        assert!(!chosen(collective, 64, 132, 4096), "32 parts do not");
    }
}

/// If this fails, selection no longer does what its documentation says of all-reduces.
#[test]
fn all_reduces_of_middle_size_go_two_shots_or_halves() {
    let limits = limits(4, 128 << 10, 4);
    for (rank_count, kib, expected) in [
        (2, 128, Algorithm::Doubling),
        (3, 65, Algorithm::TwoShot),
        (8, 128, Algorithm::Doubling),
        (8, 512, Algorithm::TwoShot),
        (8, 513, Algorithm::RingStaged),
        (16, 512, Algorithm::TwoShot),
        (64, 128, Algorithm::Doubling),
        (64, 129, Algorithm::Halving),
        (64, 2048, Algorithm::Halving),
        (64, 4096, Algorithm::RingStaged),
        (100, 256, Algorithm::Doubling),
        (100, 257, Algorithm::RingStaged),
    ] {
        let request = request(rank_count, kib << 10);
        let choice = select(&request, &limits).expect("valid");
        assert_eq!(choice.algorithm, expected, "{rank_count} ranks, {kib} KiB");
        if rank_count < 64 {
            verify(build(&choice), &request.promise())
                .unwrap_or_else(|e| panic!("{choice:?}: {e}"));
        }
        let registered = CollectiveRequest { registered: true, ..request };
        let choice = select(&registered, &limits).expect("valid");
        let is_direct = kib >= 128 * u64::from(rank_count) || expected == Algorithm::RingStaged;
        let expected = if is_direct { Algorithm::RingDirect } else { expected };
        assert_eq!(choice.algorithm, expected, "registered, {rank_count} ranks, {kib} KiB");
    }
}

/// If this fails, ranks get different bits of a scaled sum: one of a pair adds its contribution as
/// it is, the other one what was rounded on its way.
#[test]
fn both_of_a_pair_add_the_same_two_values() {
    for rank_count in [2, 4, 6, 8] {
        let request =
            CollectiveRequest { reduce_op: ReduceOp::PreMulSum, ..request(rank_count, 8) };
        let choice = choose(&request, Algorithm::Doubling, &limits(1, 64, 4), 16);
        let doubled = 1 << rank_count.ilog2();
        for rank in 0..doubled {
            let program = program(&choice, rank);
            let ops = program.blocks.iter().flat_map(|it| &it.segments).flat_map(|it| &it.ops);
            let scaled = |op: &&Op| matches!(op, Op::Reduce { modifiers, .. } if modifiers.scale);
            // That of a rank without a partner is added once, and both of each pair have the sum.
            let expected = if rank + doubled < rank_count { choice.slices } else { 0 };
            assert_eq!(ops.filter(scaled).count() as u32, expected, "rank {rank} of {rank_count}");
        }
    }
}
