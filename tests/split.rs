//! Communicators that are made of others.

mod hardware;

use hardware::{World, download, on_machine, settings, total, upload};
use ringdove::{Communicator, ReduceOp};
use std::sync::Barrier;

/// If this fails, a framework's subgroups hold other ranks than it asked for, or their order is
/// another.
#[test]
fn ranks_with_one_color_form_a_group_in_the_order_of_keys() {
    on_machine("pcie4", || {
        let world = World::with(4, &settings());
        let split = |rank: &Communicator, color, key| rank.split(color, key).unwrap();
        let (split, together) = (&split, &Barrier::new(4));
        std::thread::scope(|scope| {
            for parent in &world.communicators {
                scope.spawn(move || {
                    let rank = parent.rank();
                    // Odd and even ranks, the greatest first.
                    let pair = split(parent, Some(rank % 2), -(rank as i32)).unwrap();
                    assert_eq!((pair.rank(), pair.rank_count()), (u32::from(rank < 2), 2));
                    assert_eq!(total(&pair, 1 << rank), if rank % 2 == 0 { 5 } else { 10 });
                    together.wait();
                    // All but one, in the order of ranks.
                    let color = (rank != 1).then_some(u32::MAX);
                    let most = split(parent, color, 7);
                    assert_eq!(most.is_some(), rank != 1);
                    if let Some(most) = &most {
                        assert_eq!((most.rank(), most.rank_count()), (rank.saturating_sub(1), 3));
                        assert_eq!(total(most, 1 << rank), 0b1101);
                        // A group of a group, of one rank each.
                        let alone = split(most, Some(rank), 0).unwrap();
                        assert_eq!(total(&alone, 9), 9);
                    }
                    // Nobody's work waits for a rank that makes a group.
                    together.wait();
                    // Parent and children are used side by side.
                    assert_eq!(total(parent, 1 << rank), 15);
                    assert_eq!(total(&pair, 1), 2);
                });
            }
        });
        world.finish();
    });
}

/// If this fails, ranks that call something else wait for ever, or a group is made without them.
#[test]
fn a_rank_that_calls_something_else_is_an_error_for_all() {
    on_machine("pcie4", || {
        let world = World::with(2, &settings());
        let [first, second] = &world.communicators[..] else { unreachable!() };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let error = first.split(Some(0), 0).unwrap_err();
                assert!(matches!(error, ringdove::Error::Disagreement { .. }), "{error}");
            });
            let stream = &world.streams[1];
            let mut buffer = upload(stream, &[1; 64]);
            let called = second.all_reduce_in_place(&mut buffer, ReduceOp::Sum, stream);
            drop(called);
            assert_eq!(download(&buffer).len(), 64);
            let error = hardware::wait_for_error(second);
            assert!(matches!(error, ringdove::Error::Disagreement { .. }), "{error}");
        });
    });
}
