//! What ranks tell each other of their GPUs, and the graph of all of them. Ranks that have heard
//! the same make the same graph.

use super::graph::{CapacityGraph, NodeId};
use super::machine::{CLASS_NVSWITCH, DeviceKind, Machine, NvLinks};
use super::pci::PciAddress;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Devices at the other ends of a GPU's NVLinks, at most: what a rank says of more is wrong.
const ENDS_MAX: usize = 64;

/// A rank's GPU, as the other ranks have to know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankGpu {
    /// Where it is on its node.
    pub address: PciAddress,
    /// MB/s in each direction of one NVLink.
    pub nvlink_megabytes: u64,
    /// Its NVLinks, by their other ends.
    pub nvlinks: Vec<NvLinks>,
    /// MB/s in each direction of its share of adapters.
    pub adapter_megabytes: u64,
}

impl RankGpu {
    /// The GPU at this address of the node; `None` if there is no such GPU.
    pub fn of(node: &Machine, address: PciAddress) -> Option<Self> {
        let gpus = node.gpus();
        let places: Vec<_> = gpus.iter().map(|(place, _)| *place).collect();
        let nth = places.iter().position(|place| node.devices[*place].address == address)?;
        let DeviceKind::Gpu(gpu) = &node.devices[places[nth]].kind else { return None };
        Some(Self {
            address,
            nvlink_megabytes: gpu.nvlink_megabytes(),
            nvlinks: gpu.nvlinks.clone(),
            adapter_megabytes: node.adapter_shares(&places)[nth],
        })
    }
}

/// Capacities in MB/s between the GPUs of ranks, which are so many on each node, one node after the
/// other: NVLinks and NVSwitches, and between two nodes the rails (the GPUs in the same place of
/// both). Node `r` of the graph is the GPU of rank `r`.
///
/// # Errors
/// [`Error::Argument`] for two ranks on one GPU, for more than two nodes, and for capacities that
/// no machine has.
pub fn capacities(gpus: &[RankGpu], per_node: u32) -> Result<CapacityGraph> {
    let per_node = per_node as usize;
    let nodes = gpus.len().checked_div(per_node).unwrap_or(0);
    if !(1..=2).contains(&nodes) || nodes * per_node != gpus.len() {
        let seen = format!("{} with {per_node} on each node", gpus.len());
        return Err(Error::argument("ranks of packed trees", "one node, or two equal ones", seen));
    }
    let mut graph = CapacityGraph::new();
    let ids: Vec<NodeId> = (0..gpus.len()).map(|rank| graph.gpu(format!("rank {rank}"))).collect();
    for (node, (gpus, ids)) in gpus.chunks(per_node).zip(ids.chunks(per_node)).enumerate() {
        add_node(&mut graph, node, gpus, ids)?;
    }
    if nodes == 2 {
        let (ones, others) = gpus.split_at(per_node);
        for (place, (one, other)) in ones.iter().zip(others).enumerate() {
            let megabytes = one.adapter_megabytes.min(other.adapter_megabytes);
            if megabytes > 0 {
                graph.link(ids[place], ids[per_node + place], megabytes)?;
            }
        }
    }
    Ok(graph)
}

/// Adds the NVLinks of a node.
fn add_node(
    graph: &mut CapacityGraph,
    node: usize,
    gpus: &[RankGpu],
    ids: &[NodeId],
) -> Result<()> {
    let mut places = BTreeMap::new();
    for (gpu, id) in gpus.iter().zip(ids) {
        if places.insert(gpu.address, *id).is_some() {
            return Err(Error::argument("GPUs of ranks", "each once", gpu.address));
        }
    }
    let mut switches: BTreeMap<PciAddress, Vec<(NodeId, u64)>> = BTreeMap::new();
    for (gpu, &id) in gpus.iter().zip(ids) {
        if gpu.nvlinks.len() > ENDS_MAX {
            let seen = gpu.nvlinks.len();
            return Err(Error::argument("ends of NVLinks", format!("at most {ENDS_MAX}"), seen));
        }
        for links in &gpu.nvlinks {
            let capacity = u64::from(links.count).saturating_mul(gpu.nvlink_megabytes);
            match places.get(&links.to) {
                // Each end names the link: each adds its own direction.
                Some(&far) => graph.arc(id, far, capacity)?,
                None if links.class == CLASS_NVSWITCH => {
                    switches.entry(links.to).or_default().push((id, capacity));
                }
                // A GPU of no rank: nothing goes over it.
                None => {}
            }
        }
    }
    // Switches that join the same GPUs equally pass on what one does that has all links.
    let mut alike: BTreeMap<Vec<(NodeId, u64)>, u64> = BTreeMap::new();
    switches.into_values().for_each(|plugged| *alike.entry(plugged).or_default() += 1);
    for (plugged, count) in alike {
        let switch = graph.switch(format!("node {node}, {count} NVSwitch"));
        for (gpu, capacity) in plugged {
            graph.link(gpu, switch, capacity.saturating_mul(count))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::machine::CLASS_GPU;

    fn at(bus: u8) -> PciAddress {
        PciAddress { domain: 0, bus, device: 0, function: 0 }
    }

    fn gpu(bus: u8, nvlinks: &[(u8, u32, u32)]) -> RankGpu {
        let links = nvlinks.iter().map(|&(to, count, class)| NvLinks { to: at(to), count, class });
        RankGpu {
            address: at(bus),
            nvlink_megabytes: 25_000,
            nvlinks: links.collect(),
            adapter_megabytes: 12_500,
        }
    }

    /// If this fails, trees are packed into links that are not there, or not into all that are.
    #[test]
    fn links_of_ranks_are_a_graph_on_one_node_and_on_two() {
        let two =
            || vec![gpu(1, &[(2, 2, CLASS_GPU), (7, 1, CLASS_GPU)]), gpu(2, &[(1, 2, CLASS_GPU)])];
        let graph = capacities(&two(), 2).unwrap();
        assert_eq!(graph.capacity(NodeId(0), NodeId(1)), 50_000);
        assert_eq!(graph.arcs().count(), 2, "a GPU of no rank has no links");
        let both = [two(), two()].concat();
        let graph = capacities(&both, 2).unwrap();
        assert_eq!(graph.capacity(NodeId(3), NodeId(1)), 12_500);
        assert_eq!(graph.capacity(NodeId(0), NodeId(3)), 0, "no rail");
        let switched = |bus| gpu(bus, &[(0x80, 6, CLASS_NVSWITCH), (0x81, 6, CLASS_NVSWITCH)]);
        let graph = capacities(&[switched(1), switched(2)], 2).unwrap();
        assert_eq!(graph.len(), 3);
        assert_eq!(graph.capacity(NodeId(0), NodeId(2)), 300_000);
    }

    /// If this fails, what another rank says makes this one panic, or pack nonsense.
    #[test]
    fn what_no_machine_has_is_refused() {
        let refused = |gpus: &[RankGpu], per_node, part: &str| {
            let error = capacities(gpus, per_node).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        refused(&[gpu(1, &[]), gpu(1, &[])], 2, "each once");
        refused(&[gpu(1, &[]), gpu(2, &[]), gpu(3, &[])], 1, "one node, or two equal ones");
        refused(&[gpu(1, &[]), gpu(2, &[])], 0, "one node, or two equal ones");
        let wide = RankGpu { nvlink_megabytes: u64::MAX, ..gpu(1, &[(2, 2, CLASS_GPU)]) };
        refused(&[wide, gpu(2, &[])], 2, "capacity of rank 0 to rank 1");
        refused(&[gpu(1, &[(2, 0, CLASS_GPU)]), gpu(2, &[])], 2, "capacity of rank 0");
        refused(&[gpu(1, &[(9, 1, CLASS_GPU); 65]), gpu(2, &[])], 2, "at most 64");
    }
}
