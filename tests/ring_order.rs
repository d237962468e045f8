//! Rings follow links: on a mesh whose best ring is not that of ranks' numbers, results lie by rank
//! as ever, and engines move data between neighbours of that ring alone.

#[path = "collectives/case.rs"]
mod case;
mod hardware;

use case::{Case, check};
use hardware::every::along_links;
use hardware::perf::{assert_right, on_real_hardware, perf};
use hardware::{World, on_machine_env, settings};
use ringdove::{Collective, DataType, ReduceOp, RingOrders, Settings};
use std::collections::BTreeSet;

fn without_low_latency() -> Settings {
    Settings { low_latency_bytes: 0, ..settings() }
}

/// Sizes for rings and chains, out of place and in place: no larger, since virtual GPUs add slowly.
fn check_all(world: &World, root: u32) {
    for collective in along_links(root) {
        let count = if collective == Collective::AllReduce { 140_003 } else { 10_003 };
        for in_place in [false, true] {
            check(world, Case { in_place, ..Case::new(collective, count) });
        }
    }
    for (data_type, op) in [(DataType::F16, ReduceOp::Avg), (DataType::I8, ReduceOp::Max)] {
        check(world, Case { data_type, op, ..Case::new(Collective::AllReduce, 600_001) });
    }
}

/// The whole mesh, and parts of it whose best ring is another one.
#[test]
fn results_on_the_mesh_lie_by_rank() {
    on_machine_env("dgx1v", &[], &[], || {
        for gpus in [&[0, 1, 2, 3, 4, 5, 6, 7][..], &[0, 1, 4, 5, 7], &[7, 2, 1, 4, 0, 5]] {
            let contexts: Vec<_> =
                gpus.iter().map(|gpu| ringdove::open_device(*gpu).unwrap()).collect();
            check_all(&World::on(&contexts, &without_low_latency()), gpus.len() as u32 / 2);
        }
        let ranks = Settings { ring_order: RingOrders::Ranks, ..without_low_latency() };
        check_all(&World::with(8, &ranks), 3);
        let reproducible = Settings { reproducible: true, ..without_low_latency() };
        check_all(&World::with(8, &reproducible), 3);
    });
}

/// Pairs of ranks between which the engines of a run have put data.
fn pairs(inside: &str, processes: u32, line: &str) -> BTreeSet<(u32, u32)> {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let inside = format!(
        "export RINGDOVE_ALGORITHM=table RINGDOVE_LOW_LATENCY_BYTES=0 RINGDOVE_TRACE={}; {inside}",
        trace.display()
    );
    let ended = perf(("dgx1v", processes), "", &inside, line);
    assert_right(&format!("{inside}; {line}"), &ended);
    let mut pairs = BTreeSet::new();
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        for line in text.lines().filter(|line| line.contains(" send port of lane ")) {
            let pair = line.split(" lane ").nth(1).unwrap().split(' ').next().unwrap();
            let (from, to) = pair.split_once("->").unwrap();
            pairs.insert((from.parse().unwrap(), to.parse().unwrap()));
        }
    }
    pairs
}

/// The ring of double NVLinks, which `ringdove topo` names.
const BEST: [u32; 8] = [0, 3, 2, 1, 5, 6, 7, 4];

fn ring(order: &[u32]) -> BTreeSet<(u32, u32)> {
    let next = |nth: usize| order[(nth + 1) % order.len()];
    (0..order.len()).map(|nth| (order[nth], next(nth))).collect()
}

/// If this fails, data crosses PCI where NVLinks would carry it, or processes of one node disagree
/// on who their neighbours are.
#[test]
fn engines_move_data_between_neighbours_of_the_best_ring() {
    if on_real_hardware() {
        return;
    }
    let numbers: Vec<u32> = (0..8).collect();
    let line = |collective, gpus| format!("{collective} -g {gpus} -b 1M -e 1M -n 1 -w 0");
    for collective in ["all-reduce", "all-gather", "reduce-scatter"] {
        let line = line(collective, 8);
        assert_eq!(pairs("true", 1, &line), ring(&BEST), "{collective}");
    }
    assert_eq!(pairs("true", 8, &line("all-reduce", 1)), ring(&BEST), "a process for each rank");
    let by_rank = pairs("export RINGDOVE_RING_ORDER=ranks", 1, &line("all-reduce", 8));
    assert_eq!(by_rank, ring(&numbers));
    let registered = format!("{} -R 1", line("all-gather", 8));
    assert_eq!(pairs("true", 1, &registered), ring(&BEST), "between registered buffers");
}

/// Device engines reach memory over PCI alone, and two nodes have one order.
#[test]
fn device_engines_and_two_nodes_get_right_results() {
    if on_real_hardware() {
        return;
    }
    for collective in ["all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce"] {
        let line = format!("{collective} -g 8 -b 1M -e 1M -n 1 -w 0");
        for (machine, processes) in [("ark", 1), ("dgx1v x 2", 2)] {
            let device = match machine {
                "ark" => "export RINGDOVE_ENGINE=device",
                _ => "export RINGDOVE_ALGORITHM=table",
            };
            let ended = perf((machine, processes), "", device, &line);
            assert_right(&format!("{machine}: {line}"), &ended);
        }
    }
    // GPUs of two sockets in turn, so that the order by number is not the best on PCI either.
    let mixed = "export RINGDOVE_ENGINE=device CUDA_VISIBLE_DEVICES=0,4,1,5,2,6,3,7";
    let line = "all-gather -g 8 -b 1M -e 1M -n 1 -w 0";
    assert_right(mixed, &perf(("ark", 1), "", mixed, line));
}

/// If this fails, ranks with other orders wait for messages that nobody sends.
#[test]
fn ranks_that_want_another_order_are_refused() {
    if on_real_hardware() {
        return;
    }
    let inside = "[ $RANK = 1 ] && export RINGDOVE_RING_ORDER=ranks; true";
    let line = "all-reduce -g 1 -b 64K -e 64K -n 1";
    let (status, output) = perf(("dgx1v", 2), "", inside, line);
    assert!(!status.success() && output.contains("RINGDOVE_RING_ORDER"), "{output}");
}
