//! What users get when something is wrong: typed errors that name both sides, in bounded time.

mod hardware;

use hardware::engines::on_engines;
use hardware::{SOON, World, address, settings, sum, wait_for_error};
use ringdove::{Communicator, DataType, Error, ReduceOp, Settings, UniqueId};
use std::time::{Duration, Instant};

fn impatient() -> Settings {
    Settings {
        wait_timeout: Duration::from_millis(300),
        bootstrap_timeout: Duration::from_millis(300),
        drop_timeout: Duration::from_millis(300),
        ..settings()
    }
}

/// If this fails, a rank that never calls hangs the others, or nobody says who it was (R10, R12).
#[test]
fn a_rank_that_never_calls_is_named_on_every_rank() {
    on_engines("pcie4", || {
        let world = World::with(3, &impatient());
        let buffers = world.upload(&vec![vec![0; 4000]; 3]);
        for rank in [0, 1] {
            sum(&world, rank, address(&buffers[rank]), 1000).unwrap();
        }
        for (communicator, stream) in world.ranks() {
            let error = wait_for_error(communicator);
            let Error::WaitExpired(wait) = &error else { panic!("{error}") };
            assert!(wait.record.expected > wait.record.seen, "{error}");
            assert!(wait.record.waited_ns >= 300_000_000, "{error}");
            assert!(error.to_string().contains("rank 2"), "the culprit is missing: {error}");
            // Every kernel has stopped, and the device is well.
            stream.synchronize().unwrap();
        }
        let refused = sum(&world, 2, address(&buffers[2]), 1000).unwrap_err();
        assert!(matches!(refused, Error::WaitExpired(_)), "{refused}");
    });
}

/// If this fails, ranks that disagree hang instead of getting both sides' values.
#[test]
fn ranks_that_disagree_learn_both_values() {
    on_engines("pcie4", || {
        let world = World::with(2, &impatient());
        let buffers = world.upload(&vec![vec![0; 4000]; 2]);
        sum(&world, 0, address(&buffers[0]), 1000).unwrap();
        let error = sum(&world, 1, address(&buffers[1]), 999).unwrap_err();
        for part in ["count", "rank 1 says 999", "rank 0 says 1000"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        assert_eq!(wait_for_error(&world.communicators[0]), error);
        world.streams[0].synchronize().unwrap();
    });
}

/// If this fails, the two sides of a message may name different sizes.
#[test]
fn both_sides_of_a_message_must_agree() {
    on_engines("pcie4", || {
        let world = World::with(2, &impatient());
        let buffers = world.upload(&vec![vec![0; 4000]; 2]);
        let mut group = world.communicators[0].group();
        group.send_raw(address(&buffers[0]), 100, DataType::F32, 1).unwrap();
        group.launch(&world.streams[0]).unwrap();
        let mut group = world.communicators[1].group();
        group.receive_raw(address(&buffers[1]), 101, DataType::F32, 0).unwrap();
        let error = group.launch(&world.streams[1]).unwrap_err();
        assert!(error.to_string().contains("rank 1 says 101, rank 0 says 100"), "{error}");
        wait_for_error(&world.communicators[0]);
        world.streams[0].synchronize().unwrap();
    });
}

/// If this fails, abort does not unblock kernels that wait.
#[test]
fn abort_wakes_every_rank() {
    on_engines("pcie4", || {
        let world = World::new(2);
        let buffers = world.upload(&vec![vec![0; 4000]; 2]);
        sum(&world, 0, address(&buffers[0]), 1000).unwrap();
        world.communicators[1].abort("enough");
        for (communicator, stream) in world.ranks() {
            let error = wait_for_error(communicator);
            assert!(error.to_string().contains("by rank 1: enough"), "{error}");
            stream.synchronize().unwrap();
        }
    });
}

/// If this fails, dropping communicators hangs while a kernel waits for a rank that never comes.
#[test]
fn drop_never_hangs() {
    on_engines("pcie4", || {
        let started = Instant::now();
        let patient = Settings { drop_timeout: Duration::from_millis(100), ..settings() };
        let world = World::with(2, &patient);
        let buffers = world.upload(&vec![vec![0; 4000]; 2]);
        sum(&world, 0, address(&buffers[0]), 1000).unwrap();
        drop(world);
        assert!(started.elapsed() < SOON);
        // The device is still of use.
        let world = World::new(2);
        for (rank, buffer) in buffers.iter().enumerate() {
            sum(&world, rank, address(buffer), 1000).unwrap();
        }
        world.finish();
    });
}

/// If this fails, a wrong argument is launched, or ends more than the call.
#[test]
fn bad_arguments_are_refused_and_harmless() {
    on_engines("pcie4", || {
        let world = World::new(2);
        let buffers = world.upload(&vec![vec![0; 4096]; 2]);
        let at = address(&buffers[0]);
        let (communicator, stream) = (&world.communicators[0], &world.streams[0]);
        let call = |send, receive, count, data_type, stream| {
            let result =
                communicator.all_reduce_raw(send, receive, count, data_type, ReduceOp::Sum, stream);
            result.unwrap_err().to_string()
        };
        for (message, part) in [
            (call(at, at, 1025, DataType::F32, stream), "at most 4096 bytes"),
            (call(at + 2, at + 2, 10, DataType::F32, stream), "a multiple of 4"),
            (call(64, 64, 10, DataType::F32, stream), "memory that the CUDA driver knows"),
            (call(at, at + 8, 10, DataType::F32, stream), "no overlap"),
            (call(at, at, usize::MAX, DataType::F64, stream), "less than 1 TiB"),
            (call(at, at, 10, DataType::F32, &world.streams[1]), "a stream of device 0"),
        ] {
            assert!(message.contains("invalid argument"), "{message}");
            assert!(message.contains(part), "{message}");
        }
        let mut group = communicator.group();
        let message = group.send_raw(at, 1, DataType::U8, 2).unwrap_err().to_string();
        assert!(message.contains("a rank less than 2"), "{message}");
        let mut group = communicator.group();
        group.send_raw(at, 1, DataType::U8, 0).unwrap();
        let message = group.launch(stream).unwrap_err().to_string();
        assert!(message.contains("needs a receive"), "{message}");
        communicator.register(at, 5000).unwrap_err();
        // Nothing of all that counts as a call.
        for (rank, buffer) in buffers.iter().enumerate() {
            sum(&world, rank, address(buffer), 1000).unwrap();
        }
        world.finish();
    });
}

/// If this fails, initialisation hangs when a rank does not come, or accepts impossible worlds.
#[test]
fn initialisation_fails_in_bounded_time() {
    on_engines("pcie4", || {
        let contexts = hardware::contexts(2);
        let id = UniqueId::new().unwrap();
        let error = Communicator::init_rank(&contexts[0], &id, 1, 3, &impatient()).unwrap_err();
        assert!(error.to_string().contains("no sign of ranks 0, 2"), "{error}");
        let id = UniqueId::new().unwrap();
        let error = Communicator::init_rank(&contexts[0], &id, 5, 2, &settings()).unwrap_err();
        assert!(error.to_string().contains("less than 2"), "{error}");
        let error = Communicator::init_all(&[], &settings()).unwrap_err();
        assert!(error.to_string().contains("number of ranks"), "{error}");
    });
}

/// If this fails, a registration that not every rank makes hangs the first call that uses it.
#[test]
fn registration_is_collective() {
    on_engines("pcie4", || {
        let world = World::with(2, &impatient());
        let buffers = world.upload(&vec![vec![0; 1 << 20]; 2]);
        let at = address(&buffers[0]);
        world.communicators[0].register(at, 1 << 20).unwrap();
        let error = sum(&world, 0, at, 1 << 18).unwrap_err();
        assert!(error.to_string().contains("nothing from rank 1"), "{error}");
        let world = World::new(2);
        world.communicators[0].register(at, 1 << 20).unwrap();
        let error = world.communicators[1].register(address(&buffers[1]), 1 << 19).unwrap_err();
        assert!(error.to_string().contains("rank 0 says 1048576"), "{error}");
    });
}
