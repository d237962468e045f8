//! The steps from contexts and a unique id to connected ranks.

use super::attach::{self, Others};
use super::inter_node::{
    self, InterNodeAdapter, InterNodeConnections, InterNodeEndpoint, InterNodeSetup,
};
use super::nodes;
use super::peer::Peer;
use super::peer_info::{self, PeerInfo, SharedMemory};
use super::rank::ConnectedRank;
use super::registry::process_of;
use super::sharing;
use crate::bootstrap::{ControlPlane, JoinRequest, UniqueId, exchange};
use crate::communicator::state::{
    Doorbell, Geometry, InterNodeSlotMemory, Launcher, Nodes, ProcessState, RankMemory, RankState,
    Tidy, agreed_settings,
};
use crate::engine::Alarm;
use crate::error::{Error, Result};
use crate::id::{EngineKind, LaneId, Rank};
use crate::settings::Settings;
use crate::transport::verbs::VerbsTransport;
use cudarc::driver::CudaContext;
use std::sync::{Arc, Mutex};

/// All ranks of a communicator in this process: rank `i` runs on `contexts[i]`.
pub(in crate::communicator) fn init_all(
    contexts: &[Arc<CudaContext>],
    settings: &Settings,
) -> Result<Vec<ConnectedRank>> {
    let count = u32::try_from(contexts.len()).unwrap_or(u32::MAX);
    let _span = tracing::debug_span!("communicator", rank = 0, ranks = count).entered();
    let geometry = geometry(count, Nodes::One, settings)?;
    let process = Arc::new(ProcessState::new(geometry));
    for (rank, context) in (0..).zip(contexts) {
        let state = rank_state(context, &geometry, (Rank(rank), rank as usize), settings)?;
        process.join(state, &geometry)?;
    }
    (0..count).map(|rank| start_in_process(&process, Rank(rank), settings)).collect()
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
    let planes = join_planes(id, &ranks, rank_count, settings)?;
    let connected = connect_processes(contexts, id, &planes, settings);
    // The others wait for this process's part: they should learn why it does not come.
    connected.inspect_err(|error| planes.iter().for_each(|plane| plane.abort(&error.to_string())))
}

/// Ranks whose id holds no address: the others are threads of this process.
fn init_threads(
    contexts: &[Arc<CudaContext>],
    id: &UniqueId,
    ranks: &[Rank],
    rank_count: u32,
    settings: &Settings,
) -> Result<Vec<ConnectedRank>> {
    let geometry = geometry(rank_count, Nodes::One, settings)?;
    let process = process_of(id, geometry);
    for (&rank, context) in ranks.iter().zip(contexts) {
        let state = rank_state(context, &geometry, (rank, rank.index()), settings)?;
        process.join(state, &geometry)?;
    }
    let connected = ranks.iter().map(|&rank| start_in_process(&process, rank, settings));
    let connected = connected.collect::<Result<Vec<_>>>();
    // The others wait for these ranks' engines: they should learn why they do not come.
    let connected = connected.inspect_err(|error| process.raise(error.clone()))?;
    process.all_served(settings.bootstrap_timeout)?;
    Ok(connected)
}

/// Ranks of this process, on control planes that are connected.
fn connect_processes(
    contexts: &[Arc<CudaContext>],
    id: &UniqueId,
    planes: &[Arc<ControlPlane>],
    settings: &Settings,
) -> Result<Vec<ConnectedRank>> {
    let hosts = nodes::hosts(planes, settings)?;
    let geometry = geometry(hosts.len() as u32, Nodes::of(&hosts), settings)?;
    let process = process_of(id, geometry);
    // Device engines reach other nodes by themselves.
    let by_channel = geometry.engine == EngineKind::Device;
    let with_adapters = match geometry.nodes {
        Nodes::Even { .. } | Nodes::Uneven if !by_channel => {
            states_with_adapters(&geometry, (contexts, planes), &hosts, settings)?
        }
        _ => {
            let state = |(plane, context): (&Arc<ControlPlane>, _)| {
                let number = nodes::number_on_node(&hosts, plane.rank());
                Ok((rank_state(context, &geometry, (plane.rank(), number), settings)?, None))
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
    let infos = states.iter().zip(planes).map(|(state, plane)| PeerInfo::of(state, plane));
    let infos = exchange(planes, &infos.collect::<Result<Vec<_>>>()?)?;
    process.set_local(peer_info::local_ranks(&process, &infos)?, peer_info::tree_position(&infos)?);
    let inter_node = connect_nodes(planes, &states, adapters, &hosts)?;
    let mut connected = Vec::new();
    for (state, inter_node) in states.into_iter().zip(inter_node) {
        let InterNodeTransport { transport, endpoints, connections } = inter_node;
        let peers = peers(&process, &state, &infos, &endpoints)?;
        let others = Others::Addressed(peers, transport.map(Box::new));
        connected.push(start(&process, state, others, connections, settings)?);
    }
    // Nobody rings before every engine knows its routes.
    exchange(planes, &vec![(); planes.len()])?;
    Ok(connected)
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
    let channels: Vec<_> = infos.iter().map(|info| info.endpoint).collect();
    let start = |state| start(process, state, Others::Channels(channels.clone()), None, settings);
    let connected = states.into_iter().map(start).collect::<Result<Vec<_>>>()?;
    // Nobody rings before every engine runs.
    exchange(planes, &vec![(); planes.len()])?;
    Ok(connected)
}

/// A rank whose peers are all in this process.
fn start_in_process(
    process: &Arc<ProcessState>,
    rank: Rank,
    settings: &Settings,
) -> Result<ConnectedRank> {
    let states = process.assembled(settings.bootstrap_timeout)?;
    let state = states[rank.index()].clone();
    let channels: Option<Vec<_>> =
        states.iter().map(|state| Some(state.memory.channel()?.address())).collect();
    let others = match channels {
        Some(channels) => Others::Channels(channels),
        None => {
            let peers = states.iter().map(|peer| Peer::in_process(rank, &state.context, peer));
            Others::Addressed(peers.collect::<Result<_>>()?, None)
        }
    };
    start(process, state, others, None, settings)
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
    state.memory.publish(rank, ranks, (settings.wait_timeout, pinned))?;
    let mut launcher = Launcher::new(&state, remedies)?;
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
    Ok(ConnectedRank {
        settings: settings.clone(),
        process: process.clone(),
        state,
        launcher,
        engine: Some(engine),
        inter_node,
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
    (contexts, planes): (&[Arc<CudaContext>], &[Arc<ControlPlane>]),
    hosts: &[String],
    settings: &Settings,
) -> Result<Vec<(Arc<RankState>, Option<InterNodeAdapter>)>> {
    let adapters = inter_node::adapters(contexts, planes, hosts, settings)?;
    let ranks = contexts.iter().zip(planes).zip(adapters);
    let state = |((context, plane), adapter): ((&Arc<CudaContext>, &Arc<ControlPlane>), _)| {
        let rank = plane.rank();
        let (memory, adapter) =
            InterNodeAdapter::allocate(adapter, (context, rank), geometry, settings)?;
        Ok((Arc::new(RankState::new(rank, context.clone(), memory)), Some(adapter)))
    };
    ranks.map(state).collect()
}

/// Connects this process's ranks with those of other nodes, where there are any.
fn connect_nodes(
    planes: &[Arc<ControlPlane>],
    states: &[Arc<RankState>],
    adapters: Vec<Option<InterNodeAdapter>>,
    hosts: &[String],
) -> Result<Vec<InterNodeTransport>> {
    let Some(adapters) = adapters.into_iter().collect::<Option<Vec<_>>>() else {
        return Ok(states.iter().map(|_| InterNodeTransport::default()).collect());
    };
    let open = |(state, adapter): (&Arc<RankState>, InterNodeAdapter)| {
        InterNodeSetup::open(state, adapter, &nodes::inter_node_ranks(hosts, state.rank))
    };
    let opened = states.iter().zip(adapters).map(open).collect::<Result<Vec<_>>>()?;
    let infos: Vec<_> = opened.iter().map(|setup| Some(setup.info().clone())).collect();
    let infos = exchange(planes, &infos)?;
    let connect = |(state, setup): (&Arc<RankState>, InterNodeSetup)| {
        let (transport, lanes, endpoints, connections) = setup.connect(state, &infos)?;
        let (transport, connections) = (Some((transport, lanes)), Some(connections));
        Ok(InterNodeTransport { transport, endpoints, connections })
    };
    states.iter().zip(opened).map(connect).collect()
}

/// All ranks, as the one of `state` reaches them; `inter_node` are those of other nodes.
fn peers(
    process: &ProcessState,
    state: &RankState,
    infos: &[PeerInfo<SharedMemory>],
    inter_node: &[InterNodeEndpoint],
) -> Result<Vec<Peer>> {
    let peer = |(rank, info): (u32, &PeerInfo<SharedMemory>)| {
        let rank = Rank(rank);
        if process.is_local(rank) {
            return Peer::in_process(state.rank, &state.context, &*process.state(rank)?);
        }
        if let Some(place) = inter_node.iter().find(|place| place.rank == rank) {
            return Peer::inter_node(&process.geometry, place);
        }
        let [signals, staging] = &info.endpoint;
        let signals = signals.export(rank, "its signal memory")?;
        let staging = staging.export(rank, "its staging memory")?;
        Peer::on_node(rank, &state.context, &process.geometry, [&signals, &staging])
    };
    (0..).zip(infos).map(peer).collect()
}

/// Joins the control planes of this process's `ranks`.
fn join_planes(
    id: &UniqueId,
    ranks: &[Rank],
    rank_count: u32,
    settings: &Settings,
) -> Result<Vec<Arc<ControlPlane>>> {
    let geometry = geometry(rank_count, Nodes::One, settings)?;
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

fn geometry(rank_count: u32, nodes: Nodes, settings: &Settings) -> Result<Geometry> {
    if !(1..=Geometry::RANKS_MAX).contains(&rank_count) {
        let expected = format!("1 to {}", Geometry::RANKS_MAX);
        return Err(Error::argument("number of ranks", expected, rank_count));
    }
    Ok(Geometry::new(rank_count, nodes, settings))
}

/// The state of a rank with its memory; the rank is number `number` of its node.
fn rank_state(
    context: &Arc<CudaContext>,
    geometry: &Geometry,
    (rank, number): (Rank, usize),
    settings: &Settings,
) -> Result<Arc<RankState>> {
    if rank.0 >= geometry.rank_count {
        let expected = format!("less than {}", geometry.rank_count);
        return Err(Error::argument("rank", expected, rank.0));
    }
    let slots = InterNodeSlotMemory::Device;
    let memory = RankMemory::new(context, geometry, rank, (slots, settings.ring_log2))?;
    let memory = match geometry.engine {
        EngineKind::Proxy => memory,
        EngineKind::Device => {
            let doorbell = Doorbell::claim(context, (geometry, &memory.layout), number, settings)?;
            memory.with_doorbell(doorbell)
        }
    };
    Ok(Arc::new(RankState::new(rank, context.clone(), memory)))
}
