//! The steps from contexts and a unique id to connected ranks.

use super::attach::{self, Others};
use super::flight;
use super::inter_node::{
    self, InterNodeAdapter, InterNodeConnections, InterNodeEndpoint, InterNodeInfo, InterNodeSetup,
};
use super::nodes::{self, Hosts};
use super::order;
use super::peer::Peer;
use super::peer_info::{self, PeerInfo, SharedMemory};
use super::places::{self, Places};
use super::rank::ConnectedRank;
use super::reach::{self, Candidate, Looked, Reached};
use super::registry::process_of;
use super::sharing;
use crate::bootstrap::{ControlPlane, JoinRequest, Succession, UniqueId, exchange};
use crate::communicator::state::{
    Doorbell, Geometry, InterNodeSlotMemory, Launcher, Layout, Nodes, Obstacle, PlanFiles,
    PortPlace, ProcessState, RankMemory, RankState, SharedFile, Tidy, agreed_settings, lock,
};
use crate::engine::Alarm;
use crate::error::{Error, Result};
use crate::gpu::{ContextStreams, DeviceMemory, OPEN_CALL};
use crate::id::{CopyContext, EngineKind, LaneId, Rank};
use crate::settings::Settings;
use crate::transport::verbs::VerbsTransport;
use cudarc::driver::CudaContext;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// All ranks of a communicator in this process: rank `i` runs on `contexts[i]`.
pub(in crate::communicator) fn init_all(
    contexts: &[Arc<CudaContext>],
    settings: &Settings,
) -> Result<Vec<ConnectedRank>> {
    let count = u32::try_from(contexts.len()).unwrap_or(u32::MAX);
    let _span = tracing::debug_span!("communicator", rank = 0, ranks = count).entered();
    let files = Arc::new(PlanFiles::read(count, settings)?);
    let geometry = geometry(count, Nodes::One, &files, settings)?;
    let gpus = contexts.iter().map(|context| order::ordered_gpu(context, count, settings));
    let geometry = order::ordered(geometry, gpus.collect::<Result<_>>()?);
    let process = Arc::new(ProcessState::new(geometry));
    process.set_plan_files(&files);
    let ranks: Vec<Rank> = (0..count).map(Rank).collect();
    process.set_flight(flight::random_key()?, ranks.clone());
    for (rank, context) in (0..).zip(contexts) {
        let state = rank_state(context, &geometry, Rank(rank), rank as usize, settings)?;
        process.join(state, &geometry)?;
    }
    start_in_process(&process, &ranks, settings)
}

/// Ranks `first`, `first + 1`, ... of `rank_count`, on `contexts`; waits until all have joined.
pub(in crate::communicator) fn init_ranks(
    contexts: &[Arc<CudaContext>],
    id: &UniqueId,
    first: u32,
    rank_count: u32,
    settings: &Settings,
) -> Result<Vec<ConnectedRank>> {
    let _span = tracing::debug_span!("communicator", rank = first, ranks = rank_count).entered();
    let ranks: Vec<Rank> = (first..).take(contexts.len()).map(Rank).collect();
    if ranks.is_empty() {
        return Err(Error::argument("contexts", "at least one", 0));
    }
    if id.addresses()?.is_empty() {
        return init_threads(contexts, id, &ranks, rank_count, settings);
    }
    let files = Arc::new(PlanFiles::read(rank_count, settings)?);
    let planes = join_planes(id, &ranks, (rank_count, &files), settings)?;
    let connected = connect_processes(contexts, (id, &files), &planes, settings);
    let connected = connected.map_err(|error| cause_of(error, &planes));
    // The others wait for this process's part: they should learn why it does not come.
    connected.inspect_err(|error| planes.iter().for_each(|plane| plane.abort(&error.to_string())))
}

/// How long news of a peer that has died may take to come.
const NEWS_LIMIT: Duration = Duration::from_millis(300);

/// What is behind an error of connecting: where it is about what another rank has made, that rank
/// may have died, and the driver has noticed it before its control plane.
fn cause_of(error: Error, planes: &[Arc<ControlPlane>]) -> Error {
    let about_a_peer = match &error {
        Error::Cuda { call, .. } => call == OPEN_CALL,
        Error::PeerValue { .. } | Error::Unreached { .. } | Error::System { .. } => true,
        _ => false,
    };
    if !about_a_peer {
        return error;
    }
    let (heard, news) = channel();
    for plane in planes {
        let heard = heard.clone();
        // Nobody listens any more if the news comes too late.
        plane.on_failure(move |failure| drop(heard.send(failure.clone())));
    }
    let Ok(failure) = news.recv_timeout(NEWS_LIMIT) else { return error };
    tracing::debug!(%error, "this error came of another one");
    failure
}

/// Ranks whose id holds no address: the others are threads of this process.
fn init_threads(
    contexts: &[Arc<CudaContext>],
    id: &UniqueId,
    ranks: &[Rank],
    rank_count: u32,
    settings: &Settings,
) -> Result<Vec<ConnectedRank>> {
    let files = Arc::new(PlanFiles::read(rank_count, settings)?);
    let geometry = geometry(rank_count, Nodes::One, &files, settings)?;
    let own: Vec<_> = ranks.iter().copied().zip(contexts).collect();
    let geometry = order::ordered_in_process(geometry, id, &own, settings)?;
    let process = process_of(id, geometry);
    process.set_plan_files(&files);
    process.set_flight(flight::key_of(id), (0..rank_count).map(Rank).collect());
    for (&rank, context) in ranks.iter().zip(contexts) {
        let state = rank_state(context, &geometry, rank, rank.index(), settings)?;
        process.join(state, &geometry)?;
    }
    let connected = start_in_process(&process, ranks, settings);
    // The others wait for these ranks' engines: they should learn why they do not come.
    let connected = connected.inspect_err(|error| process.raise(error.clone()))?;
    process.all_served(settings.bootstrap_timeout)?;
    Ok(connected)
}

/// Ranks of this process, on control planes that are connected.
fn connect_processes(
    contexts: &[Arc<CudaContext>],
    (id, files): (&UniqueId, &Arc<PlanFiles>),
    planes: &[Arc<ControlPlane>],
    settings: &Settings,
) -> Result<Vec<ConnectedRank>> {
    let Hosts { names: hosts, is_alone, gpus } = nodes::hosts(planes, contexts, settings)?;
    let geometry = geometry(hosts.len() as u32, Nodes::of(&hosts), files, settings)?;
    let geometry = order::ordered(geometry, gpus);
    let process = process_of(id, geometry);
    process.set_plan_files(files);
    let first = planes.first().map_or(Rank(0), |plane| plane.rank());
    process.set_flight(flight::key_of(id), nodes::ranks_beside(&hosts, first));
    process.successors.open(id, planes, settings)?;
    // Device engines reach other nodes by themselves.
    let by_channel = geometry.engine == EngineKind::Device;
    let with_adapters = match geometry.nodes {
        Nodes::Even { .. } | Nodes::Uneven if !by_channel => {
            states_with_adapters(&geometry, contexts, planes, &hosts, settings)?
        }
        _ => {
            let state = |(plane, context): (&Arc<ControlPlane>, _)| {
                let number = nodes::number_on_node(&hosts, plane.rank());
                Ok((rank_state(context, &geometry, plane.rank(), number, settings)?, None))
            };
            planes.iter().zip(contexts).map(state).collect::<Result<Vec<_>>>()?
        }
    };
    let (states, adapters): (Vec<_>, Vec<_>) = with_adapters.into_iter().unzip();
    for (plane, state) in planes.iter().zip(&states) {
        process.join(state.clone(), &geometry)?;
        process.add_plane(plane.clone());
    }
    if by_channel {
        return connect_channels(&process, planes, states, settings);
    }
    let info = |(state, plane): (&Arc<RankState>, &Arc<ControlPlane>)| {
        PeerInfo::of(state, plane, is_alone)
    };
    let infos = states.iter().zip(planes).map(info);
    let infos = exchange(planes, &infos.collect::<Result<Vec<_>>>()?)?;
    process.set_local(peer_info::local_ranks(&process, &infos)?, peer_info::tree_position(&infos)?);
    let own = OwnRanks { process: &process, planes, states: &states, settings };
    let mut inter_node = connect_nodes(&own, adapters, &hosts)?;
    let reached = reach_processes(&own, &infos, &mut inter_node)?;
    let mut connected = Vec::new();
    for ((state, inter_node), reached) in states.into_iter().zip(inter_node).zip(reached.ranks) {
        let InterNodeTransport { transport, connections, .. } = inter_node;
        let others = Others::Addressed(reached, transport.map(Box::new));
        connected.push(start(&process, state, others, connections, settings)?);
    }
    // Nobody rings before every engine knows its routes; and everybody has opened shared memory.
    exchange(planes, &vec![(); planes.len()])?;
    drop(reached.files);
    Ok(connected)
}

/// The ranks of this process, which have joined.
struct OwnRanks<'a> {
    process: &'a ProcessState,
    planes: &'a [Arc<ControlPlane>],
    states: &'a [Arc<RankState>],
    settings: &'a Settings,
}

/// What the ranks of this process reach, and the files that others open until all have them.
struct ReachedProcesses {
    ranks: Vec<Reached>,
    files: Vec<Option<SharedFile>>,
}

/// Finds with all other processes how each rank of this one reaches the others.
fn reach_processes(
    own: &OwnRanks<'_>,
    infos: &[PeerInfo<SharedMemory>],
    inter_node: &mut [InterNodeTransport],
) -> Result<ReachedProcesses> {
    let &OwnRanks { process, planes, states, settings } = own;
    let look = |(state, inter_node): (&Arc<RankState>, &InterNodeTransport)| {
        reach::look(state, candidates(process, state, infos, inter_node, settings)?, settings)
    };
    let looked = states.iter().zip(&*inter_node).map(look).collect::<Result<Vec<_>>>()?;
    let own: Vec<_> = looked.iter().map(reach::Looked::row).collect();
    let pairs = reach::agree(process, &exchange(planes, &own)?)?;
    if process.state(Rank(0)).is_ok() {
        reach::log_pairs(pairs);
    }
    let files = states.iter().map(|state| reach::make(state, pairs)).collect::<Result<Vec<_>>>()?;
    let own_names = files.iter().map(|file| file.as_ref().map(SharedFile::name));
    let names = match pairs.is_empty() {
        true => Vec::new(),
        false => exchange(planes, &own_names.collect::<Vec<_>>())?,
    };
    let mut ranks = Vec::new();
    for ((state, inter_node), looked) in states.iter().zip(inter_node).zip(looked) {
        if let Some(connections) = &mut inter_node.connections
            && let Some(memory) = state.memory.host_region()
        {
            connections.add_host_memory(memory)?;
        }
        ranks.push(looked.complete(state, pairs, |rank| {
            if process.is_local(rank) {
                return reach::in_process(&*process.state(rank)?, pairs);
            }
            let layout = Layout::new(&process.geometry, rank);
            reach::open(&state.context, rank, layout, names[rank.index()], pairs)
        })?);
    }
    Ok(ReachedProcesses { ranks, files })
}

/// As [`connect_processes`], where engines reach one another: on a node and between nodes alike,
/// without anybody's memory being opened by another process.
fn connect_channels(
    process: &Arc<ProcessState>,
    planes: &[Arc<ControlPlane>],
    states: Vec<Arc<RankState>>,
    settings: &Settings,
) -> Result<Vec<ConnectedRank>> {
    let infos = states.iter().zip(planes).map(|(state, plane)| PeerInfo::of_channel(state, plane));
    let infos = exchange(planes, &infos.collect::<Result<Vec<_>>>()?)?;
    process.set_local(peer_info::local_ranks(process, &infos)?, peer_info::tree_position(&infos)?);
    // An engine writes what its own peer has entered into the tables of its channel.
    process.set_gpus_reached(true);
    let channels: Vec<_> = infos.iter().map(|info| info.endpoint).collect();
    let start = |state| start(process, state, Others::Channels(channels.clone()), None, settings);
    let connected = states.into_iter().map(start).collect::<Result<Vec<_>>>()?;
    // Nobody rings before every engine runs.
    exchange(planes, &vec![(); planes.len()])?;
    Ok(connected)
}

/// Ranks whose peers are all in this process.
fn start_in_process(
    process: &Arc<ProcessState>,
    ranks: &[Rank],
    settings: &Settings,
) -> Result<Vec<ConnectedRank>> {
    let states = process.assembled(settings.bootstrap_timeout)?;
    let channels: Option<Vec<_>> =
        states.iter().map(|state| Some(state.memory.channel()?.address())).collect();
    let own = ranks.iter().map(|rank| states[rank.index()].clone());
    if let Some(channels) = channels {
        let others = || Others::Channels(channels.clone());
        return own.map(|state| start(process, state, others(), None, settings)).collect();
    }
    let mut connected = Vec::new();
    for (state, reached) in own.zip(reach_in_process(process, &states, ranks, settings)?) {
        let others = Others::Addressed(reached, None);
        connected.push(start(process, state, others, None, settings)?);
    }
    Ok(connected)
}

/// Finds with the other threads of the process how each of `ranks` reaches the others.
fn reach_in_process(
    process: &ProcessState,
    states: &[Arc<RankState>],
    ranks: &[Rank],
    settings: &Settings,
) -> Result<Vec<Reached>> {
    let mut looked = Vec::new();
    for rank in ranks {
        let state = &states[rank.index()];
        let candidate = |peer: &Arc<RankState>| {
            let is_own = peer.rank == state.rank;
            Candidate::on_node(is_own, settings, || Peer::in_process(&state.context, peer))
        };
        let candidates = states.iter().map(candidate).collect::<Result<_>>()?;
        let found = reach::look(state, candidates, settings)?;
        process.reach.post(state.rank, found.row());
        looked.push(found);
    }
    // All have tried the others' memory before anybody runs.
    let rows = process.reach.wait(settings.bootstrap_timeout, || process.failure())?;
    let pairs = reach::agree(process, &rows)?;
    if ranks.contains(&Rank(0)) {
        reach::log_pairs(pairs);
    }
    for rank in ranks.iter().filter(|rank| pairs.concerns(**rank)) {
        reach::make_in_process(&states[rank.index()], pairs)?;
    }
    let complete = |(rank, looked): (&Rank, Looked)| {
        let through_host = |peer: Rank| reach::in_process(&states[peer.index()], pairs);
        looked.complete(&states[rank.index()], pairs, through_host)
    };
    ranks.iter().zip(looked).map(complete).collect()
}

/// Publishes the rank's tables to its kernels, and gives it to its engine.
fn start(
    process: &Arc<ProcessState>,
    state: Arc<RankState>,
    others: Others,
    inter_node: Option<InterNodeConnections>,
    settings: &Settings,
) -> Result<ConnectedRank> {
    let (rank, ranks) = (state.rank, process.geometry.rank_count);
    let remedies = &settings.remedies;
    let pinned = remedies.pinned_uploads;
    let stored = |place: &PortPlace| others.stored(&process.geometry, place);
    state.memory.publish(rank, settings.wait_timeout, pinned, stored)?;
    let mut launcher = Launcher::new(&state, settings)?;
    let scratch = process.plan_files().map_or(0, PlanFiles::scratch_bytes);
    if scratch > 0 {
        launcher.take_scratch(DeviceMemory::zeroed(&state.context, scratch as usize)?);
    }
    sharing::check(process, &state, &mut launcher, remedies)?;
    let launcher = Arc::new(Mutex::new(launcher));
    let tidy = Tidy::new(&launcher, remedies.late_frees);
    let engine = attach::attach(process, &state, others, settings)?;
    process.serve();
    tracing::debug!(
        rank = rank.0,
        ranks,
        engine = %process.geometry.engine,
        device_bytes = state.memory.device_bytes(),
        "communicator ready"
    );
    let plane = process.planes().into_iter().find(|plane| plane.rank() == rank);
    let parts = places::Parts {
        engine: engine.routes(&process.geometry),
        numbers: lock(&launcher).routes.numbers().clone(),
        plane,
        connector: inter_node.as_ref().map(|adapters| adapters.connector().clone()),
        open_beside_kernels: settings.open_beside_kernels,
    };
    let places = Places::new(process, &state, parts)?;
    let (flight, watched) = flight::begin(process, &state, &engine, settings)?;
    Ok(ConnectedRank {
        settings: settings.clone(),
        process: process.clone(),
        places,
        flight,
        watched: Some(watched),
        state,
        launcher,
        engine: Some(engine),
        inter_node,
        succession: Succession::default(),
        _tidy: tidy,
    })
}

/// One rank's transport to other nodes; empty where there are none.
#[derive(Default)]
struct InterNodeTransport {
    transport: Option<(VerbsTransport, Vec<LaneId>)>,
    endpoints: Vec<InterNodeEndpoint>,
    connections: Option<InterNodeConnections>,
}

/// States of ranks whose memory ranks of other nodes write, through adapters.
fn states_with_adapters(
    geometry: &Geometry,
    contexts: &[Arc<CudaContext>],
    planes: &[Arc<ControlPlane>],
    hosts: &[String],
    settings: &Settings,
) -> Result<Vec<(Arc<RankState>, Option<InterNodeAdapter>)>> {
    let adapters = inter_node::adapters(contexts, planes, hosts, settings)?;
    let ranks = contexts.iter().zip(planes).zip(adapters);
    let state = |((context, plane), adapter): ((&Arc<CudaContext>, &Arc<ControlPlane>), _)| {
        let rank = plane.rank();
        let (memory, adapter) =
            InterNodeAdapter::allocate(adapter, context, rank, geometry, settings)?;
        Ok((Arc::new(RankState::new(rank, context.clone(), memory)), Some(adapter)))
    };
    ranks.map(state).collect()
}

/// Connects this process's ranks with those of other nodes, where there are any.
fn connect_nodes(
    &OwnRanks { process, planes, states, settings }: &OwnRanks<'_>,
    adapters: Vec<Option<InterNodeAdapter>>,
    hosts: &[String],
) -> Result<Vec<InterNodeTransport>> {
    let Some(adapters) = adapters.into_iter().collect::<Option<Vec<_>>>() else {
        return Ok(states.iter().map(|_| InterNodeTransport::default()).collect());
    };
    let setup = |(state, adapter): (&Arc<RankState>, _)| InterNodeSetup::new(state, adapter);
    let setups: Vec<_> = states.iter().zip(adapters).map(setup).collect();
    let infos: Vec<_> = setups.iter().map(|setup| Some(setup.info().clone())).collect();
    let infos = exchange(planes, &infos)?;
    process.set_gpus_reached(infos.iter().flatten().all(InterNodeInfo::reaches_gpu));
    let limit = settings.bootstrap_timeout;
    let connect = |((state, plane), setup): ((&Arc<RankState>, _), InterNodeSetup)| {
        let others = nodes::inter_node_ranks(hosts, state.rank);
        let (transport, lanes, endpoints, connections) =
            setup.connect(state, plane, &others, &infos, limit)?;
        let (transport, connections) = (Some((transport, lanes)), Some(connections));
        Ok(InterNodeTransport { transport, endpoints, connections })
    };
    states.iter().zip(planes).zip(setups).map(connect).collect()
}

/// All ranks, as the one of `state` looks at them; `inter_node` leads to those of other nodes.
fn candidates(
    process: &ProcessState,
    state: &RankState,
    infos: &[PeerInfo<SharedMemory>],
    inter_node: &InterNodeTransport,
    settings: &Settings,
) -> Result<Vec<Candidate>> {
    let candidate = |(rank, info): (u32, &PeerInfo<SharedMemory>)| {
        let rank = Rank(rank);
        let geometry = &process.geometry;
        // They stand in the order of ranks.
        if let Ok(at) = inter_node.endpoints.binary_search_by_key(&rank, |place| place.rank) {
            let place = &inter_node.endpoints[at];
            return Peer::inter_node(geometry, place).map(Candidate::Elsewhere);
        }
        Candidate::on_node(rank == state.rank, settings, || {
            if process.is_local(rank) {
                return Peer::in_process(&state.context, &*process.state(rank)?);
            }
            let Some([signals, staging]) = &info.endpoint else {
                return Ok(Err(Obstacle::NotShared));
            };
            let signals = signals.export(rank, "its signal memory")?;
            let staging = staging.export(rank, "its staging memory")?;
            Peer::on_node(rank, &state.context, geometry, &[signals, staging])
        })
    };
    (0..).zip(infos).map(candidate).collect()
}

/// Joins the control planes of this process's `ranks`.
fn join_planes(
    id: &UniqueId,
    ranks: &[Rank],
    (rank_count, files): (u32, &PlanFiles),
    settings: &Settings,
) -> Result<Vec<Arc<ControlPlane>>> {
    let geometry = geometry(rank_count, Nodes::One, files, settings)?;
    let request = |&rank| {
        let terms = agreed_settings(&geometry, settings);
        JoinRequest { id: *id, rank, rank_count, terms }
    };
    // All begin before any is waited for: the last one completes the job.
    let begun = ranks.iter().map(|rank| ControlPlane::start(request(rank), settings));
    let planes: Vec<_> = begun.map(|plane| plane.map(Arc::new)).collect::<Result<_>>()?;
    planes.iter().try_for_each(|plane| plane.assembled())?;
    Ok(planes)
}

fn geometry(
    rank_count: u32,
    nodes: Nodes,
    files: &PlanFiles,
    settings: &Settings,
) -> Result<Geometry> {
    if !(1..=Geometry::RANKS_MAX).contains(&rank_count) {
        let expected = format!("1 to {}", Geometry::RANKS_MAX);
        return Err(Error::argument("number of ranks", expected, rank_count));
    }
    Ok(Geometry::new(rank_count, nodes, settings)?
        .with_files(files.digest(), files.profile_digest()))
}

/// The state of a rank with its memory; the rank is number `number` of its node.
fn rank_state(
    context: &Arc<CudaContext>,
    geometry: &Geometry,
    rank: Rank,
    number: usize,
    settings: &Settings,
) -> Result<Arc<RankState>> {
    if rank.0 >= geometry.rank_count {
        let expected = format!("less than {}", geometry.rank_count);
        return Err(Error::argument("rank", expected, rank.0));
    }
    let slots = InterNodeSlotMemory::Device;
    let copies = match (settings.copy_context, geometry.engine) {
        // Nothing is copied by streams while collectives run.
        (CopyContext::Auto, EngineKind::Device) => CopyContext::Shared,
        (wanted, _) => wanted,
    };
    let streams = ContextStreams::of(context, copies)?;
    let memory = RankMemory::new(streams, geometry, rank, slots, settings.ring_log2)?;
    let memory = match geometry.engine {
        EngineKind::Proxy => memory,
        EngineKind::Device => {
            let doorbell = Doorbell::claim(context, geometry, &memory.layout, number, settings)?;
            memory.with_doorbell(doorbell)
        }
    };
    Ok(Arc::new(RankState::new(rank, context.clone(), memory)))
}
