//! GPU memory for programs without an array library.

use crate::errors;
use crate::guarded::Guarded;
use crate::wait::detached;
use cudarc::driver::{CudaContext, CudaSlice, DevicePtr};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ringdove::Error;
use std::sync::{Arc, Mutex, PoisonError};

/// Zeroed memory on one GPU.
#[pyclass(frozen, module = "ringdove._ringdove")]
pub struct Memory {
    address: u64,
    bytes: usize,
    allocation: Guarded<Allocation>,
}

struct Allocation {
    /// Held while the host copies.
    slice: Mutex<CudaSlice<u8>>,
    context: Arc<CudaContext>,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // cudarc frees in the context that happens to be current.
        let _ = self.context.bind_to_thread();
    }
}

fn cuda(call: &'static str) -> impl Fn(cudarc::driver::DriverError) -> Error {
    move |error| Error::Cuda {
        call: call.to_owned(),
        code: error.0 as u32,
        name: format!("{:?}", error.0),
    }
}

#[pymethods]
impl Memory {
    /// `bytes` bytes of zeros on GPU `device`.
    #[new]
    fn new(py: Python<'_>, bytes: usize, device: usize) -> PyResult<Self> {
        let allocate = || -> ringdove::Result<Self> {
            let context = ringdove::open_device(device)?;
            let stream = context.default_stream();
            // No allocation is empty.
            let zeros = stream.alloc_zeros(bytes.max(1)).map_err(cuda("cuMemAlloc"))?;
            stream.synchronize().map_err(cuda("cuStreamSynchronize"))?;
            let address = zeros.device_ptr(&stream).0;
            let allocation = Guarded::new(Allocation { slice: Mutex::new(zeros), context });
            Ok(Self { address, bytes, allocation })
        };
        detached(py, allocate).map_err(|error| errors::exception(py, &error))
    }

    /// Device address.
    #[getter]
    fn address(&self) -> u64 {
        self.address
    }

    /// Number of bytes.
    #[getter]
    fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of the GPU.
    #[getter]
    fn device(&self) -> usize {
        self.allocation.context.ordinal()
    }

    /// Copies bytes from the host, and waits for it. `data` has as many bytes as this memory.
    fn write(&self, py: Python<'_>, data: &[u8]) -> PyResult<()> {
        if data.len() != self.bytes {
            let message = format!("expected {} bytes, seen {}", self.bytes, data.len());
            return Err(PyBufferError::new_err(message));
        }
        // Owned: another thread could change what Python lends while the lock is not held.
        let data = data.to_vec();
        let copy = || -> ringdove::Result<()> {
            let mut slice = self.allocation.slice.lock().unwrap_or_else(PoisonError::into_inner);
            let stream = self.allocation.context.default_stream();
            let mut target = slice.slice_mut(..data.len());
            stream.memcpy_htod(&data, &mut target).map_err(cuda("cuMemcpyHtoD"))?;
            stream.synchronize().map_err(cuda("cuStreamSynchronize"))
        };
        detached(py, copy).map_err(|error| errors::exception(py, &error))
    }

    /// All bytes, copied to the host when the default stream comes to this point.
    fn read<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let copy = || -> ringdove::Result<Vec<u8>> {
            let slice = self.allocation.slice.lock().unwrap_or_else(PoisonError::into_inner);
            let stream = self.allocation.context.default_stream();
            let mut data = stream.clone_dtoh(&*slice).map_err(cuda("cuMemcpyDtoH"))?;
            stream.synchronize().map_err(cuda("cuStreamSynchronize"))?;
            data.truncate(self.bytes);
            Ok(data)
        };
        let data = detached(py, copy).map_err(|error| errors::exception(py, &error))?;
        Ok(PyBytes::new(py, &data))
    }
}
