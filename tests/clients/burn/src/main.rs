//! Burn on virtual GPUs: a training on one GPU follows Burn's CPU backend, and data-parallel
//! trainings on several follow that of one GPU with whole batches.
//!
//! `burn-client tune`, `single`, `collectives RANKS`, `learner RANKS`, `by-hand RANKS`. Each prints
//! a line, and fails where a result is wrong or a step slower than its limit.

use burn::tensor::{Device, DeviceType};
use burn_client::model::{Seen, train_alone};
use burn_client::{by_hand, data, learner};

/// How far a loss or a weight may be from that of the reference.
const NEAR: f32 = 1e-5;
/// Five times what is aimed at (10 s, 20 ms and 50 ms): other work may run on the machine.
const FIRST_STEP_SECONDS_MAX: f64 = 50.0;
const STEP_MILLISECONDS_MAX: f64 = 100.0;
const DISTRIBUTED_STEP_MILLISECONDS_MAX: f64 = 250.0;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["tune"] => tune(),
        ["single"] => single(),
        ["collectives", ranks] => collectives(number(ranks)),
        ["learner", ranks] => distributed("learner", number(ranks)),
        ["by-hand", ranks] => distributed("by hand", number(ranks)),
        _ => panic!(
            "usage: burn-client tune | single | collectives RANKS | learner RANKS | by-hand RANKS"
        ),
    }
}

fn number(text: &str) -> usize {
    text.parse().expect("RANKS is a number")
}

/// Has CubeCL measure the GPU and choose kernels for every size of batch that the trainings have.
fn tune() {
    let samples = data::samples(1);
    for ranks in [1, 4, 8] {
        let parts = (0..data::STEPS).map(|step| data::part(&samples, 0, ranks, step));
        let seen = train_alone(&Device::cuda(0), parts);
        println!("batches of {}: first step {:.2} s", data::BATCH / ranks, seen.seconds[0]);
    }
}

fn single() {
    let samples = data::samples(1);
    let got = train_alone(&Device::cuda(0), data::whole(&samples, 1));
    let want = train_alone(&Device::flex(), data::whole(&samples, 1));
    let far = distance("loss", &got.losses, &want.losses);
    let weights = distance("weight", &got.weights, &want.weights);
    learned(&want.losses);
    println!(
        "single: {} steps, losses within {far:.1e} and weights within {weights:.1e} of the CPU's; \
         {}",
        got.losses.len(),
        pace(&got, STEP_MILLISECONDS_MAX),
    );
}

fn gpus(count: usize) -> Vec<Device> {
    let mut devices = Device::enumerate(DeviceType::Cuda).into_vec();
    assert!(devices.len() >= count, "{} GPUs, {count} wanted", devices.len());
    devices.truncate(count);
    devices
}

fn collectives(ranks: usize) {
    let compared = by_hand::collectives(&gpus(ranks));
    println!("collectives of {ranks} GPUs: {compared} results right");
}

fn distributed(how: &str, ranks: usize) {
    let devices = &gpus(ranks)[..];
    let samples = data::samples(2);
    let seen = if how == "learner" {
        let (seen, model) = learner::train(devices, &samples);
        assert_eq!(model, seen[0].weights, "the learner's model is not that of its first rank");
        seen
    } else {
        by_hand::train(devices, &samples)
    };
    // Afterwards: with its kernels at hand already, the first rank would be at its first all-reduce
    // while the learner still copies the model to the others, see `by_hand::train`.
    let want = train_alone(&devices[0], data::whole(&samples, ranks));
    learned(&want.losses);
    let first = &seen[0];
    for (rank, seen) in seen.iter().enumerate() {
        assert_eq!(seen.weights, first.weights, "weights of rank {rank} and of rank 0");
    }
    let losses = mean(&seen);
    let far = distance("loss", &losses, &want.losses);
    let weights = distance("weight", &first.weights, &want.weights);
    println!(
        "{how}, {ranks} GPUs: {} steps, losses within {far:.1e} and weights within {weights:.1e} \
         of one GPU's, weights of all ranks equal; {}",
        losses.len(),
        pace(first, DISTRIBUTED_STEP_MILLISECONDS_MAX),
    );
}

/// The losses of whole batches, of which each rank has an equal part.
fn mean(ranks: &[Seen]) -> Vec<f32> {
    (0..data::STEPS)
        .map(|step| ranks.iter().map(|rank| rank.losses[step]).sum::<f32>() / ranks.len() as f32)
        .collect()
}

/// The largest difference, which is a failure above [`NEAR`].
fn distance(what: &str, got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len(), "how many of {what}");
    assert!(!got.is_empty(), "no {what}");
    let mut far = 0.0;
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        let difference = (got - want).abs();
        // Written so that a difference that is no number fails.
        assert!(difference <= NEAR, "{what} {index} is {got}, expected {want}");
        far = f32::max(far, difference);
    }
    far
}

/// Without this, a training that changes nothing would agree with another one.
fn learned(losses: &[f32]) {
    let (first, last) = (losses[0], losses[losses.len() - 1]);
    assert!(last < first / 2.0, "the loss went from {first} to {last}");
}

/// The first step, and the median of the later ones.
fn pace(seen: &Seen, milliseconds_max: f64) -> String {
    let (first, mut later) = (seen.seconds[0], seen.seconds[1..].to_vec());
    later.sort_by(f64::total_cmp);
    let median = later[later.len() / 2] * 1e3;
    assert!(first < FIRST_STEP_SECONDS_MAX, "the first step took {first:.2} s");
    assert!(median < milliseconds_max, "the median of steps is {median:.1} ms");
    format!("first step {first:.2} s, median {median:.1} ms")
}
