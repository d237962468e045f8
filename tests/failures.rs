//! What users get when something is wrong: typed errors that name both sides, in bounded time.

mod hardware;

use cudarc::driver::CudaSlice;
use hardware::engines::{on_connections, on_every_way};
use hardware::{SOON, World, settings, sum, wait_for_error};
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
    on_every_way("pcie4", || {
        let world = World::with(3, &impatient());
        let mut buffers = world.upload(&vec![vec![0; 4000]; 3]);
        for rank in [0, 1] {
            sum(&world, rank, &mut buffers[rank], 1000).unwrap();
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
        let refused = sum(&world, 2, &mut buffers[2], 1000).unwrap_err();
        assert!(matches!(refused, Error::WaitExpired(_)), "{refused}");
    });
}

/// If this fails, the error of a failure comes only where hardware queues are many.
#[test]
fn an_expired_wait_is_known_on_few_and_many_hardware_queues() {
    on_connections("pcie4", || {
        let world = World::with(2, &impatient());
        let mut buffers = world.upload(&vec![vec![0; 4000]; 2]);
        sum(&world, 0, &mut buffers[0], 1000).unwrap();
        for (communicator, stream) in world.ranks() {
            let error = wait_for_error(communicator);
            assert!(matches!(error, Error::WaitExpired(_)), "{error}");
            assert!(error.to_string().contains("rank 1"), "the culprit is missing: {error}");
            stream.synchronize().unwrap();
        }
    });
}

/// If this fails, a program that waits for its stream and then asks takes wrong data for right:
/// kernels whose wait has expired end at once, and their streams with them.
#[test]
fn an_expired_wait_is_known_when_its_stream_has_ended() {
    on_every_way("pcie4", || {
        let hasty = Settings { wait_timeout: Duration::from_millis(5), ..impatient() };
        for _ in 0..10 {
            let world = World::with(2, &hasty);
            let mut buffers = world.upload(&vec![vec![0; 4000]; 2]);
            sum(&world, 0, &mut buffers[0], 1000).unwrap();
            world.streams[0].synchronize().unwrap();
            let error = world.communicators[0].check().unwrap_err();
            assert!(matches!(error, Error::WaitExpired(_)), "{error}");
        }
    });
}

/// If this fails, ranks that disagree hang instead of getting both sides' values.
#[test]
fn ranks_that_disagree_learn_both_values() {
    on_every_way("pcie4", || {
        let world = World::new(2);
        let mut buffers = world.upload(&vec![vec![0; 4000]; 2]);
        sum(&world, 0, &mut buffers[0], 1000).unwrap();
        let error = sum(&world, 1, &mut buffers[1], 999).unwrap_err();
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
    on_every_way("pcie4", || {
        let world = World::new(2);
        let mut buffers = world.upload(&vec![vec![0; 4000]; 2]);
        let sent = buffers[0].slice(..400);
        let mut group = world.communicators[0].group();
        group.send_bytes(DataType::F32, &sent, 1).unwrap();
        group.launch(&world.streams[0]).unwrap();
        let mut received = buffers[1].slice_mut(..404);
        let mut group = world.communicators[1].group();
        group.receive_bytes(DataType::F32, &mut received, 0).unwrap();
        let error = group.launch(&world.streams[1]).unwrap_err();
        assert!(error.to_string().contains("rank 1 says 101, rank 0 says 100"), "{error}");
        wait_for_error(&world.communicators[0]);
        world.streams[0].synchronize().unwrap();
    });
}

/// If this fails, abort does not unblock kernels that wait.
#[test]
fn abort_wakes_every_rank() {
    on_every_way("pcie4", || {
        let world = World::new(2);
        let mut buffers = world.upload(&vec![vec![0; 4000]; 2]);
        sum(&world, 0, &mut buffers[0], 1000).unwrap();
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
    on_every_way("pcie4", || {
        let started = Instant::now();
        let patient = Settings { drop_timeout: Duration::from_millis(100), ..settings() };
        let world = World::with(2, &patient);
        let mut buffers = world.upload(&vec![vec![0; 4000]; 2]);
        sum(&world, 0, &mut buffers[0], 1000).unwrap();
        drop(world);
        assert!(started.elapsed() < SOON);
        // The device is still of use.
        let world = World::new(2);
        for (rank, buffer) in buffers.iter_mut().enumerate() {
            sum(&world, rank, buffer, 1000).unwrap();
        }
        world.finish();
    });
}

/// If this fails, a wrong argument is launched, or ends more than the call. What only the calls on
/// addresses can get wrong is in `raw`.
#[test]
fn bad_arguments_are_refused_and_harmless() {
    on_every_way("pcie4", || {
        let world = World::new(2);
        let mut buffers = world.upload(&vec![vec![0; 4096]; 2]);
        let (communicator, stream) = (&world.communicators[0], &world.streams[0]);
        let [own, other] = &mut buffers[..] else { unreachable!("two ranks") };
        let call = |buffer: &mut CudaSlice<u8>, from, bytes, stream| {
            let mut part = buffer.slice_mut(from..from + bytes);
            let (data_type, op) = (DataType::F32, ReduceOp::Sum);
            let result = communicator.all_reduce_bytes_in_place(data_type, &mut part, op, stream);
            result.unwrap_err().to_string()
        };
        for (message, part) in [
            (call(own, 2, 40, stream), "a multiple of 4"),
            (call(own, 0, 42, stream), "a multiple of 4 bytes"),
            (
                call(own, 0, 40, &world.streams[1]),
                "invalid argument stream: expected one of device 0",
            ),
            (call(other, 0, 40, stream), "invalid argument buffer: expected one of device 0"),
        ] {
            assert!(message.contains("invalid argument"), "{message}");
            assert!(message.contains(part), "{message}");
        }
        let (send, mut receive) = own.split_at_mut(100);
        let refused = communicator.all_reduce(&send, &mut receive, ReduceOp::Sum, stream);
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("expected 100 elements"), "{message}");
        let message = communicator.send(&send, 2, stream).unwrap_err().to_string();
        assert!(message.contains("a rank less than 2"), "{message}");
        let message = communicator.send(other, 1, stream).unwrap_err().to_string();
        assert!(message.contains("one of device 0"), "{message}");
        let mut group = communicator.group();
        group.send(&send, 0).unwrap();
        let message = group.launch(stream).unwrap_err().to_string();
        assert!(message.contains("needs a receive"), "{message}");
        let foreign = world.streams[1].alloc_zeros::<u8>(5000).unwrap();
        communicator.register(foreign).unwrap_err();
        // Nothing of all that counts as a call, and no error of it is left behind in a context.
        for (rank, buffer) in buffers.iter_mut().enumerate() {
            sum(&world, rank, buffer, 1000).unwrap();
        }
        world.finish();
    });
}

/// If this fails, initialisation hangs when a rank does not come, or accepts impossible worlds.
#[test]
fn initialisation_fails_in_bounded_time() {
    on_every_way("pcie4", || {
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
    on_every_way("pcie4", || {
        let world = World::with(2, &impatient());
        let allocate = |world: &World, rank: usize, bytes| {
            world.streams[rank].alloc_zeros::<u8>(bytes).unwrap()
        };
        let (rank, stream) = (&world.communicators[0], &world.streams[0]);
        let mut buffer = rank.register(allocate(&world, 0, 1 << 20)).unwrap();
        let error = rank
            .all_reduce_bytes_in_place(DataType::F32, &mut buffer, ReduceOp::Sum, stream)
            .unwrap_err();
        assert!(error.to_string().contains("nothing from rank 1"), "{error}");
        let world = World::new(2);
        world.communicators[0].register(allocate(&world, 0, 1 << 20)).unwrap();
        let error = world.communicators[1].register(allocate(&world, 1, 1 << 19)).unwrap_err();
        assert!(error.to_string().contains("rank 0 says 1048576"), "{error}");
    });
}
