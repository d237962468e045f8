//! The training of `examples/train.rs` as a resident program: one launch for all of its 100 steps,
//! forwards, backwards, all-reduces and descent. The weights have the same bits as those of
//! ordinary launches and calls. Then the same of one transformer block: as a resident program, by
//! launches of the program's tasks, and by a graph of these launches.
//!
//! `cargo run --release --example resident_train`, or on virtual hardware
//! `hwsim run --machine pcie4 -- target/release/examples/resident_train`; on two nodes,
//! `hwsim run --machine 'pcie4 x 2' --procs 2 -- target/release/examples/resident_train`. The graph
//! of the network is `ringdove::program::network`.

#[path = "train.rs"]
#[allow(dead_code)] // Its figures and its own main.
mod train;

use ringdove::bootstrap::Launch;
use ringdove::program::network::Transformer;
use ringdove::program::{Driven, Options, Resident, TileSize, Verified, network, verify_same};
use ringdove::{Communicator, Settings, device_count, open_device};
use std::time::Instant;
use train::{RATE, Result, SAMPLES, SEED, STEPS, Samples, WIDTHS, Worker, first_parameters};

/// GPUs, on all nodes.
const RANKS: u32 = 4;
/// Blocks that compute, on each GPU, and threads of each.
const BLOCKS: u32 = 2;
const THREADS: u32 = 128;

/// This process's ranks: all of them, or its part of those of several processes.
fn join() -> Result<Vec<Communicator>> {
    let settings = Settings::from_env()?;
    let open = |count: u32, first: u32| {
        let devices = device_count()? as u32;
        (0..count)
            .map(|rank| open_device(((first + rank) % devices) as usize))
            .collect::<ringdove::Result<Vec<_>>>()
    };
    let Some(launch) = Launch::from_env()? else {
        return Ok(Communicator::init_all(&open(RANKS, 0)?, &settings)?);
    };
    let each = RANKS / launch.rank_count;
    let (id, _root) = launch.rendezvous(&settings)?;
    let contexts = open(each, launch.local_rank.unwrap_or(0) * each)?;
    Ok(Communicator::init_ranks(&contexts, &id, launch.rank * each, RANKS, &settings)?)
}

/// Wall clock and this process's processor time: of a simulation, where the GPUs are virtual.
struct Clocks(Instant, f64);

impl Clocks {
    fn now() -> Self {
        Self(Instant::now(), processor_time().unwrap_or(0.0))
    }

    fn elapsed(&self) -> String {
        let spent = processor_time().unwrap_or(0.0) - self.1;
        format!("{:.2?}, {spent:.2} s of processors", self.0.elapsed())
    }
}

/// Seconds of all threads of this process, to a hundredth.
fn processor_time() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // Behind the name, which may hold anything.
    let fields: Vec<&str> = text.rsplit(')').next()?.split_whitespace().collect();
    let ticks = |place: usize| fields.get(place)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / 100.0)
}

fn program() -> Result<Verified> {
    let widths = WIDTHS.map(|width| width as u32);
    let samples = (SAMPLES as u32 / RANKS, SAMPLES as u32);
    let graph = network::step(&widths, samples, TileSize { rows: 64, columns: 32 })?;
    Ok(verify_same(graph.plan(BLOCKS, THREADS)?)?)
}

/// One rank's program, with its samples and the weights that all begin with.
fn prepare<'c>(communicator: &'c Communicator, program: &Verified) -> Result<Resident<'c>> {
    let stream = communicator.context().new_stream()?;
    let options = Options { driven: Driven::Resident, ..Options::default() };
    let mut resident = Resident::prepare(communicator, program, options, &stream)?;
    let samples = Samples::new().part(communicator.rank() as usize, RANKS as usize);
    resident.write("input", &samples.inputs)?;
    resident.write("target", &samples.targets)?;
    let mut random = fastrand::Rng::with_seed(SEED);
    for (number, widths) in WIDTHS.windows(2).enumerate() {
        let parameters = first_parameters(&mut random, widths[0], widths[1]);
        resident.write(&format!("parameters {number}"), &parameters)?;
    }
    resident.set_parameter(network::RATE, RATE)?;
    Ok(resident)
}

/// One transformer block on a rank, with tokens of its own.
fn prepare_block<'c>(communicator: &'c Communicator, driven: Driven) -> Result<Resident<'c>> {
    let sizes = Transformer { tokens: 16, model: 32, heads: 2, hidden: 64, ranks: RANKS };
    let program = sizes.step(TileSize { rows: 16, columns: 32 })?.plan(BLOCKS, THREADS)?;
    let stream = communicator.context().new_stream()?;
    let options = Options { driven, ..Options::default() };
    let mut one = Resident::prepare(communicator, &verify_same(program)?, options, &stream)?;
    let write = |name: &str, count: u32, random: &mut fastrand::Rng| {
        let values: Vec<f32> = (0..count).map(|_| (random.f32() - 0.5) * 0.8).collect();
        one.write(name, &values)
    };
    let tokens = sizes.tokens;
    let mut random = fastrand::Rng::with_seed(SEED + 1 + u64::from(communicator.rank()));
    write("input", tokens * sizes.model, &mut random)?;
    write("target", tokens * sizes.model, &mut random)?;
    let mut random = fastrand::Rng::with_seed(SEED);
    for name in network::PARAMETERS {
        let (rows, columns) = sizes.shape(name).expect("one of the parameters");
        write(name, rows * columns, &mut random)?;
    }
    // No token looks at those behind it.
    let hidden = |at: u32| if at % tokens > at / tokens { -1e9 } else { 0.0 };
    one.write("mask", &(0..tokens * tokens).map(hidden).collect::<Vec<_>>())?;
    one.set_parameter(network::RATE, 0.05)?;
    Ok(one)
}

/// Trains one transformer block; gives the time, and the bits of its parameters on the first rank
/// here.
fn train_block(communicators: &[Communicator], driven: Driven) -> Result<(String, Vec<u32>)> {
    let all = communicators.iter().map(|one| prepare_block(one, driven));
    let mut all = all.collect::<Result<Vec<_>>>()?;
    all.iter_mut().try_for_each(Resident::start)?;
    let clocks = Clocks::now();
    // Launches wait in the driver's queue, which takes few; the others take all at once.
    let each = if driven == Driven::Launches { 2 } else { STEPS };
    for _ in 0..STEPS / each {
        all.iter_mut().try_for_each(|one| one.run(each as u64))?;
        all.iter_mut().try_for_each(Resident::wait)?;
    }
    let elapsed = clocks.elapsed();
    all.iter_mut().try_for_each(Resident::stop)?;
    let mut bits = Vec::new();
    for name in network::PARAMETERS {
        bits.extend(all[0].read(name)?.into_iter().map(f32::to_bits));
    }
    Ok((elapsed, bits))
}

fn main() -> Result<()> {
    let communicators = join()?;
    // Ordinary launches and calls, for comparison.
    let samples = Samples::new();
    let mut workers = communicators
        .iter()
        .map(|communicator| {
            let part = samples.part(communicator.rank() as usize, RANKS as usize);
            Worker::new(communicator.context(), &part, Some(communicator))
        })
        .collect::<Result<Vec<_>>>()?;
    let program = program()?;
    let mut residents = communicators
        .iter()
        .map(|communicator| prepare(communicator, &program))
        .collect::<Result<Vec<_>>>()?;
    let clocks = Clocks::now();
    train::train(&mut workers)?;
    let by_launches = clocks.elapsed();

    residents.iter_mut().try_for_each(Resident::start)?;
    // From here to the end of the last step no driver call is made.
    let clocks = Clocks::now();
    residents.iter_mut().try_for_each(|resident| resident.run(STEPS as u64))?;
    residents.iter_mut().try_for_each(Resident::wait)?;
    let resident = clocks.elapsed();
    residents.iter_mut().try_for_each(Resident::stop)?;

    for (worker, resident) in workers.iter().zip(&residents) {
        for (number, expected) in worker.parameters()?.iter().enumerate() {
            let seen = resident.read(&format!("parameters {number}"))?;
            let bits = |values: &[f32]| values.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
            if bits(&seen) != bits(expected) {
                return Err(
                    format!("weights of layer {number} differ from those of launches").into()
                );
            }
        }
    }
    let losses: Vec<f32> = residents[0].take().into_iter().flatten().collect();
    println!(
        "{STEPS} steps in one launch on each of {RANKS} GPUs: {} blocks",
        residents[0].shape().0
    );
    println!(
        "loss of rank {}: {:.6}, then {:.6}",
        communicators[0].rank(),
        losses[0],
        losses[STEPS - 1]
    );
    println!("the weights have the bits of ordinary launches");
    println!("by launches: {by_launches}; resident: {resident}");

    let (resident, bits) = train_block(&communicators, Driven::Resident)?;
    let (by_launches, expected) = train_block(&communicators, Driven::Launches)?;
    let (by_graphs, captured) = train_block(&communicators, Driven::Graphs)?;
    if bits != expected || captured != expected {
        return Err("parameters of the transformer block differ from those of launches".into());
    }
    println!("a transformer block, {STEPS} steps in one launch: the bits of its tasks' launches");
    println!("by launches: {by_launches}; by graphs: {by_graphs}; resident: {resident}");
    Ok(())
}
