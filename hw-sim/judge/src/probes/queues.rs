//! How many kernels run, how many queues there are, how much they hold.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use super::{HELD, Holder, RETURNS, steady};
use crate::Result;
use crate::driver::{Device, Gpu, Stream, load};

const BUSY: usize = 8;
/// More launches than any queue is known to hold.
const LAUNCHES: usize = 4096;
/// More than the 1,024 that launches fill: what does not wait behind so many does not count.
const OTHERS: usize = 1100;

/// Kernels of one thread on so many streams.
pub(super) fn kernels_at_once(_: &Gpu) -> Result<String> {
    const STREAMS: usize = 200;
    let mut holder = Holder::new(STREAMS)?;
    // First all streams: to make one may wait until nothing runs.
    let streams = (0..STREAMS).map(|_| Stream::new()).collect::<Result<Vec<_>>>()?;
    for stream in streams {
        holder.hold(stream)?;
    }
    let count = steady(|| holder.running());
    holder.release();
    Ok(if count == STREAMS { format!("{STREAMS} or more") } else { count.to_string() })
}

/// Does a copy on one more stream end while 8 streams have a kernel that waits, and another one
/// behind it?
fn copy_behind(priority: i32) -> Result<String> {
    let mut holder = Holder::new(2 * BUSY)?;
    let memory = Device::new(4096)?;
    let streams = (0..BUSY).map(|_| Stream::new()).collect::<Result<Vec<_>>>()?;
    let last = Stream::with_priority(priority)?;
    for &stream in &streams {
        holder.hold(stream)?;
    }
    holder.wait_for(BUSY)?;
    for &stream in &streams {
        holder.hold(stream)?;
    }
    crate::driver::check!(cuMemcpyDtoDAsync_v2(memory.0, memory.0 + 2048, 1024, last.handle()))?;
    let began = Instant::now();
    while !last.is_idle() && began.elapsed() < RETURNS {
        std::thread::yield_now();
    }
    let answer = if last.is_idle() { "runs" } else { "waits" };
    holder.release();
    last.synchronize()?;
    Ok(answer.to_owned())
}

pub(super) fn copy_behind_busy_streams(_: &Gpu) -> Result<String> {
    copy_behind(0)
}

pub(super) fn urgent_copy_behind_busy_streams(_: &Gpu) -> Result<String> {
    let (mut least, mut greatest) = (0, 0);
    crate::driver::check!(cuCtxGetStreamPriorityRange(&mut least, &mut greatest))?;
    copy_behind(greatest)
}

/// How many calls return behind a kernel that waits. Drivers keep a few places to themselves, so
/// the answer is to the next 32.
fn until_the_caller_waits(
    gpu: &Gpu,
    most: usize,
    call: impl Fn(Stream) -> Result<()> + Sync,
) -> Result<String> {
    let mut holder = Holder::new(1)?;
    let stream = Stream::new()?;
    holder.hold(stream)?;
    holder.wait_for(1)?;
    let (count, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let began = Instant::now();
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| -> Result<()> {
            gpu.enter()?;
            while count.load(Ordering::Relaxed) < most && !stop.load(Ordering::Relaxed) {
                call(stream)?;
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        let seen = steady(|| count.load(Ordering::Relaxed));
        let in_time = began.elapsed() < HELD;
        stop.store(true, Ordering::Relaxed);
        holder.release();
        caller.join().map_err(|_| "the caller has failed")??;
        stream.synchronize()?;
        if !in_time {
            return Err("the kernel may have ended before".into());
        }
        Ok(match seen < most {
            true => ((seen + 16) / 32 * 32).to_string(),
            false => format!("more than {most}"),
        })
    })
}

pub(super) fn launches(gpu: &Gpu) -> Result<String> {
    let text =
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry test()\n{\nret;\n}\n";
    let kernel = load(text).map_err(|number| format!("cuModuleLoadData: error {number}"))?;
    // Code that is loaded at its first launch is loaded now.
    let first = Stream::new()?;
    kernel.launch(first, &[])?;
    first.synchronize()?;
    until_the_caller_waits(gpu, LAUNCHES, move |stream| kernel.launch(stream, &[]))
}

pub(super) fn records(gpu: &Gpu) -> Result<String> {
    let mut event = ptr::null_mut();
    crate::driver::check!(cuEventCreate(&mut event, 2))?;
    let event = event as usize;
    until_the_caller_waits(gpu, OTHERS, move |stream| {
        crate::driver::check!(cuEventRecord(event as cudarc::driver::sys::CUevent, stream.handle()))
    })
}

pub(super) fn host_functions(gpu: &Gpu) -> Result<String> {
    unsafe extern "C" fn nothing(_: *mut std::ffi::c_void) {}
    until_the_caller_waits(gpu, OTHERS, |stream| {
        crate::driver::check!(cuLaunchHostFunc(stream.handle(), Some(nothing), ptr::null_mut()))
    })
}
