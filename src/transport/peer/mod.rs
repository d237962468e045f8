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
use crate::gpu::{COPY_STREAMS, ContextStreams, Current, Event, Home, OwnStream};
use crate::id::{LaneId, Position, SignalWay};
use crate::lived::Lived;
use crate::settings::Remedies;
use cudarc::driver::sys;
use std::sync::Arc;
use std::time::Duration;

/// Polls between two questions to the driver, which cost about a microsecond each.
const POLLS_PER_QUERY: u32 = 64;

/// Between two looks of a transport that is dropped.
const PAUSE: Duration = Duration::from_micros(50);
/// How long a transport that is dropped waits for its copies.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Moves bytes between GPUs of one node.
#[derive(Debug)]
pub(crate) struct PeerTransport {
    /// Lanes are dealt out over them.
    streams: Arc<ContextStreams>,
    tallies: [Tally; COPY_STREAMS],
    signal_way: SignalWay,
    polls: u32,
    is_apart_from_captures: bool,
}

/// What a transport has on one of the streams.
#[derive(Debug)]
struct Tally {
    count: Count,
    /// In a stream that others use, too, and which may thus never be idle.
    mark: Event,
    /// The latest transfer, for error messages.
    latest: (LaneId, Position),
}

/// The same in numbers.
#[derive(Debug, Default)]
struct Count {
    /// Transfers submitted and not yet seen to have ended.
    pending: u64,
    /// So many of them are before the mark; 0: it is free.
    marked: u64,
}

/// What the driver says of a stream.
#[derive(Clone, Copy, Debug)]
enum Seen {
    /// Nothing is in it.
    Idle,
    /// It has passed the mark.
    Passed,
    /// Neither.
    Busy,
}

impl Count {
    fn submit(&mut self) {
        self.pending += 1;
    }

    /// How many transfers have ended, as far as that has been seen.
    fn end(&mut self, seen: Seen) -> u64 {
        let ended = match seen {
            Seen::Idle => {
                self.marked = 0;
                self.pending
            }
            Seen::Passed => std::mem::take(&mut self.marked),
            Seen::Busy => 0,
        };
        self.pending -= ended;
        ended
    }

    /// A mark would say more than there is to know.
    fn wants_mark(&self) -> bool {
        self.marked == 0 && self.pending > 0
    }
}

/// The stream of a lane: always the same one, whose order is that of the lane (R11).
fn stream_of(transfer: &Transfer) -> usize {
    transfer.lane.0 as usize % COPY_STREAMS
}

impl Tally {
    fn new(home: &Home) -> Result<Self> {
        let latest = (LaneId(0), Position(0));
        Ok(Self { count: Count::default(), mark: Event::new(home)?, latest })
    }

    /// How many transfers have ended since the last call. `is_shared`: others use the stream.
    fn ended(&mut self, current: &Current, stream: &OwnStream, is_shared: bool) -> Result<u64> {
        let seen = if stream.is_idle(current)? {
            Seen::Idle
        } else if self.count.marked > 0 && self.mark.has_come(current)? {
            Seen::Passed
        } else {
            Seen::Busy
        };
        let ended = self.count.end(seen);
        if is_shared && self.count.wants_mark() {
            self.mark.record(current, stream)?;
            self.count.marked = self.count.pending;
        }
        Ok(ended)
    }
}

impl PeerTransport {
    /// A transport whose copies run on these streams.
    ///
    /// # Errors
    /// [`Error::Cuda`] where events cannot be made.
    pub fn new(streams: &Arc<ContextStreams>, remedies: &Remedies) -> Result<Self> {
        let tally = || Tally::new(streams.home());
        let tallies = [tally()?, tally()?, tally()?];
        streams.enter();
        Ok(Self {
            streams: streams.clone(),
            tallies,
            signal_way: SignalWay::Copy,
            polls: 0,
            is_apart_from_captures: remedies.apart_from_captures,
        })
    }

    /// How signals are raised from now on. Copies are, unless somebody knows better.
    pub fn set_signal_way(&mut self, way: SignalWay) {
        self.signal_way = way;
    }

    /// Enqueues one transfer. False: the stream has no room for its signals yet.
    fn enqueue(&mut self, current: &Current, transfer: &Transfer) -> Result<bool, TransportError> {
        let index = stream_of(transfer);
        let mut stream = self.streams.copies(index);
        stream.set_way(self.signal_way);
        let failed = |error| TransportError {
            lane: transfer.lane,
            position: transfer.position,
            cause: cause(error),
        };
        let signals = [transfer.arrival, transfer.completion].into_iter().flatten();
        if !stream.has_room(current, signals.clone().count() as u64).map_err(failed)? {
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
                    stream.stream().handle(),
                )
            };
            current.check("cuMemcpyAsync", status).map_err(failed)?;
        }
        for SignalWrite { address, value } in signals {
            // SAFETY: signal words are 8-byte aligned words of memory that lives as long as the
            // communicator's world.
            unsafe { stream.raise(current, address, value) }.map_err(failed)?;
        }
        let tally = &mut self.tallies[index];
        tally.count.submit();
        tally.latest = (transfer.lane, transfer.position);
        Ok(true)
    }

    /// Asks the driver what has ended on all streams.
    fn ended(&mut self, current: &Current) -> Result<u64, TransportError> {
        let (mut ended, is_shared) = (0, self.streams.are_shared());
        for (index, tally) in self.tallies.iter_mut().enumerate() {
            if tally.count.pending == 0 {
                continue;
            }
            let (lane, position) = tally.latest;
            let stream = self.streams.copies(index);
            ended += tally
                .ended(current, stream.stream(), is_shared)
                .map_err(|error| TransportError { lane, position, cause: cause(error) })?;
        }
        Ok(ended)
    }

    fn is_idle(&self) -> bool {
        self.tallies.iter().all(|tally| tally.count.pending == 0)
    }

    /// Makes the context current on the engine's thread.
    fn bind(&self, lane: LaneId, position: Position) -> Result<Current, TransportError> {
        let current = self.streams.home().bind().and_then(|current| {
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
        if self.polls != 0 || self.is_idle() {
            return Ok(Polled::default());
        }
        let (lane, position) = self.tallies[0].latest;
        let current = self.bind(lane, position)?;
        Ok(Polled { completed: self.ended(&current)? })
    }
}

impl Drop for PeerTransport {
    /// Memory that the copies use may be freed after this.
    fn drop(&mut self) {
        let mut lived = Lived::new();
        while !self.is_idle() {
            // A failed context copies nothing any more.
            let Ok(current) = self.streams.home().bind() else { break };
            if self.ended(&current).is_err() {
                break;
            }
            if lived.look() > END_TIMEOUT {
                tracing::error!(waited = ?END_TIMEOUT, "copies between GPUs have not ended");
                break;
            }
            std::thread::sleep(PAUSE);
        }
        self.streams.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, memory is freed under copies, or is never freed.
    #[test]
    fn transfers_count_as_in_flight_until_they_are_seen_to_have_ended() {
        let mut count = Count::default();
        assert_eq!(count.end(Seen::Idle), 0);
        (0..3).for_each(|_| count.submit());
        assert!(count.wants_mark());
        count.marked = count.pending;
        count.submit();
        assert_eq!((count.end(Seen::Busy), count.pending), (0, 4));
        // Those before the mark, and no others.
        assert_eq!((count.end(Seen::Passed), count.pending), (3, 1));
        assert!(count.wants_mark());
        assert_eq!((count.end(Seen::Idle), count.pending), (1, 0));
        assert!(!count.wants_mark());
        // A mark of what has ended says nothing of what comes later.
        count.submit();
        count.marked = count.pending;
        assert_eq!((count.end(Seen::Idle), count.marked), (1, 0));
    }

    /// If this fails, a transfer overtakes one of its lane, and a signal the data before it (R11).
    #[test]
    fn transfers_of_a_lane_go_by_one_stream() {
        for lane in 0..7 {
            let streams: Vec<_> = (0..9).map(|at| stream_of(&Transfer::empty(lane, at))).collect();
            assert!(streams.iter().all(|stream| *stream == streams[0]), "{streams:?}");
        }
        let all: std::collections::BTreeSet<_> =
            (0..7).map(|lane| stream_of(&Transfer::empty(lane, 0))).collect();
        assert_eq!(all.len(), COPY_STREAMS, "lanes are dealt out over all streams");
    }
}
