//! Small data of every collective by low-latency (LL) messages.

use super::*;

/// LL messages of up to 1 KiB, or what the caller says.
fn with_low_latency(low_latency_bytes: u32) -> Settings {
    Settings { low_latency_bytes, ..settings() }
}

/// If this fails, an LL message is clipped wrongly, goes to the wrong rank, or is none where one
/// element more than fits is sent.
#[test]
fn low_latency_messages_of_every_count_and_root() {
    on_engines("dgx1v", || {
        for ranks in [2, 3, 8] {
            let world = World::with(ranks, &with_low_latency(1024));
            // The last but one fills a message.
            for count in [0, 1, 77, 256, 257] {
                for root in 0..ranks as u32 {
                    let cases = if root == 0 { all(root) } else { with_root(root).to_vec() };
                    // Every root at one odd size; else the first and the last one.
                    if count != 77 && root > 0 && root + 1 < ranks as u32 {
                        continue;
                    }
                    for collective in cases {
                        for in_place in [false, true] {
                            check(&world, Case { in_place, ..Case::new(collective, count) });
                        }
                    }
                }
            }
        }
    });
}

/// If this fails, LL messages do something to a data type, or a reduction of them is wrong; or a
/// copy of them wants more alignment than its type has.
#[test]
fn low_latency_messages_of_every_data_type_and_reduction() {
    on_engines("pcie4", || {
        let world = World::with(3, &with_low_latency(1024));
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
            let world = World::with(ranks, &with_low_latency(1024));
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
    // One in eight is too long for an LL message.
    let count = if random.u32(..8) == 0 { 300 } else { random.usize(1..=256) };
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
