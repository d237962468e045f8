//! Trees are made narrower without another use of links.
//!
//! A GPU sends to its children in turn, so a tree waits for the GPU that has most of them. Packings
//! that leave no room (those of a switch that joins all GPUs, say) are hard to find with narrow
//! trees, and easy with stars. So two trees swap the parents of a GPU: each link is then used as
//! often as before. A GPU may also get a parent whose link to it has room.

use super::trees::{Draft, mixed};
use crate::topology::graph::NodeId;
use std::collections::BTreeMap;

/// Attempts for each GPU of each tree.
const ATTEMPTS: u64 = 400;
/// More work than this is left out: trees times GPUs.
const PLACES_MAX: usize = 1 << 13;

/// A tree by places of GPUs.
struct Places {
    parents: Vec<Option<usize>>,
    children: Vec<u32>,
}

impl Places {
    fn of(draft: &Draft, place: impl Fn(NodeId) -> usize, count: usize) -> Self {
        let (mut parents, mut children) = (vec![None; count], vec![0; count]);
        for &(from, to) in &draft.links {
            parents[place(to)] = Some(place(from));
            children[place(from)] += 1;
        }
        Self { parents, children }
    }

    /// Is `below` the GPU `above`, or does it hear from it?
    fn hears(&self, below: usize, above: usize) -> bool {
        std::iter::successors(Some(below), |at| self.parents[*at]).any(|at| at == above)
    }

    /// How much wider the tree becomes if a child moves from one GPU to another: the change of the
    /// sum of squares.
    fn widened(&self, from: usize, to: usize) -> i64 {
        2 * (i64::from(self.children[to]) - i64::from(self.children[from]) + 1)
    }

    fn give(&mut self, child: usize, from: usize, to: usize) {
        self.parents[child] = Some(to);
        self.children[from] -= 1;
        self.children[to] += 1;
    }

    /// The links, each of which begins at the root or where one before it ends.
    fn links(&self, gpus: &[NodeId]) -> Vec<(NodeId, NodeId)> {
        let depth = |at| std::iter::successors(Some(at), |at| self.parents[*at]).count();
        let with_parent = self.parents.iter().enumerate();
        let mut links: Vec<_> =
            with_parent.filter_map(|(to, from)| Some((depth(to), (*from)?, to))).collect();
        links.sort_unstable();
        links.into_iter().map(|(_, from, to)| (gpus[from], gpus[to])).collect()
    }
}

/// Makes `drafts`, each a single tree, narrower; together they use at most the rooms of links.
pub(super) fn narrow(
    drafts: &mut [Draft],
    gpus: &[NodeId],
    rooms: &BTreeMap<(NodeId, NodeId), u64>,
) {
    let count = gpus.len();
    if drafts.len() * count > PLACES_MAX || drafts.iter().any(|draft| draft.copies != 1) {
        return;
    }
    let places: BTreeMap<NodeId, usize> = gpus.iter().copied().zip(0..).collect();
    let place = |node: NodeId| places[&node];
    let mut room = vec![0u64; count * count];
    for (&(from, to), units) in rooms {
        room[place(from) * count + place(to)] = *units;
    }
    for (from, to) in drafts.iter().flat_map(|draft| &draft.links) {
        room[place(*from) * count + place(*to)] -= 1;
    }
    let mut trees: Vec<_> = drafts.iter().map(|draft| Places::of(draft, place, count)).collect();
    // All ranks make the same trees, so chance is a function of the attempt.
    for attempt in 0..ATTEMPTS * (trees.len() * count) as u64 {
        let chance = mixed([attempt, 0, 0, 0]);
        let pick = |shift: u32, of: usize| (chance >> shift) as usize % of;
        let (one, child) = (pick(0, trees.len()), pick(16, count));
        let Some(from) = trees[one].parents[child] else { continue };
        // A GPU with one child is as narrow as can be.
        if trees[one].children[from] < 2 && !attempt.is_multiple_of(4) {
            continue;
        }
        let to = pick(32, count);
        if to != from && to != child && room[to * count + child] > 0 {
            let tree = &mut trees[one];
            if tree.widened(from, to) <= 0 && !tree.hears(to, child) {
                tree.give(child, from, to);
                room[from * count + child] += 1;
                room[to * count + child] -= 1;
                continue;
            }
        }
        let other = pick(48, trees.len());
        let Some(to) = trees[other].parents[child].filter(|to| *to != from) else { continue };
        let widened = trees[one].widened(from, to) + trees[other].widened(to, from);
        if widened <= 0 && !trees[one].hears(to, child) && !trees[other].hears(from, child) {
            trees[one].give(child, from, to);
            trees[other].give(child, to, from);
        }
    }
    for (draft, tree) in drafts.iter_mut().zip(&trees) {
        draft.links = tree.links(gpus);
    }
}
