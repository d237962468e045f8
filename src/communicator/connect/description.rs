//! Lanes, routes and memory of a rank in numbers and offsets, as every engine gets them.

use crate::communicator::state::{Layout, PortPlace};
use crate::id::Rank;
use crate::plan::{LaneEnd, LaneKind, Side};

/// The first byte of notes on places in registered memory: no other kind of note begins so.
pub(super) const PLACE_NOTE: u8 = 0xfe;

/// A grant is one word.
const GRANT_WORD_BYTES: u64 = 8;

/// The number of the window that is a rank's staging memory; registrations follow it.
pub(super) const STAGING: u64 = 0;

/// The number of the window that is registration `number`.
pub(super) fn registration_window(number: usize) -> u64 {
    STAGING + 1 + number as u64
}

/// The lane that a port rings on and, if it has one, its static route. Both have the port's number.
pub(super) struct PortDescription {
    pub number: u32,
    pub peer: Rank,
    /// The peer's port at the other end of the lane.
    pub there: PortPlace,
    /// Does it raise a signal, that of the peer's port? Not on an LL lane: nobody waits for signals
    /// of those, so nobody may ask for one (R8).
    pub raises: bool,
    /// Offset in this rank's signal memory of what says that a source was read.
    pub completion: Option<u64>,
    /// Offset of this rank's word that the peer's lane raises.
    pub signal: Option<u64>,
    pub route: Option<RouteDescription>,
}

/// From anywhere in this rank's staging memory (or nowhere) to some of the peer's: slots, or the
/// place of a grant (R15).
pub(super) struct RouteDescription {
    pub carries_data: bool,
    /// Offset of the destination in the peer's staging memory.
    pub offset: u64,
    pub bytes: u64,
}

impl PortDescription {
    pub fn of(place: &PortPlace, peer_layout: &Layout) -> Self {
        let end = place.end;
        let side = match end.side {
            Side::Send => Side::Receive,
            // A receive port rings to return credits: what it raises is the send port's signal.
            Side::Receive => Side::Send,
        };
        let there = LaneEnd { lane: end.lane, side };
        let there = peer_layout.port(there).expect("both ends of a lane exist");
        let low_latency = end.lane.kind == LaneKind::LowLatency;
        let sends = end.side == Side::Send;
        let route = match (end.side, end.lane.kind) {
            (Side::Send, LaneKind::Direct) | (_, LaneKind::Stores) => None,
            (Side::Send, _) => Some(RouteDescription {
                // So that what arrived can go on as it lies.
                carries_data: true,
                offset: there.slots,
                bytes: place.slots_bytes(),
            }),
            (Side::Receive, LaneKind::Slots) => {
                let offset = there.grant();
                Some(RouteDescription { carries_data: true, offset, bytes: GRANT_WORD_BYTES })
            }
            (Side::Receive, _) => {
                Some(RouteDescription { carries_data: false, offset: 0, bytes: 0 })
            }
        };
        Self {
            number: place.number,
            peer: place.peer(),
            there,
            raises: !low_latency,
            completion: (sends && !low_latency).then_some(place.completion),
            signal: (!low_latency).then_some(place.signal),
            route,
        }
    }
}
