//! Hierarchical all-reduce: every division into nodes, verified and run.

use super::*;
use proptest::prelude::*;

fn check(
    (nodes, per_node): (u32, u32),
    bytes: u64,
    reduce_op: ReduceOp,
    in_place: bool,
    (slot_count, seed): (u32, u64),
) {
    let request = CollectiveRequest { reduce_op, in_place, ..request(nodes * per_node, bytes) };
    let limits = Limits { ranks_per_node: per_node, ..limits(2, 64, slot_count) };
    let mut choice = select(&request, &limits).expect("a valid request");
    for (algorithm, registered) in
        [(Algorithm::Hierarchical, false), (Algorithm::HierarchicalHybrid, true)]
    {
        // Whatever is chosen for small data of many ranks.
        (choice.algorithm, choice.slots) = (algorithm, limits.slots());
        choice.request.registered = registered;
        choice.blocks = 2;
        choice.slices = 2.min(slot_count / 2);
        choice.set_slice_bytes(32);
        let verified = verify(build(&choice), &choice.request.promise());
        let verified = verified.unwrap_or_else(|error| panic!("{choice:?} {limits:?}: {error}"));
        run(&choice.request, &verified, seed);
    }
}

#[test]
fn every_division_into_nodes_is_right() {
    for shape in [(2, 2), (2, 3), (3, 2), (2, 8), (4, 2), (3, 3)] {
        for bytes in [4, 64, 1020, 4096, 10_004] {
            check(shape, bytes, ReduceOp::Sum, false, (4, bytes));
            check(shape, bytes, ReduceOp::PreMulSum, true, (2, bytes));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]
    #[test]
    fn random_shapes_are_right(
        shape in (2u32..4, 2u32..5),
        words in 1u64..1000,
        reduce_op in prop::sample::select(vec![
            ReduceOp::Sum, ReduceOp::Max, ReduceOp::Avg, ReduceOp::PreMulSum,
        ]),
        in_place: bool,
        slots_log2 in 1u32..4,
        seed: u64,
    ) {
        check(shape, 4 * words, reduce_op, in_place, (1 << slots_log2, seed));
    }
}

#[test]
fn ranks_that_do_not_divide_into_nodes_are_refused() {
    let request = request(6, 64);
    let refused = select(&request, &Limits { ranks_per_node: 4, ..limits(1, 64, 4) });
    assert!(refused.unwrap_err().to_string().contains("divisor of the number of ranks"));
}
