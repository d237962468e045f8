//! What the ranks of one communicator share inside a process: their states, their registered
//! buffers, the comparison of their calls, verified plans, the alarm that stops all of them, and
//! the control planes that lead to ranks of other processes.

use super::barrier::ProcessBarrier;
use super::chosen::ChosenWays;
use super::forests::Forests;
use super::geometry::{Geometry, Nodes, Reach};
use super::plan_files::PlanFiles;
use super::plans::PlanCache;
use super::posted::Posted;
use super::rank::RankState;
use super::reach::{HostPairs, ReachRow};
use super::registrations::{RankBuffer, Registrations};
use super::streams::StreamClaims;
use super::sync::lock;
use super::terms::geometry_signature;
use crate::bootstrap::agreement::{CallExchange, CallMatcher, ProcessTreePosition, compare};
use crate::bootstrap::{ControlPlane, Successors};
use crate::cost::{Means, Moved, TREES_BYTES_MIN, largest_of_class};
use crate::engine::Alarm;
use crate::error::{Error, Result};
use crate::id::Rank;
use crate::lived::wait_while;
use crate::plan::{Choice, Collective, CollectiveRequest, Forest, Limits, PlanError};
use crate::settings::Algorithms;
use crate::topology::ranks::RankGpu;
use cudarc::driver::{CudaContext, sys};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::time::Duration;

/// State that the ranks of one process share.
#[derive(Debug)]
pub(crate) struct ProcessState {
    pub geometry: Geometry,
    states: Posted<Arc<RankState>>,
    calls: Arc<CallExchange>,
    pub registrations: Registrations,
    /// Where the ranks of this process wait for one another.
    pub barrier: ProcessBarrier,
    pub streams: StreamClaims,
    pub plans: PlanCache,
    pub successors: Successors,
    /// Name of the communicator in flight recorders, and the ranks of this node.
    flight: OnceLock<(u64, Arc<[Rank]>)>,
    raised: AtomicBool,
    /// Ranks of this process whose engines serve them.
    served: Mutex<usize>,
    served_changed: Condvar,
    /// Control planes of the ranks of this process, where others run elsewhere.
    planes: Mutex<Vec<Arc<ControlPlane>>>,
    /// The ranks of this process, in order, once that is known.
    local: OnceLock<Vec<Rank>>,
    /// What each rank does not reach, where all are of this process.
    pub reach: Posted<ReachRow>,
    /// Pairs of ranks whose messages go through host memory, once that is known.
    host_pairs: OnceLock<HostPairs>,
    /// Is every rank's GPU memory written from other nodes, once that is known?
    gpus_reached: OnceLock<bool>,
    nvlink: OnceLock<bool>,
    /// The most blocks of all-reduces over lanes of stores that the cost model chooses, once it
    /// knows the GPUs of all ranks; 0: it does not choose.
    modelled_blocks: OnceLock<u32>,
    forests: Forests,
    ways: ChosenWays,
    /// Kinds of calls of which it was said how they are done.
    said: Mutex<BTreeSet<(&'static str, &'static str)>>,
    /// What takes offers of other ranks, by rank of this process.
    places: Mutex<BTreeMap<Rank, Weak<dyn PlaceTaker>>>,
    /// Plans of files, once they are read.
    plan_files: OnceLock<Arc<PlanFiles>>,
}

/// Registered memory that one rank offers another one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// The rank's registration.
    pub number: u64,
    /// Its window, where the engine is a device.
    pub window: u64,
    pub buffer: RankBuffer,
}

/// A rank of this process, for others of it that offer it memory.
pub(crate) trait PlaceTaker: Send + Sync {
    /// Number and generation of the grant, if the offer of `from` is taken.
    fn take(&self, from: Rank, offer: &Offer) -> Option<(u32, u32)>;

    /// Forgets registration `number` of `from`, into which nobody puts any more.
    fn forget(&self, from: Rank, number: u64);
}

impl std::fmt::Debug for dyn PlaceTaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PlaceTaker")
    }
}

impl ProcessState {
    /// A process none of whose ranks has joined.
    pub fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            states: Posted::new("the ranks of a communicator", geometry.rank_count),
            calls: Arc::new(CallExchange::new(geometry.rank_count)),
            registrations: Registrations::default(),
            barrier: ProcessBarrier::default(),
            streams: StreamClaims::default(),
            plans: PlanCache::default(),
            successors: Successors::default(),
            flight: OnceLock::new(),
            raised: AtomicBool::new(false),
            served: Mutex::default(),
            served_changed: Condvar::new(),
            planes: Mutex::default(),
            local: OnceLock::new(),
            reach: Posted::new("what ranks reach", geometry.rank_count),
            host_pairs: OnceLock::new(),
            gpus_reached: OnceLock::new(),
            nvlink: OnceLock::new(),
            modelled_blocks: OnceLock::new(),
            forests: Forests::default(),
            ways: ChosenWays::default(),
            said: Mutex::default(),
            places: Mutex::default(),
            plan_files: OnceLock::new(),
        }
    }

    /// Sets what files hold; all ranks have the same ones, which their geometries say.
    pub fn set_plan_files(&self, files: &Arc<PlanFiles>) {
        // The first rank of the process sets them for all.
        let _ = self.plan_files.set(files.clone());
        self.forests.set_profile(files.profile());
    }

    /// The plans of files.
    pub fn plan_files(&self) -> Option<&PlanFiles> {
        self.plan_files.get().map(Arc::as_ref)
    }

    /// Adds the control plane of a rank of this process. Its failures fail the communicator, and
    /// the other way round.
    pub fn add_plane(self: &Arc<Self>, plane: Arc<ControlPlane>) {
        let process = Arc::downgrade(self);
        plane.on_failure(move |error| {
            if let Some(process) = process.upgrade() {
                process.raise(error.clone());
            }
        });
        let process = Arc::downgrade(self);
        plane.on_child_message(move |from, bytes| {
            if let Some(process) = process.upgrade()
                && let Err(error) = process.calls.receive(|| process.lowest_plane(), from, bytes)
            {
                process.raise(error);
            }
        });
        lock(&self.planes).push(plane);
    }

    /// Control planes of the ranks of this process, by rank; none if nobody runs elsewhere.
    pub fn planes(&self) -> Vec<Arc<ControlPlane>> {
        let mut planes = lock(&self.planes).clone();
        planes.sort_unstable_by_key(|plane| plane.rank());
        planes
    }

    /// The control plane that leads to the parent process: the parent of a process's lowest rank is
    /// of another process.
    fn lowest_plane(&self) -> Option<Arc<ControlPlane>> {
        lock(&self.planes).iter().min_by_key(|plane| plane.rank()).cloned()
    }

    /// Sets which ranks are of this process, and its position among the processes.
    pub fn set_local(&self, local: Vec<Rank>, position: ProcessTreePosition) {
        // All ranks of the process have received the same, so the first one sets it for all.
        if self.local.set(local).is_ok() {
            self.calls.set_position(position);
        }
    }

    /// Is the rank of this process? All are before [`set_local`](Self::set_local).
    pub fn is_local(&self, rank: Rank) -> bool {
        self.local.get().is_none_or(|local| local.binary_search(&rank).is_ok())
    }

    /// Sets which pairs of ranks go through host memory; all ranks of the process say the same.
    pub fn set_host_pairs(&self, pairs: HostPairs) -> &HostPairs {
        self.host_pairs.get_or_init(|| pairs)
    }

    /// Sets whether NVLink joins the GPUs of all ranks, each to each; all ranks say the same.
    pub fn set_nvlink(&self, joined: bool) {
        let _ = self.nvlink.set(joined);
    }

    /// Sets the GPUs of all ranks, in order, where all of them are known; all ranks say the same.
    pub fn set_gpus<'a>(&self, gpus: impl Iterator<Item = Option<&'a RankGpu>>) {
        let geometry = &self.geometry;
        if !geometry.wants_links() {
            return;
        }
        self.forests.set_gpus(gpus.map(Option::<&RankGpu>::cloned).collect());
        let stores = geometry.may_store_over_pci() && self.forests.model(geometry).is_some();
        let blocks = match stores {
            false => 0,
            // As many as without lanes of stores: all of them have to run at the same time.
            true if self.forests.share_gpus(geometry) => geometry.store_blocks.min(geometry.blocks),
            true => geometry.store_blocks,
        };
        let _ = self.modelled_blocks.set(blocks);
    }

    /// The plan of an all-reduce that costs least, by the cost model; `None` where it does not
    /// choose. All ranks say the same.
    ///
    /// # Errors
    /// As [`plan::select`](crate::plan::select).
    pub fn modelled(&self, request: &CollectiveRequest) -> Result<Option<Choice>, PlanError> {
        let asked = request.collective == Collective::AllReduce
            && request.bytes > 0
            && self.all_reached()
            && self.geometry.asks_model()
            && self.modelled_blocks.get().is_some_and(|blocks| *blocks > 0);
        let Some(model) = asked.then(|| self.forests.model(&self.geometry)).flatten() else {
            return Ok(None);
        };
        // What a class goes by must not depend on which of its sizes comes first.
        let largest = largest_of_class(request);
        let asks = largest.bytes >= TREES_BYTES_MIN;
        let forest = asks.then(|| self.forest(&largest)).flatten();
        let limits = self.limits(self.geometry.slot_bytes);
        let means = Means { limits, forest: forest.as_ref() };
        let moved = Moved { by_device: false, stores: limits.stores };
        let way = self.ways.get(request, || model.way(request, &means, moved))?;
        means.plan(request, way).map(Some)
    }

    /// The trees along which a collective goes, where settings ask for them and the machine has
    /// them. All ranks say the same.
    pub fn forest(&self, request: &CollectiveRequest) -> Option<Arc<Forest>> {
        let geometry = &self.geometry;
        let collective = request.collective;
        if !geometry.may_take_trees() || request.rank_count < 2 {
            return None;
        }
        let root = match collective {
            _ if geometry.reproducible && collective.reduces() => return None,
            Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter => None,
            Collective::Broadcast { root } | Collective::Reduce { root } => Some(root),
            _ => return None,
        };
        self.forests.get(geometry, root, |from, to| self.is_reached(from, to))
    }

    /// Which of the plans for a request is taken, of which the first is that of the table of
    /// selection and the last goes along packed trees. All ranks say the same.
    pub fn chosen(&self, candidates: &[Choice]) -> usize {
        match self.geometry.algorithm {
            Algorithms::Trees => candidates.len() - 1,
            Algorithms::Table | Algorithms::Only(_) => 0,
            Algorithms::Auto => self.forests.model(&self.geometry).map_or(0, |model| {
                let stores = self.limits(self.geometry.slot_bytes).stores;
                model.choose(candidates, Moved { by_device: false, stores })
            }),
        }
    }

    /// May a plan along packed trees be better than what selection chooses?
    pub fn asks_for_trees(&self, request: &CollectiveRequest) -> bool {
        let joined = || self.nvlink.get().is_some_and(|joined| *joined);
        match self.geometry.algorithm {
            Algorithms::Trees => true,
            Algorithms::Table | Algorithms::Only(_) => false,
            Algorithms::Auto => {
                request.bytes.saturating_mul(request.parts()) >= TREES_BYTES_MIN && !joined()
            }
        }
    }

    /// What plans along packed trees, and those of files, may use: all lanes of stores.
    pub fn limits_of_trees(&self) -> Limits {
        let limits = self.limits(self.geometry.slot_bytes);
        Limits { store_blocks: self.geometry.store_blocks, ..limits }
    }

    /// The same for the table of selection, which knows no lanes of stores over PCI but those that
    /// a setting asks for.
    pub fn limits_of_table(&self) -> Limits {
        let reach = Reach { modelled_blocks: 0, ..self.reach() };
        self.geometry.limits_for(self.geometry.slot_bytes, &reach)
    }

    /// Is this the first such call? All ranks of the process ask.
    pub fn is_first(&self, collective: &'static str, algorithm: &'static str) -> bool {
        lock(&self.said).insert((collective, algorithm))
    }

    /// Sets whether every rank's GPU memory is written from other nodes; all ranks say the same.
    pub fn set_gpus_reached(&self, reached: bool) {
        // As above, the first one sets it for all.
        let _ = self.gpus_reached.set(reached);
    }

    /// May engines write into registered buffers of other ranks? Not where some of a node do not
    /// reach each other's GPU memory, or an adapter does not reach that of its rank; device engines
    /// reach it all.
    pub fn writes_registered_buffers(&self) -> bool {
        let between_nodes = || self.gpus_reached.get().is_some_and(|reached| *reached);
        self.all_reached() && (self.geometry.nodes == Nodes::One || between_nodes())
    }

    /// Do stores of every rank's kernels reach every other rank's windows? All ranks say the same.
    pub fn stores_reach_all(&self) -> bool {
        let reached = self.all_reached() || self.needs_host_windows();
        reached && self.geometry.stores && self.geometry.nodes == Nodes::One
    }

    /// Must windows lie in pinned host memory, so that stores and engines reach those of all ranks?
    /// All ranks say the same.
    pub fn needs_host_windows(&self) -> bool {
        !self.writes_registered_buffers()
    }

    /// Do stores of every rank's kernels reach the windows of all ranks of its node? All ranks say
    /// the same.
    pub fn stores_reach_nodes(&self) -> bool {
        self.all_reached() && self.geometry.stores
    }

    /// What a plan may use, with slots of `slot_bytes`. All ranks say the same.
    pub fn limits(&self, slot_bytes: u32) -> Limits {
        self.geometry.limits_for(slot_bytes, &self.reach())
    }

    /// How ranks reach each other.
    fn reach(&self) -> Reach {
        Reach {
            all: self.all_reached(),
            nvlink: self.nvlink.get().is_some_and(|joined| *joined),
            modelled_blocks: self.modelled_blocks.get().copied().unwrap_or(0),
            writes_registered: self.writes_registered_buffers(),
        }
    }

    /// The most blocks of a launch of ranks that share a GPU, which take packed trees only where a
    /// setting says so, and plans of files where those fit.
    pub fn blocks_max(&self) -> u32 {
        let trees = self.geometry.algorithm == Algorithms::Trees && self.geometry.may_take_trees();
        let of_trees = if trees { self.geometry.store_blocks } else { 0 };
        let limits = self.limits(self.geometry.slot_bytes);
        let lanes = self.limits_of_trees();
        let is_stored = |from, to| self.stores_reach(from, to);
        let of_files = self.plan_files().map_or(0, |it| it.blocks_max(&lanes, &is_stored));
        self.geometry.blocks.max(limits.store_blocks_max()).max(of_trees).max(of_files)
    }

    /// Do stores of a rank's kernels reach another rank's windows, on one node? All ranks say the
    /// same.
    pub fn stores_reach(&self, from: u32, to: u32) -> bool {
        self.geometry.stores && self.geometry.nodes == Nodes::One && self.is_reached(from, to)
    }

    /// Do two ranks of a node reach each other's GPU memory?
    fn is_reached(&self, one: u32, other: u32) -> bool {
        let pairs = self.host_pairs.get();
        pairs.is_none_or(|pairs| pairs.obstacle(Rank(one), Rank(other)).is_none())
    }

    /// Do all ranks of each node reach each other's GPU memory?
    fn all_reached(&self) -> bool {
        self.host_pairs.get().is_none_or(HostPairs::is_empty)
    }

    /// Adds what takes offers for a rank of this process.
    pub fn add_places(&self, rank: Rank, places: Weak<dyn PlaceTaker>) {
        lock(&self.places).insert(rank, places);
    }

    /// What takes offers for a rank of this process, while there is such a rank.
    pub fn places(&self, rank: Rank) -> Option<Arc<dyn PlaceTaker>> {
        lock(&self.places).get(&rank)?.upgrade()
    }

    /// Waits until an error that somebody is raising has reached all ranks of this process: from
    /// then on each of them knows it. Costs one load while all is well.
    pub fn settle(&self) {
        if self.is_raised() {
            drop(self.states.lock());
        }
    }

    /// Sets the communicator's name in flight recorders, and the ranks of this node. All ranks of
    /// the process say the same.
    pub fn set_flight(&self, key: u64, node: Vec<Rank>) {
        let _ = self.flight.set((key, node.into()));
    }

    /// The communicator's name in flight recorders, and the ranks of this node.
    pub fn flight(&self) -> (u64, Arc<[Rank]>) {
        let unnamed = || (0, Arc::from([]));
        self.flight.get().cloned().unwrap_or_else(unnamed)
    }

    /// The error that ended the communicator, if any.
    pub fn failure(&self) -> Option<Error> {
        let states = self.states.lock();
        states.iter().flatten().find_map(|state| state.check().err())
    }

    /// How many ranks are of this process.
    pub fn local_count(&self) -> usize {
        self.local.get().map_or(self.geometry.rank_count as usize, Vec::len)
    }

    /// Devices, other than `context`'s, on which ranks of this process run.
    pub fn other_devices(&self, context: &CudaContext) -> Vec<sys::CUdevice> {
        let states = self.states.lock();
        let devices = states.iter().flatten().map(|state| state.context.cu_device());
        let mut devices: Vec<_> = devices.filter(|&device| device != context.cu_device()).collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    /// How many ranks of this process run on the GPU of `context`.
    pub fn ranks_on(&self, context: &CudaContext) -> usize {
        let states = self.states.lock();
        states.iter().flatten().filter(|state| state.context.cu_ctx() == context.cu_ctx()).count()
    }

    /// The other ranks of this process on the GPU of `state`.
    pub fn ranks_beside(&self, state: &RankState) -> Vec<Rank> {
        let states = self.states.lock();
        let beside = states.iter().flatten().filter(|other| {
            other.rank != state.rank && other.context.cu_ctx() == state.context.cu_ctx()
        });
        beside.map(|other| other.rank).collect()
    }

    /// The state of a rank of this process that has joined.
    pub fn state(&self, rank: Rank) -> Result<Arc<RankState>> {
        let states = self.states.lock();
        let state = states.get(rank.index()).and_then(Clone::clone);
        state.ok_or_else(|| Error::argument("rank", "one of this process that has joined", rank.0))
    }

    /// Adds the state of a rank.
    ///
    /// # Errors
    /// [`Error::Argument`] for a rank that is out of range or taken, [`Error::Disagreement`] where
    /// this rank's geometry is not the process's.
    pub fn join(&self, state: Arc<RankState>, geometry: &Geometry) -> Result<()> {
        let mut states = self.states.lock();
        let rank = state.rank;
        let other = states.iter().flatten().map(|state| state.rank).next().unwrap_or(Rank(0));
        compare(
            &"communicator",
            rank,
            &geometry_signature(geometry),
            other,
            &geometry_signature(&self.geometry),
        )?;
        let count = states.len();
        match states.get_mut(rank.index()) {
            None => Err(Error::argument("rank", format_args!("less than {count}"), rank.0)),
            Some(Some(_)) => Err(Error::argument("rank", "one that nobody has", rank.0)),
            Some(empty) => {
                *empty = Some(state);
                drop(states);
                self.states.wake();
                Ok(())
            }
        }
    }

    /// The states of all ranks, once every rank has joined.
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`] names the ranks that are missing.
    pub fn assembled(&self, limit: Duration) -> Result<Vec<Arc<RankState>>> {
        self.states.wait(limit, || None)
    }

    /// One more rank of this process is served by its engine.
    pub fn serve(&self) {
        *lock(&self.served) += 1;
        self.served_changed.notify_all();
    }

    /// Waits until all ranks are served, where all are of this process: an engine may refuse what
    /// comes for a rank that is not.
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`] says how many are not; the error of the rank that failed.
    pub fn all_served(&self, limit: Duration) -> Result<()> {
        let count = self.geometry.rank_count as usize;
        let waiting = |served: &mut usize| *served < count && !self.is_raised();
        let (served, waited) = wait_while(&self.served_changed, lock(&self.served), limit, waiting);
        let served = *served;
        for state in self.states.lock().iter().flatten() {
            state.check()?;
        }
        if served >= count {
            return Ok(());
        }
        Err(Error::HostWaitExpired {
            what: "the engines of a communicator's ranks".into(),
            expected: format!("{count} ranks served"),
            seen: format!("{served}"),
            waited,
        })
    }

    /// Compares calls of this process's ranks with those of all others. What other processes must
    /// know of them is sent soon.
    ///
    /// # Errors
    /// [`Error::Disagreement`] where calls differ that are known here already.
    pub fn compare_calls(
        &self,
        compare: impl FnOnce(&mut CallMatcher) -> Result<()>,
    ) -> Result<()> {
        self.calls.compare(|| self.lowest_plane(), compare)
    }
}

impl Drop for ProcessState {
    fn drop(&mut self) {
        // Engines elsewhere may still return credits into this memory.
        let states: Vec<_> = self.states.lock().drain(..).flatten().collect();
        for plane in lock(&self.planes).drain(..) {
            plane.keep(states.clone());
        }
    }
}

impl Alarm for ProcessState {
    fn raise(&self, mut error: Error) {
        if let Error::WaitExpired(wait) = &mut error {
            wait.behind = self.calls.behind();
        }
        let is_first = {
            // One delivery at a time, and the flag within: whoever sees it waits here for the rest.
            let states = self.states.lock();
            let is_first = !self.raised.swap(true, Ordering::Relaxed);
            for state in states.iter().flatten() {
                state.fail(&error);
            }
            is_first
        };
        if is_first {
            tracing::error!(%error, "communicator failed");
            // After this process's ranks have kept it: from the plane it comes back as an abort.
            // One control plane is enough: the error reaches all ranks.
            if let Some(plane) = lock(&self.planes).first() {
                plane.end(&error);
            }
        }
        // Locked in between, or a rank that is about to wait would miss it.
        drop(lock(&self.served));
        self.served_changed.notify_all();
        self.reach.wake();
    }

    fn is_raised(&self) -> bool {
        // A late view costs one more step of the engine and nothing else.
        self.raised.load(Ordering::Relaxed)
    }
}
