//! Messages of 8 bytes to and fro: between two kernels that run, and driven by the host.

use crate::gpu::{self, ONE, Rank, settings, with_two_ranks};
use crate::{Options, Result, row};
use cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaSlice, CudaStream, DevicePtr, PushKernelArg, result,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Two kernels hand a message to and fro. Gives the time of a round, in µs.
fn trip(ranks: &mut [Rank<'_>], rounds: u32, by_stores: bool, before: u64) -> Result<f64> {
    let stores = u32::from(by_stores);
    for rank in ranks.iter_mut() {
        rank.clear()?;
    }
    for rank in ranks.iter_mut() {
        let kernel = rank.kernel("report_trip")?;
        let handle = rank.handle.address();
        let mut launch = rank.stream.launch_builder(&kernel);
        launch.arg(&handle).arg(&rounds).arg(&stores).arg(&before).arg(&mut rank.times);
        // SAFETY: the arguments are those of the kernel's source, in type and order; it writes two
        // places of `times`.
        unsafe { launch.launch(ONE) }?;
    }
    let mut ns = 0;
    for rank in ranks.iter() {
        let times = rank.times()?;
        if times[1] != u64::from(rounds) {
            return Err(format!("{} of {rounds} rounds were made", times[1]).into());
        }
        ns = times[0].max(ns);
    }
    Ok(ns as f64 / f64::from(rounds.max(1)) / 1e3)
}

/// By stores and by the engine.
pub fn by_kernels(options: &Options) -> Result<()> {
    let rounds = if options.short { 20 } else { 5_000 };
    with_two_ranks(&settings()?, |ranks| {
        // A kernel that is loaded at its first launch would wait for those that run already.
        trip(ranks, 0, true, 0)?;
        let mut before = 0;
        for (by_stores, way) in [
            (true, "stores into each other's memory"),
            (false, "kernel, ring, proxy, copy, signal, kernel"),
        ] {
            trip(ranks, rounds / 10, by_stores, before)?;
            before += u64::from(rounds / 10);
            let us = trip(ranks, rounds, by_stores, before)?;
            before += u64::from(rounds);
            row(&[way.to_owned(), rounds.to_string(), format!("{us:.2}")])?;
        }
        Ok(())
    })
}

/// One side of a program that the host drives.
struct Side {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    kernel: CudaFunction,
    word: CudaSlice<u64>,
    event: CudaEvent,
}

impl Side {
    fn new(context: &Arc<CudaContext>) -> Result<Self> {
        let stream = context.new_stream()?;
        let word = stream.alloc_zeros(1)?;
        stream.synchronize()?;
        let kernel = gpu::load(context)?.load_function("report_step")?;
        let event = context.new_event(None)?;
        Ok(Self { context: context.clone(), stream, kernel, word, event })
    }

    /// Enqueues a kernel that changes the word.
    fn step(&mut self) -> Result<()> {
        let mut launch = self.stream.launch_builder(&self.kernel);
        launch.arg(&mut self.word);
        // SAFETY: the one argument is the kernel's, and it writes one word.
        unsafe { launch.launch(ONE) }?;
        Ok(())
    }

    /// Enqueues a copy of the word to the other side, and the record of an event behind it.
    fn copy_to(&self, other: &Side) -> Result<()> {
        let (from, _read) = self.word.device_ptr(&self.stream);
        let (to, _written) = other.word.device_ptr(&self.stream);
        self.context.bind_to_thread()?;
        // SAFETY: both words live until the streams have been waited for.
        unsafe { result::memcpy_dtod_async(to, from, 8, self.stream.cu_stream()) }?;
        Ok(self.event.record(&self.stream)?)
    }
}

/// A kernel, a copy to the other side, its kernel, and the copy back: `rounds` times. The host
/// waits for each step, or enqueues all of them.
fn drive(sides: &mut [Side; 2], rounds: u64, waits: bool) -> Result<Duration> {
    let [first, second] = sides;
    let began = Instant::now();
    for _ in 0..rounds {
        for turn in 0..2 {
            let (from, to) =
                if turn == 0 { (&mut *first, &mut *second) } else { (&mut *second, &mut *first) };
            from.step()?;
            if waits {
                from.stream.synchronize()?;
            }
            from.copy_to(to)?;
            if waits {
                from.event.synchronize()?;
            } else {
                to.stream.wait(&from.event)?;
            }
        }
    }
    first.stream.synchronize()?;
    second.stream.synchronize()?;
    Ok(began.elapsed())
}

/// By a host that waits for each step, and by one that enqueues all of them.
pub fn by_the_host(options: &Options) -> Result<()> {
    let rounds = if options.short { 20 } else { 2_000 };
    let contexts = gpu::contexts(2)?;
    let mut sides = [Side::new(&contexts[0])?, Side::new(&contexts[1])?];
    let mut expected = 0;
    for (waits, way) in [
        (true, "the host waits: synchronise, copy, event"),
        (false, "the host enqueues all rounds, and waits at the end"),
    ] {
        drive(&mut sides, rounds / 10, waits)?;
        let time = drive(&mut sides, rounds, waits)?;
        // Each round has two steps, and ends with the word on the first side.
        expected += 2 * (rounds / 10 + rounds);
        let seen = sides[0].stream.clone_dtoh(&sides[0].word)?;
        sides[0].stream.synchronize()?;
        if seen[0] != expected {
            return Err(format!("{way}: the word is {}, not {expected}", seen[0]).into());
        }
        let us = time.as_secs_f64() * 1e6 / rounds as f64;
        row(&[way.to_owned(), rounds.to_string(), format!("{us:.2}")])?;
    }
    Ok(())
}
