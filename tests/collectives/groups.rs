//! Collectives in groups: results as of calls one by one, in fewer launches.

use super::hardware::drivers::everywhere;
use super::hardware::engines::on_engines;
use super::hardware::{self, World, address, download, on_machine, on_processes, settings, upload};
use super::{Call, Case, all, compare, without_low_latency};
use ringdove::{Collective, CollectiveSpec, Communicator, DataType, Error, Group, ReduceOp};

impl Call {
    /// Calls all of them on all ranks: on each rank in one group, or one by one.
    fn start_together(calls: &mut [Self], world: &World, is_grouped: impl Fn(usize) -> bool) {
        for (rank, (communicator, stream)) in world.ranks().enumerate() {
            if !is_grouped(rank) {
                calls.iter_mut().for_each(|call| call.start_one(rank, communicator, stream));
                continue;
            }
            let mut views: Vec<_> = calls.iter_mut().map(|call| call.views(rank)).collect();
            let mut group = communicator.group();
            for (case, send, receive) in &mut views {
                let spec = case.spec(rank);
                group.collective_bytes(spec, send.as_ref(), receive.as_mut()).unwrap();
            }
            group.launch(stream).unwrap_or_else(|error| panic!("rank {rank}: {error}"));
        }
    }
}

fn launches(world: &World) -> Vec<u64> {
    world.communicators.iter().map(|rank| rank.statistics().launches).collect()
}

/// If this fails, a group of collectives costs a launch for each, or calls of a launch mix up their
/// types, reductions, buffers, positions.
#[test]
fn small_collectives_of_a_group_are_one_launch() {
    on_engines("dgx1v", || {
        for settings in [settings(), without_low_latency()] {
            let world = World::with(4, &settings);
            let reduce = |data_type, op, count| Case {
                data_type,
                op,
                ..Case::new(Collective::AllReduce, count)
            };
            let cases = [
                reduce(DataType::F32, ReduceOp::Sum, 1_000),
                reduce(DataType::I32, ReduceOp::Max, 77),
                reduce(DataType::BF16, ReduceOp::Avg, 4_001),
                reduce(DataType::F64, ReduceOp::PreMulSum, 5),
                reduce(DataType::F32, ReduceOp::Sum, 1_000),
                reduce(DataType::U8, ReduceOp::Prod, 1),
                reduce(DataType::F16, ReduceOp::Min, 2_000),
                reduce(DataType::F32, ReduceOp::Sum, 0),
                reduce(DataType::I64, ReduceOp::Sum, 300),
            ];
            assert_eq!(cases.len(), Group::LAUNCH_CALLS_MAX + 1, "one of them is empty");
            for _ in 0..2 {
                let new = |case: &Case| Call::new(&world, *case, case.inputs(4));
                let mut calls: Vec<Call> = cases.iter().map(new).collect();
                let before = launches(&world);
                Call::start_together(&mut calls, &world, |_| true);
                world.finish();
                calls.iter().for_each(Call::check);
                let one_more: Vec<u64> = before.iter().map(|count| count + 1).collect();
                assert_eq!(launches(&world), one_more);
            }
        }
    });
}

/// If this fails, a group of many calls fills the queue of its GPU, and blocks the engines that its
/// kernels wait for.
#[test]
fn a_group_of_many_calls_is_held_back() {
    const CALLS: usize = 3000;
    everywhere("pcie4", &["context-lock=on,launch-queue=1024"], || {
        let world = World::new(2);
        // So much goes by the engine, which the calls of a full queue would block.
        let case = Case::new(Collective::AllReduce, 10_000);
        let buffers = world.upload(&vec![bytes_of(&[1f32; 10_000]); 2]);
        std::thread::scope(|scope| {
            for (rank, (communicator, stream)) in world.ranks().enumerate() {
                let at = address(&buffers[rank]);
                scope.spawn(move || {
                    let mut group = communicator.group();
                    // Each of them uses the memory of the one before, and so has its own launch.
                    for _ in 0..CALLS {
                        let spec = CollectiveSpec {
                            reduction: Some(ReduceOp::Avg.into()),
                            ..case.spec(rank)
                        };
                        // SAFETY: the buffers outlive the scope and what is enqueued in it.
                        unsafe { group.collective_raw(spec, [at, at], case.count) };
                    }
                    group.launch(stream).unwrap();
                });
            }
        });
        world.finish();
        for (rank, buffer) in buffers.iter().enumerate() {
            compare(case, rank, &download(buffer), &bytes_of(&[1f32; 10_000]));
        }
        assert!(launches(&world).iter().all(|count| *count == CALLS as u64));
    });
}

/// Any collectives, in groups on some ranks and one by one on others: if this fails, a rank that
/// shares a launch does something else than one that does not.
fn mixed_groups(world: &World, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let ranks = world.communicators.len();
    let root = random.u32(..ranks as u32);
    let kinds = [all(root), vec![Collective::AllReduce, Collective::Barrier]].concat();
    let count = random.usize(1..20);
    let mut calls: Vec<Call> = (0..count)
        .map(|_| {
            let collective = *random.choice(&kinds).unwrap();
            let counts = [0, 1, 77, 3_000, 9_001, 70_000];
            let count = match collective {
                Collective::Barrier => 0,
                _ => random.choice(counts).unwrap(),
            };
            let (data_type, op) = *random
                .choice(&[
                    (DataType::F32, ReduceOp::Sum),
                    (DataType::I32, ReduceOp::Max),
                    (DataType::F16, ReduceOp::Avg),
                ])
                .unwrap();
            let case = Case { data_type, op, ..Case::new(collective, count) };
            Call::new(world, case, case.inputs(ranks))
        })
        .collect();
    let grouped: Vec<bool> = (0..ranks).map(|_| random.u8(..4) > 0).collect();
    let before = launches(world);
    Call::start_together(&mut calls, world, |rank| grouped[rank]);
    world.finish();
    calls.iter().for_each(Call::check);
    let after = launches(world);
    for rank in 0..ranks {
        assert!(after[rank] - before[rank] <= count as u64, "seed {seed}");
    }
}

#[test]
fn any_collectives_in_a_group() {
    on_engines("dgx1v", || {
        for (ranks, settings) in [(2, settings()), (4, without_low_latency()), (5, settings())] {
            let world = World::with(ranks, &settings);
            for seed in 0..6 {
                println!("seed {seed}, {ranks} ranks");
                mixed_groups(&world, seed);
            }
        }
    });
}

/// If this fails, calls of one group that depend on one another run at the same time.
#[test]
fn calls_of_a_group_that_share_memory_keep_their_order() {
    on_engines("pcie4", || {
        let world = World::new(4);
        for count in [500, 100_000] {
            let case = Case::new(Collective::AllReduce, count);
            let each = |value: f32| world.upload(&vec![bytes_of(&vec![value; count]); 4]);
            let memory = [each(1.0), each(0.0), each(0.0)];
            let before = launches(&world);
            for (rank, (communicator, stream)) in world.ranks().enumerate() {
                // A borrowed buffer is in one call of a group alone; memory at addresses is not.
                let [a, b, c] = memory.each_ref().map(|buffers| address(&buffers[rank]));
                let mut group = communicator.group();
                // SAFETY: the buffers outlive `finish`, and nobody else uses them until then.
                unsafe {
                    group.collective_raw(case.spec(rank), [a, b], count);
                    group.collective_raw(case.spec(rank), [b, c], count);
                    group.collective_raw(case.spec(rank), [c, a], count);
                }
                group.launch(stream).unwrap();
            }
            world.finish();
            for rank in 0..4 {
                for (buffers, wanted) in memory.iter().zip([64f32, 4.0, 16.0]) {
                    let wanted = bytes_of(&vec![wanted; count]);
                    compare(case, rank, &download(&buffers[rank]), &wanted);
                }
            }
            let three_more: Vec<u64> = before.iter().map(|count| count + 3).collect();
            assert_eq!(launches(&world), three_more);
        }
    });
}

fn bytes_of<T: bytemuck::NoUninit>(values: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

/// If this fails, sends and receives cannot be in a group with collectives.
#[test]
fn messages_and_collectives_share_a_group() {
    on_machine("pcie4", || exchange_and_reduce(&World::new(4).communicators));
}

/// The same between nodes.
#[test]
fn messages_and_collectives_share_a_group_between_nodes() {
    on_processes("pcie4 x 2", (2, 2), |ranks| exchange_and_reduce(&ranks));
}

/// The same where GPU threads store on each node, and engines have the rails.
#[test]
fn messages_and_collectives_share_a_group_between_nodes_that_store() {
    on_processes("dgx-a100 x 2", (2, 2), |ranks| exchange_and_reduce(&ranks));
}

fn exchange_and_reduce(communicators: &[Communicator]) {
    const COUNT: usize = 20_000;
    let streams = hardware::every::streams(communicators);
    let ranks = communicators[0].rank_count();
    let before: Vec<u64> = communicators.iter().map(|rank| rank.statistics().launches).collect();
    for round in 0..2 {
        let upload = |of: &dyn Fn(u32) -> u32| -> Vec<_> {
            let each = communicators.iter().zip(&streams);
            each.map(|(one, stream)| upload(stream, &bytes_of(&vec![of(one.rank()); COUNT])))
                .collect()
        };
        let (sent, mut got) = (upload(&|rank| 100 * round + rank), upload(&|_| 7));
        let (mut sums, mut most) = (upload(&|rank| rank + round), upload(&|rank| rank));
        for (at, communicator) in communicators.iter().enumerate() {
            let rank = communicator.rank();
            let mut group = communicator.group();
            let spec = |op: ReduceOp| CollectiveSpec {
                collective: Collective::AllReduce,
                data_type: DataType::U32,
                reduction: Some(op.into()),
            };
            group.collective_bytes_in_place(spec(ReduceOp::Sum), &mut sums[at]).unwrap();
            group.send(&sent[at], (rank + 1) % ranks).unwrap();
            group.collective_bytes_in_place(spec(ReduceOp::Max), &mut most[at]).unwrap();
            group.receive(&mut got[at], (rank + ranks - 1) % ranks).unwrap();
            group.launch(&streams[at]).unwrap();
        }
        for (at, communicator) in communicators.iter().enumerate() {
            let from = (communicator.rank() + ranks - 1) % ranks;
            let sum = (0..ranks).map(|rank| rank + round).sum();
            for (buffers, wanted) in [(&got, 100 * round + from), (&sums, sum), (&most, ranks - 1)]
            {
                assert!(download(&buffers[at]) == bytes_of(&vec![wanted; COUNT]), "{wanted}");
            }
        }
    }
    for (communicator, before) in communicators.iter().zip(before) {
        communicator.check().unwrap();
        let launches = communicator.statistics().launches - before;
        assert!(launches <= 4, "{launches} launches of 2 groups of 3 calls");
    }
}

/// If this fails, ranks whose groups differ hang, or nobody learns where they differ.
#[test]
fn groups_that_differ_are_named() {
    on_machine("pcie4", || {
        let world = World::new(2);
        let counts = [[10, 20], [10, 30]];
        let mut errors = Vec::new();
        for (rank, (communicator, stream)) in world.ranks().enumerate() {
            let [mut first, mut second] =
                counts[rank].map(|count| stream.alloc_zeros::<f32>(count).unwrap());
            let mut group = communicator.group();
            group.all_reduce_in_place(&mut first, ReduceOp::Sum).unwrap();
            group.all_reduce_in_place(&mut second, ReduceOp::Sum).unwrap();
            errors.extend(group.launch(stream).err());
        }
        let [Error::Disagreement { what, value, peer_value, .. }] = &errors[..] else {
            panic!("{errors:?}")
        };
        assert_eq!(
            (what.as_str(), value.as_str(), peer_value.as_str()),
            ("count of collective 1", "30", "20")
        );
    });
}
