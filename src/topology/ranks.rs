//! What ranks tell each other of their GPUs, and the graph of all of them. Ranks that have heard
//! the same make the same graph.

use super::graph::{CapacityGraph, NodeId};
use super::machine::{
    CLASS_NVSWITCH, DeviceKind, Joined, Machine, NvLinks, meeting, nvlinks_between,
};
use super::pci::PciAddress;
use super::ring_order::{Width, best_order};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Devices at the other ends of a GPU's NVLinks, at most: what a rank says of more is wrong.
const ENDS_MAX: usize = 64;
/// PCI bridges above a GPU, at most, of the same reason.
const BRIDGES_MAX: usize = 64;

/// A rank's GPU, as the other ranks have to know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankGpu {
    /// Where it is on its node.
    pub address: PciAddress,
    /// Its compute capability, 80 for 8.0.
    pub compute: u32,
    /// MB/s in each direction of one NVLink.
    pub nvlink_megabytes: u64,
    /// Its NVLinks, by their other ends.
    pub nvlinks: Vec<NvLinks>,
    /// MB/s in each direction of its share of adapters.
    pub adapter_megabytes: u64,
    /// MB/s in each direction of its PCI link.
    pub pcie_megabytes: u64,
    /// The PCI bridges above it, the nearest first.
    pub bridges: Vec<PciAddress>,
    /// The number of its socket among those of the node.
    pub socket: u32,
}

impl RankGpu {
    /// The GPU at this address of the node; `None` if there is no such GPU.
    pub fn of(node: &Machine, address: PciAddress) -> Option<Self> {
        let gpus = node.gpus();
        let places: Vec<_> = gpus.iter().map(|(place, _)| *place).collect();
        let nth = places.iter().position(|place| node.devices[*place].address == address)?;
        let DeviceKind::Gpu(gpu) = &node.devices[places[nth]].kind else { return None };
        let (bridges, socket) = node.above(places[nth]);
        Some(Self {
            address,
            compute: gpu.compute,
            nvlink_megabytes: gpu.nvlink_megabytes(),
            nvlinks: gpu.nvlinks.clone(),
            adapter_megabytes: node.adapter_shares(&places)[nth],
            pcie_megabytes: node.link(places[nth]).megabytes(),
            bridges: bridges.into_iter().map(|place| node.devices[place].address).collect(),
            socket: socket as u32,
        })
    }

    /// How wide the way to another GPU of the node is, for engines that move data over NVLink, or
    /// for those that reach memory over PCI alone.
    fn width(&self, other: &Self, over_nvlink: bool) -> Width {
        let joined = match nvlinks_between(&self.nvlinks, other.address, &other.nvlinks) {
            count if count > 0 && over_nvlink => Joined::NvLink(count),
            _ if self.socket != other.socket => Joined::Sys,
            _ => meeting(&self.bridges, &other.bridges),
        };
        if self.address == other.address {
            // Ranks that share a GPU.
            return Width { megabytes: u64::MAX, nearness: 3 };
        }
        let pcie = self.pcie_megabytes.min(other.pcie_megabytes);
        Width::new(joined, self.nvlink_megabytes, pcie)
    }
}

/// The order in which rings pass the ranks of a node over the widest links, for GPUs of ranks which
/// are so many on each node, one node after the other. One order serves all nodes: between two
/// places, the narrowest link of all nodes counts. `None` for more ranks of a node than an order is
/// searched for, and where a rank says of its GPU what no machine has.
pub fn order_of_nodes(gpus: &[RankGpu], per_node: u32, over_nvlink: bool) -> Option<Vec<u32>> {
    let per_node = per_node as usize;
    let is_whole = per_node > 0 && gpus.len().is_multiple_of(per_node);
    let is_known =
        |gpu: &RankGpu| gpu.nvlinks.len() <= ENDS_MAX && gpu.bridges.len() <= BRIDGES_MAX;
    if !is_whole || !gpus.iter().all(is_known) {
        return None;
    }
    best_order(per_node, |a, b| {
        let of_node = |node: &[RankGpu]| node[a].width(&node[b], over_nvlink);
        let nothing = Width { megabytes: 0, nearness: 0 };
        gpus.chunks(per_node).map(of_node).min().unwrap_or(nothing)
    })
}

/// The most nodes of packed trees: each rank has slots for each other node.
pub const TREE_NODES_MAX: u32 = 4;

/// Capacities in MB/s between the GPUs of ranks, which are so many on each node, one node after the
/// other: NVLinks and NVSwitches, and between nodes the rails (the GPUs in the same place of all).
/// Node `r` of the graph is the GPU of rank `r`.
///
/// # Errors
/// [`Error::Argument`] for two ranks on one GPU, for more than [`TREE_NODES_MAX`] nodes, and for
/// capacities that no machine has.
pub fn capacities(gpus: &[RankGpu], per_node: u32) -> Result<CapacityGraph> {
    let per_node = per_node as usize;
    let nodes = gpus.len().checked_div(per_node).unwrap_or(0);
    if !(1..=TREE_NODES_MAX as usize).contains(&nodes) || nodes * per_node != gpus.len() {
        let seen = format!("{} with {per_node} on each node", gpus.len());
        let expected = format!("one to {TREE_NODES_MAX} equal nodes");
        return Err(Error::argument("ranks of packed trees", expected, seen));
    }
    let mut graph = CapacityGraph::new();
    let ids: Vec<NodeId> = (0..gpus.len()).map(|rank| graph.gpu(format!("rank {rank}"))).collect();
    for (node, (gpus, ids)) in gpus.chunks(per_node).zip(ids.chunks(per_node)).enumerate() {
        add_node(&mut graph, node, gpus, ids)?;
    }
    for place in (0..per_node).filter(|_| nodes > 1) {
        let on_rail = || gpus.iter().zip(&ids).skip(place).step_by(per_node);
        let megabytes = on_rail().map(|(gpu, _)| gpu.adapter_megabytes);
        match (nodes, megabytes.clone().min().unwrap_or(0)) {
            (_, 0) => {}
            (2, narrowest) => graph.link(ids[place], ids[per_node + place], narrowest)?,
            _ => {
                let switch = graph.switch(format!("rail {place}"));
                for ((_, id), megabytes) in on_rail().zip(megabytes) {
                    graph.link(*id, switch, megabytes)?;
                }
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
            compute: 70,
            nvlink_megabytes: 25_000,
            nvlinks: links.collect(),
            adapter_megabytes: 12_500,
            pcie_megabytes: 15_750,
            bridges: vec![at(0x40 + bus)],
            socket: u32::from(bus > 2),
        }
    }

    /// If this fails, trees are packed into links that are not there, or not into all that are.
    #[test]
    fn links_of_ranks_are_a_graph_on_one_node_and_on_more() {
        let two =
            || vec![gpu(1, &[(2, 2, CLASS_GPU), (7, 1, CLASS_GPU)]), gpu(2, &[(1, 2, CLASS_GPU)])];
        let graph = capacities(&two(), 2).unwrap();
        assert_eq!(graph.capacity(NodeId(0), NodeId(1)), 50_000);
        assert_eq!(graph.arcs().count(), 2, "a GPU of no rank has no links");
        let both = [two(), two()].concat();
        let graph = capacities(&both, 2).unwrap();
        assert_eq!(graph.capacity(NodeId(3), NodeId(1)), 12_500);
        assert_eq!(graph.capacity(NodeId(0), NodeId(3)), 0, "no rail");
        let graph = capacities(&[two(), two(), two()].concat(), 2).unwrap();
        assert_eq!(graph.len(), 8, "each of two rails has a switch");
        assert_eq!(graph.capacity(NodeId(4), NodeId(6)), 12_500);
        assert_eq!(graph.capacity(NodeId(4), NodeId(7)), 0, "another rail");
        let switched = |bus| gpu(bus, &[(0x80, 6, CLASS_NVSWITCH), (0x81, 6, CLASS_NVSWITCH)]);
        let graph = capacities(&[switched(1), switched(2)], 2).unwrap();
        assert_eq!(graph.len(), 3);
        assert_eq!(graph.capacity(NodeId(0), NodeId(2)), 300_000);
    }

    /// If this fails, rings of device engines follow NVLinks that these do not use, or rings of two
    /// nodes cross a link that only one of them has.
    #[test]
    fn orders_follow_the_links_that_engines_use_on_all_nodes() {
        let both = |a: u8, b: u8| (b, 1 + u32::from(a == b), CLASS_GPU);
        let mesh = || {
            let links = [(1, [2, 3]), (2, [1, 4]), (3, [1, 4]), (4, [2, 3])];
            links.map(|(bus, ends)| gpu(bus, &ends.map(|end| both(bus, end)))).to_vec()
        };
        assert_eq!(order_of_nodes(&mesh(), 4, true), Some(vec![0, 1, 3, 2]));
        let along_sockets = order_of_nodes(&mesh(), 4, false);
        assert_eq!(along_sockets, Some(vec![0, 1, 2, 3]), "1 and 2 are on one socket");
        let plain: Vec<_> = (1..=4).map(|bus| gpu(bus, &[])).collect();
        let mixed = [mesh(), plain].concat();
        assert_eq!(order_of_nodes(&mixed, 4, true), Some(vec![0, 1, 2, 3]), "as the worst node");
        assert_eq!(order_of_nodes(&mesh(), 3, true), None);
        assert_eq!(order_of_nodes(&[gpu(1, &[(2, 1, CLASS_GPU); 65])], 1, true), None);
        let shared: Vec<_> = [1, 3, 1, 3].map(|bus| gpu(bus, &[])).to_vec();
        assert_eq!(order_of_nodes(&shared, 4, true), Some(vec![0, 1, 3, 2]));
    }

    /// If this fails, what another rank says makes this one panic, or pack nonsense.
    #[test]
    fn what_no_machine_has_is_refused() {
        let refused = |gpus: &[RankGpu], per_node, part: &str| {
            let error = capacities(gpus, per_node).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        refused(&[gpu(1, &[]), gpu(1, &[])], 2, "each once");
        let five: Vec<_> = (1..=5).map(|bus| gpu(bus, &[])).collect();
        refused(&five, 1, "one to 4 equal nodes");
        refused(&five[..3], 2, "one to 4 equal nodes");
        refused(&[gpu(1, &[]), gpu(2, &[])], 0, "one to 4 equal nodes");
        let wide = RankGpu { nvlink_megabytes: u64::MAX, ..gpu(1, &[(2, 2, CLASS_GPU)]) };
        refused(&[wide, gpu(2, &[])], 2, "capacity of rank 0 to rank 1");
        refused(&[gpu(1, &[(2, 0, CLASS_GPU)]), gpu(2, &[])], 2, "capacity of rank 0");
        refused(&[gpu(1, &[(9, 1, CLASS_GPU); 65]), gpu(2, &[])], 2, "at most 64");
    }
}
