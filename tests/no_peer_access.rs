//! Ranks of one node that do not reach each other's GPU memory: their messages go through host
//! memory. All collectives give right results whatever the driver withholds, within a process and
//! between processes, and beside ranks that do reach each other.

mod hardware;

use hardware::engines::BY_TABLE;
use hardware::every::{check_all, streams};
use hardware::perf::on_real_hardware;
use hardware::{World, contexts, on_machine, on_machine_env, run_bounded, settings, tool};
use ringdove::{Communicator, Error, ReduceOp, Settings, ThroughHost};
use std::process::Command;
use std::time::{Duration, Instant};

/// What a driver may withhold, each by its key.
const WITHHELD: [&str; 6] = [
    "no-peer=on",
    "ipc=off",
    "dma-buf=off",
    "memory-pools=off",
    "virtual-memory=off",
    "memops=none",
];

/// Runs the body of the current test in `processes` processes on `machine`, with options of `hwsim
/// run` and with variables.
fn on_processes(
    (machine, options): (&str, &[&str]),
    variables: &[(&str, &str)],
    (processes, ranks): (u32, u32),
    body: impl FnOnce(&[Communicator]),
) {
    if std::env::var_os("RINGDOVE_TEST_INSIDE").is_some() {
        return body(&hardware::try_join(ranks).unwrap());
    }
    if hardware::perf::on_real_hardware() {
        return;
    }
    let thread = std::thread::current();
    let test = thread.name().expect("libtest names its threads");
    let mut command = Command::new(tool("hwsim"));
    command.args(["run", "--quiet", "--machine", machine, "--procs", &processes.to_string()]);
    command.args(options).arg("--").arg(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    command.env("RINGDOVE_TEST_INSIDE", "1").envs(variables.iter().copied());
    let (status, output) = run_bounded(command);
    assert!(status.success(), "on {machine} {options:?}: {status}\n{output}");
    let passed = output.matches("1 passed").count();
    assert_eq!(passed, processes as usize, "on {machine} {options:?}\n{output}");
}

/// Low-latency messages, one staged one, and many.
const COUNTS: [u32; 3] = [5, 3_001, 30_001];

/// Ranks with slots so small that the largest count takes many of them.
fn small_slots(ranks: usize) -> World {
    World::with(ranks, &Settings { slot_bytes: 16 << 10, ..settings() })
}

/// If this fails, some collective needs what no driver promises.
#[test]
fn every_collective_whatever_is_withheld() {
    if std::env::var_os("RINGDOVE_TEST_INSIDE").is_some() {
        let world = small_slots(4);
        return COUNTS.iter().for_each(|&count| check_all(&world.communicators, count));
    }
    if hardware::perf::on_real_hardware() {
        return;
    }
    for key in WITHHELD {
        let options = ["--driver-key", key];
        on_machine_env("pcie4", &options, &[BY_TABLE], || unreachable!("it runs elsewhere"));
    }
}

/// As above between processes, where memory is shared in other ways.
#[test]
fn every_collective_between_processes_whatever_is_withheld() {
    for key in WITHHELD {
        on_processes(("pcie4", &["--driver-key", key]), &[BY_TABLE], (2, 2), |communicators| {
            check_all(communicators, COUNTS[1]);
        });
        if std::env::var_os("RINGDOVE_TEST_INSIDE").is_some() {
            return;
        }
    }
}

/// What the way through host memory is there for.
#[test]
fn processes_that_share_no_memory_need_that_of_the_host() {
    if hardware::perf::on_real_hardware() {
        return;
    }
    let inside = "export HWSIM_DRIVER_KEYS=ipc=off RINGDOVE_THROUGH_HOST=never";
    let line = "all-reduce -g 1 -b 8 -e 8 -n 1 -w 0";
    let (status, output) = hardware::perf::perf(("pcie4", 2), "", inside, line);
    assert!(!status.success() && output.contains("RINGDOVE_THROUGH_HOST"), "{output}");
}

/// If this fails, a PC with consumer GPUs is of no use, with any number of its ranks.
#[test]
fn four_gpus_without_any_peer_access() {
    on_machine("quad-pc", || {
        for ranks in [2, 3, 4] {
            let world = small_slots(ranks);
            COUNTS.iter().for_each(|&count| check_all(&world.communicators, count));
        }
    });
}

/// If this fails, ranks whose messages arrive in host memory do not pass them on to ranks that they
/// reach, or the other way round: on a DGX-1V each GPU reaches four or five of the others.
#[test]
fn pairs_that_reach_each_other_and_pairs_that_do_not() {
    on_machine("dgx1v", || {
        for ranks in [5, 8] {
            let world = small_slots(ranks);
            [5, 30_001].iter().for_each(|&count| check_all(&world.communicators, count));
        }
    });
}

#[test]
fn the_same_in_processes_of_their_own() {
    on_processes(("dgx1v", &[]), &[], (8, 1), |communicators| check_all(communicators, 3_001));
}

/// If this fails, shared memory stays when its users are gone.
#[test]
fn shared_memory_keeps_no_name() {
    let names = || -> Vec<_> {
        let entries = std::fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.to_string_lossy().contains("/ringdove-")).collect()
    };
    on_processes(("quad-pc", &[]), &[], (2, 1), |communicators| {
        // Another test may have files there for the moment of its beginning.
        let (seen, since) = (names(), Instant::now());
        while seen.iter().any(|path| path.exists()) {
            assert!(since.elapsed() < Duration::from_secs(30), "{:?}", names());
            std::thread::sleep(Duration::from_millis(10));
        }
        check_all(communicators, 100);
    });
}

/// If this fails, adapters do not reach what ranks of a node have written for a rank that sends it
/// on to another node.
#[test]
fn nodes_without_peer_access() {
    on_processes(("quad-pc x 2", &[]), &[], (4, 2), |communicators| {
        check_all(communicators, COUNTS[1]);
    });
}

/// If this fails, a buffer that is registered on all ranks is written by GPUs that do not reach it,
/// or cannot be registered at all.
#[test]
fn registered_buffers_are_staged() {
    on_processes(("quad-pc", &[]), &[], (2, 2), |communicators| {
        let streams = streams(communicators);
        let mut buffers = Vec::new();
        for (communicator, stream) in communicators.iter().zip(&streams) {
            let ones = stream.clone_htod(&vec![1u32; 500_000]).unwrap();
            buffers.push(communicator.register(ones).unwrap());
        }
        for ((communicator, stream), buffer) in communicators.iter().zip(&streams).zip(&mut buffers)
        {
            communicator.all_reduce_in_place(buffer, ReduceOp::Sum, stream).unwrap();
        }
        for (stream, buffer) in streams.iter().zip(&buffers) {
            let seen = stream.clone_dtoh(&buffer.as_view()).unwrap();
            assert!(seen.iter().all(|&value| value == 4));
        }
    });
}

/// If this fails, the settings say nothing: a user cannot keep traffic off the host, or off a
/// connection that is bad.
#[test]
fn the_setting_forbids_host_memory_or_demands_it() {
    if on_real_hardware() {
        return;
    }
    on_machine("dgx1v", || {
        let with = |through_host, ranks| {
            let settings = Settings { through_host, ..settings() };
            Communicator::init_all(&contexts(ranks), &settings)
        };
        let error = with(ThroughHost::Never, 8).unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{error}");
        let text = error.to_string();
        for part in ["from rank 0 to rank 5", "peer access", "RINGDOVE_THROUGH_HOST"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let near = with(ThroughHost::Never, 4).unwrap();
        check_all(&near, 10);
        let host = with(ThroughHost::Always, 4).unwrap();
        check_all(&host, 3_001);
    });
}
