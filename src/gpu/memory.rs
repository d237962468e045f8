//! Memory that kernels, engines and the host share.

use super::{Current, OwnStream, discard};
use crate::error::{Error, Result};
use crate::shared::Region;
use cudarc::driver::{CudaContext, CudaStream, sys};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// What the start and the size of an export are multiples of: the largest page that hosts have.
const EXPORT_BYTES: usize = 64 << 10;

/// Device memory, not of the driver's pools: other processes can open it. What is dropped is freed
/// at a moment when no launch of the library is under way, see
/// [`free_discarded`](crate::free_discarded).
#[derive(Debug)]
pub struct DeviceMemory {
    context: Arc<CudaContext>,
    address: u64,
    bytes: usize,
}

impl DeviceMemory {
    /// Allocates `bytes` of zeroed memory on the context's device. May synchronise the device, so
    /// it belongs to initialisation only.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda) with the driver's answer.
    pub fn zeroed(context: &Arc<CudaContext>, bytes: usize) -> Result<Self> {
        Self::with_zeros(context, bytes, std::iter::once(0..bytes.max(1)))
    }

    /// As [`zeroed`](Self::zeroed), with zeros in some `ranges` alone. What else stands there is
    /// unknown, and the memory behind it need not exist before it is written.
    pub(crate) fn with_zeros(
        context: &Arc<CudaContext>,
        bytes: usize,
        ranges: impl IntoIterator<Item = Range<usize>>,
    ) -> Result<Self> {
        let current = Current::bind(context)?;
        let mut address = 0;
        // Whole pages, so that all of it can be exported.
        let whole = bytes.max(1).next_multiple_of(EXPORT_BYTES);
        // SAFETY: the context is current and `address` outlives the call.
        current.check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, whole) })?;
        let memory = Self { context: context.clone(), address, bytes };
        // On a stream of its own, which is all that is waited for: others may hold kernels that
        // wait for whoever allocates here. The zeros are part of the protocol (R1).
        let stream = OwnStream::new(context)?;
        for Range { start, end } in ranges {
            assert!(start <= end && end <= whole);
            // SAFETY: the range lies in what was allocated just now.
            current.check("cuMemsetD8Async", unsafe {
                sys::cuMemsetD8Async(address + start as u64, 0, end - start, stream.handle())
            })?;
        }
        stream.synchronize()?;
        Ok(memory)
    }

    /// Device address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies `source` to `offset` and waits until it is there: for every stream, also for those
    /// that wait for no other, to which a copy from pageable memory may come late.
    pub(crate) fn write(&self, offset: usize, source: &[u8]) -> Result<()> {
        assert!(offset.checked_add(source.len()).is_some_and(|end| end <= self.bytes));
        let pinned = Arc::new(PinnedMemory::zeroed(&self.context, source.len())?);
        pinned.region().copy_in(0, source)?;
        let stream = OwnStream::new(&self.context)?;
        let current = Current::bind(&self.context)?;
        // SAFETY: the range lies inside the allocation, and `pinned` outlives the stream's work.
        current.check("cuMemcpyHtoDAsync", unsafe {
            sys::cuMemcpyHtoDAsync_v2(
                self.address + offset as u64,
                pinned.host().cast_const().cast(),
                source.len(),
                stream.handle(),
            )
        })?;
        stream.synchronize()
    }

    /// Enqueues a copy of `source` to `offset`; the call takes the bytes.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) for a range outside;
    /// [`Error::Cuda`](crate::Error::Cuda) with the driver's answer.
    pub(crate) fn enqueue_write(
        &self,
        offset: u64,
        source: &[u8],
        stream: &CudaStream,
    ) -> Result<()> {
        let to = self.address + self.inside(offset, source.len())?;
        let current = Current::bind(&self.context)?;
        // SAFETY: the range lies inside the allocation; from pageable memory the driver has copied
        // the bytes when the call returns.
        current.check("cuMemcpyHtoDAsync", unsafe {
            let from = source.as_ptr().cast();
            sys::cuMemcpyHtoDAsync_v2(to, from, source.len(), stream.cu_stream())
        })
    }

    /// Copies the bytes from `offset` on, behind what is enqueued on `stream`, and waits for that.
    ///
    /// # Errors
    /// As [`enqueue_write`](Self::enqueue_write).
    pub(crate) fn read_behind(
        &self,
        offset: u64,
        target: &mut [u8],
        stream: &CudaStream,
    ) -> Result<()> {
        let from = self.address + self.inside(offset, target.len())?;
        let current = Current::bind(&self.context)?;
        // SAFETY: the range lies inside the allocation, and `target` is borrowed until the stream
        // has been waited for.
        current.check("cuMemcpyDtoHAsync", unsafe {
            let to = target.as_mut_ptr().cast();
            sys::cuMemcpyDtoHAsync_v2(to, from, target.len(), stream.cu_stream())
        })?;
        // SAFETY: the stream lives.
        let status = unsafe { sys::cuStreamSynchronize(stream.cu_stream()) };
        current.check("cuStreamSynchronize", status)
    }

    fn inside(&self, offset: u64, bytes: usize) -> Result<u64> {
        match offset.checked_add(bytes as u64).is_some_and(|end| end <= self.bytes as u64) {
            true => Ok(offset),
            false => {
                let expected = format!("within {} bytes", self.bytes);
                Err(Error::argument("part", expected, format!("{bytes} bytes from {offset}")))
            }
        }
    }

    /// As [`write`](Self::write), from pageable memory, so that it may come late: for tests that
    /// show what happens then.
    pub(crate) fn write_pageable(&self, offset: usize, source: &[u8]) -> Result<()> {
        assert!(offset.checked_add(source.len()).is_some_and(|end| end <= self.bytes));
        let current = Current::bind(&self.context)?;
        let (to, from) = (self.address + offset as u64, source.as_ptr().cast());
        // SAFETY: the range lies inside the allocation, and the call takes the bytes.
        let status = unsafe { sys::cuMemcpyHtoD_v2(to, from, source.len()) };
        current.check("cuMemcpyHtoD", status)
    }
}

impl DeviceMemory {
    /// The 64-bit word at `offset`, which nobody writes any more; as [`read`](Self::read).
    pub(crate) fn read_word(&self, offset: usize, stream: &OwnStream) -> Result<u64> {
        let mut word = [0; size_of::<u64>()];
        self.read(offset, &mut word, stream)?;
        Ok(u64::from_le_bytes(word))
    }

    /// Enqueues a copy of bytes to another place.
    ///
    /// # Errors
    /// As [`enqueue_write`](Self::enqueue_write).
    #[cfg(feature = "verbs")]
    pub(crate) fn copy_within(
        &self,
        from: u64,
        to: u64,
        bytes: u64,
        stream: &OwnStream,
    ) -> Result<()> {
        let bytes = bytes as usize;
        let from = self.address + self.inside(from, bytes)?;
        let to = self.address + self.inside(to, bytes)?;
        stream.within(|current| {
            // SAFETY: both ranges lie inside of the allocation.
            current.check("cuMemcpyDtoDAsync", unsafe {
                sys::cuMemcpyDtoDAsync_v2(to, from, bytes, stream.handle())
            })
        })
    }

    /// Copies the bytes from `offset` on. Waits for nothing that does not end by itself: `stream`
    /// has only copies to do. A new one could wait for the device, and the legacy one would wait
    /// for kernels of other users, which may wait for whoever asks here.
    pub(crate) fn read(&self, offset: usize, target: &mut [u8], stream: &OwnStream) -> Result<()> {
        assert!(offset.checked_add(target.len()).is_some_and(|end| end <= self.bytes));
        stream.within(|current| {
            // SAFETY: the range lies inside the allocation, and `target` is borrowed until the
            // stream has been waited for.
            current.check("cuMemcpyDtoHAsync", unsafe {
                sys::cuMemcpyDtoHAsync_v2(
                    target.as_mut_ptr().cast(),
                    self.address + offset as u64,
                    target.len(),
                    stream.handle(),
                )
            })
        })?;
        stream.synchronize()
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        discard(FreedMemory { context: self.context.clone(), address: self.address });
    }
}

/// Device memory that nobody uses any more.
struct FreedMemory {
    context: Arc<CudaContext>,
    address: u64,
}

impl Drop for FreedMemory {
    fn drop(&mut self) {
        // A context that has failed reports its error here once more; nobody can handle it.
        if Current::bind(&self.context).is_ok() {
            // SAFETY: allocated by `with_zeros` and freed only here; owners drop it after all
            // kernels and engines that know the address have ended.
            unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}

/// Page-locked host memory, mapped into every device; freed on drop.
#[derive(Debug)]
pub(crate) struct PinnedMemory {
    context: Arc<CudaContext>,
    host: *mut u8,
    device: u64,
    bytes: usize,
}

// SAFETY: the pointer is an address of memory that lives until drop; all access goes through
// `shared::Region` (atomics) or `write_bytes`, whose caller owns the range.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Allocates `bytes` of zeroed pinned memory.
    pub fn zeroed(context: &Arc<CudaContext>, bytes: usize) -> Result<Self> {
        let memory = Self::unwritten(context, bytes)?;
        // SAFETY: the range was allocated just now, and nobody else knows it yet.
        unsafe { std::ptr::write_bytes(memory.host, 0, memory.bytes) };
        Ok(memory)
    }

    /// Allocates `bytes` of pinned memory. What stands there is unknown, and the memory behind it
    /// need not exist before it is written.
    pub fn unwritten(context: &Arc<CudaContext>, bytes: usize) -> Result<Self> {
        let current = Current::bind(context)?;
        let mut host = std::ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the context is current and `host` outlives the call.
        current.check("cuMemHostAlloc", unsafe {
            sys::cuMemHostAlloc(&mut host, bytes.max(1), flags)
        })?;
        let mut memory =
            Self { context: context.clone(), host: host.cast(), device: 0, bytes: bytes.max(1) };
        // SAFETY: `host` is the start of a mapped host allocation.
        current.check("cuMemHostGetDevicePointer", unsafe {
            sys::cuMemHostGetDevicePointer_v2(&mut memory.device, host, 0)
        })?;
        Ok(memory)
    }

    /// The host's view of all of it.
    pub fn region(self: &Arc<Self>) -> Region {
        let base = NonNull::new(self.host).expect("the driver returned success with an address");
        // SAFETY: the memory is mapped until drop, and `self` is the region's owner; the host
        // reaches it through the region's atomics only, except for `Upload`, whose memory is
        // never handed out as a region.
        unsafe { Region::new(base, self.bytes, self.clone()) }
    }

    /// Host address of the first byte.
    pub fn host(&self) -> *mut u8 {
        self.host
    }

    /// Device address of the first byte.
    pub fn address(&self) -> u64 {
        self.device
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        discard(FreedPinned { context: self.context.clone(), host: self.host });
    }
}

/// Pinned memory that nobody uses any more.
struct FreedPinned {
    context: Arc<CudaContext>,
    host: *mut u8,
}

// SAFETY: as of `PinnedMemory`.
unsafe impl Send for FreedPinned {}

impl Drop for FreedPinned {
    fn drop(&mut self) {
        if Current::bind(&self.context).is_ok() {
            // SAFETY: allocated by `unwritten`, freed only here, after all users have ended.
            unsafe { sys::cuMemFreeHost(self.host.cast()) };
        }
    }
}
