//! The peer transport: ranks of one node, moved by the GPU's copy engines.
//!
//! A transfer is a copy on a stream, and its signals are memory operations on the same stream. A
//! stream runs in order, and the driver fences before it writes a value, so the signal is written
//! after the copied bytes are visible on every device (R9).

use super::{Polled, SignalWrite, Transfer, Transport};
use crate::error::{Error, Result, TransportCause, TransportError};
use crate::gpu::Current;
use crate::id::{LaneId, Position};
use cudarc::driver::{CudaContext, sys};
use std::sync::Arc;

/// Streams of one transport. Lanes are dealt out over them; more streams than copy engines gain
/// nothing, fewer make lanes wait for one another.
const STREAMS: usize = 8;
/// Polls between two questions to the driver, which cost about a microsecond each.
const POLLS_PER_QUERY: u32 = 64;

/// Moves bytes between GPUs of one node.
#[derive(Debug)]
pub(crate) struct PeerTransport {
    context: Arc<CudaContext>,
    streams: Vec<CopyStream>,
    polls: u32,
}

#[derive(Debug)]
struct CopyStream {
    handle: sys::CUstream,
    /// Transfers submitted and not yet seen to have ended.
    pending: u64,
    /// The latest of them, for error messages.
    latest: (LaneId, Position),
}

// SAFETY: stream handles may be used from any thread; the transport itself is used by one at a
// time (`&mut self`).
unsafe impl Send for PeerTransport {}

impl PeerTransport {
    /// A transport whose copies run on `context`'s device.
    ///
    /// # Errors
    /// [`Error::Cuda`] where streams cannot be made.
    pub fn new(context: &Arc<CudaContext>) -> Result<Self> {
        let current = Current::bind(context)?;
        let mut transport =
            Self { context: context.clone(), streams: Vec::with_capacity(STREAMS), polls: 0 };
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: both targets outlive the call.
        current.check("cuCtxGetStreamPriorityRange", unsafe {
            sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest)
        })?;
        for _ in 0..STREAMS {
            let mut handle = std::ptr::null_mut();
            let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
            // SAFETY: the context is current. Non-blocking, since a stream that waited for the
            // legacy default stream could wait for a kernel that waits for it.
            current.check("cuStreamCreateWithPriority", unsafe {
                sys::cuStreamCreateWithPriority(&mut handle, flags, greatest)
            })?;
            let latest = (LaneId(0), Position(0));
            transport.streams.push(CopyStream { handle, pending: 0, latest });
        }
        Ok(transport)
    }

    /// Enqueues one transfer. The context is current, as `_current` proves.
    fn enqueue(&mut self, _current: &Current, transfer: &Transfer) -> Result<(), TransportError> {
        let index = transfer.lane.0 as usize % self.streams.len();
        let stream = &mut self.streams[index];
        let failed = |call: &str, status: sys::CUresult| TransportError {
            lane: transfer.lane,
            position: transfer.position,
            cause: cause(call, status),
        };
        if transfer.length > 0 {
            // SAFETY: the engine checked both ranges against registered regions (R8), which
            // outlive their routes.
            let status = unsafe {
                sys::cuMemcpyAsync(
                    transfer.destination,
                    transfer.source,
                    transfer.length as usize,
                    stream.handle,
                )
            };
            if status != sys::CUresult::CUDA_SUCCESS {
                return Err(failed("cuMemcpyAsync", status));
            }
        }
        for SignalWrite { address, value } in
            [transfer.arrival, transfer.completion].into_iter().flatten()
        {
            // Pairs with wait.cuh: the acquire load of a signal, R9. The default flags fence
            // before the write.
            // SAFETY: signal words are 8-byte aligned words of memory that lives as long as the
            // communicator's world.
            let status = unsafe { sys::cuStreamWriteValue64_v2(stream.handle, address, value, 0) };
            if status != sys::CUresult::CUDA_SUCCESS {
                return Err(failed("cuStreamWriteValue64", status));
            }
        }
        stream.pending += 1;
        stream.latest = (transfer.lane, transfer.position);
        Ok(())
    }

    fn bind(&self, lane: LaneId, position: Position) -> Result<Current, TransportError> {
        Current::bind(&self.context).map_err(|error| {
            let cause = match error {
                Error::Cuda { call, code, name } => TransportCause::Cuda { call, code, name },
                other => TransportCause::Other(other.to_string()),
            };
            TransportError { lane, position, cause }
        })
    }
}

fn cause(call: &str, status: sys::CUresult) -> TransportCause {
    TransportCause::Cuda { call: call.to_owned(), code: status as u32, name: format!("{status:?}") }
}

impl Transport for PeerTransport {
    fn submit(&mut self, batch: &[Transfer]) -> Result<usize, TransportError> {
        let Some(first) = batch.first() else { return Ok(0) };
        let current = self.bind(first.lane, first.position)?;
        for transfer in batch {
            self.enqueue(&current, transfer)?;
        }
        Ok(batch.len())
    }

    fn poll(&mut self) -> Result<Polled, TransportError> {
        self.polls = (self.polls + 1) % POLLS_PER_QUERY;
        if self.polls != 0 || self.streams.iter().all(|stream| stream.pending == 0) {
            return Ok(Polled::default());
        }
        let (lane, position) = self.streams[0].latest;
        let _current = self.bind(lane, position)?;
        let mut completed = 0;
        for stream in self.streams.iter_mut().filter(|stream| stream.pending > 0) {
            // SAFETY: the stream is alive until drop.
            match unsafe { sys::cuStreamQuery(stream.handle) } {
                sys::CUresult::CUDA_SUCCESS => completed += std::mem::take(&mut stream.pending),
                sys::CUresult::CUDA_ERROR_NOT_READY => {}
                status => {
                    let (lane, position) = stream.latest;
                    let cause = cause("cuStreamQuery", status);
                    return Err(TransportError { lane, position, cause });
                }
            }
        }
        Ok(Polled { completed })
    }
}

impl Drop for PeerTransport {
    fn drop(&mut self) {
        if Current::bind(&self.context).is_err() {
            return;
        }
        for stream in &self.streams {
            // Copies end by themselves, so this wait ends too; memory may be freed after it.
            // SAFETY: made by `new`, destroyed only here.
            unsafe {
                sys::cuStreamSynchronize(stream.handle);
                sys::cuStreamDestroy_v2(stream.handle);
            }
        }
    }
}
