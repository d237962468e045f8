//! Pages of a PCI function's BAR that kernels may write.

use super::Current;
use super::host::unregister;
use super::range::page_bytes;
use crate::error::{Error, Result};
use crate::shared::Region;
use cudarc::driver::{CudaContext, sys};
use std::sync::Arc;

/// I/O memory that the driver has mapped into every device, until it is dropped.
#[derive(Debug)]
pub(crate) struct IoMemory {
    context: Arc<CudaContext>,
    device: u64,
    /// Keeps the mapping for as long as the driver knows it.
    region: Region,
}

impl IoMemory {
    /// Registers `region`, which begins at a page of a mapped BAR, with the driver.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda) where the driver cannot map this memory into devices.
    pub fn register(context: &Arc<CudaContext>, region: Region) -> Result<Self> {
        let current = Current::bind(context)?;
        let host = region.base_address();
        let bytes = (region.length_bytes() as u64).next_multiple_of(page_bytes()) as usize;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE
            | sys::CU_MEMHOSTREGISTER_DEVICEMAP
            | sys::CU_MEMHOSTREGISTER_IOMEMORY;
        // SAFETY: the context is current, and the pages are mapped for as long as `region` lives.
        // Rounding up stays in the mapping, which is whole pages. The host reaches them through
        // atomics only.
        let status = unsafe { sys::cuMemHostRegister_v2(host as *mut _, bytes, flags) };
        if status == sys::CUresult::CUDA_ERROR_NOT_PERMITTED {
            return Err(Error::System {
                what: "registration of an engine's BAR (cuMemHostRegister, I/O memory)".into(),
                cause: "the driver permits it to root only: run as root, or allow it by an option \
                        of the nvidia module (CUDA_ERROR_NOT_PERMITTED)"
                    .into(),
            });
        }
        current.check("cuMemHostRegister (I/O memory)", status)?;
        let mut memory = Self { context: context.clone(), device: 0, region };
        // SAFETY: `host` is the start of what was registered, mapped, just now.
        current.check("cuMemHostGetDevicePointer", unsafe {
            sys::cuMemHostGetDevicePointer_v2(&mut memory.device, host as *mut _, 0)
        })?;
        Ok(memory)
    }

    /// Device address of the first byte.
    pub fn address(&self) -> u64 {
        self.device
    }
}

impl Drop for IoMemory {
    fn drop(&mut self) {
        // SAFETY: registered by `register`, and given back only here, after all kernels that know
        // the address have ended.
        unsafe { unregister(&self.context, &self.region) };
    }
}
