//! Communicators whose ranks run on several nodes: between nodes everything goes through verbs, on
//! virtual adapters. Results, rails, an adapter that fails, a node that dies.

mod hardware;

use hardware::{run_bounded, tool};
use std::process::{Command, ExitStatus};

/// `ringdove perf` in `processes` processes on `machine`, with `faults` of adapters. `inside` is
/// shell code that runs in each process before it.
fn perf_on(
    (machine, processes): (&str, u32),
    faults: &str,
    inside: &str,
    line: &str,
) -> (ExitStatus, String) {
    let mut command = Command::new(tool("hwsim"));
    command.args(["run", "--quiet", "--machine", machine, "--procs", &processes.to_string()]);
    let script = format!("{inside}\nexec {} perf {line}", tool("ringdove").display());
    command.args(["--", "bash", "-c", &script]).env("HWSIM_FAULTS", faults);
    run_bounded(command)
}

/// Verbs come from the system's library; hardware of this machine would hide the virtual one.
fn cannot_run() -> bool {
    let real = std::env::var("RINGDOVE_TEST_GPU").is_ok_and(|value| value == "real");
    if real {
        eprintln!("skipped: this test places its ranks on virtual nodes");
    }
    real
}

fn assert_right(what: &str, (status, output): &(ExitStatus, String)) {
    assert!(status.success(), "{what}: {status}\n{output}");
    assert!(output.contains("# Out of bounds values : 0 OK"), "{what}: {output}");
}

#[test]
fn all_reduce_over_two_nodes_is_right_with_one_and_several_gpus_each() {
    if cannot_run() {
        return;
    }
    for (processes, gpus) in [(2, 1), (2, 2), (4, 1)] {
        let line = format!("all-reduce -g {gpus} -b 4 -e 256K -f 64 -n 2 -w 1 -d all -o sum");
        let ended = perf_on(("pcie4 x 2", processes), "", "", &line);
        assert_right(&line, &ended);
    }
}

#[test]
fn three_nodes_and_every_reduction_are_right() {
    if cannot_run() {
        return;
    }
    let line = "all-reduce -g 2 -b 4100 -e 4100 -n 1 -w 0 -d float -o all";
    assert_right(line, &perf_on(("pcie4 x 3", 3), "", "", line));
}

#[test]
fn registered_buffers_are_right_between_nodes_too() {
    if cannot_run() {
        return;
    }
    let line = "all-reduce -g 2 -b 512K -e 512K -n 2 -w 1 -R 1";
    assert_right(line, &perf_on(("pcie4 x 2", 2), "", "", line));
}

#[test]
fn send_recv_crosses_nodes() {
    if cannot_run() {
        return;
    }
    let line = "send-recv -g 2 -b 4 -e 1M -f 64 -n 2 -w 1";
    assert_right(line, &perf_on(("pcie4 x 2", 2), "", "", line));
}

/// Messages that take long, and that overtake one another on other queue pairs, change no result.
#[test]
fn delays_and_other_orders_change_no_result() {
    if cannot_run() {
        return;
    }
    let line = "all-reduce -g 2 -b 64K -e 64K -n 3 -w 0";
    for faults in ["seed=3,*:delay=300", "seed=4,*:reorder=200"] {
        assert_right(faults, &perf_on(("pcie4 x 2", 2), faults, "", line));
    }
}

/// The error must say which adapter, which port and what happened, and come on both nodes.
#[test]
fn a_port_that_goes_down_is_named_on_both_nodes() {
    if cannot_run() {
        return;
    }
    let inside = "export RINGDOVE_RETRY_TIMEOUT_MS=500";
    let line = "all-reduce -g 1 -b 64K -e 64K -n 2000 -w 0 -c 0";
    let (status, output) = perf_on(("pcie4 x 2", 2), "node1/*:port-down-after=200", inside, line);
    assert!(!status.success(), "{output}");
    assert!(output.contains("port 1"), "{output}");
    assert!(output.contains("] ringdove:"), "{output}");
}

#[test]
fn without_a_usable_adapter_the_way_out_is_named() {
    if cannot_run() {
        return;
    }
    let line = "all-reduce -g 1 -b 8 -e 8";
    let (status, output) = perf_on(("pcie4 x 2", 2), "*:port-down", "", line);
    assert!(!status.success(), "{output}");
    assert!(output.contains("adapter") && output.contains("down"), "{output}");
}

#[test]
fn a_node_that_dies_is_named_by_the_survivor() {
    if cannot_run() {
        return;
    }
    let inside = "if [ $RANK = 1 ]; then (sleep 1; kill -9 $$) & fi";
    // Large enough for `perf` to run only a few iterations ahead of the GPU.
    let line = "all-reduce -g 1 -b 1M -e 1M -n 1000000 -w 1 -c 0";
    let (status, output) = perf_on(("pcie4 x 2", 2), "", inside, line);
    assert!(!status.success(), "{output}");
    assert!(output.contains("[0] ringdove:") && output.contains("rank 1"), "{output}");
}
