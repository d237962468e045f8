//! Trees packed into the links of a machine that is drawn: no two GPUs have the same ones.

use ringdove::plan::Forest;
use ringdove::topology::graph::{CapacityGraph, NodeId};
use ringdove::topology::packing::{Roots, pack};

/// The most trees of a root: each is a block.
const TREES_MAX: u64 = 2;

/// Trees from `root`, or from all ranks, of the machine of this seed. Its GPUs stand in a line of
/// links of several capacities, and a part of the other pairs is joined too: so ranks differ in how
/// many neighbours they have, and some pairs have no link.
pub(super) fn forest(seed: u64, ranks: u32, root: Option<u32>) -> Result<Forest, String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut graph = CapacityGraph::new();
    let gpus: Vec<NodeId> = (0..ranks).map(|rank| graph.gpu(format!("GPU {rank}"))).collect();
    let mut line: Vec<usize> = (0..gpus.len()).collect();
    random.shuffle(&mut line);
    let place = |rank: usize| line.iter().position(|it| *it == rank).unwrap_or(0);
    for one in 0..gpus.len() {
        for other in one + 1..gpus.len() {
            let are_next = place(one).abs_diff(place(other)) == 1;
            if !are_next && random.u32(0..3) > 0 {
                continue;
            }
            let added = graph.link(gpus[one], gpus[other], random.u64(1..=3));
            added.map_err(|error| error.to_string())?;
        }
    }
    let roots = match root {
        Some(root) => Roots::one(&graph, NodeId(root)),
        None => Roots::all(&graph),
    };
    let trees = random.u64(1..=TREES_MAX);
    let packing = pack(&graph, &roots, Some(trees)).map_err(|error| error.to_string())?;
    let trees = packing.trees.iter().flat_map(|tree| {
        let links: Vec<_> = tree.links.iter().map(|link| (link.from.0, link.to.0)).collect();
        (0..tree.copies).map(move |_| (tree.root.0, links.clone()))
    });
    Forest::new(ranks, &trees.collect::<Vec<_>>()).map_err(|error| error.to_string())
}
