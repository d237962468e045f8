//! Registered buffers that are taken back: their memory belongs to the caller again, and nobody
//! else knows of it.

mod hardware;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use hardware::engines::on_engines;
use hardware::{World, on_processes, on_processes_with};
use ringdove::{Communicator, Error, ReduceOp};
use std::sync::Arc;

/// Enough for plans that move data straight between registered buffers.
const COUNT: usize = 140_000;

type Rank<'a> = (&'a Communicator, &'a Arc<CudaStream>);

fn allocate(stream: &Arc<CudaStream>, value: f32) -> CudaSlice<f32> {
    stream.clone_htod(&vec![value; COUNT]).unwrap()
}

fn assert_all((rank, stream): Rank<'_>, seen: &impl DevicePtr<f32>, wanted: f32) {
    let seen = stream.clone_dtoh(seen).unwrap();
    rank.check().unwrap();
    let wrong = seen.iter().filter(|&&value| value != wanted).count();
    assert_eq!(wrong, 0, "rank {}: elements that are not {wanted}", rank.rank());
}

/// Registers a buffer on each rank, sums it in place, takes it back, and sums it once more. Gives
/// the addresses.
fn register_and_take_back(ranks: &[Rank<'_>], rank_count: u32) -> Vec<u64> {
    let value = |rank: &Communicator| (rank.rank() + 1) as f32;
    let register =
        |&(rank, stream): &Rank<'_>| rank.register(allocate(stream, value(rank))).unwrap();
    let mut registered: Vec<_> = ranks.iter().map(register).collect();
    for ((rank, stream), buffer) in ranks.iter().zip(&mut registered) {
        rank.all_reduce_in_place(buffer, ReduceOp::Sum, stream).unwrap();
    }
    let take_back = |(&(rank, stream), registered): (&Rank<'_>, _)| {
        let mut buffer = rank.deregister(registered).unwrap();
        rank.all_reduce_in_place(&mut buffer, ReduceOp::Sum, stream).unwrap();
        buffer
    };
    let buffers: Vec<_> = ranks.iter().zip(registered).map(take_back).collect();
    let sum = (rank_count * (rank_count + 1) / 2) as f32;
    for (&rank, buffer) in ranks.iter().zip(&buffers) {
        assert_all(rank, buffer, sum * rank_count as f32);
    }
    buffers.iter().map(|buffer| buffer.device_ptr(buffer.stream()).0).collect()
}

/// If this fails, a buffer cannot be registered for a while: routes to it, or its memory, are lost,
/// or a later call uses routes of an earlier registration.
#[test]
fn a_buffer_that_is_taken_back_is_like_any_other() {
    on_engines("pcie4", || {
        let world = World::new(2);
        let ranks: Vec<_> = world.ranks().collect();
        let first = register_and_take_back(&ranks, 2);
        for _ in 0..5 {
            register_and_take_back(&ranks, 2);
        }
        // Registered memory is not given out again before it is taken back: see tests/buffers.rs.
        let taken: Vec<_> = (0..50).map(|_| allocate(&world.streams[0], 0.0)).collect();
        let mut at = taken.iter().map(|buffer| buffer.device_ptr(buffer.stream()).0);
        assert!(at.any(|address| address == first[0]), "the memory was not freed");
    });
}

/// If this fails, ranks of which one has taken a buffer back go on with calls that differ: a peer
/// may write into memory that is somebody else's by now.
#[test]
fn a_rank_that_goes_on_using_the_buffer_is_named() {
    on_engines("pcie4", || {
        let world = World::new(2);
        let ranks: Vec<_> = world.ranks().collect();
        let register = |&(rank, stream): &Rank<'_>| rank.register(allocate(stream, 1.0)).unwrap();
        let mut buffers: Vec<_> = ranks.iter().map(register).collect();
        let mut other = buffers.pop().unwrap();
        ranks[0].0.deregister(buffers.pop().unwrap()).unwrap();
        let (rank, stream) = ranks[1];
        let refused = rank.all_reduce_in_place(&mut other, ReduceOp::Sum, stream).unwrap_err();
        assert!(matches!(refused, Error::Disagreement { .. }), "{refused}");
        let message = refused.to_string();
        for part in ["deregistration", "all-reduce", "rank 0", "rank 1"] {
            assert!(message.contains(part), "{part}: {message}");
        }
        assert!(ranks[0].0.check().is_err(), "the other rank does not know");
    });
}

/// If this fails, a communicator takes back what it does not know.
#[test]
fn a_buffer_of_another_communicator_is_refused() {
    on_engines("pcie4", || {
        let (world, other) = (World::new(1), World::new(1));
        let buffer = allocate(&world.streams[0], 1.0);
        let registered = world.communicators[0].register(buffer).unwrap();
        let refused = other.communicators[0].deregister(registered).unwrap_err();
        assert!(refused.to_string().contains("another"), "{refused}");
        other.communicators[0].check().unwrap();
    });
}

fn in_processes(machine: &str, division: (u32, u32)) {
    // cudarc takes buffers from a pool, and processes cannot share memory of pools, which is
    // refused by name; memory of cuMemAlloc is shared like this.
    on_processes_with(machine, &["--driver-key", "pools=peer"], division, |communicators| {
        let streams: Vec<_> =
            communicators.iter().map(|rank| rank.context().new_stream().unwrap()).collect();
        let ranks: Vec<_> = communicators.iter().zip(&streams).collect();
        for _ in 0..3 {
            register_and_take_back(&ranks, communicators[0].rank_count());
        }
        communicators.iter().for_each(|rank| rank.check().unwrap());
    });
}

/// If this fails, a peer's engine copies to an address that it has not mapped.
#[test]
fn memory_of_a_pool_is_refused_by_name_between_processes() {
    on_processes("pcie4", (2, 1), |communicators| {
        let rank = &communicators[0];
        let stream = rank.context().new_stream().unwrap();
        let error = rank.register(allocate(&stream, 1.0)).unwrap_err();
        let message = error.to_string();
        assert!(matches!(error, Error::Argument { .. }), "{message}");
        assert!(message.contains("not a stream-ordered pool"), "{message}");
    });
}

/// If this fails, processes that have the memory open keep it open, or wait for each other for
/// ever.
#[test]
fn buffers_are_taken_back_in_every_process() {
    in_processes("pcie4", (4, 1));
}

/// If this fails, a rank waits for another one of its own process, which the same thread drives.
#[test]
fn one_thread_takes_buffers_of_two_ranks_back() {
    in_processes("pcie4", (2, 2));
}

/// If this fails, an adapter keeps a key to memory that is somebody else's by now, or a transfer
/// takes the key of an earlier registration.
#[test]
fn buffers_are_taken_back_on_every_node() {
    for division in [(2, 1), (2, 2), (4, 1)] {
        in_processes("pcie4 x 2", division);
    }
}
