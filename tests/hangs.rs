//! Seeded hangs with a known culprit: the report of the flight recorder must name it. If this
//! fails, users are told to look at a rank that only waits for others.
//!
//! `RINGDOVE_TEST_HANGS` says how many hangs (a hundred are 60 in one process, 30 in several and 10
//! between nodes), `RINGDOVE_TEST_SEED` where to begin. A wrong verdict is printed with its seed,
//! its report and the command that shows it again; 95 of 100 must be right.

mod hardware;
#[path = "hangs/processes.rs"]
mod processes;
#[path = "hangs/threads.rs"]
mod threads;

use fastrand::Rng;
use ringdove::flight::{Report, Verdict};
use std::time::{Duration, Instant};

/// How many hangs of a hundred the verdict must be right about.
const RIGHT_PERCENT: usize = 95;

/// Seeds of a run of so many of every hundred hangs; the usual run has a tenth.
fn seeds(of_hundred: u64) -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().unwrap());
    let hangs: u64 = number("RINGDOVE_TEST_HANGS").unwrap_or(10);
    let first: u64 = number("RINGDOVE_TEST_SEED").unwrap_or(1);
    (first..first + (hangs * of_hundred).div_ceil(100)).collect()
}

/// One of the items.
fn choose<T: Copy>(random: &mut Rng, items: &[T]) -> T {
    items[random.usize(..items.len())]
}

/// What a hang showed.
struct Outcome {
    seed: u64,
    /// Kind, and the ranks that are to be named.
    hang: String,
    is_right: bool,
    report: String,
}

impl Outcome {
    fn of(seed: u64, hang: String, is_right: bool, report: String) -> Self {
        println!("seed {seed}: {hang}: {}", if is_right { "named" } else { "NOT named" });
        Self { seed, hang, is_right, report }
    }
}

/// Prints what was wrong, and fails if that is too much. Gives the figure.
fn judge(test: &str, outcomes: &[Outcome]) -> String {
    let wrong: Vec<_> = outcomes.iter().filter(|outcome| !outcome.is_right).collect();
    for Outcome { seed, hang, report, .. } in &wrong {
        println!(
            "seed {seed}, {hang}; again: RINGDOVE_TEST_SEED={seed} RINGDOVE_TEST_HANGS=1 cargo \
             test --release -p ringdove --test hangs {test} -- --nocapture\n{report}"
        );
    }
    let right = outcomes.len() - wrong.len();
    let summary = format!("{test}: {right} of {} culprits named", outcomes.len());
    println!("{summary}");
    assert!(!outcomes.is_empty());
    assert!(100 * right >= RIGHT_PERCENT * outcomes.len(), "{right} of {}", outcomes.len());
    summary
}

/// The report on the communicator of `ranks` ranks, once it says what is wrong.
fn report_of(ranks: usize) -> Report {
    let started = Instant::now();
    loop {
        let reports = ringdove::flight::report().into_iter();
        let mut found = reports.filter(|report| {
            let failed = report.ranks.iter().any(|rank| rank.failure.is_some());
            report.ranks[0].rank_count as usize == ranks && failed
        });
        // Records of ranks that were stopped by the failure come within milliseconds.
        let is_late = started.elapsed() > Duration::from_millis(300);
        if let Some(report) = found.next().filter(|_| is_late) {
            return report;
        }
        assert!(started.elapsed() < hardware::SOON, "no report on {ranks} ranks");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Does it name this rank alone?
fn names(Verdict { cause, .. }: &Verdict, culprit: usize) -> bool {
    cause.ranks().iter().map(|rank| rank.index()).eq([culprit])
}
