//! How a rank reaches each of the others of its node: their GPU memory, or host memory that both
//! map. This is the one place that decides; see [`HostPairs`].
//!
//! 1. Each rank [looks](look) which memory it can open, and tries it by copies.
//! 2. All ranks exchange what they do not reach, so that both ends of a pair go one way.
//! 3. Each rank that is concerned [makes](make) host memory, and the others [open] it.

use super::description::PortDescription;
use super::host_memory;
use super::order::own_gpu;
use super::peer::{Peer, Reach};
use crate::communicator::state::{
    HostLanes, HostLayout, HostPairs, Layout, Obstacle, Obstacles, ProcessState, RankState,
    ReachRow, SharedFile, SharedName,
};
use crate::error::{Error, Result};
use crate::id::{Rank, SignalWay};
use crate::settings::{Settings, ThroughHost};
use crate::topology::ranks::RankGpu;
use crate::transport::peer::probe::{Found, Target, probe};
use cudarc::driver::CudaContext;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Another rank, as one looks at it.
pub(super) enum Candidate {
    /// Of this node.
    OnNode(Reach),
    /// Of another node, which an adapter reaches.
    Elsewhere(Peer),
}

impl Candidate {
    /// A rank of this node, unless `settings` say that its messages go through host memory:
    /// `reach` opens its memory.
    ///
    /// # Errors
    /// Those of `reach`.
    pub fn on_node(
        is_own: bool,
        settings: &Settings,
        reach: impl FnOnce() -> Result<Reach>,
    ) -> Result<Self> {
        match settings.through_host {
            ThroughHost::Always if !is_own => Ok(Self::OnNode(Err(Obstacle::Setting))),
            _ => reach().map(Self::OnNode),
        }
    }
}

/// What a rank has found of all ranks.
pub(super) struct Looked {
    /// By rank; None where there is an obstacle.
    peers: Vec<Option<Peer>>,
    obstacles: Obstacles,
    /// NVLink joins its GPU to that of each other rank of its node, and plans ask for it.
    nvlink: bool,
    /// Its GPU and the links of that, where plans ask for them and it is known.
    gpu: Option<RankGpu>,
    /// How signals reach those of this node, where that was tried.
    way: Option<SignalWay>,
}

/// Opened peers, and how signals reach those of this node, where that was tried.
pub(super) type Reached = (Vec<Peer>, Option<SignalWay>);

/// Tries all of `candidates`, which are all ranks.
///
/// # Errors
/// [`Error::NotFound`] and [`Error::Unreached`] name a pair that does not reach each other, where
/// the settings forbid host memory; others as of [`probe`].
pub(super) fn look(
    state: &RankState,
    candidates: Vec<Candidate>,
    settings: &Settings,
) -> Result<Looked> {
    // Nobody asks for links without lanes whose use depends on them.
    let nvlink = state.memory.layout.has_store_lanes();
    let gpu = state.memory.layout.wants_links().then(|| own_gpu(&state.context)).transpose()?;
    let gpu = gpu.flatten();
    let mut looked = Looked { peers: Vec::new(), obstacles: Vec::new(), nvlink, gpu, way: None };
    let mut on_node = Vec::new();
    for (rank, candidate) in (0..).map(Rank).zip(candidates) {
        let peer = match candidate {
            Candidate::Elsewhere(peer) => Some(peer),
            Candidate::OnNode(Ok(peer)) => {
                on_node.push(rank);
                if looked.nvlink && rank != state.rank {
                    looked.nvlink = peer.is_joined(&state.context)?;
                }
                Some(peer)
            }
            Candidate::OnNode(Err(obstacle)) => {
                permit(settings, || no_path(state.rank, rank, obstacle))?;
                looked.obstacles.push((rank, obstacle));
                None
            }
        };
        looked.peers.push(peer);
    }
    if settings.remedies.reach_probe {
        let opened = |rank: Rank| looked.peers[rank.index()].as_ref();
        let tried = targets(state, |rank| {
            // They stand in the order of ranks.
            opened(rank).filter(|_| on_node.binary_search(&rank).is_ok())
        });
        let Found { way, took, lost } = probe(state.memory.streams().home(), state.rank, tried)?;
        for &(peer, mismatch) in &lost {
            let (expected, seen) = (mismatch.expected, mismatch.seen);
            permit(settings, || Error::Unreached { rank: state.rank, peer, expected, seen })?;
            looked.peers[peer.index()] = None;
            looked.obstacles.push((peer, Obstacle::WritesLost));
        }
        tracing::info!(rank = state.rank.0, lost = lost.len(), %way, ?took, "peers tried");
        looked.way = Some(way);
    }
    Ok(looked)
}

/// Sets what follows from what all ranks have found.
///
/// # Errors
/// As [`HostPairs::of`].
pub(super) fn agree<'a>(process: &'a ProcessState, rows: &[ReachRow]) -> Result<&'a HostPairs> {
    let pairs = HostPairs::of(rows.iter().map(|row| &row.obstacles), |one, other| {
        process.geometry.are_apart(one.0, other.0)
    })?;
    process.set_nvlink(rows.iter().all(|row| row.nvlink));
    process.set_gpus(rows.iter().map(|row| row.gpu.as_ref()));
    Ok(process.set_host_pairs(pairs))
}

fn permit(settings: &Settings, error: impl FnOnce() -> Error) -> Result<()> {
    match settings.through_host {
        ThroughHost::Auto | ThroughHost::Always => Ok(()),
        ThroughHost::Never => Err(error()),
    }
}

fn no_path(rank: Rank, peer: Rank, obstacle: Obstacle) -> Error {
    Error::NotFound {
        wanted: format!("path for peer access from {rank} to {peer}"),
        looked_for: format!("peer access between their two devices, but {obstacle}"),
        advice: "use devices under one PCI root complex or joined by NVLink, in processes that \
                 share memory, or let messages go through host memory (RINGDOVE_THROUGH_HOST=auto)"
            .into(),
    }
}

/// A place in the memory of each peer to which this rank has lanes and that `select` gives: of a
/// port with data, where there is any.
fn targets<'a>(state: &RankState, select: impl Fn(Rank) -> Option<&'a Peer>) -> Vec<Target> {
    let mut targets = BTreeMap::new();
    for place in state.memory.layout.ports() {
        let Some(there) = select(place.peer()) else { continue };
        let port = PortDescription::of(&place, &there.layout);
        if !port.raises {
            continue;
        }
        let addresses = there.port(&port.there);
        let data = port.route.filter(|route| route.carries_data && route.bytes > 0);
        let target = Target {
            peer: port.peer,
            signal: addresses.signal,
            data: data.map(|_| there.trial(state.rank).unwrap_or(addresses.slots)),
        };
        let known = targets.entry(port.peer).or_insert(target);
        *known = if known.data.is_none() { target } else { *known };
    }
    targets.into_values().collect()
}

/// Logs once, for all ranks of the communicator, which pairs go through host memory.
pub(super) fn log_pairs(pairs: &HostPairs) {
    if pairs.is_empty() {
        return;
    }
    let described = pairs.describe();
    match pairs.has_lost_writes() {
        true => tracing::warn!(pairs = described, "messages of these ranks go through host memory"),
        false => {
            tracing::info!(pairs = described, "messages of these ranks go through host memory")
        }
    }
}

/// The host memory of `state`'s rank, for threads of its process.
///
/// # Errors
/// [`Error::System`] and [`Error::Cuda`] where there is no such memory.
pub(super) fn make_in_process<'a>(
    state: &'a RankState,
    pairs: &HostPairs,
) -> Result<&'a HostLanes> {
    state.memory.open_host_lanes(|| {
        let layout = Arc::new(HostLayout::new(&state.memory.layout, state.rank, pairs));
        let memory = Arc::new(host_memory::anonymous(&state.context, layout.bytes)?);
        Ok(HostLanes { layout, memory })
    })
}

/// The rank of `state`, of this process, through its host memory.
///
/// # Errors
/// As [`make_in_process`].
pub(super) fn in_process(state: &RankState, pairs: &HostPairs) -> Result<Peer> {
    let host = make_in_process(state, pairs)?.clone();
    Ok(Peer::through_host(state.memory.layout, host))
}

/// The host memory of `state`'s rank, for other processes; they find it by the name of the file.
/// None where no messages to or from the rank go through host memory.
///
/// # Errors
/// As [`make_in_process`].
pub(super) fn make(state: &RankState, pairs: &HostPairs) -> Result<Option<SharedFile>> {
    if !pairs.concerns(state.rank) {
        return Ok(None);
    }
    let layout = Arc::new(HostLayout::new(&state.memory.layout, state.rank, pairs));
    let (memory, file) = host_memory::create(&state.context, layout.bytes)?;
    state.memory.open_host_lanes(|| Ok(HostLanes { layout, memory: Arc::new(memory) }))?;
    Ok(Some(file))
}

/// `peer`, a rank of another process, through its host memory with such a name.
///
/// # Errors
/// [`Error::PeerValue`] where there is no such memory, or where it has another size.
pub(super) fn open(
    context: &Arc<CudaContext>,
    peer: Rank,
    layout: Layout,
    name: Option<SharedName>,
    pairs: &HostPairs,
) -> Result<Peer> {
    let host = Arc::new(HostLayout::new(&layout, peer, pairs));
    let memory = Arc::new(host_memory::open(context, peer, name, host.bytes)?);
    Ok(Peer::through_host(layout, HostLanes { layout: host, memory }))
}

impl Looked {
    /// What the other ranks are told.
    pub fn row(&self) -> ReachRow {
        let nvlink = self.nvlink && self.obstacles.is_empty();
        ReachRow { obstacles: self.obstacles.clone(), nvlink, gpu: self.gpu.clone() }
    }

    /// All ranks, as the one of `state` reaches them; `through_host` opens those of `pairs`. What
    /// they have is tried, too.
    ///
    /// # Errors
    /// Those of `through_host`; [`Error::Unreached`] where writes to host memory are lost.
    pub fn complete(
        self,
        state: &RankState,
        pairs: &HostPairs,
        mut through_host: impl FnMut(Rank) -> Result<Peer>,
    ) -> Result<Reached> {
        let mut peers = Vec::new();
        for (rank, peer) in (0..).map(Rank).zip(self.peers) {
            peers.push(match (pairs.obstacle(state.rank, rank), peer) {
                (None, Some(peer)) => peer,
                _ => through_host(rank)?,
            });
        }
        let Some(way) = self.way else { return Ok((peers, None)) };
        let through_host = |rank: Rank| Some(&peers[rank.index()]).filter(|p| p.is_through_host());
        let targets = targets(state, through_host);
        if targets.is_empty() {
            return Ok((peers, Some(way)));
        }
        let found = probe(state.memory.streams().home(), state.rank, targets)?;
        if let Some(&(peer, mismatch)) = found.lost.first() {
            let (expected, seen) = (mismatch.expected, mismatch.seen);
            return Err(Error::Unreached { rank: state.rank, peer, expected, seen });
        }
        let both = if found.way == SignalWay::Copy { SignalWay::Copy } else { way };
        Ok((peers, Some(both)))
    }
}
