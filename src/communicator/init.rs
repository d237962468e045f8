//! How communicators are made: in one process, over several, and over several nodes.

use super::attach::{self, Others};
use super::doorbell::Doorbell;
use super::far::{self, Far, FarMemory, FarPlace, Reach};
use super::launcher::Launcher;
use super::layout::{Geometry, Nodes};
use super::meeting::{self, Card};
use super::memory::{FarIn, RankMemory};
use super::peer::Peer;
use super::sharing;
use super::tidy::Tidy;
use super::world::{self, Seat, World, lock};
use super::{Communicator, UniqueId};
use crate::bootstrap::{ControlPlane, Entry};
use crate::engine::Alarm;
use crate::error::{Error, Result};
use crate::id::{EngineKind, LaneId, Rank};
use crate::settings::Settings;
use crate::transport::verbs::VerbsTransport;
use cudarc::driver::CudaContext;
use std::sync::{Arc, Mutex};

impl Communicator {
    /// A communicator over the GPUs of `contexts`, all driven by this process: rank `i` runs on
    /// `contexts[i]`. A context may appear more than once; those ranks then share its GPU.
    ///
    /// ```no_run
    /// use ringdove::{Communicator, ReduceOp, Settings, open_device};
    ///
    /// let contexts = [open_device(0)?, open_device(1)?];
    /// let communicators = Communicator::init_all(&contexts, &Settings::from_env()?)?;
    /// # Ok::<(), ringdove::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] without any context, [`Error::Cuda`] where the driver refuses memory,
    /// streams or the device code.
    pub fn init_all(contexts: &[Arc<CudaContext>], settings: &Settings) -> Result<Vec<Self>> {
        let count = u32::try_from(contexts.len()).unwrap_or(u32::MAX);
        let geometry = geometry(count, Nodes::One, settings)?;
        let world = Arc::new(World::new(geometry));
        for (rank, context) in (0..).zip(contexts) {
            world.join(
                seat(context, &geometry, (Rank(rank), rank as usize), settings)?,
                &geometry,
            )?;
        }
        (0..count).map(|rank| Self::assemble(&world, Rank(rank), settings)).collect()
    }

    /// Rank `rank` of `rank_count`, on `context`. Every rank passes the same `id`; the call waits
    /// until all have joined. With an id of [`Root::open`](crate::bootstrap::Root::open) or
    /// [`Launch::meet`](crate::bootstrap::Launch::meet) the ranks may run anywhere; with one of
    /// [`UniqueId::new`] they are threads of one process.
    ///
    /// # Errors
    /// As [`Communicator::init_ranks`].
    pub fn init_rank(
        context: &Arc<CudaContext>,
        id: &UniqueId,
        rank: u32,
        rank_count: u32,
        settings: &Settings,
    ) -> Result<Self> {
        let mut ranks =
            Self::init_ranks(std::slice::from_ref(context), id, rank, rank_count, settings)?;
        Ok(ranks.swap_remove(0))
    }

    /// Several ranks of this process at once: context `i` becomes rank `first + i` of `rank_count`.
    /// Otherwise as [`Communicator::init_rank`].
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`] or [`Error::Bootstrap`] names the ranks that have not come within
    /// [`Settings::bootstrap_timeout`]; [`Error::Disagreement`] where ranks pass different counts
    /// or settings; [`Error::Argument`] for a rank that is out of range or taken;
    /// [`Error::NotFound`] where no transport leads from one rank to another; otherwise as
    /// [`Communicator::init_all`].
    pub fn init_ranks(
        contexts: &[Arc<CudaContext>],
        id: &UniqueId,
        first: u32,
        rank_count: u32,
        settings: &Settings,
    ) -> Result<Vec<Self>> {
        let ranks: Vec<Rank> = (first..).take(contexts.len()).map(Rank).collect();
        if ranks.is_empty() {
            return Err(Error::argument("contexts", "at least one", 0));
        }
        if id.addresses()?.is_empty() {
            let geometry = geometry(rank_count, Nodes::One, settings)?;
            let world = id.world(geometry);
            for (&rank, context) in ranks.iter().zip(contexts) {
                world.join(seat(context, &geometry, (rank, rank.index()), settings)?, &geometry)?;
            }
            let ranks = ranks.iter().map(|&rank| Self::assemble(&world, rank, settings));
            let communicators = ranks.collect::<Result<Vec<_>>>();
            // The others wait for these ranks' engines: they should hear why they do not come.
            let communicators = communicators.inspect_err(|error| world.raise(error.clone()))?;
            world.all_served(settings.bootstrap_timeout)?;
            return Ok(communicators);
        }
        let planes = connect(id, &ranks, rank_count, settings)?;
        let met = Self::meet(contexts, id, &planes, settings);
        // The others wait for this process's part: they should hear why it does not come.
        met.inspect_err(|error| planes.iter().for_each(|plane| plane.abort(&error.to_string())))
    }

    /// Ranks of this process, on control planes that stand.
    fn meet(
        contexts: &[Arc<CudaContext>],
        id: &UniqueId,
        planes: &[Arc<ControlPlane>],
        settings: &Settings,
    ) -> Result<Vec<Self>> {
        let hosts = meeting::hosts(planes, settings)?;
        let geometry = geometry(hosts.len() as u32, Nodes::of(&hosts), settings)?;
        let world = id.world(geometry);
        // Device engines reach other nodes by themselves.
        let by_channel = geometry.engine == EngineKind::Device;
        let seated = match geometry.nodes {
            Nodes::Even { .. } | Nodes::Uneven if !by_channel => {
                seats_between_nodes(&geometry, (contexts, planes), &hosts, settings)?
            }
            _ => {
                let ranks = planes.iter().zip(contexts);
                let seat = |(plane, context): (&Arc<ControlPlane>, _)| {
                    let place = meeting::place_on_node(&hosts, plane.rank());
                    Ok((seat(context, &geometry, (plane.rank(), place), settings)?, None))
                };
                ranks.map(seat).collect::<Result<Vec<_>>>()?
            }
        };
        let (seats, reaches): (Vec<_>, Vec<_>) = seated.into_iter().unzip();
        for (plane, seat) in planes.iter().zip(&seats) {
            world.join(seat.clone(), &geometry)?;
            world.link(plane.clone());
        }
        if by_channel {
            return Self::meet_by_channel(&world, planes, seats, settings);
        }
        let cards = seats.iter().zip(planes).map(|(seat, plane)| Card::of(seat, plane));
        let cards = meeting::exchange(planes, &cards.collect::<Result<Vec<_>>>()?)?;
        world.settle(meeting::local_ranks(&world, &cards)?, meeting::place(&cards)?);
        let ways = open_ways(planes, &seats, reaches, &hosts)?;
        let mut communicators = Vec::new();
        for (seat, way) in seats.into_iter().zip(ways) {
            let Way { transport, places, memory } = way;
            let peers = meeting::peers(&world, &seat, &cards, &places)?;
            let others = Others::Addressed(peers, transport.map(Box::new));
            let mut communicator = Self::start(&world, seat, others, settings)?;
            communicator.far = memory;
            communicators.push(communicator);
        }
        // Nobody rings before every engine knows its routes.
        meeting::exchange(planes, &vec![(); planes.len()])?;
        Ok(communicators)
    }

    /// As [`Communicator::meet`], where engines reach one another: on a node and between nodes
    /// alike, without anybody's memory being opened by another process.
    fn meet_by_channel(
        world: &Arc<World>,
        planes: &[Arc<ControlPlane>],
        seats: Vec<Arc<Seat>>,
        settings: &Settings,
    ) -> Result<Vec<Self>> {
        let cards = seats.iter().zip(planes).map(|(seat, plane)| Card::of_channel(seat, plane));
        let cards = meeting::exchange(planes, &cards.collect::<Result<Vec<_>>>()?)?;
        world.settle(meeting::local_ranks(world, &cards)?, meeting::place(&cards)?);
        let channels: Vec<_> = cards.iter().map(|card| card.reached).collect();
        let start = |seat| Self::start(world, seat, Others::Channels(channels.clone()), settings);
        let communicators = seats.into_iter().map(start).collect::<Result<Vec<_>>>()?;
        // Nobody rings before every engine runs.
        meeting::exchange(planes, &vec![(); planes.len()])?;
        Ok(communicators)
    }

    /// A rank whose peers are all in this process.
    fn assemble(world: &Arc<World>, rank: Rank, settings: &Settings) -> Result<Self> {
        let seats = world.assembled(settings.bootstrap_timeout)?;
        let seat = seats[rank.index()].clone();
        let channels: Option<Vec<_>> =
            seats.iter().map(|seat| Some(seat.memory.channel()?.address())).collect();
        let others = match channels {
            Some(channels) => Others::Channels(channels),
            None => {
                let peers = seats.iter().map(|peer| Peer::in_process(rank, &seat.context, peer));
                Others::Addressed(peers.collect::<Result<_>>()?, None)
            }
        };
        Self::start(world, seat, others, settings)
    }

    fn start(
        world: &Arc<World>,
        seat: Arc<Seat>,
        others: Others,
        settings: &Settings,
    ) -> Result<Self> {
        let (rank, ranks) = (seat.rank, world.geometry.rank_count);
        seat.memory.publish(rank, ranks, settings.wait_timeout)?;
        let remedies = &settings.remedies;
        let launcher = Arc::new(Mutex::new(Launcher::new(&seat, remedies)?));
        sharing::check(world, &seat, &lock(&launcher))?;
        let tidy = Tidy::new(&launcher, remedies.late_frees);
        let engine = attach::attach(world, &seat, others, settings)?;
        world.serve();
        tracing::debug!(
            rank = rank.0,
            ranks,
            engine = %world.geometry.engine,
            device_bytes = seat.memory.device_bytes(),
            "communicator ready"
        );
        Ok(Self {
            rank,
            settings: settings.clone(),
            world: world.clone(),
            launcher,
            seat,
            engine: Some(engine),
            far: None,
            _tidy: tidy,
        })
    }
}

/// One rank's way to other nodes; empty where there are none.
#[derive(Default)]
struct Way {
    transport: Option<(VerbsTransport, Vec<LaneId>)>,
    places: Vec<FarPlace>,
    memory: Option<FarMemory>,
}

/// Seats of ranks whose memory ranks of other nodes reach.
fn seats_between_nodes(
    geometry: &Geometry,
    (contexts, planes): (&[Arc<CudaContext>], &[Arc<ControlPlane>]),
    hosts: &[String],
    settings: &Settings,
) -> Result<Vec<(Arc<Seat>, Option<Reach>)>> {
    let adapters = far::adapters(contexts, planes, hosts, settings)?;
    let ranks = contexts.iter().zip(planes).zip(adapters);
    let seat = |((context, plane), adapter): ((&Arc<CudaContext>, &Arc<ControlPlane>), _)| {
        let rank = plane.rank();
        let (memory, reach) = Reach::allocate(adapter, (context, rank), geometry, settings)?;
        Ok((Arc::new(Seat::new(rank, context.clone(), memory)), Some(reach)))
    };
    ranks.map(seat).collect()
}

/// The ways of this process's ranks to other nodes.
fn open_ways(
    planes: &[Arc<ControlPlane>],
    seats: &[Arc<Seat>],
    reaches: Vec<Option<Reach>>,
    hosts: &[String],
) -> Result<Vec<Way>> {
    let Some(reaches) = reaches.into_iter().collect::<Option<Vec<_>>>() else {
        return Ok(seats.iter().map(|_| Way::default()).collect());
    };
    let open = |(seat, reach): (&Arc<Seat>, Reach)| {
        Far::open(seat, reach, &meeting::far_ranks(hosts, seat.rank))
    };
    let opened = seats.iter().zip(reaches).map(open).collect::<Result<Vec<_>>>()?;
    let shown: Vec<_> = opened.iter().map(|far| Some(far.card().clone())).collect();
    let shown = meeting::exchange(planes, &shown)?;
    let connect = |(seat, far): (&Arc<Seat>, Far)| {
        let (transport, lanes, places, memory) = far.connect(seat, &shown)?;
        Ok(Way { transport: Some((transport, lanes)), places, memory: Some(memory) })
    };
    seats.iter().zip(opened).map(connect).collect()
}

/// Joins the control planes of this process's `ranks`.
fn connect(
    id: &UniqueId,
    ranks: &[Rank],
    rank_count: u32,
    settings: &Settings,
) -> Result<Vec<Arc<ControlPlane>>> {
    let geometry = geometry(rank_count, Nodes::One, settings)?;
    let entry =
        |&rank| Entry { id: *id, rank, rank_count, terms: world::terms(&geometry, settings) };
    // All begin before any is waited for: the last one completes the job.
    let begun = ranks.iter().map(|rank| ControlPlane::start(entry(rank), settings));
    let planes: Vec<_> = begun.map(|plane| plane.map(Arc::new)).collect::<Result<_>>()?;
    planes.iter().try_for_each(|plane| plane.assembled())?;
    Ok(planes)
}

fn geometry(rank_count: u32, nodes: Nodes, settings: &Settings) -> Result<Geometry> {
    if !(1..=Geometry::RANKS_MAX).contains(&rank_count) {
        let expected = format!("1 to {}", Geometry::RANKS_MAX);
        return Err(Error::argument("number of ranks", expected, rank_count));
    }
    Ok(Geometry::new(rank_count, nodes, settings))
}

/// A rank with its memory; it is number `place` of its node.
fn seat(
    context: &Arc<CudaContext>,
    geometry: &Geometry,
    (rank, place): (Rank, usize),
    settings: &Settings,
) -> Result<Arc<Seat>> {
    if rank.0 >= geometry.rank_count {
        let expected = format!("less than {}", geometry.rank_count);
        return Err(Error::argument("rank", expected, rank.0));
    }
    let ring_log2 = settings.ring_log2;
    let memory = RankMemory::new(context, geometry, rank, (FarIn::Device, ring_log2))?;
    let memory = match geometry.engine {
        EngineKind::Proxy => memory,
        EngineKind::Device => {
            let bell = Doorbell::claim(context, (geometry, &memory.layout), place, settings)?;
            memory.with_doorbell(bell)
        }
    };
    Ok(Arc::new(Seat::new(rank, context.clone(), memory)))
}
