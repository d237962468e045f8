//! Transports: they move bytes to a peer and raise signals, and know nothing of rings or plans.
//!
//! * `peer`: ranks of one node, moved by copy engines
//! * [`verbs`]: ranks of other nodes, moved by RDMA adapters (feature `verbs`; without it, the same
//!   names with nothing behind them, so that nobody else needs to ask)
//! * [`split`]: both, each for its lanes
//! * [`traced`]: middleware that records what went through

pub(crate) mod peer;
pub mod split;
pub mod traced;
#[cfg(feature = "verbs")]
pub mod verbs;
#[cfg(not(feature = "verbs"))]
#[path = "without_verbs.rs"]
pub mod verbs;

pub use crate::error::{TransportCause, TransportError};
use crate::id::{LaneId, Position, RouteId};

/// A signal to raise: `value` is the running count, so it only grows (R9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SignalWrite {
    /// Device address of the signal word (u64).
    pub address: u64,
    /// What to write.
    pub value: u64,
}

/// One checked transfer. Addresses are valid for as long as its route is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transfer {
    /// Orders the transfer: those of one lane take effect in the order of submission (R11).
    pub lane: LaneId,
    /// The route that was named.
    pub route: RouteId,
    /// Device address of the first byte to read; 0 when `length` is 0.
    pub source: u64,
    /// Device address of the first byte to write; 0 when `length` is 0.
    pub destination: u64,
    /// Bytes to move; 0 for signals alone.
    pub length: u64,
    /// Raised at the destination after the data is visible there.
    pub arrival: Option<SignalWrite>,
    /// Raised at the source once the source may be overwritten.
    pub completion: Option<SignalWrite>,
    /// Ring position of the (first) descriptor that asked for it.
    pub position: Position,
    /// The peer's memory is the source: an adapter reads it. Where both ends are addresses of one
    /// node it makes no difference.
    pub pull: bool,
}

#[cfg(test)]
impl Transfer {
    /// One that moves nothing and raises nothing.
    pub(crate) fn empty(lane: u32, position: u64) -> Self {
        Self {
            lane: LaneId(lane),
            route: RouteId(0),
            source: 0,
            destination: 0,
            length: 0,
            arrival: None,
            completion: None,
            position: Position(position),
            pull: false,
        }
    }
}

/// What a poll found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// Transfers, signals included, that ended since the last poll.
    pub completed: u64,
}

/// Moves bytes and raises signals. Neither method may block.
pub trait Transport: Send {
    /// Takes transfers from the front of `batch`, in order, and says how many. Fewer than offered
    /// is back-pressure: the engine offers the rest again later.
    ///
    /// # Errors
    /// A failure is final: the engine fails the communicator and submits nothing more.
    fn submit(&mut self, batch: &[Transfer]) -> Result<usize, TransportError>;

    /// Makes progress and counts what ended.
    ///
    /// # Errors
    /// As for [`submit`](Transport::submit).
    fn poll(&mut self) -> Result<Polled, TransportError>;

    /// True if [`poll`](Transport::poll) has to be called also while nothing that was submitted
    /// here is on its way, since what peers submit ends here. Does not change.
    fn listens(&self) -> bool {
        false
    }
}

impl<T: Transport + ?Sized> Transport for Box<T> {
    fn submit(&mut self, batch: &[Transfer]) -> Result<usize, TransportError> {
        (**self).submit(batch)
    }

    fn poll(&mut self) -> Result<Polled, TransportError> {
        (**self).poll()
    }

    fn listens(&self) -> bool {
        (**self).listens()
    }
}
