//! Wall time of all-reduce on virtual GPUs, from the first enqueue to the last stream's end.
//!
//! These are times of a simulation: they compare versions of this repository on one machine, and
//! say nothing about GPUs.

use criterion::{BenchmarkId, Criterion, Throughput};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use ringdove::{Communicator, DataType, ReduceOp, Settings, open_device};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

const INSIDE: &str = "RINGDOVE_BENCH_INSIDE";

struct Rank {
    communicator: Communicator,
    stream: Arc<CudaStream>,
    buffer: CudaSlice<u8>,
}

impl Rank {
    fn enqueue(&self, bytes: usize) {
        let (at, _use) = self.buffer.device_ptr(&self.stream);
        let count = bytes / 4;
        self.communicator
            .all_reduce_raw(at, at, count, DataType::F32, ReduceOp::Sum, &self.stream)
            .unwrap();
    }
}

/// `count` ranks on as many GPUs, with zeroed buffers of `bytes`, registered if asked.
fn ranks(count: usize, bytes: usize, registered: bool) -> Vec<Rank> {
    let contexts: Vec<_> = (0..count).map(|ordinal| open_device(ordinal).unwrap()).collect();
    let communicators = Communicator::init_all(&contexts, &Settings::from_env().unwrap()).unwrap();
    communicators
        .into_iter()
        .map(|communicator| {
            let stream = communicator.context().new_stream().unwrap();
            let buffer = stream.alloc_zeros::<u8>(bytes).unwrap();
            stream.synchronize().unwrap();
            if registered {
                communicator.register(buffer.device_ptr(&stream).0, bytes).unwrap();
            }
            Rank { communicator, stream, buffer }
        })
        .collect()
}

fn all_reduce(criterion: &mut Criterion) {
    for (mode, registered) in [("staged", false), ("registered", true)] {
        let mut group = criterion.benchmark_group(format!("all-reduce f32 in place, {mode}"));
        group.sample_size(10).measurement_time(Duration::from_secs(3));
        for (gpus, bytes) in
            [2, 4].into_iter().flat_map(|gpus| [8 << 10, 1 << 20, 64 << 20].map(|b| (gpus, b)))
        {
            let ranks = ranks(gpus, bytes, registered);
            group.throughput(Throughput::Bytes(bytes as u64));
            let id = BenchmarkId::new(format!("{gpus} virtual GPUs"), bytes);
            group.bench_function(id, |bencher| {
                bencher.iter(|| {
                    ranks.iter().for_each(|rank| rank.enqueue(bytes));
                    for rank in &ranks {
                        rank.stream.synchronize().unwrap();
                        rank.communicator.check().unwrap();
                    }
                });
            });
        }
        group.finish();
    }
}

fn main() {
    if std::env::var_os(INSIDE).is_some() {
        let mut criterion = Criterion::default().configure_from_args();
        all_reduce(&mut criterion);
        return criterion.final_summary();
    }
    // Once more, on a virtual machine.
    let own = std::env::current_exe().unwrap();
    let hwsim = own.parent().and_then(|deps| deps.parent()).unwrap().join("hwsim");
    let status = Command::new(&hwsim)
        .args(["run", "--quiet", "--machine", "pcie4", "--"])
        .arg(own)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .status()
        .unwrap_or_else(|error| panic!("{}: {error}; build the workspace", hwsim.display()));
    std::process::exit(status.code().unwrap_or(1));
}
