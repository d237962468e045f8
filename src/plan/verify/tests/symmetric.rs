//! Symmetric plans, changed in one place.

use super::mutation::{Change, try_mutants};
use crate::plan::build;
use crate::plan::tests::symmetric::{ring_symmetric, symmetric};
use ringdove_kernels::element::ReduceOp;

#[test]
fn one_change_of_a_symmetric_plan_is_refused_or_does_no_harm() {
    for (in_place, reduce_op) in [(false, ReduceOp::Sum), (true, ReduceOp::Avg)] {
        let [of_all, around] = [symmetric, ring_symmetric].map(|plan| {
            let (request, choice) = plan(3, 100, in_place, reduce_op);
            let counts = try_mutants(&request, &build(&choice), 1);
            println!("{}, in place {in_place}: {counts:?}", choice.algorithm.name());
            for always in [Change::Arrival, Change::Advance] {
                let (tried, accepted) = counts[&always];
                assert!(tried > 0 && accepted == 0, "{always:?}: {counts:?}");
            }
            counts[&Change::OtherPort]
        });
        // On a ring, a wait may do for one beside it that is left out.
        assert!(of_all.0 > 0 && of_all.1 == 0, "{of_all:?}");
        assert!(around.0 > 0 && around.1 < around.0 / 5, "{around:?}");
    }
}
