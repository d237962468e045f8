//! Trees that carry data at the best rate that a machine admits, as ForestColl packs them (Zhao et
//! al., arXiv 2402.06787), and from one root as Edmonds' theorem says.
//!
//! The way of the data: [`CapacityGraph`] and [`Roots`] → `optimum`: the tightest set of links, and
//! the scale at which whole trees fill it → `splitting`: switches out → `trees`: a packing of trees
//! that span all GPUs → [`Packing`], checked against the machine.
//!
//! Trees of all roots at once are an all-gather; the same trees, reversed, a reduce-scatter; both
//! an all-reduce. Trees of one root are a broadcast, or reversed a reduce. All numbers are exact.

mod alike;
mod flow;
mod narrow;
mod optimum;
mod splitting;
#[cfg(test)]
pub(super) mod tests;
mod trees;

use super::graph::{CapacityGraph, NodeId};
use crate::error::{Error, Result};
pub use alike::alike;
use optimum::{Oracle, Scale, whole};
pub use splitting::Way;
use std::collections::BTreeMap;

/// An exact fraction.
pub type Rate = num_rational::Ratio<u64>;

/// The most GPUs of a packing.
const GPUS_MAX: usize = 4096;

/// Whose data goes to all GPUs.
#[derive(Clone, Debug)]
pub struct Roots {
    /// By node; 0 for those that send nothing of their own.
    weights: Vec<u64>,
}

impl Roots {
    /// That of each GPU, equally much: all-gather.
    pub fn all(graph: &CapacityGraph) -> Self {
        let mut weights = vec![0; graph.len()];
        graph.gpus().for_each(|gpu| weights[gpu.index()] = 1);
        Self { weights }
    }

    /// That of one GPU: broadcast.
    pub fn one(graph: &CapacityGraph, root: NodeId) -> Self {
        let mut weights = vec![0; graph.len()];
        weights[root.index()] = 1;
        Self { weights }
    }

    fn weight(&self, node: NodeId) -> u64 {
        self.weights[node.index()]
    }

    fn total(&self) -> u64 {
        self.weights.iter().sum()
    }

    /// The roots with their weights.
    fn weights(&self) -> impl Iterator<Item = (NodeId, u64)> {
        (0..).map(NodeId).zip(self.weights.iter().copied()).filter(|(_, weight)| *weight > 0)
    }
}

/// Trees from the roots to all GPUs.
#[derive(Clone, Debug)]
pub struct Packing {
    /// No packing of this machine has a higher [`rate`](Self::rate).
    pub optimum: Rate,
    /// How many trees each unit of a link's capacity carries.
    pub units: Rate,
    /// Trees of each root.
    pub trees_per_root: u64,
    /// All of them; equal ones are one with several copies.
    pub trees: Vec<Tree>,
    roots: u64,
}

/// A tree that reaches all GPUs.
#[derive(Clone, Debug)]
pub struct Tree {
    /// Whose data it carries.
    pub root: NodeId,
    /// How many such trees there are.
    pub copies: u64,
    /// From the root on: each begins where one before it ends, or at the root.
    pub links: Vec<TreeLink>,
}

/// One step of a tree.
#[derive(Clone, Debug)]
pub struct TreeLink {
    /// The GPU that sends.
    pub from: NodeId,
    /// The GPU that receives.
    pub to: NodeId,
    /// Over which switches, and how many of the copies go that way.
    pub ways: Vec<Way>,
}

impl Tree {
    /// How many links the farthest GPU is away from the root.
    pub fn depth(&self) -> u32 {
        let mut depths = BTreeMap::from([(self.root, 0)]);
        for link in &self.links {
            let depth = depths[&link.from] + 1;
            depths.insert(link.to, depth);
        }
        depths.into_values().max().unwrap_or(0)
    }
}

impl Packing {
    /// Data of all roots together that each GPU receives or has, in units of capacity: what
    /// nccl-tests call the algorithm bandwidth of an all-gather.
    pub fn rate(&self) -> Rate {
        Rate::from_integer(self.roots * self.trees_per_root) / self.units
    }

    /// Checks this packing against the machine: each root has its trees, each tree spans all GPUs,
    /// each way exists, and no link carries more than it can.
    ///
    /// # Errors
    /// [`Error::Argument`] names the first that does not hold.
    pub fn check(&self, graph: &CapacityGraph, roots: &Roots) -> Result<()> {
        let wrong = |what: String, expected: &str, seen: String| {
            Err(Error::argument(&what, expected, seen))
        };
        let mut copies: BTreeMap<NodeId, u64> = BTreeMap::new();
        let mut used: BTreeMap<(NodeId, NodeId), u64> = BTreeMap::new();
        for tree in &self.trees {
            let what = format!("a tree of {}", graph.name(tree.root));
            *copies.entry(tree.root).or_default() += tree.copies;
            let mut reached = vec![false; graph.len()];
            reached[tree.root.index()] = true;
            for link in &tree.links {
                if !reached[link.from.index()] || reached[link.to.index()] {
                    let seen = format!("{} to {}", graph.name(link.from), graph.name(link.to));
                    return wrong(what, "links that each reach one more GPU", seen);
                }
                reached[link.to.index()] = true;
                if link.ways.iter().map(|way| way.1).sum::<u64>() != tree.copies {
                    return wrong(what, "a way for each copy", format!("{:?}", link.ways));
                }
                for (way, count) in &link.ways {
                    if way.first() != Some(&link.from) || way.last() != Some(&link.to) {
                        return wrong(what, "ways from end to end", format!("{way:?}"));
                    }
                    for pair in way.windows(2) {
                        *used.entry((pair[0], pair[1])).or_default() += count;
                    }
                }
            }
            if let Some(missing) = graph.gpus().find(|gpu| !reached[gpu.index()]) {
                return wrong(what, "all GPUs", format!("none to {}", graph.name(missing)));
            }
        }
        for (root, weight) in roots.weights() {
            let seen = copies.get(&root).copied().unwrap_or(0);
            if seen != weight * self.trees_per_root {
                let what = format!("trees of {}", graph.name(root));
                let expected = (weight * self.trees_per_root).to_string();
                return wrong(what, &expected, seen.to_string());
            }
        }
        for ((from, to), units) in used {
            let room = whole(self.units, graph.capacity(from, to));
            if units > room {
                let what = format!("trees over {} to {}", graph.name(from), graph.name(to));
                return wrong(what, &format!("at most {room}"), units.to_string());
            }
        }
        Ok(())
    }
}

/// What trees look like, where several packings are equally fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Few links from the root to any GPU: for small data.
    Shallow,
    /// Few links that leave a GPU: for data that fills the tree. A GPU sends to its children in
    /// turn, so the one with most of them is what a tree waits for.
    Narrow,
}

/// Packs trees of `roots`: as many as reach the optimum, or `trees` for each root, as fast as these
/// can be.
///
/// # Errors
/// [`Error::Argument`] for fewer than two or more than 4,096 GPUs; a node that does not
/// receive as much as it sends; a GPU that a root does not reach; no tree at all, or more than
/// 65,536.
pub fn pack(graph: &CapacityGraph, roots: &Roots, trees: Option<u64>) -> Result<Packing> {
    pack_in_shape(graph, roots, trees, Shape::Shallow)
}

/// As [`pack`], in another shape as far as links allow.
///
/// # Errors
/// As [`pack`].
pub fn pack_in_shape(
    graph: &CapacityGraph,
    roots: &Roots,
    trees: Option<u64>,
    shape: Shape,
) -> Result<Packing> {
    let (time, scale) = scale(graph, roots, trees)?;
    let links = splitting::without_switches(graph, roots, &scale);
    let trees = trees::pack(graph, roots, scale.trees, links, shape)?;
    let optimum = Rate::from_integer(roots.total()) / time;
    let (units, trees_per_root) = (scale.units, scale.trees);
    Ok(Packing { optimum, units, trees_per_root, trees, roots: roots.total() })
}

/// How many trees of each root [`pack`] would make, and their [`rate`](Packing::rate), without
/// making them.
///
/// # Errors
/// As [`pack`].
pub fn rate(graph: &CapacityGraph, roots: &Roots, trees: Option<u64>) -> Result<(u64, Rate)> {
    let (_, scale) = scale(graph, roots, trees)?;
    Ok((scale.trees, Rate::from_integer(roots.total() * scale.trees) / scale.units))
}

/// The least time, and what of each link trees get.
fn scale(graph: &CapacityGraph, roots: &Roots, trees: Option<u64>) -> Result<(Rate, Scale)> {
    let count = graph.gpus().count();
    if !(2..=GPUS_MAX).contains(&count) {
        return Err(Error::argument("GPUs of a packing", format!("2 to {GPUS_MAX}"), count));
    }
    if let Some(trees) = trees.filter(|trees| !(1..=1 << 16).contains(trees)) {
        return Err(Error::argument("trees of a root", "1 to 65536", trees));
    }
    graph.check_balance()?;
    let mut oracle = Oracle::new(graph, roots);
    let time = oracle.least_time()?;
    let scale = match trees {
        None => oracle.exact(time),
        Some(trees) => oracle.with_trees(time, trees),
    };
    Ok((time, scale))
}
