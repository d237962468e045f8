//! Which rank runs on which node.

use super::order::ordered_gpu;
use super::peer_info::process_name;
use crate::bootstrap::{ControlPlane, exchange};
use crate::error::Result;
use crate::id::Rank;
use crate::settings::Settings;
use crate::topology::ranks::RankGpu;
use cudarc::driver::CudaContext;
use std::sync::Arc;

/// Where ranks run.
pub(super) struct Hosts {
    /// The name of every rank's node.
    pub names: Vec<String>,
    /// All ranks of this process's node are of this process: nobody else opens its memory.
    pub is_alone: bool,
    /// By rank; `None` where the order of rings does not depend on it, or it is not known.
    pub gpus: Vec<Option<RankGpu>>,
}

/// Finds where all ranks run, those of `planes` on `contexts`.
pub(super) fn hosts(
    planes: &[Arc<ControlPlane>],
    contexts: &[Arc<CudaContext>],
    settings: &Settings,
) -> Result<Hosts> {
    let (own_name, own_process) = (host_name(settings), process_name()?);
    let own = |(plane, context): (&Arc<ControlPlane>, &Arc<CudaContext>)| {
        let gpu = ordered_gpu(context, plane.rank_count(), settings)?;
        Ok((own_name.clone(), own_process, gpu))
    };
    let own = planes.iter().zip(contexts).map(own).collect::<Result<Vec<_>>>()?;
    let all = exchange(planes, &own)?;
    let is_alone =
        all.iter().all(|(name, process, _)| *name != own_name || *process == own_process);
    let (names, gpus) = all.into_iter().map(|(name, _, gpu)| (name, gpu)).unzip();
    Ok(Hosts { names, is_alone, gpus })
}

/// The name of this node: as the user says, or that of its boot, which no two nodes share.
fn host_name(settings: &Settings) -> String {
    if !settings.host_id.is_empty() {
        return settings.host_id.clone();
    }
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    boot.map_or_else(|_| "unknown".into(), |boot| boot.trim().to_owned())
}

/// The ranks of other nodes than `rank`'s. `hosts` names every rank's node.
pub(super) fn inter_node_ranks(hosts: &[String], rank: Rank) -> Vec<Rank> {
    let own = &hosts[rank.index()];
    let others = (0..).zip(hosts).filter(|&(_, host)| host != own);
    others.map(|(rank, _)| Rank(rank)).collect()
}

/// The ranks of `rank`'s node, itself included.
pub(super) fn ranks_beside(hosts: &[String], rank: Rank) -> Vec<Rank> {
    let own = &hosts[rank.index()];
    let beside = (0..).zip(hosts).filter(|&(_, host)| host == own);
    beside.map(|(rank, _)| Rank(rank)).collect()
}

/// Which rank of its node `rank` is, from 0.
pub(super) fn number_on_node(hosts: &[String], rank: Rank) -> usize {
    let own = &hosts[rank.index()];
    hosts[..rank.index()].iter().filter(|host| *host == own).count()
}
