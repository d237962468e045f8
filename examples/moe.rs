//! A mixture of experts, trained: each sample is a token, a router chooses two of eight experts for
//! it, and the experts lie on four GPUs. Tokens go to their experts by `ringdove::experts`, and the
//! results come back; in the backward pass the gradients of the results go the way of the tokens,
//! and the gradients of the tokens the way of the results.
//!
//! The same network on one GPU is the reference, bit for bit: outputs, gradients, weights. The
//! dense network of `train.rs` learns the same function beside it.
//!
//! `cargo run --release --example moe [FOLDER]`, or on virtual hardware
//! `hwsim run --machine pcie4 -- target/release/examples/moe [FOLDER]`, draws the losses to FOLDER
//! (`target`). `moe/worker.rs` is the network, `moe/exchange.rs` where tokens travel.

#[path = "moe/exchange.rs"]
mod exchange;
#[path = "moe/results.rs"]
mod results;
#[path = "train.rs"]
#[allow(dead_code, reason = "an example of its own, whose samples and losses are wanted here")]
mod train;
#[path = "moe/worker.rs"]
mod worker;

use exchange::Exchange;
use results::Results;
use ringdove::experts::{Config, Group, Mode, OnLoss, Surplus};
use ringdove::{Communicator, DataType, Settings, device_count, open_device};
use ringdove_figures::run::{Curve, curves};
use train::{Result, STEPS, Samples};
use worker::{EXPERTS, HIDDEN, TOP_K, Worker};

/// Parts of the samples, and the most GPUs.
const PARTS: usize = 4;

/// One step on all workers. Each phase is enqueued on all of them before the next is, for one
/// thread drives them all.
fn step(workers: &mut [Worker<'_>]) -> Result<()> {
    for phase in Worker::PHASES {
        workers.iter_mut().try_for_each(phase)?;
    }
    Ok(())
}

/// Trains; gives what each step has computed, for the samples in their order.
fn train(workers: &mut [Worker<'_>]) -> Result<Vec<Results>> {
    let mut steps = Vec::new();
    for _ in 0..STEPS {
        step(workers)?;
        let mut all = Results::default();
        for worker in workers.iter() {
            all.append(worker.results()?)?;
        }
        steps.push(all);
    }
    Ok(steps)
}

fn main() -> Result<()> {
    let folder = train::folder()?;
    let count = [4, 2, 1].into_iter().find(|count| *count <= device_count().unwrap_or(0));
    let count = count.ok_or("there is no GPU")?;
    let contexts = (0..count).map(open_device).collect::<std::result::Result<Vec<_>, _>>()?;
    let samples = Samples::new();

    let dense = train::on_one_gpu(&contexts[0], &samples)?;
    let alone = Worker::new(&contexts[0], &samples, 0..PARTS, Exchange::Alone, count)?;
    let reference = train(&mut [alone])?;

    // Two lanes for the group: tokens, and results.
    let settings = Settings { user_lanes: 2, ..Settings::from_env()? };
    let communicators = Communicator::init_all(&contexts, &settings)?;
    let config = Config {
        experts: EXPERTS as u32,
        top_k: TOP_K as u32,
        hidden: HIDDEN as u32,
        tokens_max: (samples.targets.len() / count) as u32,
        surplus: Surplus::Refuse,
        data_type: DataType::F32,
        fp8: None,
        mode: Mode::Throughput,
        alignment: 1,
        lane: 0,
        on_loss: OnLoss::End,
    };
    let groups = Group::open_all(&communicators, &config)?;
    let mut workers = Vec::new();
    for (rank, (group, communicator)) in groups.into_iter().zip(&communicators).enumerate() {
        let parts = PARTS * rank / count..PARTS * (rank + 1) / count;
        let (own, exchange) = (samples.part(rank, count), Exchange::new(communicator, group)?);
        workers.push(Worker::new(&contexts[rank], &own, parts, exchange, count)?);
    }
    let steps = train(&mut workers)?;
    for (number, (step, expected)) in steps.iter().zip(&reference).enumerate() {
        step.equals(expected).map_err(|error| format!("step {number}: {error}"))?;
    }
    println!("{count} GPUs, {STEPS} steps: outputs, gradients and weights are those of one GPU");

    let losses: Vec<f64> = steps.iter().map(Results::loss).collect();
    for number in (0..STEPS).step_by(STEPS / 6).chain([STEPS - 1]) {
        println!("step {number:3}: loss {:.6}, dense {:.6}", losses[number], dense[number]);
    }
    println!("tokens of each expert in the last step: {:?}", steps[STEPS - 1].loads());
    if losses[STEPS - 1] > losses[0] / 10.0 {
        return Err(format!("loss {} after {}", losses[STEPS - 1], losses[0]).into());
    }
    let named = [(format!("experts on {count} GPUs"), losses), ("dense".into(), dense)];
    let drawing = curves("Training", "loss", &named.map(|(name, values)| Curve { name, values }))?;
    let path = folder.join("moe-loss.svg");
    std::fs::write(&path, drawing)?;
    println!("drawn: {}", path.display());
    Ok(())
}
