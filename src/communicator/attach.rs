//! What a rank's engine is told: its ring, its lanes and its routes. They are described once, in
//! numbers and offsets; each engine gets them in its own form: the proxy with addresses in the
//! peers' memory, a device engine with numbers of the peers' tables.

use super::doorbell::STEP_TIMEOUT;
use super::layout::{Layout, PortPlace};
use super::peer::Peer;
use super::windows::Window;
use super::world::{Seat, World};
use crate::engine::device::{Channel, ChannelAddress, DeviceAttachment, DeviceParts, Registers};
use crate::engine::{
    Attached, AttachmentParts, EngineSettings, Lane, ProxyThreads, RegionDescriptor, Route,
    Snapshot, Watch,
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
use ringdove_kernels::bar;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

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

/// A transport to other nodes, and the lanes that lead there.
pub(super) type FarLanes = (VerbsTransport, Vec<LaneId>);

/// How a rank's engine reaches the other ranks.
pub(super) enum Others {
    /// By addresses, and over verbs those for which lanes are named.
    Addressed(Vec<Peer>, Option<Box<FarLanes>>),
    /// Engine to engine, by each rank's channel.
    Channels(Vec<ChannelAddress>),
}

/// A rank's engine.
pub(super) enum Link {
    Proxy {
        attached: Attached,
        /// What the routes lead to, as long as the engine may use them.
        peers: Vec<Peer>,
        /// Keeps the threads running.
        _threads: Arc<ProxyThreads>,
    },
    Device(DeviceAttachment),
}

/// The number of the window that is a rank's staging memory; registrations follow it.
const STAGING: u64 = 0;

/// The lane that a port rings on and, if it has one, its static route. Both have the port's number.
struct PortDescription {
    number: u32,
    peer: Rank,
    /// What it raises at the peer, unless the lane is flagged: nobody waits for signals of those,
    /// so nobody may ask for one (R8).
    arrival: Option<FarSignal>,
    /// Offset in the own signal memory of what says that a source was read.
    completion: Option<u64>,
    /// The own word that the peer's lane raises: its offset.
    signal: Option<u64>,
    route: Option<RouteDescription>,
}

/// A signal of a peer.
struct FarSignal {
    /// The peer's port whose signal it is.
    port: u32,
    /// Where in the peer's signal memory it lies.
    offset: u64,
}

/// From anywhere in the own staging memory (or nowhere) to some of the peer's.
struct RouteDescription {
    carries_data: bool,
    /// Offset of the destination in the peer's staging memory.
    offset: u64,
    bytes: u64,
}

impl PortDescription {
    fn of(number: u32, place: &PortPlace, far: &Layout) -> Self {
        let end = place.end;
        let (side, peer) = match end.side {
            Side::Send => (Side::Receive, end.lane.to),
            // A receive port rings to return credits: what it raises is the send port's signal.
            Side::Receive => (Side::Send, end.lane.from),
        };
        let there = LaneEnd { lane: end.lane, side };
        let far_place = far.port(there);
        let port = far.number(there).expect("both ends of a lane exist");
        let flagged = end.lane.kind == LaneKind::Flagged;
        let sends = end.side == Side::Send;
        let route = match (end.side, end.lane.kind) {
            (Side::Send, LaneKind::Direct) => None,
            (Side::Send, LaneKind::Slots | LaneKind::Flagged) => Some(RouteDescription {
                // So that what arrived can go on as it lies.
                carries_data: true,
                offset: far_place.slots,
                bytes: place.slots_bytes(),
            }),
            (Side::Receive, _) => {
                Some(RouteDescription { carries_data: false, offset: 0, bytes: 0 })
            }
        };
        Self {
            number,
            peer: Rank(peer),
            arrival: (!flagged).then_some(FarSignal { port, offset: far_place.signal }),
            completion: (sends && !flagged).then_some(place.completion),
            signal: (!flagged).then_some(place.signal),
            route,
        }
    }
}

/// The rank at the other end of a port.
fn peer_of(place: &PortPlace) -> usize {
    let lane = place.end.lane;
    match place.end.side {
        Side::Send => lane.to as usize,
        Side::Receive => lane.from as usize,
    }
}

/// Gives a rank to its engine, with all lanes to its peers and static routes.
pub(super) fn attach(
    world: &Arc<World>,
    seat: &Seat,
    others: Others,
    settings: &Settings,
) -> Result<Link> {
    match others {
        Others::Addressed(peers, far) => attach_to_proxy(world, seat, peers, far, settings),
        Others::Channels(peers) => attach_to_device(world, seat, &peers, settings),
    }
}

fn attach_to_proxy(
    world: &Arc<World>,
    seat: &Seat,
    peers: Vec<Peer>,
    far: Option<Box<FarLanes>>,
    settings: &Settings,
) -> Result<Link> {
    let threads = proxies(settings)?;
    let (slots, tail) = seat.memory.ring()?;
    let near = PeerTransport::new(&seat.context)?;
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
    Ok(Link::Proxy { attached, peers, _threads: threads })
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

fn attach_to_device(
    world: &Arc<World>,
    seat: &Seat,
    peers: &[ChannelAddress],
    settings: &Settings,
) -> Result<Link> {
    if settings.trace.is_some() {
        tracing::warn!(
            "RINGDOVE_TRACE is of the proxy: a device engine shows nobody its transfers"
        );
    }
    let memory = &seat.memory;
    let channel = memory.channel().expect("claimed with the rank's memory").clone();
    for (rank, address) in (0..).map(Rank).zip(peers).filter(|(rank, _)| *rank != seat.rank) {
        channel.enter_peer(rank, address)?;
    }
    channel.enter_window(STAGING, memory.endpoint().staging, memory.layout.staging_bytes)?;
    let layouts: Vec<_> =
        (0..).zip(peers).map(|(rank, _)| Layout::new(&world.geometry, Rank(rank))).collect();
    for (number, place) in (0..).zip(&memory.layout.ports) {
        let port = PortDescription::of(number, place, &layouts[peer_of(place)]);
        enter_port(&channel, seat, &port)?;
    }
    channel.run(
        &Registers {
            ring_log2: settings.ring_log2,
            tail_address: memory.tail_address(),
            abort_address: memory.abort_address(),
            rank: seat.rank,
        },
        STEP_TIMEOUT,
    )?;
    let attachment = DeviceAttachment::new(DeviceParts {
        rank: seat.rank,
        channel,
        watch: Some(Watch::new(seat.rank, memory.record()?)?),
        abort: memory.abort()?,
        alarm: world.clone(),
    })?;
    Ok(Link::Device(attachment))
}

fn enter_port(channel: &Channel, seat: &Seat, port: &PortDescription) -> Result<()> {
    let (own, layout) = (seat.memory.endpoint(), &seat.memory.layout);
    if let Some(offset) = port.signal {
        channel.enter_signal(port.number.into(), own.signals + offset, port.peer)?;
    }
    channel.enter_lane(
        LaneId(port.number),
        bar::Lane {
            peer: port.peer.0.into(),
            arrival_signal: port.arrival.as_ref().map_or(bar::NONE, |far| far.port.into()),
            completion_address: port.completion.map_or(0, |offset| own.signals + offset),
            valid: 1,
        },
    )?;
    let Some(RouteDescription { carries_data, offset, bytes }) = port.route else { return Ok(()) };
    let (source_base, source_length) = match carries_data {
        true => (own.staging, layout.staging_bytes),
        false => (0, 0),
    };
    channel.enter_route(
        RouteId(port.number as u16),
        bar::Route {
            lane: port.number.into(),
            source_base,
            source_length,
            window: STAGING,
            window_offset: offset,
            destination_length: bytes,
            reserved: 0,
            valid: 1,
        },
    )
}

impl Link {
    /// Makes registration `number` of this rank known, so that peers may write there.
    pub fn add_window(&self, number: usize, address: u64, bytes: u64) -> Result<()> {
        match self {
            // Its peers' proxies have the addresses.
            Self::Proxy { .. } => Ok(()),
            Self::Device(device) => {
                device.channel().enter_window(STAGING + 1 + number as u64, address, bytes)
            }
        }
    }

    /// Takes back registrations from `number` on, which no other rank knows of.
    pub fn remove_windows(&self, number: usize) {
        if let Self::Device(device) = self {
            device.channel().clear_windows(STAGING + 1 + number as u64);
        }
    }

    /// Adds the routes from `source`, a range of `seat`'s memory, to registration `output` on the
    /// peer of every direct lane, from number `first` on.
    pub fn add_direct_routes(
        &self,
        seat: &Seat,
        first: u32,
        source: (u64, u64),
        (output, destination): (usize, &Window),
    ) -> Result<()> {
        for (number, place) in (0..).zip(&seat.memory.layout.ports) {
            let lane = place.end.lane;
            if place.end.side != Side::Send || lane.kind != LaneKind::Direct {
                continue;
            }
            let route = RouteId((first + place.route_index) as u16);
            match self {
                Self::Proxy { attached, .. } => {
                    let base = destination.addresses[lane.to as usize];
                    let (source, length_bytes) = (
                        RegionDescriptor { base: source.0, length_bytes: source.1 },
                        destination.bytes,
                    );
                    let destination = RegionDescriptor { base, length_bytes };
                    let lane = LaneId(number);
                    attached.handle().add_route(route, Route { lane, source, destination })?;
                }
                Self::Device(device) => device.channel().enter_route(
                    route,
                    bar::Route {
                        lane: number.into(),
                        source_base: source.0,
                        source_length: source.1,
                        window: STAGING + 1 + output as u64,
                        window_offset: 0,
                        destination_length: destination.bytes,
                        reserved: 0,
                        valid: 1,
                    },
                )?,
            }
        }
        Ok(())
    }

    /// A kernel that rings is about to run.
    pub fn wake(&self) {
        match self {
            Self::Proxy { attached, .. } => attached.handle().wake(),
            // Hardware does not sleep.
            Self::Device(_) => {}
        }
    }

    /// Raises the alarm for what is wrong and was not noticed yet.
    pub fn look(&self) {
        match self {
            // The thread that moves the data has seen it first.
            Self::Proxy { .. } => {}
            Self::Device(device) => device.look(),
        }
    }

    /// The counters as they are now.
    pub fn statistics(&self) -> Snapshot {
        match self {
            Self::Proxy { attached, .. } => attached.handle().statistics(),
            Self::Device(device) => device.statistics(),
        }
    }

    /// Lets the engine finish, and takes the rank out of it. `head` is how many descriptors the
    /// rank's kernels have rung, if they have ended.
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`](crate::Error::HostWaitExpired) if work was left after `limit`.
    pub fn detach(self, head: impl FnOnce() -> Option<u64>, limit: Duration) -> Result<()> {
        match self {
            Self::Proxy { attached, peers, _threads } => {
                let detached = attached.detach(limit);
                drop((peers, _threads));
                detached
            }
            Self::Device(device) => device.detach(head(), limit),
        }
    }
}
