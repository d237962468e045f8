//! ARK's headline: an all-reduce of 32 MiB on eight V100 over PCIe 3.0, in transfers of 4 MiB,
//! while the GPUs compute the backward pass of BERT-Large.
//!
//! A ring of eight makes 14 steps of one transfer each; what arrives in the first seven is added. A
//! device engine moves the transfers of a resident program, whose blocks for collectives add. The
//! CPU-driven variant hands over between CPU and GPU, and adds by kernels, which wait until the
//! computation's kernel that runs has ended.

use super::super::{PredictError, Scene};
use super::common;
use crate::error::Error;
use hwsim_timing::encode::{Block, encode, put, wait_arrivals};
use hwsim_timing::{Engine, Lane, Port, Programs, RankProgram, simulate};
use ringdove_figures::run::{Span, timeline_in_colours};
use std::fmt::Write;

const RANKS: u32 = 8;
const BYTES: u64 = 32 << 20;
const TRANSFER: u64 = BYTES / RANKS as u64;
const STEPS: u32 = 2 * (RANKS - 1);

/// Of ARK's Table 1, in µs: what a hand-over takes beside a computation, and Fig. 8, where nothing
/// else runs, does not show: the gap between polls, and the mutex of the driver.
const BESIDE_US: f64 = 58.3 + 58.7;
/// Hand-overs of a step that adds: the CPU sees the arrival, launches the kernel that adds, and,
/// when that has ended, issues the next copy. Assumed: the paper does not say how many there are.
const HAND_OVERS: u32 = 3;
/// Multiprocessors of a V100, and those that the resident program gives to collectives. The latter
/// is assumed.
const MULTIPROCESSORS: u32 = 80;
const BLOCKS: u32 = 4;
/// A layer of BERT-Large has 12 * 1024^2 parameters; its backward pass takes four operations of
/// each for each token. Assumed: 8 sequences of 512 tokens, half of a V100's 125 TFLOP/s, and 24
/// kernels of one length.
const LAYER_OPERATIONS: f64 = 4.0 * 12.0 * 1024.0 * 1024.0 * 8.0 * 512.0;
const OPERATIONS_PER_US: f64 = 62.5e6;
const LAYER_KERNELS: f64 = 24.0;
const LAYERS: u32 = 24;

/// Published: GB/s of the resident program and of the CPU-driven variant.
const PUBLISHED: [f64; 2] = [9.10, 5.0];

/// Every rank puts one transfer to the next one.
struct Hop;

impl Programs for Hop {
    fn rank_count(&self) -> u32 {
        RANKS
    }

    fn program(&self, rank: u32) -> RankProgram {
        let lane = |from, to| Lane { from, to, index: 0, stores: false };
        let (next, before) = ((rank + 1) % RANKS, (rank + RANKS - 1) % RANKS);
        let mut block = Block { ports: vec![0, 1], ..Block::default() };
        put(&mut block.ops, 0, (0, TRANSFER), false);
        wait_arrivals(&mut block.ops, 1, 1);
        let ports = [(lane(rank, next), true), (lane(before, rank), false)];
        let ports = ports.map(|(lane, sends)| Port { lane, sends }).to_vec();
        RankProgram { encoded: encode(&[block]), ports }
    }
}

/// What an all-reduce is made of, in µs.
#[derive(Clone, Copy, Debug)]
struct Costs {
    /// A transfer, with what belongs to it.
    hop: f64,
    /// Hand-overs in a step that adds, and in one that does not.
    hand_overs: [f64; 2],
    /// Adding one transfer.
    add: f64,
    /// Does adding take the whole GPU, when the computation's kernel has ended?
    adds_by_kernel: bool,
    /// How much longer the computation's kernels take meanwhile.
    slowed: f64,
}

/// An all-reduce, and the computation beside it.
#[derive(Debug)]
pub(super) struct Played {
    pub us: f64,
    /// By how much the computation beside it took longer.
    pub slowed: f64,
    /// Kernels of the computation, then transfers and additions: beginning, end.
    computed: Vec<(f64, f64)>,
    moved: Vec<(f64, f64)>,
    added: Vec<(f64, f64)>,
}

impl Played {
    /// Bus bandwidth, as nccl-tests counts it.
    pub fn gb_per_s(&self) -> f64 {
        let each = 2.0 * f64::from(RANKS - 1) / f64::from(RANKS);
        BYTES as f64 * each / self.us / 1e3
    }
}

fn kernel_us() -> f64 {
    LAYER_OPERATIONS / OPERATIONS_PER_US / LAYER_KERNELS
}

fn play(costs: Costs) -> Played {
    let kernel = kernel_us() * (1.0 + costs.slowed);
    let (mut computed, mut moved, mut added) = (Vec::new(), Vec::new(), Vec::new());
    // The computation runs without a gap up to here.
    let mut busy = 0.0;
    let mut now = 0.0;
    let mut compute_to = |until: f64, busy: &mut f64| {
        while *busy < until {
            computed.push((*busy, *busy + kernel));
            *busy += kernel;
        }
    };
    for step in 0..STEPS {
        moved.push((now, now + costs.hop));
        let adds = step < RANKS - 1;
        now += costs.hop + costs.hand_overs[usize::from(!adds)];
        if !adds {
            continue;
        }
        if costs.adds_by_kernel {
            compute_to(now, &mut busy);
            now = now.max(busy);
            busy = now + costs.add;
        }
        added.push((now, now + costs.add));
        now += costs.add;
    }
    compute_to(now, &mut busy);
    let lost = if costs.adds_by_kernel { f64::from(RANKS - 1) * costs.add } else { 0.0 };
    let slowed = costs.slowed + lost / (now - lost);
    Played { us: now, slowed, computed, moved, added }
}

/// The resident program with a device engine, then the CPU-driven variant with so many hand-overs.
pub(super) fn played(hand_overs: u32) -> Result<[Played; 2], Error> {
    let scene = |engine| Scene::new(&common("ark", engine));
    let (device, cpu) = (scene(Engine::Device)?, scene(Engine::CpuDriven)?);
    let hop = |scene: &Scene, engine| -> Result<f64, Error> {
        let outcome = simulate(scene.setup(&common("ark", engine)), &Hop);
        Ok(outcome.map_err(PredictError::from)?.end.us())
    };
    let block = device.profile.block;
    let seconds = |bytes: u64, gb_per_s: f64| bytes as f64 / gb_per_s / 1e3;
    let resident = Costs {
        hop: hop(&device, Engine::Device)?,
        hand_overs: [0.0; 2],
        add: seconds(TRANSFER, block.reduce.gb_per_s() * f64::from(BLOCKS)) + block.op.us(),
        adds_by_kernel: false,
        slowed: f64::from(BLOCKS) / f64::from(MULTIPROCESSORS),
    };
    // Fig. 8 has one hand-over in each transfer; beside a computation all of Table 1 counts.
    let costs = cpu.profile.cpu;
    let quiet = (costs.event + costs.synchronise + costs.rest + costs.launch).us();
    let whole = (costs.event + costs.synchronise + costs.launch).us() + BESIDE_US;
    let hand_overs = [hand_overs, (hand_overs - 1).max(1)].map(|count| f64::from(count) * whole);
    let driven = Costs {
        hop: hop(&cpu, Engine::CpuDriven)? - quiet,
        hand_overs,
        // Two operands are read where a copy reads one.
        add: seconds(TRANSFER, block.memory.gb_per_s()) * 1.5,
        adds_by_kernel: true,
        slowed: 0.0,
    };
    Ok([resident, driven].map(play))
}

pub(super) fn predict() -> Result<(String, String), Error> {
    let mut text = String::new();
    let mut line = |line: std::fmt::Arguments<'_>| {
        writeln!(text, "{line}").expect("a String takes everything");
    };
    line(format_args!(
        "# All-reduce of 32M in transfers of 4M beside the backward pass of BERT-Large, 8 x V100 \
         on PCIe 3.0: modelled, profile ark-v100"
    ));
    line(format_args!(
        "# {:>10} {:>11} {:>11} {:>11} {:>11} {:>7} {:>11} {:>11}",
        "hand-overs",
        "CPU (us)",
        "CPU (GB/s)",
        "res. (us)",
        "res. (GB/s)",
        "ratio",
        "CPU slows",
        "res. slows"
    ));
    for hand_overs in 1..=HAND_OVERS {
        let [resident, driven] = played(hand_overs)?;
        line(format_args!(
            "  {hand_overs:>10} {:>11.0} {:>11.2} {:>11.0} {:>11.2} {:>7.2} {:>9.1} % {:>9.1} %",
            driven.us,
            driven.gb_per_s(),
            resident.us,
            resident.gb_per_s(),
            driven.us / resident.us,
            driven.slowed * 100.0,
            resident.slowed * 100.0
        ));
    }
    let [resident, driven] = PUBLISHED;
    let all = f64::from(LAYERS) * LAYER_KERNELS * kernel_us() / 1e3;
    let ratio = resident / driven;
    let kernel = kernel_us();
    line(format_args!(
        "# Published             : {driven:.2} and {resident:.2} GB/s, ratio {ratio:.2} (ARK, NSDI \
         2023)"
    ));
    line(format_args!(
        "# Assumed               : hand-overs in a step that adds (the paper says what one takes, \
         151.6 us beside a computation, not how many); one less where nothing is added"
    ));
    line(format_args!(
        "# Assumed               : {BLOCKS} of {MULTIPROCESSORS} multiprocessors for the resident \
         program's collectives; a backward pass of {all:.0} ms in kernels of {kernel:.0} us"
    ));
    line(format_args!(
        "# Not modelled          : what transfers and computation take from each other's memory \
         bandwidth and caches"
    ));
    Ok((text, drawing()?))
}

fn drawing() -> Result<String, Error> {
    let rows = [
        "resident: computation",
        "resident: transfers",
        "resident: additions",
        "CPU-driven: computation",
        "CPU-driven: transfers",
        "CPU-driven: additions",
    ];
    let mut spans = Vec::new();
    for (number, played) in played(HAND_OVERS)?.iter().enumerate() {
        for (row, of) in [&played.computed, &played.moved, &played.added].into_iter().enumerate() {
            spans.extend(of.iter().map(|&(start, end)| Span {
                row: 3 * number + row,
                name: String::new(),
                start: start / 1e3,
                end: end / 1e3,
            }));
        }
    }
    // Computation in one colour, transfers in another; additions are computation.
    let colour = |span: &Span| usize::from(span.row % 3 == 1);
    let title = "All-reduce of 32 MiB beside BERT-Large, modelled (ark-v100)";
    let drawn = timeline_in_colours(title, &rows, &spans, colour);
    Ok(drawn.map_err(PredictError::from)?)
}
