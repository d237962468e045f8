//! A token of a transformer with 8 billion parameters, tensor-parallel over eight A100, batch 1, in
//! f16: as a graph of kernels with NCCL's all-reduce, as a graph with ours, and as one resident
//! kernel. The shape to compare with is Triton-distributed's, on eight H800.

use super::super::Scene;
use super::super::arguments::{AlgorithmName, AllReduceArguments, StoresName};
use super::super::collective::Job;
use super::common;
use crate::error::Error;
use hwsim_timing::{Engine, Time};
use ringdove::Stores;
use ringdove::plan::Pattern;
use ringdove_figures::run::{Span, timeline_in_colours};
use std::fmt::Write;

const RANKS: u32 = 8;
const PARAMETERS: f64 = 8.03e9;
const LAYERS: u32 = 32;
/// Bytes of an all-reduce: one token's 4096 values, in f16. Two in each layer.
const ALL_REDUCE: u64 = 4096 * 2;
const ALL_REDUCES: u32 = 2 * LAYERS;
/// Norm, projections, positions and cache, attention, projection; norm, up and gate, activation,
/// down. Assumed: what compilers leave of a layer.
const KERNELS: u32 = 9 * LAYERS;
/// Between two kernels of a graph, in µs, as Triton-distributed and others say.
const GAP_US: f64 = 1.3;
/// A kernel's blocks do not all begin and end together, and its first loads wait: assumed, in µs.
const RAMP_US: f64 = 2.0;
/// Of a resident task: its record, its counters, two barriers (`src/program/cost.rs`; assumed).
const TASK_US: f64 = 1.0;
/// Of a data sheet's 1555 GB/s, what kernels reach: as the profile's `memory` says, which counts
/// copies and therefore half.
const READS_EACH: f64 = 2.0;
/// NCCL's own model for a ring of LL messages within a node, in µs: base, and a hop over NVLink.
const NCCL_RING_US: (f64, f64) = (6.6, 0.6);

/// Published: ms of a token on eight H800.
const PUBLISHED: [f64; 3] = [5.49, 4.65, 3.33];

/// One way to drive a step.
#[derive(Debug)]
pub(super) struct Way {
    pub name: &'static str,
    /// What it is made of, in µs.
    pub weights: f64,
    pub between: f64,
    pub all_reduces: f64,
    how: String,
}

impl Way {
    pub fn us(&self) -> f64 {
        self.weights + self.between + self.all_reduces
    }
}

/// An all-reduce of ours, in µs: launched, or by blocks that run already.
fn all_reduce(is_launched: bool) -> Result<f64, Error> {
    let mut scene = Scene::new(&common("dgx-a100", Engine::Proxy))?;
    if !is_launched {
        scene.profile.block.launch = Time::ZERO;
    }
    let arguments = AllReduceArguments {
        common: common("dgx-a100", Engine::Proxy),
        ranks: Some(RANKS),
        algorithm: AlgorithmName(Some(Pattern::Selected)),
        blocks: None,
        slot_bytes: None,
        slots: None,
        low_latency_bytes: None,
        low_latency_adapters: false,
        stores: StoresName(Stores::Auto),
        table: false,
        registered: false,
        reproducible: false,
        every_rank: false,
    };
    let job =
        Job { scene: &scene, arguments: &arguments, ranks: RANKS, bytes: ALL_REDUCE, forest: None };
    Ok(job.row()?.in_place().outcome.end.us())
}

/// The three, the slowest first.
pub(super) fn ways() -> Result<[Way; 3], Error> {
    let scene = Scene::new(&common("dgx-a100", Engine::Proxy))?;
    let rate = scene.profile.block.memory.gb_per_s() * READS_EACH;
    let weights = PARAMETERS * 2.0 / f64::from(RANKS) / rate / 1e3;
    let (base, hop) = NCCL_RING_US;
    let nccl = base + f64::from(2 * (RANKS - 1)) * hop;
    let (launched, resident) = (all_reduce(true)?, all_reduce(false)?);
    let count = f64::from(ALL_REDUCES);
    let kernels = f64::from(KERNELS) * (GAP_US + RAMP_US);
    let graph = |name, each: f64, whose: &str| Way {
        name,
        weights,
        between: kernels + count * GAP_US,
        all_reduces: count * each,
        how: format!("{ALL_REDUCES} all-reduces of {each:.1} us, {whose}"),
    };
    Ok([
        graph("graph", nccl, "by NCCL's model of its ring of LL messages"),
        graph("graph, our all-reduce", launched, "as our plan is played, with its launch"),
        Way {
            name: "resident",
            weights,
            between: f64::from(KERNELS) * TASK_US,
            all_reduces: count * resident,
            how: format!(
                "{ALL_REDUCES} all-reduces of {resident:.1} us, the same plan without a launch; no \
                 gaps, a task's counters in place of a kernel's ends"
            ),
        },
    ])
}

pub(super) fn predict() -> Result<(String, String), Error> {
    let ways = ways()?;
    let mut text = String::new();
    let mut line = |line: std::fmt::Arguments<'_>| {
        writeln!(text, "{line}").expect("a String takes everything");
    };
    line(format_args!(
        "# A token of a transformer with 8.03 billion parameters, f16, batch 1, 8 x A100: \
         modelled, profile a100"
    ));
    line(format_args!(
        "# {:<22} {:>9} {:>9} {:>9} {:>11} {:>6} {:>10}",
        "driven by", "us", "weights", "between", "all-reduces", "ratio", "published"
    ));
    for (way, published) in ways.iter().zip(PUBLISHED) {
        line(format_args!(
            "  {:<22} {:>9.0} {:>9.0} {:>9.0} {:>11.0} {:>6.2} {:>10.2}",
            way.name,
            way.us(),
            way.weights,
            way.between,
            way.all_reduces,
            way.us() / ways[2].us(),
            published / PUBLISHED[2]
        ));
    }
    for way in &ways {
        line(format_args!("# {:<22}: {}", way.name, way.how));
    }
    line(format_args!(
        "# Published             : ratios of 5.49, 4.65 and 3.33 ms on 8 x H800 \
         (Triton-distributed)"
    ));
    line(format_args!(
        "# Assumed               : {} kernels in each layer; {GAP_US} us between kernels of a \
         graph (as others say), and {RAMP_US} us in which not all blocks of a kernel are at work; \
         {TASK_US} us for a task's record, counters and barriers; weights at 90 % of the memory's \
         rate whoever reads them; a short cache of keys and values",
        KERNELS / LAYERS
    ));
    Ok((text, drawing(&ways)?))
}

fn drawing(ways: &[Way; 3]) -> Result<String, Error> {
    let mut spans = Vec::new();
    for (row, way) in ways.iter().enumerate() {
        let mut start = 0.0;
        let parts = [("weights", way.weights), ("between", way.between), ("sums", way.all_reduces)];
        for (name, us) in parts {
            let end = start + us / 1e3;
            spans.push(Span { row, name: name.to_owned(), start, end });
            start = end;
        }
    }
    let names = ways.each_ref().map(|way| way.name);
    let colour = |span: &Span| usize::from(span.name == "sums");
    let title = "A token of 8 billion parameters on 8 x A100, modelled: parts in sum";
    let drawn = timeline_in_colours(title, &names, &spans, colour);
    Ok(drawn.map_err(super::super::PredictError::from)?)
}
