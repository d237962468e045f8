//! Which collective by which plan, and the plan.

use ringdove::plan::{
    Algorithm, Choice, Collective, CollectiveRequest, SlotShape, Verified, build, verify,
};
use ringdove_kernels::element::ReduceOp;
use ringdove_kernels::op::ll_bytes;
use std::fmt;
use std::sync::Arc;

use super::mesh;
use crate::engine::Manner;

/// Which plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The collective; its root, if it has one.
    pub collective: Collective,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Ranks.
    pub ranks: u32,
    /// Ranks of a node; all of them where plans do not ask.
    pub node_ranks: u32,
    /// Messages of a chunk.
    pub slices: u32,
    /// Bytes of a message.
    pub slice_bytes: u32,
    /// Slots of a lane.
    pub slots: u32,
    /// Messages go over lanes of stores, if low-latency ones by stores too.
    pub by_stores: bool,
    /// Input and output share memory.
    pub in_place: bool,
    /// How engines work.
    pub manner: Manner,
    /// Of plans along packed trees: the seed of the machine whose links they fill.
    pub mesh: u64,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            collective: Collective::Barrier,
            algorithm: Algorithm::Dissemination,
            ranks: 2,
            node_ranks: 2,
            slices: 1,
            slice_bytes: 16,
            slots: 2,
            by_stores: false,
            in_place: false,
            manner: Manner::default(),
            mesh: 0,
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { collective, algorithm, ranks, node_ranks, slices, slice_bytes, .. } = self;
        write!(f, ", {}", collective.name())?;
        if let Some(root) = collective.root() {
            write!(f, " of root {root}")?;
        }
        let way = if self.by_stores { "stores" } else { "engines" };
        let Manner { batch, coalesce_bytes, room, splits, .. } = self.manner;
        write!(
            f,
            " by {}, {ranks} ranks, {node_ranks} to a node, by {way}, chunks of {slices} messages \
             of {slice_bytes} bytes, {} slots, batches of {batch}, merged to {coalesce_bytes} \
             bytes, room for {room} transfers",
            algorithm.name(),
            self.slots
        )?;
        if *algorithm == Algorithm::Packed {
            write!(f, ", trees of machine {}", self.mesh)?;
        }
        for (is, what) in [(self.in_place, "in place"), (splits, "piece by piece")] {
            if is {
                write!(f, ", {what}")?;
            }
        }
        Ok(())
    }
}

/// Ways to carry out a collective. Those of an all-reduce first, which has the most.
const WAYS: [(Collective, &[Algorithm]); 9] = [
    (
        Collective::AllReduce,
        &[
            Algorithm::RingStaged,
            Algorithm::RingDirect,
            Algorithm::RingHybrid,
            Algorithm::AllPairs,
            Algorithm::Hierarchical,
            Algorithm::HierarchicalHybrid,
            Algorithm::Doubling,
            Algorithm::Halving,
            Algorithm::TwoShot,
            Algorithm::TwoShotNodes,
            Algorithm::InRankOrder,
            Algorithm::Symmetric,
        ],
    ),
    (
        Collective::AllGather,
        &[
            Algorithm::RingStaged,
            Algorithm::RingDirect,
            Algorithm::AllPairs,
            Algorithm::Exchange,
            Algorithm::ExchangeDirect,
            Algorithm::Bruck,
        ],
    ),
    (
        Collective::ReduceScatter,
        &[
            Algorithm::RingStaged,
            Algorithm::AllPairs,
            Algorithm::Exchange,
            Algorithm::Bruck,
            Algorithm::InRankOrder,
        ],
    ),
    (
        Collective::Broadcast { root: 0 },
        &[
            Algorithm::AllPairs,
            Algorithm::Chain,
            Algorithm::ChainDirect,
            Algorithm::Star,
            Algorithm::Tree,
        ],
    ),
    (
        Collective::Reduce { root: 0 },
        &[
            Algorithm::AllPairs,
            Algorithm::Chain,
            Algorithm::Star,
            Algorithm::Tree,
            Algorithm::InRankOrder,
        ],
    ),
    (
        Collective::AllToAll,
        &[Algorithm::AllPairs, Algorithm::Exchange, Algorithm::ExchangeDirect, Algorithm::Bruck],
    ),
    (Collective::Gather { root: 0 }, &[Algorithm::AllPairs, Algorithm::Star, Algorithm::Tree]),
    (Collective::Scatter { root: 0 }, &[Algorithm::AllPairs, Algorithm::Star, Algorithm::Tree]),
    (Collective::Barrier, &[Algorithm::AllPairs, Algorithm::Dissemination]),
];

/// Collectives that packed trees carry.
const OF_TREES: [Collective; 5] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast { root: 0 },
    Collective::Reduce { root: 0 },
];

/// The same collective with this root, if it has one.
fn rooted(collective: Collective, root: u32) -> Collective {
    match collective {
        Collective::Broadcast { .. } => Collective::Broadcast { root },
        Collective::Reduce { .. } => Collective::Reduce { root },
        Collective::Gather { .. } => Collective::Gather { root },
        Collective::Scatter { .. } => Collective::Scatter { root },
        other => other,
    }
}

/// Does it move registered buffers?
fn is_direct(algorithm: Algorithm) -> bool {
    matches!(
        algorithm,
        Algorithm::RingDirect
            | Algorithm::RingHybrid
            | Algorithm::HierarchicalHybrid
            | Algorithm::ChainDirect
            | Algorithm::ExchangeDirect
            | Algorithm::Symmetric
            | Algorithm::RingSymmetric
    )
}

impl Shape {
    /// All collectives with each of their algorithms.
    pub fn ways() -> impl Iterator<Item = (Collective, Algorithm)> {
        Self::drawn().chain([(Collective::AllReduce, Algorithm::RingSymmetric)])
    }

    /// The same without symmetric rings, which are drawn along with what is symmetric otherwise.
    fn drawn() -> impl Iterator<Item = (Collective, Algorithm)> {
        WAYS.into_iter().flat_map(|(collective, algorithms)| {
            algorithms.iter().map(move |algorithm| (collective, *algorithm))
        })
    }

    /// Draws one.
    pub fn draw(random: &mut fastrand::Rng) -> Self {
        let ways: Vec<_> = Self::drawn().collect();
        let (collective, algorithm) = ways[random.usize(..ways.len())];
        Self::draw_of(collective, algorithm, random)
    }

    /// Draws the rest.
    pub fn draw_of(
        collective: Collective,
        algorithm: Algorithm,
        random: &mut fastrand::Rng,
    ) -> Self {
        let ranks = match algorithm {
            Algorithm::Hierarchical | Algorithm::HierarchicalHybrid | Algorithm::TwoShotNodes => 4,
            Algorithm::Halving => [2, 4][random.usize(..2)],
            _ => random.u32(2..=4),
        };
        let node_ranks = match algorithm {
            Algorithm::Hierarchical | Algorithm::HierarchicalHybrid | Algorithm::TwoShotNodes => 2,
            _ => ranks,
        };
        let by_stores = match algorithm {
            Algorithm::TwoShotNodes | Algorithm::Symmetric | Algorithm::RingSymmetric => true,
            Algorithm::AllPairs | Algorithm::TwoShot | Algorithm::Halving => random.bool(),
            _ => false,
        };
        let collective = rooted(collective, random.u32(..ranks));
        let may_be_in_place = match algorithm {
            Algorithm::RingDirect => collective != Collective::AllReduce,
            Algorithm::ExchangeDirect => collective != Collective::AllToAll,
            _ => !matches!(collective, Collective::AllToAll | Collective::Barrier),
        };
        let slots = 1 << random.u32(1..=2);
        let slices = match algorithm {
            Algorithm::AllPairs
            | Algorithm::Halving
            | Algorithm::TwoShot
            | Algorithm::TwoShotNodes
            | Algorithm::Symmetric
            | Algorithm::RingSymmetric
            | Algorithm::InRankOrder => 1,
            _ => random.u32(1..=slots / 2),
        };
        let manner = Manner::draw(random, algorithm == Algorithm::AllPairs);
        let slice_bytes = 16 * random.u32(1..=3);
        let in_place = may_be_in_place && random.u32(0..4) == 0;
        // Drawn last, so that seeds of other shapes stay what they are.
        let is_ring = algorithm == Algorithm::Symmetric && random.bool();
        let algorithm = if is_ring { Algorithm::RingSymmetric } else { algorithm };
        Self {
            collective,
            algorithm,
            ranks,
            node_ranks,
            slices,
            slice_bytes,
            slots,
            by_stores,
            in_place,
            manner,
            mesh: 0,
        }
    }

    /// Draws one along packed trees, and the machine.
    pub fn draw_packed(random: &mut fastrand::Rng) -> Self {
        let ranks = random.u32(3..=5);
        let collective = OF_TREES[random.usize(..OF_TREES.len())];
        Self {
            collective: rooted(collective, random.u32(..ranks)),
            algorithm: Algorithm::Packed,
            ranks,
            node_ranks: ranks,
            slices: random.u32(1..=4),
            slice_bytes: 16 * random.u32(1..=3),
            slots: 2,
            by_stores: true,
            in_place: random.u32(0..4) == 0,
            manner: Manner::draw(random, false),
            mesh: random.u64(..),
        }
    }

    /// Blocks of a launch, at most `wanted`: as `plan::select` bounds them.
    fn blocks(&self, wanted: u32) -> u32 {
        let ranks = self.ranks;
        match (self.algorithm, self.collective) {
            (Algorithm::Symmetric | Algorithm::RingSymmetric, _) => wanted,
            (Algorithm::TwoShot | Algorithm::Halving, _) if self.by_stores => wanted,
            (Algorithm::Exchange, Collective::ReduceScatter)
            | (Algorithm::ExchangeDirect, Collective::AllGather)
            | (Algorithm::Star, Collective::Reduce { .. }) => 1,
            (Algorithm::Exchange | Algorithm::ExchangeDirect, _) => wanted.min(ranks / 2),
            (Algorithm::Star, _) => wanted.min(ranks - 1),
            (
                Algorithm::RingStaged
                | Algorithm::RingDirect
                | Algorithm::RingHybrid
                | Algorithm::Chain
                | Algorithm::ChainDirect
                | Algorithm::Hierarchical
                | Algorithm::HierarchicalHybrid
                | Algorithm::TwoShotNodes,
                _,
            ) => wanted,
            _ => 1,
        }
    }

    /// What a call of so many bytes asks for.
    pub(super) fn request(&self, bytes: u32) -> CollectiveRequest {
        let bytes = if self.collective == Collective::Barrier { 0 } else { bytes };
        CollectiveRequest {
            collective: self.collective,
            rank_count: self.ranks,
            bytes: bytes.into(),
            element_bytes: 4,
            reduce_op: ReduceOp::Sum,
            in_place: self.in_place,
            registered: is_direct(self.algorithm),
        }
    }

    /// The plan of such a call, proved.
    pub(super) fn plan(&self, bytes: u32, blocks: u32, threads: u32) -> Result<Verified, String> {
        let request = self.request(bytes);
        // Where messages hold whole parts, all of them fit one.
        let whole = (request.bytes as u32 * self.ranks).next_multiple_of(16).max(16);
        let is_whole = match (self.algorithm, self.collective) {
            (Algorithm::Bruck, _) => true,
            (Algorithm::Tree, collective) => {
                matches!(collective, Collective::Gather { .. } | Collective::Scatter { .. })
            }
            _ => false,
        };
        let slot_bytes = match self.algorithm {
            Algorithm::AllPairs => ll_bytes(self.slice_bytes.into()) as u32,
            Algorithm::Halving => self.slice_bytes * (self.ranks / 2),
            _ if is_whole => whole,
            _ => self.slice_bytes,
        };
        let count = if self.algorithm == Algorithm::AllPairs { 2 } else { self.slots };
        let forest = (self.algorithm == Algorithm::Packed)
            .then(|| mesh::forest(self.mesh, self.ranks, self.collective.root()))
            .transpose()?;
        let blocks = match &forest {
            Some(forest) => forest.trees().len() as u32,
            None => self.blocks(blocks),
        };
        let mut choice = Choice {
            request,
            algorithm: self.algorithm,
            blocks,
            slices: self.slices,
            slice_bytes: 16,
            rounds: 0,
            thread_count: threads,
            slots: SlotShape { bytes: slot_bytes, count },
            stores: self.by_stores && self.algorithm != Algorithm::AllPairs,
            ranks_per_node: self.node_ranks,
            group_ranks: self.ranks,
            order: None,
            forest: forest.map(Arc::new),
        };
        choice.set_slice_bytes(if is_whole { slot_bytes } else { self.slice_bytes });
        verify(build(&choice), &request.promise())
            .map_err(|error| format!("the plan is refused: {error}"))
    }
}
