//! Bad input: what is refused, where, and that the group goes on.

use super::layer::{Buffers, LOADS, Load, Member, Step, members, step};
use super::{MODES, config, on_machine, seed, wait_for_error, with_lanes};
use crate::hardware::World;
use crate::hardware::engines::on_engines;
use ringdove::error::RoutingFaultKind;
use ringdove::experts::{Config, Group, Mode, Received, Rows, Surplus};
use ringdove::{DataType, Error, Settings};
use std::time::Duration;

const RANKS: usize = 3;

/// A step in which `rank` brings something wrong; every rank is told, and the others' tokens are
/// right.
fn refused(members: &mut [Member<'_>], bad: &Step, rank: usize) -> RoutingFaultKind {
    let mut buffers: Vec<_> =
        members.iter().map(|member| Buffers::<f32, i64>::new(member, bad, RANKS)).collect();
    for (member, buffers) in members.iter_mut().zip(&buffers) {
        member.send(buffers, bad).unwrap();
    }
    // What everybody receives: as if the rank had no token.
    let mut good = bad.clone();
    good.indices[rank].clear();
    good.weights[rank].clear();
    let mut kinds = Vec::new();
    for (member, buffers) in members.iter_mut().zip(&mut buffers) {
        member.receive(buffers);
    }
    for (member, buffers) in members.iter_mut().zip(&mut buffers) {
        member.stream.synchronize().unwrap();
        let error = member.group.check().unwrap_err();
        let Error::ExpertsRouting(fault) = &error else { panic!("{error}") };
        assert_eq!(fault.rank.0 as usize, rank, "{error}");
        kinds.push(fault.kind);
        member.group.check().expect("each fault is told once");
        member.compare_rows(buffers, &good);
    }
    assert!(kinds.iter().all(|kind| *kind == kinds[0]), "{kinds:?}");
    for (member, buffers) in members.iter().zip(&buffers) {
        member.give_back(buffers);
    }
    for (member, buffers) in members.iter().zip(&mut buffers) {
        member.take_back(buffers);
    }
    for (member, buffers) in members.iter().zip(&buffers) {
        member.stream.synchronize().unwrap();
        if member.rank() != rank {
            member.compare_combined(buffers, &good);
        }
    }
    kinds[0]
}

/// If this fails, a bad index writes out of bounds, ranks disagree on what was sent, or one bad
/// step ends the job.
#[test]
fn a_bad_routing_is_an_error_on_all_ranks_and_the_group_goes_on() {
    on_engines("pcie4", || {
        let world = World::with(RANKS, &with_lanes());
        let mut random = fastrand::Rng::with_seed(seed());
        for mode in MODES {
            let config = config(mode, RANKS as u32, DataType::F32);
            let mut members = members(&world.communicators, &config);
            let (experts, rank) = (config.experts, 1);
            let place = 4 * config.top_k as usize + 2;
            type Spoil = fn(&mut Step, usize);
            let cases: [(Spoil, RoutingFaultKind); 5] = [
                (
                    |step, place| step.indices[1][place] = 1 << 40,
                    RoutingFaultKind::Index { seen: 1 << 40, experts },
                ),
                (
                    |step, place| step.indices[1][place] = -2,
                    RoutingFaultKind::Index { seen: -2, experts },
                ),
                (
                    |step, place| step.indices[1][place] = 9,
                    RoutingFaultKind::Index { seen: 9, experts },
                ),
                (
                    |step, place| {
                        step.indices[1][place - 2..][..4].copy_from_slice(&[5, -1, 5, 0]);
                    },
                    RoutingFaultKind::Repeated { expert: 5 },
                ),
                (
                    |step, place| step.weights[1][place] = f32::NAN,
                    RoutingFaultKind::WeightNotANumber,
                ),
            ];
            for (spoil, expected) in cases {
                let mut bad = loop {
                    let bad = Step::random::<f32>(&config, RANKS, Load::Uniform, &mut random);
                    if bad.indices[rank].len() > place + 2 {
                        break bad;
                    }
                };
                spoil(&mut bad, place);
                assert_eq!(refused(&mut members, &bad, rank), expected, "{mode:?}");
                let good = Step::random::<f32>(&config, RANKS, LOADS[0], &mut random);
                step::<f32, i64>(&mut members, &good, false);
            }
            let larger = Config { tokens_max: config.tokens_max + 5, ..config };
            let mut many = loop {
                let many = Step::random::<f32>(&larger, RANKS, Load::Uniform, &mut random);
                let tokens = |rank: usize| many.indices[rank].len() / config.top_k as usize;
                let fits = (0..RANKS).filter(|rank| tokens(*rank) > config.tokens_max as usize);
                if fits.eq([rank]) {
                    break many;
                }
            };
            let seen = (many.indices[rank].len() / config.top_k as usize) as i64;
            let expected = RoutingFaultKind::Tokens { seen, most: config.tokens_max };
            assert_eq!(refused(&mut members, &many, rank), expected, "{mode:?}");
            many = Step::random::<f32>(&config, RANKS, LOADS[0], &mut random);
            step::<f32, i64>(&mut members, &many, false);
        }
        world.finish();
    });
}

/// If this fails, tokens beyond the most overwrite others, are sent, or vanish uncounted.
#[test]
fn surplus_tokens_are_dropped_and_counted_where_the_group_wants_it() {
    on_engines("pcie4", || {
        let world = World::with(RANKS, &with_lanes());
        let mut random = fastrand::Rng::with_seed(seed());
        for mode in MODES {
            let config = config(mode, RANKS as u32, DataType::F32);
            let config = Config { surplus: Surplus::Drop, ..config };
            let mut members = members(&world.communicators, &config);
            let larger = Config { tokens_max: 3 * config.tokens_max, ..config };
            let mut dropped = [0; RANKS];
            for _ in 0..3 {
                let all = Step::random::<f32>(&larger, RANKS, Load::Uniform, &mut random);
                let kept = all.first(&config);
                let mut buffers: Vec<_> = members
                    .iter()
                    .map(|member| Buffers::<f32, i32>::new(member, &all, RANKS))
                    .collect();
                for (member, buffers) in members.iter_mut().zip(&buffers) {
                    member.send(buffers, &all).unwrap();
                    let rank = member.rank();
                    let tokens = |step: &Step| step.routing(&config).tokens(rank) as u64;
                    let left_out = tokens(&all) - tokens(&kept);
                    dropped[rank] += left_out;
                    assert_eq!(u64::from(member.handle.dropped()), left_out);
                    assert_eq!(member.group.dropped(), dropped[rank]);
                }
                for (member, buffers) in members.iter_mut().zip(&mut buffers) {
                    member.receive(buffers);
                }
                for (member, buffers) in members.iter_mut().zip(&mut buffers) {
                    member.stream.synchronize().unwrap();
                    member.group.check().unwrap();
                    member.compare_rows(buffers, &kept);
                }
                for (member, buffers) in members.iter().zip(&buffers) {
                    member.give_back(buffers);
                }
                for (member, buffers) in members.iter().zip(&mut buffers) {
                    member.take_back(buffers);
                }
                for (member, buffers) in members.iter().zip(&buffers) {
                    member.stream.synchronize().unwrap();
                    // What was dropped keeps its poison.
                    member.compare_combined(buffers, &kept);
                }
            }
            assert!(dropped.iter().any(|count| *count > 0));
        }
        world.finish();
    });
}

fn is_argument(result: ringdove::Result<()>, says: &str) {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Argument { .. }), "{error}");
    assert!(error.to_string().contains(says), "{error}");
}

/// If this fails, a call out of turn hangs, or reads what a kernel is writing.
#[test]
fn calls_out_of_turn_are_refused_and_enqueue_nothing() {
    on_machine("pcie4", || {
        let world = World::with(2, &Settings { user_lanes: 4, ..with_lanes() });
        let mut random = fastrand::Rng::with_seed(seed());
        let first = config(Mode::LowLatency, 2, DataType::F32);
        let mut members = members(&world.communicators, &first);
        let others = Group::open_all(&world.communicators, &Config { lane: 2, ..first }).unwrap();
        let good = Step::random::<f32>(&first, 2, Load::Uniform, &mut random);
        let mut buffers: Vec<_> =
            members.iter().map(|member| Buffers::<f32, i32>::new(member, &good, 2)).collect();

        let Member { group, handle, stream, .. } = &mut members[0];
        let y = stream.alloc_zeros::<f32>(1 << 20).unwrap();
        let rows = Rows { y: &y, weights: None };
        is_argument(group.combine_send(handle, &rows, stream), "whose dispatch was received");
        let halves = stream.alloc_zeros::<half::f16>(1 << 20).unwrap();
        let rows = Rows { y: &halves, weights: None };
        is_argument(group.combine_send(handle, &rows, stream), "F32");
        is_argument(group.dispatch_again_send(handle, &y, None, stream), "an earlier dispatch");
        let mut x = stream.alloc_zeros::<f32>(1 << 20).unwrap();
        let mut counts = stream.alloc_zeros::<u32>(64).unwrap();
        let received = Received {
            x: &mut x,
            scales: None,
            counts: &mut counts,
            indices: None,
            weights: None,
            sources: None,
        };
        is_argument(
            group.dispatch_receive(handle, received, stream),
            "a dispatch with this handle",
        );
        let mut foreign = others[0].handle().unwrap();
        let rows = Rows { y: &y, weights: None };
        is_argument(group.combine_send(&foreign, &rows, stream), "of another group");
        is_argument(group.dispatch_again_send(&mut foreign, &y, None, stream), "of another group");

        for (member, buffers) in members.iter_mut().zip(&buffers) {
            member.send(buffers, &good).unwrap();
            is_argument(member.send(buffers, &good), "received first");
        }
        // Of the earlier step, of another handle, and before the tokens were received.
        let other = members[0].group.handle().unwrap();
        let Member { group, handle, stream, .. } = &mut members[0];
        let rows = Rows { y: &y, weights: None };
        is_argument(group.combine_send(&other, &rows, stream), "whose dispatch was received");
        is_argument(group.combine_send(handle, &rows, stream), "whose dispatch was received");
        for (member, buffers) in members.iter_mut().zip(&mut buffers) {
            member.receive(buffers);
            member.stream.synchronize().unwrap();
            let short = member.stream.alloc_zeros::<f32>(4).unwrap();
            let rows = Rows { y: &short, weights: None };
            is_argument(
                member.group.combine_send(&member.handle, &rows, &member.stream),
                "at least",
            );
        }
        drop(buffers);
        // Nothing of all that was enqueued: the next steps are right.
        step::<f32, i32>(&mut members, &good, false);
        world.finish();
    });
}

/// Received rows are the caller's: any number of results may be live, and go back in any order. If
/// this fails, a combine takes the routing or the rows of another step.
#[test]
fn more_than_two_results_may_be_live() {
    on_machine("pcie4", || {
        let world = World::with(RANKS, &with_lanes());
        let mut random = fastrand::Rng::with_seed(seed());
        for mode in MODES {
            let config = config(mode, RANKS as u32, DataType::F32);
            let mut members = members(&world.communicators, &config);
            let mut live = Vec::new();
            for load in LOADS {
                let step = Step::random::<f32>(&config, RANKS, load, &mut random);
                let mut results: Vec<_> = members
                    .iter()
                    .map(|member| {
                        let buffers = Buffers::<f32, i64>::new(member, &step, RANKS);
                        (buffers, member.group.handle().unwrap())
                    })
                    .collect();
                for (member, (buffers, handle)) in members.iter_mut().zip(&mut results) {
                    std::mem::swap(&mut member.handle, handle);
                    member.send(buffers, &step).unwrap();
                }
                for (member, (buffers, handle)) in members.iter_mut().zip(&mut results) {
                    member.receive(buffers);
                    std::mem::swap(&mut member.handle, handle);
                }
                for (member, (buffers, _)) in members.iter_mut().zip(&mut results) {
                    member.stream.synchronize().unwrap();
                    member.compare_rows(buffers, &step);
                }
                live.push((step, results));
            }
            // The last first, and then one after the other.
            live.rotate_right(1);
            for (step, results) in &mut live {
                for (member, (buffers, handle)) in members.iter_mut().zip(results.iter_mut()) {
                    std::mem::swap(&mut member.handle, handle);
                    member.give_back(buffers);
                }
                for (member, (buffers, handle)) in members.iter_mut().zip(results.iter_mut()) {
                    member.take_back(buffers);
                    std::mem::swap(&mut member.handle, handle);
                }
                for (member, (buffers, _)) in members.iter().zip(results.iter()) {
                    member.stream.synchronize().unwrap();
                    member.group.check().unwrap();
                    member.compare_combined(buffers, step);
                }
            }
        }
        world.finish();
    });
}

/// If this fails, ranks write past the end of each other's windows.
#[test]
fn ranks_that_want_different_groups_are_told_so() {
    on_machine("pcie4", || {
        let world = World::with(2, &with_lanes());
        let one = config(Mode::LowLatency, 2, DataType::F32);
        let two = Config { top_k: 3, ..one };
        let first = Group::register(&world.communicators[0], &one).unwrap();
        let error = Group::register(&world.communicators[1], &two).unwrap_err();
        assert!(matches!(error, Error::Disagreement { .. }), "{error}");
        assert!(error.to_string().contains("top-k"), "{error}");
        // The rank that came first, too.
        let error = wait_for_error(&world.communicators[0]);
        assert!(matches!(error, Error::Disagreement { .. }), "{error}");
        assert!(error.to_string().contains("top-k"), "{error}");
        assert!(first.open().is_err());
        let world = World::new(2);
        let error = Group::register(&world.communicators[0], &one).unwrap_err();
        assert!(error.to_string().contains("RINGDOVE_USER_LANES"), "{error}");
    });
}

/// If this fails, a rank that never comes is waited for without end, or the wrong one is named.
#[test]
fn a_rank_that_does_not_come_is_named_when_the_wait_ends() {
    on_engines("pcie4", || {
        let wait_timeout = Duration::from_millis(500);
        let world = World::with(RANKS, &Settings { wait_timeout, ..with_lanes() });
        let mut random = fastrand::Rng::with_seed(seed());
        let config = config(Mode::Throughput, RANKS as u32, DataType::F32);
        let mut members = members(&world.communicators, &config);
        let good = Step::random::<f32>(&config, RANKS, Load::Uniform, &mut random);
        step::<f32, i64>(&mut members, &good, false);
        let mut buffers: Vec<_> =
            members.iter().map(|member| Buffers::<f32, i64>::new(member, &good, RANKS)).collect();
        for (member, buffers) in members.iter_mut().zip(&mut buffers).take(RANKS - 1) {
            member.send(buffers, &good).unwrap();
            member.receive(buffers);
        }
        for member in &members[..RANKS - 1] {
            let error = wait_for_error(&world.communicators[member.rank()]);
            let Error::WaitExpired(expired) = &error else { panic!("{error}") };
            assert_eq!(expired.peer.map(|peer| peer.0), Some(RANKS as u32 - 1), "{error}");
            assert!(member.group.check().is_err());
        }
    });
}
