//! Jobs whose parameters count the gradients of each worker.

#![allow(dead_code)] // Each test binary uses its part.

use crate::hardware::on_machine_env;
use ringdove::bootstrap::Launch;
use ringdove::serve::{Client, Job, Memory, Model, Optimizer, Role, Served, Server, Tensor};
use ringdove::{DataType, Error, Settings};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Members of most tests: two servers, three workers, each on a node of its own.
pub const NODES: &str = "pcie4 x 5";
pub const PROCESSES: [&str; 2] = ["--procs", "5"];
pub const STEPS: u64 = 60;
/// Far above what anything here takes, also where the machine is busy.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Each worker's gradients are digits of this base: 61^3 is exact in 32-bit floats.
pub const BASE: u64 = STEPS + 1;

pub fn settings() -> Settings {
    Settings { wait_timeout: PATIENCE, ..Settings::from_env().unwrap() }
}

pub fn launch() -> Launch {
    Launch::from_env().unwrap().expect("hwsim run starts ranks")
}

pub fn tensor(name: &str, count: u64) -> Tensor {
    Tensor { name: name.into(), data_type: DataType::F32, shape: vec![count] }
}

/// A model of which each of two servers has more than one tensor, of lengths that fill no line.
pub fn model() -> Model {
    let sizes = [1000, 999, 17, 16, 5, 1];
    let tensors = sizes.iter().map(|count| tensor(&format!("layer/{count}"), *count)).collect();
    Model::of("counted", tensors).unwrap()
}

/// Every other pair of seeds has parameters in memory of GPUs.
pub fn memory() -> Memory {
    let seed = std::env::var("RINGDOVE_TEST_SEED").map_or(0, |seed| seed.parse().unwrap());
    if seed & 2 == 0 { Memory::Host } else { Memory::Gpu }
}

pub fn job(servers: usize, workers: usize) -> Job {
    let optimizer = Optimizer::Sgd { rate: 1.0 };
    Job { optimizer, memory: memory(), ..Job::new(model(), servers, workers) }
}

/// Gradients of each worker in each shard, as the parameters count them. All parameters of a shard
/// are the same number, or a read was torn.
pub fn counts(client: &Client) -> Vec<Vec<u64>> {
    let job = client.job();
    let mut shards = vec![None; job.shards];
    for tensor in job.model.tensors() {
        let shard = client.place(&tensor.name).unwrap().0;
        for value in client.floats(&tensor.name).unwrap() {
            let first = *shards[shard].get_or_insert(value);
            assert_eq!(value, first, "{}: a torn read", tensor.name);
        }
    }
    let digits = |value: f32| {
        let mut left = -value as u64;
        (0..job.workers)
            .map(|_| {
                let digit = left % BASE;
                left /= BASE;
                digit
            })
            .collect()
    };
    shards.into_iter().map(|value| digits(value.unwrap())).collect()
}

/// What a worker sends in each step: its digit, for all tensors.
pub fn gradients(client: &Client) -> Vec<(String, Vec<f32>)> {
    let value = BASE.pow(client.worker() as u32) as f32;
    let tensors = client.job().model.tensors().iter();
    tensors.map(|it| (it.name.clone(), vec![value; it.shape[0] as usize])).collect()
}

/// The same, as a push takes it.
pub fn named(values: &[(String, Vec<f32>)]) -> Vec<(&str, &[f32])> {
    values.iter().map(|(name, values)| (name.as_str(), &values[..])).collect()
}

/// Is everything there that the workers send, but for one that may be lost?
pub fn is_whole(counts: &[u64], lost: Option<usize>) -> bool {
    let mut counts = counts.iter().enumerate();
    counts.all(|(worker, count)| *count == STEPS || Some(worker) == lost)
}

/// What a worker saw.
pub struct Seen {
    pub counts: Vec<Vec<u64>>,
    pub slowest: Duration,
    pub removed: Vec<usize>,
    pub reconnected: u64,
}

/// A worker that sends its gradients and checks, after each, that what was acknowledged is in the
/// parameters, and nothing that was not sent. `at_step` is called before each.
pub fn work(client: Client, at_step: impl FnMut(u64, &mut Client)) -> Seen {
    work_beside(client, None, at_step)
}

/// As [`work`], where one worker may be lost: nobody waits for its gradients.
pub fn work_beside(
    mut client: Client,
    lost: Option<usize>,
    mut at_step: impl FnMut(u64, &mut Client),
) -> Seen {
    let worker = client.worker();
    let values = gradients(&client);
    let gradients = named(&values);
    let mut slowest = Duration::ZERO;
    for step in 0..STEPS {
        at_step(step, &mut client);
        let start = Instant::now();
        client.push(&gradients).unwrap();
        if step % 3 == 0 {
            client.settle().unwrap();
        }
        let acknowledged = client.acknowledged().to_vec();
        client.pull().unwrap();
        slowest = slowest.max(start.elapsed());
        for (shard, counts) in counts(&client).iter().enumerate() {
            let range = acknowledged[shard]..=step + 1;
            assert!(range.contains(&counts[worker]), "shard {shard}: {counts:?}, not {range:?}");
        }
    }
    client.settle().unwrap();
    // The others end too.
    let (mut seen, start) = (Vec::<Vec<u64>>::new(), Instant::now());
    while seen.is_empty() || !seen.iter().all(|counts| is_whole(counts, lost)) {
        assert!(start.elapsed() < PATIENCE, "others do not end: {seen:?}");
        client.pull().unwrap();
        seen = counts(&client);
    }
    assert!(seen.iter().all(|counts| counts[worker] == STEPS), "{seen:?}");
    let (removed, reconnected) = (client.removed(), client.reconnected());
    client.leave().unwrap();
    println!(
        "worker {worker}: slowest step {slowest:?}, removed {removed:?}, {reconnected} anew, \
         {seen:?}"
    );
    Seen { counts: seen, slowest, removed, reconnected }
}

pub fn serve(job: Job, stop: impl FnMut(&Served) -> bool) -> Served {
    let mut server = Server::join(job, &launch(), &settings()).unwrap();
    let served = server.run_until(stop).unwrap();
    println!("{served:?}");
    served
}

pub fn client(job: Job) -> Client {
    client_with(job, &settings())
}

pub fn client_with(job: Job, settings: &Settings) -> Client {
    Client::join(job, Role::Worker, &launch(), settings).unwrap()
}

/// A worker that loses its adapter: it is told so, and what it was told before is true.
pub fn work_until_lost(mut client: Client) {
    let values = gradients(&client);
    let gradients = named(&values);
    for _ in 0..STEPS {
        let done = client.push(&gradients).and_then(|()| client.pull().map(drop));
        if let Err(error) = done {
            assert!(matches!(error, Error::HostWaitExpired { .. }), "{error}");
            return;
        }
    }
    panic!("nothing was lost");
}

/// Seeds of a run: three, or as many as `RINGDOVE_SERVE_SEEDS` says, from `RINGDOVE_SERVE_FIRST`.
pub fn seeds() -> Range<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let first = number("RINGDOVE_SERVE_FIRST").unwrap_or(0);
    first..first + number("RINGDOVE_SERVE_SEEDS").unwrap_or(3)
}

/// How a seed is run again, alone.
pub fn again(seed: u64) -> String {
    format!("RINGDOVE_SERVE_FIRST={seed} RINGDOVE_SERVE_SEEDS=1 runs it alone")
}

/// Runs the body with each seed, in five processes.
pub fn for_seeds(name: &str, body: impl Fn()) {
    if std::env::var_os("RINGDOVE_TEST_SEED").is_some() {
        return body();
    }
    for seed in seeds() {
        println!("{name}: seed {seed}; {}", again(seed));
        let seed = seed.to_string();
        on_machine_env(NODES, &PROCESSES, &[("RINGDOVE_TEST_SEED", &seed)], &body);
    }
}
