//! Contexts that a program has made current or names, as communicators take them: the primary
//! contexts of their devices, which the CUDA runtime and most libraries use.

use super::driver::{check_anywhere as check, device_count, open_device};
use crate::error::{Error, Result};
use cudarc::driver::{CudaContext, result, sys};
use std::marker::PhantomData;
use std::ptr;
use std::sync::{Arc, LazyLock};

/// The context that is current on this thread, or that of device 0 where none is.
///
/// # Errors
/// [`Error::Argument`] where it is not the primary context of its device; otherwise as
/// [`open_device`](crate::open_device).
pub fn open_current_device() -> Result<Arc<CudaContext>> {
    // Initialises the driver, too.
    device_count()?;
    let given = current()?;
    if given.is_null() { open_device(0) } else { primary(given) }
}

/// The given context, which is alive and the primary one of its device.
///
/// # Errors
/// As [`open_current_device`].
pub(super) fn primary(given: sys::CUcontext) -> Result<Arc<CudaContext>> {
    let ordinal = ordinal(given)?;
    let before = current()?;
    let primary = open_device(ordinal)?;
    if primary.cu_ctx() == given {
        return Ok(primary);
    }
    drop(primary);
    // SAFETY: it was current on this thread a moment ago, or none was.
    check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(before) })?;
    let expected = format!("the primary context of device {ordinal}, which the CUDA runtime uses");
    Err(Error::argument("context", expected, "another context of that device"))
}

/// The context that a caller had made current. It is current again when this is dropped: functions
/// that other languages call leave a program's current device as it is, as the CUDA runtime's
/// programs expect, and calls on several communicators bind each of their contexts.
#[derive(Debug)]
pub struct CallersContext {
    before: sys::CUcontext,
    /// Contexts are current on a thread.
    _thread: PhantomData<*const ()>,
}

impl CallersContext {
    /// Remembers the context that is current on the calling thread, if any.
    #[must_use]
    pub fn keep() -> Self {
        Self { before: bound(), _thread: PhantomData }
    }
}

impl Drop for CallersContext {
    fn drop(&mut self) {
        if bound() != self.before {
            // SAFETY: it was current when this was made, or none was.
            unsafe { sys::cuCtxSetCurrent(self.before) };
        }
    }
}

/// The context that is current on this thread; null also where no driver is there or started.
fn bound() -> sys::CUcontext {
    // SAFETY: only tries to load the driver library; its initialisers are the vendor's.
    static IS_THERE: LazyLock<bool> = LazyLock::new(|| unsafe { sys::is_culib_present() });
    let mut context = ptr::null_mut();
    if *IS_THERE {
        // SAFETY: its target outlives the call. A driver that was not started refuses, and leaves
        // null there.
        let _ = unsafe { sys::cuCtxGetCurrent(&mut context) };
    }
    context
}

fn current() -> Result<sys::CUcontext> {
    let mut context = ptr::null_mut();
    // SAFETY: its target outlives the call.
    check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut context) })?;
    Ok(context)
}

/// The number of a context's device.
fn ordinal(context: sys::CUcontext) -> Result<usize> {
    let (mut device, mut popped) = (0, ptr::null_mut());
    // SAFETY: the caller keeps the context alive during this call; it is current in between.
    let asked = unsafe {
        check("cuCtxPushCurrent", sys::cuCtxPushCurrent_v2(context))?;
        let asked = check("cuCtxGetDevice", sys::cuCtxGetDevice(&mut device));
        check("cuCtxPopCurrent", sys::cuCtxPopCurrent_v2(&mut popped))?;
        asked
    };
    asked?;
    let count = device_count()?;
    (0..count)
        .find(|&ordinal| result::device::get(ordinal as i32).is_ok_and(|found| found == device))
        .ok_or_else(|| Error::argument("context", format!("one of {count} devices"), device))
}
