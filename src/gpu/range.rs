//! Device memory as adapters see it, and signals that the host raises in it.

use super::check;
use crate::error::{Error, Result};
use crate::shared::{DeviceRange, DmaBuffer, Owner};
use cudarc::driver::{CudaContext, sys};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;

/// A piece of device memory that an adapter may be given.
pub struct GpuRange {
    context: Arc<CudaContext>,
    address: u64,
    length_bytes: u64,
    _owner: Owner,
}

impl GpuRange {
    /// `length_bytes` bytes of device memory from `address`, which `owner` keeps allocated.
    ///
    /// # Errors
    /// [`Error::Argument`] if that is not a part of one allocation of a device; host memory is
    /// not, pinned or not.
    pub fn new(
        context: &Arc<CudaContext>,
        address: u64,
        length_bytes: u64,
        owner: Owner,
    ) -> Result<Self> {
        let inside = super::pointer_range(address).is_some_and(|(start, bytes)| {
            let offset = address - start;
            length_bytes > 0 && offset.checked_add(length_bytes).is_some_and(|end| end <= bytes)
        });
        context.bind_to_thread().map_err(Error::from_driver("cuCtxSetCurrent"))?;
        if !inside || !super::is_device_memory(address) {
            let seen = format!("{length_bytes} bytes at {address:#x}");
            return Err(Error::argument("memory for an adapter", "one device allocation", seen));
        }
        Ok(Self { context: context.clone(), address, length_bytes, _owner: owner })
    }

    fn export(&self) -> Result<DmaBuffer> {
        self.context.bind_to_thread().map_err(Error::from_driver("cuCtxSetCurrent"))?;
        // Exports begin and end at the host's pages.
        let page = page_bytes();
        let from = self.address / page * page;
        let to = (self.address + self.length_bytes).next_multiple_of(page);
        let mut file: i32 = -1;
        let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        // SAFETY: the context is current, and `file` is what this type of handle is written to.
        check("cuMemGetHandleForAddressRange", unsafe {
            sys::cuMemGetHandleForAddressRange(
                (&raw mut file).cast(),
                from,
                (to - from) as usize,
                kind,
                0,
            )
        })?;
        // SAFETY: the driver opened the file just now, for this call.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        Ok(DmaBuffer { file, offset: self.address - from })
    }
}

/// Bytes of a page of the host.
pub(super) fn page_bytes() -> u64 {
    use nix::unistd::{SysconfVar, sysconf};
    let bytes = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(4096)
}

// SAFETY: `new` has asked the driver: the bytes are a part of one allocation, which `_owner` keeps.
// Device memory is not Rust's: nobody holds references into it.
unsafe impl DeviceRange for GpuRange {
    fn address(&self) -> u64 {
        self.address
    }

    fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    fn dma_buffer(&self) -> Result<DmaBuffer, String> {
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED;
        // Asked first: older drivers lack the function that exports.
        match self.context.attribute(attribute) {
            Ok(1..) => self.export().map_err(|error| error.to_string()),
            Ok(_) => Err("the device's driver exports no dma-bufs".into()),
            Err(error) => Err(format!("the driver does not say whether it exports: {error}")),
        }
    }
}

/// A stream for single words that the host writes into device memory, in order.
pub struct StreamWriter {
    context: Arc<CudaContext>,
    handle: sys::CUstream,
    words: Arc<dyn DeviceRange>,
}

// SAFETY: stream handles may be used from any thread; the writer is used by one at a time.
unsafe impl Send for StreamWriter {}

impl StreamWriter {
    /// A writer for words of `words`, which is memory of `context`'s device.
    ///
    /// # Errors
    /// [`Error::Cuda`] where a stream cannot be made.
    pub fn new(context: &Arc<CudaContext>, words: Arc<dyn DeviceRange>) -> Result<Self> {
        context.bind_to_thread().map_err(Error::from_driver("cuCtxSetCurrent"))?;
        let mut handle = std::ptr::null_mut();
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current and `handle` outlives the call. Non-blocking, since a
        // stream that waited for the legacy default stream could wait for a kernel that waits
        // for it.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut handle, flags) })?;
        Ok(Self { context: context.clone(), handle, words })
    }

    /// Writes words, in order, after what the host did before.
    ///
    /// # Errors
    /// [`Error::Cuda`] with the driver's answer; [`Error::Argument`] for an address outside of
    /// the words.
    pub fn write(&mut self, words: impl Iterator<Item = (u64, u64)>) -> Result<()> {
        self.context.bind_to_thread().map_err(Error::from_driver("cuCtxSetCurrent"))?;
        for (address, value) in words {
            let last = self.words.length_bytes().checked_sub(8);
            let offset = address.checked_sub(self.words.address());
            if offset.is_none_or(|offset| offset % 8 != 0 || Some(offset) > last) {
                let expected = "one of the words that were given";
                return Err(Error::argument("signal", expected, format!("{address:#x}")));
            }
            // Pairs with wait.cuh: the acquire load of a signal, R9. The default flags fence
            // before the write.
            // SAFETY: an aligned word of device memory that `words` keeps allocated.
            check("cuStreamWriteValue64", unsafe {
                sys::cuStreamWriteValue64_v2(self.handle, address, value, 0)
            })?;
        }
        Ok(())
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // Writes end by themselves; memory may be freed after this.
            // SAFETY: made by `new`, destroyed only here.
            unsafe {
                sys::cuStreamSynchronize(self.handle);
                sys::cuStreamDestroy_v2(self.handle);
            }
        }
    }
}
