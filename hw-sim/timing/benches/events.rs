//! Events a second of the timing model, on one core.

#[path = "../tests/worlds/mod.rs"]
mod worlds;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use hwsim_timing::queue::Queue;
use hwsim_timing::{Engine, RankProgram, Setup, simulate};
use ringdove::plan::{Limits, Pattern};
use std::hint::black_box;
use worlds::{draft_within, machine, nvswitch, profile, programs};

fn all_reduce(ranks: u32, bytes: u64) -> Vec<RankProgram> {
    programs(&draft_within(Pattern::Halving, ranks, bytes, &Limits::new(2, 512 << 10, 4)))
}

fn events(criterion: &mut Criterion) {
    let profile = profile("a100");
    let mut group = criterion.benchmark_group("events");
    group.sample_size(10);
    for (nodes, engine) in [(1, Engine::Proxy), (1, Engine::Stores), (32, Engine::Proxy)] {
        let machine = machine(&nvswitch(8), nodes, &profile);
        let programs = all_reduce(8 * nodes as u32, (64 << 20) / nodes as u64 * 4);
        // Every rank: folded, there would be little to measure.
        let setup = Setup { folds: false, ..Setup::new(&machine, &profile, engine) };
        let events = simulate(setup, &programs).expect("it ends").events;
        group.throughput(Throughput::Elements(events));
        let name = format!("all-reduce, {} GPUs, {}", 8 * nodes, engine.name());
        group.bench_function(name, |bencher| {
            bencher.iter(|| black_box(simulate(setup, &programs).expect("it ends").end));
        });
    }
    group.finish();
}

/// The queue alone: as many events in flight as a large world has.
fn queue(criterion: &mut Criterion) {
    const IN_FLIGHT: u64 = 100_000;
    let mut group = criterion.benchmark_group("queue");
    group.throughput(Throughput::Elements(IN_FLIGHT));
    group.bench_function("100,000 in flight", |bencher| {
        let mut queue = Queue::default();
        let mut random = fastrand::Rng::with_seed(1);
        let mut delay = move || random.u64(..10_000_000);
        for event in 0..IN_FLIGHT {
            queue.push(delay(), event);
        }
        bencher.iter(|| {
            for _ in 0..IN_FLIGHT {
                let event = loop {
                    match queue.pop() {
                        Some(event) => break event,
                        None => assert!(queue.advance(), "events never run out"),
                    }
                };
                queue.push(queue.now() + delay(), event);
            }
        });
    });
    group.finish();
}

criterion_group!(benches, events, queue);
criterion_main!(benches);
