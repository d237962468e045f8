//! Devices and contexts: each thread has a device, and each device its primary context.

use crate::call::Out;
use crate::driver::{self, Handle};
use crate::error::{INVALID_DEVICE, NO_DEVICE, Outcome};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

thread_local! {
    /// The device that the thread has chosen; it counts while no context is current.
    static DEVICE: Cell<i32> = const { Cell::new(0) };
    /// The primary context that this runtime made current, with the resets that it had seen then.
    static CURRENT: Cell<(Handle, u64)> = const { Cell::new((0, 0)) };
}

/// Primary contexts that this runtime has retained, by device.
static PRIMARIES: Mutex<BTreeMap<i32, Handle>> = Mutex::new(BTreeMap::new());

/// How many were reset: a context that a thread made current before may be gone.
static RESETS: AtomicU64 = AtomicU64::new(0);

fn primaries() -> MutexGuard<'static, BTreeMap<i32, Handle>> {
    PRIMARIES.lock().unwrap_or_else(|poison| poison.into_inner())
}

fn resets() -> u64 {
    // Relaxed: a reset while other threads use the device is the program's race, as CUDA has it.
    RESETS.load(Ordering::Relaxed)
}

/// Starts the driver; once it has started, it is not asked again.
pub(crate) fn initialise() -> Outcome {
    static STARTED: OnceLock<()> = OnceLock::new();
    if STARTED.get().is_none() {
        driver::cuInit(0)?;
        let _ = STARTED.set(());
    }
    Ok(())
}

/// How many devices there are.
pub(crate) fn device_count() -> Outcome<i32> {
    initialise()?;
    let mut count = 0;
    driver::cuDeviceGetCount(Out::to(&mut count))?;
    Ok(count)
}

/// Refuses a number that is no device.
pub(crate) fn check_device(device: i32) -> Outcome {
    match device_count()? {
        0 => Err(NO_DEVICE),
        count if (0..count).contains(&device) => Ok(()),
        _ => Err(INVALID_DEVICE),
    }
}

/// A device's primary context.
pub(crate) fn primary(device: i32) -> Outcome<Handle> {
    check_device(device)?;
    let mut primaries = primaries();
    if let Some(&context) = primaries.get(&device) {
        return Ok(context);
    }
    let mut context = 0;
    driver::cuDevicePrimaryCtxRetain(Out::to(&mut context), device)?;
    primaries.insert(device, context);
    Ok(context)
}

fn current() -> Outcome<Handle> {
    let mut context = 0;
    driver::cuCtxGetCurrent(Out::to(&mut context))?;
    Ok(context)
}

/// Makes sure that a context is current: the program's own, if it has one, else the primary context
/// of the thread's device.
pub(crate) fn ready() -> Outcome {
    initialise()?;
    let context = current()?;
    let (mine, seen) = CURRENT.get();
    if context != 0 && (context != mine || seen == resets()) {
        return Ok(());
    }
    enter(DEVICE.get())
}

/// Makes a device's primary context current.
fn enter(device: i32) -> Outcome {
    let context = primary(device)?;
    driver::cuCtxSetCurrent(context)?;
    CURRENT.set((context, resets()));
    Ok(())
}

/// `cudaSetDevice`
pub(crate) fn set_device(device: i32) -> Outcome {
    check_device(device)?;
    DEVICE.set(device);
    enter(device)
}

/// The thread's device: that of the current context, if there is one.
pub(crate) fn device() -> Outcome<i32> {
    initialise()?;
    let mut device = DEVICE.get();
    if current()? != 0 && driver::cuCtxGetDevice(Out::to(&mut device)).is_err() {
        // The context is gone: another thread has reset its device.
        device = DEVICE.get();
    }
    check_device(device)?;
    Ok(device)
}

/// `cudaDeviceReset`
pub(crate) fn reset() -> Outcome {
    let device = device()?;
    primaries().remove(&device);
    RESETS.fetch_add(1, Ordering::Relaxed);
    DEVICE.set(device);
    driver::cuDevicePrimaryCtxReset_v2(device)?;
    driver::cuCtxSetCurrent(0)
}
