//! Streams of the library's own.

use super::{Current, Home};
use crate::error::Result;
use cudarc::driver::{CudaContext, sys};
use std::sync::Arc;

const NON_BLOCKING: u32 = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;

/// A stream that nobody else uses. It does not wait for the legacy default stream: that could hold
/// a kernel which waits for this one.
///
/// It has a great priority: what the library enqueues is short, and kernels wait for it. That gives
/// it no hardware queue of its own: see [`super::ContextStreams`].
///
/// Not one of `cudarc`'s: the first of those in a context waits for the whole device.
#[derive(Debug)]
pub(crate) struct OwnStream {
    home: Home,
    handle: sys::CUstream,
}

// SAFETY: stream handles may be used from any thread.
unsafe impl Send for OwnStream {}
// SAFETY: as above; the driver's own locks order calls of several threads.
unsafe impl Sync for OwnStream {}

impl OwnStream {
    /// A new stream of `context`. May wait for the device, so it belongs to initialisation only.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda) where a stream cannot be made.
    pub fn new(context: &Arc<CudaContext>) -> Result<Self> {
        Self::at(&Home::from(context))
    }

    /// As [`Self::new`], there.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn at(home: &Home) -> Result<Self> {
        home.within(|current| Self::make(home, current))
    }

    fn make(home: &Home, current: &Current) -> Result<Self> {
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: both targets outlive the call.
        current.check("cuCtxGetStreamPriorityRange", unsafe {
            sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest)
        })?;
        // Smaller numbers are greater priorities.
        let own = if greatest + 1 < least { greatest + 1 } else { greatest };
        let mut handle = std::ptr::null_mut();
        // SAFETY: the context is current and `handle` outlives the call.
        current.check("cuStreamCreateWithPriority", unsafe {
            sys::cuStreamCreateWithPriority(&mut handle, NON_BLOCKING, own)
        })?;
        Ok(Self { home: home.clone(), handle })
    }

    /// A new stream of the kind that users make. As [`Self::new`].
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of_users_kind(context: &Arc<CudaContext>) -> Result<Self> {
        let current = Current::bind(context)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the context is current and `handle` outlives the call.
        let status = unsafe { sys::cuStreamCreate(&mut handle, NON_BLOCKING) };
        current.check("cuStreamCreate", status)?;
        Ok(Self { home: Home::from(context), handle })
    }

    /// Makes calls in the stream's context, which may be the library's own: [`Home::within`].
    ///
    /// # Errors
    /// Those of `calls`.
    pub(super) fn within<T>(&self, calls: impl FnOnce(&Current) -> Result<T>) -> Result<T> {
        self.home.within(calls)
    }

    /// The driver's handle, valid as long as this value.
    pub fn handle(&self) -> sys::CUstream {
        self.handle
    }

    /// True if everything that was enqueued has ended.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda) with the error of what was enqueued.
    pub fn is_idle(&self, current: &Current) -> Result<bool> {
        // SAFETY: the stream lives until drop.
        match unsafe { sys::cuStreamQuery(self.handle) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            status => current.check("cuStreamQuery", status).map(|()| true),
        }
    }

    /// Waits until everything that was enqueued has ended.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda) with the error of what was enqueued.
    pub fn synchronize(&self) -> Result<()> {
        self.home.within(|current| {
            // SAFETY: the stream lives until drop.
            let status = unsafe { sys::cuStreamSynchronize(self.handle) };
            current.check("cuStreamSynchronize", status)
        })
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        // A context that is gone has taken the stream with it.
        let _ended = self.home.within(|_| {
            // What is enqueued here ends by itself; memory may be freed after this.
            // SAFETY: made by `new`, destroyed only here.
            unsafe {
                sys::cuStreamSynchronize(self.handle);
                sys::cuStreamDestroy_v2(self.handle);
            }
            Ok(())
        });
    }
}
