//! The trees that are packed into the links of all ranks' GPUs. They are made when a collective
//! first asks for them, from what all ranks have told each other: so all have the same.

use super::geometry::{Geometry, Nodes};
use super::sync::lock;
use crate::cost::{Model, Profile};
use crate::error::{Error, Result};
use crate::plan::{Forest, TREES_PER_LANE};
use crate::settings::Algorithms;
use crate::topology::graph::{CapacityGraph, NodeId};
use crate::topology::packing::{Roots, Shape, alike, pack_in_shape, rate};
use crate::topology::ranks::{RankGpu, capacities};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

/// Forests of one communicator.
#[derive(Debug, Default)]
pub(super) struct Forests {
    /// By rank; `None` where a rank does not know its GPU.
    gpus: OnceLock<Vec<Option<RankGpu>>>,
    /// By root, `None` for all ranks; those that were asked for.
    made: Mutex<BTreeMap<Option<u32>, Option<Arc<Forest>>>>,
    /// What plans cost on these GPUs; `None` where that is not known.
    model: OnceLock<Option<Model>>,
    /// The constants of the model, where a setting names them.
    profile: OnceLock<Profile>,
}

impl Forests {
    /// Sets the GPUs of all ranks.
    pub fn set_gpus(&self, gpus: Vec<Option<RankGpu>>) {
        // All ranks of the process say the same.
        let _ = self.gpus.set(gpus);
    }

    /// Sets the constants of the model; none are those for the first GPU.
    pub fn set_profile(&self, profile: Option<&Profile>) {
        if let Some(profile) = profile {
            let _ = self.profile.set(profile.clone());
        }
    }

    /// Do ranks of a node share a GPU, as far as that is known?
    pub fn share_gpus(&self, geometry: &Geometry) -> bool {
        self.known().is_some_and(|gpus| share_gpus(&gpus, ranks_of_node(geometry)))
    }

    /// The GPUs of all ranks, where each is known.
    fn known(&self) -> Option<Vec<RankGpu>> {
        self.gpus.get()?.iter().cloned().collect()
    }

    /// The trees of one root, or of all ranks. `None` where there are none, which is said once.
    pub fn get(
        &self,
        geometry: &Geometry,
        root: Option<u32>,
        is_reached: impl Fn(u32, u32) -> bool,
    ) -> Option<Arc<Forest>> {
        // Held meanwhile: the other ranks of the process want the same trees.
        let mut made = lock(&self.made);
        let make = || match self.make(geometry, root, is_reached) {
            Ok(forest) => Some(Arc::new(forest)),
            Err(error) => {
                match geometry.algorithm {
                    Algorithms::Trees => {
                        let what = "no packed trees; plans are selected without them";
                        tracing::warn!(%error, ?root, "{what}");
                    }
                    _ => tracing::debug!(%error, ?root, "no packed trees"),
                }
                None
            }
        };
        made.entry(root).or_insert_with(make).clone()
    }

    /// What plans cost on the ranks' GPUs, by the profile of the settings, or by that for the first
    /// one; `None` where these are not known. All ranks say the same.
    pub fn model(&self, geometry: &Geometry) -> Option<&Model> {
        let make = || {
            let gpus = self.known()?;
            Model::of(&gpus, ranks_of_node(geometry), self.profile.get().cloned()).ok()
        };
        self.model.get_or_init(make).as_ref()
    }

    fn make(
        &self,
        geometry: &Geometry,
        root: Option<u32>,
        is_reached: impl Fn(u32, u32) -> bool,
    ) -> Result<Forest> {
        let Some(gpus) = self.known() else {
            let expected = "GPUs whose links NVML tells, and no device engines";
            return Err(Error::argument("ranks of packed trees", expected, "others"));
        };
        let per_node = ranks_of_node(geometry);
        // Blocks of ranks that share a GPU are counted without trees, see `blocks_max`.
        if geometry.algorithm != Algorithms::Trees && share_gpus(&gpus, per_node) {
            return Err(Error::argument("ranks of packed trees", "a GPU for each", "shared ones"));
        }
        let graph = capacities(&gpus, per_node)?;
        let forest = pack_forest(&graph, root, geometry.store_blocks)?;
        let links = || forest.trees().iter().flat_map(|tree| tree.links());
        let is_missing =
            |&(from, to): &(u32, u32)| !geometry.are_apart(from, to) && !is_reached(from, to);
        let missing = links().find(is_missing);
        match missing {
            None => Ok(forest),
            Some((from, to)) => {
                let seen = format!("rank {from} and rank {to}");
                Err(Error::argument("links of trees", "ranks that reach each other", seen))
            }
        }
    }
}

/// Have two ranks of a node one GPU?
fn share_gpus(gpus: &[RankGpu], per_node: u32) -> bool {
    let is_twice = |node: &[RankGpu]| {
        let addresses: std::collections::BTreeSet<_> = node.iter().map(|gpu| gpu.address).collect();
        addresses.len() < node.len()
    };
    gpus.chunks((per_node as usize).max(1)).any(is_twice)
}

/// Ranks of each node; 0 where they differ.
fn ranks_of_node(geometry: &Geometry) -> u32 {
    match geometry.nodes {
        Nodes::Even { ranks } => ranks,
        Nodes::One => geometry.rank_count,
        Nodes::Uneven => 0,
    }
}

/// Trees of rank `root`, or of all ranks, that carry as much as trees can between the GPUs of
/// `graph`, whose numbers are those of ranks, with so many lanes between each two: up to three
/// times as many trees, if no two ranks have a link in more of these than there are lanes.
///
/// # Errors
/// As [`pack_in_shape`]; [`Error::Argument`] where each root would have less than one tree.
pub fn pack_forest(graph: &CapacityGraph, root: Option<u32>, lanes: u32) -> Result<Forest> {
    let rank_count = graph.gpus().count() as u32;
    let closed = root.is_none().then(|| alike(graph)).flatten();
    // No two ranks have a link in more than two of those.
    if let Some(trees) = closed.filter(|_| lanes >= 2 && rank_count <= lanes * TREES_PER_LANE) {
        return forest_of(rank_count, &trees);
    }
    let many = pack_trees(graph, root, lanes.saturating_mul(TREES_PER_LANE))?;
    // Of a tree, no two ranks have two links.
    if many.uses_max(true) <= lanes { Ok(many) } else { pack_trees(graph, root, lanes) }
}

/// The same, of up to so many trees.
fn pack_trees(graph: &CapacityGraph, root: Option<u32>, trees_max: u32) -> Result<Forest> {
    let rank_count = graph.gpus().count() as u32;
    let (roots, count) = match root {
        Some(root) if root < rank_count => (Roots::one(graph, NodeId(root)), 1),
        Some(root) => {
            return Err(Error::argument("root", format!("less than {rank_count}"), root));
        }
        None => (Roots::all(graph), rank_count),
    };
    let per_root = trees_max.checked_div(count).unwrap_or(0);
    if per_root == 0 {
        let expected = format!("at least {count}, one for each root");
        return Err(Error::argument("trees", expected, trees_max));
    }
    let trees = match rate(graph, &roots, None)? {
        (trees, _) if trees <= u64::from(per_root) => trees,
        _ => best(graph, &roots, per_root)?,
    };
    // Narrow trees take many tries, so only these are.
    let packing = pack_in_shape(graph, &roots, Some(trees), Shape::Narrow)?;
    packing.check(graph, &roots)?;
    let mut trees = Vec::new();
    for tree in &packing.trees {
        let links: Vec<_> = tree.links.iter().map(|link| (link.from.0, link.to.0)).collect();
        trees.extend((0..tree.copies).map(|_| (tree.root.0, links.clone())));
    }
    forest_of(rank_count, &trees)
}

fn forest_of(rank_count: u32, trees: &[(u32, Vec<(u32, u32)>)]) -> Result<Forest> {
    Forest::new(rank_count, trees)
        .map_err(|error| Error::argument("packed trees", "trees that span all ranks", error))
}

/// Of up to so many trees of each root, how many are the fastest; of equals, the fewest.
fn best(graph: &CapacityGraph, roots: &Roots, per_root: u32) -> Result<u64> {
    let mut best = rate(graph, roots, Some(1))?;
    for trees in 2..=u64::from(per_root) {
        let next = rate(graph, roots, Some(trees))?;
        if next.1 > best.1 {
            best = next;
        }
    }
    Ok(best.0)
}
