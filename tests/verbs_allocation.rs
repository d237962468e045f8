//! The verbs transport's hot path allocates nothing. Its own test, since it counts the whole
//! process. It counts Rust's allocations; what an adapter's library does is its own affair.

mod hardware;
mod support;

use hardware::adapter::{INFINIBAND, on_virtual_adapter};
use ringdove::transport::verbs::VerbsSettings;
use ringdove::transport::{SignalWrite, Transport};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region as Allocations, StatsAlloc};
use std::alloc::System;
use support::adapters::{pair, run, settings, transfer};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

// If this fails, a doorbell can wait for the allocator, and the engine's latency has no bound.
#[test]
fn transfers_do_not_allocate() {
    let Some(settings) = settings() else { return on_virtual_adapter(INFINIBAND, "") };
    let settings = VerbsSettings { queue_depth: 32, ..settings };
    let [mut from, to] = pair(&settings, 1 << 16, 4);
    let mut value = 0;
    let mut batch = |count: u64| {
        let one = |index: u64| {
            value += 1;
            let lane = (index % 4) as u32;
            let mut next = transfer(lane, (&from, 0), (&to, 0), 1 << (value % 13));
            let word = lane as usize;
            next.arrival = Some(SignalWrite { address: to.signal_address(word), value });
            if index.is_multiple_of(3) {
                next.completion = Some(SignalWrite { address: from.signal_address(word), value });
            }
            next
        };
        (0..count).map(one).collect::<Vec<_>>()
    };
    // One by one, in batches, and in batches that meet back-pressure.
    let batches: Vec<_> = [1, 8, 100].into_iter().cycle().take(60).map(&mut batch).collect();
    // The first call takes peers and memory in, and may allocate for them.
    from.transport.poll().unwrap();

    let allocations = Allocations::new(ALLOCATOR);
    for batch in &batches {
        run(&mut from.transport, batch).unwrap();
    }
    let change = allocations.change();
    assert_eq!((change.allocations, change.reallocations), (0, 0), "{change:?}");
}
