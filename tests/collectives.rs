//! The collectives other than all-reduce on hardware: results bit for bit, every count, root, type
//! and way of calling, on every engine; what bad input gets.

#[path = "collectives/case.rs"]
mod case;
#[path = "collectives/groups.rs"]
mod groups;
mod hardware;
#[path = "collectives/low_latency.rs"]
mod low_latency;

use case::{Call, Case, POISON, check, compare};
use cudarc::driver::{CudaSlice, CudaStream};
use hardware::engines::{on_connections, on_engines};
use hardware::{World, download, on_machine, on_processes, settings, upload};
use ringdove::{Collective, CollectiveSpec, Communicator, DataType, Error, ReduceOp, Settings};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Small data in slots, too.
fn without_low_latency() -> Settings {
    Settings { low_latency_bytes: 0, ..settings() }
}

fn without_root() -> [Collective; 3] {
    [Collective::AllGather, Collective::ReduceScatter, Collective::AllToAll]
}

fn with_root(root: u32) -> [Collective; 4] {
    [
        Collective::Broadcast { root },
        Collective::Reduce { root },
        Collective::Gather { root },
        Collective::Scatter { root },
    ]
}

fn all(root: u32) -> Vec<Collective> {
    [&without_root()[..], &with_root(root)].concat()
}

/// If this fails, some rank gets what another one should get, or sizes at the edges are clipped
/// wrongly: counts that no message divides, one element, none.
#[test]
fn every_collective_count_and_number_of_ranks() {
    on_engines("dgx1v", || {
        for ranks in [1, 2, 3, 8] {
            let world = World::with(ranks, &without_low_latency());
            for count in [0, 1, 77, 9_001] {
                for collective in all(ranks as u32 / 2) {
                    for in_place in [false, true] {
                        check(&world, Case { in_place, ..Case::new(collective, count) });
                    }
                }
            }
        }
    });
}

/// If this fails, a root other than the first or the last one is wrong.
#[test]
fn every_root() {
    on_engines("dgx1v", || {
        for (ranks, counts) in [(4, [33, 9_001]), (8, [33, 34])] {
            let world = World::with(ranks, &without_low_latency());
            for collective in (0..ranks as u32).flat_map(with_root) {
                // One hop, and along all ranks.
                for count in counts {
                    for in_place in [false, true] {
                        check(&world, Case { in_place, ..Case::new(collective, count) });
                    }
                }
            }
        }
    });
}

/// If this fails, a data type or a reduction is wrong in one of the plans that reduce, or a plan
/// that moves data does something to it.
#[test]
fn every_data_type_and_reduction() {
    on_engines("pcie4", || {
        let world = World::with(3, &without_low_latency());
        for data_type in DataType::ALL {
            every_reduction(&world, data_type, &[(67, false), (9_001, true)]);
            for collective in [Collective::AllGather, Collective::AllToAll] {
                check(&world, Case { data_type, ..Case::new(collective, 77) });
            }
        }
    });
}

/// Counts, and whether in place.
fn every_reduction(world: &World, data_type: DataType, counts: &[(usize, bool)]) {
    for op in ReduceOp::ALL {
        for collective in [Collective::ReduceScatter, Collective::Reduce { root: 1 }] {
            for &(count, in_place) in counts {
                // Along all ranks once for each type is enough.
                if count > 1000 && op != ReduceOp::PreMulSum && op != ReduceOp::Avg {
                    continue;
                }
                check(world, Case { data_type, op, in_place, ..Case::new(collective, count) });
            }
        }
    }
}

/// If this fails, large messages break: several blocks, rounds, slots reused, credits.
#[test]
fn large_counts() {
    on_engines("pcie4", || {
        let world = World::new(4);
        for collective in all(2) {
            for in_place in [false, true] {
                check(&world, Case { in_place, ..Case::new(collective, 300_003) });
            }
        }
    });
}

/// If this fails, lanes are not left as the next plan expects them: positions, credits.
#[test]
fn collectives_in_any_order_with_all_reduce_between() {
    on_engines("pcie4", || {
        let world = World::new(4);
        for turn in 0..2 {
            for collective in all(turn) {
                check(&world, Case::new(collective, 100 + turn as usize));
                check(&world, Case::new(Collective::AllReduce, 3000));
                check(&world, Case::new(collective, 9_000));
            }
        }
    });
}

/// If this fails, copies that a kernel waits for stand behind it in a hardware queue.
#[test]
fn every_collective_on_few_and_many_hardware_queues() {
    on_connections("pcie4", || {
        let world = World::new(4);
        for collective in all(1) {
            for count in [33, 9_001] {
                check(&world, Case::new(collective, count));
            }
        }
    });
}

/// If this fails, ranks of other nodes are reached by no lane, or by the wrong one.
#[test]
fn every_collective_between_nodes() {
    on_processes("pcie4 x 2", (2, 2), |ranks| {
        let streams = ranks.iter().map(|rank| rank.context().new_stream().unwrap()).collect();
        let world = World { communicators: ranks, streams };
        let first = world.communicators[0].rank() as usize;
        for count in [1, 1000, 50_001] {
            for collective in all(3) {
                check_own(&world, first, 4, Case::new(collective, count));
            }
        }
        for (rank, stream) in world.ranks() {
            rank.barrier(stream).unwrap();
        }
        world.finish();
    });
}

/// As [`check`] for the ranks of this process, of `ranks` ranks in all.
fn check_own(world: &World, first: usize, ranks: usize, case: Case) {
    let inputs = case.inputs(ranks);
    let own = first..first + world.communicators.len();
    let sends = world.upload(&inputs[own.clone()]);
    let size = |rank| case.parts(rank, ranks).1 * case.bytes();
    let poison: Vec<_> = own.clone().map(|rank| vec![POISON; size(rank)]).collect();
    let mut receives = world.upload(&poison);
    for (place, (communicator, stream)) in world.ranks().enumerate() {
        let rank = first + place;
        let send = sends[place].slice(..inputs[rank].len());
        let mut receive = receives[place].slice_mut(..size(rank));
        let (send, receive) = (Some(&send), Some(&mut receive));
        communicator.collective_bytes(case.spec(rank), send, receive, stream).unwrap();
    }
    world.finish();
    for (place, rank) in own.enumerate() {
        let wanted = case.result(rank, &inputs);
        compare(case, rank, &download(&receives[place])[..wanted.len()], &wanted);
    }
}

/// If this fails, the typed methods pass their buffers on wrongly.
#[test]
fn typed_methods_on_buffers_of_cudarc() {
    on_machine("pcie4", || {
        let world = World::new(2);
        let none = None::<&CudaSlice<f32>>;
        let upload = |rank: usize, values: &[f32]| world.streams[rank].clone_htod(values).unwrap();
        let zeros = |rank: usize, count| world.streams[rank].alloc_zeros::<f32>(count).unwrap();
        let read = |slice: &CudaSlice<f32>| slice.stream().clone_dtoh(slice).unwrap();
        let mut sends: Vec<_> =
            (0..2).map(|rank| upload(rank, &[rank as f32 + 1.0, rank as f32 + 5.0])).collect();
        let run = |call: &mut dyn FnMut(usize, &Communicator, &Arc<CudaStream>)| {
            for (number, (rank, stream)) in world.ranks().enumerate() {
                call(number, rank, stream);
            }
            world.finish();
        };

        let mut outputs: Vec<_> = (0..2).map(|rank| zeros(rank, 4)).collect();
        run(&mut |n, rank, stream| rank.all_gather(&sends[n], &mut outputs[n], stream).unwrap());
        assert_eq!(read(&outputs[0]), [1.0, 5.0, 2.0, 6.0]);
        assert_eq!(read(&outputs[1]), [1.0, 5.0, 2.0, 6.0]);

        let mut outputs: Vec<_> = (0..2).map(|rank| zeros(rank, 1)).collect();
        run(&mut |n, rank, stream| {
            rank.reduce_scatter(&sends[n], &mut outputs[n], ReduceOp::Sum, stream).unwrap();
        });
        assert_eq!((read(&outputs[0]), read(&outputs[1])), (vec![3.0], vec![11.0]));

        let mut outputs: Vec<_> = (0..2).map(|rank| zeros(rank, 2)).collect();
        run(&mut |n, rank, stream| {
            let send = (n == 1).then_some(&sends[1]);
            rank.broadcast(send, &mut outputs[n], 1, stream).unwrap();
        });
        assert_eq!((read(&outputs[0]), read(&outputs[1])), (vec![2.0, 6.0], vec![2.0, 6.0]));
        run(&mut |n, rank, stream| {
            let receive = (n == 0).then_some(&mut outputs[0]);
            rank.reduce(&sends[n], receive, ReduceOp::Max, 0, stream).unwrap();
        });
        assert_eq!(read(&outputs[0]), [2.0, 6.0]);
        run(&mut |n, rank, stream| rank.all_to_all(&sends[n], &mut outputs[n], stream).unwrap());
        assert_eq!((read(&outputs[0]), read(&outputs[1])), (vec![1.0, 2.0], vec![5.0, 6.0]));
        run(&mut |n, rank, stream| rank.all_to_all_in_place(&mut sends[n], stream).unwrap());
        assert_eq!((read(&sends[0]), read(&sends[1])), (vec![1.0, 2.0], vec![5.0, 6.0]));

        let mut gathered = zeros(1, 4);
        run(&mut |n, rank, stream| {
            let receive = (n == 1).then_some(&mut gathered);
            rank.gather(&sends[n], receive, 1, stream).unwrap();
        });
        assert_eq!(read(&gathered), [1.0, 2.0, 5.0, 6.0]);
        run(&mut |n, rank, stream| {
            let send = if n == 1 { Some(&gathered) } else { none };
            rank.scatter(send, &mut outputs[n], 1, stream).unwrap();
        });
        assert_eq!((read(&outputs[0]), read(&outputs[1])), (vec![1.0, 2.0], vec![5.0, 6.0]));
    });
}

/// If this fails, parts of an all-to-all go to or come from the wrong place.
#[test]
fn all_to_all_with_counts_and_displacements() {
    on_engines("pcie4", || {
        let ranks = 4;
        let world = World::new(ranks);
        // Rank r sends p + 2 r elements to rank p: rank 0 sends itself none.
        let count = |from: usize, to: usize| to + 2 * from;
        let value = |from: usize, to: usize, index: usize| (from * 100 + to * 10 + index) as u32;
        let mut sends = Vec::new();
        let mut receives = Vec::new();
        for (rank, stream) in world.streams.iter().enumerate() {
            let part = |to| (0..count(rank, to)).map(move |index| value(rank, to, index));
            let values: Vec<u32> = (0..ranks).flat_map(part).chain([0]).collect();
            sends.push(stream.clone_htod(&values).unwrap());
            receives.push(stream.clone_htod(&[7u32; 64]).unwrap());
        }
        // Received parts stand in the opposite order, with gaps of one.
        let placed = |rank: usize| {
            let mut end = 64;
            let parts = (0..ranks).map(move |from| {
                end -= count(from, rank) + 1;
                end..end + count(from, rank)
            });
            parts.collect::<Vec<_>>()
        };
        for (rank, (communicator, stream)) in world.ranks().enumerate() {
            let mut start = 0;
            let part = |to| {
                start += count(rank, to);
                start - count(rank, to)..start
            };
            let parts: Vec<_> = (0..ranks).map(part).collect();
            let (send, receive) = (&sends[rank], &mut receives[rank]);
            communicator.all_to_all_v(send, &parts, receive, &placed(rank), stream).unwrap();
        }
        world.finish();
        for (rank, receive) in receives.iter().enumerate() {
            let mut wanted = [7u32; 64];
            for (from, part) in placed(rank).into_iter().enumerate() {
                for (index, element) in wanted[part].iter_mut().enumerate() {
                    *element = value(from, rank, index);
                }
            }
            assert_eq!(receive.stream().clone_dtoh(receive).unwrap(), wanted, "rank {rank}");
        }
        let (communicator, stream) = (&world.communicators[0], &world.streams[0]);
        let (nothing, outside) = ([0..0, 0..0, 0..0, 0..0], [0..1, 1..2, 2..3, 64..66]);
        let (send, receive) = (&sends[0], &mut receives[0]);
        let called = communicator.all_to_all_v(send, &nothing, receive, &outside, stream);
        let error = called.unwrap_err();
        assert!(error.to_string().contains("64..66"), "{error}");
    });
}

/// If this fails, a barrier lets a rank through before the last one has come.
#[test]
fn nobody_passes_a_barrier_early() {
    on_engines("pcie4", || {
        for settings in [settings(), without_low_latency()] {
            let world = World::with(4, &settings);
            nobody_passes_early(&world);
        }
    });
}

fn nobody_passes_early(world: &World) {
    for last in 0..4 {
        let late = |rank: &usize| *rank != last;
        let call = |rank: usize| {
            let (communicator, stream) = (&world.communicators[rank], &world.streams[rank]);
            communicator.barrier(stream).unwrap();
            let event = stream.context().new_event(None).unwrap();
            event.record(stream).unwrap();
            event
        };
        let events: Vec<_> = (0..4).filter(late).map(call).collect();
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(200) {
            assert!(events.iter().all(|event| !event.try_is_complete().unwrap()));
            std::thread::yield_now();
        }
        call(last);
        world.finish();
        assert!(events.iter().all(|event| event.try_is_complete().unwrap()));
    }
}

/// If this fails, what only the caller does wrong ends the communicator, or goes through.
#[test]
fn what_cannot_be_is_refused_and_the_communicator_stays_usable() {
    on_machine("pcie4", || {
        let world = World::new(2);
        let (rank, stream) = (&world.communicators[0], &world.streams[0]);
        let mut buffers: Vec<_> = (0..2).map(|_| upload(stream, &[1; 64])).collect();
        let [first, second] = &mut buffers[..] else { unreachable!() };
        let spec =
            |collective| CollectiveSpec { collective, data_type: DataType::F32, reduction: None };
        let mut refused = |collective, sent: usize, received: usize, parts: &[&str]| {
            let (send, mut receive) = (first.slice(..sent), second.slice_mut(..received));
            let (send, receive) = (Some(&send), Some(&mut receive));
            let error = rank.collective_bytes(spec(collective), send, receive, stream);
            let error = error.expect_err("refused");
            assert!(matches!(error, Error::Argument { .. }), "{error}");
            let text = error.to_string();
            assert!(parts.iter().all(|part| text.contains(part)), "{parts:?}: {text}");
        };
        refused(Collective::Broadcast { root: 2 }, 8, 8, &["root", "less than 2"]);
        refused(Collective::Reduce { root: u32::MAX }, 8, 8, &["root", "less than 2"]);
        refused(Collective::AllGather, 8, 8, &["receive buffer", "2 parts"]);
        refused(Collective::ReduceScatter, 12, 8, &["send buffer", "a multiple of 2"]);
        refused(Collective::Scatter { root: 0 }, 16, 16, &["receive buffer"]);
        refused(Collective::AllToAll, 16, 8, &["receive buffer", "as the send buffer has"]);
        refused(Collective::AllGather, 6, 12, &["a multiple of 4 bytes"]);
        for (number, (rank, stream)) in world.ranks().enumerate() {
            assert_eq!(number as u32, rank.rank());
            rank.barrier(stream).unwrap();
        }
        world.finish();
    });
}

/// A call that differs between ranks, as rank 0 makes it and as rank 1 does.
fn disagree(one: (Collective, usize), other: (Collective, usize), parts: &[&str]) {
    let world = World::with(2, &Settings { wait_timeout: Duration::from_secs(20), ..settings() });
    let mut seen = Vec::new();
    for ((rank, stream), (collective, count)) in world.ranks().zip([one, other]) {
        let [send, mut receive] = [(); 2].map(|()| upload(stream, &vec![1; 8 * count]));
        let case = Case::new(collective, count);
        let (sent, received) = case.parts(rank.rank() as usize, 2);
        let send = send.slice(..sent * case.bytes());
        let mut receive = receive.slice_mut(..received * case.bytes());
        let spec = CollectiveSpec { collective, data_type: DataType::F32, reduction: None };
        let called = rank.collective_bytes(spec, Some(&send), Some(&mut receive), stream);
        seen.extend(called.err());
    }
    let error = seen
        .into_iter()
        .next()
        .unwrap_or_else(|| hardware::wait_for_error(&world.communicators[0]));
    assert!(matches!(error, Error::Disagreement { .. }), "{error}");
    let text = error.to_string();
    assert!(parts.iter().all(|part| text.contains(part)), "{parts:?}: {text}");
}

/// If this fails, ranks that call different things hang, or are not told who called what.
#[test]
fn calls_that_differ_name_both_sides() {
    on_machine("pcie4", || {
        let gather = Collective::AllGather;
        disagree((gather, 8), (gather, 9), &["count", "8", "9"]);
        let names = ["all-gather", "reduce-scatter"];
        disagree((gather, 8), (Collective::ReduceScatter, 8), &names);
        let broadcast = |root| Collective::Broadcast { root };
        disagree((broadcast(0), 8), (broadcast(1), 8), &["root", "0", "1"]);
    });
}
