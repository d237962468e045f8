//! Lanes of stores on the nodes of a communicator of several nodes, and lanes of rails between
//! them: results, and what keeps ranks from using them. `tests/trace.rs` compares what engines
//! submit with the model.

mod hardware;

use hardware::perf::{Ended, assert_right, on_real_hardware, perf};

const ALWAYS: &str = "export RINGDOVE_STORES=always";
const PLANS: &str = "RINGDOVE_LOG=ringdove::communicator::call::plan=debug";

/// A run on these nodes, whose plan of the largest size stores or does not.
fn run((machine, processes): (&str, u32), inside: &str, line: &str, stores: bool) -> Ended {
    let inside = format!("export {PLANS}; {inside}");
    let ended = perf((machine, processes), "", &inside, line);
    assert_right(&format!("{machine}: {inside}; {line}"), &ended);
    assert_eq!(ended.1.contains("TwoShotNodes"), stores, "{machine}: {line}: {}", ended.1);
    ended
}

/// Around the limits of blocks, rounds and messages; out of place and in place.
#[test]
fn results_of_all_sizes_are_right() {
    if on_real_hardware() {
        return;
    }
    for (machine, nodes, gpus) in [("pcie4 x 2", 2, 2), ("pcie4 x 3", 3, 2), ("pcie4 x 2", 2, 4)] {
        let line = format!("all-reduce -g {gpus} -b 4 -e 1M -f 16 -n 2 -w 1");
        run((machine, nodes), ALWAYS, &line, true);
        let line = format!("all-reduce -g {gpus} -b 20004 -e 20004 -n 2 -w 1");
        run((machine, nodes), ALWAYS, &line, true);
    }
}

#[test]
fn every_type_and_reduction_is_right() {
    if on_real_hardware() {
        return;
    }
    let line = "all-reduce -g 2 -b 40008 -e 40008 -n 1 -w 0 -d all -o all";
    run(("pcie4 x 2", 2), ALWAYS, line, true);
    let line = "all-reduce -g 2 -b 8K -e 8K -n 1 -w 0 -d half -o all";
    run(("pcie4 x 3", 3), ALWAYS, line, true);
}

/// Where NVLink joins the GPUs of every node, nobody has to ask for stores; several processes on a
/// node open each other's memory.
#[test]
fn nvlink_on_every_node_is_enough() {
    if on_real_hardware() {
        return;
    }
    let line = "all-reduce -g 2 -b 4 -e 3M -f 64 -n 2 -w 1";
    run(("dgx-a100 x 2", 2), "true", line, true);
    run(("dgx-a100 x 2", 4), "true", "all-reduce -g 1 -b 64K -e 64K -n 2 -w 1", true);
    // Registered buffers are of no use to stores.
    run(("dgx-a100 x 2", 2), "true", "all-reduce -g 2 -b 1M -e 1M -n 2 -w 1 -R 1", true);
}

/// If this fails, ranks store into memory that they do not reach, or do so against a setting.
#[test]
fn others_keep_their_plans() {
    if on_real_hardware() {
        return;
    }
    let line = "all-reduce -g 2 -b 64K -e 1M -f 16 -n 2 -w 1";
    let never = "export RINGDOVE_STORES=never";
    run(("dgx-a100 x 2", 2), never, line, false);
    // PCIe, without being asked.
    run(("pcie4 x 2", 2), "true", line, false);
    // One node's messages go through host memory, so all nodes have other plans.
    let through_host = "[ $RANK = 0 ] && export RINGDOVE_THROUGH_HOST=always; true";
    run(("dgx-a100 x 2", 2), through_host, line, false);
    let reproducible = "export RINGDOVE_REPRODUCIBLE=true";
    run(("dgx-a100 x 2", 2), reproducible, line, false);
    // One rank for each node has nobody to store to.
    run(("dgx-a100 x 2", 2), "true", "all-reduce -g 1 -b 64K -e 64K -n 2 -w 1", false);
    // Other collectives, between the same ranks, in any order with these.
    for other in ["all-gather", "all-to-all", "broadcast"] {
        let line = format!("{other} -g 2 -b 4 -e 64K -f 64 -n 2 -w 1");
        run(("dgx-a100 x 2", 2), "true", &line, false);
    }
}

/// Signals that come late, in another order, or by another way than writes, and slots in host
/// memory, change no result.
#[test]
fn adapters_of_all_kinds_serve_the_rails() {
    if on_real_hardware() {
        return;
    }
    let line = "all-reduce -g 2 -b 64K -e 1M -f 16 -n 2 -w 1";
    for (faults, inside) in [
        ("seed=3,*:delay=300", ""),
        ("seed=4,*:reorder=200", ""),
        ("seed=5,*:delay=100", "export RINGDOVE_VERBS_ORDER=flush"),
        ("", "export RINGDOVE_INTER_NODE_SLOTS=host"),
    ] {
        let inside = format!("export {PLANS}; {ALWAYS}; {inside}");
        let ended = perf(("pcie4 x 2", 2), faults, &inside, line);
        assert_right(&format!("{faults}; {inside}"), &ended);
        assert!(ended.1.contains("TwoShotNodes"), "{}", ended.1);
    }
}

/// If this fails, ranks of two nodes have other lanes than their peers think, and hang.
#[test]
fn ranks_that_want_other_lanes_are_refused() {
    if on_real_hardware() {
        return;
    }
    let line = "all-reduce -g 2 -b 64K -e 64K -n 1";
    for (name, other) in [("RINGDOVE_STORE_BLOCKS", "3"), ("RINGDOVE_STORES", "never")] {
        let inside = format!("[ $RANK = 1 ] && export {name}={other}; true");
        let (status, output) = perf(("dgx-a100 x 2", 2), "", &inside, line);
        assert!(!status.success() && output.contains(name), "{name}: {output}");
    }
}

/// If this fails, launches of graphs, or calls that share a launch, count messages twice.
#[test]
fn iterations_of_many_calls_are_right() {
    if on_real_hardware() {
        return;
    }
    let line = "all-reduce -g 2 -b 4K -e 256K -f 64 -n 4 -m 3 -w 1";
    run(("dgx-a100 x 2", 2), "true", line, true);
}
