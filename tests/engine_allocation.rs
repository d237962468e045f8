//! The proxy's hot path allocates nothing. Its own test, since it counts the whole process.

mod support;

use ringdove::engine::{EngineSettings, Lane, Proxy, RegionDescriptor, Route};
use ringdove::id::Rank;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region as Allocations, StatsAlloc};
use std::alloc::System;
use std::sync::atomic::Ordering;
use std::time::Duration;
use support::transports::GatedTransport;
use support::{LANE, ROUTE, TestRank, put};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

// If this fails, a doorbell can wait for the allocator, and the engine's latency has no bound.
#[test]
fn steps_do_not_allocate() {
    let settings = EngineSettings { batch_max: 8, ..EngineSettings::default() };
    let (transport, allowed) = GatedTransport::new();
    let mut rank = TestRank::new(0, 4, transport);
    let (attachment, handle) = rank.attachment(&settings);
    let mut proxy = Proxy::new(&settings);
    proxy.attach(attachment);
    let lane = Lane { peer: Rank(1), arrival: Some(8), completion: Some(16) };
    handle.add_lane(LANE, lane).unwrap();
    let region = RegionDescriptor { base: 1 << 20, length_bytes: 1 << 20 };
    let route = Route { lane: LANE, source: region, destination: region, pull: false };
    handle.add_route(ROUTE, route).unwrap();
    // The first step takes the route in, and may allocate for it.
    proxy.step(Duration::ZERO);

    let allocations = Allocations::new(ALLOCATOR);
    for round in 0..1_000u64 {
        // Idle, busy, coalescing, not coalescing, under back-pressure and without.
        let stride = if round % 2 == 0 { 64 } else { 128 };
        for index in 0..round % 20 {
            let _ = rank.ring.producer.try_push(&put(0, index * stride, index * stride, 64));
        }
        allowed.store((round % 7) as usize, Ordering::Relaxed);
        proxy.step(Duration::from_micros(round * 100));
    }
    let change = allocations.change();
    assert_eq!((change.allocations, change.reallocations), (0, 0), "{change:?}");
    assert!(handle.statistics().descriptors > 1_000, "the loop did not exercise the proxy");
}
