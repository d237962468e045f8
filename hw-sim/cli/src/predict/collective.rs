//! Plans of the library as programs of the model.

use super::arguments::{AllReduceArguments, PATTERNS, Size};
use super::{Half, PredictError, Row, Scene};
use hwsim_timing::{Engine, Outcome, Port, Programs, RankProgram, Setup, simulate};
use ringdove::communicator::pack_forest;
use ringdove::cost::{Means, Moved, TREES_BYTES_MIN, largest_of_class};
use ringdove::plan::{
    Choice, Collective, CollectiveRequest, Draft, Forest, LaneEnd, LaneKind, Limits, Pattern,
    PlanError, RingOrder, Side, candidates, select, select_packed,
};
use ringdove::topology::graph::NodeId;
use ringdove::{ReduceOp, Settings, Stores};
use std::sync::Arc;

/// A draft, as the model reads it.
pub(super) struct Drafted<'a> {
    pub draft: &'a Draft,
    /// LL lanes on a node are lanes of stores.
    pub stores: bool,
    /// Ranks of each node.
    pub per_node: u32,
}

impl Programs for Drafted<'_> {
    fn rank_count(&self) -> u32 {
        self.draft.rank_count()
    }

    fn program(&self, rank: u32) -> RankProgram {
        let (encoded, table) = self.draft.encoded(rank);
        let ports = table.iter().map(|end| port(end, self.stores, self.per_node)).collect();
        RankProgram { encoded, ports }
    }
}

/// A lane's end as the model has it; with `stores`, LL lanes on a node of so many ranks are lanes
/// of stores.
pub(super) fn port(end: &LaneEnd, stores: bool, per_node: u32) -> Port {
    let (from, to) = (end.lane.from, end.lane.to);
    let index = 2 * u32::from(end.lane.index) + u32::from(end.lane.kind == LaneKind::Direct);
    let stores = match end.lane.kind {
        LaneKind::Stores => true,
        LaneKind::LowLatency => stores && from / per_node == to / per_node,
        LaneKind::Slots | LaneKind::Direct | LaneKind::Rail | LaneKind::User => false,
    };
    let lane = hwsim_timing::Lane { from, to, index, stores };
    Port { lane, sends: end.side == Side::Send }
}

/// One size of an all-reduce.
pub(super) struct Job<'a> {
    pub scene: &'a Scene,
    pub arguments: &'a AllReduceArguments,
    pub ranks: u32,
    pub bytes: u64,
    /// The trees that the flags ask for.
    pub forest: Option<Arc<Forest>>,
}

/// The trees that the flags ask for, packed into the NVLinks of the ranks' GPUs.
pub(super) fn forest(
    scene: &Scene,
    arguments: &AllReduceArguments,
    ranks: u32,
) -> Result<Option<Arc<Forest>>, PredictError> {
    if !matches!(arguments.algorithm.0, Some(Pattern::Trees)) {
        return Ok(None);
    }
    let refused = |seen: String| PredictError::Flag {
        flag: "--algorithm",
        expected: "for trees, one node whose NVLinks join all ranks".into(),
        seen,
    };
    if ranks as usize > scene.machine.gpus_per_node() {
        return Err(refused(format!("{ranks} ranks on several nodes")));
    }
    let gpus: Vec<NodeId> = (0..ranks).map(NodeId).collect();
    let blocks = arguments.blocks.unwrap_or(Settings::default().store_blocks);
    let graph = scene.nvlinks.allocation(&gpus).map_err(|error| refused(error.to_string()))?;
    let forest = pack_forest(&graph, None, blocks).map_err(|error| refused(error.to_string()))?;
    Ok(Some(Arc::new(forest)))
}

/// Beyond this many ranks, `auto` tries one candidate only.
const TRIED_RANKS_MAX: u32 = 64;
/// Blocks that `auto` tries.
const BLOCKS_TRIED: [u32; 4] = [1, 4, 16, 32];

/// A plan to try: its pattern, and blocks at most.
#[derive(Clone, Copy)]
struct Candidate {
    pattern: Pattern,
    blocks: u32,
}

impl Candidate {
    fn name(self) -> String {
        let name = PATTERNS.iter().find(|(_, it)| *it == self.pattern).expect("listed").0;
        match self.pattern {
            // The library chooses the blocks of its own.
            Pattern::Selected => name.to_owned(),
            _ => format!("{name} x{}", self.blocks),
        }
    }
}

impl Job<'_> {
    /// Out of place and in place.
    pub fn row(&self) -> Result<Row, PredictError> {
        let out_of_place = self.best(false)?;
        let differs = |&candidate: &Candidate| {
            let drafts = [false, true].map(|in_place| self.draft(candidate, in_place).ok());
            drafts[0] != drafts[1]
        };
        let in_place = match self.candidates().iter().any(differs) {
            true => Some(self.best(true)?),
            false => None,
        };
        Ok(Row { bytes: self.bytes, out_of_place, in_place })
    }

    /// The candidate that takes the least time; of equals the first.
    pub fn best(&self, in_place: bool) -> Result<Half, PredictError> {
        let mut best: Option<Half> = None;
        let mut refused = None;
        for candidate in self.candidates() {
            let draft = match self.draft(candidate, in_place) {
                Ok(draft) => draft,
                Err(error) => {
                    refused = Some(error);
                    continue;
                }
            };
            let outcome = simulate(self.setup(), &self.programs(&draft))?;
            if best.as_ref().is_none_or(|half| outcome.end < half.outcome.end) {
                let limit = outcome.limit(None, &self.scene.machine);
                best = Some(Half { plan: candidate.name(), outcome, limit });
            }
        }
        // Each of the patterns has a reason for its refusal; the last one's is as good as any.
        best.ok_or_else(|| PredictError::Plan(refused.expect("there is a candidate")))
    }

    /// The best candidate out of place again, with spans.
    pub fn traced(&self, spans_max: usize) -> Result<Outcome, PredictError> {
        let best = self.best(false)?.plan;
        let is_best = |candidate: &Candidate| candidate.name() == best;
        let candidate = self.candidates().into_iter().find(is_best);
        let draft = self.draft(candidate.expect("the best is one of them"), false)?;
        Ok(simulate(Setup { spans_max, ops: None, ..self.setup() }, &self.programs(&draft))?)
    }

    /// What the library takes: the plan that its model prefers, where that chooses, and on one node
    /// where there are packed trees and NVLink does not join each two GPUs; else the choice of its
    /// table.
    fn chosen(&self, request: &CollectiveRequest, limits: &Limits) -> Result<Choice, PlanError> {
        if self.asks_model(limits)
            && let Some(model) = self.scene.model(request.rank_count)
        {
            let largest = largest_of_class(request);
            let asks = largest.bytes >= TREES_BYTES_MIN;
            let forest = asks.then(|| self.scene.forest(self.ranks)).flatten();
            let means = Means { limits: *limits, forest: forest.as_ref() };
            let moved = Moved { by_device: false, stores: limits.stores };
            return means.plan(request, model.way(request, &means, moved)?);
        }
        let asks = !self.arguments.table
            && self.arguments.common.engine.0 == Engine::Proxy
            && self.arguments.stores()
            && !(limits.nvlink || limits.reproducible)
            && limits.ranks_per_node == 0
            && (2..=8).contains(&request.rank_count)
            && request.bytes >= TREES_BYTES_MIN;
        let packed = || {
            let forest = self.scene.forest(request.rank_count)?;
            let store_blocks = Settings::default().store_blocks;
            let limits = Limits { store_blocks, stores: true, ..*limits };
            select_packed(request, &limits, &forest).ok()
        };
        let Some(packed) = asks.then(packed).flatten() else { return select(request, limits) };
        let mut all = candidates(request, limits)?;
        all.push(packed);
        let moved = Moved { by_device: false, stores: limits.stores };
        let model = self.scene.model(request.rank_count);
        let nth = model.map_or(0, |model| model.choose(&all, moved));
        Ok(all.swap_remove(nth))
    }

    /// Does the cost model choose each all-reduce?
    fn asks_model(&self, limits: &Limits) -> bool {
        let is_one_node = self.ranks <= self.scene.machine.gpus_per_node() as u32;
        !self.arguments.table
            && self.arguments.common.engine.0 == Engine::Proxy
            && self.arguments.stores.0 == Stores::Auto
            && is_one_node
            && !limits.reproducible
            && (2..=8).contains(&self.ranks)
    }

    /// The order in which a communicator's rings pass so many ranks of a node.
    fn ring_order(&self, ranks: u32) -> Option<RingOrder> {
        let over_nvlink = self.arguments.common.engine.0 != Engine::Device;
        let fits = !self.arguments.reproducible && ranks >= 4;
        fits.then(|| self.scene.ring_order(ranks, over_nvlink)).flatten()
    }

    fn programs<'b>(&self, draft: &'b Draft) -> Drafted<'b> {
        let per_node = self.scene.machine.gpus_per_node() as u32;
        Drafted { draft, stores: self.arguments.stores(), per_node }
    }

    fn setup(&self) -> Setup<'_> {
        let (folds, ops) = (!self.arguments.every_rank, Some(&self.scene.budget));
        Setup { folds, ops, ..self.scene.setup(&self.arguments.common) }
    }

    fn candidates(&self) -> Vec<Candidate> {
        let blocks = match self.arguments.blocks {
            Some(blocks) => vec![blocks],
            None if self.ranks > TRIED_RANKS_MAX => vec![4],
            None => BLOCKS_TRIED.to_vec(),
        };
        let patterns = match self.arguments.algorithm.0 {
            Some(pattern) => vec![pattern],
            None if self.ranks > TRIED_RANKS_MAX && self.ranks.is_power_of_two() => {
                vec![Pattern::Halving]
            }
            None if self.ranks > TRIED_RANKS_MAX => vec![Pattern::Selected],
            None => vec![Pattern::Selected, Pattern::TwoShot, Pattern::Halving],
        };
        let mut candidates = Vec::new();
        for pattern in patterns {
            match (pattern, self.arguments.blocks) {
                (Pattern::Trees, None) => {
                    candidates
                        .push(Candidate { pattern, blocks: Settings::default().store_blocks });
                }
                (Pattern::Selected, None) => {
                    candidates.push(Candidate { pattern, blocks: Settings::default().blocks_max });
                }
                _ => candidates.extend(blocks.iter().map(|&blocks| Candidate { pattern, blocks })),
            }
        }
        candidates
    }

    fn draft(&self, candidate: Candidate, in_place: bool) -> Result<Draft, PlanError> {
        let (arguments, library) = (self.arguments, Settings::default());
        let request = CollectiveRequest {
            collective: Collective::AllReduce,
            rank_count: self.ranks,
            bytes: self.bytes,
            element_bytes: if self.bytes.is_multiple_of(4) { 4 } else { 1 },
            reduce_op: ReduceOp::Sum,
            in_place,
            // Stores reach a peer's slots; they have no use for registered buffers.
            registered: arguments.registered && arguments.common.engine.0 != Engine::Stores,
        };
        let slot_bytes = match candidate.pattern {
            Pattern::Selected => library.slot_bytes,
            // Large worlds cut data into more pieces; larger slots keep their number down.
            _ if self.ranks > TRIED_RANKS_MAX => 4 << 20,
            _ => 512 << 10,
        };
        let bytes =
            |size: Option<Size>, default| size.map_or(default, |it| it.0.min(1 << 31) as u32);
        let per_node = self.scene.machine.gpus_per_node() as u32;
        let is_one_node = self.ranks <= per_node;
        let is_even = self.ranks.is_multiple_of(per_node);
        let nvlink = self.scene.is_joined(self.ranks.min(per_node));
        let slot_bytes = bytes(arguments.slot_bytes, slot_bytes);
        let slot_count = arguments.slots.unwrap_or(library.slot_count);
        let limits = Limits {
            // As the communicator has it: between nodes, LL words stay together from one device
            // engine to another, and over adapters where a setting says so (R13).
            low_latency_bytes: match is_one_node || is_even && arguments.sends_words_apart() {
                true => bytes(arguments.low_latency_bytes, library.low_latency_bytes),
                false => 0,
            },
            ranks_per_node: if is_one_node || !is_even { 0 } else { per_node },
            order: match is_one_node || is_even {
                true => self.ring_order(self.ranks.min(per_node)),
                false => None,
            },
            stores: arguments.stores(),
            store_blocks: if is_one_node || is_even { arguments.store_blocks(nvlink) } else { 0 },
            nvlink,
            symmetric: is_one_node && arguments.store_blocks(nvlink) > 0,
            reproducible: arguments.reproducible,
            ..Limits::new(candidate.blocks, slot_bytes, slot_count)
        };
        let limits = match candidate.pattern == Pattern::Selected && self.asks_model(&limits) {
            true => Limits { store_blocks: library.store_blocks, symmetric: true, ..limits },
            false => limits,
        };
        match (candidate.pattern, &self.forest) {
            (Pattern::Trees, Some(forest)) => {
                let limits = Limits { store_blocks: candidate.blocks, ..limits };
                Draft::packed(&request, &limits, forest)
            }
            (Pattern::Selected, _) => Ok(Draft::of(self.chosen(&request, &limits)?)),
            (pattern, _) => Draft::new(pattern, &request, &limits),
        }
    }
}
