//! Writes from one registered region into another through one adapter, on an endpoint that is
//! connected to itself: what a peer's writes do to this side's memory, without a peer.

use super::endpoint::Endpoint;
use super::fault;
use super::queue::{QueuePair, Resolved};
use super::region::{MemoryRegion, RemoteRegion};
use crate::error::{Error, Result, TransportCause, TransportError};
use crate::id::{LaneId, Position, Rank, RouteId};
use crate::transport::Transfer;
use ibverbs_sys as sys;

/// Completions that one poll takes.
const POLLED: usize = 16;

/// A writer; what is in flight when it is dropped may still be written.
pub struct Loopback<'a> {
    endpoint: Endpoint,
    source: &'a MemoryRegion,
    target: RemoteRegion,
    written: u64,
    ended: u64,
}

impl<'a> Loopback<'a> {
    /// From `source` into `target`, which have been registered with the same adapter.
    ///
    /// # Errors
    /// As [`Endpoint::create`] and [`Endpoint::connect`].
    pub fn new(source: &'a MemoryRegion, target: &'a MemoryRegion) -> Result<Self> {
        let (mut endpoint, own) = Endpoint::create(target.adapter())?;
        endpoint.connect(&own)?;
        Ok(Self { endpoint, source, target: target.remote(), written: 0, ended: 0 })
    }

    /// Writes that have not ended.
    pub fn in_flight(&self) -> u64 {
        self.written - self.ended
    }

    /// Begins to write `length` bytes from `from` bytes into the source to `to` bytes into the
    /// target; false where the queue pair is full.
    ///
    /// # Errors
    /// [`Error::Argument`] for a range that does not lie inside; [`Error::Transport`] where the
    /// adapter refuses.
    pub fn write(&mut self, from: u64, to: u64, length: u64) -> Result<bool> {
        let source = self.source.local();
        let lies = |start: u64, all: u64| start.checked_add(length).is_some_and(|end| end <= all);
        if !lies(from, source.length_bytes) || !lies(to, self.target.length_bytes) {
            let seen = format!("{length} bytes from {from} to {to}");
            return Err(Error::argument("a write", "inside of both regions", seen));
        }
        let transfer = Transfer {
            lane: LaneId(0),
            route: RouteId(0),
            source: source.base + from,
            destination: self.target.base + to,
            length,
            arrival: None,
            completion: None,
            position: Position(self.written),
            pull: false,
        };
        let queue = &mut self.endpoint.queues[0];
        if !queue.has_room(&transfer) {
            return Ok(false);
        }
        let data_key = self.target.rkey;
        let keys =
            Resolved { local: Some(&source), data_key, signal_key: data_key, immediate: None };
        queue.stage(&transfer, &keys);
        if let Err(code) = queue.post() {
            let numbers = queue.numbers();
            return Err(self.failed(fault::call(self.adapter(), numbers, "ibv_post_send", code)));
        }
        self.written += 1;
        Ok(true)
    }

    /// Takes note of writes that have ended.
    ///
    /// # Errors
    /// [`Error::Transport`] where one has failed.
    pub fn poll(&mut self) -> Result<()> {
        // SAFETY: a completion is plain numbers, for which zeros are values.
        let mut completions: [sys::ibv_wc; POLLED] = unsafe { std::mem::zeroed() };
        let found = self.endpoint.poll(&mut completions).map_err(|code| {
            let numbers = self.endpoint.queues[0].numbers();
            self.failed(fault::call(self.adapter(), numbers, "ibv_poll_cq", code))
        })?;
        for completion in &completions[..found] {
            if let Some((status, vendor_code)) = completion.error() {
                let queue = &self.endpoint.queues[0];
                return Err(self.failed(fault::completion(
                    self.adapter(),
                    queue,
                    status,
                    vendor_code,
                )));
            }
            let (_, count) = QueuePair::split(completion.wr_id());
            let ended = &mut self.ended;
            self.endpoint.queues[0].retire(count, |_| *ended += 1);
        }
        Ok(())
    }

    fn adapter(&self) -> &super::Adapter {
        self.endpoint.adapter()
    }

    fn failed(&self, cause: TransportCause) -> Error {
        let error = TransportError { lane: LaneId(0), position: Position(self.written), cause };
        Error::Transport { rank: Rank(0), peer: Rank(0), error }
    }
}
