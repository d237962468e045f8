//! All-reduce: every form of it gives every rank the promised result.

use super::*;
use proptest::prelude::*;

/// What a case varies.
#[derive(Clone, Debug)]
struct Case {
    request: CollectiveRequest,
    limits: Limits,
    slice_bytes: Option<u32>,
    seed: u64,
    all_pairs: bool,
}

impl Case {
    fn choice(&self) -> Choice {
        let mut choice = select(&self.request, &self.limits).expect("a valid request");
        // Whatever is chosen for small data, the other forms must be right for it too.
        choice.algorithm = match (self.request.registered, self.request.in_place) {
            _ if self.request.rank_count == 1 => Algorithm::Copy,
            (false, _) => Algorithm::RingStaged,
            (true, false) => Algorithm::RingDirect,
            (true, true) => Algorithm::RingHybrid,
        };
        choice.slots = self.limits.slots();
        choice.blocks = self.limits.blocks_max;
        choice.slices = 2.min(self.limits.slot_count / 2);
        if self.all_pairs && self.request.rank_count > 1 {
            choice.all_pairs(&self.limits);
        }
        choice.set_slice_bytes(self.slice_bytes.unwrap_or(choice.slice_bytes));
        choice
    }
}

fn check(case: &Case) {
    let choice = case.choice();
    let verified = verify(build(&choice), &case.request.promise());
    let verified = verified.unwrap_or_else(|error| panic!("{case:?}: {error}"));
    run(&case.request, &verified, case.seed);
}

fn cases() -> impl Strategy<Value = Case> {
    let sizes = (0..4u32, 0..700u64, 1..4u32, 1..5u32, 1..4u32);
    let reduce_op = prop::sample::select(ReduceOp::ALL.to_vec());
    let flags = any::<[bool; 3]>();
    let shape = (1..=8u32, sizes, reduce_op, flags, any::<u64>());
    shape.prop_map(|(rank_count, sizes, reduce_op, flags, seed)| {
        let [in_place, registered, all_pairs] = flags;
        let (element_log2, count, blocks_max, granules, slots_log2) = sizes;
        let element_bytes = 1 << element_log2;
        Case {
            request: CollectiveRequest {
                element_bytes,
                reduce_op,
                in_place,
                registered,
                ..request(rank_count, count * u64::from(element_bytes))
            },
            // Never chosen, as it is not there; but big enough for the slices below.
            limits: Limits { low_latency_bytes: 64, ..limits(blocks_max, 64, 1 << slots_log2) },
            slice_bytes: Some(granules * 16),
            seed,
            all_pairs,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 160, ..ProptestConfig::default() })]

    /// Any ranks, counts, element sizes, reductions, forms and interleavings.
    #[test]
    fn every_rank_gets_the_reduction(case in cases()) {
        check(&case);
    }
}

#[test]
fn counts_at_the_edges_of_chunks_are_reduced() {
    for rank_count in [1, 2, 3, 4, 8] {
        for count in [0, 1, 3, 4, 31, 32, 33, 255, 256, 257] {
            for (in_place, registered) in
                [(false, false), (true, false), (false, true), (true, true)]
            {
                let request =
                    CollectiveRequest { in_place, registered, ..request(rank_count, count * 4) };
                let limits = Limits { low_latency_bytes: 16, ..limits(2, 64, 4) };
                for all_pairs in [false, true] {
                    let slice_bytes = Some(16);
                    check(&Case { request, limits, slice_bytes, seed: count, all_pairs });
                }
            }
        }
    }
}

#[test]
fn what_selection_chooses_is_right_as_it_is() {
    for bytes in [4, 60, 8 << 10, (64 << 10) + 4, (300 << 10) + 12] {
        for (in_place, registered) in [(false, false), (true, false), (false, true), (true, true)] {
            let request = CollectiveRequest { in_place, registered, ..request(4, bytes) };
            let limits = Limits { low_latency_bytes: 16 << 10, ..limits(4, 16 << 10, 4) };
            let choice = select(&request, &limits).expect("valid");
            let small = bytes <= 16 << 10;
            assert_eq!(choice.algorithm == Algorithm::AllPairs, small, "{choice:?}");
            let verified = verify(build(&choice), &request.promise()).expect("correct");
            run(&request, &verified, bytes);
        }
    }
}

#[test]
fn large_plans_keep_much_in_flight_and_stay_small_enough_to_verify() {
    let limits = limits(4, 512 << 10, 8);
    for (in_place, registered) in [(false, false), (true, false), (false, true), (true, true)] {
        let request = CollectiveRequest { in_place, registered, ..request(4, 1 << 30) };
        let choice = select(&request, &limits).expect("valid");
        assert!(choice.blocks >= 2 && choice.slices >= 2, "{choice:?}");
        let plan = build(&choice);
        // About a microsecond each in a release build.
        let segments = plan.ranks.iter().flat_map(|it| &it.blocks).flat_map(|it| &it.segments);
        let unrolled: usize = segments.map(|it| it.ops.len() * it.rounds as usize).sum();
        assert!(unrolled < 80_000, "{unrolled} ops in all rounds");
        verify(plan, &request.promise()).expect("a correct plan");
    }
}

#[test]
fn selection_covers_every_size_and_says_what_it_cannot_do() {
    let limits = limits(4, 512 << 10, 8);
    for log2 in 0..38 {
        for rank_count in [1, 2, 3, 7, 8] {
            for registered in [false, true] {
                let bytes = (1u64 << log2) - if log2 > 12 { 4 } else { 0 };
                let bytes = bytes / 4 * 4;
                let request = CollectiveRequest { registered, ..request(rank_count, bytes) };
                let choice = select(&request, &limits).expect("valid");
                let covered = u64::from(choice.rounds) * choice.round_bytes();
                assert!(covered >= bytes && choice.slice_bytes.is_multiple_of(16), "{choice:?}");
                let slot =
                    if choice.algorithm == Algorithm::RingStaged { 512 << 10 } else { 1 << 22 };
                assert!(choice.slice_bytes <= slot, "{choice:?}");
            }
        }
    }
    let odd = select(&request(2, 6), &limits).expect_err("6 bytes are no whole f32");
    assert!(odd.to_string().contains("a whole number of elements, got 6"), "{odd}");
    let one_slot = select(&request(2, 8), &Limits { slot_count: 1, ..limits });
    assert!(one_slot.is_err());
}

#[test]
fn registered_data_moves_without_staging_copies() {
    let request = CollectiveRequest { registered: true, ..request(4, 1 << 20) };
    let plan = build(&select(&request, &limits(4, 1 << 16, 8)).expect("valid"));
    let ops = plan.ranks.iter().flat_map(|rank| &rank.blocks).flat_map(|block| &block.segments);
    assert!(!ops.flat_map(|segment| &segment.ops).any(|op| matches!(op, Op::Copy { .. })));
    let ports = plan.ranks.iter().flat_map(|rank| &rank.blocks).flat_map(|block| &block.ports);
    assert!(ports.into_iter().all(|port| port.lane.kind == LaneKind::Direct));
}
