//! The order of data and signals, whoever raises them: on a virtual adapter, or on the one that
//! `RINGDOVE_TEST_ADAPTER` names. If one of these fails, kernels read what has not come yet.

mod hardware;
mod support;

use hardware::adapter::{self, Placement};
use ringdove::VerbsOrder;
use ringdove::transport::verbs::{Adapter, Endpoint, Near, VerbsSettings};
use ringdove::transport::{SignalWrite, Transfer, Transport};
use std::sync::atomic::Ordering;
use std::time::Instant;
use support::adapters::transfer;
use support::adapters::{Choices, PATIENCE, Side, bytes_of, drain, fill, pair, run, settings};

/// Runs the body of the current test on an adapter.
fn on_adapter(body: impl FnOnce(VerbsSettings)) {
    adapter::run(settings(), None, body);
}

/// Runs the body of the current test on an adapter that places data in any order, as real ones may
/// under adaptive routing.
fn on_unordered_adapter(body: impl FnOnce(VerbsSettings)) {
    adapter::run_placing(Placement::OutOfOrder, settings(), None, body);
}

/// As [`on_unordered_adapter`], on a virtual adapter that has a fault.
fn on_faulty_adapter(fault: &str, body: impl FnOnce(VerbsSettings)) {
    adapter::run_placing(Placement::OutOfOrder, settings(), Some(fault), body);
}

const LANES: usize = 5;
const BYTES: usize = 1 << 20;
const LANE_BYTES: u64 = (BYTES / LANES) as u64;

/// What one lane has sent after each of its transfers.
#[derive(Default)]
struct Lane {
    prefixes: Vec<u64>,
}

/// Transfers of all sizes on all lanes. Each lane fills its part of the memory from the beginning,
/// so that a signal announces a prefix.
fn mixture(choices: &mut Choices, from: &Side, to: &Side) -> (Vec<Transfer>, [Lane; LANES]) {
    let mut lanes: [Lane; LANES] = Default::default();
    let transfers = (0..400)
        .map(|_| {
            let lane = choices.below(LANES as u64) as usize;
            let filled = lanes[lane].prefixes.last().copied().unwrap_or(0);
            let sizes = [0, 1, 8, 63, 64, 65, 4096, choices.below(5000)];
            let length = sizes[choices.below(8) as usize].min(LANE_BYTES - filled);
            let offset = lane as u64 * LANE_BYTES + filled;
            let mut next = transfer(lane as u32, (from, offset), (to, offset), length);
            lanes[lane].prefixes.push(filled + length);
            let value = lanes[lane].prefixes.len() as u64;
            next.arrival = Some(SignalWrite { address: to.signal_address(lane), value });
            if choices.below(3) == 0 {
                let address = from.signal_address(100 + lane);
                next.completion = Some(SignalWrite { address, value });
            }
            next
        })
        .collect();
    (transfers, lanes)
}

/// R9 and R11. A queue of 16 work requests makes the sender feel back-pressure all the time.
#[test]
fn data_is_there_when_its_signal_is_seen_on_every_lane() {
    on_adapter(|settings| data_comes_before_its_signal(&settings));
}

/// The same where the receiver's engine raises signals. Its queue of 16 receive requests makes the
/// sender wait for credits.
#[test]
fn data_is_there_when_the_receiver_raises_its_signal() {
    on_unordered_adapter(|settings| {
        for order in [VerbsOrder::Immediate, VerbsOrder::Flush] {
            data_comes_before_its_signal(&VerbsSettings { order, ..settings.clone() });
        }
    });
}

/// Why adapters are asked for their promise: signals that are written pass their data where there
/// is none. On an adapter of the machine nothing is shown: it may keep the order all the same.
#[test]
fn written_signals_pass_their_data_on_an_adapter_that_keeps_no_order() {
    on_faulty_adapter("*:delay=1", |settings| {
        let settings = VerbsSettings { order: VerbsOrder::Write, ..settings };
        let lie = (0..200).find_map(|seed| find_lie(&settings, seed));
        println!("found: {}", lie.expect("no signal has passed its data in 200 runs"));
    });
}

#[test]
fn an_adapter_that_is_slow_changes_no_order() {
    for fault in ["*:delay=200", "*:reorder=200"] {
        on_faulty_adapter(fault, every_way_of_receivers);
    }
}

#[test]
fn an_adapter_that_finds_no_receive_request_at_first_changes_no_order() {
    on_faulty_adapter("*:receiver-not-ready=20", every_way_of_receivers);
}

fn every_way_of_receivers(settings: VerbsSettings) {
    for order in [VerbsOrder::Immediate, VerbsOrder::Flush] {
        data_comes_before_its_signal(&VerbsSettings { order, ..settings.clone() });
    }
}

/// Credits: a sender goes no further than the receiver has receive requests. Without them it would
/// be told to try again, and give up.
#[test]
fn a_receiver_that_does_not_look_holds_the_sender_up_and_nothing_more() {
    on_adapter(|settings| {
        let order = VerbsOrder::Immediate;
        let settings = VerbsSettings { queue_depth: 16, queue_pairs: 1, order, ..settings };
        let [mut from, mut to] = pair(&settings, 4096, 1);
        let signal = |value| {
            let address = to.signal_address(0);
            let arrival = Some(SignalWrite { address, value });
            Transfer { arrival, ..transfer(0, (&from, 0), (&to, 0), 0) }
        };
        let transfers: Vec<_> = (1..=100).map(signal).collect();
        let mut taken = 0;
        // One work request is kept for this side's own credits.
        while taken < 16 {
            let accepted = from.transport.submit(&transfers[taken..]).unwrap();
            drain(&mut from.transport, accepted).unwrap();
            taken += accepted;
        }
        assert_eq!((taken, from.transport.submit(&transfers[taken..]).unwrap()), (16, 0));
        assert_eq!(to.signal(0).load(Ordering::Acquire), 0, "nobody has looked");
        let start = Instant::now();
        while to.signal(0).load(Ordering::Acquire) < 100 {
            taken += from.transport.submit(&transfers[taken..]).unwrap();
            from.transport.poll().unwrap();
            to.transport.poll().unwrap();
            assert!(start.elapsed() < PATIENCE, "{taken} taken");
        }
    });
}

/// If this fails, a queue that is full of transfers has no place for the count that its peer waits
/// for, and both wait for each other.
#[test]
fn a_place_is_kept_for_the_count_of_used_receive_requests() {
    on_adapter(|settings| {
        let order = VerbsOrder::Immediate;
        let settings = VerbsSettings { queue_depth: 16, queue_pairs: 1, order, ..settings };
        let [mut from, to] = pair(&settings, 4096, 1);
        let transfers = vec![transfer(0, (&from, 0), (&to, 0), 64); 40];
        assert_eq!(from.transport.submit(&transfers).unwrap(), 15);
        assert_eq!(drain(&mut from.transport, 15).unwrap(), 15);
    });
}

#[test]
fn sides_that_signal_in_different_ways_do_not_connect() {
    on_adapter(|settings| {
        let other = VerbsSettings { order: VerbsOrder::Immediate, ..settings.clone() };
        let adapters =
            [settings, other].map(|one| Adapter::choose(&Near::default(), &one).unwrap().0);
        let [mut one, other] = adapters.each_ref().map(|one| Endpoint::create(one).unwrap());
        let message = one.0.connect(&other.1).unwrap_err().to_string();
        assert!(message.contains("written") && message.contains("immediate"), "{message}");
    });
}

fn data_comes_before_its_signal(settings: &VerbsSettings) {
    assert_eq!(find_lie(settings, 7), None);
}

/// The first signal that was seen before its data, if there was one.
fn find_lie(settings: &VerbsSettings, seed: u64) -> Option<String> {
    let settings = VerbsSettings { queue_depth: 16, ..settings.clone() };
    eprintln!("seed {seed}, signals by {}", settings.order);
    let mut lie = None;
    let mut choices = Choices::new(seed);
    let [mut from, mut to] = pair(&settings, BYTES, LANES as u32);
    let sent = fill(&from, &mut choices);
    let (transfers, lanes) = mixture(&mut choices, &from, &to);
    std::thread::scope(|scope| {
        let mut sender = Some(scope.spawn(|| run(&mut from.transport, &transfers)));
        let start = Instant::now();
        let mut seen = [0; LANES];
        while (0..LANES).any(|lane| seen[lane] < lanes[lane].prefixes.len()) {
            assert!(start.elapsed() < PATIENCE, "{seen:?}");
            // Where it has failed, nothing comes any more.
            if sender.as_ref().is_some_and(|sender| sender.is_finished()) {
                sender.take().unwrap().join().unwrap().unwrap();
            }
            to.transport.poll().unwrap();
            for lane in 0..LANES {
                // Acquire: pairs with the adapter's ordered write, or the writer's store, R9.
                let count = to.signal(lane).load(Ordering::Acquire) as usize;
                assert!(count >= seen[lane], "R9: signals only rise");
                if count > seen[lane] {
                    seen[lane] = count;
                    let base = lane * LANE_BYTES as usize;
                    let prefix = lanes[lane].prefixes[count - 1];
                    let there = bytes_of(&to, base as u64, prefix);
                    if there != sent[base..][..prefix as usize] {
                        lie.get_or_insert(format!("lane {lane} at {count}, seed {seed}"));
                    }
                }
            }
        }
        if let Some(sender) = sender {
            sender.join().unwrap().unwrap();
        }
    });
    for lane in 0..LANES {
        let address = from.signal_address(100 + lane);
        let asked =
            |transfer: &&Transfer| transfer.completion.is_some_and(|c| c.address == address);
        let last = transfers.iter().rfind(asked).and_then(|transfer| transfer.completion);
        let seen = from.signal(100 + lane).load(Ordering::Acquire);
        assert_eq!(seen, last.map_or(0, |signal| signal.value), "completions of lane {lane}");
    }
    lie
}
