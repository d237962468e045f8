//! Communicators with fewer, more, or the same ranks as another one, also after one has died.

mod hardware;

use hardware::victims::{die, folder, in_processes, victim};
use hardware::{World, on_machine, settings, total, wait_for_all, wait_for_error};
use ringdove::{Communicator, Error, ReduceOp, UniqueId};
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// If this fails, a communicator of some ranks has others, or its parent suffers.
#[test]
fn those_that_are_left_form_a_communicator() {
    on_machine("pcie4", || {
        let world = World::with(4, &settings());
        let together = &Barrier::new(4);
        std::thread::scope(|scope| {
            for parent in &world.communicators {
                scope.spawn(move || {
                    let rank = parent.rank();
                    let own = 1 << rank;
                    let same = parent.duplicate().unwrap();
                    assert_eq!((same.rank(), same.rank_count()), (rank, 4));
                    assert_eq!(total(&same, own), 15);
                    together.wait();
                    let fewer = (rank != 1).then(|| parent.shrink(&[1]).unwrap());
                    together.wait();
                    if let Some(fewer) = &fewer {
                        assert_eq!((fewer.rank(), fewer.rank_count()), (rank.saturating_sub(1), 3));
                        assert_eq!(total(fewer, own), 0b1101);
                        // The same ranks once more, beside the first.
                        let again = parent.shrink(&[1]).unwrap();
                        assert_eq!(total(&again, own), 0b1101);
                        assert_eq!(total(fewer, own), 0b1101);
                    }
                    together.wait();
                    assert_eq!(total(parent, own), 15);
                });
            }
        });
        let refused = world.communicators[0].shrink(&[0]).unwrap_err();
        assert!(matches!(refused, Error::Argument { .. }), "{refused}");
        world.finish();
    });
}

/// If this fails, a communicator that has failed is of no more use, and neither are its GPUs.
#[test]
fn a_communicator_that_was_aborted_can_be_shrunk() {
    on_machine("pcie4", || {
        let world = World::with(3, &settings());
        let stream = &world.streams[0];
        let mut buffer = stream.clone_htod(&vec![1f32; 1 << 20]).unwrap();
        stream.synchronize().unwrap();
        // It waits for ranks that never come.
        world.communicators[0].all_reduce_in_place(&mut buffer, ReduceOp::Sum, stream).unwrap();
        world.communicators[2].abort("enough");
        std::thread::scope(|scope| {
            for parent in &world.communicators[..2] {
                scope.spawn(move || {
                    let fewer = parent.shrink(&[2]).unwrap();
                    assert_eq!(total(&fewer, 1 << parent.rank()), 3);
                });
            }
        });
        assert!(matches!(world.communicators[0].check(), Err(Error::Aborted { .. })));
    });
}

/// If this fails, ranks that come later cannot join, or change the numbers of the others.
#[test]
fn new_ranks_join() {
    on_machine("pcie4", || {
        let contexts = hardware::contexts(4);
        let ranks = Communicator::init_all(&contexts[..2], &settings()).unwrap();
        let refused = ranks[0].grow(2).unwrap_err();
        assert!(refused.to_string().contains("more than the 2"), "{refused}");
        let id = ranks[1].growth_id().unwrap();
        std::thread::scope(|scope| {
            for parent in &ranks {
                scope.spawn(move || {
                    let more = parent.grow(4).unwrap();
                    assert_eq!((more.rank(), more.rank_count()), (parent.rank(), 4));
                    assert_eq!(total(&more, 1 << more.rank()), 15);
                });
            }
            for (rank, context) in (2..).zip(&contexts[2..]) {
                scope.spawn(move || {
                    let more = Communicator::init_rank(context, &id, rank, 4, &settings()).unwrap();
                    assert_eq!(total(&more, 1 << rank), 15);
                });
            }
        });
        // Nobody has an id any more.
        std::thread::scope(|scope| {
            for parent in &ranks {
                scope.spawn(move || {
                    let refused = parent.grow(4).unwrap_err();
                    assert!(refused.to_string().contains("growth_id"), "{refused}");
                });
            }
        });
    });
}

/// The others agree on who is left, without being told who is gone.
fn agree_without_one(parent: Communicator) {
    let victim = victim();
    let (rank, count) = (parent.rank(), parent.rank_count());
    assert_eq!(total(&parent, 1 << rank), (1 << count) - 1);
    wait_for_all(std::slice::from_ref(&parent));
    if rank == victim {
        die();
    }
    // The slowest is one of them.
    std::thread::sleep(Duration::from_millis(if rank + 1 == count { 300 } else { 0 }));
    let membership = parent.survive(Duration::from_secs(4)).unwrap();
    let members: Vec<_> = (0..count).filter(|member| *member != victim).collect();
    assert_eq!(membership.members, members);
    let fewer = membership.communicator;
    assert_eq!(fewer.rank_count(), count - 1);
    assert_eq!(total(&fewer, 1 << rank), ((1 << count) - 1) & !(1 << victim));
    // Once more, with all that are left.
    let same = fewer.survive(Duration::from_secs(4)).unwrap();
    assert_eq!(same.members, (0..count - 1).collect::<Vec<_>>());
    assert_eq!(total(&same.communicator, 1), count - 1);
    for ranks in [&same.communicator, &fewer] {
        ranks.finalize().unwrap();
        wait_for_all(std::slice::from_ref(ranks));
    }
}

/// If this fails, survivors wait for a dead rank without end, disagree on who is left, or lose one
/// that was slow.
#[test]
fn survivors_agree_on_who_is_left() {
    in_processes("pcie4", 4, Some(2), &settings(), agree_without_one);
}

/// As above, without the rank at whose place they would have met.
#[test]
fn survivors_agree_without_the_first() {
    in_processes("pcie4", 3, Some(0), &settings(), agree_without_one);
}

/// The others find out, and go on without it.
fn go_on_without_one(parent: Communicator) {
    let victim = victim();
    let (rank, count) = (parent.rank(), parent.rank_count());
    let all = (1 << count) - 1;
    assert_eq!(total(&parent, 1 << rank), all);
    // What it has sent may still be on its way when it has its own sum.
    wait_for_all(std::slice::from_ref(&parent));
    if rank == victim {
        die();
    }
    let error = wait_for_error(&parent);
    assert!(error.to_string().contains(&format!("rank {victim}")), "{error}");
    let fewer = parent.shrink(&[victim]).unwrap();
    assert_eq!(fewer.rank_count(), count - 1);
    let left = all & !(1 << victim);
    assert_eq!(total(&fewer, 1 << rank), left);
    drop(parent);
    // Also more than LL messages carry, between nodes too.
    let stream = fewer.context().per_thread_stream();
    let mut buffer = stream.clone_htod(&vec![1f32; 100_000]).unwrap();
    fewer.all_reduce_in_place(&mut buffer, ReduceOp::Sum, &stream).unwrap();
    let sums = stream.clone_dtoh(&buffer).unwrap();
    fewer.check().unwrap();
    assert!(sums.iter().all(|&sum| sum == (count - 1) as f32));
    fewer.finalize().unwrap();
    wait_for_all(std::slice::from_ref(&fewer));
}

/// If this fails, the death of one process ends the work of all others.
#[test]
fn processes_go_on_without_one_that_was_killed() {
    in_processes("pcie4", 4, Some(1), &settings(), go_on_without_one);
}

/// If this fails, the others cannot find one another without the rank that was the root of all.
#[test]
fn processes_go_on_without_the_first() {
    in_processes("pcie4", 3, Some(0), &settings(), go_on_without_one);
}

/// If this fails, the death of one process ends the work of all others.
#[test]
fn nodes_go_on_without_a_process_that_was_killed() {
    in_processes("pcie4 x 2", 4, Some(2), &settings(), go_on_without_one);
}

/// Without rank 2, and with it again.
fn leave_and_come_back(parent: Communicator) {
    let file = Path::new(&folder()).join("id");
    let rank = parent.rank();
    let more = if rank == 2 {
        let deadline = Instant::now() + hardware::SOON;
        while !file.exists() {
            assert!(Instant::now() < deadline, "no id");
            std::thread::sleep(Duration::from_millis(5));
        }
        let bytes = std::fs::read(&file).unwrap().try_into().unwrap();
        let id = UniqueId::from_bytes(bytes);
        Communicator::init_rank(parent.context(), &id, 2, 3, &settings()).unwrap()
    } else {
        let fewer = parent.shrink(&[2]).unwrap();
        assert_eq!(total(&fewer, 1 << rank), 3);
        if rank == 0 {
            let id = fewer.growth_id().unwrap();
            // Whole, or not there.
            let part = file.with_extension("part");
            std::fs::write(&part, id.as_bytes()).unwrap();
            std::fs::rename(&part, &file).unwrap();
        }
        fewer.grow(3).unwrap()
    };
    assert_eq!((more.rank(), more.rank_count()), (rank, 3));
    assert_eq!(total(&more, 1 << rank), 7);
    assert_eq!(total(&parent, 1 << rank), 7);
    [&more, &parent].iter().for_each(|ranks| ranks.finalize().unwrap());
    wait_for_all(std::slice::from_ref(&more));
}

/// If this fails, a process cannot come back to those that went on without it.
#[test]
fn a_process_leaves_and_comes_back() {
    in_processes("pcie4", 3, None, &settings(), leave_and_come_back);
}
