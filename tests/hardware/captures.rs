//! Captures of several streams by one thread.

use cudarc::driver::sys::{self, CUgraphInstantiate_flags, CUstreamCaptureMode_enum as Mode};
use cudarc::driver::{CudaGraph, CudaStream, DriverError};
use std::sync::Arc;

/// Ends the capture of `stream`, and makes a graph of it that can be launched. Drivers refuse the
/// latter while this thread captures other streams, unless its mode is relaxed meanwhile.
pub fn end_capture(
    stream: &Arc<CudaStream>,
    flags: CUgraphInstantiate_flags,
) -> Result<Option<CudaGraph>, DriverError> {
    let exchange = |mode: &mut Mode| {
        // SAFETY: the call reads and writes `mode`, which outlives it.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(mode) }.result().unwrap();
    };
    let mut mode = Mode::CU_STREAM_CAPTURE_MODE_RELAXED;
    exchange(&mut mode);
    let ended = stream.end_capture(flags);
    exchange(&mut mode);
    ended
}
