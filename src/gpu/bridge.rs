//! Streams of callers that are known by their handles: of programs in C, Python and others. Work of
//! a communicator runs on a stream of its own, since such handles name other streams in other
//! contexts and threads (the default streams), and callers destroy theirs whenever they like.

use super::Current;
use crate::error::{Error, Result};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, sys};
use std::ptr;
use std::sync::Arc;

/// A stream of the driver, by its handle. Null is the legacy default stream.
pub type StreamHandle = sys::CUstream;

/// A stream of the library's own, and how callers' streams meet it.
#[derive(Debug)]
pub struct StreamBridge {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    entered: CudaEvent,
    left: CudaEvent,
}

impl StreamBridge {
    /// A stream of its own in `context`.
    ///
    /// # Errors
    /// [`Error::Cuda`] where the driver refuses a stream or events.
    pub fn new(context: &Arc<CudaContext>) -> Result<Self> {
        let event = || context.new_event(None).map_err(Error::from_driver("cuEventCreate"));
        let stream = context.new_stream().map_err(Error::from_driver("cuStreamCreate"))?;
        Ok(Self { context: context.clone(), stream, entered: event()?, left: event()? })
    }

    /// The stream of its own.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Refuses a stream of another device, and one whose capture takes no more work. One that is
    /// being captured is taken: [`enter`](Self::enter) and [`leave`](Self::leave) make the stream
    /// of its own a branch of the caller's graph.
    ///
    /// # Safety
    /// `stream` is a stream that was not destroyed, or a default stream.
    ///
    /// # Errors
    /// [`Error::Argument`] for a stream that cannot be used, [`Error::Cuda`] where the driver does
    /// not know it.
    pub unsafe fn check(&self, stream: StreamHandle) -> Result<()> {
        let current = self.bind()?;
        let mut home = ptr::null_mut();
        // SAFETY: the caller names a stream, or a default one, which is of the current context.
        current.check("cuStreamGetCtx", unsafe { sys::cuStreamGetCtx(stream, &mut home) })?;
        if home != self.context.cu_ctx() {
            let expected = format_args!("a stream of device {}", self.context.ordinal());
            return Err(Error::argument("stream", expected, "one of another context"));
        }
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is of this context, which is current.
        let asked = unsafe { sys::cuStreamIsCapturing(stream, &mut status) };
        current.check("cuStreamIsCapturing", asked)?;
        match status {
            sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED => {
                let seen = "one whose capture was invalidated by another call";
                Err(Error::argument("stream", "one that takes work", seen))
            }
            _ => Ok(()),
        }
    }

    /// What is enqueued next on the stream of its own runs after all that `stream` has now.
    ///
    /// # Safety
    /// [`check`](Self::check) has accepted the stream.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub unsafe fn enter(&self, stream: StreamHandle) -> Result<()> {
        let current = self.bind()?;
        // SAFETY: both streams and the event are of this context, which is current; an event may be
        // recorded again as soon as it is waited for.
        unsafe { order(&current, &self.entered, stream, self.stream.cu_stream()) }
    }

    /// What is enqueued next on `stream` runs after all that the stream of its own has now.
    ///
    /// # Safety
    /// As [`enter`](Self::enter).
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub unsafe fn leave(&self, stream: StreamHandle) -> Result<()> {
        let current = self.bind()?;
        // SAFETY: as in `enter`.
        unsafe { order(&current, &self.left, self.stream.cu_stream(), stream) }
    }

    /// Up to eight bytes of device memory, as they are when `stream` comes to this point. Waits
    /// for that.
    ///
    /// # Safety
    /// As [`enter`](Self::enter); `address` is device memory of at least `bytes` bytes.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    ///
    /// # Panics
    /// For more than eight bytes.
    pub unsafe fn read(&self, address: u64, bytes: usize, stream: StreamHandle) -> Result<u64> {
        let current = self.bind()?;
        let mut word = [0; 8];
        let target = word[..bytes].as_mut_ptr().cast();
        // SAFETY: the source is the caller's promise, the target lives until the stream is through.
        unsafe {
            let copied = sys::cuMemcpyDtoHAsync_v2(target, address, bytes, stream);
            current.check("cuMemcpyDtoHAsync", copied)?;
            current.check("cuStreamSynchronize", sys::cuStreamSynchronize(stream))?;
        }
        Ok(u64::from_le_bytes(word))
    }

    /// Has all that was enqueued ended?
    pub fn is_idle(&self) -> bool {
        super::is_idle(&self.stream)
    }

    /// Waits until all that was enqueued has ended.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn synchronize(&self) -> Result<()> {
        self.stream.synchronize().map_err(Error::from_driver("cuStreamSynchronize"))
    }

    /// The handles of default streams mean those of the current context.
    fn bind(&self) -> Result<Current> {
        Current::bind(&self.context)
    }
}

/// Makes `second` wait for `first`.
///
/// # Safety
/// Streams and event are alive, and of the current context.
unsafe fn order(
    current: &Current,
    event: &CudaEvent,
    first: StreamHandle,
    second: StreamHandle,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        current.check("cuEventRecord", sys::cuEventRecord(event.cu_event(), first))?;
        let waits = sys::cuStreamWaitEvent(second, event.cu_event(), 0);
        current.check("cuStreamWaitEvent", waits)
    }
}
