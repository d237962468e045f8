//! Times one operation, and checks it.

use super::arguments::Sweep;
use super::backend::{Operation, Rank, Work};
use super::check;
use super::error::PerfError;
use super::interrupt::{Agreement, Interrupt};
use super::job::Job;
use super::pattern::Pattern;
use super::threads;
use serde::{Deserialize, Serialize};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// From this size on a thread runs at most [`WINDOW`] iterations ahead of the GPU, so that Ctrl-C
/// does not have to wait for all of them. Smaller ones are over soon enough.
const WINDOW_BYTES_MIN: usize = 1 << 20;
/// How many iterations may be in flight.
const WINDOW: usize = 4;
/// How often a waiting thread asks the communicators for errors.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// Waits shorter than this yield; longer ones sleep.
const YIELD_MAX: Duration = Duration::from_micros(200);
/// The longest sleep between two looks.
const SLEEP_MAX: Duration = Duration::from_millis(1);
/// A sleep is this fraction of the time waited so far, and what Linux adds to it (50 µs, the timer
/// slack): the error of a measured time of 10 ms stays near one per cent, and the core is left to
/// those who need it. Sleeps that end after 10 µs made all-reduces of 1 MiB between four processes
/// on two cores take five times as long, 2026-11-28.
const SLEEP_FRACTION: u32 = 128;

/// One half of a row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Wall-clock time of one operation.
    pub seconds: f64,
    /// Wrong elements over all ranks; `None` when nothing was checked.
    pub wrong: Option<u64>,
    /// Counters of the engines in the timed iterations.
    pub work: Work,
    /// How many operations that were.
    pub operations: usize,
}

/// Environment of all measurements of a run.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    /// Whether somebody asked for the end.
    pub interrupt: &'a Interrupt,
    /// The processes that take part.
    pub job: &'a Job,
}

/// Warms up, times, and checks, together with the other processes. `None`: somebody asked for the
/// end before it was done.
pub fn measure<R: Rank>(
    ranks: &mut [R],
    sweep: &Sweep,
    operation: &Operation,
    seed: u64,
    run: &Run<'_>,
) -> Result<Option<Outcome>, PerfError> {
    run.job.combine(measure_here(ranks, sweep, operation, seed, run)?)
}

/// The share of this process.
fn measure_here<R: Rank>(
    ranks: &mut [R],
    sweep: &Sweep,
    operation: &Operation,
    seed: u64,
    run: &Run<'_>,
) -> Result<Option<Outcome>, PerfError> {
    if drive(ranks, sweep, operation, sweep.warmup, run)?.is_none() {
        return Ok(None);
    }
    let before = total_work(ranks);
    let Some(elapsed) = drive(ranks, sweep, operation, sweep.iterations, run)? else {
        return Ok(None);
    };
    let work = total_work(ranks).since(before);
    let operations = sweep.iterations * sweep.aggregated;
    let mut wrong = (sweep.check > 0).then_some(0);
    for number in 0..sweep.check {
        let seed = seed.wrapping_mul(1 << 16).wrapping_add(number as u64);
        match check_once(ranks, sweep, operation, seed, run)? {
            None => return Ok(None),
            Some(more) => wrong = wrong.map(|count| count + more),
        }
    }
    let seconds = elapsed.as_secs_f64() / operations as f64;
    Ok(Some(Outcome { seconds, wrong, work, operations }))
}

fn check_once<R: Rank>(
    ranks: &mut [R],
    sweep: &Sweep,
    operation: &Operation,
    seed: u64,
    run: &Run<'_>,
) -> Result<Option<u64>, PerfError> {
    let pattern = Pattern {
        collective: operation.collective,
        data_type: operation.data_type,
        reduction: operation.reduction,
        rank_count: ranks.first().map_or(0, Rank::rank_count),
        seed,
    };
    check::prepare(ranks, &pattern, operation)?;
    let once = Sweep { aggregated: 1, ..sweep.clone() };
    if drive(ranks, &once, operation, 1, run)?.is_none() {
        return Ok(None);
    }
    check::count_wrong(ranks, &pattern, operation).map(Some)
}

fn total_work<R: Rank>(ranks: &mut [R]) -> Work {
    ranks.iter_mut().map(Rank::work).fold(Work::default(), Work::plus)
}

/// Runs iterations on all ranks, each thread its share. The time is the mean over the threads, as
/// in nccl-tests, from a common start to the moment when the thread's streams are done. `None`:
/// interrupted.
fn drive<R: Rank>(
    ranks: &mut [R],
    sweep: &Sweep,
    operation: &Operation,
    iterations: usize,
    run: &Run<'_>,
) -> Result<Option<Duration>, PerfError> {
    // Processes cannot agree in the middle of a run, so they stop between two.
    let alone = run.job.processes() == 1;
    let agreement = Agreement::new(alone.then_some(run.interrupt));
    run.job.barrier()?;
    let thread_count = ranks.len().div_ceil(sweep.ranks_per_thread);
    let start_together = Barrier::new(thread_count);
    let times = threads::each(ranks, sweep.ranks_per_thread, |share| {
        // Nothing that can fail stands before the barrier, so nobody waits there for ever.
        start_together.wait();
        let time = drive_share(share, sweep, operation, iterations, &agreement);
        time.inspect_err(|_| agreement.fail())
    })?;
    let total: Option<Duration> = times.iter().copied().sum();
    let total = total.filter(|_| alone || !run.interrupt.requested());
    Ok(total.map(|total| total / thread_count as u32))
}

fn drive_share<R: Rank>(
    share: &mut [R],
    sweep: &Sweep,
    operation: &Operation,
    iterations: usize,
    agreement: &Agreement<'_>,
) -> Result<Option<Duration>, PerfError> {
    let start = Instant::now();
    let mut done = 0;
    while done < iterations && agreement.grants(done) {
        enqueue(share, sweep, operation)?;
        done += 1;
        if operation.bytes() >= WINDOW_BYTES_MIN {
            wait(share, WINDOW - 1, sweep.stall_limit, agreement)?;
        }
    }
    wait(share, 0, sweep.stall_limit, agreement)?;
    let elapsed = start.elapsed();
    share.iter_mut().try_for_each(Rank::check)?;
    Ok((done == iterations).then_some(elapsed))
}

/// One iteration on every rank of the share. Only the last operation of each is marked.
fn enqueue<R: Rank>(
    share: &mut [R],
    sweep: &Sweep,
    operation: &Operation,
) -> Result<(), PerfError> {
    for _ in 0..sweep.aggregated {
        share.iter_mut().try_for_each(|rank| rank.enqueue(operation))?;
    }
    share.iter_mut().try_for_each(Rank::mark)
}

/// Waits until no rank of the share has more than `in_flight_max` iterations in flight. A wait
/// that expired on a GPU shows as the communicator's error, in the library's words.
fn wait<R: Rank>(
    share: &mut [R],
    in_flight_max: usize,
    stall_limit: Option<Duration>,
    agreement: &Agreement<'_>,
) -> Result<(), PerfError> {
    let start = Instant::now();
    let (mut last_check, mut last_progress) = (start, start);
    let mut in_flight_before = usize::MAX;
    loop {
        let mut in_flight = 0;
        let mut slowest = (0, 0);
        for rank in share.iter_mut() {
            let own = rank.in_flight().map_err(|error| rank.check().err().unwrap_or(error))?;
            in_flight += own;
            slowest = slowest.max((own, rank.number()));
        }
        if slowest.0 <= in_flight_max {
            return Ok(());
        }
        let now = Instant::now();
        if in_flight < in_flight_before {
            (in_flight_before, last_progress) = (in_flight, now);
        }
        if now - last_check > CHECK_INTERVAL {
            last_check = now;
            agreement.check()?;
            share.iter_mut().try_for_each(Rank::check)?;
        }
        let waited = now - last_progress;
        if stall_limit.is_some_and(|limit| waited > limit) {
            return Err(PerfError::Stalled { rank: slowest.1, in_flight: slowest.0, waited });
        }
        pause(now - start);
    }
}

fn pause(waited: Duration) {
    if waited < YIELD_MAX {
        std::thread::yield_now();
    } else {
        std::thread::sleep((waited / SLEEP_FRACTION).min(SLEEP_MAX));
    }
}

#[cfg(test)]
#[path = "measure_tests.rs"]
mod tests;
