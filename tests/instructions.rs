//! How many instructions a descriptor takes of a processor, on its way from a producer through the
//! proxy. Valgrind counts them: unlike times they are the same on a busy machine.

mod support;

use ringdove::engine::{EngineSettings, Lane, Proxy, RegionDescriptor, Route};
use ringdove::id::{LaneId, Rank, RouteId};
use ringdove::ring::Committed;
use std::process::Command;
use std::time::Duration;
use support::transports::NullTransport;
use support::{TestRank, TestRing, put};

const LOG2: u32 = 8;
const DESCRIPTORS: u64 = 1 << LOG2;
/// Counted on 2026-11-25: 237, and with the proxy 564. These have a margin of a sixth.
const PUSH_AND_POLL_MAX: f64 = 276.0;
const PROXY_MAX: f64 = 658.0;
/// Says to the program below valgrind how often it does its work.
const ROUNDS: &str = "RINGDOVE_TEST_ROUNDS";

/// Instructions of one round, each of so many descriptors, in the test `name`; None where there is
/// no valgrind.
fn instructions(name: &str) -> Option<f64> {
    let total = |rounds: u64| {
        let run = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name, "--test-threads=1"])
            .env(ROUNDS, rounds.to_string())
            .output();
        let run = match run {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            run => run.unwrap(),
        };
        let text = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "{text}");
        let collected = text.lines().find_map(|line| line.split("Collected :").nth(1));
        Some(collected.and_then(|count| count.trim().parse::<u64>().ok()).expect("a count"))
    };
    let (few, many) = (total(10)?, total(110)?);
    Some((many - few) as f64 / (100 * DESCRIPTORS) as f64)
}

/// In the program below valgrind: does the work. Else checks what a descriptor takes.
fn check(name: &str, most: f64, work: impl FnOnce(u64)) {
    if let Ok(rounds) = std::env::var(ROUNDS) {
        return work(rounds.parse().unwrap());
    }
    let Some(each) = instructions(name) else {
        return tally::skip("valgrind", "instructions of a descriptor");
    };
    println!("{name}: {each:.1} instructions for each descriptor, at most {most}");
    assert!(each > 10.0, "{each}: the work was not done");
    assert!(each <= most, "{each:.1} instructions for each descriptor, at most {most}");
}

// If this fails, ringing a doorbell and finding it costs more than it did.
#[test]
fn push_and_poll() {
    check("push_and_poll", PUSH_AND_POLL_MAX, |rounds| {
        let (ring, mut consumer) = TestRing::new(LOG2);
        let mut batch = vec![Committed::default(); DESCRIPTORS as usize];
        for _ in 0..rounds {
            for index in 0..DESCRIPTORS {
                ring.producer.push(&put(1, index, index, 64), || true).unwrap();
            }
            assert_eq!(consumer.poll(&mut batch), DESCRIPTORS as usize);
        }
    });
}

/// Pushes descriptors and lets a proxy take them, on so many lanes.
fn steps(rounds: u64, lanes: u64) {
    let settings = EngineSettings::default();
    let mut rank = TestRank::new(0, LOG2, NullTransport::default());
    let (attachment, handle) = rank.attachment(&settings);
    let mut proxy = Proxy::new(&settings);
    proxy.attach(attachment);
    for lane in 0..lanes as u32 {
        let ends = Lane { peer: Rank(1), arrival: Some(64), completion: Some(128) };
        handle.add_lane(LaneId(lane), ends).unwrap();
        let region = RegionDescriptor { base: 1 << 30, length_bytes: 1 << 30 };
        let route = Route { lane: LaneId(lane), source: region, destination: region, pull: false };
        handle.add_route(RouteId(lane), route).unwrap();
    }
    for _ in 0..rounds {
        for index in 0..DESCRIPTORS {
            // Gaps between them, so that they are not joined into one.
            rank.ring(&put((index % lanes) as u32, index * 8192, index * 8192, 4096));
        }
        let mut taken = 0;
        while taken < DESCRIPTORS {
            taken += proxy.step(Duration::ZERO).descriptors;
        }
        while proxy.step(Duration::ZERO).is_waiting() {}
    }
}

// If this fails, the proxy takes longer for each transfer than it did.
#[test]
fn proxy_on_one_lane() {
    check("proxy_on_one_lane", PROXY_MAX, |rounds| steps(rounds, 1));
}

// If this fails, the proxy takes longer where transfers go to several peers.
#[test]
fn proxy_on_eight_lanes() {
    check("proxy_on_eight_lanes", PROXY_MAX, |rounds| steps(rounds, 8));
}
