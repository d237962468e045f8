//! What joins nodes: one network that holds nobody up, rails, or leaf switches whose uplinks carry
//! less than what is below them.

use super::graph::{CapacityGraph, NodeId};
use super::packing::Rate;
use crate::error::{Error, Result};

/// Leaf switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Nodes below one leaf switch, or below those of all rails.
    pub nodes: u32,
    /// How many times the rate of what is below a leaf switch exceeds that of its uplinks: 1 holds
    /// nobody up.
    pub oversubscription: Rate,
}

/// How adapters are joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// GPUs with the same place on their nodes share switches of their own. Without leaf switches
    /// nothing leads from one rail to another but the nodes' own links.
    pub rails: bool,
    /// Leaf switches, below spine switches that hold nobody up. `None`: each rail, or the network,
    /// is one switch.
    pub leaf: Option<Leaf>,
}

impl Network {
    /// Joins GPUs, so many on each node and one node after the other, of which each has so many
    /// MB/s of adapters in each direction.
    ///
    /// # Errors
    /// [`Error::Argument`] if no GPU has an adapter, for leaf switches without nodes, and for an
    /// oversubscription below 1 or one that leaves uplinks nothing.
    pub(super) fn join(
        self,
        graph: &mut CapacityGraph,
        per_node: u32,
        shares: &[u64],
    ) -> Result<()> {
        if shares.iter().all(|share| *share == 0) {
            return Err(Error::argument("machine of several nodes", "network adapters", "none"));
        }
        if let Some(leaf) = self.leaf {
            if leaf.nodes == 0 {
                return Err(Error::argument("nodes below a leaf switch", "at least 1", 0));
            }
            if leaf.oversubscription < Rate::from_integer(1) {
                let seen = leaf.oversubscription;
                return Err(Error::argument("oversubscription", "at least 1", seen));
            }
        }
        let nodes = shares.len() as u32 / per_node.max(1);
        let below = self.leaf.map_or(nodes, |leaf| leaf.nodes);
        let mut uplinks = Vec::new();
        for first in (0..nodes).step_by(below as usize) {
            let last = (first + below).min(nodes);
            for rail in 0..if self.rails { per_node } else { 1 } {
                let of_rail = |gpu: &u32| !self.rails || gpu % per_node == rail;
                let plugged = (first * per_node..last * per_node).filter(of_rail);
                let plugged = plugged.map(|gpu| (NodeId(gpu), shares[gpu as usize]));
                let plugged: Vec<_> = plugged.filter(|(_, share)| *share > 0).collect();
                if plugged.is_empty() {
                    continue;
                }
                let switch = graph.switch(self.name(first, rail));
                for (gpu, share) in &plugged {
                    graph.link(*gpu, switch, *share)?;
                }
                uplinks.push((switch, plugged.iter().map(|(_, share)| share).sum::<u64>()));
            }
        }
        let Some(leaf) = self.leaf.filter(|_| uplinks.len() > 1) else { return Ok(()) };
        let spine = graph.switch("spine");
        for (switch, below) in uplinks {
            let above = (Rate::from_integer(below) / leaf.oversubscription).to_integer();
            graph.link(switch, spine, above)?;
        }
        Ok(())
    }

    fn name(self, first: u32, rail: u32) -> String {
        match (self.leaf, self.rails) {
            (None, false) => "network".to_owned(),
            (None, true) => format!("rail {rail}"),
            (Some(leaf), false) => format!("leaf {}", first / leaf.nodes),
            (Some(leaf), true) => format!("leaf {} of rail {rail}", first / leaf.nodes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::packing::tests::by_all_cuts;
    use crate::topology::packing::{Roots, pack};

    /// Nodes of so many GPUs on an NVSwitch, with adapters.
    fn nodes(
        count: u32,
        gpus: u32,
        (inside, outside): (u64, u64),
        network: Network,
    ) -> CapacityGraph {
        let mut graph = CapacityGraph::new();
        let all: Vec<_> = (0..count * gpus).map(|gpu| graph.gpu(format!("gpu{gpu}"))).collect();
        for node in all.chunks(gpus as usize) {
            let switch = graph.switch("nvswitch");
            node.iter().for_each(|gpu| graph.link(*gpu, switch, inside).unwrap());
        }
        network.join(&mut graph, gpus, &vec![outside; all.len()]).unwrap();
        graph
    }

    fn leaf(nodes: u32, oversubscription: u64) -> Option<Leaf> {
        Some(Leaf { nodes, oversubscription: Rate::from_integer(oversubscription) })
    }

    /// If this fails, rails, leaf switches or their uplinks are planned as something else.
    #[test]
    fn networks_are_as_fast_as_their_tightest_cut() {
        let networks = [
            ("one network", Network::default(), 40),
            ("rails", Network { rails: true, leaf: None }, 40),
            ("leaf switches", Network { rails: false, leaf: leaf(2, 1) }, 40),
            ("uplinks of a half", Network { rails: false, leaf: leaf(2, 2) }, 20),
            ("rails, uplinks of a quarter", Network { rails: true, leaf: leaf(2, 4) }, 10),
        ];
        for (name, network, narrowest) in networks {
            let graph = nodes(4, 2, (300, 10), network);
            let roots = Roots::all(&graph);
            let packing = pack(&graph, &roots, None).unwrap();
            packing.check(&graph, &roots).unwrap();
            assert_eq!(packing.rate(), packing.optimum, "{name}");
            assert_eq!(packing.optimum, by_all_cuts(&graph, &roots), "{name}");
            println!("{name}: {} of eight GPUs' data", packing.optimum);
            // Of four nodes, one hears what six GPUs have over its two adapters; two nodes below
            // one leaf switch hear what four have over its uplinks.
            let of_node = Rate::new(8 * 20, 6);
            let of_leaf = Rate::new(8 * narrowest, 4);
            assert_eq!(packing.optimum, of_node.min(of_leaf), "{name}");
        }
    }

    /// As few copies of data cross what is narrowest as a hierarchical plan sends: each tree enters
    /// each other node once, or the nodes below each other leaf switch. If this fails, packing pays
    /// for links between nodes that it need not use.
    #[test]
    fn packed_trees_are_hierarchical() {
        for (network, below) in [
            (Network { rails: true, leaf: None }, 1),
            (Network { rails: true, leaf: leaf(2, 4) }, 2),
        ] {
            let graph = nodes(4, 4, (300, 25), network);
            let roots = Roots::all(&graph);
            let packing = pack(&graph, &roots, None).unwrap();
            packing.check(&graph, &roots).unwrap();
            let copies: u64 = packing.trees.iter().map(|tree| tree.copies).sum();
            let crossing = |group: u32| {
                let links = packing.trees.iter().flat_map(|tree| {
                    tree.links.iter().map(|link| (tree.copies, link.from.0, link.to.0))
                });
                let apart = links.filter(|(_, from, to)| from / group != to / group);
                apart.map(|(copies, ..)| copies).sum::<u64>()
            };
            // Four GPUs are on a node. What is narrowest is crossed no more than it has to be: from
            // one of `parts` to each other one.
            let parts = 4 / below;
            assert_eq!(crossing(4 * below), (u64::from(parts) - 1) * copies, "{network:?}");
        }
    }

    /// If this fails, a network that nobody has ends in a division by nothing, or in trees without
    /// links.
    #[test]
    fn networks_that_make_no_sense_are_refused() {
        let refused = |network: Network, shares: &[u64], part: &str| {
            let mut graph = CapacityGraph::new();
            for gpu in 0..4 {
                graph.gpu(format!("gpu{gpu}"));
            }
            let error = network.join(&mut graph, 2, shares).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        refused(Network::default(), &[0; 4], "network adapters");
        refused(Network { rails: false, leaf: leaf(0, 1) }, &[9; 4], "nodes below a leaf switch");
        let half = Some(Leaf { nodes: 1, oversubscription: Rate::new(1, 2) });
        refused(Network { rails: false, leaf: half }, &[9; 4], "oversubscription");
        refused(Network { rails: false, leaf: leaf(1, 1000) }, &[9; 4], "capacity of leaf 0");
    }
}
