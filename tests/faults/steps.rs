//! Faults at steps that nobody chose: they are drawn from a seed, which is printed, and which
//! `RINGDOVE_TEST_SEED` sets.

use super::{IMPATIENT, Job, NODE, NODES, THREE};
use crate::hardware::perf::{last_words, on_real_hardware};
use std::process::ExitStatus;

/// Draws for a test of this name.
fn generator(test: &str) -> fastrand::Rng {
    let seed = std::env::var("RINGDOVE_TEST_SEED").ok().map(|text| text.parse().unwrap());
    let seed = seed.unwrap_or(20_261_125);
    println!("{test}: RINGDOVE_TEST_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

/// Did the job end with right results?
fn is_right(status: ExitStatus, output: &str) -> bool {
    status.success() && output.contains("# Out of bounds values : 0 OK")
}

/// Runs a job under a fault. It must end with right results, or with an error of the library in
/// every process that ends by itself. True: it met the fault.
fn ends_well(job: &Job, fault: &str) -> bool {
    let (status, output) = job.run(&[fault], IMPATIENT);
    if is_right(status, &output) {
        return false;
    }
    assert_eq!(status.code(), Some(1), "{fault}: {status}\n{output}");
    assert!(!output.contains("panicked"), "{fault}: {output}");
    assert!(output.contains("] ringdove: "), "{fault}: nobody says why\n{output}");
    // Wrong results would be counted.
    assert!(!output.contains("values : ") || output.contains("values : 0 OK"), "{fault}: {output}");
    true
}

/// So many jobs, each with this fault of some rank at some byte that it sends: at least `least` of
/// them meet it, and all end well.
fn jobs_end_well(test: &str, fault: &str, jobs: usize, least: usize) {
    let mut random = generator(test);
    let faults: Vec<_> = (0..jobs)
        .map(|_| format!("rank{}:{fault}={}", random.u32(0..3), random.u32(0..3000)))
        .collect();
    let met = faults.iter().filter(|fault| ends_well(&THREE, fault)).count();
    println!("{met} of {jobs} jobs met their fault");
    assert!(met >= least, "{met} of {jobs} jobs met their fault");
}

/// If this fails, a rank that dies at some step hangs the others, or leaves them with an error
/// that does not name it.
#[test]
fn a_rank_killed_at_any_step_is_named_by_the_others() {
    if on_real_hardware() {
        return;
    }
    let mut random = generator("kills");
    let mut met = 0;
    // In between, memory of the rank that was killed is being opened.
    let steps: Vec<u32> = [0, 200].into_iter().chain((0..8).map(|_| random.u32(0..700))).collect();
    for (number, step) in steps.iter().enumerate() {
        let job = [NODE, NODES][number % 2];
        let fault = format!("rank1:kill-at={step}");
        let (status, output) = job.run(&[&fault], "");
        if is_right(status, &output) {
            continue;
        }
        met += 1;
        assert_eq!(status.code(), Some(1), "{fault}: {status}\n{output}");
        let names = last_words(&output, 0).contains("rank 1");
        assert!(names, "{fault} on {}: {output}", job.0);
    }
    println!("{met} of {} jobs met their fault", steps.len());
    assert!(met >= 6, "{met} of {} jobs met their fault", steps.len());
}

/// If this fails, a bit that flips on the control plane's way changes a result, ends a process by
/// a panic or a signal, or hangs the job.
#[test]
fn bits_that_flip_in_the_control_plane_are_noticed() {
    if on_real_hardware() {
        return;
    }
    jobs_end_well("flips", "flip-at", 10, 3);
}

/// If this fails, a job hangs, or ends without a word, where one rank is cut off from the others.
#[test]
fn ranks_that_are_cut_off_at_any_byte_end_in_time() {
    if on_real_hardware() {
        return;
    }
    jobs_end_well("partitions", "partition-at", 4, 2);
}
