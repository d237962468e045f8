//! What one descriptor costs on its way from a (host) producer through the proxy.
//!
//! Time per iteration is that of `DESCRIPTORS` descriptors; criterion also prints descriptors a
//! second. Both ends run on one thread: this measures instructions, not cache lines that travel
//! between cores or across PCI.

#[path = "../tests/support/mod.rs"]
mod support;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use ringdove::engine::{EngineSettings, Lane, Proxy, RegionDescriptor, Route};
use ringdove::id::{LaneId, Rank, RouteId};
use ringdove::ring::Committed;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::transports::NullTransport;
use support::{TestRank, TestRing, put};

const LOG2: u32 = 8;
const DESCRIPTORS: u64 = 1 << LOG2;

fn push_to_poll(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ring");
    group.throughput(Throughput::Elements(DESCRIPTORS));
    let (ring, mut consumer) = TestRing::new(LOG2);
    let mut batch = vec![Committed::default(); DESCRIPTORS as usize];
    let descriptor = put(1, 4096, 8192, 4096);
    group.bench_function("push and poll, batch of 256", |bencher| {
        bencher.iter(|| {
            for _ in 0..DESCRIPTORS {
                ring.producer.push(black_box(&descriptor), || true).expect("the ring is empty");
            }
            assert_eq!(consumer.poll(&mut batch), DESCRIPTORS as usize);
            black_box(&batch);
        });
    });
    group.bench_function("push and poll, one at a time", |bencher| {
        bencher.iter(|| {
            for _ in 0..DESCRIPTORS {
                ring.producer.push(black_box(&descriptor), || true).expect("the ring is empty");
                assert_eq!(consumer.poll(&mut batch), 1);
            }
            black_box(&batch);
        });
    });
    group.finish();
}

/// `contiguous`: descriptors that coalesce, or that do not.
fn proxy_step(criterion: &mut Criterion, name: &str, lanes: u32, contiguous: bool) {
    let settings = EngineSettings::default();
    let mut rank = TestRank::new(0, LOG2, NullTransport::default());
    let (attachment, handle) = rank.attachment(&settings);
    let mut proxy = Proxy::new(&settings);
    proxy.attach(attachment);
    for lane in 0..lanes {
        let id = LaneId(lane);
        let ends = Lane { peer: Rank(1), arrival: Some(64), completion: Some(128) };
        handle.add_lane(id, ends).expect("a new lane");
        let region = RegionDescriptor { base: 1 << 30, length_bytes: 1 << 30 };
        let route = Route { lane: id, source: region, destination: region, pull: false };
        handle.add_route(RouteId(lane), route).expect("a new route");
    }
    let stride = if contiguous { 4096 } else { 8192 };
    let rung = |index: u64| {
        let offset = index * stride;
        put((index % u64::from(lanes)) as u32, offset, offset, 4096)
    };
    let mut group = criterion.benchmark_group("proxy");
    group.throughput(Throughput::Elements(DESCRIPTORS));
    group.bench_function(name, |bencher| {
        bencher.iter_batched(
            || {
                for index in 0..DESCRIPTORS {
                    rank.ring(&rung(index));
                }
            },
            |()| {
                let progress = proxy.step(Duration::ZERO);
                assert_eq!(progress.descriptors, DESCRIPTORS);
            },
            // The ring holds the input of one iteration.
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

fn idle_step(criterion: &mut Criterion) {
    let settings = EngineSettings::default();
    let mut proxy = Proxy::new(&settings);
    let mut ranks: Vec<_> =
        (0..4).map(|number| TestRank::new(number, LOG2, NullTransport::default())).collect();
    let _handles: Vec<_> = ranks
        .iter_mut()
        .map(|rank| {
            let (attachment, handle) = rank.attachment(&settings);
            proxy.attach(attachment);
            handle
        })
        .collect();
    criterion.bench_function("proxy/idle step, 4 ranks", |bencher| {
        bencher.iter(|| black_box(proxy.step(Duration::ZERO)));
    });
}

fn proxy_steps(criterion: &mut Criterion) {
    proxy_step(criterion, "step of 256, 1 lane, nothing to coalesce", 1, false);
    proxy_step(criterion, "step of 256, 8 lanes, nothing to coalesce", 8, false);
    proxy_step(criterion, "step of 256, 1 lane, contiguous", 1, true);
    idle_step(criterion);
}

/// From a push on one core to its poll on another: half of the way there and back, each thread on a
/// core of its own.
fn between_cores(criterion: &mut Criterion) {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let [here, there, ..] = cores[..] else {
        return println!("ring: skipped: two cores are needed");
    };
    let (there_ring, mut questions) = TestRing::new(LOG2);
    let (back_ring, mut answers) = TestRing::new(LOG2);
    let stop = AtomicBool::new(false);
    let descriptor = put(1, 4096, 8192, 4096);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            core_affinity::set_for_current(there);
            let mut one = [Committed::default()];
            while !stop.load(Ordering::Relaxed) {
                if questions.poll(&mut one) == 1 {
                    back_ring.producer.push(&descriptor, || true).expect("the ring is empty");
                }
            }
        });
        core_affinity::set_for_current(here);
        let mut group = criterion.benchmark_group("ring");
        group.bench_function("push to poll between two cores", |bencher| {
            bencher.iter_custom(|iterations| {
                let mut one = [Committed::default()];
                let start = Instant::now();
                for _ in 0..iterations {
                    there_ring.producer.push(&descriptor, || true).expect("it is empty");
                    while answers.poll(&mut one) == 0 {
                        std::hint::spin_loop();
                    }
                }
                start.elapsed() / 2
            });
        });
        group.finish();
        stop.store(true, Ordering::Relaxed);
    });
}

criterion_group!(benches, push_to_poll, proxy_steps, between_cores);
criterion_main!(benches);
