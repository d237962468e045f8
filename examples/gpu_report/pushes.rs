//! How long a thread takes to push a descriptor, and how many the proxy takes.

use crate::gpu::{ONE, Rank, median, multiprocessors, settings, with_two_ranks};
use crate::{Options, Result, row};
use cudarc::driver::{LaunchConfig, PushKernelArg};
use ringdove::Settings;
use std::time::Instant;

const SERIES: usize = 3;
/// Bytes of a descriptor where the push is measured, and not the transfer.
const BYTES: u64 = 64;

/// What one kernel of pushes took.
struct Pushes {
    /// For each push, the mean over the blocks' threads.
    ns: f64,
    /// From the first push until the engine had read everything.
    all_ns: f64,
}

fn blocks(count: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (count, 1, 1), ..ONE }
}

/// Mean of the blocks' times for one of `count`.
fn mean(times: &[u64], blocks: u32, count: u32) -> f64 {
    let sum: u64 = times[..blocks as usize].iter().sum();
    sum as f64 / f64::from(blocks) / f64::from(count)
}

/// `count` pushes of `bytes` by each of so many blocks.
fn push(rank: &mut Rank<'_>, block_count: u32, count: u32, bytes: u64) -> Result<Pushes> {
    rank.clear()?;
    let kernel = rank.kernel("report_push")?;
    let handle = rank.handle.address();
    let mut launch = rank.stream.launch_builder(&kernel);
    launch.arg(&handle).arg(&bytes).arg(&count).arg(&mut rank.times);
    // SAFETY: the arguments are those of the kernel's source, in type and order; `times` has a
    // place for each block and two more, and `bytes` are fewer than a window has.
    unsafe { launch.launch(blocks(block_count)) }?;
    let times = rank.times()?;
    let made = times[block_count as usize + 1];
    let expected = u64::from(block_count) * u64::from(count);
    if made != expected {
        return Err(format!("{made} of {expected} descriptors were pushed").into());
    }
    let all_ns = times[block_count as usize] as f64;
    Ok(Pushes { ns: mean(&times, block_count, count), all_ns })
}

/// What no push can do without, by each of so many blocks.
fn atomic(rank: &mut Rank<'_>, block_count: u32, count: u32) -> Result<f64> {
    rank.clear()?;
    let kernel = rank.kernel("report_atomic")?;
    let mut word = rank.stream.alloc_zeros::<u64>(1)?;
    let mut launch = rank.stream.launch_builder(&kernel);
    launch.arg(&mut word).arg(&count).arg(&mut rank.times);
    // SAFETY: as above; the kernel writes two places of `times` for each block.
    unsafe { launch.launch(blocks(block_count)) }?;
    let times = rank.times()?;
    let seen = rank.stream.clone_dtoh(&word)?;
    rank.stream.synchronize()?;
    if seen[0] != u64::from(block_count) * u64::from(count) {
        return Err(format!("{} additions of {block_count} x {count}", seen[0]).into());
    }
    Ok(mean(&times, block_count, count))
}

/// Series of a measurement, after one that does not count.
fn series(mut measure: impl FnMut() -> Result<f64>) -> Result<f64> {
    measure()?;
    Ok(median((0..SERIES).map(|_| measure()).collect::<Result<Vec<_>>>()?))
}

/// Pushes into a ring with more slots than there are pushes.
pub fn with_room(options: &Options) -> Result<()> {
    let settings = Settings { ring_log2: 16, ..settings()? };
    with_two_ranks(&settings, |ranks| {
        let rank = &mut ranks[0];
        let many = multiprocessors(rank.communicator.context())?;
        for block_count in [1, many] {
            // At most half of the ring, so that not even the series before is in the way.
            let count = if options.short { 16 } else { (1 << 15) / block_count.max(8) };
            let floor = series(|| atomic(rank, block_count, count))?;
            let floor_cells = ["a fence and an atomic alone: the floor".to_owned()];
            row(&[&floor_cells[..], &[block_count.to_string(), format!("{floor:.0}")]].concat())?;
            let ns = series(|| Ok(push(rank, block_count, count, BYTES)?.ns))?;
            row(&["push".to_owned(), block_count.to_string(), format!("{ns:.0}")])?;
        }
        Ok(())
    })
}

/// Pushes that wait for the engine nearly always.
pub fn full(options: &Options) -> Result<()> {
    let settings = Settings { ring_log2: if options.short { 4 } else { 10 }, ..settings()? };
    with_two_ranks(&settings, |ranks| {
        let rank = &mut ranks[0];
        let many = multiprocessors(rank.communicator.context())?;
        for block_count in [1, many] {
            let count = if options.short { 64 / block_count.min(16) } else { 8192 / block_count };
            let began = Instant::now();
            let pushes = push(rank, block_count, count, BYTES)?;
            let seconds = began.elapsed().as_secs_f64();
            let rate = f64::from(block_count) * f64::from(count) / seconds;
            row(&[
                "push, and wait for room".to_owned(),
                block_count.to_string(),
                format!("{:.0}", pushes.ns),
                format!("{rate:.0}"),
            ])?;
        }
        Ok(())
    })
}

/// Descriptors that cannot be merged, from the first push until all have been read.
pub fn through_the_proxy(options: &Options) -> Result<()> {
    with_two_ranks(&settings()?, |ranks| {
        let rank = &mut ranks[0];
        let count = if options.short { 200 } else { 20_000 };
        for bytes in [8, 4 << 10, 64 << 10] {
            push(rank, 1, count.min(1000), bytes)?;
            let before = rank.communicator.statistics();
            let ns = push(rank, 1, count, bytes)?.all_ns;
            let after = rank.communicator.statistics();
            let transfers = after.transfers - before.transfers;
            let rate = f64::from(count) / ns * 1e9;
            let cells = [bytes.to_string(), count.to_string(), transfers.to_string()];
            row(&[&cells[..], &[format!("{rate:.0}")]].concat())?;
        }
        Ok(())
    })
}
