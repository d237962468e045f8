//! What the flight recorder costs: for each call of a rank, what is written when the call is made
//! and when its launch is enqueued; and a look of the watchdog at one rank, which is on no rank's
//! path.

use criterion::{Criterion, criterion_group, criterion_main};
use ringdove::flight::{Digest, Flight, RankRecorder};
use ringdove::id::Rank;
use std::hint::black_box;
use std::time::Duration;

fn recorder() -> RankRecorder {
    let node = (0..8).map(Rank).collect();
    let timeout = Duration::from_secs(600);
    let flight = Flight { key: 1, rank: Rank(0), rank_count: 8, node, timeout };
    RankRecorder::new(&flight).expect("memory for the recorder")
}

fn calls(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("flight recorder");
    let recorder = recorder();
    let mut number = 0u64;
    group.bench_function("a collective and its launch", |bencher| {
        bencher.iter(|| {
            let count = black_box(1000);
            let digest = Digest::of([1, count, 2, 3, 0]);
            recorder.collective(number, "all-reduce", count, digest);
            recorder.launched(number, 1, "ring staged", false);
            number += 1;
        });
    });
    group.finish();
}

fn reports(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("flight recorder");
    let recorder = recorder();
    (0..200).for_each(|number| recorder.launched(number, 1, "ring staged", false));
    group.bench_function("a report on one rank", |bencher| {
        bencher.iter(|| black_box(ringdove::flight::report()));
    });
    group.finish();
}

criterion_group!(benches, calls, reports);
criterion_main!(benches);
