//! The proxy's form: addresses in the peers' memory, a transport, and the threads that all
//! communicators share.

use super::description::{PortDescription, RouteDescription, peer_of};
use super::engine::RankEngine;
use crate::communicator::connect::peer::Peer;
use crate::communicator::state::{ProcessState, RankState};
use crate::engine::{
    AttachmentParts, EngineSettings, Lane, ProxyThreads, RegionDescriptor, Route, Watch,
};
use crate::error::{Error, Result};
use crate::id::{LaneId, RouteId, SignalWay};
use crate::ring::{Consumer, RingSize};
use crate::settings::Settings;
use crate::transport::Transport;
use crate::transport::peer::PeerTransport;
use crate::transport::peer::probe::{Found, Target, probe};
use crate::transport::split::Split;
use crate::transport::traced::{TraceFile, Traced};
use crate::transport::verbs::VerbsTransport;
use std::collections::BTreeMap;
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
    peers: Vec<Peer>,
    inter_node: Option<Box<InterNodeLanes>>,
    settings: &Settings,
) -> Result<RankEngine> {
    let threads = proxies(settings)?;
    let (slots, tail) = state.memory.ring()?;
    let remedies = &settings.remedies;
    let mut near = PeerTransport::new(&state.context, remedies)?;
    if remedies.reach_probe {
        near.set_signal_way(probe_peers(state, &peers, inter_node.as_deref())?);
    }
    if let Some(way) = remedies.signal_way {
        near.set_signal_way(way);
    }
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
    })?;
    let (own, layout) = (state.memory.endpoint(), &state.memory.layout);
    for (number, place) in (0..).zip(&layout.ports) {
        let there = &peers[peer_of(place)];
        let port = PortDescription::of(number, place, &there.layout);
        attached.handle().add_lane(
            LaneId(number),
            Lane {
                peer: port.peer,
                arrival: port
                    .arrival
                    .map(|signal| there.endpoint.signals.wrapping_add(signal.offset)),
                completion: port.completion.map(|offset| own.signals + offset),
            },
        )?;
        let Some(RouteDescription { carries_data, offset, bytes }) = port.route else { continue };
        let base = there.endpoint.staging.wrapping_add(offset);
        let (source, destination) = match carries_data {
            true => (state.memory.source(place), RegionDescriptor { base, length_bytes: bytes }),
            false => Default::default(),
        };
        let route = Route { lane: LaneId(number), source, destination };
        attached.handle().add_route(RouteId(number as u16), route)?;
    }
    attached.handle().wait_applied(settings.bootstrap_timeout)?;
    let watch = Watch::new(state.rank, state.memory.record()?)?;
    Ok(RankEngine::Proxy { attached, peers, watch, process: process.clone(), _threads: threads })
}

/// Tries every peer of this node, and finds how signals reach all of them.
fn probe_peers(
    state: &RankState,
    peers: &[Peer],
    inter_node: Option<&InterNodeLanes>,
) -> Result<SignalWay> {
    let is_elsewhere =
        |number| inter_node.is_some_and(|(_, lanes)| lanes.contains(&LaneId(number)));
    let mut targets = BTreeMap::new();
    for (number, place) in (0..).zip(&state.memory.layout.ports) {
        let there = &peers[peer_of(place)];
        let port = PortDescription::of(number, place, &there.layout);
        let Some(arrival) = port.arrival.filter(|_| !is_elsewhere(number)) else { continue };
        let data = port.route.filter(|route| route.carries_data && route.bytes > 0);
        let target = Target {
            peer: port.peer,
            signal: there.endpoint.signals.wrapping_add(arrival.offset),
            data: data.map(|route| there.endpoint.staging.wrapping_add(route.offset)),
        };
        // One port of each peer is enough: one with data, where there is any.
        let known = targets.entry(port.peer).or_insert(target);
        *known = if known.data.is_none() { target } else { *known };
    }
    let targets: Vec<_> = targets.into_values().collect();
    let Found { way, took } = probe(&state.context, state.rank, &targets)?;
    tracing::info!(rank = state.rank.0, peers = targets.len(), %way, ?took, "peers reached");
    Ok(way)
}

/// With a trace file, if that is set.
fn traced(
    transport: Box<dyn Transport>,
    state: &RankState,
    settings: &Settings,
) -> Result<Box<dyn Transport>> {
    let Some(prefix) = &settings.trace else { return Ok(transport) };
    // Lanes have the numbers of their ports.
    let names = state.memory.layout.ports.iter().map(|place| place.end.to_string()).collect();
    let file = TraceFile::append(prefix, state.rank, names).map_err(|(path, error)| {
        let what = format!("opening {} for RINGDOVE_TRACE", path.display());
        Error::System { what, cause: error.to_string() }
    })?;
    Ok(Box::new(Traced::with(transport, file)))
}
