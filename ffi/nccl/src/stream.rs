//! The caller's device and streams. Work of a communicator runs on a stream of its own: handles of
//! callers name other streams in other contexts and threads (the default streams), and callers
//! destroy theirs whenever they like.

use crate::result::{Failure, Result};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, sys};
use ringdove::Error;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// `cudaStream_t`: the driver's handle.
pub type Handle = sys::CUstream;

fn check(call: &'static str, status: sys::CUresult) -> Result<()> {
    match status {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        other => Err(Failure::cuda(call, other)),
    }
}

/// The context of the caller's device: that which is current, or device 0's where none is.
pub fn current() -> Result<Arc<CudaContext>> {
    ringdove::open_current_device().map_err(|error| match error {
        Error::Argument { .. } => Failure::usage(error.to_string()),
        error => error.into(),
    })
}

/// Makes the caller's device the current one, and keeps its context until the process ends:
/// memory of a context ends with it, and programs that call nothing but NCCL hold none.
pub fn use_current() -> Result<()> {
    static KEPT: Mutex<BTreeMap<usize, Arc<CudaContext>>> = Mutex::new(BTreeMap::new());
    let context = current()?;
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).insert(context.ordinal(), context);
    Ok(())
}

/// The context that a caller had made current. It is current again when this is dropped: no
/// function of NCCL changes a program's current device, and those on several communicators bind
/// each of their contexts.
pub struct CallersContext(sys::CUcontext);

impl CallersContext {
    pub fn keep() -> Self {
        Self(bound())
    }
}

impl Drop for CallersContext {
    fn drop(&mut self) {
        if bound() != self.0 {
            // SAFETY: it was current when the function was called, or none was.
            unsafe { sys::cuCtxSetCurrent(self.0) };
        }
    }
}

/// The context that is current on this thread; null also where no driver is there or started.
fn bound() -> sys::CUcontext {
    // SAFETY: only tries to load the driver library; its initialisers are the vendor's.
    static IS_THERE: LazyLock<bool> = LazyLock::new(|| unsafe { sys::is_culib_present() });
    let mut context = ptr::null_mut();
    if *IS_THERE {
        // SAFETY: its target outlives the call. A driver that was not started refuses, and leaves
        // null there.
        let _ = unsafe { sys::cuCtxGetCurrent(&mut context) };
    }
    context
}

/// A communicator's own stream, and how a caller's stream meets it.
pub struct Bridge {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    entered: CudaEvent,
    left: CudaEvent,
}

impl Bridge {
    pub fn new(context: &Arc<CudaContext>) -> Result<Self> {
        let event =
            || context.new_event(None).map_err(|error| Failure::cuda("cuEventCreate", error.0));
        let stream =
            context.new_stream().map_err(|error| Failure::cuda("cuStreamCreate", error.0))?;
        Ok(Self { context: context.clone(), stream, entered: event()?, left: event()? })
    }

    /// The communicator's stream.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Refuses a stream of another device, and one whose capture takes no more work. One that is
    /// being captured is taken: `enter` and `leave` make the communicator's stream a branch of its
    /// graph.
    ///
    /// # Safety
    /// `stream` is a stream that was not destroyed, or a default stream.
    pub unsafe fn check(&self, stream: Handle) -> Result<()> {
        self.bind()?;
        let mut home = ptr::null_mut();
        // SAFETY: the caller names a stream, or a default one, which is of the current context.
        check("cuStreamGetCtx", unsafe { sys::cuStreamGetCtx(stream, &mut home) })?;
        if home != self.context.cu_ctx() {
            let expected = format!("a stream of device {}", self.context.ordinal());
            return Err(Failure::argument("stream", &expected, "one of another context"));
        }
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is of this context, which is current.
        check("cuStreamIsCapturing", unsafe { sys::cuStreamIsCapturing(stream, &mut status) })?;
        match status {
            sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED => {
                Err(Failure::usage("the capture of the stream was invalidated by another call"))
            }
            _ => Ok(()),
        }
    }

    /// What is enqueued next on the communicator's stream runs after all that `stream` has now.
    ///
    /// # Safety
    /// [`Bridge::check`] has accepted the stream.
    pub unsafe fn enter(&self, stream: Handle) -> Result<()> {
        self.bind()?;
        // SAFETY: both streams and the event are of this context, which is current; an event may be
        // recorded again as soon as it is waited for.
        unsafe { order(&self.entered, stream, self.stream.cu_stream()) }
    }

    /// What is enqueued next on `stream` runs after all that the communicator's stream has now.
    ///
    /// # Safety
    /// As [`Bridge::enter`].
    pub unsafe fn leave(&self, stream: Handle) -> Result<()> {
        self.bind()?;
        // SAFETY: as in `enter`.
        unsafe { order(&self.left, self.stream.cu_stream(), stream) }
    }

    /// Up to eight bytes of device memory, as they are when `stream` comes to this point. Waits
    /// for that.
    ///
    /// # Safety
    /// As [`Bridge::enter`]; `address` is device memory of at least `bytes` bytes.
    pub unsafe fn read(&self, address: u64, bytes: usize, stream: Handle) -> Result<u64> {
        self.bind()?;
        let mut word = [0; 8];
        let target = word[..bytes].as_mut_ptr().cast();
        // SAFETY: the source is the caller's promise, the target lives until the stream is through.
        unsafe {
            let copied = sys::cuMemcpyDtoHAsync_v2(target, address, bytes, stream);
            check("cuMemcpyDtoHAsync", copied)?;
            check("cuStreamSynchronize", sys::cuStreamSynchronize(stream))?;
        }
        Ok(u64::from_le_bytes(word))
    }

    /// Has all that was enqueued ended?
    pub fn is_idle(&self) -> bool {
        // SAFETY: the stream is this bridge's own.
        let ended = self.bind().map(|()| unsafe { sys::cuStreamQuery(self.stream.cu_stream()) });
        matches!(ended, Ok(sys::CUresult::CUDA_SUCCESS))
    }

    /// Waits until all that was enqueued has ended.
    pub fn synchronize(&self) -> Result<()> {
        self.stream.synchronize().map_err(|error| Failure::cuda("cuStreamSynchronize", error.0))
    }

    /// Makes the context current: the handles of default streams mean those of the current one.
    fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(|error| Failure::cuda("cuCtxSetCurrent", error.0))
    }
}

/// Makes `second` wait for `first`.
///
/// # Safety
/// Streams and event are alive, and of the current context.
unsafe fn order(event: &CudaEvent, first: Handle, second: Handle) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        check("cuEventRecord", sys::cuEventRecord(event.cu_event(), first))?;
        check("cuStreamWaitEvent", sys::cuStreamWaitEvent(second, event.cu_event(), 0))
    }
}
