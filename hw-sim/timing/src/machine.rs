//! Machines: nodes of GPUs joined by links, and nodes joined by a network.
//!
//! A [`Graph`] describes one node. [`Machine::new`] turns every edge into two directed links with
//! the rates that the profile says are reached, finds the path between any two GPUs, and repeats
//! the node. Each GPU has one adapter, attached where the GPU itself is attached; the network
//! between adapters either never limits ([`Network::leaf`] is `None`), or has leaf switches whose
//! uplinks can.

use crate::profile::{Links, Profile};
use crate::time::{Rate, Time};
use std::collections::VecDeque;

/// The most links that a path may have.
pub const HOPS_MAX: usize = 10;

/// Kinds of links, as far as their constants differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkKind {
    /// NVLink, between GPUs or to NVSwitches.
    NvLink,
    /// PCI Express.
    Pcie,
    /// Between processors.
    Cpu,
    /// Between an adapter and the network.
    Network,
}

/// A bundle of equal links between two points, each carrying its rate in both directions.
#[derive(Clone, Debug)]
pub struct Edge {
    /// Indices of the points.
    pub ends: [usize; 2],
    /// What kind.
    pub kind: LinkKind,
    /// How many links side by side.
    pub count: u32,
    /// GB/s of one link in one direction, as the data sheet has it.
    pub gb_per_s: f64,
}

/// One node: points (GPUs first, then switches and root complexes) and the edges between them.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// The machine's name.
    pub name: String,
    /// How many of the points are GPUs; they come first.
    pub gpu_count: usize,
    /// Names of all points.
    pub points: Vec<String>,
    /// All edges.
    pub edges: Vec<Edge>,
}

/// Leaf switches between nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Leaf {
    /// Nodes below one leaf switch.
    pub nodes: usize,
    /// How many times the rate of its adapters exceeds that of its uplinks: 1 is non-blocking.
    pub oversubscription: f64,
}

/// How nodes are joined.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Network {
    /// GB/s of each adapter in one direction; the profile's if `None`.
    pub adapter_gb_per_s: Option<f64>,
    /// Leaf switches, or a network that never limits.
    pub leaf: Option<Leaf>,
}

/// The most GPUs of a machine: twice the largest communicator that is planned. Unused GPUs take
/// memory and time, too.
const GPUS_MAX: usize = 131_072;

/// Why there is no such machine, or no way through it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MachineError {
    /// A number is out of range.
    #[error("machine {machine}: {key}: expected {expected}, got {seen}")]
    Number {
        /// The machine.
        machine: String,
        /// Which number.
        key: String,
        /// The accepted values.
        expected: &'static str,
        /// The given value.
        seen: String,
    },
    /// No way between two GPUs.
    #[error("machine {machine}: no path from gpu {from} to gpu {to}: {reason}")]
    Unreachable {
        /// The machine.
        machine: String,
        /// From.
        from: u32,
        /// To.
        to: u32,
        /// The missing item.
        reason: String,
    },
}

/// Links that a flow crosses, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    links: [u32; HOPS_MAX],
    hops: u8,
    /// Time for the first bit to cross all of them.
    pub latency: Time,
}

impl Path {
    /// The links.
    pub fn links(&self) -> &[u32] {
        &self.links[..usize::from(self.hops)]
    }

    /// The part from hop `start` to hop `end`, with its share of the latency.
    pub fn part(&self, machine: &Machine, start: usize, end: usize) -> Self {
        let mut part = Self::default();
        for &link in &self.links()[start..end] {
            part.push(link, machine.link_latency(link));
        }
        part
    }

    fn push(&mut self, link: u32, latency: Time) {
        self.links[usize::from(self.hops)] = link;
        self.hops += 1;
        self.latency += latency;
    }

    /// Adds a node's part of the way, whose links are numbered as in the first node.
    fn follow(&mut self, part: &Self, first_link: u32) {
        let start = usize::from(self.hops);
        for (to, link) in self.links[start..].iter_mut().zip(part.links()) {
            *to = first_link + link;
        }
        self.hops += part.hops;
        self.latency += part.latency;
    }
}

/// Where a GPU is.
#[derive(Clone, Copy)]
struct GpuLocation {
    node: usize,
    /// Among those of its node.
    gpu: usize,
    /// Among all.
    number: u32,
}

#[derive(Clone)]
struct LinkSpec {
    name: String,
    rate: Rate,
    latency: Time,
}

/// A machine with all its links and paths.
#[derive(Clone)]
pub struct Machine {
    name: String,
    gpu_count: usize,
    node_count: usize,
    /// Links of one node; node `i` has the same at `i * len`.
    node_links: Vec<LinkSpec>,
    /// Ways between two GPUs of the first node, at `from * gpu_count + to`.
    routes: Vec<Option<Path>>,
    /// The same without NVLink, for engines that sit on PCI.
    pci_routes: Vec<Option<Path>>,
    /// Ways from a GPU to the network, and from there to the GPU.
    exits: Vec<Path>,
    entries: Vec<Path>,
    leaf: Option<(Leaf, Rate)>,
    leaf_latency: Time,
}

impl Machine {
    /// The machine of `node_count` nodes like `graph`.
    ///
    /// # Errors
    /// Numbers out of range, too many GPUs for the model.
    pub fn new(
        graph: &Graph,
        node_count: usize,
        network: Network,
        profile: &Profile,
    ) -> Result<Self, MachineError> {
        check(graph, node_count, network)?;
        let constants = &profile.links;
        let mut node_links = Vec::new();
        for edge in &graph.edges {
            let (efficiency, latency) = constants.of(edge.kind);
            let rate =
                Rate::from_gb_per_s(edge.gb_per_s * f64::from(edge.count)).scaled(efficiency);
            for [from, to] in [edge.ends, [edge.ends[1], edge.ends[0]]] {
                let name = format!("{} to {}", graph.points[from], graph.points[to]);
                node_links.push(LinkSpec { name, rate, latency });
            }
        }
        let adapter = network.adapter_gb_per_s.unwrap_or(constants.adapter.gb_per_s());
        let adapter = Rate::from_gb_per_s(adapter).scaled(constants.of(LinkKind::Network).0);
        let (exits, entries) = attach_adapters(graph, constants, adapter, &mut node_links);
        let gpus = 0..graph.gpu_count;
        let pairs = gpus.clone().flat_map(|from| gpus.clone().map(move |to| (from, to)));
        let along = |links: Vec<u32>| {
            let mut path = Path::default();
            for link in links {
                path.push(link, node_links[link as usize].latency);
            }
            path
        };
        let routes = pairs.clone().map(|(from, to)| route(graph, from, to).map(along)).collect();
        let pci_routes = pairs.map(|(from, to)| pci_route(graph, from, to).map(along)).collect();
        let (exits, entries) =
            (exits.into_iter().map(along).collect(), entries.into_iter().map(along).collect());
        let leaf = network.leaf.map(|leaf| {
            let below = leaf.nodes as f64 * graph.gpu_count as f64;
            (leaf, adapter.scaled(below / leaf.oversubscription))
        });
        Ok(Self {
            name: graph.name.clone(),
            gpu_count: graph.gpu_count,
            node_count,
            node_links,
            routes,
            pci_routes,
            exits,
            entries,
            leaf,
            leaf_latency: constants.of(LinkKind::Network).1,
        })
    }

    /// The name, with the number of nodes if there are several.
    pub fn name(&self) -> String {
        match self.node_count {
            1 => self.name.clone(),
            count => format!("{count} x {}", self.name),
        }
    }

    /// GPUs of all nodes.
    pub fn gpu_count(&self) -> usize {
        self.gpu_count * self.node_count
    }

    /// GPUs of one node.
    pub fn gpus_per_node(&self) -> usize {
        self.gpu_count
    }

    /// Are the two GPUs in one node?
    pub fn is_near(&self, a: u32, b: u32) -> bool {
        a as usize / self.gpu_count == b as usize / self.gpu_count
    }

    /// What every link carries, in the order of their numbers.
    pub fn link_rates(&self) -> impl Iterator<Item = Rate> {
        let nodes = (0..self.node_count).flat_map(|_| self.node_links.iter().map(|it| it.rate));
        let leaves = self.leaf.map_or(0, |(leaf, _)| self.node_count.div_ceil(leaf.nodes));
        let uplink = self.leaf.map_or(Rate(0), |(_, rate)| rate);
        nodes.chain(std::iter::repeat_n(uplink, 2 * leaves))
    }

    /// Links of one node, which every node repeats; leaf switches' links come after all nodes'.
    pub fn links_per_node(&self) -> u32 {
        self.node_links.len() as u32
    }

    /// The same machine with one link of each node at `ratio` of its rate: what would a faster or
    /// slower link change?
    ///
    /// # Panics
    /// If there is no such link.
    pub fn with_link_scaled(&self, link_of_node: u32, ratio: f64) -> Self {
        let mut machine = self.clone();
        let link = &mut machine.node_links[link_of_node as usize];
        link.rate = link.rate.scaled(ratio);
        machine
    }

    /// A link's name.
    pub fn link_name(&self, link: u32) -> String {
        let (link, of_node) = (link as usize, self.node_links.len());
        if link >= of_node * self.node_count {
            let number = link - of_node * self.node_count;
            let way = if number.is_multiple_of(2) { "up" } else { "down" };
            return format!("leaf {} {way}link", number / 2);
        }
        let name = &self.node_links[link % of_node].name;
        match self.node_count {
            1 => name.clone(),
            _ => format!("node {}: {name}", link / of_node),
        }
    }

    fn link_latency(&self, link: u32) -> Time {
        let of_node = self.node_links.len();
        match (link as usize) < of_node * self.node_count {
            true => self.node_links[link as usize % of_node].latency,
            false => self.leaf_latency,
        }
    }

    /// The way from one GPU to another.
    ///
    /// # Errors
    /// None today.
    pub fn path(&self, from: u32, to: u32) -> Result<Path, MachineError> {
        self.path_into(from, to, false, self.node_of(to))
    }

    /// The way for a device engine, which sits on PCI: within a node, NVLink is not for it.
    ///
    /// # Errors
    /// None today.
    pub fn pci_path(&self, from: u32, to: u32) -> Result<Path, MachineError> {
        self.path_into(from, to, true, self.node_of(to))
    }

    /// As [`path`](Self::path) or [`pci_path`](Self::pci_path), if the node of `to` were `arrival`:
    /// a node that stands for it.
    pub(crate) fn path_into(
        &self,
        from: u32,
        to: u32,
        is_pci: bool,
        arrival: usize,
    ) -> Result<Path, MachineError> {
        let mut path = Path::default();
        let of_node = self.node_links.len() as u32;
        let (from, to) = (self.place(from), self.place(to));
        if from.node == to.node {
            path.follow(self.near(from, to, is_pci)?, from.node as u32 * of_node);
            return Ok(path);
        }
        path.follow(&self.exits[from.gpu], from.node as u32 * of_node);
        if let Some(nodes) = self.leaves(from.node, to.node) {
            let first = of_node * self.node_count as u32;
            path.push(first + 2 * (from.node / nodes) as u32, self.leaf_latency);
            path.push(first + 2 * (arrival / nodes) as u32 + 1, self.leaf_latency);
        }
        path.follow(&self.entries[to.gpu], arrival as u32 * of_node);
        Ok(path)
    }

    /// The node of a GPU.
    pub(crate) fn node_of(&self, gpu: u32) -> usize {
        // There are fewer than 2^32 GPUs in a node; a division of 32 bits is the quicker one.
        (gpu / self.gpu_count as u32) as usize
    }

    /// Nodes that share nothing but the network with those outside of such a group.
    pub(crate) fn nodes_apart(&self) -> usize {
        self.leaf.map_or(1, |(leaf, _)| leaf.nodes)
    }

    /// The link that stands for `link` if each node is stood for by another.
    pub(crate) fn link_in_place_of(&self, link: u32, stand_in: impl Fn(usize) -> usize) -> u32 {
        let (of_node, first_leaf) =
            (self.node_links.len(), self.node_links.len() * self.node_count);
        let (link, nodes) = (link as usize, self.nodes_apart());
        match link.checked_sub(first_leaf) {
            None => (stand_in(link / of_node) * of_node + link % of_node) as u32,
            Some(link) => (first_leaf + 2 * (stand_in(link / 2 * nodes) / nodes) + link % 2) as u32,
        }
    }

    /// The latency of [`path_into`](Self::path_into), without its links. Whatever node the way
    /// arrives at, it takes as long.
    pub(crate) fn latency(&self, from: u32, to: u32, is_pci: bool) -> Result<Time, MachineError> {
        let (from, to) = (self.place(from), self.place(to));
        if from.node == to.node {
            return Ok(self.near(from, to, is_pci)?.latency);
        }
        let up_and_down = if self.leaves(from.node, to.node).is_some() { 2 } else { 0 };
        let ends = self.exits[from.gpu].latency + self.entries[to.gpu].latency;
        Ok(ends + self.leaf_latency.times(up_and_down))
    }

    fn place(&self, gpu: u32) -> GpuLocation {
        let node = self.node_of(gpu);
        GpuLocation { node, gpu: gpu as usize - node * self.gpu_count, number: gpu }
    }

    /// The way within a node, whose links are numbered as in the first.
    fn near(
        &self,
        from: GpuLocation,
        to: GpuLocation,
        is_pci: bool,
    ) -> Result<&Path, MachineError> {
        let routes = if is_pci { &self.pci_routes } else { &self.routes };
        let route = routes[from.gpu * self.gpu_count + to.gpu].as_ref();
        route.ok_or_else(|| self.unreachable(from.number, to.number))
    }

    /// Nodes below one leaf switch, if a way between two nodes leads beyond it.
    fn leaves(&self, from: usize, to: usize) -> Option<usize> {
        let nodes = self.leaf?.0.nodes;
        (from / nodes != to / nodes).then_some(nodes)
    }

    fn unreachable(&self, from: u32, to: u32) -> MachineError {
        let reason = format!("neither NVLink nor at most {HOPS_MAX} PCI links join them");
        MachineError::Unreachable { machine: self.name(), from, to, reason }
    }
}

fn check(graph: &Graph, node_count: usize, network: Network) -> Result<(), MachineError> {
    let number = |key: &str, expected, seen: String| {
        Err(MachineError::Number { machine: graph.name.clone(), key: key.into(), expected, seen })
    };
    if graph.gpu_count == 0 {
        return number("gpus", "at least 1", "0".into());
    }
    if node_count == 0 {
        return number("nodes", "at least 1", "0".into());
    }
    if node_count.saturating_mul(graph.gpu_count) > GPUS_MAX {
        let seen = format!("{node_count} nodes of {} GPUs", graph.gpu_count);
        return number("GPUs of all nodes", "at most 131072", seen);
    }
    if let Some(rate) = network.adapter_gb_per_s
        && !(rate.is_finite() && rate > 0.0)
    {
        return number("adapter rate", "more than 0 GB/s", rate.to_string());
    }
    if let Some(leaf) = network.leaf {
        if leaf.nodes == 0 {
            return number("nodes of a leaf switch", "at least 1", "0".into());
        }
        if !(leaf.oversubscription.is_finite() && leaf.oversubscription >= 1.0) {
            return number("oversubscription", "at least 1", leaf.oversubscription.to_string());
        }
    }
    for edge in &graph.edges {
        let rate = edge.gb_per_s * f64::from(edge.count);
        if !(rate.is_finite() && rate > 0.0) {
            let [a, b] = edge.ends.map(|end| &graph.points[end]);
            return number(&format!("rate of {a} to {b}"), "more than 0 GB/s", rate.to_string());
        }
    }
    Ok(())
}

/// Adds each GPU's adapter: links from the GPU up to where it is attached, then to the network.
fn attach_adapters(
    graph: &Graph,
    constants: &Links,
    rate: Rate,
    node_links: &mut Vec<LinkSpec>,
) -> (Vec<Vec<u32>>, Vec<Vec<u32>>) {
    let latency = constants.of(LinkKind::Network).1;
    let (mut exits, mut entries) = (Vec::new(), Vec::new());
    for gpu in 0..graph.gpu_count {
        let edge =
            graph.edges.iter().position(|it| it.kind == LinkKind::Pcie && it.ends.contains(&gpu));
        let (mut exit, mut entry) = (Vec::new(), Vec::new());
        if let Some(edge) = edge {
            let forward = graph.edges[edge].ends[0] == gpu;
            exit.push(2 * edge as u32 + u32::from(!forward));
            entry.push(2 * edge as u32 + u32::from(forward));
        }
        let name = &graph.points[gpu];
        exit.push(node_links.len() as u32);
        node_links.push(LinkSpec { name: format!("adapter of {name} out"), rate, latency });
        entry.insert(0, node_links.len() as u32);
        node_links.push(LinkSpec { name: format!("adapter of {name} in"), rate, latency });
        exits.push(exit);
        entries.push(entry);
    }
    (exits, entries)
}

/// The local links from one GPU to another: NVLink, directly or through one switch, if there is
/// any; else the shortest way over PCI and between processors.
fn route(graph: &Graph, from: usize, to: usize) -> Option<Vec<u32>> {
    if from == to {
        return Some(Vec::new());
    }
    let near = shortest(graph, from, to, |edge| edge.kind == LinkKind::NvLink);
    near.filter(|links| links.len() <= 2).or_else(|| pci_route(graph, from, to))
}

fn pci_route(graph: &Graph, from: usize, to: usize) -> Option<Vec<u32>> {
    let links = shortest(graph, from, to, |edge| edge.kind != LinkKind::NvLink);
    links.filter(|links| links.len() <= HOPS_MAX)
}

/// Breadth first, in the order of the edges; no way leads through a GPU.
fn shortest(
    graph: &Graph,
    from: usize,
    to: usize,
    allowed: impl Fn(&Edge) -> bool,
) -> Option<Vec<u32>> {
    let mut came: Vec<Option<(usize, u32)>> = vec![None; graph.points.len()];
    let mut queue = VecDeque::from([from]);
    while let Some(point) = queue.pop_front() {
        if point != from && point < graph.gpu_count {
            continue;
        }
        for (number, edge) in graph.edges.iter().enumerate().filter(|(_, edge)| allowed(edge)) {
            for (direction, [a, b]) in
                [edge.ends, [edge.ends[1], edge.ends[0]]].into_iter().enumerate()
            {
                if a == point && b != from && came[b].is_none() {
                    came[b] = Some((a, (2 * number + direction) as u32));
                    queue.push_back(b);
                }
            }
        }
    }
    let mut links = Vec::new();
    let mut at = to;
    while at != from {
        let (before, link) = came[at]?;
        links.push(link);
        at = before;
    }
    links.reverse();
    Some(links)
}
