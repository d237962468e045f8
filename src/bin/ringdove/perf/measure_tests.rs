//! The measurement on ranks in host memory: what it counts, notices and survives.

use super::super::backend::{Collective, DataType, ReduceOp};
use super::super::check::GUARD_BYTES;
use super::super::mock::{self, Fault};
use super::super::pattern::PERIOD;
use super::super::sweep as run_sweep;
use super::*;

fn run(interrupt: &Interrupt) -> Run<'_> {
    Run { interrupt, job: Box::leak(Box::default()) }
}

fn sweep(sizes: &[usize]) -> Sweep {
    Sweep {
        collective: Collective::AllReduce,
        sizes: sizes.to_vec(),
        combinations: vec![(DataType::I32, ReduceOp::Sum)],
        root: 0,
        iterations: 3,
        aggregated: 2,
        warmup: 1,
        check: 1,
        ranks_per_thread: 2,
        in_place_only: false,
        stall_limit: None,
    }
}

fn operation(count: usize, in_place: bool) -> Operation {
    Operation {
        collective: Collective::AllReduce,
        data_type: DataType::I32,
        reduction: ReduceOp::Sum,
        root: 0,
        rank_count: 4,
        count,
        in_place,
    }
}

fn wrong(fault: Fault, count: usize, in_place: bool) -> Option<u64> {
    let mut ranks = mock::ranks(4, count * 4 + GUARD_BYTES, fault);
    let plan = Sweep { iterations: 1, aggregated: 1, warmup: 0, ..sweep(&[]) };
    let interrupt = Interrupt::default();
    measure(&mut ranks, &plan, &operation(count, in_place), 5, &run(&interrupt))
        .expect("the measurement runs")
        .expect("nobody interrupts")
        .wrong
}

#[test]
fn right_results_have_no_wrong_elements() {
    for count in [0, 1, 1000, 2 * PERIOD + 17] {
        for in_place in [false, true] {
            assert_eq!(wrong(Fault::None, count, in_place), Some(0), "{count} {in_place}");
        }
    }
}

#[test]
fn a_single_wrong_bit_is_one_wrong_element_wherever_it_is() {
    let count = 2 * PERIOD + 17;
    for index in [0, 1, PERIOD - 1, PERIOD, count - 1] {
        assert_eq!(wrong(Fault::WrongElement(index), count, false), Some(1), "element {index}");
    }
    assert_eq!(wrong(Fault::WrongElement(3), 1000, true), Some(1), "in place");
}

#[test]
fn a_write_past_the_end_counts_as_wrong() {
    assert_eq!(wrong(Fault::WritesPastTheEnd, 1000, false), Some(1));
    assert_eq!(wrong(Fault::WritesPastTheEnd, 1000, true), Some(1));
}

/// Four ranks on two threads that sum to anything else would not run the same iterations.
#[test]
fn every_thread_runs_every_iteration() {
    let mut ranks = mock::ranks(4, 4096, Fault::None);
    let interrupt = Interrupt::default();
    let plan = Sweep { check: 0, ..sweep(&[]) };
    let outcome = measure(&mut ranks, &plan, &operation(100, false), 5, &run(&interrupt))
        .expect("runs")
        .expect("nobody interrupts");
    assert_eq!((outcome.wrong, outcome.operations), (None, 6));
    // Each of the four ranks reports the six operations that were timed, not the warm-up's two.
    assert_eq!(outcome.work.launches, 4 * 6);
    assert!(outcome.seconds > 0.0);
}

#[test]
fn a_stall_ends_and_names_the_rank_and_what_is_in_flight() {
    let mut ranks = mock::ranks(2, 4096, Fault::Stalls);
    let interrupt = Interrupt::default();
    let plan = Sweep { stall_limit: Some(Duration::from_millis(30)), ..sweep(&[]) };
    let error = measure(&mut ranks, &plan, &operation(100, false), 5, &run(&interrupt))
        .expect_err("nothing completes");
    assert!(matches!(error, PerfError::Stalled { in_flight: 1, .. }), "{error}");
}

#[test]
fn the_communicators_error_ends_the_wait() {
    let mut ranks = mock::ranks(2, 4096, Fault::Reports);
    let plan = sweep(&[]);
    let interrupt = Interrupt::default();
    let error = measure(&mut ranks, &plan, &operation(100, false), 5, &run(&interrupt))
        .expect_err("the communicator reports");
    assert!(matches!(error, PerfError::NoDevice), "{error}");
}

#[test]
fn a_sweep_gives_one_row_for_each_size_and_send_recv_no_in_place_half() {
    for (collective, halves) in [(Collective::AllReduce, 2), (Collective::SendRecv, 1)] {
        let mut ranks = mock::ranks(4, 8192 + GUARD_BYTES, Fault::None);
        let plan = Sweep { collective, ..sweep(&[1024, 8190]) };
        let (rows, stopped) =
            run_sweep::run(&mut ranks, &plan, &run(&Interrupt::default()), true).expect("runs");
        assert!(!stopped);
        assert_eq!(rows.iter().map(|row| row.count).collect::<Vec<_>>(), [256, 2047]);
        for row in &rows {
            assert_eq!(row.outcomes().count(), halves);
            assert!(row.outcomes().all(|outcome| outcome.wrong == Some(0)));
        }
    }
}

#[test]
fn in_place_alone_leaves_the_other_half_out() {
    let mut ranks = mock::ranks(2, 4096 + GUARD_BYTES, Fault::None);
    let plan = Sweep { in_place_only: true, ..sweep(&[1024]) };
    let (rows, _) =
        run_sweep::run(&mut ranks, &plan, &run(&Interrupt::default()), false).expect("runs");
    assert!(rows[0].out_of_place.is_none());
    assert_eq!(rows[0].in_place.expect("measured").wrong, Some(0));
}

#[test]
fn an_interrupted_sweep_keeps_no_half_measured_row() {
    let mut ranks = mock::ranks(2, 4096, Fault::None);
    let interrupt = Interrupt::default();
    interrupt.request();
    let (rows, stopped) =
        run_sweep::run(&mut ranks, &sweep(&[1024]), &run(&interrupt), false).expect("runs");
    assert!(stopped && rows.is_empty());
}

/// Without this a thread whose enqueue fails would leave the others waiting for its ranks.
#[test]
fn a_thread_that_fails_ends_the_others_waits_and_its_error_is_shown() {
    let mut ranks = mock::ranks(4, 4096, Fault::RefusesOnRank(3));
    let plan = Sweep { ranks_per_thread: 1, ..sweep(&[]) };
    let interrupt = Interrupt::default();
    let error = measure(&mut ranks, &plan, &operation(100, false), 5, &run(&interrupt))
        .expect_err("rank 3 refuses");
    assert!(matches!(error, PerfError::NoDevice), "{error}");
}
