//! Symmetric plans, changed in one place.

use super::mutation::{Change, try_mutants};
use crate::plan::build;
use crate::plan::tests::symmetric::symmetric;
use ringdove_kernels::element::ReduceOp;

#[test]
fn one_change_of_a_symmetric_plan_is_refused_or_does_no_harm() {
    for (in_place, reduce_op) in [(false, ReduceOp::Sum), (true, ReduceOp::Avg)] {
        let (request, choice) = symmetric(3, 100, in_place, reduce_op);
        let counts = try_mutants(&request, &build(&choice), 1);
        println!("in place {in_place}: {counts:?}");
        for always in [Change::Arrival, Change::Advance, Change::OtherPort] {
            let (tried, accepted) = counts[&always];
            assert!(tried > 0 && accepted == 0, "{always:?}: {counts:?}");
        }
    }
}
