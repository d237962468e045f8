//! GPUs that are alike behind switches: their trees in closed form.
//!
//! Where each GPU has the same links to the same switches, only what a GPU sends and receives in
//! all counts. Take any tree of all GPUs, and move it on by one GPU for each root: then each GPU is
//! in each place once, so it sends and receives as much as each other one, one unit less than there
//! are roots. No schedule needs less, since a GPU receives what all others have.
//!
//! The tree here is a path through all GPUs in which the distances between neighbours (1, -2, 3, -4
//! and so on) differ, with its root in the middle: so no pair of GPUs is joined in more than two of
//! the trees, one rank in each has two children, the others have one or none, and the farthest is
//! half of the GPUs away.

use crate::topology::graph::{CapacityGraph, NodeId};

/// A root, and the links from it on.
pub type Links = (u32, Vec<(u32, u32)>);

/// One tree of each GPU; `None` if GPUs are not all alike behind switches.
pub fn alike(graph: &CapacityGraph) -> Option<Vec<Links>> {
    let gpus: Vec<_> = graph.gpus().collect();
    if gpus.len() < 2 || !are_alike(graph, &gpus) {
        return None;
    }
    let count = gpus.len();
    let path = path(count);
    let middle = count / 2;
    let tree = |turn: usize| {
        let gpu = |place: usize| gpus[(path[place] + turn) % count].0;
        let down = (middle + 1..count).map(|place| (gpu(place - 1), gpu(place)));
        let up = (0..middle).rev().map(|place| (gpu(place + 1), gpu(place)));
        (gpu(middle), down.chain(up).collect())
    };
    Some((0..count).map(tree).collect())
}

/// Has each GPU the same links, in both directions, to the same switches, and no others?
fn are_alike(graph: &CapacityGraph, gpus: &[NodeId]) -> bool {
    let links_of = |gpu: NodeId| graph.arcs_from(gpu).collect::<Vec<_>>();
    let first = links_of(gpus[0]);
    let is_there_and_back = |&(switch, capacity): &(NodeId, u64)| {
        !graph.is_gpu(switch) && gpus.iter().all(|gpu| graph.capacity(switch, *gpu) == capacity)
    };
    !first.is_empty()
        && first.iter().all(is_there_and_back)
        && gpus.iter().all(|gpu| links_of(*gpu) == first)
        && graph.arcs().all(|(from, to, _)| graph.is_gpu(from) != graph.is_gpu(to))
}

/// 0, 1, -1, 2, -2 and so on, around all of so many.
fn path(count: usize) -> Vec<usize> {
    let step = |place: usize| match place % 2 {
        1 => place.div_ceil(2),
        _ => (count - place / 2) % count,
    };
    (0..count).map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn behind_switches(count: u32) -> CapacityGraph {
        let mut graph = CapacityGraph::new();
        let gpus: Vec<_> = (0..count).map(|gpu| graph.gpu(format!("{gpu}"))).collect();
        for (name, capacity) in [("a", 300), ("b", 100)] {
            let switch = graph.switch(name);
            gpus.iter().for_each(|gpu| graph.link(*gpu, switch, capacity).expect("a link"));
        }
        graph
    }

    /// If this fails, trees behind switches leave GPUs out, or load one more than another.
    #[test]
    fn trees_of_gpus_that_are_alike_are_optimal() {
        for count in 2..=16 {
            let trees = alike(&behind_switches(count)).expect("alike");
            assert_eq!(trees.len(), count as usize);
            let (mut sent, mut pairs) = (BTreeMap::new(), BTreeMap::new());
            for (root, links) in &trees {
                let mut reached = vec![*root];
                for (from, to) in links {
                    assert!(reached.contains(from) && !reached.contains(to), "{links:?}");
                    reached.push(*to);
                    *sent.entry(*from).or_insert(0) += 1;
                    *pairs.entry((from.min(to), from.max(to))).or_insert(0) += 1;
                }
                assert_eq!(reached.len(), count as usize);
            }
            assert!(sent.values().all(|links| *links == count - 1), "{sent:?}");
            assert!(pairs.values().all(|uses| *uses <= 2), "{pairs:?}");
        }
    }

    /// If this fails, trees are packed into links that are not there.
    #[test]
    fn gpus_that_differ_are_packed() {
        let two = NodeId(1);
        let mut beside = behind_switches(4);
        beside.link(NodeId(0), two, 1).expect("a link");
        assert_eq!(alike(&beside), None, "a link beside the switches");
        let mut wider = behind_switches(4);
        wider.link(two, NodeId(5), 1).expect("a link");
        assert_eq!(alike(&wider), None, "one has a wider link");
        let mut apart = CapacityGraph::new();
        (0..3).for_each(|gpu| _ = apart.gpu(format!("{gpu}")));
        assert_eq!(alike(&apart), None, "no links");
    }
}
