//! What a rank's engine is told: its ring, its lanes and its routes.

use super::memory::RankMemory;
use super::peer::Peer;
use super::windows::Window;
use super::world::{Seat, World};
use crate::engine::{
    Attached, AttachmentHandle, AttachmentParts, EngineSettings, Lane, ProxyThreads,
    RegionDescriptor, Route, Watch,
};
use crate::error::{Error, Result};
use crate::id::{LaneId, Rank, RouteId};
use crate::plan::{LaneEnd, LaneKind, Side};
use crate::ring::{Consumer, RingSize};
use crate::settings::Settings;
use crate::transport::Transport;
use crate::transport::peer::PeerTransport;
use crate::transport::split::Split;
use crate::transport::traced::{TraceFile, Traced};
use crate::transport::verbs::VerbsTransport;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The proxy threads that all communicators of the process share. They end with the last one.
static PROXIES: Mutex<Weak<ProxyThreads>> = Mutex::new(Weak::new());

/// The process's proxy threads, started with `settings` if there are none.
pub(super) fn proxies(settings: &Settings) -> Result<Arc<ProxyThreads>> {
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

/// Gives a rank to a proxy, with all lanes to its peers and static routes.
pub(super) fn attach(
    proxies: &ProxyThreads,
    world: &Arc<World>,
    seat: &Seat,
    (peers, far): (&[Peer], Option<(VerbsTransport, Vec<LaneId>)>),
    settings: &Settings,
) -> Result<Attached> {
    let rank = seat.rank;
    let (slots, tail) = seat.memory.ring()?;
    let size = RingSize::new(settings.ring_log2)?;
    let near = PeerTransport::new(&seat.context)?;
    let transport: Box<dyn Transport> = match far {
        None => Box::new(near),
        Some((far, lanes)) => Box::new(Split::new(near, far, &lanes)),
    };
    let transport = traced(transport, rank, &seat.memory, settings)?;
    let attached = proxies.attach(AttachmentParts {
        rank,
        consumer: Consumer::new(&slots, tail.word64(0)?, size)?,
        transport,
        alarm: world.clone(),
        watch: Some(Watch::new(rank, seat.memory.record()?)?),
    })?;
    for (number, place) in (0..).zip(&seat.memory.layout.ports) {
        let peer = match place.end.side {
            Side::Send => place.end.lane.to,
            Side::Receive => place.end.lane.from,
        };
        add_port(attached.handle(), number, place.end, &seat.memory, &peers[peer as usize])?;
    }
    Ok(attached)
}

/// With a trace file, if that is set.
fn traced(
    transport: Box<dyn Transport>,
    rank: Rank,
    memory: &RankMemory,
    settings: &Settings,
) -> Result<Box<dyn Transport>> {
    let Some(prefix) = &settings.trace else { return Ok(transport) };
    // Lanes have the numbers of their ports.
    let names = memory.layout.ports.iter().map(|place| place.end.to_string()).collect();
    let file = TraceFile::append(prefix, rank, names).map_err(|(path, error)| Error::System {
        what: format!("opening {} for RINGDOVE_TRACE", path.display()),
        cause: error.to_string(),
    })?;
    Ok(Box::new(Traced::with(transport, file)))
}

/// Adds the lane that the port rings on, and its static route if it has one. Both take the number
/// of the port.
fn add_port(
    handle: &AttachmentHandle,
    number: u32,
    end: LaneEnd,
    own: &RankMemory,
    far: &Peer,
) -> Result<()> {
    let (place, base) = (own.layout.port(end), own.endpoint());
    let there = |side| far.layout.port(LaneEnd { lane: end.lane, side });
    let (far_place, peer) = match end.side {
        Side::Send => (there(Side::Receive), end.lane.to),
        // A receive port rings to return credits, so what it raises is the send port's signal.
        Side::Receive => (there(Side::Send), end.lane.from),
    };
    let flagged = end.lane.kind == LaneKind::Flagged;
    let sends = end.side == Side::Send;
    let lane = Lane {
        peer: Rank(peer),
        // Nobody waits for signals of a flagged lane, so nobody may ask for one (R8).
        arrival: (!flagged).then(|| far.endpoint.signals.wrapping_add(far_place.signal)),
        completion: (sends && !flagged).then_some(base.signals + place.completion),
    };
    handle.add_lane(LaneId(number), lane)?;
    let staging = own.source(place);
    let slots = RegionDescriptor {
        base: far.endpoint.staging.wrapping_add(far_place.slots),
        length_bytes: place.slots_bytes(),
    };
    let (source, destination) = match (end.side, end.lane.kind) {
        (Side::Send, LaneKind::Direct) => return Ok(()),
        (Side::Send, LaneKind::Slots | LaneKind::Flagged) => (staging, slots),
        (Side::Receive, _) => Default::default(),
    };
    handle.add_route(RouteId(number as u16), Route { lane: LaneId(number), source, destination })
}

/// Adds the routes from `source`, a range of `seat`'s memory, to `destination` for every direct
/// lane of `seat`, from number `first` on.
pub(super) fn add_direct_routes(
    handle: &AttachmentHandle,
    seat: &Seat,
    first: u32,
    source: (u64, u64),
    destination: &Window,
) -> Result<()> {
    for (number, place) in (0..).zip(&seat.memory.layout.ports) {
        let lane = place.end.lane;
        if place.end.side != Side::Send || lane.kind != LaneKind::Direct {
            continue;
        }
        let route = Route {
            lane: LaneId(number),
            source: RegionDescriptor { base: source.0, length_bytes: source.1 },
            destination: RegionDescriptor {
                base: destination.addresses[lane.to as usize],
                length_bytes: destination.bytes,
            },
        };
        handle.add_route(RouteId((first + place.route_index) as u16), route)?;
    }
    Ok(())
}
