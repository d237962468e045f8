//! What planning costs on this processor: packing against the number of GPUs, proofs against the
//! number of ranks, and choices of the cost model. And what the model says of each algorithm: these
//! times are modelled, not measured.

use criterion::{BenchmarkId, Criterion};
use ringdove::communicator::pack_forest;
use ringdove::cost::{Model, Moved};
use ringdove::plan::{
    Collective, CollectiveRequest, Limits, build, candidates, select, select_packed, verify,
};
use ringdove::topology::graph::CapacityGraph;
use ringdove::topology::machine::{CLASS_GPU, CLASS_NVSWITCH, NvLinks};
use ringdove::topology::packing::{Roots, pack};
use ringdove::topology::pci::PciAddress;
use ringdove::topology::ranks::{RankGpu, capacities};
use std::sync::Arc;
use std::time::Duration;

/// Boxes of eight H100-like GPUs: 450 GB/s to a switch, 50 GB/s to one network.
fn boxes(count: u32) -> CapacityGraph {
    let mut graph = CapacityGraph::new();
    let gpus: Vec<_> = (0..8 * count).map(|gpu| graph.gpu(format!("gpu{gpu}"))).collect();
    for eight in gpus.chunks(8) {
        let switch = graph.switch("nvswitch");
        eight.iter().for_each(|gpu| graph.link(*gpu, switch, 450).expect("a link"));
    }
    if count > 1 {
        let network = graph.switch("network");
        gpus.iter().for_each(|gpu| graph.link(*gpu, network, 50).expect("a link"));
    }
    graph
}

fn at(bus: u8) -> PciAddress {
    PciAddress { domain: 0, bus, device: 0, function: 0 }
}

/// A GPU of this compute capability, with these NVLinks.
fn gpu(number: u8, compute: u32, nvlinks: Vec<NvLinks>, pcie_megabytes: u64) -> RankGpu {
    RankGpu {
        address: at(number),
        compute,
        nvlink_megabytes: 25_000,
        nvlinks,
        adapter_megabytes: 12_500,
        pcie_megabytes,
        bridges: vec![at(0x40 + number), at(0x60 + number / 2)],
        socket: u32::from(number >= 4),
    }
}

/// Links of the mesh of a DGX-1V.
const TWO: [(u8, u8); 8] = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)];
const ONE: [(u8, u8); 8] = [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)];

/// Machines of one node: their names, their GPUs, and whether NVLink joins each two.
fn machines() -> Vec<(&'static str, Vec<RankGpu>, bool)> {
    let mesh = |number: u8| {
        let links = TWO.map(|pair| (pair, 2)).into_iter().chain(ONE.map(|pair| (pair, 1)));
        let ends = links.filter_map(|((a, b), count)| {
            let to = if a == number { b } else { a };
            let has = a == number || b == number;
            has.then(|| NvLinks { to: at(to), count, class: CLASS_GPU })
        });
        gpu(number, 70, ends.collect(), 15_754)
    };
    let switched = |compute, count, pcie| {
        move |number: u8| {
            let links = NvLinks { to: at(0x90), count, class: CLASS_NVSWITCH };
            gpu(number, compute, vec![links], pcie)
        }
    };
    vec![
        ("pcie, 4 V100", (0..4).map(|number| gpu(number, 70, Vec::new(), 15_754)).collect(), false),
        ("mesh, 8 V100", (0..8).map(mesh).collect(), false),
        ("NVSwitch, 8 A100", (0..8).map(switched(80, 12, 31_508)).collect(), true),
        ("NVSwitch, 8 H100", (0..8).map(switched(90, 18, 63_015)).collect(), true),
    ]
}

fn request(rank_count: u32, bytes: u64) -> CollectiveRequest {
    CollectiveRequest::new(Collective::AllReduce, rank_count, bytes)
}

fn packing(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("packing of all-gather trees, boxes of 8 GPUs");
    group.sample_size(10).measurement_time(Duration::from_secs(3));
    for count in [1, 2, 4, 8, 16, 32, 128] {
        let graph = boxes(count);
        let roots = Roots::all(&graph);
        group.bench_function(BenchmarkId::from_parameter(8 * count), |bencher| {
            bencher.iter(|| pack(&graph, &roots, None).expect("trees"));
        });
    }
    group.finish();
}

fn proofs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("proof of an all-reduce of 1 MiB");
    group.sample_size(10).measurement_time(Duration::from_secs(3));
    for ranks in [2, 4, 8, 16, 32, 64] {
        let request = request(ranks, 1 << 20);
        let choice = select(&request, &Limits::new(4, 1 << 20, 4)).expect("a plan");
        let plan = build(&choice);
        let id = BenchmarkId::new(choice.algorithm.name(), ranks);
        group.bench_function(id, |bencher| {
            bencher.iter(|| verify(plan.clone(), &request.promise()).expect("a proof"));
        });
    }
    group.finish();
}

/// Every algorithm by size and machine, as the cost model sees it.
fn predictions() {
    println!("\nAll-reduce, us, MODELLED by the library's cost model: no time was measured\n");
    println!("| machine | profile | size | algorithms, the fastest first |\n|---|---|---|---|");
    for (name, gpus, nvlink) in machines() {
        let ranks = gpus.len() as u32;
        let model = Model::of(&gpus, ranks, None).expect("few ranks");
        let limits = Limits {
            low_latency_bytes: 16 << 10,
            stores: true,
            store_blocks: 32,
            nvlink,
            ..Limits::new(4, 1 << 20, 4)
        };
        let graph = capacities(&gpus, ranks).expect("one node");
        let forest = pack_forest(&graph, None, 32).ok().map(Arc::new);
        for (size, bytes) in [("8 KiB", 8 << 10), ("1 MiB", 1 << 20), ("64 MiB", 64 << 20)] {
            let request = request(ranks, bytes);
            let mut all = candidates(&request, &limits).expect("plans");
            all.extend(forest.as_ref().and_then(|it| select_packed(&request, &limits, it).ok()));
            let moved = Moved { by_device: false, stores: true };
            let mut times: Vec<_> = all
                .iter()
                .filter_map(|choice| Some((model.predict(choice, moved)?.us, choice)))
                .collect();
            times.sort_by(|a, b| a.0.total_cmp(&b.0));
            let words: Vec<_> = times
                .iter()
                .map(|(us, choice)| {
                    let stored = choice.stores && choice.algorithm.name() == "two-shot";
                    let how = if stored { ", stores" } else { "" };
                    format!("{}{how} {us:.1}", choice.algorithm.name())
                })
                .collect();
            let profile = &model.profile.name;
            println!("| {name} | `{profile}` | {size} | {} |", words.join("; "));
        }
    }
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    packing(&mut criterion);
    proofs(&mut criterion);
    predictions();
    criterion.final_summary();
}
