//! The peer transport: ranks of one node, moved by the GPU's copy engines.
//!
//! A transfer is a copy on a stream, and its signals follow it on the same stream, as memory
//! operations or as copies of their own ([`SignalWay`]). A stream runs in order, and the driver
//! fences between two copies and before it writes a value, so the signal is written after the
//! copied bytes are visible on every device (R9).
//!
//! Whether that holds between two GPUs is tried before anybody relies on it: see [`probe`].

pub(crate) mod probe;

use super::{Polled, SignalWrite, Transfer, Transport};
use crate::error::{Error, Result, TransportCause, TransportError};
use crate::gpu::{Current, SignalStream};
use crate::id::{LaneId, Position, SignalWay};
use crate::settings::Remedies;
use cudarc::driver::{CudaContext, sys};
use std::sync::Arc;

/// Streams of one transport. Lanes are dealt out over them; more streams than copy engines gain
/// nothing, fewer make lanes wait for one another.
const STREAMS: usize = 4;
/// Polls between two questions to the driver, which cost about a microsecond each.
const POLLS_PER_QUERY: u32 = 64;

/// Moves bytes between GPUs of one node.
#[derive(Debug)]
pub(crate) struct PeerTransport {
    context: Arc<CudaContext>,
    streams: Vec<CopyStream>,
    polls: u32,
    is_apart_from_captures: bool,
}

#[derive(Debug)]
struct CopyStream {
    signals: SignalStream,
    /// Transfers submitted and not yet seen to have ended.
    pending: u64,
    /// The latest of them, for error messages.
    latest: (LaneId, Position),
}

impl PeerTransport {
    /// A transport whose copies run on `context`'s device.
    ///
    /// # Errors
    /// [`Error::Cuda`] where streams cannot be made.
    pub fn new(context: &Arc<CudaContext>, remedies: &Remedies) -> Result<Self> {
        let stream = || {
            let signals = SignalStream::new(context, SignalWay::Copy)?;
            Ok(CopyStream { signals, pending: 0, latest: (LaneId(0), Position(0)) })
        };
        let streams = (0..STREAMS).map(|_| stream()).collect::<Result<_>>()?;
        let is_apart_from_captures = remedies.apart_from_captures;
        Ok(Self { context: context.clone(), streams, polls: 0, is_apart_from_captures })
    }

    /// How signals are raised from now on. Copies are, unless somebody knows better.
    pub fn set_signal_way(&mut self, way: SignalWay) {
        self.streams.iter_mut().for_each(|stream| stream.signals.set_way(way));
    }

    /// Enqueues one transfer. False: the stream has no room for its signals yet.
    fn enqueue(&mut self, current: &Current, transfer: &Transfer) -> Result<bool, TransportError> {
        let index = transfer.lane.0 as usize % self.streams.len();
        let stream = &mut self.streams[index];
        let failed = |error| TransportError {
            lane: transfer.lane,
            position: transfer.position,
            cause: cause(error),
        };
        let signals = [transfer.arrival, transfer.completion].into_iter().flatten();
        if !stream.signals.has_room(current, signals.clone().count() as u64).map_err(failed)? {
            return Ok(false);
        }
        if transfer.length > 0 {
            // SAFETY: the engine checked both ranges against registered regions (R8), which
            // outlive their routes.
            let status = unsafe {
                sys::cuMemcpyAsync(
                    transfer.destination,
                    transfer.source,
                    transfer.length as usize,
                    stream.signals.stream().handle(),
                )
            };
            current.check("cuMemcpyAsync", status).map_err(failed)?;
        }
        for SignalWrite { address, value } in signals {
            // SAFETY: signal words are 8-byte aligned words of memory that lives as long as the
            // communicator's world.
            unsafe { stream.signals.raise(current, address, value) }.map_err(failed)?;
        }
        stream.pending += 1;
        stream.latest = (transfer.lane, transfer.position);
        Ok(true)
    }

    /// Makes the context current on the engine's thread.
    fn bind(&self, lane: LaneId, position: Position) -> Result<Current, TransportError> {
        let current = Current::bind(&self.context).and_then(|current| {
            if self.is_apart_from_captures { current.apart_from_captures() } else { Ok(current) }
        });
        current.map_err(|error| TransportError { lane, position, cause: cause(error) })
    }
}

fn cause(error: Error) -> TransportCause {
    match error {
        Error::Cuda { call, code, name } => TransportCause::Cuda { call, code, name },
        other => TransportCause::Other(other.to_string()),
    }
}

impl Transport for PeerTransport {
    fn submit(&mut self, batch: &[Transfer]) -> Result<usize, TransportError> {
        let Some(first) = batch.first() else { return Ok(0) };
        let current = self.bind(first.lane, first.position)?;
        for (taken, transfer) in batch.iter().enumerate() {
            if !self.enqueue(&current, transfer)? {
                return Ok(taken);
            }
        }
        Ok(batch.len())
    }

    fn poll(&mut self) -> Result<Polled, TransportError> {
        self.polls = (self.polls + 1) % POLLS_PER_QUERY;
        if self.polls != 0 || self.streams.iter().all(|stream| stream.pending == 0) {
            return Ok(Polled::default());
        }
        let (lane, position) = self.streams[0].latest;
        let current = self.bind(lane, position)?;
        let mut completed = 0;
        for stream in self.streams.iter_mut().filter(|stream| stream.pending > 0) {
            let (lane, position) = stream.latest;
            let failed = |error| TransportError { lane, position, cause: cause(error) };
            if stream.signals.stream().is_idle(&current).map_err(failed)? {
                completed += std::mem::take(&mut stream.pending);
            }
        }
        Ok(Polled { completed })
    }
}
