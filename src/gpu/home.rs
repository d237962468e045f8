//! The context in which streams of the library are: that of the program, or one of the library's.

use super::driver::open_to_current;
use super::{Current, discard};
use crate::error::Result;
use cudarc::driver::{CudaContext, sys};
use std::sync::Arc;

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    context: Arc<CudaContext>,
    own: Option<Arc<OwnContext>>,
}

impl From<&Arc<CudaContext>> for Home {
    /// The program's context.
    fn from(context: &Arc<CudaContext>) -> Self {
        Self { context: context.clone(), own: None }
    }
}

impl Home {
    /// A new context on the device of `context`. Hardware queues are a context's, so nothing of the
    /// program stands before what is enqueued there.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda) where a context cannot be made.
    pub fn own(context: &Arc<CudaContext>) -> Result<Self> {
        let current = Current::bind(context)?;
        let (mut handle, mut popped) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the device is that of a live context, and `handle` outlives the call.
        current.check("cuCtxCreate", unsafe {
            sys::cuCtxCreate_v2(&mut handle, 0, context.cu_device())
        })?;
        let own = Some(Arc::new(OwnContext(handle)));
        // It is on top of this thread's stack now.
        // SAFETY: `popped` outlives the call.
        current.check("cuCtxPopCurrent", unsafe { sys::cuCtxPopCurrent_v2(&mut popped) })?;
        Ok(Self { context: context.clone(), own })
    }

    /// Is the context one of the library's?
    pub fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// The program's context on this device.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Makes the context current on the calling thread.
    ///
    /// # Errors
    /// As [`Current::bind`].
    pub fn bind(&self) -> Result<Current> {
        match &self.own {
            None => Current::bind(&self.context),
            Some(own) => Current::bind_handle(own.0),
        }
    }

    /// Makes calls in the context. Afterwards the program's is current on the calling thread, which
    /// may be the program's own: it would find itself in a context that it does not know, and that
    /// is gone one day. (Engines' threads [bind](Self::bind) and stay.)
    ///
    /// # Errors
    /// Those of `calls`; [`Error::Cuda`](crate::Error::Cuda) where the context is gone.
    pub fn within<T>(&self, calls: impl FnOnce(&Current) -> Result<T>) -> Result<T> {
        let result = calls(&self.bind()?);
        if self.is_own() {
            let _programs = Current::bind(&self.context)?;
        }
        result
    }

    /// Opens the memory of `peer`'s device to copies of this context, where it is not the
    /// program's.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda) with the driver's answer.
    pub fn open_peer(&self, peer: &CudaContext) -> Result<()> {
        if self.own.is_none() || peer.cu_device() == self.context.cu_device() {
            return Ok(());
        }
        self.within(|current| open_to_current(current, peer))
    }
}

/// A context of the library's.
#[derive(Debug)]
struct OwnContext(sys::CUcontext);

// SAFETY: context handles may be used from any thread.
unsafe impl Send for OwnContext {}
// SAFETY: as above; the driver's own locks order calls of several threads.
unsafe impl Sync for OwnContext {}

impl Drop for OwnContext {
    fn drop(&mut self) {
        discard(Ended(self.0));
    }
}

/// A context that nobody uses any more.
struct Ended(sys::CUcontext);

// SAFETY: as of `OwnContext`.
unsafe impl Send for Ended {}

impl Drop for Ended {
    fn drop(&mut self) {
        // SAFETY: made by `Home::own`, destroyed only here; its streams and events are gone.
        unsafe { sys::cuCtxDestroy_v2(self.0) };
    }
}
