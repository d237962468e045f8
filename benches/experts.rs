//! Dispatch and combine of experts on virtual hardware, beside the copies of the machine's
//! processors in the same run. In processor time of all threads, which other work on the machine
//! disturbs less than time on the wall; on idle cores the wall shows it divided by their number.
//!
//! "Moved" are the rows of both operations, each counted once. A row of a dispatch is copied twice
//! (into its message, and to its place), one of a combine once, and then read to be added: the
//! floor is the time of three copies and a half.

#[path = "../tests/hardware/mod.rs"]
mod hardware;

use cudarc::driver::{CudaSlice, CudaStream};
use half::bf16;
use hardware::{World, settings, tool};
use ringdove::experts::reference::Routing;
use ringdove::experts::{
    Combined, Config, Group, Handle, Mode, OnLoss, Received, Rows, Surplus, Tokens,
};
use ringdove::{DataType, Settings};
use std::process::Command;
use std::sync::Arc;

const INSIDE: &str = "RINGDOVE_BENCH_INSIDE";
const HIDDEN: u32 = 7168;
const TOP_K: u32 = 8;
const STEPS: u32 = 10;
const SERIES: u32 = 5;
/// Copies that a row needs: see above.
const COPIES: f64 = 3.5;

fn main() {
    if std::env::var_os(INSIDE).is_some() {
        measure(8, 128, 256, Mode::LowLatency);
        measure(4, 4096, 64, Mode::Throughput);
        return;
    }
    let mut command = Command::new(tool("hwsim"));
    command.args(["run", "--quiet", "--machine", "dgx-a100", "--"]);
    command.arg(std::env::current_exe().unwrap()).env(INSIDE, "1");
    assert!(command.status().unwrap().success());
}

/// Processor time of all threads of this process so far, in seconds.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
    let ticks: f64 = fields.skip(11).take(2).map(|field| field.parse::<f64>().unwrap()).sum();
    ticks / 100.0
}

/// GB of a copy in a second of processor time.
fn copy_rate() -> f64 {
    const BYTES: usize = 256 << 20;
    let (from, mut to) = (vec![1u8; BYTES], vec![2u8; BYTES]);
    let began = processor_seconds();
    for _ in 0..STEPS {
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
    }
    f64::from(STEPS) * BYTES as f64 / (processor_seconds() - began) / 1e9
}

struct Member<'c> {
    group: Group<'c>,
    handle: Handle,
    stream: Arc<CudaStream>,
    x: CudaSlice<bf16>,
    indices: CudaSlice<i64>,
    weights: CudaSlice<f32>,
    rows: CudaSlice<bf16>,
    counts: CudaSlice<u32>,
    out: CudaSlice<bf16>,
}

fn step(members: &mut [Member<'_>], tokens: u32) {
    for member in members.iter_mut() {
        let Member { group, handle, stream, x, indices, weights, .. } = member;
        let tokens = Tokens { x, scales: None, indices, weights: Some(weights), count: tokens };
        group.dispatch_send(handle, &tokens, stream).unwrap();
    }
    for Member { group, handle, stream, rows, counts, .. } in members.iter_mut() {
        let (indices, weights, sources) = (None, None, None);
        let received = Received { x: rows, scales: None, counts, indices, weights, sources };
        group.dispatch_receive(handle, received, stream).unwrap();
    }
    for Member { group, handle, stream, rows, .. } in members.iter_mut() {
        group.combine_send(handle, &Rows { y: &*rows, weights: None }, stream).unwrap();
    }
    for Member { group, handle, stream, out, .. } in members.iter_mut() {
        let combined = Combined { x: out, weights: None, factors: None, missing: None };
        group.combine_receive(handle, combined, stream).unwrap();
    }
    for Member { group, stream, .. } in members.iter() {
        stream.synchronize().unwrap();
        group.check().unwrap();
    }
}

fn measure(ranks: u32, tokens: u32, experts: u32, mode: Mode) {
    let world = World::with(ranks as usize, &Settings { user_lanes: 2, ..settings() });
    let config = Config {
        experts,
        top_k: TOP_K,
        hidden: HIDDEN,
        tokens_max: tokens,
        surplus: Surplus::Refuse,
        data_type: DataType::BF16,
        fp8: None,
        mode,
        alignment: 1,
        lane: 0,
        on_loss: OnLoss::End,
    };
    let mut random = fastrand::Rng::with_seed(1);
    let mut choices = || -> Vec<i64> {
        let all: Vec<i64> = (0..i64::from(experts)).collect();
        (0..tokens).flat_map(|_| random.choose_multiple(&all, TOP_K as usize)).copied().collect()
    };
    let indices: Vec<Vec<i64>> = (0..ranks).map(|_| choices()).collect();
    let weights = vec![vec![0.125; (tokens * TOP_K) as usize]; ranks as usize];
    let groups = Group::open_all(&world.communicators, &config).unwrap();
    let mut members: Vec<Member<'_>> = Vec::new();
    for (rank, group) in groups.into_iter().enumerate() {
        let stream = world.communicators[rank].context().new_stream().unwrap();
        let elements = (tokens * HIDDEN) as usize;
        members.push(Member {
            handle: group.handle().unwrap(),
            x: stream.clone_htod(&vec![bf16::ONE; elements]).unwrap(),
            indices: stream.clone_htod(&indices[rank]).unwrap(),
            weights: stream.clone_htod(&weights[rank]).unwrap(),
            rows: stream.alloc_zeros(config.output_rows(ranks) as usize * HIDDEN as usize).unwrap(),
            counts: stream.alloc_zeros(config.output_counts(ranks) as usize).unwrap(),
            out: stream.alloc_zeros(elements).unwrap(),
            group,
            stream,
        });
    }
    let routing = Routing::new(&config, &indices, &weights);
    let rows: usize = (0..ranks as usize).map(|rank| routing.rows(rank).len()).sum();
    let moved = 2.0 * rows as f64 * f64::from(2 * HIDDEN) / 1e9;
    step(&mut members, tokens);
    for _ in 0..SERIES {
        let rate = copy_rate();
        let began = processor_seconds();
        (0..STEPS).for_each(|_| step(&mut members, tokens));
        let seconds = (processor_seconds() - began) / f64::from(STEPS);
        println!("{ranks} ranks, {tokens} tokens, {mode:?}: {seconds:.3} s of processor time");
        println!(
            "    {moved:.3} GB moved, {:.3} of a copy's rate ({rate:.1} GB/s), floor {:.3} s",
            moved / seconds / rate,
            COPIES * moved / 2.0 / rate,
        );
    }
    world.finish();
}
