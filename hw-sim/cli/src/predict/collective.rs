//! Plans of the library as programs of the model.

use super::arguments::{AllReduceArguments, PATTERNS};
use super::{PredictError, Row, Scene};
use hwsim_timing::{Engine, Outcome, Port, Programs, RankProgram, Setup, simulate};
use ringdove::ReduceOp;
use ringdove::plan::{
    Collective, Draft, LaneEnd, LaneKind, Limits, Pattern, PlanError, Request, Side,
};

/// A draft, as the model reads it.
struct Drafted<'a>(&'a Draft);

impl Programs for Drafted<'_> {
    fn rank_count(&self) -> u32 {
        self.0.rank_count()
    }

    fn program(&self, rank: u32) -> RankProgram {
        let (encoded, table) = self.0.encoded(rank);
        RankProgram { encoded, ports: table.iter().map(port).collect() }
    }
}

fn port(end: &LaneEnd) -> Port {
    let index = 2 * u32::from(end.lane.index) + u32::from(end.lane.kind == LaneKind::Direct);
    let lane = hwsim_timing::Lane { from: end.lane.from, to: end.lane.to, index };
    Port { lane, sends: end.side == Side::Send }
}

/// One size of an all-reduce.
pub(super) struct Job<'a> {
    pub scene: &'a Scene,
    pub arguments: &'a AllReduceArguments,
    pub ranks: u32,
    pub bytes: u64,
}

/// Beyond this many ranks, `auto` tries one candidate only.
const TRIED_RANKS_MAX: u32 = 64;
/// Blocks that `auto` tries.
const BLOCKS_TRIED: [u32; 4] = [1, 4, 16, 32];
/// Blocks of the library's own choice, at most: its default.
const SELECTED_BLOCKS: u32 = 4;

impl Job<'_> {
    /// The candidate that takes the least time; of equals the first.
    pub fn best(&self) -> Result<Row, PredictError> {
        let mut best: Option<Row> = None;
        let mut refused = None;
        for (pattern, blocks) in self.candidates() {
            let draft = match self.draft(pattern, blocks) {
                Ok(draft) => draft,
                Err(error) => {
                    refused = Some(error);
                    continue;
                }
            };
            let outcome = simulate(self.setup(), &Drafted(&draft))?;
            if best.as_ref().is_none_or(|row| outcome.end < row.outcome.end) {
                let limit = outcome.limit(None, &self.scene.machine);
                let name = PATTERNS.iter().find(|(_, it)| *it == pattern).expect("listed").0;
                let plan = match pattern {
                    Pattern::Selected => name.to_owned(),
                    _ => format!("{name} x{blocks}"),
                };
                best = Some(Row { bytes: self.bytes, plan, outcome, limit });
            }
        }
        // Each of the patterns has a reason for its refusal; the last one's is as good as any.
        best.ok_or_else(|| PredictError::Plan(refused.expect("there is a candidate")))
    }

    /// The best candidate again, with spans.
    pub fn traced(&self, spans_max: usize) -> Result<Outcome, PredictError> {
        let best = self.best()?.plan;
        for (pattern, blocks) in self.candidates() {
            let name = PATTERNS.iter().find(|(_, it)| *it == pattern).expect("listed").0;
            if best == name || best == format!("{name} x{blocks}") {
                let draft = self.draft(pattern, blocks)?;
                let setup = Setup { spans_max, ..self.setup() };
                return Ok(simulate(setup, &Drafted(&draft))?);
            }
        }
        unreachable!("the best is one of the candidates")
    }

    fn setup(&self) -> Setup<'_> {
        let folds = !self.arguments.every_rank;
        Setup { folds, ..self.scene.setup(&self.arguments.common) }
    }

    fn candidates(&self) -> Vec<(Pattern, u32)> {
        let blocks = match self.arguments.blocks {
            Some(blocks) => vec![blocks],
            None if self.ranks > TRIED_RANKS_MAX => vec![4],
            None => BLOCKS_TRIED.to_vec(),
        };
        let patterns = match self.arguments.pattern.0 {
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
                // The library chooses the blocks of its own.
                (Pattern::Selected, None) => candidates.push((pattern, SELECTED_BLOCKS)),
                _ => candidates.extend(blocks.iter().map(|&blocks| (pattern, blocks))),
            }
        }
        candidates
    }

    fn draft(&self, pattern: Pattern, blocks: u32) -> Result<Draft, PlanError> {
        let arguments = self.arguments;
        let request = Request {
            collective: Collective::AllReduce,
            rank_count: self.ranks,
            bytes: self.bytes,
            element_bytes: if self.bytes.is_multiple_of(4) { 4 } else { 1 },
            reduce_op: ReduceOp::Sum,
            in_place: false,
            // Stores reach a peer's slots; they have no use for registered buffers.
            registered: arguments.registered && arguments.common.engine.0 != Engine::Stores,
        };
        // Large worlds cut data into more pieces; larger slots keep their number down.
        let slot_bytes = if self.ranks > TRIED_RANKS_MAX { 4 << 20 } else { 512 << 10 };
        let limits = Limits {
            blocks_max: blocks,
            slot_bytes: arguments.slot_bytes.map_or(slot_bytes, |it| it.0).min(1 << 31) as u32,
            slot_count: arguments.slots,
            // The model has no flagged messages.
            flagged_bytes: 0,
            ranks_per_node: match arguments.common.nodes {
                1 => 0,
                _ => self.scene.machine.gpus_per_node() as u32,
            },
        };
        Draft::new(pattern, &request, &limits)
    }
}
