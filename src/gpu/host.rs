//! Host memory that no driver has allocated, as kernels and copy engines reach it.

use super::{Current, discard};
use crate::error::Result;
use crate::shared::{Region, map_zeros};
use cudarc::driver::{CudaContext, sys};
use std::sync::Arc;

/// Pages, pinned and mapped into every device until this is dropped.
#[derive(Debug)]
pub(crate) struct HostMemory {
    device: u64,
    registered: Option<RegisteredPages>,
}

impl HostMemory {
    /// New memory of zeros for threads of this process, which stays the host's when a program
    /// resets the device.
    ///
    /// # Errors
    /// As [`register`](Self::register); [`Error::System`](crate::Error::System) where there is no
    /// memory left.
    pub fn zeroed(context: &Arc<CudaContext>, bytes: usize) -> Result<Self> {
        Self::register(context, map_zeros(bytes)?)
    }

    /// Registers `region`, which is all of a mapping, whole pages.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda) where the driver cannot pin it.
    pub fn register(context: &Arc<CudaContext>, region: Region) -> Result<Self> {
        let current = Current::bind(context)?;
        let (host, bytes) = (region.base_address(), region.length_bytes());
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the context is current, and the pages are mapped for as long as `region` lives,
        // which `registered` keeps. The host reaches them through atomics only.
        current.check("cuMemHostRegister", unsafe {
            sys::cuMemHostRegister_v2(host as *mut _, bytes, flags)
        })?;
        let registered = Some(RegisteredPages { context: context.clone(), region });
        let mut memory = Self { device: 0, registered };
        // SAFETY: `host` is the start of what was registered, mapped, just now.
        current.check("cuMemHostGetDevicePointer", unsafe {
            sys::cuMemHostGetDevicePointer_v2(&mut memory.device, host as *mut _, 0)
        })?;
        Ok(memory)
    }

    /// Device address of the first byte, in every context of the process.
    pub fn address(&self) -> u64 {
        self.device
    }

    /// The host's view of it.
    pub fn region(&self) -> &Region {
        &self.registered.as_ref().expect("present until drop").region
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // Taking it from the driver may wait for the device.
        discard(self.registered.take());
    }
}

/// What the driver knows, until it is dropped.
#[derive(Debug)]
struct RegisteredPages {
    context: Arc<CudaContext>,
    region: Region,
}

impl Drop for RegisteredPages {
    fn drop(&mut self) {
        // SAFETY: registered by `register` and given back only here; owners drop it after all
        // kernels and engines that know the address have ended.
        unsafe { unregister(&self.context, &self.region) };
    }
}

/// Takes pages from the driver. Where the driver keeps them, as it does while the thread captures
/// a stream, they stay mapped for the life of the process: what waits for its turn on a device may
/// still reach them.
///
/// # Safety
/// `region` begins where registered memory does, which nobody uses any more.
pub(super) unsafe fn unregister(context: &Arc<CudaContext>, region: &Region) {
    use sys::CUresult::{CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, CUDA_SUCCESS};
    if Current::bind(context).is_err() {
        // The context is gone, and with it all that ran in it.
        return;
    }
    // SAFETY: the caller's promise.
    let status = unsafe { sys::cuMemHostUnregister(region.base_address() as *mut _) };
    // A device that the program has reset knows nothing of them.
    if !matches!(status, CUDA_SUCCESS | CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED) {
        tracing::debug!(?status, "the driver keeps host memory, so it stays mapped");
        std::mem::forget(region.clone());
    }
}
