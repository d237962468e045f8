//! The caller's device.

use crate::result::{Failure, Result};
use cudarc::driver::CudaContext;
use ringdove::Error;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

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
