//! Device memory as adapters see it, and signals that the host raises in it.

use super::{ContextStreams, Current, DeviceMemory, SignalStream};
use crate::error::{Error, Result};
use crate::id::CopyContext;
use crate::lived::Lived;
use crate::shared::{DeviceRange, DmaBuffer, Owner};
use cudarc::driver::{CudaContext, CudaSlice, DevicePtr, sys};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// A piece of device memory that an adapter may be given.
pub struct GpuRange {
    context: Arc<CudaContext>,
    address: u64,
    length_bytes: u64,
    _owner: Owner,
}

impl GpuRange {
    /// `length_bytes` bytes of device memory from `address`.
    ///
    /// # Safety
    /// `owner` keeps the memory allocated, at this address, until it is dropped.
    ///
    /// # Errors
    /// [`Error::Argument`] if that is not a part of one allocation of a device; host memory is
    /// not, pinned or not.
    pub unsafe fn new(
        context: &Arc<CudaContext>,
        address: u64,
        length_bytes: u64,
        owner: Owner,
    ) -> Result<Self> {
        Self::kept_by(context, address, length_bytes, owner)
    }

    /// All of `slice`, which the range keeps.
    ///
    /// # Errors
    /// As [`GpuRange::new`].
    pub fn of_slice(slice: &Arc<CudaSlice<u8>>) -> Result<Self> {
        let (address, _use) = slice.device_ptr(slice.stream());
        let bytes = slice.num_bytes() as u64;
        Self::kept_by(slice.context(), address, bytes, slice.clone())
    }

    /// All of `memory`, which the range keeps.
    pub(crate) fn of_memory(
        context: &Arc<CudaContext>,
        memory: &Arc<DeviceMemory>,
    ) -> Result<Self> {
        Self::kept_by(context, memory.address(), memory.bytes() as u64, memory.clone())
    }

    /// As [`GpuRange::new`], for memory that `owner` keeps by what the library does.
    pub(crate) fn kept_by(
        context: &Arc<CudaContext>,
        address: u64,
        length_bytes: u64,
        owner: Owner,
    ) -> Result<Self> {
        let allocation = Current::bind(context)?.allocation(address);
        let inside = allocation.is_some_and(|allocation| {
            allocation.on_device && (1..=allocation.bytes_from(address)).contains(&length_bytes)
        });
        if !inside {
            let seen = format!("{length_bytes} bytes at {address:#x}");
            return Err(Error::argument("memory for an adapter", "one device allocation", seen));
        }
        Ok(Self { context: context.clone(), address, length_bytes, _owner: owner })
    }

    fn export(&self) -> Result<DmaBuffer> {
        let current = Current::bind(&self.context)?;
        // Exports begin and end at the host's pages.
        let page = page_bytes();
        let from = self.address / page * page;
        let to = (self.address + self.length_bytes).next_multiple_of(page);
        let mut file: i32 = -1;
        let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        // SAFETY: the context is current, and `file` is what this type of handle is written to.
        current.check("cuMemGetHandleForAddressRange", unsafe {
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

// SAFETY: the driver was asked: the bytes are a part of one allocation, which `_owner` keeps.
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
            Err(error) => Err(format!("the driver does not report whether it exports: {error}")),
        }
    }
}

/// How long a writer waits for the words before, where copies write them: these end by themselves.
const ROOM_TIMEOUT: Duration = Duration::from_secs(2);

/// Writes single words into device memory, in order, on a stream of the context.
pub struct StreamWriter {
    streams: Arc<ContextStreams>,
    words: Arc<dyn DeviceRange>,
}

impl StreamWriter {
    /// A writer for words of `words`, which is memory of `context`'s device.
    ///
    /// # Errors
    /// [`Error::Cuda`] where a stream cannot be made.
    pub fn new(context: &Arc<CudaContext>, words: Arc<dyn DeviceRange>) -> Result<Self> {
        let streams = ContextStreams::of(context, CopyContext::Shared)?;
        Ok(Self::on(&streams, words))
    }

    /// The same, on streams that are there.
    pub(crate) fn on(streams: &Arc<ContextStreams>, words: Arc<dyn DeviceRange>) -> Self {
        Self { streams: streams.clone(), words }
    }

    /// Writes words, in order, after what the host did before.
    ///
    /// # Errors
    /// [`Error::Cuda`] with the driver's answer; [`Error::Argument`] for an address outside of
    /// the words; [`Error::HostWaitExpired`] where the device does not write those before.
    pub fn write(&mut self, words: impl Iterator<Item = (u64, u64)>) -> Result<()> {
        let current = self.streams.home().bind()?.apart_from_captures()?;
        let mut stream = self.streams.words();
        for (address, value) in words {
            let last = self.words.length_bytes().checked_sub(8);
            let offset = address.checked_sub(self.words.address());
            if offset.is_none_or(|offset| offset % 8 != 0 || Some(offset) > last) {
                let expected = "one of the words that were given";
                return Err(Error::argument("signal", expected, format!("{address:#x}")));
            }
            make_room(&mut stream, &current)?;
            // SAFETY: an aligned word of device memory that `words` keeps allocated.
            unsafe { stream.raise(&current, address, value)? };
        }
        Ok(())
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        // The words may be freed after this. An error is one of what was enqueued.
        let _ = self.streams.words().stream().synchronize();
    }
}

/// Room for one word: at once, unless hundreds of them are on their way.
fn make_room(stream: &mut SignalStream, current: &Current) -> Result<()> {
    if stream.has_room(current, 1)? {
        return Ok(());
    }
    let mut lived = Lived::new();
    while !stream.has_room(current, 1)? {
        if lived.look() > ROOM_TIMEOUT {
            return Err(Error::HostWaitExpired {
                what: "the device to write signals that were enqueued before".into(),
                expected: "some of them written".into(),
                seen: "none".into(),
                waited: lived.time(),
            });
        }
        std::hint::spin_loop();
    }
    Ok(())
}
