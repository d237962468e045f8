//! Workers of an example as threads, and servers for them.

use crate::exchange::{self, Exchange, Weights};
use crate::train::{RATE, Result, STEPS, Samples, Worker};
use cudarc::driver::CudaContext;
use ringdove::bootstrap::Launch;
use ringdove::serve::{Client, Job, Model, Optimizer, Role, Server, Tensor};
use ringdove::{DataType, Settings};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Barrier};

const SERVERS: usize = 2;

/// A worker, as the threads of this program run it.
pub struct Member {
    pub number: usize,
    worker: Worker<'static>,
    /// The network with all samples, which tells the loss. Each worker has one, so that none is
    /// slower than the others for its sake.
    observer: Worker<'static>,
}

impl Member {
    fn new(
        (number, workers): (usize, usize),
        context: &Arc<CudaContext>,
        samples: &Samples,
    ) -> Result<Self> {
        let worker = Worker::new(context, &samples.part(number, workers), None)?;
        let observer = Worker::new(context, samples, None)?;
        Ok(Self { number, worker, observer })
    }

    /// Takes its steps; gives the loss of all samples with its weights, before each.
    pub fn run(&mut self, mut exchange: impl Exchange) -> Result<Vec<f64>> {
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
pub fn each_worker(
    workers: usize,
    contexts: &[Arc<CudaContext>],
    samples: &Samples,
    work: impl Fn(Member) -> Result<Vec<f64>> + Sync,
) -> Result<Vec<f64>> {
    // Nothing is loaded or allocated beside a collective, as the README says.
    let ready = Barrier::new(workers);
    std::thread::scope(|scope| {
        let start = |number: usize| {
            let (work, ready, context) = (&work, &ready, &contexts[number % contexts.len()]);
            scope.spawn(move || {
                let member = Member::new((number, workers), context, samples);
                ready.wait();
                member.and_then(work).map_err(|error| error.to_string())
            })
        };
        let threads: Vec<_> = (0..workers).map(start).collect();
        let ended = threads.into_iter().map(|it| it.join().map_err(|_| "a thread has panicked"));
        let ended = ended.collect::<std::result::Result<Vec<_>, _>>()?;
        let seen = ended.into_iter().collect::<std::result::Result<Vec<_>, String>>()?;
        Ok(seen.into_iter().next().unwrap_or_default())
    })
}

/// Servers have the weights; no worker is more than `staleness` steps ahead of another.
pub fn with_servers(
    workers: usize,
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
    let job = Job { optimizer, staleness, ..Job::new(model, SERVERS, workers) };
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let launch = |rank: usize| -> Result<Launch> {
        let lookup = |name: &str| match name {
            "RINGDOVE_RANK" => Some(rank.to_string()),
            "RINGDOVE_WORLD_SIZE" => Some((SERVERS + workers).to_string()),
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
        let losses = each_worker(workers, contexts, samples, |mut member| {
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
