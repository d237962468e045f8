//! How long buffers live: they may be dropped and allocated again right after a call, whatever
//! stream the call was on, and registered ones stay as long as engines know where they lie.

mod hardware;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DeviceSlice};
use hardware::drivers::without;
use hardware::engines::{BY_TABLE, on_engines};
use hardware::perf::on_real_hardware;
use hardware::{World, on_processes_env, settings, try_join_with};
use ringdove::id::CopyContext;
use ringdove::settings::Remedies;
use ringdove::{Communicator, Error, ReduceOp, Registered, Settings};
use std::sync::Arc;

const COUNT: usize = 70_000;

/// Takes memory that was freed just now, if there is any, and overwrites it. Nothing here waits:
/// kernels of one rank wait for calls that this thread has still to make.
fn take_and_clear(streams: &[&Arc<CudaStream>]) -> Vec<CudaSlice<f32>> {
    let take = |stream: &&Arc<CudaStream>| stream.alloc_zeros(COUNT).unwrap();
    streams.iter().map(take).collect()
}

fn assert_all(
    rank: &Communicator,
    stream: &Arc<CudaStream>,
    seen: &impl DevicePtr<f32>,
    wanted: f32,
) {
    let seen = stream.clone_dtoh(seen).unwrap();
    stream.synchronize().unwrap();
    rank.check().unwrap();
    let wrong = seen.iter().filter(|&&value| value != wanted).count();
    assert_eq!(wrong, 0, "rank {}: elements that are not {wanted}", rank.rank());
}

/// If this fails, memory is freed, and used by others, while a kernel that waits for a peer has
/// still to read it. Rank 0 drops its input and allocates anew before rank 1 has even called.
#[test]
fn a_buffer_may_be_dropped_right_after_the_call() {
    on_engines("pcie4", || {
        let world = World::new(2);
        for round in 0..10 {
            let mut outputs = Vec::new();
            for (communicator, stream) in world.ranks() {
                let context = communicator.context();
                // Freed in the order of the stream that it is allocated on: the call's, or another.
                let home = match round % 2 {
                    0 => stream.clone(),
                    _ => context.new_stream().unwrap(),
                };
                let value = communicator.rank() + 1 + round;
                let input = home.clone_htod(&vec![value as f32; COUNT]).unwrap();
                let mut output = home.alloc_zeros::<f32>(COUNT).unwrap();
                let other = context.new_stream().unwrap();
                communicator.all_reduce(&input, &mut output, ReduceOp::Sum, stream).unwrap();
                drop(input);
                outputs.push((output, take_and_clear(&[&home, &other, stream, &other])));
            }
            for ((communicator, stream), (output, next)) in world.ranks().zip(outputs) {
                assert_all(communicator, stream, &output, (2 * round + 3) as f32);
                drop(next);
            }
        }
    });
}

/// If this fails, cudarc frees a buffer of a default stream in the default stream of the context
/// or the thread that drops it: it knows of no other stream, and records no uses.
#[test]
fn buffers_of_default_streams_may_be_dropped_anywhere() {
    on_engines("pcie4", || {
        let contexts = hardware::contexts(2);
        let ranks = Communicator::init_all(&contexts, &hardware::settings()).unwrap();
        for round in 0..10 {
            let mut outputs = Vec::new();
            for (rank, context) in contexts.iter().enumerate() {
                let stream = match round % 2 {
                    0 => context.default_stream(),
                    _ => context.per_thread_stream(),
                };
                let input = stream.clone_htod(&vec![(rank + 1 + round) as f32; COUNT]).unwrap();
                let mut output = stream.alloc_zeros::<f32>(COUNT).unwrap();
                ranks[rank].all_reduce(&input, &mut output, ReduceOp::Sum, &stream).unwrap();
                contexts[1 - rank].bind_to_thread().unwrap();
                if round % 2 == 0 {
                    drop(input);
                } else {
                    std::thread::scope(|scope| scope.spawn(|| drop(input)).join().unwrap());
                }
                let next = take_and_clear(&[&stream; 4]);
                outputs.push((stream, output, next));
            }
            for (rank, (stream, output, next)) in ranks.iter().zip(outputs) {
                assert_all(rank, &stream, &output, (2 * round + 3) as f32);
                drop(next);
            }
        }
    });
}

/// If this fails, what a group sends is freed under it, or what it receives.
#[test]
fn buffers_of_a_group_may_be_dropped_right_after_its_launch() {
    on_engines("pcie4", || {
        let world = World::new(2);
        for round in 1..=10u32 {
            let mut kept = Vec::new();
            for (communicator, stream) in world.ranks() {
                let (rank, context) = (communicator.rank(), communicator.context());
                let (home, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
                let sent = home.clone_htod(&vec![round as f32; COUNT]).unwrap();
                let mut received = home.alloc_zeros::<f32>(COUNT).unwrap();
                let mut unused = home.alloc_zeros::<f32>(COUNT).unwrap();
                let mut group = communicator.group();
                group.send(&sent, 1 - rank).unwrap();
                group.receive(&mut received, 1 - rank).unwrap();
                group.send(&sent, 1 - rank).unwrap();
                group.receive(&mut unused, 1 - rank).unwrap();
                group.launch(stream).unwrap();
                drop((sent, unused));
                kept.push((received, take_and_clear(&[&home, &other, stream, &other])));
            }
            for ((communicator, stream), (received, next)) in world.ranks().zip(&kept) {
                assert_all(communicator, stream, received, round as f32);
                next.iter().for_each(|next| assert_all(communicator, stream, next, 0.0));
            }
        }
    });
}

/// If this fails, the memory of a registered buffer that was dropped belongs to somebody else while
/// engines still know where it lies.
#[test]
fn registered_memory_is_kept_until_all_ranks_are_gone() {
    on_engines("pcie4", || {
        let world = World::new(2);
        let allocate =
            |rank: usize, value: f32| world.streams[rank].clone_htod(&vec![value; COUNT]).unwrap();
        let ordinary = allocate(0, 0.0);
        let register = |rank: usize, value: f32| {
            world.communicators[rank].register(allocate(rank, value)).unwrap()
        };
        let (mut first, mut second) = (register(0, 1.0), register(1, 2.0));
        let sum = |buffer: &mut Registered<f32>, rank: usize| {
            let (communicator, stream) = (&world.communicators[rank], &world.streams[rank]);
            communicator.all_reduce_in_place(buffer, ReduceOp::Sum, stream).unwrap();
        };
        let address = |buffer: &dyn DevicePtr<f32>| buffer.device_ptr(&world.streams[0]).0;
        let at = [address(&ordinary), address(&first)];
        sum(&mut first, 0);
        // Gone before rank 1 has called: rank 1's engine writes into it all the same.
        drop((ordinary, first));
        sum(&mut second, 1);
        world.finish();
        assert_all(&world.communicators[1], &world.streams[1], &second, 3.0);
        // Memory of its size is asked for again and again.
        let take = |_| world.streams[0].alloc_zeros::<f32>(COUNT).unwrap();
        let taken: Vec<_> = (0..200).map(take).collect();
        let taken_at: Vec<u64> = taken.iter().map(|buffer| address(buffer)).collect();
        assert!(taken_at.contains(&at[0]), "no memory is given out again: this test shows nothing");
        assert!(!taken_at.contains(&at[1]), "registered memory is given out again");
        // A registered buffer that is still held outlives the communicator.
        let stream = second.stream().clone();
        drop((taken, world));
        assert!(stream.clone_dtoh(&second).unwrap().iter().all(|&value| value == 3.0));
    });
}

/// The first use of a registered buffer behind collectives on staged ones that run, in two
/// processes.
fn use_registered_memory_behind_others(settings: Settings) -> ringdove::Result<()> {
    const LARGE: usize = 1 << 20;
    if std::env::var_os("RINGDOVE_TEST_INSIDE").is_none() {
        // Processes cannot share memory of pools, from which cudarc takes buffers.
        let options = ["--driver-key", "pools=peer"];
        let elsewhere = |_| unreachable!("it runs elsewhere");
        on_processes_env("pcie4", &options, &[BY_TABLE], (2, 1), elsewhere);
        return Ok(());
    }
    let rank = &try_join_with(1, settings)?[0];
    let stream = rank.context().new_stream().unwrap();
    let mut staged = stream.clone_htod(&vec![1f32; LARGE]).unwrap();
    let mut registered = rank.register(stream.clone_htod(&vec![1f32; COUNT]).unwrap())?;
    stream.synchronize().unwrap();
    for _ in 0..5 {
        rank.all_reduce_in_place(&mut staged, ReduceOp::Sum, &stream)?;
    }
    let called = rank.all_reduce_in_place(&mut registered, ReduceOp::Sum, &stream);
    // What ended the communicator comes first: the other process may be gone by then.
    rank.check()?;
    called?;
    stream.synchronize().unwrap();
    rank.check()?;
    assert_all(rank, &stream, &staged, 32.0);
    assert_all(rank, &stream, &registered.slice(..), 2.0);
    rank.finalize()
}

/// If this fails, memory of another process is opened while collectives run: the driver waits for
/// them with a lock that their engines need.
#[test]
fn registered_memory_is_opened_when_earlier_collectives_have_ended() {
    if !on_real_hardware() {
        use_registered_memory_behind_others(settings()).unwrap();
    }
}

#[test]
fn registered_memory_that_is_opened_beside_collectives_stops_them() {
    if on_real_hardware() {
        return;
    }
    let remedies = Remedies { idle_opens: false, ..Remedies::default() };
    // In the program's context, where the driver's lock holds up copies, too.
    let settings = Settings { copy_context: CopyContext::Shared, ..without(remedies) };
    let used = use_registered_memory_behind_others(settings);
    if std::env::var_os("RINGDOVE_TEST_INSIDE").is_some() {
        let error = used.unwrap_err();
        // The rank whose wait expires first ends the communicator of both.
        let is_known = matches!(error, Error::WaitExpired(_) | Error::Aborted { .. });
        assert!(is_known && error.to_string().contains("timed out"), "{error}");
    }
}
