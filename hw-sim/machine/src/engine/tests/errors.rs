//! Each error of BAR.md, provoked: it is recorded, the abort word rises, and nothing moves.

use super::host::{Bench, Host, Make, NO_SIGNAL, REGION, fill, pair, put, word};
use ringdove_kernels::bar::{
    CONTROL_OFFSET, Command, Control, ErrorCode, Lane, NONE, Peer, Refusal, Route, State, Window,
};
use ringdove_kernels::descriptor::LAP_BIT;
use std::mem::offset_of;

near_and_far! {
    bad_descriptors_end_the_channel
    a_slot_with_one_word_of_the_lap_is_not_taken
    registers_that_make_no_sense_are_named
    peers_refuse_what_they_have_not_agreed_to
    unreadable_sources_and_unwritable_words_are_named
    a_peer_that_is_not_there_is_a_lost_link
    faults_end_as_errors
}

/// What the words of a bad descriptor lead to; the peer has seen nothing of it.
fn refused(make: Make, words: [u64; 2]) -> (ErrorCode, ringdove_kernels::bar::ErrorRecord) {
    let mut bench = make(2, "", "");
    let [mut a, b] = pair(&mut bench);
    a.enter(9, Route { lane: 8, valid: 1, ..Route::default() });
    a.enter(10, Route { lane: 9, valid: 1, ..Route::default() });
    a.enter(9, Lane { peer: 77, arrival_signal: 0, completion_address: 0, valid: 1 });
    a.enter(
        11,
        Route { lane: 10, source_length: 64, destination_length: 64, valid: 1, ..Route::default() },
    );
    let mute = Lane { peer: 5, arrival_signal: NO_SIGNAL, completion_address: 0, valid: 1 };
    a.enter(10, mute);
    a.ring(&put(0, 0, 8));
    a.ring_words(words.map(|word| word | LAP_BIT));
    a.ring(&put(0, 0, 8));
    bench.run_until_idle();
    let (code, record) = a.ended_by();
    assert_eq!((record.position, record.words), (1, words.map(|word| word | LAP_BIT)));
    assert!(b.arrivals(0) <= 1, "what stands behind a bad descriptor is not to be trusted");
    assert_eq!(b.status().packets_refused, 0);
    (code, record)
}

/// R8 in hardware: no field of a descriptor can make it a transfer that was not registered.
fn bad_descriptors_end_the_channel(make: Make) {
    const NO_DATA: u64 = 1 << 62;
    const ARRIVAL: u64 = 1 << 60;
    const COMPLETION: u64 = 1 << 61;
    let route = |route: u64| route << 40;
    for (words, detail) in [
        ([1 << 62, 0], 1),
        ([0x7fff_ffff_ffff_ffff, 0x7fff_ffff_ffff_ffff], 1),
        ([5, NO_DATA | ARRIVAL], 2),
        ([0, NO_DATA], 3),
    ] {
        let (code, record) = refused(make, words);
        assert_eq!((code, record.detail), (ErrorCode::Malformed, detail), "{words:x?}");
        assert_eq!([record.route, record.lane, record.peer], [NONE; 3]);
    }
    let (code, record) = refused(make, [0, route(300)]);
    assert_eq!((code, record.route, record.lane), (ErrorCode::UnknownRoute, 300, NONE));
    let (code, record) = refused(make, [0, route(9)]);
    assert_eq!((code, record.lane, record.peer), (ErrorCode::UnknownRoute, 8, NONE));
    let (code, record) = refused(make, [0, route(10)]);
    assert_eq!((code, record.lane, record.peer), (ErrorCode::UnknownRoute, 9, 77));
    // The field holds the length less one.
    let (code, record) = refused(make, [(REGION - 7) | 7 << 40, route(3)]);
    assert_eq!((code, record.limit, record.route), (ErrorCode::SourceRange, REGION, 3));
    let (code, record) = refused(make, [(1 << 40) - 1, route(3)]);
    assert_eq!((code, record.limit), (ErrorCode::SourceRange, REGION));
    let (code, record) = refused(make, [7 << 40, (REGION - 7) | route(3)]);
    assert_eq!((code, record.limit), (ErrorCode::DestinationRange, REGION));
    assert_eq!((record.lane, record.peer), (3, 5));
    assert_eq!(refused(make, [0, ARRIVAL | route(11)]).0, ErrorCode::NoArrivalSignal);
    assert_eq!(refused(make, [0, COMPLETION | route(11)]).0, ErrorCode::NoCompletionSignal);
}

/// A broken producer's slots are never read beyond the lap bits: it blocks only itself.
fn a_slot_with_one_word_of_the_lap_is_not_taken(make: Make) {
    let mut bench = make(2, "", "");
    let [mut a, _] = pair(&mut bench);
    a.ring_words([0x1234 | LAP_BIT, 0x5678]);
    bench.run_until_idle();
    assert_eq!((a.status().position, a.error().state), (0, 0));
}

fn run(make: Make, spoil: impl Fn(&Host, &mut Control)) -> (u64, u64) {
    let mut bench = make(1, "", "");
    let host = bench.host(0, 0);
    let mut control = host.control();
    spoil(&host, &mut control);
    host.run_with(&control);
    bench.run_until_idle();
    let record = host.error();
    assert_eq!((record.state, host.state()), (1, State::Stopped));
    assert_eq!(ErrorCode::from_code(record.code), Some(ErrorCode::BadRegister));
    // Stopped until a reset.
    host.run_with(&host.control());
    bench.run_until_idle();
    assert_eq!(host.state(), State::Stopped);
    host.command(Command::Reset as u64);
    bench.run_until_idle();
    assert_eq!((host.state(), host.error().state), (State::Ready, 0));
    (record.detail, record.limit)
}

fn registers_that_make_no_sense_are_named(make: Make) {
    let at = |offset: usize| CONTROL_OFFSET + offset as u64;
    assert_eq!(run(make, |_, c| c.ring_log2 = 17), (at(offset_of!(Control, ring_log2)), 17));
    assert_eq!(run(make, |_, c| c.tail_address = 0), (at(offset_of!(Control, tail_address)), 0));
    assert_eq!(run(make, |_, c| c.tail_address = 0x1004).1, 0x1004);
    assert_eq!(run(make, |_, c| c.abort_address = 3), (at(offset_of!(Control, abort_address)), 3));
    assert_eq!(run(make, |_, c| c.generation = 0), (at(offset_of!(Control, generation)), 0));
    assert_eq!(run(make, |_, c| c.command = 9), (at(offset_of!(Control, command)), 9));
}

/// What `spoil` does to two hosts, and how the put of the first one ends.
fn put_after(make: Make, spoil: impl Fn(&mut Bench, &Host, &Host)) -> (ErrorCode, u64, u64, u64) {
    let mut bench = make(2, "", "");
    let [mut a, b] = pair(&mut bench);
    fill(a.source, 4096, 1);
    spoil(&mut bench, &a, &b);
    a.ring(&put(1, 64, 100));
    bench.run_until_idle();
    let (code, record) = a.ended_by();
    assert_eq!((record.position, record.lane, record.peer), (0, 1, 5));
    assert_eq!(b.error().state, 0, "a peer can harm nobody else's channel");
    assert_eq!(word(b.window + 64), 0, "nothing was written");
    let refusals = u64::from(code == ErrorCode::PeerRefused);
    assert_eq!(b.status().packets_refused, refusals);
    (code, record.detail, record.limit, record.route)
}

fn refusal(make: Make, spoil: impl Fn(&mut Bench, &Host, &Host)) -> (Refusal, u64) {
    let (code, detail, limit, route) = put_after(make, spoil);
    assert_eq!((code, route), (ErrorCode::PeerRefused, 0), "the window stands for the route");
    (Refusal::from_code(detail).unwrap(), limit)
}

/// No packet that the receiver has not agreed to changes its memory.
fn peers_refuse_what_they_have_not_agreed_to(make: Make) {
    let unknown = Refusal::UnknownSender;
    assert_eq!(refusal(make, |_, _, b| b.enter(5, Peer::default())).0, unknown);
    let old = |b: &Host, a: &Host| {
        b.enter(5, Peer { generation: a.generation - 1, ..a.peer_entry() });
    };
    assert_eq!(
        refusal(make, |_, a, b| old(b, a)).0,
        unknown,
        "sent by an earlier use of the channel"
    );
    let stale = |a: &Host, b: &Host| {
        a.enter(5, Peer { generation: b.generation + 1, ..b.peer_entry() });
    };
    assert_eq!(
        refusal(make, |_, a, b| stale(a, b)).0,
        unknown,
        "meant for another use of the channel"
    );
    assert_eq!(
        refusal(make, |bench, _, b| {
            b.command(Command::Halt as u64);
            bench.run_until_idle();
        })
        .0,
        unknown
    );
    assert_eq!(refusal(make, |_, _, b| b.enter(0, Window::default())).0, Refusal::UnknownWindow);
    let short = |b: &Host| {
        b.enter(0, Window { base: b.window, length: 163, reserved: 0, valid: 1 });
    };
    assert_eq!(refusal(make, |_, _, b| short(b)), (Refusal::WindowRange, 163));
    assert_eq!(
        refusal(make, |_, _, b| b.listen(4, 1..2)).0,
        Refusal::UnknownSignal,
        "not this sender's"
    );
    let wild =
        |b: &Host| b.enter(0, Window { base: 0x4000, length: REGION, reserved: 0, valid: 1 });
    assert_eq!(refusal(make, |_, _, b| wild(b)), (Refusal::WriteFault, 0x4040));
}

/// Memory that is not there is an error of the channel that asked for it, not a crash.
fn unreadable_sources_and_unwritable_words_are_named(make: Make) {
    let (code, _, limit, route) = put_after(make, |_, a, _| {
        let known = Route {
            lane: 1,
            source_base: 0x7000,
            source_length: REGION,
            destination_length: REGION,
            valid: 1,
            ..Route::default()
        };
        a.enter(1, known);
    });
    assert_eq!((code, limit, route), (ErrorCode::FetchFault, 0x7040, 1));
    let (code, _, limit, _) = put_after(make, |bench, a, _| {
        bench.memory.free(a.source).unwrap();
    });
    assert_eq!(code, ErrorCode::FetchFault);
    assert_ne!(limit, 0, "freed memory is out of reach at once");

    let mut bench = make(1, "", "");
    let mut host = bench.host(0, 0);
    host.connect_to(host.peer_entry(), 0, 0..1);
    host.run_with(&Control { tail_address: 0x9000, ..host.control() });
    host.ring(&put(0, 0, 8));
    bench.run_until_idle();
    let (code, record) = host.ended_by();
    assert_eq!((code, record.limit, record.position), (ErrorCode::WriteFault, 0x9000, 1));

    let mut bench = make(2, "", "");
    let [mut a, b] = pair(&mut bench);
    a.enter(0, Lane { peer: 5, arrival_signal: 0, completion_address: 0xa000, valid: 1 });
    a.ring(&put(0, 0, 8));
    bench.run_until_idle();
    let (code, record) = a.ended_by();
    assert_eq!((code, record.limit), (ErrorCode::WriteFault, 0xa000));
    assert_eq!(b.error().state, 0);
}

/// The peer's channel is not served: the link is lost, and the error names the peer.
fn a_peer_that_is_not_there_is_a_lost_link(make: Make) {
    let mut bench = make(2, "", "");
    let [mut a, b] = pair(&mut bench);
    bench.node.release(b.place);
    assert_eq!(b.state(), State::Absent);
    a.ring(&put(0, 0, 8));
    bench.run_until_idle();
    let (code, record) = a.ended_by();
    assert_eq!((code, record.detail), (ErrorCode::LinkLost, b.place.link_address));
}

/// The faults that are switched on by name do what their names say.
fn faults_end_as_errors(make: Make) {
    for (fault, code, at) in [
        ("engine0:link-down-after=3", ErrorCode::LinkLost, 2),
        ("engine1:link-down-after=0", ErrorCode::LinkLost, 0),
        ("*:fetch-fault-after=2", ErrorCode::FetchFault, 2),
    ] {
        let mut bench = make(2, "", fault);
        let [mut a, _] = pair(&mut bench);
        for _ in 0..5 {
            a.ring(&put(0, 0, 8));
            bench.run_until_idle();
            if a.error().state != 0 {
                break;
            }
        }
        let (seen, record) = a.ended_by();
        assert_eq!((seen, record.position), (code, at), "{fault}");
    }
    let mut bench = make(2, "faults = [\"stall-after=2\"]", "");
    let [mut a, b] = pair(&mut bench);
    for _ in 0..5 {
        a.ring(&put(0, 0, 8));
        bench.run_until_idle();
    }
    assert_eq!((b.arrivals(0), a.error().state), (1, 0), "it says nothing any more");
}
