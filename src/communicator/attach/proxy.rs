//! The proxy's form: addresses in the peers' memory, a transport, and the threads that all
//! communicators share.

use super::{FarLanes, PortDescription, RankEngine, RouteDescription, peer_of};
use crate::communicator::peer::Peer;
use crate::communicator::world::{Seat, World};
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
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

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
    world: &Arc<World>,
    seat: &Seat,
    peers: Vec<Peer>,
    far: Option<Box<FarLanes>>,
    settings: &Settings,
) -> Result<RankEngine> {
    let threads = proxies(settings)?;
    let (slots, tail) = seat.memory.ring()?;
    let remedies = &settings.remedies;
    let mut near = PeerTransport::new(&seat.context, remedies)?;
    if remedies.reach_probe {
        near.set_signal_way(reached(seat, &peers, far.as_deref())?);
    }
    if let Some(way) = remedies.signal_way {
        near.set_signal_way(way);
    }
    let transport: Box<dyn Transport> = match far {
        None => Box::new(near),
        Some(far) => {
            let (far, lanes) = *far;
            Box::new(Split::new(near, far, &lanes))
        }
    };
    let transport = traced(transport, seat, settings)?;
    let attached = threads.attach(AttachmentParts {
        rank: seat.rank,
        consumer: Consumer::new(&slots, tail.word64(0)?, RingSize::new(settings.ring_log2)?)?,
        transport,
        alarm: world.clone(),
        watch: Some(Watch::new(seat.rank, seat.memory.record()?)?),
    })?;
    let (own, layout) = (seat.memory.endpoint(), &seat.memory.layout);
    for (number, place) in (0..).zip(&layout.ports) {
        let there = &peers[peer_of(place)];
        let port = PortDescription::of(number, place, &there.layout);
        attached.handle().add_lane(
            LaneId(number),
            Lane {
                peer: port.peer,
                arrival: port.arrival.map(|far| there.endpoint.signals.wrapping_add(far.offset)),
                completion: port.completion.map(|offset| own.signals + offset),
            },
        )?;
        let Some(RouteDescription { carries_data, offset, bytes }) = port.route else { continue };
        let base = there.endpoint.staging.wrapping_add(offset);
        let (source, destination) = match carries_data {
            true => (seat.memory.source(place), RegionDescriptor { base, length_bytes: bytes }),
            false => Default::default(),
        };
        let route = Route { lane: LaneId(number), source, destination };
        attached.handle().add_route(RouteId(number as u16), route)?;
    }
    attached.handle().settle(settings.bootstrap_timeout)?;
    let watch = Watch::new(seat.rank, seat.memory.record()?)?;
    Ok(RankEngine::Proxy { attached, peers, watch, world: world.clone(), _threads: threads })
}

/// Tries every peer of this node, and finds how signals reach all of them.
fn reached(seat: &Seat, peers: &[Peer], far: Option<&FarLanes>) -> Result<SignalWay> {
    let is_far = |number| far.is_some_and(|(_, lanes)| lanes.contains(&LaneId(number)));
    let mut targets = BTreeMap::new();
    for (number, place) in (0..).zip(&seat.memory.layout.ports) {
        let there = &peers[peer_of(place)];
        let port = PortDescription::of(number, place, &there.layout);
        let Some(arrival) = port.arrival.filter(|_| !is_far(number)) else { continue };
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
    let Found { way, took } = probe(&seat.context, seat.rank, &targets)?;
    tracing::info!(rank = seat.rank.0, peers = targets.len(), %way, ?took, "peers reached");
    Ok(way)
}

/// With a trace file, if that is set.
fn traced(
    transport: Box<dyn Transport>,
    seat: &Seat,
    settings: &Settings,
) -> Result<Box<dyn Transport>> {
    let Some(prefix) = &settings.trace else { return Ok(transport) };
    // Lanes have the numbers of their ports.
    let names = seat.memory.layout.ports.iter().map(|place| place.end.to_string()).collect();
    let file = TraceFile::append(prefix, seat.rank, names).map_err(|(path, error)| {
        let what = format!("opening {} for RINGDOVE_TRACE", path.display());
        Error::System { what, cause: error.to_string() }
    })?;
    Ok(Box::new(Traced::with(transport, file)))
}
