//! Which rank runs on which node.

use crate::bootstrap::{ControlPlane, exchange};
use crate::error::Result;
use crate::id::Rank;
use crate::settings::Settings;
use std::sync::Arc;

/// The name of every rank's node.
pub(super) fn hosts(planes: &[Arc<ControlPlane>], settings: &Settings) -> Result<Vec<String>> {
    exchange(planes, &vec![host_name(settings); planes.len()])
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
