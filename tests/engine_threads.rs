//! The threads around the proxy: they serve, sleep, wake, survive panics and end.

mod support;

use ringdove::engine::{Attached, EngineSettings, Lane, ProxyThreads, RegionDescriptor, Route};
use ringdove::error::Error;
use ringdove::id::Rank;
use ringdove::shared::Region;
use ringdove::transport::Transport;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use support::transports::{GatedTransport, HostMemory, NullTransport, PanickingTransport};
use support::{LANE, ROUTE, TestRank, put, wait_until};

const LONG: Duration = Duration::from_secs(60);

fn attach(threads: &ProxyThreads, rank: &mut TestRank, memory: &Region) -> Attached {
    let attached = threads.attach(rank.parts.take().unwrap()).unwrap();
    let arrival = Some(memory.base_address());
    let region =
        |offset| RegionDescriptor { base: memory.base_address() + offset, length_bytes: 64 };
    let lane = Lane { peer: Rank(1), arrival, completion: None };
    attached.handle().add_lane(LANE, lane).unwrap();
    let route = Route { lane: LANE, source: region(64), destination: region(128), pull: false };
    attached.handle().add_route(ROUTE, route).unwrap();
    attached
}

fn rank(number: u32, transport: impl Transport + 'static) -> TestRank {
    TestRank::new(number, 3, transport)
}

// Four ranks on one thread, each rung from its own thread through a ring of 8 slots.
#[test]
fn one_thread_serves_many_ranks() {
    const EACH: u64 = 3_000;
    let threads = ProxyThreads::start(&EngineSettings::default()).unwrap();
    std::thread::scope(|scope| {
        for number in 0..4 {
            let threads = &threads;
            scope.spawn(move || {
                let memory = Region::host(256);
                let transport = HostMemory::new(vec![memory.clone()], 1);
                let mut rank = rank(number, transport);
                let attached = attach(threads, &mut rank, &memory);
                let signal = memory.word64(0).unwrap();
                for index in 0..EACH {
                    let descriptor = put(0, index % 64, index % 64, 1);
                    wait_until("room", || rank.ring.producer.try_push(&descriptor).is_ok());
                }
                wait_until("all arrivals", || signal.load(Ordering::Acquire) == EACH);
                assert_eq!(attached.handle().statistics().descriptors, EACH);
                attached.detach(LONG).unwrap();
                assert!(rank.alarm.errors().is_empty());
            });
        }
    });
}

// A thread that has parked for its longest time still answers at once when it is woken.
#[test]
fn a_parked_thread_wakes_up() {
    let settings = EngineSettings {
        spin_steps: 0,
        nap_steps: 0,
        park_min: LONG * 10,
        park_max: LONG * 10,
        rest_max: LONG * 10,
        ..EngineSettings::default()
    };
    let threads = ProxyThreads::start(&settings).unwrap();
    let memory = Region::host(256);
    let mut rank = rank(0, HostMemory::new(vec![memory.clone()], 1));
    let attached = attach(&threads, &mut rank, &memory);
    attached.handle().wait_applied(LONG).expect("the wait wakes the thread");
    rank.ring(&put(0, 0, 0, 8));
    attached.waker().wake();
    let signal = memory.word64(0).unwrap();
    wait_until("the arrival", || signal.load(Ordering::Acquire) == 1);
    attached.detach(LONG).expect("detach wakes the thread");
}

#[test]
fn detach_reports_what_it_left() {
    let threads = ProxyThreads::start(&EngineSettings::default()).unwrap();
    let (transport, _) = GatedTransport::new();
    let mut rank = rank(5, transport);
    let attached = attach(&threads, &mut rank, &Region::host(256));
    rank.ring(&put(0, 0, 0, 8));
    let error = attached.detach(Duration::from_millis(5)).expect_err("the transport takes nothing");
    let Error::HostWaitExpired { seen, .. } = &error else { panic!("{error}") };
    assert!(seen.contains("rank 5") && seen.contains("1 transfers waiting"), "{error}");
}

/// If this fails, a process leaves while others still wait for its acknowledgements.
#[test]
fn drain_waits_for_descriptors_that_were_rung() {
    let threads = ProxyThreads::start(&EngineSettings::default()).unwrap();
    let (transport, gate) = GatedTransport::new();
    let mut rank = rank(0, transport);
    let attached = attach(&threads, &mut rank, &Region::host(256));
    attached.handle().wait_idle(LONG).expect("nothing was rung");
    rank.ring(&put(0, 0, 0, 8));
    let error = attached.handle().wait_idle(Duration::from_millis(5)).expect_err("it is shut");
    assert!(matches!(error, Error::HostWaitExpired { .. }), "{error}");
    gate.store(1, Ordering::Relaxed);
    attached.handle().wait_idle(LONG).expect("it ends");
    attached.detach(LONG).unwrap();
}

// R12: a panic must not become a thread that is gone and ranks that wait for it.
#[test]
fn a_panicking_step_fails_its_ranks_and_the_thread_continues() {
    let threads = ProxyThreads::start(&EngineSettings::default()).unwrap();
    let memory = Region::host(256);
    let mut sick = rank(0, PanickingTransport);
    let mut bystander = rank(1, NullTransport::default());
    let sick_attached = attach(&threads, &mut sick, &memory);
    let bystander_attached = attach(&threads, &mut bystander, &memory);
    sick.ring(&put(0, 0, 0, 8));
    wait_until("the alarm", || !bystander.alarm.errors().is_empty());
    for alarm in [&sick.alarm, &bystander.alarm] {
        let Error::EngineStopped { engine, why } = alarm.only_error() else { panic!() };
        assert_eq!(engine, "ringdove-proxy-0");
        assert!(why.contains("this transport always panics"), "{why}");
    }
    sick_attached.detach(LONG).unwrap();
    bystander_attached.detach(LONG).unwrap();

    let mut next = rank(2, HostMemory::new(vec![memory.clone()], 1));
    let attached = attach(&threads, &mut next, &memory);
    next.ring(&put(0, 0, 0, 8));
    let signal = memory.word64(0).unwrap();
    wait_until("service to a new rank", || signal.load(Ordering::Acquire) == 1);
    attached.detach(LONG).unwrap();
}

#[test]
fn ending_the_threads_under_a_rank_is_an_error_and_no_hang() {
    let threads = ProxyThreads::start(&EngineSettings::default()).unwrap();
    let mut rank = rank(0, NullTransport::default());
    let attached = attach(&threads, &mut rank, &Region::host(256));
    drop(threads);
    assert!(matches!(rank.alarm.only_error(), Error::EngineStopped { .. }));
    assert!(matches!(attached.handle().wait_applied(LONG), Err(Error::EngineStopped { .. })));
    let begin = Instant::now();
    assert!(matches!(attached.detach(LONG), Err(Error::EngineStopped { .. })));
    assert!(begin.elapsed() < LONG, "waited for a thread that is gone");
}

#[test]
fn ranks_are_spread_over_the_threads() {
    let settings = EngineSettings { threads: 2, ..EngineSettings::default() };
    let threads = ProxyThreads::start(&settings).unwrap();
    let memory = Region::host(256);
    // The panic of one thread's rank must not reach the rank of the other thread.
    let (mut sick, mut other) = (rank(0, PanickingTransport), rank(1, NullTransport::default()));
    let _sick_attached = attach(&threads, &mut sick, &memory);
    let other_attached = attach(&threads, &mut other, &memory);
    sick.ring(&put(0, 0, 0, 8));
    wait_until("the alarm", || !sick.alarm.errors().is_empty());
    other_attached.handle().wait_applied(LONG).unwrap();
    assert!(other.alarm.errors().is_empty());
}

#[test]
fn settings_out_of_range_are_refused() {
    let good = EngineSettings::default();
    let bad = [
        EngineSettings { threads: 0, ..good.clone() },
        EngineSettings { threads: 65, ..good.clone() },
        EngineSettings { batch_max: 0, ..good.clone() },
        EngineSettings { park_min: Duration::ZERO, ..good.clone() },
        EngineSettings { park_min: good.park_max * 2, ..good.clone() },
    ];
    for settings in bad {
        let result = ProxyThreads::start(&settings).map(drop);
        assert!(matches!(result, Err(Error::Argument { .. })), "{settings:?}");
    }
    let nowhere = EngineSettings { cores: vec![1 << 9], ..good };
    let result = ProxyThreads::start(&nowhere).map(drop);
    assert!(matches!(result, Err(Error::System { .. })), "{result:?}");
}
