//! The host's side of a device engine, against a file that stands in for its BAR.

use super::stand_in::{StandIn, identity};
use super::*;
use crate::engine::Alarm;
use crate::error::{DescriptorFault, EngineFaultKind, Error};
use crate::id::{LaneId, Position, Rank, RouteId};
use crate::shared::Region;
use ringdove_kernels::bar::{
    CONTROL_OFFSET, Command, Control, ErrorCode, ErrorRecord, Identity, NONE, Refusal, Route,
    State, Status,
};
use ringdove_kernels::descriptor::MalformedDescriptor;
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(20);
const AT_ONCE: Duration = Duration::from_millis(20);
const REGISTERS: Registers =
    Registers { ring_log2: 4, tail_address: 64, abort_address: 128, rank: Rank(3) };

fn taken(stand_in: &StandIn) -> Channel {
    claim(&[stand_in.candidate()], &Need::default()).unwrap()
}

/// A wrong function, another version and a broken map must be told apart, each with both values.
#[test]
fn what_is_no_engine_is_refused_with_both_values() {
    let open = |identity: Identity| {
        let stand_in = StandIn::silent(&identity);
        let candidate = stand_in.candidate();
        let error = Function::open(&candidate.name, &candidate.resource).unwrap_err();
        let Error::UnfitEngine(unfit) = &error else { panic!("{error}") };
        assert_eq!(unfit.file, candidate.resource.display().to_string());
        error.to_string()
    };
    let good = identity();
    for (identity, parts) in [
        (Identity { magic: 5, ..good }, ["magic number", "0x0000000000000005"]),
        (Identity { version: 2 << 32 | 7, ..good }, ["needed 1.0", "has 2.7"]),
        (Identity { link_address: 0, ..good }, ["link address", "not 0"]),
        (Identity { channel_count: 3, ..good }, ["channels", "3 of 524288 bytes"]),
        (Identity { channel_count: u64::MAX, ..good }, ["channels", "inside of"]),
        (Identity { channels_offset: 8, ..good }, ["channels", "multiples of 0x10000"]),
        (Identity { ring_log2_max: 20, ..good }, ["ring", "16777216 bytes"]),
        (Identity { ring_log2_max: u64::MAX, ..good }, ["ring", "more than 64 bits"]),
        (Identity { routes_offset: 8 << 16, ..good }, ["route table", "from 0x80000"]),
        (Identity { lane_count: 1 << 60, ..good }, ["lane table", "more than 64 bits"]),
    ] {
        let message = open(identity);
        assert!(parts.iter().all(|part| message.contains(part)), "{parts:?}: {message}");
    }
    // A greater minor number only adds.
    let newer = StandIn::silent(&Identity { version: good.version + 9, ..good });
    Function::open("", &newer.candidate().resource).unwrap();
}

/// An engine that is too small must say so at the start, not fail in the middle of a job.
#[test]
fn too_little_of_anything_is_named_with_both_numbers() {
    let stand_in = StandIn::silent(&identity());
    for (need, part) in [
        (Need { ring_log2: 9, ..Need::default() }, "slots of the ring"),
        (Need { peers: 5, ..Need::default() }, "peer table"),
        (Need { lanes: 9, ..Need::default() }, "lane table"),
        (Need { signals: 9, ..Need::default() }, "signal table"),
        (Need { windows: 4, ..Need::default() }, "window table"),
        (Need { routes: 17, ..Need::default() }, "route table"),
        (Need { lane_depth: 65, ..Need::default() }, "one lane holds"),
    ] {
        let message = claim(&[stand_in.candidate()], &need).unwrap_err().to_string();
        assert!(message.contains(part) && message.contains("needed"), "{message}");
    }
}

/// Two users of one channel would corrupt each other; a channel that nobody frees is lost.
#[test]
fn channels_are_exclusive_and_come_back() {
    let stand_in = StandIn::silent(&identity());
    let candidate = stand_in.candidate();
    let function = Function::open(&candidate.name, &candidate.resource).unwrap();
    assert_eq!(function.free_channels().unwrap(), 2);
    let channels = [taken(&stand_in), taken(&stand_in)];
    assert_eq!(channels.each_ref().map(Channel::index), [0, 1]);
    assert_ne!(channels[0].address().generation, channels[1].address().generation);
    assert_eq!(function.free_channels().unwrap(), 0);
    let error = claim(std::slice::from_ref(&candidate), &Need::default()).unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    let message = error.to_string();
    assert!(message.contains("0000:05:00.0: all 2 channels are taken"), "{message}");
    // Where there is another engine, it is taken instead.
    let other = StandIn::silent(&identity());
    let second = claim(&[candidate, other.candidate()], &Need::default()).unwrap();
    assert_eq!(second.index(), 0);
    drop(channels);
    assert_eq!(function.free_channels().unwrap(), 2);
}

/// Every step of a channel's life waits for the engine, and no longer than it may.
#[test]
fn a_channel_resets_runs_and_halts() {
    let stand_in = StandIn::new();
    let channel = taken(&stand_in);
    channel.reset(SOON).unwrap();
    channel.run(&REGISTERS, SOON).unwrap();
    let control = |offset| stand_in.load(0, CONTROL_OFFSET + offset as u64);
    assert_eq!(control(offset_of!(Control, ring_log2)), 4);
    assert_eq!(control(offset_of!(Control, tail_address)), 64);
    assert_eq!(control(offset_of!(Control, abort_address)), 128);
    assert_eq!(control(offset_of!(Control, generation)), channel.address().generation);
    assert_eq!(control(offset_of!(Control, rank)), 3);
    stand_in.set_status(0, offset_of!(Status, position), 7);
    stand_in.set_status(0, offset_of!(Status, in_flight), 1);
    let message = channel.wait_idle(7, AT_ONCE).unwrap_err().to_string();
    assert!(message.contains("7 descriptors taken, 0 in flight"), "{message}");
    assert!(message.contains("7 taken, 1 in flight, Running"), "{message}");
    stand_in.set_status(0, offset_of!(Status, in_flight), 0);
    channel.wait_idle(7, SOON).unwrap();
    channel.halt();
    channel.stopped(SOON).unwrap();
    channel.reset(SOON).unwrap();
}

#[test]
fn an_engine_that_does_not_answer_ends_the_wait() {
    let stand_in = StandIn::silent(&identity());
    let channel = taken(&stand_in);
    let error = channel.reset(AT_ONCE).unwrap_err();
    assert!(matches!(error, Error::HostWaitExpired { .. }), "{error}");
    let message = error.to_string();
    for part in ["channel 0 of device engine 0000:05:00.0 to reset", "Ready", "Absent"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    stand_in.set_status(0, offset_of!(Status, state), 99);
    let message = channel.run(&REGISTERS, AT_ONCE).unwrap_err().to_string();
    assert!(message.contains("unknown (99)"), "{message}");
}

#[test]
fn a_refused_register_is_named() {
    let stand_in = StandIn::new();
    let channel = taken(&stand_in);
    channel.reset(SOON).unwrap();
    let error = channel.run(&Registers { tail_address: 65, ..REGISTERS }, SOON).unwrap_err();
    let Error::Engine(fault) = &error else { panic!("{error}") };
    assert_eq!(fault.kind, EngineFaultKind::Register { offset: 16 });
    assert_eq!((fault.rank, fault.peer, fault.lane), (Rank(3), None, None));
    assert!(error.to_string().contains("register at 0x10"), "{error}");
}

/// A table entry that lands elsewhere would let a peer write anywhere.
#[test]
fn entries_land_where_the_map_says_and_are_written_once() {
    let stand_in = StandIn::silent(&identity());
    let (_first, channel) = (taken(&stand_in), taken(&stand_in));
    let map = identity();
    let words = |offset: u64, count: u64| -> Vec<u64> {
        (0..count).map(|index| stand_in.load(1, offset + 8 * index)).collect()
    };
    let address = ChannelAddress { link_address: 1, channel: 2, generation: 3 };
    channel.enter_peer(Rank(2), &address).unwrap();
    assert_eq!(words(map.peers_offset + 2 * 32, 4), [1, 2, 3, 1]);
    channel.enter_signal(7, 4096, Rank(2)).unwrap();
    assert_eq!(words(map.signals_offset + 7 * 32, 4), [4096, 2, 0, 1]);
    let route = Route { lane: 4, source_base: 5, window: 6, valid: 0, ..Route::default() };
    channel.enter_route(RouteId(9), route).unwrap();
    assert_eq!(words(map.routes_offset + 9 * 64, 8), [4, 5, 0, 6, 0, 0, 0, 1]);
    assert_eq!(words(map.routes_offset + 8 * 64, 8), [0; 8]);

    let message = channel.enter_route(RouteId(9), route).unwrap_err().to_string();
    assert!(message.contains("not in use"), "{message}");
    let message = channel.enter_route(RouteId(16), route).unwrap_err().to_string();
    assert!(message.contains("needed 17, the engine has 16"), "{message}");

    for number in 0..3 {
        channel.enter_window(number, 64, 8).unwrap();
    }
    channel.clear_windows(1);
    let valid = (0..3).map(|number| stand_in.load(1, map.windows_offset + number * 32 + 24));
    assert_eq!(valid.collect::<Vec<_>>(), [1, 0, 0]);
}

/// What the engine records must come out as the proxy would have said it, or say who failed.
#[test]
fn every_code_becomes_an_error_that_says_where() {
    let of = |code: ErrorCode, detail| {
        let record = ErrorRecord {
            state: 1,
            code: code as u64,
            position: 17,
            words: [1 << 63, 1 << 63 | 1 << 60],
            route: 5,
            lane: 6,
            peer: 2,
            limit: 4096,
            detail,
        };
        record::error(Rank(1), "0000:05:00.0", 0, &record)
    };
    for (code, detail, reason) in [
        (ErrorCode::Malformed, 1, DescriptorFault::Malformed(MalformedDescriptor::ReservedBit)),
        (ErrorCode::Malformed, 3, DescriptorFault::Malformed(MalformedDescriptor::Empty)),
        (ErrorCode::UnknownRoute, 0, DescriptorFault::UnknownRoute),
        (ErrorCode::SourceRange, 0, DescriptorFault::SourceRange(4096)),
        (ErrorCode::DestinationRange, 0, DescriptorFault::DestinationRange(4096)),
        (ErrorCode::NoArrivalSignal, 0, DescriptorFault::NoArrivalSignal(LaneId(6))),
        (ErrorCode::NoCompletionSignal, 0, DescriptorFault::NoCompletionSignal(LaneId(6))),
    ] {
        let Error::BadDescriptor(bad) = of(code, detail) else { panic!("{code:?}") };
        assert_eq!((bad.rank, bad.position, bad.reason), (Rank(1), Position(17), reason));
        assert_eq!(bad.fields.map(|fields| fields.length), Some(1));
    }
    for (code, detail, parts) in [
        (ErrorCode::FetchFault, 0, ["could not read 0x1000", "lane 6 to rank 2"]),
        (ErrorCode::WriteFault, 0, ["could not write 0x1000", "position 17"]),
        (ErrorCode::PeerRefused, Refusal::WindowRange as u64, ["window 5 of 4096", "rank 2"]),
        (ErrorCode::PeerRefused, 77, ["unknown to this version", "rank 2"]),
        (ErrorCode::LinkLost, 0, ["the link to rank 2 is lost", "lane 6"]),
        (ErrorCode::Malformed, 9, ["error code 1 (detail 0x9)", "different versions"]),
    ] {
        let error = of(code, detail);
        assert!(matches!(error, Error::Engine(_)), "{error}");
        let message = error.to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{parts:?}: {message}");
        assert!(message.starts_with("rank 1: channel 0 of device engine 0000:05:00.0"));
    }
    let nothing = ErrorRecord {
        code: ErrorCode::LinkLost as u64,
        position: NONE,
        lane: NONE,
        peer: NONE,
        ..ErrorRecord::default()
    };
    let message = record::error(Rank(0), "e", 0, &nothing).to_string();
    assert!(message.contains("link to its peer") && !message.contains("ring"), "{message}");
}

/// Keeps what was raised.
#[derive(Default)]
struct TestAlarm {
    error: Mutex<Option<Error>>,
    changed: Condvar,
    raised: AtomicBool,
}

impl TestAlarm {
    fn wait(&self) -> Error {
        let error = self.error.lock().unwrap();
        let (error, _) = self.changed.wait_timeout_while(error, SOON, |e| e.is_none()).unwrap();
        error.clone().expect("the alarm in time")
    }
}

impl Alarm for TestAlarm {
    fn raise(&self, error: Error) {
        self.error.lock().unwrap().get_or_insert(error);
        self.raised.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }
}

/// A running channel under watch.
fn watched(stand_in: &StandIn) -> (DeviceAttachment, Arc<TestAlarm>, Region) {
    let channel = Arc::new(taken(stand_in));
    channel.reset(SOON).unwrap();
    channel.run(&REGISTERS, SOON).unwrap();
    let (alarm, host) = (Arc::new(TestAlarm::default()), Region::host(64));
    let abort = host.word32(0).unwrap();
    let parts = DeviceParts { rank: Rank(3), channel, watch: None, abort, alarm: alarm.clone() };
    (DeviceAttachment::new(parts).unwrap(), alarm, host)
}

const UNKNOWN_ROUTE: ErrorRecord = ErrorRecord {
    state: 1,
    code: ErrorCode::UnknownRoute as u64,
    position: 2,
    words: [0; 2],
    route: 1,
    lane: 0,
    peer: 0,
    limit: 0,
    detail: 0,
};

const LINK_LOST: ErrorRecord = ErrorRecord { code: ErrorCode::LinkLost as u64, ..UNKNOWN_ROUTE };

/// An error that nobody looks at hangs every rank (R12); the abort word may not even be written.
#[test]
fn an_error_record_raises_the_alarm_with_and_without_the_abort_word() {
    for abort in [true, false] {
        let stand_in = StandIn::new();
        let (attachment, alarm, host) = watched(&stand_in);
        stand_in.fail(0, &UNKNOWN_ROUTE);
        host.word32(0).unwrap().store(u32::from(abort), Ordering::Release);
        assert!(matches!(alarm.wait(), Error::BadDescriptor(_)));
        drop(attachment);
    }
}

/// Results of an aborted kernel must never pass for good ones: whoever asks learns of the error
/// even if the watch has not looked yet.
#[test]
fn looking_finds_what_the_watch_has_not_seen_yet() {
    let stand_in = StandIn::new();
    let (attachment, alarm, host) = watched(&stand_in);
    attachment.look();
    assert!(!alarm.is_raised());
    stand_in.fail(0, &UNKNOWN_ROUTE);
    host.word32(0).unwrap().store(1, Ordering::Release);
    attachment.look();
    assert!(alarm.is_raised());
}

/// A peer that stopped is a consequence: its own error should win if it comes soon, and its loss
/// be told if nothing else does.
#[test]
fn a_lost_peer_waits_for_a_better_explanation_and_then_speaks() {
    let stand_in = StandIn::new();
    let (attachment, alarm, host) = watched(&stand_in);
    stand_in.fail(0, &LINK_LOST);
    host.word32(0).unwrap().store(1, Ordering::Release);
    alarm.raise(Error::Aborted { by: Some(Rank(0)), why: "the cause".into() });
    attachment.look();
    assert!(alarm.wait().to_string().contains("the cause"));
    drop(attachment);

    let (attachment, alarm, host) = watched(&stand_in);
    stand_in.fail(0, &LINK_LOST);
    host.word32(0).unwrap().store(1, Ordering::Release);
    let started = Instant::now();
    assert!(alarm.wait().to_string().contains("is lost"));
    assert!(started.elapsed() > Duration::from_millis(200));
    drop(attachment);
}

/// A failed communicator's engine must stop reading memory that is about to go.
#[test]
fn a_failed_channel_is_halted() {
    let stand_in = StandIn::new();
    let (attachment, alarm, host) = watched(&stand_in);
    alarm.raise(Error::Aborted { by: None, why: "a test".into() });
    host.word32(0).unwrap().store(1, Ordering::Release);
    let started = Instant::now();
    while stand_in.command(0) != Command::Halt as u64 {
        assert!(started.elapsed() < SOON);
        std::thread::yield_now();
    }
    attachment.detach(Some(0), SOON).unwrap();
    assert_eq!(stand_in.load(0, 0x100), State::Stopped as u64);
}

/// Detaching too early would lose a credit that a peer waits for; detaching never ends in a hang.
#[test]
fn detaching_waits_for_what_was_rung() {
    let stand_in = StandIn::new();
    let (attachment, _, _) = watched(&stand_in);
    stand_in.set_status(0, offset_of!(Status, position), 5);
    attachment.detach(Some(5), SOON).unwrap();
    // It goes on, for credits of peers.
    assert_eq!(stand_in.command(0), Command::Run as u64);
    let (attachment, _, _) = watched(&stand_in);
    let error = attachment.detach(Some(6), AT_ONCE).unwrap_err();
    assert!(error.to_string().contains("5 taken"), "{error}");
    assert_eq!(stand_in.command(0), Command::Halt as u64);
}
