//! Routes and lanes: what a descriptor may name, and what the engine checks it against (R8).
//!
//! The control plane adds routes and lanes while the engine runs, always before a descriptor can
//! name them. They travel through a channel that the engine empties at the start of each step and
//! once more before it calls a route unknown, so what was added before a doorbell rang is always
//! found, and the hot path takes no lock.

use crate::error::DescriptorFault;
use crate::id::{LaneId, Rank, RouteId};
use crate::transport::{SignalWrite, Transfer};
use ringdove_kernels::descriptor::Descriptor;

/// The most lanes of one attachment.
pub const LANES_MAX: usize = 1 << 20;

/// Memory that a route may touch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionDescriptor {
    /// Device address of its first byte.
    pub base: u64,
    /// Bytes; 0 for a route that carries signals alone.
    pub length_bytes: u64,
}

/// A registered pair of source and destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The lane that orders its transfers and has its signals.
    pub lane: LaneId,
    /// Where transfers may read.
    pub source: RegionDescriptor,
    /// Where transfers may write.
    pub destination: RegionDescriptor,
    /// The source is the peer's memory, which an adapter reads; see [`Transfer::pull`].
    pub pull: bool,
}

/// A directed path to one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The rank at the far end.
    pub peer: Rank,
    /// Device address of the signal that tells the far end that data (or a credit) arrived.
    pub arrival: Option<u64>,
    /// Device address of the signal that tells this rank that a source may be overwritten.
    pub completion: Option<u64>,
}

/// A lane with the signals that were raised on it so far. Counting here makes R9 hold by
/// construction: the value written is the count, and the count only grows.
pub(super) struct LaneState {
    pub(super) lane: Lane,
    arrivals: u64,
    completions: u64,
    /// Sequence number of the lane's last transfer that waits for the transport, if any. Counted
    /// from 1 over the life of the attachment; 0 is never pending.
    pub(super) last_pending: u64,
}

/// What one attachment's descriptors may name.
#[derive(Default)]
pub(super) struct RouteTable {
    routes: Vec<Option<Route>>,
    lanes: Vec<Option<LaneState>>,
}

impl RouteTable {
    pub(super) fn set_route(&mut self, id: RouteId, route: Option<Route>) {
        let index = id.0 as usize;
        if index >= self.routes.len() {
            self.routes.resize(index + 1, None);
        }
        self.routes[index] = route;
    }

    /// Adds a lane. `AttachmentHandle` sees to it that no lane is added twice, since that would
    /// set its counts back.
    pub(super) fn add_lane(&mut self, id: LaneId, lane: Lane) {
        let index = id.0 as usize;
        if index >= self.lanes.len() {
            self.lanes.resize_with(index + 1, || None);
        }
        self.lanes[index] = Some(LaneState { lane, arrivals: 0, completions: 0, last_pending: 0 });
    }

    pub(super) fn route(&self, id: RouteId) -> Option<&Route> {
        self.routes.get(id.0 as usize)?.as_ref()
    }

    pub(super) fn lane(&self, id: LaneId) -> Option<&Lane> {
        self.lanes.get(id.0 as usize)?.as_ref().map(|state| &state.lane)
    }

    pub(super) fn lane_state(&mut self, id: LaneId) -> Option<&mut LaneState> {
        self.lanes.get_mut(id.0 as usize)?.as_mut()
    }

    /// R8: turns a descriptor into a transfer of registered memory, or says why not. Counts its
    /// signals, so the transfer must be submitted, or the attachment failed.
    pub(super) fn check(
        &mut self,
        descriptor: &Descriptor,
        position: crate::id::Position,
    ) -> Result<Transfer, DescriptorFault> {
        let id = RouteId(descriptor.route);
        let route = *self.route(id).ok_or(DescriptorFault::UnknownRoute)?;
        let length = u64::from(descriptor.length);
        if !route.source.holds(descriptor.source_offset, length) {
            return Err(DescriptorFault::SourceRange(route.source.length_bytes));
        }
        if !route.destination.holds(descriptor.destination_offset, length) {
            return Err(DescriptorFault::DestinationRange(route.destination.length_bytes));
        }
        let state = self.lane_state(route.lane).ok_or(DescriptorFault::UnknownRoute)?;
        let (source, destination) = match length {
            0 => (0, 0),
            _ => (
                route.source.base + descriptor.source_offset,
                route.destination.base + descriptor.destination_offset,
            ),
        };
        // Both faults are found before either count moves.
        let arrival = wanted(descriptor.arrival, state.lane.arrival)
            .map_err(|()| DescriptorFault::NoArrivalSignal(route.lane))?;
        let completion = wanted(descriptor.completion, state.lane.completion)
            .map_err(|()| DescriptorFault::NoCompletionSignal(route.lane))?;
        Ok(Transfer {
            lane: route.lane,
            route: id,
            source,
            destination,
            length,
            arrival: arrival.map(|address| raise(address, &mut state.arrivals)),
            completion: completion.map(|address| raise(address, &mut state.completions)),
            position,
            pull: route.pull,
        })
    }
}

impl RegionDescriptor {
    /// True if `length` bytes from `offset` lie inside. Cannot overflow for descriptors' fields
    /// (40 and 22 bits), and is checked all the same.
    fn holds(&self, offset: u64, length: u64) -> bool {
        offset.checked_add(length).is_some_and(|end| end <= self.length_bytes)
    }
}

fn wanted(asked: bool, address: Option<u64>) -> Result<Option<u64>, ()> {
    match (asked, address) {
        (false, _) => Ok(None),
        (true, Some(address)) => Ok(Some(address)),
        (true, None) => Err(()),
    }
}

fn raise(address: u64, count: &mut u64) -> SignalWrite {
    *count += 1;
    SignalWrite { address, value: *count }
}
