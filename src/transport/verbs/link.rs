//! One-sided access to one peer's registered memory from the host, without an engine: reads and
//! writes that are posted and end in order.
//!
//! A transport fails as a whole, since a communicator does. Whoever has to survive the loss of a
//! peer uses a link for each: what happens to one says nothing about the others.

use super::adapter::Adapter;
use super::endpoint::Endpoint;
use super::fault;
use super::queue::{QueuePair, Resolved};
use super::region::{MemoryRegion, RemoteRegion};
use crate::error::{Error, Result, TransportCause, TransportError};
use crate::id::{LaneId, Position, Rank, RouteId};
use crate::transport::Transfer;
use ibverbs_sys as sys;
use std::sync::Arc;

/// Completions that one poll takes.
const POLLED: usize = 16;

/// A connection to one peer.
pub struct Link {
    endpoint: Endpoint,
    /// This side, and the other.
    ranks: (Rank, Rank),
    posted: u64,
    ended: u64,
    failure: Option<Error>,
}

/// A part of registered memory of this side.
#[derive(Clone, Copy)]
pub struct Piece<'a> {
    /// The memory.
    pub memory: &'a MemoryRegion,
    /// First byte.
    pub offset: u64,
}

/// A part of a peer's memory.
#[derive(Clone, Copy)]
pub struct RemotePiece {
    /// The memory.
    pub memory: RemoteRegion,
    /// First byte.
    pub offset: u64,
}

impl Link {
    /// A link that waits for its peer, and the bytes that the peer's link wants.
    ///
    /// # Errors
    /// As [`Endpoint::create`].
    pub fn create(adapter: &Arc<Adapter>, own: Rank, peer: Rank) -> Result<(Self, Vec<u8>)> {
        let (endpoint, bytes) = Endpoint::create(adapter)?;
        let link = Self { endpoint, ranks: (own, peer), posted: 0, ended: 0, failure: None };
        Ok((link, bytes))
    }

    /// Connects to the link whose [`create`](Self::create) gave `remote`.
    ///
    /// # Errors
    /// As [`Endpoint::connect`].
    pub fn connect(&mut self, remote: &[u8]) -> Result<()> {
        self.endpoint.connect(remote)
    }

    /// The rank at the other end.
    pub fn peer(&self) -> Rank {
        self.ranks.1
    }

    /// Begins to write `length` bytes of `from` to `to`. `None` where the queue is full: poll
    /// first. Else a number: the write has ended when [`ended`](Self::ended) has reached it.
    ///
    /// # Errors
    /// [`Error::Argument`] for ranges that do not lie inside; the failure of the link.
    pub fn write(&mut self, from: Piece<'_>, to: RemotePiece, length: u64) -> Result<Option<u64>> {
        self.post(from, to, length, false)
    }

    /// Begins to read `length` bytes of `from` into `into`; otherwise as [`write`](Self::write).
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn read(&mut self, into: Piece<'_>, from: RemotePiece, length: u64) -> Result<Option<u64>> {
        self.post(into, from, length, true)
    }

    /// How many of the accesses that were begun have ended.
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// How many accesses were begun.
    pub fn posted(&self) -> u64 {
        self.posted
    }

    /// The error that ended the link, if any.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// The error of an access over this link.
    pub fn error(&self, number: u64, cause: TransportCause) -> Error {
        let (rank, peer) = self.ranks;
        let error = TransportError { lane: LaneId(0), position: Position(number), cause };
        Error::Transport { rank, peer, error }
    }

    fn post(
        &mut self,
        here: Piece<'_>,
        there: RemotePiece,
        length: u64,
        pull: bool,
    ) -> Result<Option<u64>> {
        self.check()?;
        let local = here.memory.local();
        let lies = |start: u64, all: u64| start.checked_add(length).is_some_and(|end| end <= all);
        let inside =
            lies(here.offset, local.length_bytes) && lies(there.offset, there.memory.length_bytes);
        if !inside || length == 0 {
            let seen = format!("{length} bytes at {} and {}", here.offset, there.offset);
            return Err(Error::argument("access", "a range inside of both memories", seen));
        }
        let (near, far) = (local.base + here.offset, there.memory.base + there.offset);
        let (source, destination) = if pull { (far, near) } else { (near, far) };
        let transfer = Transfer {
            lane: LaneId(0),
            route: RouteId(0),
            source,
            destination,
            length,
            arrival: None,
            completion: None,
            position: Position(self.posted),
            pull,
        };
        let queue = &mut self.endpoint.queues[0];
        if !queue.has_room(&transfer) {
            if queue.exceeds(&transfer) {
                let expected = "fewer bytes; or a higher RINGDOVE_QUEUE_DEPTH";
                return Err(Error::argument("length of an access", expected, length));
            }
            return Ok(None);
        }
        let key = there.memory.rkey;
        let keys =
            Resolved { local: Some(&local), data_key: key, signal_key: key, immediate: None };
        queue.stage(&transfer, &keys);
        if let Err(code) = queue.post() {
            let numbers = queue.numbers();
            let cause = fault::call(self.endpoint.adapter(), numbers, "ibv_post_send", code);
            return Err(self.fail(cause));
        }
        self.posted += 1;
        Ok(Some(self.posted))
    }

    /// Takes note of accesses that have ended.
    ///
    /// # Errors
    /// [`Error::Transport`] where one has failed: nothing that was begun and has not ended will,
    /// and nothing more can be begun.
    pub fn poll(&mut self) -> Result<u64> {
        self.check()?;
        // SAFETY: a completion is plain numbers, for which zeros are values.
        let mut completions: [sys::ibv_wc; POLLED] = unsafe { std::mem::zeroed() };
        let found = match self.endpoint.poll(&mut completions) {
            Ok(found) => found,
            Err(code) => {
                let numbers = self.endpoint.queues[0].numbers();
                let cause = fault::call(self.endpoint.adapter(), numbers, "ibv_poll_cq", code);
                return Err(self.fail(cause));
            }
        };
        for completion in &completions[..found] {
            if let Some((status, vendor_code)) = completion.error() {
                let (adapter, queue) = (self.endpoint.adapter(), &self.endpoint.queues[0]);
                let cause = fault::completion(adapter, queue, status, vendor_code);
                return Err(self.fail(cause));
            }
            let (_, count) = QueuePair::split(completion.wr_id());
            let ended = &mut self.ended;
            self.endpoint.queues[0].retire(count, |_| *ended += 1);
        }
        Ok(self.ended)
    }

    /// Ends the link: the adapter carries out nothing more that the peer asks for over it. When
    /// this has returned, the peer's accesses have taken place or never will.
    ///
    /// # Errors
    /// [`Error::System`] with the adapter's answer.
    pub fn break_off(&mut self) -> Result<()> {
        if self.failure.is_none() {
            let why = TransportCause::Other("the link was broken off on this side".into());
            let _ = self.fail(why);
        }
        self.endpoint.break_off()
    }

    fn check(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    fn fail(&mut self, cause: TransportCause) -> Error {
        let error = self.error(self.ended, cause);
        self.failure.get_or_insert(error).clone()
    }
}
