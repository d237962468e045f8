//! Every operation with as few and as many hardware queues as drivers can be asked for, on the
//! strict driver. The other tests have the number that drivers give to those who ask for none.

mod hardware;

use hardware::perf::{assert_right, on_real_hardware, perf};
use hardware::{World, on_machine_env, settings, sum, wait_for_error};
use ringdove::{Error, Settings};
use std::time::Duration;

const CONNECTIONS: [&str; 2] = ["1", "32"];
const VARIABLE: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
const OPERATIONS: [&str; 9] = [
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "broadcast",
    "reduce",
    "all-to-all",
    "gather",
    "scatter",
    "send-recv",
];

/// Every operation in `processes` processes of two ranks, from LL messages to many staged ones.
fn every_operation(machine: &str, processes: u32, engine: &str) {
    if on_real_hardware() {
        return;
    }
    for connections in CONNECTIONS {
        for operation in OPERATIONS {
            let inside = format!("export {VARIABLE}={connections}");
            let line =
                format!("{operation} -g 2 -b 64 -e 256K -f 64 -n 2 -w 1 -c 1 --engine {engine}");
            let ended = perf((machine, processes), "", &inside, &line);
            assert_right(&format!("{line} on {machine}, {inside}"), &ended);
        }
    }
}

/// If this fails, an engine's copy stands behind the kernel that waits for it.
#[test]
fn every_operation_between_processes() {
    every_operation("pcie4", 2, "proxy");
}

#[test]
fn every_operation_between_nodes() {
    every_operation("pcie4 x 2", 2, "proxy");
}

#[test]
fn every_operation_with_device_engines() {
    every_operation("ark", 2, "device");
}

/// If this fails, a rank that never comes is a hang where queues are few.
#[test]
fn a_rank_that_does_not_come_is_an_error() {
    for connections in CONNECTIONS {
        on_machine_env("pcie4", &[], &[(VARIABLE, connections)], || {
            let limit = Duration::from_secs(1);
            let world = World::with(2, &Settings { wait_timeout: limit, ..settings() });
            let mut buffers = world.upload(&vec![vec![0; 4 << 20]; 2]);
            sum(&world, 0, &mut buffers[0], 1 << 20).unwrap();
            for communicator in &world.communicators {
                let error = wait_for_error(communicator);
                assert!(matches!(error, Error::WaitExpired(_)), "{error}");
            }
        });
        if std::env::var_os("RINGDOVE_TEST_INSIDE").is_some() {
            return;
        }
    }
}
