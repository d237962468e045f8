//! Trees over links between GPUs that suffice for all of them.
//!
//! First tree by tree, each along the shortest ways that are left, then each along the widest
//! links: that is quick, and makes short trees, but links may run out. Then the way that never
//! does, by a theorem of Edmonds that Bérczi and Frank extended to several roots: a tree takes a
//! link only so far as a flow shows that all others can still be completed.

use super::flow::{Network, UNBOUNDED};
use super::splitting::Links;
use super::{Roots, Shape, Tree, TreeLink};
use crate::error::{Error, Result};
use crate::topology::graph::{CapacityGraph, NodeId};
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap};

/// Narrow trees are tried in so many orders as narrow as can be, in as many with two children, and
/// in as many with three; for so many GPUs at most.
const NARROWEST_TRIES: u64 = 256;
const NARROW_TRIES: u64 = 3 * NARROWEST_TRIES;
const NARROW_GPUS_MAX: usize = 16;

/// More single trees than these are not tried one by one.
const SINGLE_MAX: u64 = 1 << 16;

/// Packs `trees` for each root of weight 1.
pub(super) fn pack(
    graph: &CapacityGraph,
    roots: &Roots,
    trees: u64,
    mut links: Links,
    shape: Shape,
) -> Result<Vec<Tree>> {
    let gpus: Vec<_> = graph.gpus().collect();
    let room = |(&link, ways): (&(NodeId, NodeId), &Vec<super::Way>)| {
        (link, ways.iter().map(|way| way.1).sum::<u64>())
    };
    let rooms: BTreeMap<_, _> = links.iter().map(room).collect();
    let is_quick = roots.total() * trees <= SINGLE_MAX;
    let quick =
        |order, below| OneByOne::new(graph.len(), &gpus, &rooms, order).pack(roots, trees, below);
    let narrow = || {
        let mut best = (WIDEST, None);
        for turn in 0..NARROW_TRIES {
            if let Some((drafts, widths)) = quick(Order::Narrowest(turn), best.0) {
                best = (widths, Some(drafts));
            }
        }
        best.1
    };
    let shallow = || {
        let orders = [Order::Shortest, Order::Widest].into_iter();
        orders.filter_map(|order| Some(quick(order, WIDEST)?.0)).next()
    };
    let drafts = match shape {
        _ if !is_quick => None,
        Shape::Narrow if gpus.len() <= NARROW_GPUS_MAX => narrow().or_else(shallow),
        Shape::Narrow | Shape::Shallow => shallow(),
    };
    let mut drafts = match drafts {
        Some(drafts) => drafts,
        None => Exact::new(graph, roots, trees, &gpus, rooms.clone()).pack()?,
    };
    if shape == Shape::Narrow {
        super::narrow::narrow(&mut drafts, &gpus, &rooms);
    }
    Ok(merged(drafts).into_iter().map(|draft| draft.with_ways(&mut links)).collect())
}

/// Children of the GPU that has most of them, in the trees that have most, and how many trees have
/// so many.
type Widths = (u64, usize);

/// No trees are wider.
const WIDEST: Widths = (u64::MAX, usize::MAX);

/// A number that depends on all of these and on nothing else: all ranks make the same trees.
pub(super) fn mixed(parts: [u64; 4]) -> u64 {
    // The finalizer of SplitMix64.
    parts.into_iter().fold(0, |so_far, part| {
        let mut x = (so_far ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    })
}

/// A tree whose links have no ways yet.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub root: NodeId,
    pub copies: u64,
    pub links: Vec<(NodeId, NodeId)>,
}

impl Draft {
    fn with_ways(self, links: &mut Links) -> Tree {
        let ways = self.links.iter().map(|&(from, to)| {
            let ways = super::splitting::take(links, (from, to), self.copies);
            TreeLink { from, to, ways }
        });
        let ways = ways.collect();
        Tree { root: self.root, copies: self.copies, links: ways }
    }
}

/// Equal trees become one with several copies.
fn merged(drafts: Vec<Draft>) -> Vec<Draft> {
    let mut merged: Vec<Draft> = Vec::new();
    let mut places: BTreeMap<(NodeId, Vec<(NodeId, NodeId)>), usize> = BTreeMap::new();
    for draft in drafts {
        let mut sorted = draft.links.clone();
        sorted.sort_unstable();
        match places.get(&(draft.root, sorted.clone())) {
            Some(&place) => merged[place].copies += draft.copies,
            None => {
                places.insert((draft.root, sorted), merged.len());
                merged.push(draft);
            }
        }
    }
    merged
}

/// Which of the links that are left a tree takes next.
#[derive(Clone, Copy)]
enum Order {
    /// Those nearest to the root, the widest first.
    Shortest,
    /// The widest, those nearest to the root first.
    Widest,
    /// Those from nodes with the fewest children; of equals the widest, and in later tries any, in
    /// an order that the number of the try decides.
    Narrowest(u64),
}

impl Order {
    /// So many children count as one. Links may run out if each tree is as narrow as it can be, so
    /// later tries are less so.
    fn alike(self) -> u64 {
        match self {
            Self::Narrowest(turn) => 1 + turn / NARROWEST_TRIES,
            Self::Shortest | Self::Widest => 1,
        }
    }
}

/// Trees one after the other, along links that are left.
struct OneByOne<'a> {
    gpus: &'a [NodeId],
    order: Order,
    /// By node: the links that leave it, and what is left of each.
    rooms_of: Vec<Vec<(NodeId, u64)>>,
    /// By node: the number of the last tree that has reached it.
    reached: Vec<u64>,
    number: u64,
}

impl<'a> OneByOne<'a> {
    fn new(
        nodes: usize,
        gpus: &'a [NodeId],
        rooms: &BTreeMap<(NodeId, NodeId), u64>,
        order: Order,
    ) -> Self {
        let mut rooms_of: Vec<Vec<(NodeId, u64)>> = vec![Vec::new(); nodes];
        for (&(from, to), &room) in rooms {
            rooms_of[from.index()].push((to, room));
        }
        Self { gpus, order, rooms_of, reached: vec![0; nodes], number: 0 }
    }

    /// All trees, or `None` if links run out, and where trees are not narrower than `below`: more
    /// of them are not, either.
    fn pack(mut self, roots: &Roots, trees: u64, below: Widths) -> Option<(Vec<Draft>, Widths)> {
        let (mut drafts, mut widths) = (Vec::new(), (0, 0));
        let most = roots.weights().map(|(_, weight)| weight * trees).max()?;
        for nth in 0..most {
            for (root, _) in roots.weights().filter(|(_, weight)| nth < weight * trees) {
                let (links, width) = self.tree(root)?;
                widths = match width.cmp(&widths.0) {
                    Ordering::Less => widths,
                    Ordering::Equal => (width, widths.1 + 1),
                    Ordering::Greater => (width, 1),
                };
                if widths >= below {
                    return None;
                }
                drafts.push(Draft { root, copies: 1, links });
            }
        }
        Some((drafts, widths))
    }

    /// A tree's links, and the children of the node that has most of them.
    fn tree(&mut self, root: NodeId) -> Option<(Vec<(NodeId, NodeId)>, u64)> {
        self.number += 1;
        self.reached[root.index()] = self.number;
        let nodes = self.rooms_of.len() as u32;
        let mut links = Vec::with_capacity(self.gpus.len() - 1);
        let mut heap = BinaryHeap::new();
        let mut newest = Some((root, 0u32));
        let mut children = vec![0u64; self.rooms_of.len()];
        while links.len() + 1 < self.gpus.len() {
            if let Some((node, depth)) = newest.take() {
                for (place, &(to, room)) in self.rooms_of[node.index()].iter().enumerate() {
                    if room > 0 && self.reached[to.index()] != self.number {
                        let (near, width) = (u64::from(u32::MAX - depth), room);
                        let key = match self.order {
                            Order::Shortest => (near, width),
                            Order::Widest => (width, near),
                            Order::Narrowest(0) => (u64::MAX, width),
                            Order::Narrowest(turn) => {
                                (u64::MAX, mixed([turn, self.number, node.0.into(), to.0.into()]))
                            }
                        };
                        // What is equal comes in an order of its own for each root: else all would
                        // begin with the same links.
                        let turn = (to.0 + nodes - root.0) % nodes;
                        heap.push((key, Reverse(turn), Reverse(node), depth, place));
                    }
                }
            }
            let (key, turn, Reverse(from), depth, place) = heap.pop()?;
            let fewest = u64::MAX - children[from.index()] / self.order.alike();
            if matches!(self.order, Order::Narrowest(_)) && key.0 != fewest {
                // It has got children since this link was put here.
                heap.push(((fewest, key.1), turn, Reverse(from), depth, place));
                continue;
            }
            let (to, room) = &mut self.rooms_of[from.index()][place];
            if self.reached[to.index()] != self.number {
                self.reached[to.index()] = self.number;
                *room -= 1;
                children[from.index()] += 1;
                links.push((from, *to));
                newest = Some((*to, depth + 1));
            }
        }
        Some((links, children.into_iter().max().unwrap_or(0)))
    }
}

/// Trees of one root that have the same links so far.
#[derive(Clone, Debug)]
struct Group {
    draft: Draft,
    /// By GPU's place among the GPUs: how many links from the root, if it is reached.
    depths: Vec<Option<u32>>,
    members: Vec<usize>,
}

struct Exact<'a> {
    gpus: &'a [NodeId],
    is_one: bool,
    /// Room of each link, by places of its ends among the GPUs.
    rooms: BTreeMap<(usize, usize), u64>,
    groups: Vec<Group>,
    complete: Vec<Draft>,
}

impl<'a> Exact<'a> {
    fn new(
        graph: &CapacityGraph,
        roots: &Roots,
        trees: u64,
        gpus: &'a [NodeId],
        rooms: BTreeMap<(NodeId, NodeId), u64>,
    ) -> Self {
        let mut places = vec![usize::MAX; graph.len()];
        gpus.iter().enumerate().for_each(|(place, gpu)| places[gpu.index()] = place);
        let place = |node: NodeId| places[node.index()];
        let rooms = rooms.into_iter().map(|((from, to), room)| ((place(from), place(to)), room));
        let groups = roots.weights().map(|(root, weight)| {
            let mut depths = vec![None; gpus.len()];
            depths[place(root)] = Some(0);
            let draft = Draft { root, copies: weight * trees, links: Vec::new() };
            Group { draft, depths, members: vec![place(root)] }
        });
        let groups: Vec<_> = groups.collect();
        Self { gpus, is_one: groups.len() == 1, rooms: rooms.collect(), groups, complete: vec![] }
    }

    fn pack(mut self) -> Result<Vec<Draft>> {
        // The smallest first: all grow alike, and none is left with what nobody else wanted.
        while let Some(smallest) =
            (0..self.groups.len()).min_by_key(|group| self.groups[*group].members.len())
        {
            self.grow(smallest)?;
        }
        Ok(self.complete)
    }

    /// Adds a link to one group.
    fn grow(&mut self, number: usize) -> Result<()> {
        let group = &self.groups[number];
        let mut frontier: Vec<_> = self
            .rooms
            .iter()
            .filter(|(link, room)| {
                **room > 0 && group.depths[link.0].is_some() && group.depths[link.1].is_none()
            })
            .map(|(&(from, to), &room)| {
                (group.depths[from], Reverse(room.min(group.draft.copies)), from, to)
            })
            .collect();
        frontier.sort_unstable();
        let mut network = self.network(number);
        let mut best = (0, 0, 0);
        for (_, Reverse(room), from, to) in frontier {
            if room <= best.0 {
                continue;
            }
            let most = self.most(&mut network, number, from, to, room);
            if most > best.0 {
                best = (most, from, to);
                // Few trees are wanted of one root, short ones of all.
                if !self.is_one || most == group.draft.copies {
                    break;
                }
            }
        }
        let (copies, from, to) = best;
        if copies == 0 {
            let root = group.draft.root.0;
            let seen =
                format!("no link for the tree of node {root} with {} GPUs", group.members.len());
            return Err(Error::argument("links of a packing", "enough for all trees", seen));
        }
        if copies < group.draft.copies {
            let mut rest = group.clone();
            rest.draft.copies -= copies;
            self.groups.push(rest);
        }
        let group = &mut self.groups[number];
        group.draft.copies = copies;
        group.draft.links.push((self.gpus[from], self.gpus[to]));
        group.depths[to] = group.depths[from].map(|depth| depth + 1);
        group.members.push(to);
        *self.rooms.get_mut(&(from, to)).expect("a link of the frontier") -= copies;
        if group.members.len() == self.gpus.len() {
            let group = self.groups.swap_remove(number);
            self.complete.push(group.draft);
        }
        Ok(())
    }

    /// What is left of the links, and a node for each other group that reaches its members.
    fn network(&self, number: usize) -> Network {
        let mut network = Network::new(self.gpus.len() + self.groups.len());
        for (&(from, to), &room) in self.rooms.iter().filter(|(_, room)| **room > 0) {
            network.arc(from, to, room);
        }
        for (other, group) in self.groups.iter().enumerate().filter(|(other, _)| *other != number) {
            for &member in &group.members {
                network.arc(self.gpus.len() + other, member, UNBOUNDED);
            }
        }
        network
    }

    /// How many copies of the group, at most `room`, can take the link so that all other trees can
    /// still be completed.
    fn most(&self, network: &mut Network, number: usize, from: usize, to: usize, room: u64) -> u64 {
        let mark = network.mark();
        let mut others = 0;
        // A group that has reached `to` is no matter: it passes on what it gets.
        for (other, group) in self.groups.iter().enumerate() {
            if other != number && group.depths[to].is_none() {
                network.arc(from, self.gpus.len() + other, group.draft.copies);
                others += group.draft.copies;
            }
        }
        let flow = network.max_flow(from, to, others + room);
        network.rewind(mark);
        flow.saturating_sub(others)
    }
}
