//! What a rank's engine is told: its ring, its lanes and its routes. They are described once, in
//! numbers and offsets; each engine gets them in its own form: the proxy with addresses in the
//! peers' memory, a device engine with numbers of the peers' tables.

mod device;
mod proxy;

use super::layout::{Layout, PortPlace};
use super::peer::Peer;
use super::windows::Window;
use super::world::{Seat, World};
use crate::engine::device::{ChannelAddress, DeviceAttachment};
use crate::engine::{Alarm, Attached, ProxyThreads, RegionDescriptor, Route, Snapshot, Watch};
use crate::error::Result;
use crate::id::{LaneId, Rank, RouteId};
use crate::plan::{LaneEnd, LaneKind, Side};
use crate::settings::Settings;
use crate::transport::verbs::VerbsTransport;
use ringdove_kernels::bar;
use std::sync::Arc;
use std::time::Duration;

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
pub(super) enum RankEngine {
    Proxy {
        attached: Attached,
        /// What the routes lead to, as long as the engine may use them.
        peers: Vec<Peer>,
        /// The record of an expired wait, which the proxy looks at now and then.
        watch: Watch,
        world: Arc<World>,
        /// Keeps the threads running.
        _threads: Arc<ProxyThreads>,
    },
    Device(DeviceAttachment),
}

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
) -> Result<RankEngine> {
    match others {
        Others::Addressed(peers, far) => proxy::attach(world, seat, peers, far, settings),
        Others::Channels(peers) => device::attach(world, seat, &peers, settings),
    }
}

impl RankEngine {
    /// Makes registration `number` of this rank known, so that peers may write there.
    pub fn add_window(&self, number: usize, address: u64, bytes: u64) -> Result<()> {
        match self {
            // Its peers' proxies have the addresses.
            Self::Proxy { .. } => Ok(()),
            Self::Device(device) => {
                device.channel().enter_window(device::window_of(number), address, bytes)
            }
        }
    }

    /// Takes back registrations from `number` on, which no other rank knows of.
    pub fn remove_windows(&self, number: usize) {
        if let Self::Device(device) = self {
            device.channel().clear_windows(device::window_of(number));
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
                        window: device::window_of(output),
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
            // A stream may have ended before the proxy's next look: its wait has expired, and its
            // results are not to be called right. (An alarm knows more than the record.)
            Self::Proxy { watch, world, .. } => {
                if !world.is_raised()
                    && let Some(error) = watch.poll()
                {
                    world.raise(error);
                }
            }
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

    /// Waits until the engine has ended all that the rank's kernels, which have ended, have rung:
    /// `head` descriptors.
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`](crate::Error::HostWaitExpired) if work is left after `limit`.
    pub fn quiet(&self, head: u64, limit: Duration) -> Result<()> {
        match self {
            Self::Proxy { attached, .. } => attached.handle().quiet(limit),
            Self::Device(device) => device.channel().quiet(head, limit),
        }
    }

    /// Lets the engine finish, and takes the rank out of it. `head` is how many descriptors the
    /// rank's kernels have rung, if they have ended.
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`](crate::Error::HostWaitExpired) if work was left after `limit`.
    pub fn detach(self, head: impl FnOnce() -> Option<u64>, limit: Duration) -> Result<()> {
        match self {
            Self::Proxy { attached, peers, _threads, .. } => {
                let detached = attached.detach(limit);
                drop((peers, _threads));
                detached
            }
            Self::Device(device) => device.detach(head(), limit),
        }
    }
}
