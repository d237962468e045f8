//! The rate that no schedule can exceed, and how finely capacities are to be cut so that whole
//! trees reach it.
//!
//! A set of nodes that lacks a GPU sends that GPU all data of its own, over the links that leave
//! it: so nobody's data can flow faster than these links' capacity divided by how much data the set
//! has. The smallest such quotient is the optimum, and it is found from above: each set that a flow
//! shows to be tighter than the guess is the next guess.

use super::flow::Network;
use super::{Rate, Roots};
use crate::error::{Error, Result};
use crate::topology::graph::{CapacityGraph, NodeId};

/// Capacities in units of a tree's rate, and how many trees each root has.
pub(super) struct Scale {
    /// Trees' units for each unit of capacity.
    pub units: Rate,
    /// Trees of a root of weight 1.
    pub trees: u64,
}

/// Flows from all roots at once to each GPU.
pub(super) struct Oracle<'a> {
    graph: &'a CapacityGraph,
    roots: &'a Roots,
    network: Network,
    source: usize,
    /// Arc of each link, and its capacity.
    links: Vec<(usize, u64)>,
    /// Arc from the source, and weight of the root.
    supplies: Vec<(usize, u64)>,
}

impl<'a> Oracle<'a> {
    pub fn new(graph: &'a CapacityGraph, roots: &'a Roots) -> Self {
        let mut network = Network::new(graph.len());
        let links = graph
            .arcs()
            .map(|(from, to, capacity)| (network.arc(from.index(), to.index(), 0), capacity));
        let links = links.collect();
        let source = network.node();
        let supplies = roots
            .weights()
            .map(|(root, weight)| (network.arc(source, root.index(), 0), weight))
            .collect();
        Self { graph, roots, network, source, links, supplies }
    }

    /// The least time in which one unit of each root's data crosses the tightest set of links: the
    /// optimum's reciprocal.
    ///
    /// # Errors
    /// [`Error::Argument`] names a GPU that others do not reach.
    pub fn least_time(&mut self) -> Result<Rate> {
        let mut time = Rate::from_integer(0);
        // Most often what enters one GPU is the tightest, and that needs no flow.
        for gpu in self.graph.gpus() {
            let entering = self.graph.arcs().filter(|arc| arc.1 == gpu).map(|arc| arc.2).sum();
            time =
                time.max(self.time(gpu, self.roots.total() - self.roots.weight(gpu), entering)?);
        }
        // A machine's last GPUs are as tight as its first ones: a pass that finds nothing ends it.
        let gpus: Vec<_> = self.graph.gpus().collect();
        let (mut quiet, mut next) = (0, 0);
        while quiet < gpus.len() {
            match self.tighter(gpus[next], time)? {
                Some(tighter) => (time, quiet) = (tighter, 0),
                None => (quiet, next) = (quiet + 1, (next + 1) % gpus.len()),
            }
        }
        Ok(time)
    }

    /// Data over capacity.
    fn time(&self, gpu: NodeId, data: u64, capacity: u64) -> Result<Rate> {
        if data > 0 && capacity == 0 {
            let what = format!("links to {}", self.graph.name(gpu));
            return Err(Error::argument(
                &what,
                "a path from each root",
                "GPUs that do not reach it",
            ));
        }
        Ok(if data == 0 { Rate::from_integer(0) } else { Rate::new(data, capacity) })
    }

    /// The time of a set that lacks `gpu` and needs more than `time`, if there is one.
    fn tighter(&mut self, gpu: NodeId, time: Rate) -> Result<Option<Rate>> {
        for &(arc, capacity) in &self.links {
            self.network.set(arc, capacity * time.numer());
        }
        for &(arc, weight) in &self.supplies {
            self.network.set(arc, weight * time.denom());
        }
        let wanted = self.roots.total() * time.denom();
        if self.network.max_flow(self.source, gpu.index(), wanted) == wanted {
            return Ok(None);
        }
        let inside: Vec<_> = self.network.source_side().collect();
        let leaving = |from: NodeId, to: NodeId| inside[from.index()] && !inside[to.index()];
        let capacity = self.graph.arcs().filter(|arc| leaving(arc.0, arc.1)).map(|arc| arc.2).sum();
        let data = self.roots.weights().filter(|(root, _)| inside[root.index()]);
        self.time(gpu, data.map(|(_, weight)| weight).sum(), capacity).map(Some)
    }

    /// Do whole units suffice, `trees` of them for each root, if each link has `units` of them for
    /// each unit of capacity, rounded down?
    pub fn suffices(&mut self, units: Rate, trees: u64) -> bool {
        for &(arc, capacity) in &self.links {
            self.network.set(arc, whole(units, capacity));
        }
        for &(arc, weight) in &self.supplies {
            self.network.set(arc, weight * trees);
        }
        let wanted = self.roots.total() * trees;
        let (network, source) = (&mut self.network, self.source);
        self.graph.gpus().all(|gpu| network.max_flow(source, gpu.index(), wanted) == wanted)
    }

    /// The scale at which whole trees reach the optimum.
    pub fn exact(&self, time: Rate) -> Scale {
        let common = self.links.iter().fold(*time.denom(), |common, link| gcd(common, link.1));
        Scale { units: Rate::new(*time.numer(), common), trees: time.denom() / common }
    }

    /// The scale at which `trees` for each root are fastest.
    pub fn with_trees(&mut self, time: Rate, trees: u64) -> Scale {
        let mut capacities: Vec<u64> = self.links.iter().map(|link| link.1).collect();
        capacities.sort_unstable();
        capacities.dedup();
        // Where every link takes all trees, they suffice.
        let mut best = Rate::new(self.roots.total() * trees, capacities[0]);
        // Rounded capacities change only where some link gets one unit more.
        for capacity in capacities {
            let mut least = (time * trees * capacity).ceil().to_integer().max(1);
            let mut most = (best * capacity).floor().to_integer();
            while least <= most {
                let middle = least.midpoint(most);
                let units = Rate::new(middle, capacity);
                if self.suffices(units, trees) {
                    best = best.min(units);
                    most = middle - 1;
                } else {
                    least = middle + 1;
                }
            }
        }
        Scale { units: best, trees }
    }
}

/// Whole units of a link.
pub(super) fn whole(units: Rate, capacity: u64) -> u64 {
    (units * capacity).to_integer()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
