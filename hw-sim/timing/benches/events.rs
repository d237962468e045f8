//! Events a second of the timing model, on one core.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use hwsim_timing::queue::Queue;
use hwsim_timing::{
    Edge, Engine, Graph, Lane, LinkKind, Machine, Network, Port, Profile, Programs, RankProgram,
    Setup, simulate,
};
use ringdove::ReduceOp;
use ringdove::plan::{Collective, Draft, LaneKind, Limits, Pattern, Request, Side};
use std::hint::black_box;

/// A draft's programs, made once: the bench is about the model.
struct Made(Vec<RankProgram>);

impl Programs for Made {
    fn rank_count(&self) -> u32 {
        self.0.len() as u32
    }

    fn program(&self, rank: u32) -> RankProgram {
        self.0[rank as usize].clone()
    }
}

fn all_reduce(ranks: u32, bytes: u64) -> Made {
    let request = Request {
        collective: Collective::AllReduce,
        rank_count: ranks,
        bytes,
        element_bytes: 4,
        reduce_op: ReduceOp::Sum,
        in_place: false,
        registered: false,
    };
    let limits = Limits {
        blocks_max: 2,
        slot_bytes: 512 << 10,
        slot_count: 4,
        ranks_per_node: 0,
        flagged_bytes: 0,
    };
    let draft = Draft::new(Pattern::Halving, &request, &limits).expect("in range");
    let rank = |rank| {
        let (encoded, table) = draft.encoded(rank);
        let index = |lane: ringdove::plan::LaneId| {
            2 * u32::from(lane.index) + u32::from(lane.kind == LaneKind::Direct)
        };
        let ports = table.iter().map(|end| Port {
            lane: Lane { from: end.lane.from, to: end.lane.to, index: index(end.lane) },
            sends: end.side == Side::Send,
        });
        RankProgram { encoded, ports: ports.collect() }
    };
    Made((0..ranks).map(rank).collect())
}

/// Nodes of eight GPUs on an NVSwitch.
fn machine(nodes: usize, profile: &Profile) -> Machine {
    let mut edges = Vec::new();
    for gpu in 0..8 {
        let edge = |other, kind, gb_per_s| Edge { ends: [gpu, other], kind, count: 1, gb_per_s };
        edges.push(edge(8, LinkKind::Pcie, 31.5));
        edges.push(edge(9, LinkKind::NvLink, 300.0));
    }
    let mut points: Vec<String> = (0..8).map(|gpu| format!("gpu{gpu}")).collect();
    points.extend(["cpu0", "nvswitch"].map(String::from));
    let graph = Graph { name: "eight".into(), gpu_count: 8, points, edges };
    Machine::new(&graph, nodes, Network::default(), profile).expect("in range")
}

fn worlds(criterion: &mut Criterion) {
    let profile = Profile::find("a100").expect("built in");
    let mut group = criterion.benchmark_group("events");
    group.sample_size(10);
    for (nodes, engine) in [(1, Engine::Proxy), (1, Engine::Stores), (32, Engine::Proxy)] {
        let machine = machine(nodes, &profile);
        let programs = all_reduce(8 * nodes as u32, (64 << 20) / nodes as u64 * 4);
        let setup = Setup::new(&machine, &profile, engine);
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
        let mut state = 1u64;
        let mut delay = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) % 10_000_000
        };
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

criterion_group!(benches, worlds, queue);
criterion_main!(benches);
