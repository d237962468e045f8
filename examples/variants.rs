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
//! is what workers do between two steps.

#[path = "variants/exchange.rs"]
mod exchange;
#[path = "train.rs"]
#[allow(dead_code, reason = "an example of its own, whose network and samples are wanted here")]
mod train;

use cudarc::driver::CudaContext;
use exchange::{AllReduce, Buffers, Exchange, LocalSteps, OneSided, RingAverages, Weights};
use ringdove::bootstrap::Launch;
use ringdove::serve::{Client, Job, Model, Optimizer, Role, Server, Tensor};
use ringdove::{Communicator, DataType, Settings, device_count, open_device};
use ringdove_figures::run::{Curve, curves};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Barrier};
use train::{RATE, Result, STEPS, Samples, Worker};

const WORKERS: usize = 4;
const SERVERS: usize = 2;
/// The loss must fall below this part of that of the first step.
const LEAST_FALL: f64 = 10.0;

/// A worker, as the threads of this program run it.
struct Member {
    number: usize,
    worker: Worker<'static>,
    /// The network with all samples, which tells the loss. Each worker has one, so that none is
    /// slower than the others for its sake.
    observer: Worker<'static>,
}

impl Member {
    fn new(number: usize, context: &Arc<CudaContext>, samples: &Samples) -> Result<Self> {
        let worker = Worker::new(context, &samples.part(number, WORKERS), None)?;
        let observer = Worker::new(context, samples, None)?;
        Ok(Self { number, worker, observer })
    }

    /// Takes its steps; gives the loss of all samples with its weights, before each.
    fn run(&mut self, mut exchange: impl Exchange) -> Result<Vec<f64>> {
        let mut weights = Weights::of(self.worker.parameters()?);
        let mut losses = Vec::new();
        for step in 0..STEPS {
            self.worker.assign(&weights.layers())?;
            self.observer.assign(&weights.layers())?;
            losses.push(self.observer.compute()?.0);
            let gradient = Weights::of(self.worker.compute()?.1);
            exchange
                .step(step, &mut weights, &gradient)
                .map_err(|error| format!("worker {}, step {step}: {error}", self.number))?;
        }
        exchange.leave()?;
        Ok(losses)
    }
}

/// Runs `work` for each worker, in a thread of its own; gives what the first one saw. Errors of
/// threads are texts: those of the example are not `Send`.
fn each_worker(
    contexts: &[Arc<CudaContext>],
    samples: &Samples,
    work: impl Fn(Member) -> Result<Vec<f64>> + Sync,
) -> Result<Vec<f64>> {
    // Nothing is loaded or allocated beside a collective, as the README says.
    let ready = Barrier::new(WORKERS);
    std::thread::scope(|scope| {
        let start = |number: usize| {
            let (work, ready, context) = (&work, &ready, &contexts[number % contexts.len()]);
            scope.spawn(move || {
                let member = Member::new(number, context, samples);
                ready.wait();
                member.and_then(work).map_err(|error| error.to_string())
            })
        };
        let threads: Vec<_> = (0..WORKERS).map(start).collect();
        let ended = threads.into_iter().map(|it| it.join().map_err(|_| "a thread has panicked"));
        let ended = ended.collect::<std::result::Result<Vec<_>, _>>()?;
        let seen = ended.into_iter().collect::<std::result::Result<Vec<_>, String>>()?;
        Ok(seen.into_iter().next().unwrap_or_default())
    })
}

/// Every worker has the weights; `exchange` makes what it does between two steps.
fn without_servers<'c, E: Exchange>(
    contexts: &[Arc<CudaContext>],
    samples: &Samples,
    communicators: &'c [Communicator],
    exchange: impl Fn(&'c Communicator) -> Result<E> + Sync,
) -> Result<Vec<f64>> {
    each_worker(contexts, samples, |mut member| {
        let exchange = exchange(&communicators[member.number])?;
        member.run(exchange)
    })
}

/// Servers have the weights; no worker is more than `staleness` steps ahead of another.
fn with_servers(
    contexts: &[Arc<CudaContext>],
    samples: &Samples,
    staleness: Option<u64>,
) -> Result<Vec<f64>> {
    let settings = Settings::from_env()?;
    let layers = Worker::new(&contexts[0], samples, None)?.parameters()?;
    let tensor = |(number, layer): (usize, &Vec<f32>)| Tensor {
        name: format!("layer{number}"),
        data_type: DataType::F32,
        shape: vec![layer.len() as u64],
    };
    let model = Model::of("variants", layers.iter().enumerate().map(tensor).collect())?;
    let optimizer = Optimizer::Sgd { rate: RATE };
    let job = Job { optimizer, staleness, ..Job::new(model, SERVERS, WORKERS) };
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let launch = |rank: usize| -> Result<Launch> {
        let lookup = |name: &str| match name {
            "RINGDOVE_RANK" => Some(rank.to_string()),
            "RINGDOVE_WORLD_SIZE" => Some((SERVERS + WORKERS).to_string()),
            "RINGDOVE_BOOTSTRAP_ADDRESS" => Some(format!("127.0.0.1:{port}")),
            _ => None,
        };
        Ok(Launch::from_lookup(lookup)?.ok_or("these variables name a launch")?)
    };
    std::thread::scope(|scope| {
        let serve = |rank: usize| {
            let (job, settings, launch) = (job.clone(), &settings, launch(rank)?);
            Ok(scope.spawn(move || Server::join(job, &launch, settings)?.run()))
        };
        let servers = (0..SERVERS).map(serve).collect::<Result<Vec<_>>>()?;
        let losses = each_worker(contexts, samples, |mut member| {
            let launch = launch(SERVERS + member.number)?;
            let client = Client::join(job.clone(), Role::Worker, &launch, &settings)?;
            let exchange = exchange::Servers::new(client, &layers)?;
            member.run(exchange)
        })?;
        for server in servers {
            server.join().map_err(|_| "a server has panicked")??;
        }
        Ok(losses)
    })
}

fn main() -> Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "target".into());
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
        ("server, synchronous", with_servers(&contexts, &samples, Some(0))?),
        ("server, bounded", with_servers(&contexts, &samples, Some(3))?),
        ("server, asynchronous", with_servers(&contexts, &samples, None)?),
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
    let path = std::path::Path::new(&folder).join("variants-loss.svg");
    std::fs::write(&path, curves("Variants of distributed training", "loss", &drawn)?)?;
    println!("drawn: {}", path.display());
    Ok(())
}
