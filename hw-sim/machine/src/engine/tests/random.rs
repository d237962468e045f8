//! Random transfers among all channels of several engines, against a model of memory.

use super::host::{Bench, Host, Make, REGION, set_word, word};
use crate::fault::choose;
use proptest::prelude::*;
use ringdove_kernels::bar::{Lane, Route, Signal, Window};
use ringdove_kernels::descriptor::Descriptor;
use std::time::Instant;

const ENGINES: usize = 3;
const HOSTS: usize = 2 * ENGINES;
/// Two lanes to each host, oneself included.
const LANES: usize = 2 * HOSTS;
/// Each lane of each sender writes a part of the receiver's window.
const PART: u64 = REGION / (HOSTS * LANES) as u64 / 8 * 8;
/// The first word of a part holds the number of the lane's last numbered request.
const DATA: u64 = 8;
const STEPS_MAX: usize = 200_000;

fn part(sender: usize, lane: usize) -> u64 {
    (sender * LANES + lane) as u64 * PART
}

fn signal_of(sender: usize, lane: usize) -> u64 {
    (sender * LANES + lane) as u64
}

/// What has been rung, and what memory must hold in the end.
struct Oracle {
    windows: Vec<Vec<u64>>,
    /// Numbered requests of each sender's lane; each asks for both signals.
    numbered: Vec<[u64; LANES]>,
    seen: Vec<[u64; LANES]>,
}

/// Each host's source holds, at word n, a number that is n times a power of two plus the host.
fn source_word(host: usize, index: u64) -> u64 {
    index << 8 | host as u64
}

fn set_up(bench: &mut Bench) -> Vec<Host> {
    let hosts: Vec<Host> = (0..HOSTS).map(|host| bench.host(host / 2, (host % 2) as u64)).collect();
    for (own, host) in hosts.iter().enumerate() {
        for index in 0..REGION / 8 {
            set_word(host.source + 8 * index, source_word(own, index));
        }
        host.enter(0, Window { base: host.window, length: REGION, reserved: 0, valid: 1 });
        for (number, peer) in hosts.iter().enumerate() {
            host.enter(number as u64, peer.peer_entry());
            for lane in 0..LANES {
                // Signals of all senders: behind the window.
                let address = host.signals + 8 * signal_of(number, lane);
                let peer = number as u64;
                let signal = Signal { address, peer, reserved: 0, valid: 1 };
                host.enter(signal_of(number, lane), signal);
            }
        }
        for lane in 0..LANES {
            let entry = Lane {
                peer: (lane / 2) as u64,
                arrival_signal: signal_of(own, lane),
                completion_address: host.completion_address(lane as u64),
                valid: 1,
            };
            host.enter(lane as u64, entry);
            let route = Route {
                lane: lane as u64,
                source_base: host.source,
                source_length: REGION,
                window: 0,
                window_offset: part(own, lane),
                destination_length: PART,
                reserved: 0,
                valid: 1,
            };
            host.enter(lane as u64, route);
        }
        host.run_with(&host.control());
    }
    bench.run_until_idle();
    hosts
}

impl Oracle {
    fn new() -> Self {
        Self {
            windows: vec![vec![0; (REGION / 8) as usize]; HOSTS],
            numbered: vec![[0; LANES]; HOSTS],
            seen: vec![[0; LANES]; HOSTS],
        }
    }

    /// Rings one request: every other one numbered, the others with data, of words.
    fn ring(&mut self, hosts: &mut [Host], choice: [u64; 4]) {
        let (sender, lane) = (choice[0] as usize % HOSTS, choice[1] as usize % LANES);
        let host = &mut hosts[sender];
        if !host.has_room() {
            return;
        }
        let window = &mut self.windows[lane / 2];
        let place = part(sender, lane);
        let (source, target, words, announce) = if choice[2].is_multiple_of(2) {
            self.numbered[sender][lane] += 1;
            (self.numbered[sender][lane], 0, 1, true)
        } else {
            let words = 1 + choice[3] % ((PART - DATA) / 8 / 2);
            let target = DATA / 8 + choice[2] / 2 % ((PART - DATA) / 8 - words + 1);
            (choice[3] / 7 % (REGION / 8 - words + 1), target, words, false)
        };
        for word in 0..words {
            window[(place / 8 + target + word) as usize] = source_word(sender, source + word);
        }
        host.ring(&Descriptor {
            route: lane as u32,
            source_offset: 8 * source,
            destination_offset: 8 * target,
            length: 8 * words as u32,
            arrival: announce,
            completion: announce,
        });
    }

    /// Numbers and signals rise, and a signal never announces what is not there (R9, R11).
    fn observe(&mut self, hosts: &[Host]) {
        for (sender, lane) in
            (0..HOSTS).flat_map(|sender| (0..LANES).map(move |lane| (sender, lane)))
        {
            let receiver = &hosts[lane / 2];
            // The signal first: what it announces has landed before it.
            let arrivals = word(receiver.signals + 8 * signal_of(sender, lane));
            let number = word(receiver.window + part(sender, lane)) >> 8;
            let completions = hosts[sender].completions(lane as u64);
            let seen = &mut self.seen[sender][lane];
            assert!(arrivals >= *seen, "the signal of {sender}'s lane {lane} fell");
            assert!(number >= arrivals, "{sender}'s lane {lane}: {arrivals} announced, {number}");
            assert!(arrivals <= self.numbered[sender][lane]);
            assert!(completions <= self.numbered[sender][lane]);
            *seen = arrivals;
        }
    }

    fn finish(&self, hosts: &[Host]) {
        for (index, host) in hosts.iter().enumerate() {
            let status = host.status();
            assert_eq!((host.error().state, status.in_flight), (0, 0), "{:?}", host.error());
            assert_eq!((status.position, status.completed), (host.head, host.head));
            let same = (0..REGION / 8).find(|word_| {
                word(host.window + 8 * word_) != self.windows[index][*word_ as usize]
            });
            assert_eq!(same, None, "the first word that differs at host {index}");
            for lane in 0..LANES {
                assert_eq!(host.completions(lane as u64), self.numbered[index][lane]);
                assert_eq!(self.seen[index][lane], self.numbered[index][lane]);
            }
        }
        let sum = |count: fn(&Host) -> u64| hosts.iter().map(count).sum::<u64>();
        assert_eq!(sum(|host| host.status().bytes_sent), sum(|host| host.status().bytes_received));
    }
}

fn play(make: Make, seed: u64, lines: &str, faults: &str) {
    let mut bench = make(ENGINES, lines, faults);
    let mut hosts = set_up(&mut bench);
    let mut oracle = Oracle::new();
    let total = 400;
    let mut rung = 0;
    for step in 0..STEPS_MAX {
        for _ in 0..choose(seed, [1, step as u64, 0]) % 8 {
            if rung < total {
                let choice = [2, 3, 4, 5].map(|part| choose(seed, [part, rung, 0]));
                oracle.ring(&mut hosts, choice);
                rung += 1;
            }
        }
        let progress = bench.node.step(&bench.memory, Instant::now());
        oracle.observe(&hosts);
        if rung == total && !progress.worked && !progress.waits {
            oracle.finish(&hosts);
            return;
        }
    }
    panic!("seed {seed}: no end after {STEPS_MAX} steps");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 12,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn everything_lands_in_order_near(seed: u64) {
        play(Bench::near, seed, "", "");
    }

    #[test]
    fn everything_lands_in_order_remote(seed: u64) {
        play(Bench::remote, seed, "", "");
    }

    /// With the least of everything, and delays: requests wait for each other in every way.
    #[test]
    fn everything_lands_in_order_where_it_is_narrow(seed: u64) {
        let narrow = "sub_request_bytes = 64\nin_flight_max = 1\nchannels = 2";
        let faults = format!("seed={seed},*:delay=30");
        let make = if seed.is_multiple_of(2) { Bench::near } else { Bench::remote };
        play(make, seed, narrow, &faults);
    }
}
