//! Switches taken out of the graph: what crosses one becomes links between GPUs, each of which
//! remembers its way.
//!
//! A switch's links can be joined, one that enters with one that leaves, until none is left, and
//! all flows from the roots stay as large as they were. Which pairs may be joined, and how far, is
//! found by trying: a flow that has become too small says by how much. First the evenest spread is
//! tried, on all switches at once; that is nearly always good, and makes short trees. Where it is
//! not, switch by switch is tried, and then pair by pair.

use super::Roots;
use super::flow::Network;
use super::optimum::{Scale, whole};
use crate::topology::graph::{CapacityGraph, NodeId};
use std::collections::BTreeMap;

/// The nodes that a link passes, its ends included, and how many trees go that way.
pub type Way = (Vec<NodeId>, u64);

/// Links in units of trees. Between GPUs alone, once all switches are out.
pub(super) type Links = BTreeMap<(NodeId, NodeId), Vec<Way>>;

/// Takes the switches out.
pub(super) fn without_switches(graph: &CapacityGraph, roots: &Roots, scale: &Scale) -> Links {
    let mut links = Links::new();
    for (from, to, capacity) in graph.arcs() {
        let units = whole(scale.units, capacity);
        if units > 0 {
            links.insert((from, to), vec![(vec![from, to], units)]);
        }
    }
    let switches: Vec<_> =
        (0..graph.len() as u32).map(NodeId).filter(|node| !graph.is_gpu(*node)).collect();
    let wanted = roots.total() * scale.trees;
    let mut split = Split { graph, roots, trees: scale.trees, wanted, links };
    split.all(&switches);
    split.links
}

struct Split<'a> {
    graph: &'a CapacityGraph,
    roots: &'a Roots,
    trees: u64,
    wanted: u64,
    links: Links,
}

/// What is joined: the link that enters a switch, the one that leaves it, and units.
type Join = (NodeId, NodeId, u64);

impl Split<'_> {
    fn all(&mut self, switches: &[NodeId]) {
        let before = self.links.clone();
        for &switch in switches {
            self.spread(switch);
        }
        if self.shortfall(0) == 0 {
            return;
        }
        self.links = before;
        let [switch] = *switches else {
            for &switch in switches {
                self.all(&[switch]);
            }
            return;
        };
        self.pairwise(switch);
    }

    /// Joins a switch's links as evenly as it goes.
    fn spread(&mut self, switch: NodeId) {
        for (from, to, units) in self.even(switch) {
            self.join(switch, from, to, units);
        }
        // What is left, in order. A GPU's link back to itself serves nobody.
        loop {
            let Some(from) = self.entering(switch).next() else { return };
            let to = self.leaving(switch).find(|to| *to != from).unwrap_or(from);
            let units = self.units(from, switch).min(self.units(switch, to));
            self.join(switch, from, to, units);
        }
    }

    /// Each neighbour's units, one after the other to all others: first to those of other groups,
    /// where a group is who shares other switches. Empty where links or groups differ in size.
    fn even(&self, switch: NodeId) -> Vec<Join> {
        let neighbours: Vec<_> = self.entering(switch).collect();
        let Some(&first) = neighbours.first() else { return Vec::new() };
        let units = self.units(first, switch);
        let equal = |node: &NodeId| {
            self.units(*node, switch) == units && self.units(switch, *node) == units
        };
        if !neighbours.iter().all(equal) || self.leaving(switch).count() != neighbours.len() {
            return Vec::new();
        }
        let mut groups: BTreeMap<Vec<NodeId>, Vec<NodeId>> = BTreeMap::new();
        for &node in &neighbours {
            // As the machine has them: some may have been taken out already.
            let others = self.graph.arcs_from(node).map(|(to, _)| to);
            let others = others.filter(|to| *to != switch && !self.graph.is_gpu(*to)).collect();
            groups.entry(others).or_default().push(node);
        }
        let groups: Vec<_> = groups.into_values().collect();
        let size = groups[0].len();
        if groups.iter().any(|group| group.len() != size) {
            return Vec::new();
        }
        // How far to go on, by groups and within: once through all other groups, then one further.
        let steps = match groups.len() {
            1 => (1..size).map(|within| (0, within)).collect::<Vec<_>>(),
            count => (0..size).flat_map(|within| (1..count).map(move |by| (by, within))).collect(),
        };
        if steps.is_empty() {
            return Vec::new();
        }
        let mut joins = Vec::new();
        for (g, group) in groups.iter().enumerate() {
            for (i, &from) in group.iter().enumerate() {
                for (n, &(by, within)) in (0..).zip(&steps) {
                    let to = groups[(g + by) % groups.len()][(i + within) % size];
                    let count = steps.len() as u64;
                    let share = units / count + u64::from(n < units % count);
                    joins.extend((share > 0).then_some((from, to, share)));
                }
            }
        }
        joins
    }

    /// Joins pair by pair, each as far as all flows stay.
    fn pairwise(&mut self, switch: NodeId) {
        loop {
            let entering: Vec<_> = self.entering(switch).collect();
            let mut joined = false;
            for (i, &from) in entering.iter().enumerate() {
                let leaving: Vec<_> = self.leaving(switch).collect();
                // Another partner first for each, itself last.
                for &to in leaving.iter().cycle().skip(i + 1).take(leaving.len()) {
                    let units = self.units(from, switch).min(self.units(switch, to));
                    if units == 0 {
                        continue;
                    }
                    let before = self.links.clone();
                    self.join(switch, from, to, units);
                    let most = units - self.shortfall(units);
                    if most < units {
                        self.links = before;
                        self.join(switch, from, to, most);
                    }
                    joined |= most > 0;
                }
            }
            if !joined {
                // Nothing is lost: a theorem says that some pair can be joined while a link is
                // left.
                debug_assert!(self.entering(switch).next().is_none());
                return;
            }
        }
    }

    /// By how much the smallest flow from all roots to a GPU falls short; at most `most`, if that
    /// is not 0, and at least something if it does.
    fn shortfall(&self, most: u64) -> u64 {
        let mut network = Network::new(self.graph.len());
        for (&(from, to), ways) in &self.links {
            let units = ways.iter().map(|way| way.1).sum();
            network.arc(from.index(), to.index(), units);
        }
        let source = network.node();
        for (root, weight) in self.roots.weights() {
            network.arc(source, root.index(), weight * self.trees);
        }
        let mut worst = 0;
        for gpu in self.graph.gpus() {
            let flow = network.max_flow(source, gpu.index(), self.wanted);
            worst = worst.max(self.wanted - flow);
            if worst > 0 && worst >= most {
                break;
            }
        }
        worst
    }

    fn entering(&self, switch: NodeId) -> impl Iterator<Item = NodeId> {
        self.links.keys().filter(move |link| link.1 == switch).map(|link| link.0)
    }

    fn leaving(&self, switch: NodeId) -> impl Iterator<Item = NodeId> {
        let all = (switch, NodeId(0))..=(switch, NodeId(u32::MAX));
        self.links.range(all).map(|(link, _)| link.1)
    }

    fn units(&self, from: NodeId, to: NodeId) -> u64 {
        self.links.get(&(from, to)).map_or(0, |ways| ways.iter().map(|way| way.1).sum())
    }

    /// Makes `units` of a link that enters `switch` and of one that leaves it one link.
    fn join(&mut self, switch: NodeId, from: NodeId, to: NodeId, units: u64) {
        let mut left = units;
        let entering = take(&mut self.links, (from, switch), units);
        let mut leaving = take(&mut self.links, (switch, to), units).into_iter();
        let mut next = leaving.next();
        for (path, mut count) in entering {
            while count > 0 {
                let Some((onward, available)) = &mut next else { break };
                let some = count.min(*available);
                let way: Vec<_> = path.iter().chain(&onward[1..]).copied().collect();
                count -= some;
                *available -= some;
                left -= some;
                if *available == 0 {
                    next = leaving.next();
                }
                if from != to {
                    add(self.links.entry((from, to)).or_default(), way, some);
                }
            }
        }
        debug_assert_eq!(left, 0);
    }
}

/// Takes units of a link away.
pub(super) fn take(links: &mut Links, link: (NodeId, NodeId), mut units: u64) -> Vec<Way> {
    let mut taken = Vec::new();
    if let Some(ways) = links.get_mut(&link) {
        while units > 0
            && let Some((way, count)) = ways.last_mut()
        {
            let some = units.min(*count);
            taken.push((way.clone(), some));
            *count -= some;
            units -= some;
            if *count == 0 {
                ways.pop();
            }
        }
        if ways.is_empty() {
            links.remove(&link);
        }
    }
    taken
}

fn add(ways: &mut Vec<Way>, way: Vec<NodeId>, units: u64) {
    match ways.iter_mut().find(|(other, _)| *other == way) {
        Some((_, count)) => *count += units,
        None => ways.push((way, units)),
    }
}
