//! Communicators whose ranks run in several processes of one node: results, disagreement, a rank
//! that dies, a rank that never comes. Without this, what holds between threads may not hold
//! between processes.

mod hardware;

use hardware::engines::CONNECTIONS;
use hardware::perf::{Ended, assert_right, last_words, on_real_hardware, perf};

/// `ringdove perf` in `processes` processes on one virtual node.
fn perf_in(processes: u32, inside: &str, line: &str) -> Ended {
    perf(("pcie4", processes), "", inside, line)
}

/// Rows of the table that the first process prints: their first word is a size in bytes.
fn sizes(output: &str) -> Vec<u64> {
    let words = |line: &str| line.strip_prefix("[0] ")?.split_whitespace().next()?.parse().ok();
    output.lines().filter_map(words).collect()
}

#[test]
fn all_reduce_is_right_in_every_division_of_four_ranks() {
    if on_real_hardware() {
        return;
    }
    for (processes, gpus, registered) in [(2, 2, 0), (4, 1, 0), (2, 2, 1), (4, 1, 1)] {
        let line = format!(
            "all-reduce -g {gpus} -b 4 -e 1M -f 64 -n 2 -w 1 -d all -o sum -R {registered}"
        );
        // `perf` takes its buffers from cudarc, which takes them from a pool; processes cannot
        // share memory of pools, which is refused by name.
        let pools = if registered == 1 { "export HWSIM_DRIVER_KEYS=pools=peer" } else { "" };
        let (status, output) = perf_in(processes, pools, &line);
        assert!(status.success(), "{line}: {output}");
        assert!(output.contains("# Out of bounds values : 0 OK"), "{line}: {output}");
        assert!(sizes(&output).len() >= 20, "{line}: {output}");
        assert!(!output.contains("[1] #"), "only the first process prints: {output}");
    }
}

/// If this fails, copies that a kernel waits for stand behind it in a hardware queue.
#[test]
fn processes_work_with_few_and_many_hardware_queues() {
    if on_real_hardware() {
        return;
    }
    for connections in CONNECTIONS {
        let inside = format!("export CUDA_DEVICE_MAX_CONNECTIONS={connections}");
        for line in [
            "all-reduce -g 2 -b 8 -e 128K -f 128 -n 2 -w 1",
            "send-recv -g 2 -b 128K -e 128K -n 2 -w 1",
        ] {
            assert_right(&format!("{inside}; {line}"), &perf_in(2, &inside, line));
        }
    }
}

#[test]
fn send_recv_crosses_processes() {
    if on_real_hardware() {
        return;
    }
    let (status, output) = perf_in(3, "", "send-recv -g 1 -b 4 -e 1M -f 64 -n 2 -w 1");
    assert!(status.success(), "{output}");
    assert!(output.contains("# Out of bounds values : 0 OK"), "{output}");
}

/// If this fails, ranks whose settings differ compute wrong addresses in each other's memory.
#[test]
fn settings_that_differ_are_named_with_both_values() {
    if on_real_hardware() {
        return;
    }
    let inside = "[ $RANK = 1 ] && export RINGDOVE_SLOTS=8";
    let (status, output) = perf_in(2, inside, "all-reduce -g 1 -b 8 -e 8");
    assert!(!status.success(), "{output}");
    let named = ["RINGDOVE_SLOTS", "4", "8"].iter().all(|part| output.contains(part));
    assert!(named && output.contains("disagree"), "{output}");
}

#[test]
fn a_rank_that_never_comes_is_named() {
    if on_real_hardware() {
        return;
    }
    let inside = "export RINGDOVE_BOOTSTRAP_TIMEOUT_MS=1500; [ $RANK = 1 ] && exec sleep 60";
    let (status, output) = perf_in(2, inside, "all-reduce -g 1 -b 8 -e 8");
    assert!(!status.success(), "{output}");
    assert!(output.contains("[0] ringdove:") && output.contains("rank 1"), "{output}");
}

/// A killed process must end the others with an error that names it, and not in a hang.
#[test]
fn a_rank_that_dies_is_named_by_the_survivors() {
    if on_real_hardware() {
        return;
    }
    // Large enough for `perf` to run only a few iterations ahead of the GPU.
    let line = "all-reduce -g 1 -b 1M -e 1M -n 1000000 -w 1 -c 0";
    let (status, output) = perf(("pcie4", 3), "rank2:kill-at=2000", "", line);
    assert!(!status.success(), "{output}");
    for survivor in [0, 1] {
        assert!(last_words(&output, survivor).contains("rank 2"), "{output}");
    }
}

/// As launchers do that give each process one GPU. If this fails, all of them meet on one.
#[test]
fn a_process_that_sees_one_gpu_uses_that_one() {
    if on_real_hardware() {
        return;
    }
    let inside = "export CUDA_VISIBLE_DEVICES=$((3 - LOCAL_RANK))";
    let (status, output) = perf_in(4, inside, "all-reduce -g 1 -b 64K -e 64K -n 2 -w 1");
    assert!(status.success(), "{output}");
    assert!(output.contains("# Out of bounds values : 0 OK"), "{output}");
    for (rank, bus) in ["09", "08", "05", "04"].into_iter().enumerate() {
        let place = |line: &str| line.contains(&format!("Rank  {rank} ")) && line.contains(bus);
        assert!(output.lines().any(place), "rank {rank}: {output}");
    }
}
