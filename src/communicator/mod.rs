//! The public API: communicators, collectives, send and receive, registration.
//!
//! * `world`: what the ranks of one process share
//! * `meeting`, `peer`, `far`: how ranks of several processes and nodes reach one another's memory
//! * `layout`, `memory`: lanes and ports, and where they lie in each rank's memory
//! * `attach`: what the engine is told
//! * `agreement`: ranks must make the same calls; the board notices where they do not
//! * `windows`: registered buffers
//! * `launcher`: plans on the device, and the order of launches
//! * `all_reduce`, `group`: the calls

mod agreement;
mod all_reduce;
mod attach;
mod buffers;
mod element;
mod far;
mod group;
mod launcher;
mod layout;
mod meeting;
mod memory;
mod peer;
mod unique_id;
mod windows;
mod world;

pub use element::{Element, Reduction, Scalar};
pub use group::Group;
pub use unique_id::UniqueId;

use crate::bootstrap::{ControlPlane, Entry};
use crate::engine::{Alarm, Attached, ProxyThreads, Snapshot};
use crate::error::{Error, Result};
use crate::gpu::{Export, Import};
use crate::id::{LaneId, Rank};
use crate::settings::Settings;
use crate::transport::verbs::VerbsTransport;
use cudarc::driver::CudaContext;
use far::{Far, FarMemory, FarPlace};
use launcher::Launcher;
use layout::{Geometry, Nodes};
use meeting::Card;
use meeting::Shared;
use memory::RankMemory;
use peer::Peer;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use windows::{Part, Window};
use world::{Seat, World, lock};

/// One rank of a group of GPUs that work together.
///
/// Calls enqueue work on a stream and return; nothing on the host takes part until the work is
/// done. A communicator may be used from several threads; its calls take effect in the order in
/// which they were made, also across streams. All ranks must make the same collective calls in
/// the same order.
///
/// Dropping it waits a bounded time for its own launches
/// ([`Settings::drop_timeout`]), then aborts them.
pub struct Communicator {
    rank: Rank,
    settings: Settings,
    world: Arc<World>,
    seat: Arc<Seat>,
    launcher: Arc<Mutex<Launcher>>,
    /// `None` only while the communicator is being dropped.
    attached: Option<Attached>,
    /// What the engine's routes lead to, as long as it may use them.
    _peers: Vec<Peer>,
    far: Option<FarMemory>,
    /// Keeps the proxy threads running.
    _proxies: Arc<ProxyThreads>,
}

/// A buffer that every rank has registered; see [`Communicator::register`]. Numbers count from
/// zero, in the order of registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Registration(usize);

/// Counters of one rank, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Launches of the executor kernel.
    pub launches: u64,
    /// Descriptors that the rank's kernels rang and the engine took.
    pub descriptors: u64,
    /// Transfers that the engine made of them, after coalescing.
    pub transfers: u64,
    /// Bytes that the engine moved.
    pub bytes: u64,
    /// Signals that the descriptors asked for.
    pub signals: u64,
    /// The most descriptors that stood in the ring at once.
    pub ring_occupancy_max: u64,
}

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
            world.join(seat(context, &geometry, Rank(rank), settings)?, &geometry)?;
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
                world.join(seat(context, &geometry, rank, settings)?, &geometry)?;
            }
            return ranks.iter().map(|&rank| Self::assemble(&world, rank, settings)).collect();
        }
        let planes = connect(id, &ranks, rank_count, settings)?;
        Self::meet(contexts, id, &planes, settings)
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
        let mut seats = Vec::new();
        for (plane, context) in planes.iter().zip(contexts) {
            let seat = seat(context, &geometry, plane.rank(), settings)?;
            world.join(seat.clone(), &geometry)?;
            world.link(plane.clone());
            seats.push(seat);
        }
        let cards: Vec<_> = seats.iter().map(|seat| Card::of(seat, settings)).collect();
        let cards = meeting::exchange(planes, &cards.into_iter().collect::<Result<Vec<_>>>()?)?;
        world.settle(meeting::local_ranks(&cards)?);
        let ways = open_ways(&geometry, planes, &seats, &cards, settings)?;
        let mut communicators = Vec::new();
        for (seat, way) in seats.into_iter().zip(ways) {
            let Way { transport, places, memory } = way;
            let peers = meeting::peers(&world, &seat, &cards, &places)?;
            let mut communicator = Self::start(&world, seat, (peers, transport), settings)?;
            communicator.far = memory;
            communicators.push(communicator);
        }
        // Nobody rings before every engine knows its routes.
        meeting::exchange(planes, &vec![(); planes.len()])?;
        Ok(communicators)
    }

    /// A rank whose peers are all in this process.
    fn assemble(world: &Arc<World>, rank: Rank, settings: &Settings) -> Result<Self> {
        let seats = world.assembled(settings.bootstrap_timeout)?;
        let seat = seats[rank.index()].clone();
        let peers = seats.iter().map(|peer| Peer::in_process(rank, &seat.context, peer));
        let peers = peers.collect::<Result<Vec<_>>>()?;
        Self::start(world, seat, (peers, None), settings)
    }

    fn start(
        world: &Arc<World>,
        seat: Arc<Seat>,
        (peers, far): (Vec<Peer>, Option<(VerbsTransport, Vec<LaneId>)>),
        settings: &Settings,
    ) -> Result<Self> {
        let rank = seat.rank;
        seat.memory.publish(rank, world.geometry.rank_count, settings.wait_timeout)?;
        let proxies = attach::proxies(settings)?;
        let attached = attach::attach(&proxies, world, &seat, (&peers, far), settings)?;
        attached.handle().settle(settings.bootstrap_timeout)?;
        tracing::debug!(
            rank = rank.0,
            ranks = peers.len(),
            device_bytes = seat.memory.device_bytes(),
            "communicator ready"
        );
        Ok(Self {
            rank,
            settings: settings.clone(),
            world: world.clone(),
            launcher: Arc::new(Mutex::new(Launcher::new(&seat)?)),
            seat,
            attached: Some(attached),
            _peers: peers,
            far: None,
            _proxies: proxies,
        })
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.rank.0
    }

    /// Number of ranks.
    pub fn rank_count(&self) -> u32 {
        self.world.geometry.rank_count
    }

    /// The context that this rank runs on.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.seat.context
    }

    /// The error that ended the communicator, if any: an expired wait, a failed transfer, an
    /// abort, ranks that disagree. Work that was enqueued before has then stopped or will soon; its
    /// results are undefined.
    ///
    /// # Errors
    /// The first error, on every rank alike.
    pub fn check(&self) -> Result<()> {
        self.seat.check()
    }

    /// Ends the communicator on all ranks: kernels that wait stop, and later calls fail.
    pub fn abort(&self, why: &str) {
        self.world.raise(Error::Aborted { by: Some(self.rank), why: why.to_owned() });
    }

    /// Counters of this rank.
    pub fn statistics(&self) -> Statistics {
        let engine = self.attached.as_ref().map(|a| a.handle().statistics()).unwrap_or_default();
        let Snapshot { descriptors, transfers, bytes, signals, occupancy_max, .. } = engine;
        Statistics {
            launches: lock(&self.launcher).launches(),
            descriptors,
            transfers,
            bytes,
            signals,
            ring_occupancy_max: occupancy_max,
        }
    }

    /// Registers `bytes` bytes of device memory at `address`, so that engines may read and write
    /// it: collectives on it then move data straight between the ranks' buffers, without staging.
    ///
    /// Registration is collective: every rank registers a buffer of the same size, in the same
    /// order, and calls on registered buffers use the same offsets on every rank. The memory must
    /// stay allocated for as long as the communicator.
    ///
    /// The call does not wait for the other ranks; the first collective that uses the buffer does.
    ///
    /// # Errors
    /// [`Error::Argument`] where the range is not device memory, [`Error::Disagreement`] where
    /// another rank registered another size.
    pub fn register(&self, address: u64, bytes: usize) -> Result<Registration> {
        self.check()?;
        buffers::check_range("registered range", address, bytes as u64)?;
        let mut launcher = lock(&self.launcher);
        let number = launcher.registered().len();
        let export = match self.world.links().is_empty() {
            true => None,
            false => Some(self.export(address)?),
        };
        let part = Part { address, bytes: bytes as u64, export: export.map(Shared::from) };
        self.world.windows.post(self.rank, self.rank_count(), number, part)?;
        launcher.add_registered((address, bytes as u64));
        Ok(Registration(number))
    }

    fn export(&self, address: u64) -> Result<Export> {
        Export::of(&self.seat.context, address).map_err(|error| match error {
            Error::Cuda { name, .. } => Error::argument(
                "registered range",
                "memory that processes can share (cuMemAlloc, not a stream-ordered pool)",
                format!("{address:#x}, which the driver does not share: {name}"),
            ),
            other => other,
        })
    }

    /// Registration `number` as this rank's engine reaches it on every rank.
    fn window(&self, number: usize) -> Result<(Window, Vec<Arc<Import>>)> {
        let limit = self.settings.bootstrap_timeout;
        let parts = self.world.windows.complete(number, limit, &self.world.links())?;
        let mut imports = Vec::new();
        let mut addresses = Vec::new();
        for (rank, part) in (0..).zip(&parts) {
            addresses.push(match part.export.as_ref().and_then(Shared::export) {
                Some(export) if !self.world.is_local(Rank(rank)) => {
                    let import = Import::open(&self.seat.context, &export.handle)?;
                    let address = import.address() + export.offset;
                    imports.push(import);
                    address
                }
                _ => part.address,
            });
        }
        Ok((Window { bytes: parts[0].bytes, addresses }, imports))
    }

    fn attached(&self) -> &Attached {
        self.attached.as_ref().expect("present until drop")
    }

    /// Waits until the launches of this rank have ended, at most `limit`.
    fn drained(&self, limit: Duration) -> bool {
        lock(&self.launcher).wait(limit)
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.rank.0)
            .field("rank_count", &self.rank_count())
            .field("device", &self.seat.context.ordinal())
            .finish_non_exhaustive()
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if !self.drained(self.settings.drop_timeout) {
            self.abort("the communicator was dropped while its work had not ended");
            if !self.drained(self.settings.drop_timeout) {
                // A kernel that ignores its abort word still uses all of this memory.
                tracing::error!(rank = self.rank.0, "a kernel does not end; its memory is leaked");
                std::mem::forget((self.launcher.clone(), self.world.clone()));
            }
        }
        if let Some(far) = self.far.as_ref().filter(|_| self.world.is_raised()) {
            far.break_off();
        }
        if let Some(attached) = self.attached.take()
            && let Err(error) = attached.detach(self.settings.drop_timeout)
        {
            tracing::warn!(%error, rank = self.rank.0, "the engine had work left");
        }
    }
}

/// One rank's way to other nodes; empty where there are none.
#[derive(Default)]
struct Way {
    transport: Option<(VerbsTransport, Vec<LaneId>)>,
    places: Vec<FarPlace>,
    memory: Option<FarMemory>,
}

/// The ways of this process's ranks to other nodes.
fn open_ways(
    geometry: &Geometry,
    planes: &[Arc<ControlPlane>],
    seats: &[Arc<Seat>],
    cards: &[Card],
    settings: &Settings,
) -> Result<Vec<Way>> {
    if geometry.nodes == Nodes::One {
        return Ok(seats.iter().map(|_| Way::default()).collect());
    }
    let open = |seat: &Arc<Seat>| {
        let others = meeting::far_ranks(cards, seat.rank);
        Far::open(seat, &others, meeting::place_on_node(cards, seat.rank), settings)
    };
    let opened = seats.iter().map(open).collect::<Result<Vec<_>>>()?;
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
    let entry = |&rank| Entry { id: *id, rank, rank_count, terms: world::terms(&geometry) };
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

fn seat(
    context: &Arc<CudaContext>,
    geometry: &Geometry,
    rank: Rank,
    settings: &Settings,
) -> Result<Arc<Seat>> {
    if rank.0 >= geometry.rank_count {
        let expected = format!("less than {}", geometry.rank_count);
        return Err(Error::argument("rank", expected, rank.0));
    }
    let memory = RankMemory::new(context, geometry, rank, settings.ring_log2)?;
    Ok(Arc::new(Seat::new(rank, context.clone(), memory)))
}
