//! Peers that are connected when a transfer first needs them.

use crate::error::TransportCause;
use crate::id::LaneId;

/// Connects peers for a transport.
pub trait Connect: Send {
    /// A transfer waits on `lane`, whose peer the transport does not have. Asked at the first such
    /// transfer and again until the peer was added: begins to connect it, or says that it will not
    /// come. Must not wait for it.
    ///
    /// # Errors
    /// Why there will be no connection; that is final.
    fn request(&mut self, lane: LaneId) -> Result<(), TransportCause>;
}
