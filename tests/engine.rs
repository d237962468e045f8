//! The proxy, one step at a time. Each test names the rule of `src/ring/PROTOCOL.md`, or the
//! promise of the engine, that is broken if it fails.

mod support;

use ringdove::engine::{
    Alarm, AttachmentHandle, EngineSettings, Expects, Lane, Progress, Proxy, RegionDescriptor,
    Route, Watch,
};
use ringdove::error::{DescriptorFault, Error, TransportCause};
use ringdove::id::{LaneId, Position, Rank, RouteId};
use ringdove::ring::Producer;
use ringdove::shared::Region;
use ringdove::transport::traced::{Trace, Traced};
use ringdove::transport::{Polled, SignalWrite, Transfer, Transport, TransportError};
use ringdove_kernels::descriptor::{Descriptor, MalformedDescriptor, ROUTE_MAX};
use ringdove_kernels::launch::{WaitKind, WaitRecord};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use support::faulty::{Faults, Faulty};
use support::transports::{GatedTransport, HostMemory, LyingTransport, NullTransport};
use support::{LANE, ROUTE, TestRank, credit, put};

const NOW: Duration = Duration::ZERO;
const ARRIVAL: u64 = 0xa000;
const COMPLETION: u64 = 0xc000;

fn lane() -> Lane {
    Lane { peer: Rank(7), arrival: Some(ARRIVAL), completion: Some(COMPLETION) }
}

/// Sources at 1 MiB, destinations at 2 MiB, 64 KiB each.
fn route() -> Route {
    Route {
        lane: LANE,
        source: RegionDescriptor { base: 1 << 20, length_bytes: 1 << 16 },
        destination: RegionDescriptor { base: 2 << 20, length_bytes: 1 << 16 },
        pull: false,
    }
}

/// A proxy with one rank that has lane 0 and route 0, and a record of what its transport got.
struct Bench {
    rank: TestRank,
    proxy: Proxy,
    handle: AttachmentHandle,
    trace: Trace,
    key: ringdove::engine::proxy::AttachmentKey,
}

impl Bench {
    fn new(transport: impl Transport + 'static) -> Self {
        Self::with_settings(transport, &EngineSettings::default())
    }

    fn with_settings(transport: impl Transport + 'static, settings: &EngineSettings) -> Self {
        let (transport, trace) = Traced::new(transport, 1 << 16);
        let mut rank = TestRank::new(3, 4, transport);
        let (attachment, handle) = rank.attachment(settings);
        let mut proxy = Proxy::new(settings);
        let key = proxy.attach(attachment);
        handle.add_lane(LANE, lane()).unwrap();
        handle.add_route(ROUTE, route()).unwrap();
        Self { rank, proxy, handle, trace, key }
    }

    fn ring(&self, descriptor: &Descriptor) -> Position {
        self.rank.ring(descriptor)
    }

    fn step(&mut self) -> Progress {
        self.proxy.step(NOW)
    }

    /// Rings, steps, and expects the descriptor to be refused.
    fn refused(descriptor: &Descriptor) -> ringdove::error::BadDescriptor {
        let mut bench = Self::new(NullTransport::default());
        bench.ring(&put(0, 0, 0, 16));
        bench.step();
        let position = bench.ring(descriptor);
        bench.step();
        assert_eq!(bench.trace.accepted().len(), 1, "R8: a bad descriptor became a transfer");
        let error = bench.rank.alarm.only_error();
        assert_eq!(bench.handle.failure(), Some(error.clone()), "kept on the attachment");
        let Error::BadDescriptor(bad) = error else { panic!("raised {error}") };
        assert_eq!((bad.rank, bad.position), (Rank(3), position));
        *bad
    }
}

#[test]
fn r8_ranges_are_checked_to_the_byte() {
    let fits = put(0, (1 << 16) - 16, (1 << 16) - 16, 16);
    let mut bench = Bench::new(NullTransport::default());
    bench.ring(&fits);
    bench.step();
    let transfer = bench.trace.accepted()[0];
    assert_eq!(transfer.source, (1 << 20) + (1 << 16) - 16);
    assert_eq!(transfer.destination, (2 << 20) + (1 << 16) - 16);
    assert_eq!(transfer.length, 16);

    let cases = [
        (
            Descriptor { source_offset: (1 << 16) - 15, ..fits },
            DescriptorFault::SourceRange(1 << 16),
        ),
        (
            Descriptor { destination_offset: (1 << 16) - 15, ..fits },
            DescriptorFault::DestinationRange(1 << 16),
        ),
        (
            Descriptor { source_offset: (1 << 40) - 1, ..fits },
            DescriptorFault::SourceRange(1 << 16),
        ),
        (Descriptor { length: 1 << 22, ..fits }, DescriptorFault::SourceRange(1 << 16)),
        (Descriptor { route: 1, ..fits }, DescriptorFault::UnknownRoute),
        (Descriptor { route: ROUTE_MAX, ..fits }, DescriptorFault::UnknownRoute),
    ];
    for (descriptor, reason) in cases {
        let bad = Bench::refused(&descriptor);
        assert_eq!((bad.reason, bad.fields), (reason, Some(descriptor)));
        let text = Error::BadDescriptor(Box::new(bad)).to_string();
        assert!(text.contains("rank 3") && text.contains("position 1"), "{text}");
        assert!(text.contains(&format!("route {}", descriptor.route)), "{text}");
    }
}

#[test]
fn r8_words_that_are_no_descriptor_are_named() {
    let mut bench = Bench::new(NullTransport::default());
    let slots = bench.rank.ring.memory.slots.words64(0, 2).unwrap();
    let words = [u64::MAX, u64::MAX];
    slots.store(0, words[0], Ordering::Relaxed);
    slots.store(1, words[1], Ordering::Relaxed);
    bench.step();
    let Error::BadDescriptor(bad) = bench.rank.alarm.only_error() else { panic!() };
    assert_eq!(bad.reason, DescriptorFault::Malformed(MalformedDescriptor::ReservedBit));
    assert_eq!((bad.words, bad.fields), (words, None));
    assert!(bench.trace.events().is_empty());
}

#[test]
fn r8_a_signal_that_the_lane_does_not_have_is_refused() {
    let mut bench = Bench::new(NullTransport::default());
    let mute = Lane { arrival: None, completion: None, ..lane() };
    bench.handle.add_lane(LaneId(1), mute).unwrap();
    bench.handle.add_route(RouteId(1), Route { lane: LaneId(1), ..route() }).unwrap();
    bench.ring(&Descriptor { arrival: false, ..put(1, 0, 0, 8) });
    bench.step();
    assert!(bench.rank.alarm.errors().is_empty());
    bench.ring(&Descriptor { arrival: false, completion: true, ..put(1, 0, 0, 8) });
    bench.step();
    let Error::BadDescriptor(bad) = bench.rank.alarm.only_error() else { panic!() };
    assert_eq!(bad.reason, DescriptorFault::NoCompletionSignal(LaneId(1)));
}

// A bad descriptor in the middle of a batch: those before it may move, those behind it must not.
#[test]
fn r8_nothing_behind_a_bad_descriptor_is_moved() {
    let mut bench = Bench::new(NullTransport::default());
    bench.ring(&put(9, 0, 0, 8));
    bench.ring(&put(0, 0, 0, 8));
    bench.step();
    bench.ring(&put(0, 8, 8, 8));
    bench.step();
    assert!(bench.trace.accepted().is_empty());
    assert_eq!(bench.rank.alarm.errors().len(), 1, "the first error wins");
}

#[test]
fn r7_contiguous_descriptors_become_one_transfer() {
    let mut bench = Bench::new(NullTransport::default());
    for index in 0..4 {
        let completion = index % 2 == 1;
        bench.ring(&Descriptor { completion, ..put(0, index * 100, 500 + index * 100, 100) });
    }
    bench.step();
    let accepted = bench.trace.accepted();
    assert_eq!(accepted.len(), 1);
    assert_eq!((accepted[0].length, accepted[0].position), (400, Position(0)));
    assert_eq!(accepted[0].arrival, Some(SignalWrite { address: ARRIVAL, value: 4 }));
    assert_eq!(accepted[0].completion, Some(SignalWrite { address: COMPLETION, value: 2 }));
    let statistics = bench.handle.statistics();
    assert_eq!((statistics.descriptors, statistics.transfers), (4, 1));
    assert_eq!((statistics.bytes, statistics.signals), (400, 6));
    assert_eq!(statistics.occupancy_max, 4);
}

#[test]
fn r7_coalescing_keeps_to_routes_ranges_and_its_bound() {
    let settings = EngineSettings { coalesce_bytes_max: 250, ..EngineSettings::default() };
    let mut bench = Bench::with_settings(NullTransport::default(), &settings);
    bench.handle.add_route(RouteId(1), route()).unwrap();
    let rung = [
        put(0, 0, 0, 100),
        put(0, 100, 100, 100),   // joins the first
        put(0, 200, 200, 100),   // would make 300
        put(0, 300, 1000, 100),  // destination elsewhere
        put(0, 1000, 1100, 100), // source elsewhere
        put(1, 1100, 1200, 100), // contiguous, but of another route
        credit(0),               // signals join whatever their lane ends with
    ];
    for descriptor in &rung {
        bench.ring(descriptor);
    }
    bench.step();
    let seen: Vec<_> =
        bench.trace.accepted().iter().map(|t| (t.length, t.arrival.unwrap().value)).collect();
    assert_eq!(seen, [(200, 2), (100, 3), (100, 4), (100, 5), (100, 7)]);
}

#[test]
fn coalescing_can_be_turned_off() {
    let settings = EngineSettings { coalesce_bytes_max: 0, ..EngineSettings::default() };
    let mut bench = Bench::with_settings(NullTransport::default(), &settings);
    for descriptor in [put(0, 0, 0, 8), put(0, 8, 8, 8), credit(0), credit(0)] {
        bench.ring(&descriptor);
    }
    bench.step();
    assert_eq!(bench.trace.accepted().len(), 4);
}

// Blocks that ring in turns on their own lanes must not defeat coalescing.
#[test]
fn r7_interleaved_lanes_coalesce_each_on_its_own() {
    let mut bench = Bench::new(NullTransport::default());
    bench.handle.add_lane(LaneId(1), lane()).unwrap();
    bench.handle.add_route(RouteId(1), Route { lane: LaneId(1), ..route() }).unwrap();
    for index in 0..6 {
        let offset = index / 2 * 64;
        bench.ring(&put((index % 2) as u32, offset, offset, 64));
    }
    bench.step();
    let seen: Vec<_> = bench.trace.accepted().iter().map(|t| (t.lane, t.length)).collect();
    assert_eq!(seen, [(LANE, 192), (LaneId(1), 192)]);
}

#[test]
fn r7_the_tail_is_free_before_transfers_end() {
    let (transport, _) = GatedTransport::new();
    let mut bench = Bench::new(transport);
    for index in 0..16 {
        bench.ring(&put(0, index * 2, 0, 1));
    }
    let progress = bench.step();
    assert_eq!((progress.descriptors, progress.submitted, progress.pending), (16, 0, 16));
    assert_eq!(bench.rank.ring.memory.tail.load(Ordering::Acquire), 16);
}

// Back-pressure: a transport that takes nothing fills a bounded queue, then the ring, and then the
// producers see a full ring. When it takes again, everything moves, in order.
#[test]
fn back_pressure_reaches_the_producers_and_loses_nothing() {
    let settings =
        EngineSettings { batch_max: 8, coalesce_bytes_max: 0, ..EngineSettings::default() };
    let (transport, allowed) = GatedTransport::new();
    let mut bench = Bench::with_settings(transport, &settings);
    let mut rung = 0;
    for _ in 0..10 {
        while bench.rank.ring.producer.try_push(&put(0, rung, rung, 1)).is_ok() {
            rung += 1;
        }
        bench.step();
    }
    assert_eq!(rung, 8 + 16, "one batch waits, one ring is full");
    for _ in 0..100 {
        allowed.store(3, Ordering::Relaxed);
        let progress = bench.step();
        assert!(progress.pending <= 8);
    }
    let sources: Vec<_> = bench.trace.accepted().iter().map(|t| t.source - (1 << 20)).collect();
    assert_eq!(sources, (0..rung).collect::<Vec<_>>());
    assert!(bench.step().is_idle());
}

#[test]
fn r12_a_failed_transfer_becomes_an_error_that_names_it() {
    let faults = Faults { fail_at: Some(2), ..Faults::default() };
    let mut bench = Bench::new(Faulty::new(NullTransport::default(), faults, 1));
    for index in 0..5 {
        bench.ring(&put(0, index * 100, 0, 10));
    }
    bench.step();
    let Error::Transport { rank, peer, error } = bench.rank.alarm.only_error() else { panic!() };
    assert_eq!((rank, peer, error.lane, error.position), (Rank(3), Rank(7), LANE, Position(2)));
    assert!(matches!(error.cause, TransportCause::Injected(_)));
    let calls = bench.trace.events().len();
    bench.ring(&put(0, 0, 0, 10));
    bench.step();
    assert_eq!(bench.trace.events().len(), calls, "a failed transport was called again");
}

// A lost transfer looks complete and raises nothing: exactly what a device wait has to catch.
#[test]
fn a_dropped_transfer_ends_without_its_signal() {
    let memory = Region::host(64);
    let faults = Faults { drop_at: Some(1), ..Faults::default() };
    let host = HostMemory::new(vec![memory.clone()], 1);
    let mut bench = Bench::new(Faulty::new(host, faults, 1));
    let here = Lane { arrival: Some(memory.base_address()), ..lane() };
    bench.handle.add_lane(LaneId(1), here).unwrap();
    bench.handle.add_route(RouteId(1), Route { lane: LaneId(1), ..route() }).unwrap();
    let signal = memory.word64(0).unwrap();
    for expected in [1, 1, 3] {
        bench.ring(&credit(1));
        let mut steps = 0;
        while !bench.step().is_idle() {
            steps += 1;
            assert!(steps < 100);
        }
        assert_eq!(signal.load(Ordering::Acquire), expected);
    }
    assert!(bench.rank.alarm.errors().is_empty());
}

#[test]
fn r12_a_transport_that_breaks_its_contract_is_caught() {
    for accepts_too_many in [false, true] {
        let mut bench = Bench::new(LyingTransport { accepts_too_many });
        bench.ring(&put(0, 0, 0, 10));
        bench.step();
        let Error::Transport { peer, error, .. } = bench.rank.alarm.only_error() else { panic!() };
        assert_eq!((peer, error.position), (Rank(7), Position(0)));
        assert!(matches!(error.cause, TransportCause::Contract(_)), "{error}");
    }
}

// After an abort the caller may free its buffers, so nothing that still waits may be moved.
#[test]
fn r12_an_alarm_from_elsewhere_stops_all_transfers() {
    let (transport, allowed) = GatedTransport::new();
    let mut bench = Bench::new(transport);
    bench.ring(&put(0, 0, 0, 10));
    bench.step();
    let abort = Error::Aborted { by: Some(Rank(0)), why: "test".to_owned() };
    bench.rank.alarm.raise(abort.clone());
    allowed.store(100, Ordering::Relaxed);
    bench.ring(&put(0, 10, 10, 10));
    assert!(bench.step().is_idle());
    assert!(bench.trace.accepted().is_empty());
    assert_eq!(bench.rank.alarm.errors(), [abort], "the engine raised an error of its own");
    bench.proxy.begin_detach(bench.key, Duration::MAX);
    let detached = bench.proxy.take_detached(NOW).expect("nothing is left to wait for");
    assert_eq!(detached.unfinished, None);
}

#[test]
fn r10_the_record_of_an_expired_wait_becomes_an_error() {
    let region = Region::host(size_of::<WaitRecord>());
    let settings = EngineSettings::default();
    let mut rank = TestRank::new(3, 4, NullTransport::default());
    rank.parts.as_mut().unwrap().watch = Some(Watch::new(Rank(3), region.clone()).unwrap());
    let (attachment, _handle) = rank.attachment(&settings);
    let mut proxy = Proxy::new(&settings);
    proxy.attach(attachment);
    let record = WaitRecord {
        state: 1,
        kind: WaitKind::Arrival as u32,
        block: 4,
        segment: 5,
        op: 6,
        round: 7,
        port: 8,
        peer: 2,
        expected: 96,
        seen: 95,
        position: 80,
        sequence: 41,
        waited_ns: 1_500_000_000,
        call: 3,
        reserved: [0; 2],
    };
    let bytes = bytemuck::bytes_of(&record);
    region.copy_in(4, &bytes[4..]).unwrap();
    proxy.step(NOW);
    proxy.step(settings.watch_interval);
    assert!(rank.alarm.errors().is_empty(), "the record is not complete yet");
    region.word32(0).unwrap().store(1, Ordering::Release);
    proxy.step(settings.watch_interval);
    assert!(rank.alarm.errors().is_empty(), "the next look is not due");
    proxy.step(settings.watch_interval * 2);
    let error = rank.alarm.only_error();
    let Error::WaitExpired(wait) = &error else { panic!("raised {error}") };
    assert_eq!(
        (wait.rank, wait.peer, wait.kind),
        (Rank(3), Some(Rank(2)), Some(WaitKind::Arrival))
    );
    assert_eq!(wait.record, record);
    let text = error.to_string();
    for part in [
        "rank 3 timed out after 1.500 s waiting for data from rank 2",
        "expected 96, seen 95",
        "launch 41, call 3 of it, block 4, segment 5, op 6, round 7, port 8, position 80",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn routes_added_while_the_engine_runs_are_found() {
    let mut bench = Bench::new(NullTransport::default());
    bench.step();
    bench.handle.add_lane(LaneId(5), lane()).unwrap();
    bench.handle.add_route(RouteId(300), Route { lane: LaneId(5), ..route() }).unwrap();
    bench.ring(&put(300, 0, 0, 8));
    bench.step();
    assert_eq!(bench.trace.accepted()[0].route, RouteId(300));
}

// The narrowest case of R8's promise: the route is added, and then rung, after the step has looked
// for changes and before it looks at the ring. The engine asks the alarm in between.
#[test]
fn a_route_added_in_the_middle_of_a_step_is_found() {
    struct Meddler {
        handle: OnceLock<AttachmentHandle>,
        producer: Producer,
        errors: Mutex<Vec<Error>>,
    }
    impl Alarm for Meddler {
        fn raise(&self, error: Error) {
            self.errors.lock().unwrap().push(error);
        }
        fn is_raised(&self) -> bool {
            let handle = self.handle.get().unwrap();
            if handle.add_lane(LANE, lane()).is_ok() {
                handle.add_route(ROUTE, route()).unwrap();
                self.producer.try_push(&put(0, 0, 0, 8)).unwrap();
            }
            false
        }
    }
    let settings = EngineSettings::default();
    let mut rank = TestRank::new(3, 4, NullTransport::default());
    let (handle, producer) = (OnceLock::new(), rank.ring.producer.clone());
    let meddler = Arc::new(Meddler { handle, producer, errors: Mutex::default() });
    rank.parts.as_mut().unwrap().alarm = meddler.clone();
    let (attachment, handle) = rank.attachment(&settings);
    let _ = meddler.handle.set(handle);
    let mut proxy = Proxy::new(&settings);
    proxy.attach(attachment);
    let progress = proxy.step(NOW);
    assert_eq!(*meddler.errors.lock().unwrap(), []);
    assert_eq!((progress.descriptors, progress.submitted), (1, 1));
}

#[test]
fn a_removed_route_is_unknown() {
    let mut bench = Bench::new(NullTransport::default());
    bench.handle.remove_route(ROUTE).unwrap();
    bench.ring(&put(0, 0, 0, 8));
    bench.step();
    assert!(matches!(
        bench.rank.alarm.only_error(),
        Error::BadDescriptor(bad) if bad.reason == DescriptorFault::UnknownRoute
    ));
}

#[test]
fn invalid_control_plane_requests_are_refused() {
    let bench = Bench::new(NullTransport::default());
    let wraps = RegionDescriptor { base: u64::MAX, length_bytes: 2 };
    let results = [
        bench.handle.add_lane(LANE, lane()),
        bench.handle.add_lane(LaneId(1 << 20), lane()),
        bench.handle.add_route(ROUTE, route()),
        bench.handle.add_route(RouteId(1 << 20), route()),
        bench.handle.add_route(RouteId(1), Route { lane: LaneId(1), ..route() }),
        bench.handle.add_route(RouteId(1), Route { source: wraps, ..route() }),
        bench.handle.remove_route(RouteId(1)),
    ];
    for result in results {
        assert!(matches!(result, Err(Error::Argument { .. })), "{result:?}");
    }
}

// One rank that floods its ring must not keep another from being served in the same step.
#[test]
fn every_step_serves_every_attachment() {
    let settings = EngineSettings { batch_max: 2, ..EngineSettings::default() };
    let mut bench = Bench::with_settings(NullTransport::default(), &settings);
    let mut other = TestRank::new(4, 4, NullTransport::default());
    let (attachment, handle) = other.attachment(&settings);
    bench.proxy.attach(attachment);
    handle.add_lane(LANE, lane()).unwrap();
    handle.add_route(ROUTE, route()).unwrap();
    for index in 0..16 {
        bench.ring(&put(0, index * 2, 0, 1));
    }
    other.ring(&put(0, 0, 0, 1));
    bench.step();
    assert_eq!(handle.statistics().descriptors, 1);
    assert_eq!(bench.handle.statistics().descriptors, 2, "more than its batch");
}

#[test]
fn an_error_of_one_communicator_leaves_others_alone() {
    let mut bench = Bench::new(NullTransport::default());
    let mut other = TestRank::new(4, 4, NullTransport::default());
    let (attachment, _handle) = other.attachment(&EngineSettings::default());
    bench.proxy.attach(attachment);
    other.ring(&put(0, 0, 0, 1));
    bench.ring(&put(0, 0, 0, 1));
    bench.step();
    assert!(matches!(other.alarm.only_error(), Error::BadDescriptor(_)));
    bench.ring(&put(0, 0, 0, 1));
    bench.step();
    assert!(bench.rank.alarm.errors().is_empty());
    assert_eq!(bench.trace.accepted().len(), 2);
}

#[test]
fn detaching_drains_first_and_gives_up_at_its_deadline() {
    let (transport, allowed) = GatedTransport::new();
    let mut bench = Bench::new(transport);
    bench.ring(&put(0, 0, 0, 8));
    assert!(bench.proxy.begin_detach(bench.key, Duration::from_secs(1)));
    bench.step();
    assert!(bench.proxy.take_detached(NOW).is_none(), "a transfer waits");
    let detached = bench.proxy.take_detached(Duration::from_secs(1)).expect("the deadline is here");
    let unfinished = detached.unfinished.expect("a transfer was left");
    assert!(unfinished.contains("1 transfers waiting"), "{unfinished}");
    bench.key = bench.proxy.attach(detached.attachment);
    bench.proxy.begin_detach(bench.key, Duration::MAX);
    allowed.store(1, Ordering::Relaxed);
    bench.step();
    let detached = bench.proxy.take_detached(NOW).expect("all is done");
    assert_eq!(detached.unfinished, None);
    assert!(bench.handle.wait_applied(NOW).is_err(), "nobody serves it any more");
}

/// Takes everything, and ends it once it is told to.
struct HeldTransport {
    lets_go: Arc<AtomicBool>,
    in_flight: u64,
}

impl Transport for HeldTransport {
    fn submit(&mut self, batch: &[Transfer]) -> Result<usize, TransportError> {
        self.in_flight += batch.len() as u64;
        Ok(batch.len())
    }

    fn poll(&mut self) -> Result<Polled, TransportError> {
        let ends = self.lets_go.load(Ordering::Relaxed);
        let completed = if ends { std::mem::take(&mut self.in_flight) } else { 0 };
        Ok(Polled { completed })
    }
}

/// If this fails, memory goes away of which a descriptor in the ring speaks, or in which a transfer
/// still writes.
#[test]
fn detaching_waits_for_the_ring_and_for_what_is_in_flight() {
    let lets_go = Arc::new(AtomicBool::new(false));
    let mut bench = Bench::new(HeldTransport { lets_go: lets_go.clone(), in_flight: 0 });
    bench.step();
    bench.ring(&put(0, 0, 0, 8));
    bench.proxy.begin_detach(bench.key, Duration::MAX);
    assert!(bench.proxy.take_detached(NOW).is_none(), "a descriptor is in the ring");
    bench.step();
    assert_eq!(bench.trace.accepted().len(), 1);
    assert!(bench.proxy.take_detached(NOW).is_none(), "a transfer is in flight");
    lets_go.store(true, Ordering::Relaxed);
    bench.step();
    assert_eq!(bench.proxy.take_detached(NOW).expect("all is done").unfinished, None);
}

/// If this fails, an engine goes to rest while a launch runs that will ring, or watches for
/// doorbells when none can come.
#[test]
fn a_launch_that_was_announced_is_expected_until_it_has_ended() {
    let ended = Region::host(8).word64(0).unwrap();
    let settings = EngineSettings::default();
    let mut rank = TestRank::new(3, 4, NullTransport::default());
    rank.parts.as_mut().unwrap().launches_ended = Some(ended.clone());
    let (attachment, handle) = rank.attachment(&settings);
    let mut proxy = Proxy::new(&settings);
    proxy.attach(attachment);
    let mut expects = || proxy.step(NOW).expects;
    assert_eq!(expects(), Expects::Nothing);
    handle.announce(1);
    assert_eq!(expects(), Expects::Launch);
    ended.store(1, Ordering::Release);
    assert_eq!(expects(), Expects::Nothing);
}
