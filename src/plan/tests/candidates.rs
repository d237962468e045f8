//! Every candidate is a plan that a communicator could run.

use super::*;

/// Each is proved, and runs right on host memory; the one that selection takes is the first. If
/// this fails, a comparison shows, or chooses, a plan that gives wrong results.
#[test]
fn every_candidate_is_proved() {
    let seed = 17;
    let mut random = fastrand::Rng::with_seed(seed);
    println!("seed {seed}");
    let mut seen = std::collections::BTreeMap::new();
    for (ranks, per_node) in [(2, 0), (3, 0), (4, 0), (5, 0), (8, 0), (4, 2), (6, 1)] {
        for collective in Collective::all(ranks - 1) {
            for bytes in [0, 40, 1000, 4100, 9000] {
                if collective == Collective::Barrier && bytes > 0 {
                    continue;
                }
                for (registered, in_place) in [(false, false), (true, false), (true, true)] {
                    let request = CollectiveRequest {
                        collective,
                        registered,
                        in_place,
                        ..request(ranks, bytes)
                    };
                    let limits = Limits {
                        low_latency_bytes: 4096,
                        stores: true,
                        store_blocks: 2,
                        nvlink: random.bool(),
                        ranks_per_node: per_node,
                        ..limits(2, 8192, 4)
                    };
                    let all = candidates(&request, &limits).expect("valid");
                    assert_eq!(all[0], select(&request, &limits).expect("valid"));
                    for choice in all {
                        *seen.entry(choice.algorithm.name()).or_insert(0) += 1;
                        collectives::check(&request, &choice, random.u64(..));
                    }
                }
            }
        }
    }
    println!("{seen:?}");
    for algorithm in ["doubling", "halving", "two-shot", "ring staged", "bruck", "tree", "chain"] {
        assert!(seen.contains_key(algorithm), "{algorithm}");
    }
}
