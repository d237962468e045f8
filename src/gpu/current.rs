//! The current context of the calling thread, and what the driver says of an address.

use super::driver::check_anywhere;
use crate::error::{Error, Result};
use cudarc::driver::{CudaContext, CudaStream, result, sys};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;

thread_local! {
    /// This thread's calls do not count for captures of others.
    static IS_APART: Cell<bool> = const { Cell::new(false) };
}

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

/// Runs calls of cudarc, which report an error that cudarc has kept of an earlier call: one that
/// had no way to report it, such as the drop of a buffer of the user's. It is not theirs, and stays
/// kept.
pub(crate) fn keeping_errors<T>(context: &CudaContext, body: impl FnOnce() -> T) -> T {
    let kept = context.check_err();
    let result = body();
    if kept.is_err() {
        context.record_err(kept);
    }
    result
}

/// Runs driver calls that would invalidate a stream capture of this thread, and need not.
pub(crate) fn outside_captures<T>(body: impl FnOnce() -> T) -> T {
    let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: `mode` outlives the call, which exchanges it for that of the thread.
    let exchange = |mode| unsafe { sys::cuThreadExchangeStreamCaptureMode(mode) };
    let exchanged = exchange(&mut mode) == sys::CUresult::CUDA_SUCCESS;
    let result = body();
    if exchanged {
        exchange(&mut mode);
    }
    result
}

/// What becomes of work on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capture {
    /// It runs.
    None,
    /// It becomes part of the graph that the capture with this number makes.
    Active(u64),
    /// It is refused: the stream's capture is invalid, or it is a default stream beside which
    /// another stream of the context is captured.
    Impossible,
}

impl Current {
    /// Makes `context` current on the calling thread.
    ///
    /// # Errors
    /// [`Error::Cuda`] where the driver refuses.
    pub fn bind(context: &CudaContext) -> Result<Self> {
        Self::bind_handle(context.cu_ctx())
    }

    /// As [`Self::bind`], for a context that is alive.
    pub(super) fn bind_handle(context: sys::CUcontext) -> Result<Self> {
        // Not cudarc's `bind_to_thread`: it hands out the error of an earlier call that had no way
        // to report it, such as the drop of a buffer of the user's, which is not ours to report.
        let bound = result::ctx::get_current();
        if bound.map_err(Error::from_driver("cuCtxGetCurrent"))? != Some(context) {
            // SAFETY: the context is alive during this call.
            unsafe { result::ctx::set_current(context) }
                .map_err(Error::from_driver("cuCtxSetCurrent"))?;
        }
        Ok(Self { _thread: PhantomData })
    }

    /// Turns the status of a driver call into an error that names the call.
    pub fn check(&self, call: &'static str, status: sys::CUresult) -> Result<()> {
        check_anywhere(call, status)
    }

    /// From now on, calls of this thread do not count for stream captures of other threads. A
    /// capture in global mode, which is the usual one, is else invalidated by any thread's query of
    /// a stream, and an engine asks all the time. For engines' threads only: they capture nothing.
    ///
    /// # Errors
    /// [`Error::Cuda`] with the driver's answer.
    pub fn apart_from_captures(self) -> Result<Self> {
        if IS_APART.get() {
            return Ok(self);
        }
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: `mode` outlives the call, which gives the mode that the thread had.
        self.check("cuThreadExchangeStreamCaptureMode", unsafe {
            sys::cuThreadExchangeStreamCaptureMode(&mut mode)
        })?;
        IS_APART.set(true);
        Ok(self)
    }

    /// The capture that `stream` is in.
    ///
    /// # Errors
    /// [`Error::Cuda`] with the driver's answer.
    pub fn capture(&self, stream: &CudaStream) -> Result<Capture> {
        use sys::CUstreamCaptureStatus as Status;
        let mut status = Status::CU_STREAM_CAPTURE_STATUS_NONE;
        let mut number = 0;
        // SAFETY: the stream lives, and what is written to outlives the call.
        let answer = unsafe {
            sys::cuStreamGetCaptureInfo_v2(
                stream.cu_stream(),
                &mut status,
                &mut number,
                ptr::null_mut(),
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        if answer == sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT {
            return Ok(Capture::Impossible);
        }
        self.check("cuStreamGetCaptureInfo", answer)?;
        Ok(match status {
            Status::CU_STREAM_CAPTURE_STATUS_NONE => Capture::None,
            Status::CU_STREAM_CAPTURE_STATUS_ACTIVE => Capture::Active(number),
            Status::CU_STREAM_CAPTURE_STATUS_INVALIDATED => Capture::Impossible,
        })
    }

    /// Gives devices the right to memory of the stream-ordered pool that holds `address`: enabling
    /// peer access does not. Memory of no pool needs nothing. May wait for the devices.
    ///
    /// # Errors
    /// [`Error::Cuda`] with the driver's answer.
    pub fn open_pool(&self, address: u64, devices: &[sys::CUdevice]) -> Result<()> {
        use sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE as POOL;
        let mut pool: sys::CUmemoryPool = std::ptr::null_mut();
        // SAFETY: the attribute is a handle, which `pool` is. The driver only looks the address up.
        let status = unsafe { sys::cuPointerGetAttribute((&raw mut pool).cast(), POOL, address) };
        if status != sys::CUresult::CUDA_SUCCESS || pool.is_null() || devices.is_empty() {
            return Ok(());
        }
        let rights: Vec<_> = devices
            .iter()
            .map(|&id| sys::CUmemAccessDesc {
                location: sys::CUmemLocation {
                    type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                    id,
                },
                flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            })
            .collect();
        // SAFETY: the pool holds memory that its owner keeps, and `rights` outlives the call.
        self.check("cuMemPoolSetAccess", unsafe {
            sys::cuMemPoolSetAccess(pool, rights.as_ptr(), rights.len())
        })
    }

    /// The device, by its number in this process, whose memory is at `address`.
    pub fn device_of(&self, address: u64) -> Option<usize> {
        use sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as DEVICE;
        let mut device = 0i32;
        // SAFETY: the attribute is a number of 4 bytes. The driver only looks the address up.
        let status =
            unsafe { sys::cuPointerGetAttribute((&raw mut device).cast(), DEVICE, address) };
        (status == sys::CUresult::CUDA_SUCCESS).then(|| usize::try_from(device).ok()).flatten()
    }

    /// Does NVLink join the GPU of `context`, which is current, to the one with this number? There,
    /// atomic operations of one work in the memory of the other.
    ///
    /// # Errors
    /// [`Error::Cuda`] with the driver's answer.
    pub fn is_joined_to(&self, context: &CudaContext, device: usize) -> Result<bool> {
        use sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED as ATOMICS;
        let peer = result::device::get(device as i32).map_err(Error::from_driver("cuDeviceGet"))?;
        let mut joined = 0;
        // SAFETY: both devices exist, and `joined` outlives the call.
        self.check("cuDeviceGetP2PAttribute", unsafe {
            sys::cuDeviceGetP2PAttribute(&mut joined, ATOMICS, context.cu_device(), peer)
        })?;
        Ok(joined != 0)
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
