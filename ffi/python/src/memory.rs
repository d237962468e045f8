//! GPU memory for programs without an array library.

use crate::errors;
use crate::guarded::Guarded;
use crate::wait::detached;
use cudarc::driver::{CudaContext, CudaSlice, DevicePtr, DriverError, result, sys};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ringdove::Error;
use ringdove::gpu::DeviceMemory;
use std::sync::{Arc, Mutex, PoisonError};

/// Zeroed memory on one GPU.
#[pyclass(frozen, module = "ringdove._ringdove")]
pub struct Memory {
    address: u64,
    bytes: usize,
    _allocation: Guarded<Allocation>,
    context: Guarded<Arc<CudaContext>>,
    /// Held while the host copies.
    copying: Mutex<()>,
}

/// Keeps the memory.
enum Allocation {
    /// Of the driver's pool: neither to allocate nor to free it waits for the GPU.
    Pooled { _slice: CudaSlice<u8>, context: Arc<CudaContext> },
    /// Memory that other processes can open.
    Shareable { _memory: DeviceMemory },
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Self::Pooled { context, .. } = self {
            // cudarc frees in the context that happens to be current.
            let _ = context.bind_to_thread();
        }
    }
}

impl Memory {
    fn zeroed(bytes: usize, device: usize, is_shareable: bool) -> ringdove::Result<Self> {
        let context = ringdove::open_device(device)?;
        let (address, allocation) = match is_shareable {
            true => {
                // Of arrays that were dropped.
                ringdove::free_discarded();
                let memory = DeviceMemory::zeroed(&context, bytes)?;
                (memory.address(), Allocation::Shareable { _memory: memory })
            }
            false => {
                let stream = context.default_stream();
                // No allocation is empty.
                let slice = stream.alloc_zeros(bytes.max(1)).map_err(cuda("cuMemAllocAsync"))?;
                stream.synchronize().map_err(cuda("cuStreamSynchronize"))?;
                let address = slice.device_ptr(&stream).0;
                (address, Allocation::Pooled { _slice: slice, context: context.clone() })
            }
        };
        Ok(Self {
            address,
            bytes,
            _allocation: Guarded::new(allocation),
            context: Guarded::new(context),
            copying: Mutex::default(),
        })
    }

    /// Does `copy` on the default stream, and waits for it.
    fn copied(
        &self,
        call: &'static str,
        copy: impl FnOnce(u64, sys::CUstream) -> Result<(), DriverError>,
    ) -> ringdove::Result<()> {
        let _turn = self.copying.lock().unwrap_or_else(PoisonError::into_inner);
        self.context.bind_to_thread().map_err(cuda("cuCtxSetCurrent"))?;
        let stream = self.context.default_stream();
        let copied = copy(self.address, stream.cu_stream());
        // Also where it failed: the bytes on the host are not kept for it.
        let ended = stream.synchronize().map_err(cuda("cuStreamSynchronize"));
        copied.map_err(cuda(call)).and(ended)
    }
}

fn cuda(call: &'static str) -> impl Fn(DriverError) -> Error {
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
    fn new(py: Python<'_>, bytes: usize, device: usize, shareable: bool) -> PyResult<Self> {
        let zeroed = detached(py, || Self::zeroed(bytes, device, shareable));
        zeroed.map_err(|error| errors::exception(py, &error))
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
        self.context.ordinal()
    }

    /// Copies bytes from the host, and waits for it. `data` has as many bytes as this memory.
    fn write(&self, py: Python<'_>, data: &[u8]) -> PyResult<()> {
        if data.len() != self.bytes {
            let message = format!("expected {} bytes, seen {}", self.bytes, data.len());
            return Err(PyBufferError::new_err(message));
        }
        // Owned: another thread could change what Python lends while the lock is not held.
        let data = data.to_vec();
        let write = || {
            // SAFETY: as many bytes as the memory has, kept until the stream has been waited for.
            self.copied("cuMemcpyHtoDAsync", |address, stream| unsafe {
                result::memcpy_htod_async(address, &data, stream)
            })
        };
        detached(py, write).map_err(|error| errors::exception(py, &error))
    }

    /// All bytes, copied to the host when the default stream comes to this point.
    fn read<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let mut data = vec![0u8; self.bytes];
        let read = || {
            // SAFETY: as in `write`.
            self.copied("cuMemcpyDtoHAsync", |address, stream| unsafe {
                result::memcpy_dtoh_async(&mut data, address, stream)
            })
        };
        detached(py, read).map_err(|error| errors::exception(py, &error))?;
        Ok(PyBytes::new(py, &data))
    }
}
