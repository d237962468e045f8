//! Launches that are captured once, and launched again and again as a graph of the driver.

use super::Current;
use crate::error::{Error, Result};
use cudarc::driver::sys::{self, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, CudaStream, DriverError};
use std::fmt;
use std::sync::Arc;

/// A graph of launches, for the stream that they were captured on.
pub(crate) struct Captured(CudaGraph);

// SAFETY: a graph is not bound to a thread; it must not be used by several at a time, which
// `launch` rules out: it takes the only reference.
unsafe impl Send for Captured {}
// SAFETY: as above: a shared reference can do nothing with it.
unsafe impl Sync for Captured {}

impl Captured {
    /// What `launches` enqueues on `stream` does not run now: it becomes the graph.
    ///
    /// # Errors
    /// [`Error::Cuda`] where the driver refuses a capture; what `launches` gives.
    pub fn new(stream: &Arc<CudaStream>, launches: impl FnOnce() -> Result<()>) -> Result<Self> {
        // Other threads' calls do not concern this capture, nor it them.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        stream.begin_capture(mode).map_err(Error::from_driver("cuStreamBeginCapture"))?;
        let captured = launches();
        let graph = stream.end_capture(CUgraphInstantiate_flags(0));
        captured?;
        let graph = graph.map_err(Error::from_driver("cuStreamEndCapture"))?;
        // No graph: the capture came to nothing.
        let invalid = DriverError(sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        graph.map(Self).ok_or_else(|| Error::from_driver("cuStreamEndCapture")(invalid))
    }

    /// Launches them all, in the order of the stream.
    ///
    /// # Errors
    /// [`Error::Cuda`] with the driver's answer.
    pub fn launch(&mut self) -> Result<()> {
        self.0.launch().map_err(Error::from_driver("cuGraphLaunch"))
    }
}

impl fmt::Debug for Captured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Captured").finish_non_exhaustive()
    }
}

/// Has all ended that was enqueued on the stream?
pub(crate) fn is_idle(stream: &CudaStream) -> bool {
    // SAFETY: the stream lives.
    let answer = Current::bind(stream.context())
        .map(|_current| unsafe { sys::cuStreamQuery(stream.cu_stream()) });
    matches!(answer, Ok(sys::CUresult::CUDA_SUCCESS))
}
