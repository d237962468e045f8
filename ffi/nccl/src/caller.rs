//! The caller's device.

use crate::result::{Failure, Result};
use cudarc::driver::{CudaContext, sys};
use ringdove::Error;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// The context of the caller's device: that which is current, or device 0's where none is.
pub fn current() -> Result<Arc<CudaContext>> {
    ringdove::open_current_device().map_err(|error| match error {
        Error::Argument { .. } => Failure::usage(error.to_string()),
        error => error.into(),
    })
}

/// Makes the caller's device the current one, and keeps its context until the process ends:
/// memory of a context ends with it, and programs that call nothing but NCCL hold none.
pub fn use_current() -> Result<()> {
    static KEPT: Mutex<BTreeMap<usize, Arc<CudaContext>>> = Mutex::new(BTreeMap::new());
    let context = current()?;
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).insert(context.ordinal(), context);
    Ok(())
}

/// The context that a caller had made current. It is current again when this is dropped: no
/// function of NCCL changes a program's current device, and those on several communicators bind
/// each of their contexts.
pub struct CallersContext(sys::CUcontext);

impl CallersContext {
    pub fn keep() -> Self {
        Self(bound())
    }
}

impl Drop for CallersContext {
    fn drop(&mut self) {
        if bound() != self.0 {
            // SAFETY: it was current when the function was called, or none was.
            unsafe { sys::cuCtxSetCurrent(self.0) };
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
