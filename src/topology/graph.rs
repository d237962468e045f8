//! A machine as a flow sees it: GPUs and switches, and how much each link carries in each
//! direction.

use crate::error::{Error, Result};
use std::collections::BTreeMap;

/// A node of a [`CapacityGraph`], by its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

impl NodeId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// The most that a link may carry. Sums and products of capacities then fit 128 bits by far.
const CAPACITY_MAX: u64 = 1 << 32;

/// GPUs, switches, and directed links between them. Capacities are whole numbers of one unit that
/// the maker of the graph chooses: links, or MB/s.
///
/// Packing needs that each node receives as much as it sends; links that carry the same in both
/// directions always do so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapacityGraph {
    nodes: Vec<Node>,
    arcs: BTreeMap<(NodeId, NodeId), u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    name: String,
    is_gpu: bool,
}

impl CapacityGraph {
    /// A graph without nodes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a GPU: it has data, and wants that of the others.
    pub fn gpu(&mut self, name: impl Into<String>) -> NodeId {
        self.node(name.into(), true)
    }

    /// Adds a switch: it passes data on.
    pub fn switch(&mut self, name: impl Into<String>) -> NodeId {
        self.node(name.into(), false)
    }

    fn node(&mut self, name: String, is_gpu: bool) -> NodeId {
        self.nodes.push(Node { name, is_gpu });
        NodeId((self.nodes.len() - 1) as u32)
    }

    /// Adds `capacity` in both directions between `a` and `b`.
    ///
    /// # Errors
    /// As [`arc`](Self::arc).
    pub fn link(&mut self, a: NodeId, b: NodeId, capacity: u64) -> Result<()> {
        self.arc(a, b, capacity)?;
        self.arc(b, a, capacity)
    }

    /// Adds `capacity` from `from` to `to` to what is there.
    ///
    /// # Errors
    /// [`Error::Argument`] if the capacity is zero, or with what is there above 2³²; if a node is
    /// not of this graph, or both are the same.
    pub fn arc(&mut self, from: NodeId, to: NodeId, capacity: u64) -> Result<()> {
        let known = |node: NodeId| node.index() < self.nodes.len();
        if from == to || !known(from) || !known(to) {
            let expected = format!("two of the {} nodes", self.nodes.len());
            return Err(Error::argument("link", expected, format!("{} to {}", from.0, to.0)));
        }
        let sum = self.capacity(from, to).saturating_add(capacity);
        if capacity == 0 || sum > CAPACITY_MAX {
            let what = format!("capacity of {} to {}", self.name(from), self.name(to));
            return Err(Error::argument(&what, format!("1 to {CAPACITY_MAX}"), sum));
        }
        self.arcs.insert((from, to), sum);
        Ok(())
    }

    /// What `from` can send to `to` at once; 0 where no link joins them.
    pub fn capacity(&self, from: NodeId, to: NodeId) -> u64 {
        self.arcs.get(&(from, to)).copied().unwrap_or(0)
    }

    /// All directed links with their capacities, by their ends.
    pub fn arcs(&self) -> impl Iterator<Item = (NodeId, NodeId, u64)> {
        self.arcs.iter().map(|(&(from, to), &capacity)| (from, to, capacity))
    }

    /// The links that leave `node`: where each goes, and its capacity.
    pub fn arcs_from(&self, node: NodeId) -> impl Iterator<Item = (NodeId, u64)> {
        let all = (node, NodeId(0))..=(node, NodeId(u32::MAX));
        self.arcs.range(all).map(|(&(_, to), &capacity)| (to, capacity))
    }

    /// Number of nodes, switches included.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// No node at all?
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The GPUs, by number.
    pub fn gpus(&self) -> impl Iterator<Item = NodeId> {
        (0..).map(NodeId).zip(&self.nodes).filter(|(_, node)| node.is_gpu).map(|(id, _)| id)
    }

    /// Is the node a GPU?
    pub fn is_gpu(&self, node: NodeId) -> bool {
        self.nodes[node.index()].is_gpu
    }

    /// The node's name.
    pub fn name(&self, node: NodeId) -> &str {
        &self.nodes[node.index()].name
    }

    /// The machine as far as a job sees it that has only some GPUs: the others are gone, with their
    /// links; switches stay. GPUs are numbered in the order of `gpus`, switches after them.
    ///
    /// # Errors
    /// [`Error::Argument`] if one of `gpus` is no GPU of this graph, or named twice.
    pub fn allocation(&self, gpus: &[NodeId]) -> Result<Self> {
        let mut part = Self::new();
        let mut numbers = BTreeMap::new();
        for &gpu in gpus {
            let is_one = self.nodes.get(gpu.index()).is_some_and(|node| node.is_gpu);
            if !is_one || numbers.insert(gpu, part.gpu(self.name(gpu))).is_some() {
                let seen = format!("node {}", gpu.0);
                return Err(Error::argument("allocation", "GPUs, each once", seen));
            }
        }
        for (switch, node) in (0..).map(NodeId).zip(&self.nodes) {
            if !node.is_gpu {
                numbers.insert(switch, part.switch(node.name.clone()));
            }
        }
        for (from, to, capacity) in self.arcs() {
            if let (Some(&from), Some(&to)) = (numbers.get(&from), numbers.get(&to)) {
                part.arc(from, to, capacity)?;
            }
        }
        Ok(part)
    }

    /// Does each GPU reach each other one?
    pub fn is_connected(&self) -> bool {
        let Some(first) = self.gpus().next() else { return true };
        let reached = |forward: bool| {
            let mut reached = vec![false; self.len()];
            reached[first.index()] = true;
            let mut next = vec![first];
            while let Some(node) = next.pop() {
                for (from, to, _) in self.arcs() {
                    let (from, to) = if forward { (from, to) } else { (to, from) };
                    if from == node && !reached[to.index()] {
                        reached[to.index()] = true;
                        next.push(to);
                    }
                }
            }
            self.gpus().all(|gpu| reached[gpu.index()])
        };
        reached(true) && reached(false)
    }

    /// # Errors
    /// [`Error::Argument`] names a node that does not receive as much as it sends.
    pub(super) fn check_balance(&self) -> Result<()> {
        let mut balance = vec![0i128; self.nodes.len()];
        for (from, to, capacity) in self.arcs() {
            balance[from.index()] += i128::from(capacity);
            balance[to.index()] -= i128::from(capacity);
        }
        match balance.iter().position(|surplus| *surplus != 0) {
            None => Ok(()),
            Some(node) => Err(Error::argument(
                &format!("links of {}", self.nodes[node].name),
                "as much capacity in as out",
                format!("{} more out than in", balance[node]),
            )),
        }
    }
}
