//! Small data of every collective by low-latency (LL) messages.

use super::*;
use ringdove::plan::{Algorithm, CollectiveRequest, Limits, select};
use std::collections::BTreeSet;

/// LL messages of up to so many bytes.
fn with_low_latency(low_latency_bytes: u32) -> Settings {
    Settings { low_latency_bytes, ..settings() }
}

/// The most elements of `f32` that go in an LL message, by stores or by an engine; `None`: none do.
fn count_max(
    collective: Collective,
    ranks: usize,
    settings: &Settings,
    stores: bool,
) -> Option<usize> {
    let limits = Limits {
        low_latency_bytes: settings.low_latency_bytes,
        stores,
        ..Limits::new(settings.blocks_max, settings.slot_bytes, settings.slot_count)
    };
    let goes = |count: &usize| {
        let request = CollectiveRequest::new(collective, ranks as u32, 4 * *count as u64);
        select(&request, &limits).unwrap().algorithm == Algorithm::AllPairs
    };
    (1..=8192).rev().find(goes)
}

/// If this fails, an LL message is clipped wrongly, goes to the wrong rank, or is none where one
/// element more than fits is sent.
#[test]
fn low_latency_messages_of_every_count_and_root() {
    on_engines("dgx1v", || {
        let mut reached = BTreeSet::new();
        for (ranks, bytes) in [(2, 16 << 10), (3, 16 << 10), (4, 32), (8, 16 << 10)] {
            let settings = with_low_latency(bytes);
            let world = World::with(ranks, &settings);
            for root in 0..ranks as u32 {
                for collective in if root == 0 { all(root) } else { with_root(root).to_vec() } {
                    // Which of the two it is depends on the engine and on who reaches whom.
                    let most = [false, true].map(|it| count_max(collective, ranks, &settings, it));
                    reached.extend(most[1].map(|_| collective.name()));
                    let mut counts = vec![1, 13];
                    if root < 2 {
                        counts.push(0);
                        counts.extend(
                            most.iter().flat_map(|it| [it.unwrap_or(3), it.unwrap_or(3) + 1]),
                        );
                    }
                    for (count, in_place) in
                        counts.iter().flat_map(|it| [(*it, false), (*it, true)])
                    {
                        check(&world, Case { in_place, ..Case::new(collective, count) });
                    }
                }
            }
        }
        assert_eq!(reached.len(), 7, "by LL messages went {reached:?} alone");
    });
}

/// If this fails, LL messages do something to a data type, or a reduction of them is wrong; or a
/// copy of them wants more alignment than its type has.
#[test]
fn low_latency_messages_of_every_data_type_and_reduction() {
    on_engines("pcie4", || {
        let world = World::with(3, &settings());
        for data_type in DataType::ALL {
            every_reduction(&world, data_type, &[(67, false), (13, true)]);
            for collective in all(2) {
                for in_place in [false, true] {
                    check(&world, Case { data_type, in_place, ..Case::new(collective, 13) });
                }
            }
        }
    });
}

/// Calls of all kinds in turns on the same LL memory, without a rest: ranks run ahead of others. If
/// this fails, the words of one call are taken for those of another, or a slot is written that a
/// slower rank has not read.
#[test]
fn collectives_in_turns_on_the_same_low_latency_memory() {
    on_engines("dgx1v", || {
        for (ranks, seed) in [(2, 1), (5, 2), (8, 3)] {
            println!("{ranks} ranks, seed {seed}");
            let mut random = fastrand::Rng::with_seed(seed);
            let world = World::with(ranks, &settings());
            let calls: Vec<Option<Call>> = (0..60).map(|_| call(&world, &mut random)).collect();
            run(&world, calls);
        }
    });
}

/// One of all kinds, or a barrier.
fn call(world: &World, random: &mut fastrand::Rng) -> Option<Call> {
    let ranks = world.communicators.len();
    let mut choices = all(random.u32(..ranks as u32));
    choices.push(Collective::AllReduce);
    let number = random.usize(..choices.len() + 1);
    let collective = *choices.get(number)?;
    // One in eight is too long for an LL message; most fit each collective's.
    let count = if random.u32(..8) == 0 { 600 } else { random.usize(1..=64) };
    let op = [ReduceOp::Sum, ReduceOp::PreMulSum][random.usize(..2)];
    let case = Case { op, ..Case::new(collective, count) };
    Some(Call::new(world, case, case.inputs(ranks)))
}

fn run(world: &World, mut calls: Vec<Option<Call>>) {
    for call in &mut calls {
        match call {
            Some(call) => call.start(world),
            None => {
                for (communicator, stream) in world.ranks() {
                    communicator.barrier(stream).unwrap();
                }
            }
        }
    }
    world.finish();
    calls.iter().flatten().for_each(Call::check);
}
