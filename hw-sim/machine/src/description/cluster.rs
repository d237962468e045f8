//! Clusters: how many equal nodes there are, and which of them a process is on.

use super::{Description, DescriptionError, uuid};
use std::env;
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

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

/// The fabric that a process is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fabric {
    /// Its folder.
    pub path: PathBuf,
    /// Device and number of the folder: no other fabric has them at the same time.
    pub number: [u64; 2],
}

impl Fabric {
    /// The fabric whose folder [`FABRIC_VARIABLE`] names; None if it names none.
    pub fn from_environment() -> io::Result<Option<Self>> {
        let Some(path) = env::var_os(FABRIC_VARIABLE).filter(|path| !path.is_empty()) else {
            return Ok(None);
        };
        let path = PathBuf::from(path);
        let status = path.metadata()?;
        Ok(Some(Self { path, number: [status.dev(), status.ino()] }))
    }
}
