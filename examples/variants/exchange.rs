//! What a worker does with its gradient, between two steps.

use crate::train::{RATE, Result, WIDTHS};
use cudarc::driver::{CudaSlice, CudaStream};
use ringdove::serve::Client;
use ringdove::window::{HostWindow, Signal, Windows};
use ringdove::{Communicator, ReduceOp};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Steps of a worker alone between two averages.
const ALONE: usize = 10;

/// The numbers of all layers, one behind the other.
#[derive(Clone)]
pub struct Weights(pub Vec<f32>);

impl Weights {
    pub fn of(layers: Vec<Vec<f32>>) -> Self {
        Self(layers.into_iter().flatten().collect())
    }

    pub fn layers(&self) -> Vec<Vec<f32>> {
        let mut rest = &self.0[..];
        let counts = WIDTHS.windows(2).map(|widths| (widths[0] + 1) * widths[1]);
        let layer = |count| {
            let (layer, behind) = rest.split_at(count);
            rest = behind;
            layer.to_vec()
        };
        counts.map(layer).collect()
    }

    fn descend(&mut self, gradient: &[f32], rate: f32) {
        self.0.iter_mut().zip(gradient).for_each(|(weight, gradient)| *weight -= rate * gradient);
    }

    fn average_with(&mut self, other: &[f32]) {
        self.0.iter_mut().zip(other).for_each(|(weight, other)| *weight = (*weight + other) / 2.0);
    }
}

/// How long a worker waits for gradients of others.
const PATIENCE: Duration = Duration::from_secs(60);

/// A way to share what is learnt.
pub trait Exchange {
    /// `gradient` is this worker's share of that of all samples.
    fn step(&mut self, step: usize, weights: &mut Weights, gradient: &Weights) -> Result<()>;

    /// After the last step.
    fn leave(self) -> Result<()>
    where
        Self: Sized,
    {
        Ok(())
    }
}

fn numbers() -> usize {
    WIDTHS.windows(2).map(|widths| (widths[0] + 1) * widths[1]).sum()
}

/// What stands for the gradient of all samples where a worker has its own alone.
fn own_rate(communicator: &Communicator) -> f32 {
    RATE * communicator.rank_count() as f32
}

/// The memory of a worker that takes part in collectives.
pub struct Buffers<'c> {
    communicator: &'c Communicator,
    stream: Arc<CudaStream>,
    sent: CudaSlice<f32>,
    received: CudaSlice<f32>,
}

impl<'c> Buffers<'c> {
    pub fn new(communicator: &'c Communicator) -> Result<Self> {
        let stream = communicator.context().new_stream()?;
        let (sent, received) = (stream.alloc_zeros(numbers())?, stream.alloc_zeros(numbers())?);
        stream.synchronize()?;
        Ok(Self { communicator, stream, sent, received })
    }

    fn all_reduce(&mut self, values: &[f32], op: ReduceOp) -> Result<Vec<f32>> {
        self.stream.memcpy_htod(values, &mut self.sent)?;
        self.communicator.all_reduce_in_place(&mut self.sent, op, &self.stream)?;
        let reduced = self.stream.clone_dtoh(&self.sent)?;
        self.communicator.check()?;
        Ok(reduced)
    }
}

/// Gradients are added up in each step.
pub struct AllReduce<'c>(pub Buffers<'c>);

impl Exchange for AllReduce<'_> {
    fn step(&mut self, _: usize, weights: &mut Weights, gradient: &Weights) -> Result<()> {
        let sum = self.0.all_reduce(&gradient.0, ReduceOp::Sum)?;
        weights.descend(&sum, RATE);
        Ok(())
    }
}

/// Workers learn alone, and take the average of their weights now and then.
pub struct LocalSteps<'c>(pub Buffers<'c>);

impl Exchange for LocalSteps<'_> {
    fn step(&mut self, step: usize, weights: &mut Weights, gradient: &Weights) -> Result<()> {
        weights.descend(&gradient.0, own_rate(self.0.communicator));
        if (step + 1).is_multiple_of(ALONE) {
            weights.0 = self.0.all_reduce(&weights.0, ReduceOp::Avg)?;
        }
        Ok(())
    }
}

/// Each takes the average of its weights and those of the worker before it, by send and receive.
pub struct RingAverages<'c>(pub Buffers<'c>);

impl Exchange for RingAverages<'_> {
    fn step(&mut self, _: usize, weights: &mut Weights, gradient: &Weights) -> Result<()> {
        let Buffers { communicator, stream, sent, received } = &mut self.0;
        weights.descend(&gradient.0, own_rate(communicator));
        stream.memcpy_htod(&weights.0, sent)?;
        let (rank, count) = (communicator.rank(), communicator.rank_count());
        let mut group = communicator.group();
        group.send(&*sent, (rank + 1) % count)?;
        group.receive(received, (rank + count - 1) % count)?;
        group.launch(stream)?;
        let before = stream.clone_dtoh(received)?;
        communicator.check()?;
        weights.average_with(&before);
        Ok(())
    }
}

/// As averages along a ring, but each reads what the worker before it has in its window, whenever
/// that was written there: nobody waits. Some of the numbers may be of one step, some of the next.
pub struct OneSided<'c> {
    communicator: &'c Communicator,
    windows: Windows<'c>,
    /// The own weights, and then those that were read.
    memory: HostWindow,
}

impl<'c> OneSided<'c> {
    pub fn new(communicator: &'c Communicator) -> Result<Self> {
        let windows = Windows::open(communicator, 0)?;
        let memory = windows.host(8 * numbers() as u64)?;
        Ok(Self { communicator, windows, memory })
    }
}

impl Exchange for OneSided<'_> {
    fn step(&mut self, _: usize, weights: &mut Weights, gradient: &Weights) -> Result<()> {
        weights.descend(&gradient.0, own_rate(self.communicator));
        let bytes = 4 * numbers() as u64;
        self.memory.store(0, bytemuck::cast_slice(&weights.0))?;
        let (rank, count) = (self.communicator.rank(), self.communicator.rank_count());
        let window = self.memory.window();
        let from = window.part((rank + count - 1) % count, 0, bytes);
        let to = window.part(rank, bytes, bytes);
        self.windows.start(&from, &to, Signal::None)?.finish()?;
        let read = self.memory.load(bytes, bytes)?;
        let float = |bytes: &[u8]| f32::from_ne_bytes(bytes.try_into().expect("four bytes"));
        let read: Vec<f32> = read.chunks_exact(4).map(float).collect();
        // Zeros: that worker has written nothing yet.
        if read.iter().any(|weight| *weight != 0.0) {
            weights.average_with(&read);
        }
        Ok(())
    }
}

/// Servers apply gradients; workers read the weights.
pub struct Servers {
    client: Client,
    names: Vec<String>,
    /// Versions of each shard before the first gradient: its layers are written one by one.
    first: Vec<u64>,
}

impl Servers {
    /// The first worker brings the weights that training begins with, and the others wait for them.
    pub fn new(mut client: Client, layers: &[Vec<f32>]) -> Result<Self> {
        let names: Vec<_> = (0..layers.len()).map(|number| format!("layer{number}")).collect();
        if client.worker() == 0 {
            for (name, layer) in names.iter().zip(layers) {
                client.assign(name, 0, bytemuck::cast_slice(layer))?;
            }
        }
        let mut first = vec![0; client.job().shards];
        for (shard, _) in names.iter().filter_map(|name| client.place(name)) {
            first[shard] += 1;
        }
        let mut servers = Self { client, names, first };
        servers.read_after(0)?;
        Ok(servers)
    }

    /// Reads weights by so many gradients of all workers, or more.
    fn read_after(&mut self, gradients: u64) -> Result<Weights> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let versions = self.client.pull()?;
            if versions.iter().zip(&self.first).all(|(it, first)| *it >= first + gradients) {
                break;
            }
            if Instant::now() > deadline {
                return Err(format!("no worker goes on at {versions:?}").into());
            }
            std::thread::yield_now();
        }
        let layers = self.names.iter().map(|name| self.client.floats(name));
        Ok(Weights::of(layers.collect::<std::result::Result<_, _>>()?))
    }
}

impl Exchange for Servers {
    fn step(&mut self, step: usize, weights: &mut Weights, gradient: &Weights) -> Result<()> {
        let layers = gradient.layers();
        let named: Vec<(&str, &[f32])> =
            self.names.iter().map(String::as_str).zip(layers.iter().map(Vec::as_slice)).collect();
        self.client.push(&named)?;
        // Applied: the weights that are read next know it.
        self.client.settle()?;
        let job = self.client.job();
        let all = match job.staleness {
            // In step with the others: what the weights are when all of them have been here.
            Some(0) => (job.workers * (step + 1)) as u64,
            _ => 0,
        };
        *weights = self.read_after(all)?;
        Ok(())
    }

    fn leave(self) -> Result<()> {
        Ok(self.client.leave()?)
    }
}
