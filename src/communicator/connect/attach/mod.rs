//! What a rank's engine gets: its ring, its lanes and its routes. They are described once, in
//! numbers and offsets; each engine gets them in its own form: the proxy with addresses in the
//! peers' memory, a device engine with numbers of the peers' tables.

mod device;
mod engine;
mod proxy;

pub(in crate::communicator) use engine::RankEngine;
pub(super) use proxy::{InterNodeLanes, LaneMemory, register};

use super::description::PortDescription;
use super::peer::Peer;
use super::reach::Reached;
use crate::communicator::state::{Geometry, PortAddresses, PortPlace, ProcessState, RankState};
use crate::engine::device::ChannelAddress;
use crate::error::Result;
use crate::plan::LaneKind;
use crate::settings::Settings;
use std::sync::Arc;

/// How a rank's engine reaches the other ranks.
pub(super) enum Others {
    /// By addresses, and over verbs those for which lanes are named.
    Addressed(Reached, Option<Box<InterNodeLanes>>),
    /// Engine to engine, by each rank's channel.
    Channels(Vec<ChannelAddress>),
}

impl Others {
    /// Where signal and slots lie at the other end of a lane of stores, as kernels of this rank
    /// reach them, if `place` is a port of one.
    pub fn stored(&self, geometry: &Geometry, place: &PortPlace) -> Option<PortAddresses> {
        let Self::Addressed((peers, _), _) = self else { return None };
        stored_at(geometry, place, &peers[place.peer().index()])
    }
}

/// The same, where `there` is the rank at the other end.
pub(super) fn stored_at(
    geometry: &Geometry,
    place: &PortPlace,
    there: &Peer,
) -> Option<PortAddresses> {
    let stores = matches!(place.end.lane.kind, LaneKind::LowLatency | LaneKind::Stores);
    let is_reached = !place.is_inter_node && !there.is_through_host();
    (geometry.stores && stores && is_reached)
        .then(|| there.port(&PortDescription::of(place, &there.layout).there))
}

/// Gives a rank to its engine, with all lanes to its peers and static routes.
pub(super) fn attach(
    process: &Arc<ProcessState>,
    state: &RankState,
    others: Others,
    settings: &Settings,
) -> Result<RankEngine> {
    match others {
        Others::Addressed(reached, inter_node) => {
            proxy::attach(process, state, reached, inter_node, settings)
        }
        Others::Channels(peers) => device::attach(process, state, &peers, settings),
    }
}
