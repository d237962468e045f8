//! Every operation, and failures, with as few and as many hardware queues as drivers can be asked
//! for, and with as many as they give to those who ask for none; all on the strict driver.

mod hardware;

use cudarc::driver::CudaSlice;
use hardware::engines::{BY_TABLE, ENGINE};
use hardware::every::{check_all, streams};
use hardware::perf::{last_words, on_real_hardware, perf};
use hardware::{
    FOLDER, World, on_machine_env, on_processes_env, settings, sum, upload, wait_for_all,
    wait_for_error,
};
use ringdove::{Communicator, DataType, Error, Settings};
use std::time::Duration;

const CONNECTIONS: [&str; 3] = ["1", "8", "32"];
const VARIABLE: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

/// Every operation in two processes of two ranks, from low-latency messages to many staged ones.
fn every_operation(machine: &str, engine: &str) {
    let is_inside = std::env::var_os("RINGDOVE_TEST_INSIDE").is_some();
    let runs = if is_inside { &CONNECTIONS[..1] } else { &CONNECTIONS[..] };
    for connections in runs {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        let mut variables = vec![(VARIABLE, *connections), (ENGINE, engine), BY_TABLE];
        variables.extend((!is_inside).then_some((FOLDER, path)));
        on_processes_env(machine, &[], &variables, (2, 2), |communicators| {
            [5, 3_001, 300_001].iter().for_each(|&count| check_all(&communicators, count));
            send_to_everybody(&communicators);
            communicators.iter().for_each(|one| one.finalize().unwrap());
            wait_for_all(&communicators);
        });
    }
}

/// Each rank sends to all others, and receives from them, in one group.
fn send_to_everybody(communicators: &[Communicator]) {
    const BYTES: usize = 100_000;
    let streams = streams(communicators);
    let ranks = communicators[0].rank_count();
    let begun = communicators.iter().zip(&streams).map(|(communicator, stream)| {
        let own = communicator.rank();
        let sent = upload(stream, &[own as u8; BYTES]);
        let peers: Vec<_> = (0..ranks).filter(|peer| *peer != own).collect();
        let received: Vec<_> = peers.iter().map(|_| upload(stream, &[0xcd; BYTES])).collect();
        (communicator, stream, sent, peers, received)
    });
    let mut begun: Vec<_> = begun.collect();
    for (communicator, stream, sent, peers, received) in &mut begun {
        let mut group = communicator.group();
        for (peer, buffer) in peers.iter().zip(received) {
            group.send_bytes(DataType::U8, &*sent, *peer).unwrap();
            group.receive_bytes(DataType::U8, buffer, *peer).unwrap();
        }
        group.launch(stream).unwrap();
    }
    for (communicator, stream, _, peers, received) in &begun {
        stream.synchronize().unwrap();
        communicator.check().unwrap();
        for (peer, buffer) in peers.iter().zip(received) {
            assert!(hardware::download(buffer) == [*peer as u8; BYTES], "from rank {peer}");
        }
    }
}

/// If this fails, an engine's copy stands behind the kernel that waits for it.
#[test]
fn every_operation_between_processes() {
    every_operation("pcie4", "proxy");
}

#[test]
fn every_operation_between_nodes() {
    every_operation("pcie4 x 2", "proxy");
}

#[test]
fn every_operation_with_device_engines() {
    every_operation("ark", "device");
}

/// If this fails, a failure is a hang where queues are few.
#[test]
fn failures_are_errors_on_every_rank() {
    if on_real_hardware() {
        return;
    }
    let is_inside = std::env::var_os("RINGDOVE_TEST_INSIDE").is_some();
    let runs = if is_inside { &CONNECTIONS[..1] } else { &CONNECTIONS[..] };
    for connections in runs {
        on_machine_env("pcie4", &[], &[(VARIABLE, connections), BY_TABLE], || {
            let limit = Duration::from_secs(1);
            let hasty = Settings { wait_timeout: limit, ..settings() };
            // Rank 1 does not come.
            fail(&hasty, |_, _| {}, |error| matches!(error, Error::WaitExpired(_)));
            let calls_another = |world: &World, buffer: &mut CudaSlice<u8>| {
                sum(world, 1, buffer, 1 << 19).unwrap_err();
            };
            fail(&settings(), calls_another, |error| matches!(error, Error::Disagreement { .. }));
            let aborts = |world: &World, _: &mut CudaSlice<u8>| {
                world.communicators[1].abort("enough");
            };
            fail(&settings(), aborts, |error| matches!(error, Error::Aborted { .. }));
        });
    }
}

/// A sum on rank 0 beside what rank 1 does: both ranks get the error, and all kernels end.
fn fail(
    settings: &Settings,
    rank_1: impl FnOnce(&World, &mut CudaSlice<u8>),
    is_expected: fn(&Error) -> bool,
) {
    let world = World::with(2, settings);
    let mut buffers = world.upload(&vec![vec![0; 4 << 20]; 2]);
    sum(&world, 0, &mut buffers[0], 1 << 20).unwrap();
    rank_1(&world, &mut buffers[1]);
    for (communicator, stream) in world.ranks() {
        let error = wait_for_error(communicator);
        assert!(is_expected(&error), "{error}");
        stream.synchronize().unwrap();
    }
}

/// If this fails, the death of a process is a hang where queues are few.
#[test]
fn a_process_that_dies_is_named_by_the_other() {
    if on_real_hardware() {
        return;
    }
    for connections in CONNECTIONS {
        let inside = format!("export {VARIABLE}={connections}");
        // Large enough for `perf` to run only a few iterations ahead of the GPU.
        let line = "all-reduce -g 1 -b 1M -e 1M -n 1000000 -w 1 -c 0";
        let (status, output) = perf(("pcie4", 2), "rank1:kill-at=2000", &inside, line);
        assert!(!status.success(), "{output}");
        assert!(last_words(&output, 0).contains("rank 1"), "{output}");
    }
}
