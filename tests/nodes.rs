//! Communicators whose ranks run on several nodes: between nodes everything goes through verbs, on
//! virtual adapters. Results, rails, an adapter that fails, a node that dies.

mod hardware;

use hardware::engines::CONNECTIONS;
use hardware::perf::{assert_right, last_words, on_real_hardware, perf};
use hardware::{FOLDER, on_processes_env, run_bounded, tool};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn all_reduce_over_two_nodes_is_right_with_one_and_several_gpus_each() {
    if on_real_hardware() {
        return;
    }
    for (processes, gpus) in [(2, 1), (2, 2), (4, 1)] {
        let line = format!("all-reduce -g {gpus} -b 4 -e 256K -f 64 -n 2 -w 1 -d all -o sum");
        let ended = perf(("pcie4 x 2", processes), "", "", &line);
        assert_right(&line, &ended);
    }
}

/// If this fails, ranks pay for connections that they never use, or never get one that they need.
#[test]
fn ranks_of_different_nodes_are_connected_when_they_first_need_it() {
    if on_real_hardware() {
        return;
    }
    let log = "export RINGDOVE_LOG=ringdove::communicator::connect::on_demand=debug";
    // A ring of four ranks; then every rank with every other; of each pair, both ends say it.
    for (line, ends) in [("all-reduce", 8), ("all-to-all", 12)] {
        let line = format!("{line} -g 1 -b 4K -e 64K -f 16 -n 2 -w 1");
        let ended = perf(("pcie4 x 4", 4), "", log, &line);
        assert_right(&line, &ended);
        assert_eq!(ended.1.matches(" connected ").count(), ends, "{line}: {}", ended.1);
    }
}

/// If this fails, copies that a kernel waits for stand behind it in a hardware queue.
#[test]
fn nodes_work_with_few_and_many_hardware_queues() {
    if on_real_hardware() {
        return;
    }
    for connections in CONNECTIONS {
        let inside = format!("export CUDA_DEVICE_MAX_CONNECTIONS={connections}");
        for line in [
            "all-reduce -g 2 -b 8 -e 128K -f 128 -n 2 -w 1",
            "send-recv -g 2 -b 128K -e 128K -n 2 -w 1",
        ] {
            assert_right(&format!("{inside}; {line}"), &perf(("pcie4 x 2", 2), "", &inside, line));
        }
    }
}

#[test]
fn three_nodes_and_every_reduction_are_right() {
    if on_real_hardware() {
        return;
    }
    let line = "all-reduce -g 2 -b 4100 -e 4100 -n 1 -w 0 -d float -o all";
    assert_right(line, &perf(("pcie4 x 3", 3), "", "", line));
}

#[test]
fn registered_buffers_are_right_between_nodes_too() {
    if on_real_hardware() {
        return;
    }
    // Several processes on each node: `tests/deregister.rs`.
    for (machine, nodes, gpus) in [("pcie4 x 2", 2, 2), ("pcie4 x 3", 3, 1), ("pcie4 x 3", 3, 3)] {
        let line = format!("all-reduce -g {gpus} -b 4 -e 1M -f 64 -n 2 -w 1 -R 1");
        assert_right(&line, &perf((machine, nodes), "", "", &line));
    }
    for line in ["all-gather", "broadcast"] {
        let line = format!("{line} -g 1 -b 64K -e 4M -f 8 -n 2 -w 1 -R 1 -r 2");
        assert_right(&line, &perf(("pcie4 x 3", 3), "", "", &line));
    }
    for line in ["all-to-all", "all-gather"] {
        let line = format!("{line} -g 2 -b 64K -e 4M -f 8 -n 2 -w 1 -R 1");
        assert_right(&line, &perf(("pcie4 x 3", 3), "", "", &line));
    }
    let line = "all-reduce -g 2 -b 1000004 -e 1000004 -n 2 -w 1 -R 1 -d all -o all";
    assert_right(line, &perf(("pcie4 x 2", 2), "", "", line));
    // Where the order of data and signal is not the adapter's.
    let line = "all-reduce -g 2 -b 1M -e 1M -n 3 -w 0 -R 1";
    for order in ["immediate", "flush"] {
        let inside = format!("export RINGDOVE_VERBS_ORDER={order}");
        let faults = "seed=6,*:delay=100";
        assert_right(&inside, &perf(("pcie4 x 2", 2), faults, &inside, line));
    }
}

/// If this fails, an adapter is told to write memory that it does not reach.
#[test]
fn registered_buffers_are_staged_where_adapters_write_host_memory() {
    if on_real_hardware() {
        return;
    }
    // On one node alone.
    let inside = "[ $RANK = 1 ] && export RINGDOVE_INTER_NODE_SLOTS=host; true";
    let line = "all-reduce -g 2 -b 1M -e 1M -n 2 -w 1 -R 1";
    assert_right(inside, &perf(("pcie4 x 2", 2), "", inside, line));
}

#[test]
fn send_recv_crosses_nodes() {
    if on_real_hardware() {
        return;
    }
    let line = "send-recv -g 2 -b 4 -e 1M -f 64 -n 2 -w 1";
    assert_right(line, &perf(("pcie4 x 2", 2), "", "", line));
}

/// Messages that take long, and that overtake one another on other queue pairs, change no result.
#[test]
fn delays_and_other_orders_change_no_result() {
    if on_real_hardware() {
        return;
    }
    let line = "all-reduce -g 2 -b 64K -e 64K -n 3 -w 0";
    for faults in ["seed=3,*:delay=300", "seed=4,*:reorder=200"] {
        assert_right(faults, &perf(("pcie4 x 2", 2), faults, "", line));
    }
}

/// The error must say which adapter, which port and what happened, and come on both nodes.
#[test]
fn a_port_that_goes_down_is_named_on_both_nodes() {
    if on_real_hardware() {
        return;
    }
    let inside = "export RINGDOVE_RETRY_TIMEOUT_MS=500";
    let line = "all-reduce -g 1 -b 64K -e 64K -n 2000 -w 0 -c 0";
    let (status, output) = perf(("pcie4 x 2", 2), "node1/*:port-down-after=200", inside, line);
    assert!(!status.success(), "{output}");
    assert!(output.contains("port 1"), "{output}");
    assert!(output.contains("] ringdove:"), "{output}");
}

#[test]
fn without_a_usable_adapter_the_way_out_is_named() {
    if on_real_hardware() {
        return;
    }
    let line = "all-reduce -g 1 -b 8 -e 8";
    let (status, output) = perf(("pcie4 x 2", 2), "*:port-down", "", line);
    assert!(!status.success(), "{output}");
    assert!(output.contains("adapter") && output.contains("down"), "{output}");
}

#[test]
fn a_node_that_dies_is_named_by_the_survivor() {
    if on_real_hardware() {
        return;
    }
    // Large enough for `perf` to run only a few iterations ahead of the GPU.
    let line = "all-reduce -g 1 -b 1M -e 1M -n 1000000 -w 1 -c 0";
    let (status, output) = perf(("pcie4 x 2", 2), "rank1:kill-at=2000", "", line);
    assert!(!status.success(), "{output}");
    assert!(last_words(&output, 0).contains("rank 1"), "{output}");
}

/// Signals that the receiver's engine raises, after a flush or without one, in either memory.
#[test]
fn adapters_that_keep_no_order_change_no_result() {
    if on_real_hardware() {
        return;
    }
    let line = "all-reduce -g 2 -b 4 -e 256K -f 256 -n 2 -w 1 -d float -o all";
    for (order, slots) in [("auto", "device"), ("immediate", "device"), ("flush", "host")] {
        let inside =
            format!("export RINGDOVE_VERBS_ORDER={order} RINGDOVE_INTER_NODE_SLOTS={slots}");
        let faults = "seed=5,*:delay=100";
        assert_right(&inside, &perf(("pcie4 x 2", 2), faults, &inside, line));
    }
    let inside = "[ $RANK = 1 ] && export RINGDOVE_VERBS_ORDER=flush";
    let (status, output) = perf(("pcie4 x 2", 2), "", inside, line);
    let named = ["RINGDOVE_VERBS_ORDER", "auto", "flush"].iter().all(|part| output.contains(part));
    assert!(!status.success() && named, "{output}");
}

/// The memory in which messages from other nodes land is a choice that changes no result.
#[test]
fn host_memory_serves_where_adapters_do_not_reach_device_memory() {
    if on_real_hardware() {
        return;
    }
    // Neither exports the driver dma-bufs, nor do adapters take the GPU's addresses.
    let mut command = Command::new(tool("hwsim"));
    command.args(["machines", "--toml", "pcie4"]);
    let source = run_bounded(command).1.replace("peer_memory = true", "peer_memory = false");
    let source = source.replacen("l2_cache_kib", "dma_buf = false\nl2_cache_kib", 1);
    assert!(source.contains("dma_buf = false") && source.contains("peer_memory = false"));
    let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    std::fs::write(file.path(), source).unwrap();
    let without = format!("{} x 2", file.path().display());
    let log = "export RINGDOVE_LOG=ringdove::communicator=info";
    let line = "all-reduce -g 2 -b 64K -e 4M -f 64 -n 2 -w 1 -d all";
    let ended = perf((&without, 2), "", log, line);
    assert_right("without GPUDirect RDMA", &ended);
    assert_eq!(ended.1.matches("host memory\n").count(), 4, "{}", ended.1);
    let refused = perf((&without, 2), "", "export RINGDOVE_INTER_NODE_SLOTS=device", line);
    assert!(!refused.0.success() && refused.1.contains("dma-buf"), "{}", refused.1);
}

/// If this fails, an adapter's write shows as a message before all of it is there, or LL messages
/// between nodes are not sent.
#[test]
fn low_latency_messages_go_between_nodes_where_adapters_write_whole_words() {
    if on_real_hardware() {
        return;
    }
    let apart = "export RINGDOVE_LOW_LATENCY_ADAPTERS=true";
    for (name, machine, nodes, gpus, slots) in [
        ("all-reduce", "pcie4 x 2", 2, 4, "device"),
        ("all-gather", "pcie4 x 2", 2, 2, "device"),
        ("broadcast", "pcie4 x 2", 2, 4, "host"),
        ("all-reduce", "one-gpu x 3", 3, 1, "host"),
    ] {
        let inside = format!("{apart} RINGDOVE_INTER_NODE_SLOTS={slots}");
        let line = format!("{name} -g {gpus} -b 4 -e 1K -f 16 -n 4 -w 1 -d all -v");
        let what = format!("{inside}; {line}");
        let ended = perf((machine, nodes), "", &inside, &line);
        assert_right(&what, &ended);
        // What goes through slots raises signals.
        let tallies = ended.1.lines().filter(|line| line.contains("descriptors rung"));
        assert!(tallies.clone().count() > 8, "{what}: {}", ended.1);
        let mut with_signals = tallies.filter(|line| !line.contains(", 0 signals"));
        assert_eq!(with_signals.next(), None, "{what}: {}", ended.1);
    }
}

/// If this fails, a rank leaves while ranks of other nodes have not read what it sent: their
/// credits find nobody once its process has ended, and their communicators fail for it.
#[test]
fn a_rank_that_is_dropped_waits_until_its_messages_were_read() {
    let folder = tempfile::tempdir().unwrap();
    let variables = [(FOLDER, folder.path().to_str().unwrap())];
    on_processes_env("pcie4 x 2", &[], &variables, (2, 1), |mut ranks| {
        let communicator = ranks.pop().unwrap();
        let folder = PathBuf::from(std::env::var(FOLDER).unwrap());
        let [sent, reads] = ["sent", "reads"].map(|name| folder.join(name));
        let stream = communicator.context().per_thread_stream();
        let mut buffer = stream.clone_htod(&[7u32; 64]).unwrap();
        if communicator.rank() == 0 {
            communicator.send(&buffer, 1, &stream).unwrap();
            stream.synchronize().unwrap();
            std::fs::write(&sent, "").unwrap();
            let begun = Instant::now();
            drop(communicator);
            // It waits two seconds at most.
            let took = begun.elapsed();
            assert!(
                reads.exists() || took >= Duration::from_millis(1900),
                "it left after {took:?}"
            );
            return;
        }
        while !sent.exists() {
            assert!(communicator.check().is_ok());
            std::thread::yield_now();
        }
        // So long does the other rank wait, or it does not: nothing else shows it.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(300) {
            std::thread::yield_now();
        }
        std::fs::write(&reads, "").unwrap();
        communicator.receive(&mut buffer, 0, &stream).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(stream.clone_dtoh(&buffer).unwrap(), [7; 64]);
        assert!(communicator.check().is_ok());
    });
}
