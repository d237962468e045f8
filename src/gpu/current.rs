//! The current context of the calling thread, and what the driver says of an address.

use super::driver::check_anywhere;
use crate::error::{Error, Result};
use cudarc::driver::{CudaContext, sys};
use std::marker::PhantomData;

/// Proof that a context was made current on the calling thread.
///
/// Most driver calls act on the context that is current: memory is allocated on its device, and
/// the NULL stream is its default stream. The status of a driver call can be checked through this
/// proof only, so that no call site can forget to bind. It holds until the thread binds another
/// context; make one where the calls are, and do not keep it.
#[must_use = "a status is checked through it"]
pub(crate) struct Current {
    /// Contexts are current on one thread.
    _thread: PhantomData<*const ()>,
}

/// An allocation that the driver knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    /// Address of the first byte.
    pub start: u64,
    /// Bytes.
    pub bytes: u64,
    /// Unique in this process: memory that is allocated at the same address later has another.
    pub id: u64,
    /// True if the memory lies on a device, false if it is the host's.
    pub on_device: bool,
}

impl Allocation {
    /// Bytes from `address` to the end; `address` lies inside.
    pub fn bytes_from(&self, address: u64) -> u64 {
        (self.start + self.bytes).saturating_sub(address)
    }
}

impl Current {
    /// Makes `context` current on the calling thread.
    ///
    /// # Errors
    /// [`Error::Cuda`] where the driver refuses, or where `cudarc` kept an error of an earlier call
    /// that had no way to report it.
    pub fn bind(context: &CudaContext) -> Result<Self> {
        context.bind_to_thread().map_err(Error::from_driver("cuCtxSetCurrent"))?;
        Ok(Self { _thread: PhantomData })
    }

    /// Turns the status of a driver call into an error that names the call.
    pub fn check(&self, call: &'static str, status: sys::CUresult) -> Result<()> {
        check_anywhere(call, status)
    }

    /// The allocation that holds `address`. `None` where the driver does not know the address.
    pub fn allocation(&self, address: u64) -> Option<Allocation> {
        use sys::CUpointer_attribute_enum as Attribute;
        let (mut start, mut bytes, mut id, mut kind) = (0u64, 0u64, 0u64, 0u32);
        let mut attributes = [
            Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
            Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID,
            Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        ];
        let mut values = [
            (&raw mut start).cast(),
            (&raw mut bytes).cast(),
            (&raw mut id).cast(),
            (&raw mut kind).cast(),
        ];
        // SAFETY: as many values as attributes; each points to a variable of the attribute's width
        // (8, 8, 8 and 4 bytes), which outlives the call. The driver only looks the address up.
        let status = unsafe {
            sys::cuPointerGetAttributes(
                attributes.len() as u32,
                attributes.as_mut_ptr(),
                values.as_mut_ptr(),
                address,
            )
        };
        // Of an address that it does not know the driver says zeros.
        let known = status == sys::CUresult::CUDA_SUCCESS && start != 0;
        let on_device = kind == sys::CUmemorytype_enum::CU_MEMORYTYPE_DEVICE as u32;
        known.then_some(Allocation { start, bytes, id, on_device })
    }
}
