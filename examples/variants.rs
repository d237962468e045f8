//! Variants of distributed training, side by side: the network of `train.rs`, four workers, each
//! with a quarter of the samples, as many steps. They differ in who has the weights (a server, or
//! every worker), in whether workers wait for one another, and in how old the weights may be by
//! which a gradient was computed:
//!
//! | variant | weights | waits | age |
//! |---|---|---|---|
//! | all-reduce | every worker | for all, in each step | 0 |
//! | local steps | every worker | for all, in each tenth step | up to 9 steps |
//! | ring averages | every worker | for a neighbour, in each step | not bounded |
//! | one-sided averages | every worker | for nobody | not bounded |
//! | server, synchronous | servers | for all, in each step | 0 |
//! | server, bounded | servers | for who is 3 steps behind | at most 3 steps |
//! | server, asynchronous | servers | for nobody | not bounded |
//!
//! `cargo run --release --example variants [FOLDER]`, or on virtual hardware
//! `hwsim run --machine pcie4 -- target/release/examples/variants [FOLDER]`, prints how the loss
//! falls, and draws it to FOLDER (`target`). Servers need an RDMA adapter. `variants/exchange.rs`
//! is what workers do between two steps, `variants/workers.rs` runs them.

#[path = "variants/exchange.rs"]
mod exchange;
#[path = "train.rs"]
#[allow(dead_code, reason = "an example of its own, whose network and samples are wanted here")]
mod train;
#[path = "variants/workers.rs"]
mod workers;

use cudarc::driver::CudaContext;
use exchange::{AllReduce, Buffers, Exchange, LocalSteps, OneSided, RingAverages};
use ringdove::{Communicator, Settings, device_count, open_device};
use ringdove_figures::run::{Curve, curves};
use std::sync::Arc;
use train::{Result, STEPS, Samples};
use workers::{each_worker, with_servers};

const WORKERS: usize = 4;
/// The loss must fall below this part of that of the first step.
const LEAST_FALL: f64 = 10.0;

/// Every worker has the weights; `exchange` makes what it does between two steps.
fn without_servers<'c, E: Exchange>(
    contexts: &[Arc<CudaContext>],
    samples: &Samples,
    communicators: &'c [Communicator],
    exchange: impl Fn(&'c Communicator) -> Result<E> + Sync,
) -> Result<Vec<f64>> {
    each_worker(WORKERS, contexts, samples, |mut member| {
        let exchange = exchange(&communicators[member.number])?;
        member.run(exchange)
    })
}

fn main() -> Result<()> {
    let folder = train::folder()?;
    let count = device_count()?.min(WORKERS);
    let contexts = (0..count).map(open_device).collect::<std::result::Result<Vec<_>, _>>()?;
    let samples = Samples::new();
    // A lane for windows.
    let settings = Settings { user_lanes: 1, ..Settings::from_env()? };
    let shared: Vec<_> = (0..WORKERS).map(|it| contexts[it % contexts.len()].clone()).collect();
    let ranks = Communicator::init_all(&shared, &settings)?;

    let all_reduce = |rank| Buffers::new(rank).map(AllReduce);
    let local_steps = |rank| Buffers::new(rank).map(LocalSteps);
    let ring_averages = |rank| Buffers::new(rank).map(RingAverages);
    let variants = [
        ("all-reduce", without_servers(&contexts, &samples, &ranks, all_reduce)?),
        ("local steps", without_servers(&contexts, &samples, &ranks, local_steps)?),
        ("ring averages", without_servers(&contexts, &samples, &ranks, ring_averages)?),
        ("one-sided averages", without_servers(&contexts, &samples, &ranks, OneSided::new)?),
        ("server, synchronous", with_servers(WORKERS, &contexts, &samples, Some(0))?),
        ("server, bounded", with_servers(WORKERS, &contexts, &samples, Some(3))?),
        ("server, asynchronous", with_servers(WORKERS, &contexts, &samples, None)?),
    ];

    println!("{:22} loss before step: {:>8} {:>8} {:>8} {:>8}", "variant", 0, 10, 50, STEPS - 1);
    for (name, losses) in &variants {
        let [first, tenth, half, last] = [0, 10, 50, STEPS - 1].map(|step| losses[step]);
        println!("{name:22} {:17} {first:8.5} {tenth:8.5} {half:8.5} {last:8.5}", "");
        if last.is_nan() || last > first / LEAST_FALL {
            return Err(format!("{name}: the loss is {last} after {first}").into());
        }
    }
    let apart = variants[0].1.iter().zip(&variants[4].1).map(|(one, other)| (one - other).abs());
    let apart = apart.fold(0.0, f64::max);
    println!("synchronous with and without servers: the same loss within {apart:.1e}");
    if apart > 1e-5 {
        return Err("synchronous servers do not compute what an all-reduce does".into());
    }
    let drawn = variants.map(|(name, values)| Curve { name: name.into(), values });
    let path = folder.join("variants-loss.svg");
    std::fs::write(&path, curves("Variants of distributed training", "loss", &drawn)?)?;
    println!("drawn: {}", path.display());
    Ok(())
}
