//! The proxy's form: addresses in the peers' memory, a transport, and the threads that all
//! communicators share.

use super::engine::RankEngine;
use crate::communicator::connect::description::{PortDescription, RouteDescription};
use crate::communicator::connect::peer::Peer;
use crate::communicator::connect::reach::Reached;
use crate::communicator::state::{
    Endpoint, Layout, PortPlace, ProcessState, RankMemory, RankState,
};
use crate::engine::{
    AttachmentHandle, AttachmentParts, EngineSettings, Lane, ProxyThreads, RegionDescriptor, Route,
    Watch,
};
use crate::error::{Error, Result};
use crate::id::{LaneId, RouteId};
use crate::plan::{LaneKind, Side};
use crate::ring::{Consumer, RingSize};
use crate::settings::Settings;
use crate::transport::Transport;
use crate::transport::peer::PeerTransport;
use crate::transport::split::Split;
use crate::transport::traced::{TraceFile, Traced};
use crate::transport::verbs::VerbsTransport;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A transport to other nodes, and the lanes that lead there.
pub(in crate::communicator::connect) type InterNodeLanes = (VerbsTransport, Vec<LaneId>);

/// The proxy threads that all communicators of the process share. They end with the last one.
static PROXIES: Mutex<Weak<ProxyThreads>> = Mutex::new(Weak::new());

/// The process's proxy threads, started with `settings` if there are none.
fn proxies(settings: &Settings) -> Result<Arc<ProxyThreads>> {
    let mut shared = PROXIES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(running) = shared.upgrade() {
        return Ok(running);
    }
    let started = Arc::new(ProxyThreads::start(&EngineSettings {
        threads: settings.proxy_threads,
        cores: settings.proxy_cpus.clone(),
        coalesce_bytes_max: settings.coalesce_bytes_max,
        ..EngineSettings::default()
    })?);
    *shared = Arc::downgrade(&started);
    Ok(started)
}

/// Gives a rank to a proxy thread.
pub(super) fn attach(
    process: &Arc<ProcessState>,
    state: &RankState,
    (peers, way): Reached,
    inter_node: Option<Box<InterNodeLanes>>,
    settings: &Settings,
) -> Result<RankEngine> {
    let threads = proxies(settings)?;
    let (slots, tail) = state.memory.ring()?;
    let remedies = &settings.remedies;
    let mut near = PeerTransport::new(state.memory.streams(), remedies)?;
    if let Some(way) = remedies.signal_way.or(way) {
        near.set_signal_way(way);
    }
    let by_adapter: BTreeSet<LaneId> =
        inter_node.iter().flat_map(|inter_node| inter_node.1.clone()).collect();
    let transport: Box<dyn Transport> = match inter_node {
        None => Box::new(near),
        Some(inter_node) => {
            let (verbs, lanes) = *inter_node;
            Box::new(Split::new(near, verbs, &lanes))
        }
    };
    let transport = traced(transport, state, settings)?;
    let attached = threads.attach(AttachmentParts {
        rank: state.rank,
        consumer: Consumer::new(&slots, tail.word64(0)?, RingSize::new(settings.ring_log2)?)?,
        transport,
        alarm: process.clone(),
        watch: Some(Watch::new(state.rank, state.memory.record()?)?),
        launches_ended: Some(state.memory.launches_ended()?),
    })?;
    register(attached.handle(), &state.memory, &peers, &by_adapter)?;
    attached.handle().wait_applied(settings.bootstrap_timeout)?;
    let watch = Watch::new(state.rank, state.memory.record()?)?;
    let peers = Arc::new(peers);
    Ok(RankEngine::Proxy { attached, peers, watch, process: process.clone(), _threads: threads })
}

/// The memory of a rank, as its lanes and routes begin there.
pub(in crate::communicator::connect) trait LaneMemory {
    /// Where everything lies in it.
    fn layout(&self) -> &Layout;
    /// Where it lies.
    fn endpoint(&self) -> Endpoint;
    /// What the engine may read for the puts of a port.
    fn source(&self, place: &PortPlace) -> RegionDescriptor;
    /// What it may read of host memory that ranks of the node share.
    fn shared_source(&self, for_adapter: bool) -> Option<RegionDescriptor>;
    /// The route by which a port sends on what has arrived there.
    fn shared_route(&self, number: u32) -> u32;
}

impl LaneMemory for RankMemory {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn endpoint(&self) -> Endpoint {
        self.endpoint()
    }

    fn source(&self, place: &PortPlace) -> RegionDescriptor {
        self.source(place)
    }

    fn shared_source(&self, for_adapter: bool) -> Option<RegionDescriptor> {
        self.shared_source(for_adapter)
    }

    fn shared_route(&self, number: u32) -> u32 {
        self.shared_route(number)
    }
}

/// Tells a proxy of all lanes of a rank to these peers, and of its static routes.
pub(in crate::communicator::connect) fn register(
    handle: &AttachmentHandle,
    memory: &impl LaneMemory,
    peers: &[Peer],
    by_adapter: &BTreeSet<LaneId>,
) -> Result<()> {
    let own = memory.endpoint();
    for place in memory.layout().ports() {
        if place.end.lane.kind == LaneKind::Stores {
            continue;
        }
        let (number, there) = (place.number, &peers[place.peer().index()]);
        let port = PortDescription::of(&place, &there.layout);
        let (lane, addresses) = (LaneId(number), there.port(&port.there));
        let arrival = port.raises.then_some(addresses.signal);
        let completion = port.completion.map(|offset| own.signals + offset);
        handle.add_lane(lane, Lane { peer: port.peer, arrival, completion })?;
        let Some(RouteDescription { carries_data, bytes, offset }) = port.route else { continue };
        let add_route = |number, source, base| {
            let destination = RegionDescriptor { base, length_bytes: bytes };
            handle.add_route(RouteId(number), Route { lane, source, destination, pull: false })
        };
        let sends = place.end.side == Side::Send;
        // Where messages go through host memory, nothing is granted: see `ProcessState::limits`.
        if !carries_data || (!sends && there.is_through_host()) {
            let none = RegionDescriptor::default();
            let route = Route { lane, source: none, destination: none, pull: false };
            handle.add_route(RouteId(number), route)?;
            continue;
        }
        if !sends {
            let grant = addresses.slots.wrapping_add(offset - port.there.slots);
            add_route(number, memory.source(&place), grant)?;
            continue;
        }
        add_route(number, memory.source(&place), addresses.slots)?;
        if let Some(source) = memory.shared_source(by_adapter.contains(&lane)) {
            add_route(memory.shared_route(number), source, addresses.slots)?;
        }
    }
    Ok(())
}

/// With a trace file, if that is set.
fn traced(
    transport: Box<dyn Transport>,
    state: &RankState,
    settings: &Settings,
) -> Result<Box<dyn Transport>> {
    let Some(prefix) = &settings.trace else { return Ok(transport) };
    // Lanes have the numbers of their ports.
    let names = state.memory.layout.ports().map(|place| place.end.to_string()).collect();
    let file = TraceFile::append(prefix, state.rank, names).map_err(|(path, error)| {
        let what = format!("opening {} for RINGDOVE_TRACE", path.display());
        Error::System { what, cause: error.to_string() }
    })?;
    Ok(Box::new(Traced::with(transport, file)))
}
