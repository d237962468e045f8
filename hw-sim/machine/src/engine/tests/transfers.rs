//! Data, signals, order, back-pressure, and the channel's life.

use super::host::{Bench, Make, REGION, RING_LOG2, fill, pair, put, word};
use ringdove_kernels::bar::{Command, State};
use ringdove_kernels::descriptor::Descriptor;

near_and_far! {
    a_put_lands_and_raises_both_signals
    signals_count_for_each_lane
    the_ring_is_reused_lap_after_lap
    a_stream_of_one_lane_delays_another_by_one_sub_request
    a_peer_that_takes_nothing_fills_the_ring
    a_stalled_peer_holds_back_its_own_lanes_only
    a_halted_channel_ends_what_it_began
    a_reset_in_mid_transfer_leaves_nothing
}

/// If this fails, nothing works: data lands, and both signals and all counters say so.
fn a_put_lands_and_raises_both_signals(make: Make) {
    let mut bench = make(2, "", "");
    let [mut a, b] = pair(&mut bench);
    fill(a.source, REGION, 7);
    a.ring(&put(2, 4096, 50_000));
    bench.run_until_idle();
    for offset in (4096..54_096).step_by(8) {
        assert_eq!(word(b.window + offset), 7 << 40 | offset);
    }
    assert_eq!((word(b.window + 4088), word(b.window + 54_096)), (0, 0), "and nothing beside it");
    assert_eq!((b.arrivals(2), a.completions(2), a.tail()), (1, 1, 1));
    let (sent, received) = (a.status(), b.status());
    assert_eq!((sent.position, sent.in_flight, sent.completed), (1, 0, 1));
    assert_eq!((sent.bytes_sent, sent.sub_requests, sent.signals), (50_000, 3, 2));
    assert_eq!((received.bytes_received, received.packets_refused), (50_000, 0));
    assert_eq!(sent.occupancy_max, 1);
}

/// Counts belong to the lane and rise by one for each request that asks for them.
fn signals_count_for_each_lane(make: Make) {
    let mut bench = make(2, "", "");
    let [mut a, mut b] = pair(&mut bench);
    let signal =
        |route, arrival, completion| Descriptor { arrival, completion, ..put(route, 0, 0) };
    for _ in 0..3 {
        a.ring(&signal(0, true, false));
        a.ring(&signal(1, true, true));
        b.ring(&signal(1, false, true));
    }
    bench.run_until_idle();
    assert_eq!([b.arrivals(0), b.arrivals(1), a.completions(0), a.completions(1)], [3, 3, 0, 3]);
    assert_eq!([a.arrivals(1), b.completions(1)], [0, 3]);
    assert_eq!((a.status().bytes_sent, a.status().completed), (0, 6));
}

/// A ring of 64 slots serves any number of laps, and no slot is taken twice.
fn the_ring_is_reused_lap_after_lap(make: Make) {
    let mut bench = make(1, "", "");
    let [mut a, b] = pair(&mut bench);
    let total = (5 << RING_LOG2) + 3;
    while a.head < total {
        while a.has_room() && a.head < total {
            a.ring(&put(0, 8 * (a.head % 64), 8));
        }
        bench.run_until_idle();
    }
    assert_eq!((b.arrivals(0), a.tail()), (total, total));
    assert_eq!(a.status().occupancy_max, 1 << RING_LOG2);
}

/// If this fails, a long request holds up a short one of another lane.
fn a_stream_of_one_lane_delays_another_by_one_sub_request(make: Make) {
    let mut bench = make(2, "", "");
    let [mut a, b] = pair(&mut bench);
    let sub_request = a.identity.sub_request_bytes;
    // 64 MiB on lane 0, as far as a lane holds them; the whole region again and again.
    for _ in 0..(1 << RING_LOG2) - 1 {
        a.ring(&put(0, 0, REGION as u32));
    }
    a.ring(&put(1, 0, 64));
    let mut before = None;
    for _ in 0..100_000 {
        let progress = bench.node.step(&bench.memory, std::time::Instant::now());
        if b.arrivals(1) == 1 && before.is_none() {
            before = Some(a.status().sub_requests);
        }
        if !progress.worked {
            break;
        }
    }
    assert_eq!((b.arrivals(0), b.arrivals(1)), (63, 1));
    let before = before.unwrap();
    // The short one's own, one of the stream, and what two steps send at most before we look.
    assert!(before <= 2 + 8, "the short request ended after {before} sub-requests");
    let each = REGION.div_ceil(sub_request);
    assert_eq!(a.status().sub_requests, 63 * each + 1);
}

/// Without room the decoder waits, the tail stands, and producers with it; nothing is lost.
fn a_peer_that_takes_nothing_fills_the_ring(make: Make) {
    let mut bench = make(2, "", "engine1:stall-after=0");
    let mut hosts = [bench.host(0, 0), bench.host(1, 0)];
    for (own, other) in [(0, 1), (1, 0)] {
        hosts[own].connect(&hosts[other], 5, 0..4);
        hosts[own].listen(5, 0..4);
        hosts[own].run_with(&hosts[own].control());
    }
    bench.run_until_idle();
    let a = &mut hosts[0];
    let depth = a.identity.lane_depth;
    let mut rung = 0;
    loop {
        while a.has_room() {
            a.ring(&put(0, 0, 100));
            rung += 1;
        }
        bench.run_until_idle();
        if !a.has_room() {
            break;
        }
    }
    assert_eq!((rung, a.tail()), (depth + (1 << RING_LOG2), depth), "lane and ring are full");
    let status = a.status();
    assert_eq!((status.in_flight, status.completed, status.decoder_stalls), (depth, 0, 1));
    assert_eq!(a.error().state, 0);
    // The peer comes back: all of it arrives, in the end.
    bench.node.devices[1].faults = Default::default();
    bench.run_until_idle();
    assert_eq!((a.status().completed, a.tail()), (rung, rung));
    assert_eq!(hosts[1].arrivals(0), rung);
}

/// If this fails, one slow rank stops all of them.
fn a_stalled_peer_holds_back_its_own_lanes_only(make: Make) {
    let mut bench = make(3, "", "engine1:stall-after=0");
    let mut hosts = [bench.host(0, 0), bench.host(1, 0), bench.host(2, 0)];
    for (peer, lanes) in [(1, 0..2), (2, 2..4)] {
        hosts[0].connect(&hosts[peer], peer as u64, lanes);
        hosts[peer].connect(&hosts[0], 5, 0..4);
        hosts[peer].listen(5, 0..4);
    }
    for host in &hosts {
        host.run_with(&host.control());
    }
    bench.run_until_idle();
    // More than a pipe holds for the one that stands still, before each one for the other.
    for _ in 0..8 {
        hosts[0].ring(&put(0, 0, REGION as u32));
        hosts[0].ring(&put(2, 0, REGION as u32));
    }
    bench.run_until_idle();
    assert_eq!((hosts[1].arrivals(0), hosts[2].arrivals(2)), (0, 8));
    let status = hosts[0].status();
    assert_eq!((status.completed, status.in_flight, hosts[0].tail()), (8, 8, 16));
    bench.node.devices[1].faults = Default::default();
    bench.run_until_idle();
    assert_eq!((hosts[0].status().completed, hosts[1].arrivals(0)), (16, 8));
}

/// Halt lets what is under way end, drops the rest, and a reset makes the channel new.
fn a_halted_channel_ends_what_it_began(make: Make) {
    let mut bench = make(2, "", "engine1:stall-after=0");
    let mut hosts = [bench.host(0, 0), bench.host(1, 0)];
    for (own, other) in [(0, 1), (1, 0)] {
        hosts[own].connect(&hosts[other], 5, 0..4);
        hosts[own].listen(5, 0..4);
        hosts[own].run_with(&hosts[own].control());
    }
    bench.run_until_idle();
    bench.node.devices[1].faults = Default::default();
    bench.run_until_idle();
    hosts[0].ring(&put(0, 0, REGION as u32));
    hosts[0].ring(&put(0, 0, 64));
    // One step: the first request has begun.
    bench.node.step(&bench.memory, std::time::Instant::now());
    let begun = hosts[0].status();
    assert!(begun.sub_requests > 0 && begun.completed == 0, "{begun:?}");
    hosts[0].command(Command::Halt as u64);
    bench.run_until_idle();
    let status = hosts[0].status();
    assert_eq!((hosts[0].state(), status.in_flight, status.completed), (State::Stopped, 0, 1));
    assert_eq!(hosts[1].arrivals(0), 1, "the second was not begun");
    hosts[0].command(Command::Reset as u64);
    bench.run_until_idle();
    assert_eq!(hosts[0].state(), State::Ready);
    assert_eq!(hosts[0].status().bytes_sent, 0);
    hosts[0].run_with(&hosts[0].control());
    bench.run_until_idle();
    assert_eq!(hosts[0].state(), State::Running);
    assert_eq!(hosts[0].status().position, 0, "what was rung before is gone");
}

/// A reset in the middle of a transfer stops it, and the next use of the channel sees none of it.
fn a_reset_in_mid_transfer_leaves_nothing(make: Make) {
    let mut bench = make(2, "", "");
    let [mut a, b] = pair(&mut bench);
    a.ring(&put(0, 0, REGION as u32));
    // Two steps, so that some of it has passed a pipe.
    for _ in 0..2 {
        bench.node.step(&bench.memory, std::time::Instant::now());
    }
    assert!(a.status().bytes_sent > 0);
    a.command(Command::Reset as u64);
    bench.run_until_idle();
    assert_eq!((a.state(), b.arrivals(0)), (State::Ready, 0));
    let received = b.status().bytes_received;
    assert!(received > 0 && received < REGION);
    a.generation += 1;
    a.head = 0;
    a.connect(&b, 5, 0..4);
    b.enter(5, a.peer_entry());
    a.run_with(&a.control());
    bench.run_until_idle();
    a.ring(&put(0, 0, 64));
    bench.run_until_idle();
    assert_eq!((b.arrivals(0), a.completions(0)), (1, 1), "counts start anew");
}
