//! Which rank runs on which node.

use super::peer_info::process_name;
use crate::bootstrap::{ControlPlane, exchange};
use crate::error::Result;
use crate::id::Rank;
use crate::settings::Settings;
use std::sync::Arc;

/// The name of every rank's node, and whether all ranks of this process's node are of this process.
pub(super) fn hosts(
    planes: &[Arc<ControlPlane>],
    settings: &Settings,
) -> Result<(Vec<String>, bool)> {
    let own = (host_name(settings), process_name()?);
    let all = exchange(planes, &vec![own.clone(); planes.len()])?;
    let is_alone = all.iter().all(|(host, process)| *host != own.0 || *process == own.1);
    Ok((all.into_iter().map(|(host, _)| host).collect(), is_alone))
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

/// Which rank of its node `rank` is, from 0.
pub(super) fn number_on_node(hosts: &[String], rank: Rank) -> usize {
    let own = &hosts[rank.index()];
    hosts[..rank.index()].iter().filter(|host| *host == own).count()
}
