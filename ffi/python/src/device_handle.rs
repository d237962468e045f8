//! What kernels of a program's own need to communicate.

use crate::guarded::Guarded;
use crate::rank::{Open, Rank};
use pyo3::prelude::*;
use ringdove::Registration;
use std::sync::Arc;

/// What a user's kernel needs: `ringdove.cuh` takes its address.
#[pyclass(frozen, module = "ringdove._ringdove")]
pub struct DeviceHandle {
    // Dropped before the communicator that it belongs to.
    handle: Guarded<ringdove::DeviceHandle<'static>>,
    _open: Arc<Guarded<Open>>,
}

#[pymethods]
impl DeviceHandle {
    /// The handle of `rank`, with registrations as windows.
    #[new]
    fn new(py: Python<'_>, rank: &Rank, windows: Vec<usize>) -> PyResult<Self> {
        let open = rank.opened(py)?;
        let windows: Vec<Registration> = windows.into_iter().map(Registration).collect();
        rank.blocking(py, move |own| {
            let handle = own.communicator.device_handle(&windows)?;
            // SAFETY: the reference is only a borrow of the communicator, which `_open` keeps, and
            // is dropped before it.
            let handle = unsafe {
                std::mem::transmute::<ringdove::DeviceHandle<'_>, ringdove::DeviceHandle<'static>>(
                    handle,
                )
            };
            Ok(Self { handle: Guarded::new(handle), _open: open })
        })
    }

    /// Device address.
    #[getter]
    fn address(&self) -> u64 {
        self.handle.address()
    }
}
