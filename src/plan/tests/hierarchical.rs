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
    let request = Request {
        collective: Collective::AllReduce,
        rank_count: nodes * per_node,
        bytes,
        element_bytes: 4,
        reduce_op,
        in_place,
        registered: false,
    };
    let limits = Limits { ranks_per_node: per_node, ..limits(2, 64, slot_count) };
    let mut choice = select(&request, &limits).expect("a valid request");
    assert_eq!(choice.algorithm, Algorithm::Hierarchical);
    choice.blocks = 2;
    choice.slices = 2.min(slot_count / 2);
    choice.set_slice_bytes(32);
    let verified = verify(build(&choice), &request.promise());
    let verified = verified.unwrap_or_else(|error| panic!("{request:?} {limits:?}: {error}"));
    run(&request, &verified, seed);
}

/// Two launches on the same lanes: the second finds what the first left.
fn run(request: &Request, verified: &Verified, seed: u64) {
    let mut random = Random(seed);
    let element = Element {
        bytes: 4,
        reduce_op: request.reduce_op,
        scalar: 3,
        rank_count: u64::from(request.rank_count),
    };
    let mut host = host(verified, element, 5);
    let bytes = request.bytes as usize;
    for _launch in 0..2 {
        for rank in &mut host.ranks {
            let input: Vec<u8> = (0..bytes).map(|_| random.next() as u8).collect();
            rank.memory = [input, vec![0xcc; bytes], Vec::new()];
            rank.in_place = request.in_place;
        }
        let inputs: Vec<Vec<u8>> = host.ranks.iter().map(|rank| rank.memory[0].clone()).collect();
        host.launch(&mut random).unwrap_or_else(|stuck| panic!("{request:?}: stuck at {stuck}"));
        for at in (0..bytes).step_by(4) {
            let terms = inputs.iter().map(|input| element.scale(element.load(&input[at..at + 4])));
            let expected = element.finish(terms.reduce(|a, b| element.combine(a, b)).unwrap());
            for (number, rank) in host.ranks.iter().enumerate() {
                let seen = &rank.memory[usize::from(!request.in_place)][at..at + 4];
                assert_eq!(element.load(seen), expected, "{request:?}: rank {number} byte {at}");
            }
        }
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
    let request = Request {
        collective: Collective::AllReduce,
        rank_count: 6,
        bytes: 64,
        element_bytes: 4,
        reduce_op: ReduceOp::Sum,
        in_place: false,
        registered: false,
    };
    let refused = select(&request, &Limits { ranks_per_node: 4, ..limits(1, 64, 4) });
    assert!(refused.unwrap_err().to_string().contains("divisor of the number of ranks"));
}
