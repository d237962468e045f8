//! Routes that are added one by one while a communicator runs, in either engine's form.

use super::description::{PortDescription, STAGING};
use super::peer::Peer;
use crate::communicator::state::{Geometry, Layout, PortPlace};
use crate::engine::device::Channel;
use crate::engine::{AttachmentHandle, RegionDescriptor, Route};
use crate::error::{Error, Result};
use crate::id::{LaneId, RouteId};
use ringdove_kernels::bar;
use std::sync::Arc;

/// What adds and removes single routes.
pub(in crate::communicator) enum EngineRoutes {
    Proxy { handle: AttachmentHandle, peers: Arc<Vec<Peer>> },
    Device { channel: Arc<Channel>, geometry: Geometry },
}

/// Where a route leads.
#[derive(Clone, Copy)]
pub(super) enum Destination {
    Memory(RegionDescriptor),
    Window { number: u64, offset: u64, bytes: u64 },
}

impl EngineRoutes {
    /// The slots at the other end of a send port's lane.
    pub(super) fn slots(&self, place: &PortPlace) -> Destination {
        let bytes = place.slots_bytes();
        match self {
            Self::Proxy { peers, .. } => {
                let there = &peers[place.peer().index()];
                let port = PortDescription::of(place, &there.layout);
                let base = there.port(&port.there).slots;
                Destination::Memory(RegionDescriptor { base, length_bytes: bytes })
            }
            Self::Device { geometry, .. } => {
                let port = PortDescription::of(place, &Layout::new(geometry, place.peer()));
                Destination::Window { number: STAGING, offset: port.there.slots, bytes }
            }
        }
    }

    /// Adds a route of the lane with this number.
    pub(super) fn add(
        &self,
        route: u32,
        lane: u32,
        source: RegionDescriptor,
        to: &Destination,
    ) -> Result<()> {
        match (self, *to) {
            (Self::Proxy { handle, .. }, Destination::Memory(destination)) => {
                let lane = LaneId(lane);
                let route_of = Route { lane, source, destination, pull: false };
                handle.add_route(RouteId(route), route_of)
            }
            (Self::Device { channel, .. }, Destination::Window { number, offset, bytes }) => {
                let entry = bar::Route {
                    lane: lane.into(),
                    source_base: source.base,
                    source_length: source.length_bytes,
                    window: number,
                    window_offset: offset,
                    destination_length: bytes,
                    reserved: 0,
                    valid: 1,
                };
                channel.enter_route(RouteId(route), entry)
            }
            _ => Err(Error::argument("route", "one of this rank's kind of engine", route)),
        }
    }

    /// Adds a route of the lane with this number whose source is a peer's memory; where that is on
    /// another node (`pull`), the adapter reads it.
    ///
    /// # Errors
    /// [`Error::Argument`] for a device engine, which reads its own rank's memory alone.
    pub(super) fn add_foreign(
        &self,
        route: u32,
        lane: u32,
        [source, destination]: [RegionDescriptor; 2],
        pull: bool,
    ) -> Result<()> {
        match self {
            Self::Proxy { handle, .. } => {
                let route_of = Route { lane: LaneId(lane), source, destination, pull };
                handle.add_route(RouteId(route), route_of)
            }
            Self::Device { .. } => {
                let expected = "this rank's own: device engines write and do not read \
                                (RINGDOVE_ENGINE=proxy does)";
                Err(Error::argument("source of a transfer", expected, "another rank's memory"))
            }
        }
    }

    /// Removes a route on which nothing is rung or in flight.
    pub(super) fn remove(&self, route: u32) -> Result<()> {
        match self {
            Self::Proxy { handle, .. } => handle.remove_route(RouteId(route)),
            Self::Device { channel, .. } => {
                channel.clear_route(RouteId(route));
                Ok(())
            }
        }
    }
}
