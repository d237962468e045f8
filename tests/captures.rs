//! Collectives in CUDA graphs: captured once, launched many times, beside other calls on the same
//! communicator.

mod hardware;

use cudarc::driver::sys::{CUgraphInstantiate_flags as Flags, CUstreamCaptureMode_enum as Mode};
use cudarc::driver::{CudaGraph, CudaSlice, CudaStream};
use hardware::captures::end_capture;
use hardware::drivers::{everywhere, sum_up};
use hardware::engines::{BY_TABLE, on_every_way};
use hardware::{World, address, download, on_processes_env, on_processes_with, settings};
use ringdove::{Collective, CollectiveSpec, Communicator, DataType, Error, ReduceOp, Registered};
use std::sync::Arc;

const RANKS: usize = 4;

/// Elements of a call: one message, and several rounds of staging memory.
const COUNTS: [usize; 2] = [500, 300_000];

/// Memory that cudarc does not track: it would wait, in a capture, for what was before.
fn untracked(count: usize) -> World {
    let world = World::with(count, &settings());
    for communicator in &world.communicators {
        // SAFETY: the tests wait for all uses of a buffer on one stream before they use another.
        unsafe { communicator.context().disable_event_tracking() };
    }
    world
}

fn words(values: impl Fn(usize) -> u32, count: usize) -> Vec<Vec<u8>> {
    (0..RANKS).map(|rank| values(rank).to_le_bytes().repeat(count)).collect()
}

/// All elements of each rank's buffer are this.
fn assert_all(what: &str, buffers: &[CudaSlice<u8>], expected: impl Fn(usize) -> u32) {
    for (rank, buffer) in buffers.iter().enumerate() {
        let bytes = download(buffer);
        let seen = bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        let wrong = seen.enumerate().find(|(_, word)| *word != expected(rank));
        assert_eq!(wrong, None, "{what}: rank {rank}, expected {}", expected(rank));
    }
}

/// Enqueues a sum in place.
fn add(communicator: &Communicator, buffer: &CudaSlice<u8>, stream: &Arc<CudaStream>) {
    let (at, count) = (address(buffer), buffer.len() / 4);
    // SAFETY: the buffer lives as long as the test, which leaves it alone until it has waited.
    unsafe { communicator.all_reduce_raw(at, at, count, DataType::U32, ReduceOp::Sum, stream) }
        .unwrap();
}

/// A graph for each rank: what `enqueue` does with its rank's stream, captured.
fn capture(world: &World, mut enqueue: impl FnMut(usize)) -> Vec<CudaGraph> {
    for stream in &world.streams {
        stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    }
    (0..world.streams.len()).for_each(&mut enqueue);
    let end = |stream: &Arc<CudaStream>| end_capture(stream, Flags(0)).unwrap().unwrap();
    world.streams.iter().map(end).collect()
}

fn launch(graphs: &[CudaGraph], times: usize) {
    (0..times).for_each(|_| graphs.iter().for_each(|graph| graph.launch().unwrap()));
}

/// If this fails, a launch takes from its capture what it should find in device memory: signals,
/// credits and message numbers of launches before.
#[test]
fn captured_sums_are_launched_again_and_again_between_other_calls() {
    on_every_way("pcie4", || {
        let world = untracked(RANKS);
        for count in COUNTS {
            let buffers = world.upload(&words(|rank| rank as u32 + 1, count));
            let eager = |rank: usize| {
                add(&world.communicators[rank], &buffers[rank], &world.streams[rank]);
            };
            (0..RANKS).for_each(eager);
            let graphs = capture(&world, |rank| {
                eager(rank);
                eager(rank);
            });
            let mut sums = 1;
            for times in [1, 7] {
                launch(&graphs, times);
                (0..RANKS).for_each(eager);
                sums += 2 * times + 1;
            }
            world.finish();
            let expected = (0..sums - 1).fold(10u32, |sum, _| sum.wrapping_mul(RANKS as u32));
            assert_all("sums", &buffers, |_| expected);
        }
    });
}

/// Captured sums in registered buffers, on ranks of this process. Their capture is the first call
/// on these buffers; where that is `refused`, another call is made.
fn captured_sums_of_registered_buffers(communicators: &[Communicator], refused: bool) {
    const COUNT: usize = 140_000;
    let ranks = communicators[0].rank_count();
    let streams: Vec<_> =
        communicators.iter().map(|rank| rank.context().new_stream().unwrap()).collect();
    let register = |(rank, stream): (&Communicator, &Arc<CudaStream>)| {
        // SAFETY: as in `untracked`.
        unsafe { rank.context().disable_event_tracking() };
        let buffer = stream.clone_htod(&vec![rank.rank() + 1; COUNT]).unwrap();
        stream.synchronize().unwrap();
        rank.register(buffer).unwrap()
    };
    let mut buffers: Vec<_> = communicators.iter().zip(&streams).map(register).collect();
    let begin = || {
        for stream in &streams {
            stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        }
    };
    begin();
    if refused {
        for ((rank, stream), buffer) in communicators.iter().zip(&streams).zip(&mut buffers) {
            let refused = rank.all_reduce_in_place(buffer, ReduceOp::Sum, stream).unwrap_err();
            assert!(matches!(refused, Error::Argument { .. }), "{refused}");
            assert!(refused.to_string().contains("outside of captures"), "{refused}");
        }
        for stream in &streams {
            assert!(end_capture(stream, Flags(0)).unwrap().is_some(), "a capture of nothing");
        }
        for ((rank, stream), buffer) in communicators.iter().zip(&streams).zip(&mut buffers) {
            rank.all_reduce_in_place(buffer, ReduceOp::Max, stream).unwrap();
        }
        for ((rank, stream), buffer) in communicators.iter().zip(&streams).zip(&mut buffers) {
            stream.memcpy_htod(&vec![rank.rank() + 1; COUNT], buffer).unwrap();
        }
        begin();
    }
    for _ in 0..2 {
        for ((rank, stream), buffer) in communicators.iter().zip(&streams).zip(&mut buffers) {
            rank.all_reduce_in_place(buffer, ReduceOp::Sum, stream).unwrap();
        }
    }
    let end = |stream: &Arc<CudaStream>| end_capture(stream, Flags(0)).unwrap().unwrap();
    let graphs: Vec<_> = streams.iter().map(end).collect();
    launch(&graphs, 2);
    for ((rank, stream), buffer) in communicators.iter().zip(&streams).zip(&mut buffers) {
        rank.all_reduce_in_place(buffer, ReduceOp::Sum, stream).unwrap();
    }
    launch(&graphs, 1);
    let sum = (1..=ranks).sum::<u32>() * ranks.pow(6);
    for ((rank, stream), buffer) in communicators.iter().zip(&streams).zip(&buffers) {
        let seen = stream.clone_dtoh(&buffer.as_view()).unwrap();
        rank.check().unwrap();
        assert_eq!(seen.iter().position(|&value| value != sum), None, "rank {}", rank.rank());
    }
    // A process that ends early takes its end of what is in flight with it.
    communicators.iter().zip(&streams).for_each(|(rank, stream)| rank.barrier(stream).unwrap());
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
}

/// If this fails, a graph writes into a buffer that was registered after its own was given back.
#[test]
fn a_graph_that_outlives_its_registrations_is_refused() {
    on_every_way("pcie4", || {
        const COUNT: usize = 140_000;
        let world = untracked(RANKS);
        let ranks = || world.communicators.iter().zip(&world.streams);
        let register = |(rank, stream): (&Communicator, &Arc<CudaStream>)| {
            let buffer = stream.clone_htod(&vec![rank.rank() + 1; COUNT]).unwrap();
            stream.synchronize().unwrap();
            rank.register(buffer).unwrap()
        };
        let sum = |buffers: &mut [Registered<u32>]| {
            for ((rank, stream), buffer) in ranks().zip(buffers) {
                rank.all_reduce_in_place(buffer, ReduceOp::Sum, stream).unwrap();
            }
        };
        let wait = || world.streams.iter().for_each(|stream| stream.synchronize().unwrap());
        let mut buffers: Vec<_> = ranks().map(register).collect();
        sum(&mut buffers);
        wait();
        for stream in &world.streams {
            stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        }
        sum(&mut buffers);
        let end = |stream: &Arc<CudaStream>| end_capture(stream, Flags(0)).unwrap().unwrap();
        let graphs: Vec<_> = world.streams.iter().map(end).collect();
        launch(&graphs, 1);
        wait();
        world.communicators.iter().for_each(|rank| rank.check().unwrap());
        let own = world.communicators.iter().zip(buffers);
        let _given_back: Vec<_> =
            own.map(|(rank, buffer)| rank.deregister(buffer).unwrap()).collect();
        let mut others: Vec<_> = ranks().map(register).collect();
        sum(&mut others);
        wait();
        launch(&graphs, 1);
        for ((rank, stream), other) in ranks().zip(&others) {
            stream.synchronize().unwrap();
            let error = rank.check().unwrap_err();
            let known = matches!(
                error,
                Error::BadDescriptor(_) | Error::RegistrationGone { .. } | Error::Aborted { .. }
            );
            assert!(known, "{error}");
            let seen = stream.clone_dtoh(&other.as_view()).unwrap();
            let total = (1..=RANKS as u32).sum::<u32>();
            assert_eq!(seen.iter().position(|&value| value != total), None, "{}", rank.rank());
        }
    });
}

/// If this fails, a capture is made invalid by what the first call on a registered buffer does.
#[test]
fn captured_sums_may_be_the_first_on_registered_buffers() {
    on_every_way("pcie4", || {
        captured_sums_of_registered_buffers(&untracked(RANKS).communicators, false);
    });
}

/// As above. The memory of another process is opened by the first call, which no capture survives:
/// if this fails, it ends in an error of the driver, and with it the communicator.
#[test]
fn captured_sums_are_not_the_first_on_registered_buffers_in_processes() {
    let options = ["--driver-key", "pools=peer"];
    let body = |ranks: Vec<_>| captured_sums_of_registered_buffers(&ranks, true);
    on_processes_env("pcie4", &options, &[BY_TABLE], (2, 2), body);
}

/// As above, where the memory is that of another node.
#[test]
fn captured_sums_of_registered_buffers_on_nodes() {
    let options = ["--driver-key", "pools=peer"];
    let body = |ranks: Vec<_>| captured_sums_of_registered_buffers(&ranks, false);
    on_processes_with("pcie4 x 2", &options, (2, 2), body);
}

/// As above, where GPU threads store on each node.
#[test]
fn captured_sums_on_nodes_that_store() {
    let body = |ranks: Vec<_>| captured_sums_of_registered_buffers(&ranks, false);
    on_processes_with("dgx-a100 x 2", &["--driver-key", "pools=peer"], (2, 2), body);
}

/// If this fails, two collectives of one rank run at the same time, on the same slots and signals.
#[test]
fn branches_of_one_graph_are_put_in_order() {
    on_every_way("pcie4", || {
        let world = untracked(RANKS);
        let buffers =
            [1, 100].map(|unit| world.upload(&words(|rank| unit * (rank as u32 + 1), COUNTS[1])));
        let new_stream = |communicator: &Communicator| communicator.context().new_stream().unwrap();
        let sides: Vec<_> = world.communicators.iter().map(new_stream).collect();
        let graphs = capture(&world, |rank| {
            let (communicator, stream) = (&world.communicators[rank], &world.streams[rank]);
            sides[rank].wait(&stream.record_event(None).unwrap()).unwrap();
            add(communicator, &buffers[0][rank], stream);
            add(communicator, &buffers[1][rank], &sides[rank]);
            add(communicator, &buffers[0][rank], stream);
            stream.wait(&sides[rank].record_event(None).unwrap()).unwrap();
        });
        launch(&graphs, 3);
        world.finish();
        assert_all("one branch", &buffers[0], |_| 10 * (RANKS as u32).pow(5));
        assert_all("the other", &buffers[1], |_| 1000 * (RANKS as u32).pow(2));
    });
}

/// If this fails, the table of a group's addresses belongs to another call when a graph runs.
#[test]
fn captured_groups_keep_their_addresses() {
    on_every_way("pcie4", || {
        let world = untracked(RANKS);
        let count = COUNTS[1];
        let own = world.upload(&words(|rank| rank as u32, count));
        let other = world.upload(&words(|_| 77, count));
        let shift = |rank: usize, buffers: [&Vec<CudaSlice<u8>>; 2]| {
            let [from, to] = buffers.map(|buffers| address(&buffers[rank]));
            let mut group = world.communicators[rank].group();
            let (next, previous) = ((rank + 1) % RANKS, (rank + RANKS - 1) % RANKS);
            // SAFETY: as in `add`.
            unsafe {
                group.send_raw(from, count, DataType::U32, next as u32).unwrap();
                group.receive_raw(to, count, DataType::U32, previous as u32).unwrap();
            }
            group.launch(&world.streams[rank]).unwrap();
        };
        let graphs = capture(&world, |rank| {
            shift(rank, [&own, &other]);
            shift(rank, [&other, &own]);
        });
        // The same group with other addresses, whose tables take each other's place.
        let spare = world.upload(&words(|_| 5, count));
        for turn in 0..20 {
            let buffers = if turn % 2 == 0 { [&spare, &other] } else { [&other, &spare] };
            (0..RANKS).for_each(|rank| shift(rank, buffers));
        }
        launch(&graphs, 3);
        world.finish();
        assert_all("after six shifts", &own, |rank| ((rank + 2 * RANKS - 6) % RANKS) as u32);
        assert_all("after five", &other, |rank| ((rank + 2 * RANKS - 5) % RANKS) as u32);
    });
}

/// If this fails, a captured group does not bring the plans of all its calls, or a replay of their
/// one launch takes the positions of another one.
#[test]
fn captured_groups_of_collectives_are_launched_again_and_again() {
    on_every_way("pcie4", || {
        let world = untracked(RANKS);
        let buffers = COUNTS.map(|count| world.upload(&words(|rank| rank as u32 + 1, count)));
        let before = world.communicators[0].statistics().launches;
        let graphs = capture(&world, |rank| {
            let mut group = world.communicators[rank].group();
            let reduction = Some(ReduceOp::Sum.into());
            let (collective, data_type) = (Collective::AllReduce, DataType::U32);
            let spec = CollectiveSpec { collective, data_type, reduction };
            for (buffers, count) in buffers.iter().zip(COUNTS) {
                let at = address(&buffers[rank]);
                // SAFETY: as of `add`.
                unsafe { group.collective_raw(spec, [at, at], count) };
            }
            group.launch(&world.streams[rank]).unwrap();
        });
        assert_eq!(world.communicators[0].statistics().launches, before + 1, "one for the group");
        for (times, expected) in [(1, 10), (3, 640), (2, 10_240)] {
            launch(&graphs, times);
            world.finish();
            buffers.iter().for_each(|buffers| assert_all("groups", buffers, |_| expected));
        }
    });
}

/// If this fails, a capture that takes no more work leaves other ranks waiting, or the communicator
/// failed.
#[test]
fn a_capture_that_is_invalid_is_refused_before_anybody_is_told() {
    everywhere("pcie4", &["capture=on"], || {
        let world = World::new(2);
        let buffers = world.upload(&vec![vec![0; 4000]; 2]);
        let (first, stream) = (&world.communicators[0], &world.streams[0]);
        stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        // What every stream of a capture may not do.
        assert!(stream.synchronize().is_err());
        let refused = first.barrier(stream).unwrap_err();
        assert!(matches!(refused, Error::Capturing { .. }), "{refused}");
        let refused = first.send(&buffers[0], 1, stream).unwrap_err();
        assert!(matches!(refused, Error::Capturing { .. }), "{refused}");
        assert!(stream.end_capture(Flags(0)).is_err());
        world.communicators.iter().for_each(|communicator| communicator.check().unwrap());
        drop(buffers);
        let _ = first.context().check_err();
        sum_up(&world, 4).unwrap();
    });
}
