//! Wall time of all-reduce on virtual GPUs, from the first enqueue to the last stream's end.
//!
//! These are times of a simulation: they compare versions of this repository on one machine, and
//! say nothing about GPUs.

use criterion::{BenchmarkId, Criterion, Throughput};
use cudarc::driver::{CudaSlice, CudaStream};
use ringdove::{Algorithms, Communicator, ReduceOp, Registered, Settings, open_device};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// Set inside of a virtual machine: its name.
const INSIDE: &str = "RINGDOVE_BENCH_INSIDE";
/// A machine with NVLinks from GPU to GPU.
const MESH: &str = "dgx1v";

struct Rank {
    communicator: Communicator,
    stream: Arc<CudaStream>,
    buffer: Buffer,
}

enum Buffer {
    Plain(CudaSlice<f32>),
    Registered(Registered<f32>),
}

impl Rank {
    fn enqueue(&mut self) {
        let Self { communicator, stream, buffer } = self;
        let sum = ReduceOp::Sum;
        let called = match buffer {
            Buffer::Plain(buffer) => communicator.all_reduce_in_place(buffer, sum, stream),
            Buffer::Registered(buffer) => communicator.all_reduce_in_place(buffer, sum, stream),
        };
        called.unwrap();
    }
}

/// `count` ranks on as many GPUs, with zeroed buffers of `bytes`, registered if asked.
fn ranks(count: usize, bytes: usize, registered: bool) -> Vec<Rank> {
    ranks_with(&Settings::from_env().unwrap(), count, bytes, registered)
}

fn ranks_with(settings: &Settings, count: usize, bytes: usize, registered: bool) -> Vec<Rank> {
    let contexts: Vec<_> = (0..count).map(|ordinal| open_device(ordinal).unwrap()).collect();
    let communicators = Communicator::init_all(&contexts, settings).unwrap();
    communicators
        .into_iter()
        .map(|communicator| {
            let stream = communicator.context().new_stream().unwrap();
            let buffer = stream.alloc_zeros::<f32>(bytes / 4).unwrap();
            stream.synchronize().unwrap();
            let buffer = match registered {
                true => Buffer::Registered(communicator.register(buffer).unwrap()),
                false => Buffer::Plain(buffer),
            };
            Rank { communicator, stream, buffer }
        })
        .collect()
}

/// Waits for all that the ranks have enqueued.
fn finish(ranks: &[Rank]) {
    for rank in ranks {
        rank.stream.synchronize().unwrap();
        rank.communicator.check().unwrap();
    }
}

fn all_reduce(criterion: &mut Criterion) {
    for (mode, registered) in [("staged", false), ("registered", true)] {
        let mut group = criterion.benchmark_group(format!("all-reduce f32 in place, {mode}"));
        group.sample_size(10).measurement_time(Duration::from_secs(3));
        for (gpus, bytes) in
            [2, 4].into_iter().flat_map(|gpus| [8 << 10, 1 << 20, 64 << 20].map(|b| (gpus, b)))
        {
            let mut ranks = ranks(gpus, bytes, registered);
            group.throughput(Throughput::Bytes(bytes as u64));
            let id = BenchmarkId::new(format!("{gpus} virtual GPUs"), bytes);
            group.bench_function(id, |bencher| {
                bencher.iter(|| {
                    ranks.iter_mut().for_each(Rank::enqueue);
                    finish(&ranks);
                });
            });
        }
        group.finish();
    }
}

/// Small all-reduces of each rank, one by one and in a group.
fn groups(criterion: &mut Criterion) {
    const CALLS: usize = 8;
    const BYTES: usize = 8 << 10;
    let mut group = criterion.benchmark_group("eight all-reduces of 8 KiB");
    group.sample_size(20).measurement_time(Duration::from_secs(3));
    for gpus in [2, 4] {
        let mut ranks = ranks(gpus, BYTES, false);
        let new = |rank: &Rank| -> Vec<_> {
            (0..CALLS).map(|_| rank.stream.alloc_zeros::<f32>(BYTES / 4).unwrap()).collect()
        };
        let mut buffers: Vec<Vec<CudaSlice<f32>>> = ranks.iter().map(new).collect();
        for grouped in [false, true] {
            let how = if grouped { "in a group" } else { "one by one" };
            group.bench_function(
                BenchmarkId::new(format!("{gpus} virtual GPUs"), how),
                |bencher| {
                    bencher.iter(|| {
                        for (rank, buffers) in ranks.iter_mut().zip(&mut buffers) {
                            let Rank { communicator, stream, .. } = rank;
                            if grouped {
                                let mut group = communicator.group();
                                for buffer in buffers {
                                    group.all_reduce_in_place(buffer, ReduceOp::Sum).unwrap();
                                }
                                group.launch(stream).unwrap();
                            } else {
                                for buffer in buffers {
                                    let sum = ReduceOp::Sum;
                                    communicator.all_reduce_in_place(buffer, sum, stream).unwrap();
                                }
                            }
                        }
                        finish(&ranks);
                    });
                },
            );
        }
    }
    group.finish();
}

/// By algorithm and size, on the mesh, where there are packed trees.
fn algorithms(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("all-reduce f32 in place, four GPUs of dgx1v");
    group.sample_size(10).measurement_time(Duration::from_secs(3));
    for bytes in [8 << 10, 256 << 10, 4 << 20] {
        for name in ["table", "auto", "trees", "ring", "doubling", "halving", "two-shot"] {
            let algorithm: Algorithms = name.parse().expect("its name");
            let settings = Settings { algorithm, ..Settings::from_env().unwrap() };
            let mut ranks = ranks_with(&settings, 4, bytes, false);
            group.throughput(Throughput::Bytes(bytes as u64));
            group.bench_function(BenchmarkId::new(name, bytes), |bencher| {
                bencher.iter(|| {
                    ranks.iter_mut().for_each(Rank::enqueue);
                    finish(&ranks);
                });
            });
        }
    }
    group.finish();
}

fn main() {
    if let Ok(machine) = std::env::var(INSIDE) {
        let mut criterion = Criterion::default().configure_from_args();
        match machine == MESH {
            true => algorithms(&mut criterion),
            false => {
                all_reduce(&mut criterion);
                groups(&mut criterion);
            }
        }
        return criterion.final_summary();
    }
    let outcomes = ["pcie4", MESH].map(run_on);
    std::process::exit(outcomes.into_iter().max().unwrap_or(0));
}

/// Once more, on a virtual machine; the status with which it ends.
fn run_on(machine: &str) -> i32 {
    let own = std::env::current_exe().unwrap();
    let hwsim = own.parent().and_then(|deps| deps.parent()).unwrap().join("hwsim");
    let status = Command::new(&hwsim)
        .args(["run", "--quiet", "--machine", machine, "--"])
        .arg(own)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, machine)
        .status()
        .unwrap_or_else(|error| panic!("{}: {error}; build the workspace", hwsim.display()));
    status.code().unwrap_or(1)
}
