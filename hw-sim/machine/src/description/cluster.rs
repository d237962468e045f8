//! Clusters: how many equal nodes there are, and which of them a process is on.

use super::{Description, DescriptionError, uuid};
use crate::fabric::{Directory, FabricError};
use std::env;
use std::ops::RangeInclusive;
use std::path::Path;

/// The environment variable that says which node of the cluster a process is on: an index.
pub const NODE_VARIABLE: &str = "HWSIM_NODE";
/// The environment variable that says how many nodes the cluster has.
pub const NODES_VARIABLE: &str = "HWSIM_NODES";
/// The environment variable that names the fabric: a folder which all processes of one cluster
/// share, and nobody else.
pub const FABRIC_VARIABLE: &str = "HWSIM_FABRIC";
/// How many nodes a cluster may have.
pub const NODES: RangeInclusive<u32> = 1..=1024;

impl Description {
    /// The same machine as another node of its cluster.
    ///
    /// Equal nodes have equal PCI addresses, but no two GPUs have one UUID.
    pub fn at_node(mut self, node: u32) -> Self {
        self.node = node;
        for gpu in &mut self.gpus {
            let (machine, name, bus_id) = (&self.name, &gpu.name, gpu.bus_id);
            let place = if node == 0 { String::new() } else { format!("/node{node}") };
            gpu.uuid = uuid(&format!("{machine}/{name}/{bus_id}{place}"));
        }
        self
    }
}

/// Takes `NAME x NODES` apart; None if it is a name alone.
pub(super) fn split(text: &str) -> Result<Option<(&str, u32)>, DescriptionError> {
    let parts = || {
        let (rest, count) = text.trim_end().rsplit_once(char::is_whitespace)?;
        let (name, cross) = rest.trim_end().rsplit_once(char::is_whitespace)?;
        (cross == "x").then_some((name.trim(), count))
    };
    let Some((name, count)) = parts() else { return Ok(None) };
    match count.parse() {
        Ok(nodes) if NODES.contains(&nodes) => Ok(Some((name, nodes))),
        _ => Err(DescriptionError::NodeCount { text: text.into(), seen: count.into() }),
    }
}

/// The node that [`NODE_VARIABLE`] names; None if it names none.
pub fn node_from_environment() -> Result<Option<u32>, DescriptionError> {
    match env::var_os(NODE_VARIABLE).filter(|seen| !seen.is_empty()) {
        None => Ok(None),
        Some(seen) => match seen.to_str().map(str::parse) {
            Some(Ok(node)) if node < *NODES.end() => Ok(Some(node)),
            _ => Err(DescriptionError::Node { seen: seen.to_string_lossy().into() }),
        },
    }
}

/// The folder that [`FABRIC_VARIABLE`] names, which all processes of the cluster share; None if it
/// names none.
///
/// # Errors
/// [`FabricError`] where it cannot be opened or trusted.
pub fn fabric_from_environment() -> Result<Option<Directory>, FabricError> {
    let named = env::var_os(FABRIC_VARIABLE).filter(|path| !path.is_empty());
    named.map(|path| Directory::open(Path::new(&path))).transpose()
}
