//! How long buffers live: they may be dropped and allocated again right after a call, whatever
//! stream the call was on, and registered ones stay as long as engines know where they lie.

mod hardware;

use cudarc::driver::{CudaSlice, CudaStream};
use hardware::World;
use hardware::engines::on_engines;
use ringdove::{Communicator, ReduceOp, Registered};
use std::sync::Arc;

const COUNT: usize = 50_000;

/// Takes memory that was freed just now, if there is any, and overwrites it. Nothing here waits:
/// kernels of one rank wait for calls that this thread has still to make.
fn take_and_clear(streams: &[&Arc<CudaStream>]) -> Vec<CudaSlice<f32>> {
    let take = |stream: &&Arc<CudaStream>| stream.alloc_zeros(COUNT).unwrap();
    streams.iter().map(take).collect()
}

fn assert_all(rank: &Communicator, stream: &Arc<CudaStream>, seen: &CudaSlice<f32>, wanted: f32) {
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
/// engines write into it; or it is never given back.
#[test]
fn registered_memory_is_kept_until_all_ranks_are_gone() {
    on_engines("pcie4", || {
        let world = World::new(2);
        let contexts: Vec<_> =
            world.communicators.iter().map(|rank| rank.context().clone()).collect();
        let register = |rank: usize, value: f32| {
            let slice = world.streams[rank].clone_htod(&vec![value; COUNT]).unwrap();
            world.communicators[rank].register(slice).unwrap()
        };
        let (mut first, mut second) = (register(0, 1.0), register(1, 2.0));
        let sum = |buffer: &mut Registered<f32>, rank: usize| {
            let (communicator, stream) = (&world.communicators[rank], &world.streams[rank]);
            communicator.all_reduce_in_place(buffer, ReduceOp::Sum, stream).unwrap();
        };
        sum(&mut first, 0);
        // Gone before rank 1 has called: rank 1's engine writes into it all the same.
        drop(first);
        let other = contexts[0].new_stream().unwrap();
        let guards = take_and_clear(&[&other; 8]);
        sum(&mut second, 1);
        world.finish();
        let seen = world.streams[1].clone_dtoh(&second).unwrap();
        assert!(seen.iter().all(|&value| value == 3.0), "{}", seen[0]);
        for guard in &guards {
            assert_all(&world.communicators[0], &other, guard, 0.0);
        }
        drop(guards);
        let free =
            || contexts.iter().map(|context| context.mem_get_info().unwrap().0).sum::<usize>();
        world.finish();
        let before = free();
        drop(world);
        let between = free();
        assert!(between > before, "the communicator's memory");
        // What was registered on rank 1 is still held here, and of use.
        assert_eq!(second.as_view().len(), COUNT);
        let seen = second.as_view();
        let stream = contexts[1].new_stream().unwrap();
        assert!(stream.clone_dtoh(&seen).unwrap().iter().all(|&value| value == 3.0));
        drop(second);
        contexts.iter().for_each(|context| context.synchronize().unwrap());
        assert!(free() >= between + 4 * COUNT, "the buffer is given back at last");
    });
}
