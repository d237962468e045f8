//! Random descriptors through the real proxy onto host memory, against the plainest possible
//! model: each descriptor is a memcpy and a count, done on the spot.

mod support;

use proptest::prelude::*;
use ringdove::engine::{EngineSettings, Lane, Proxy, RegionDescriptor, Route};
use ringdove::id::{LaneId, Rank, RouteId};
use ringdove::shared::Region;
use ringdove_kernels::descriptor::Descriptor;
use std::sync::atomic::Ordering;
use std::time::Duration;
use support::TestRank;
use support::faulty::{Faults, Faulty};
use support::transports::HostMemory;

const LANES: usize = 3;
/// Two routes to a lane, onto the same destination, so that their order shows.
const ROUTES: usize = LANES * 2;
const BYTES: u64 = 256;

/// The memory of one run, and what it should become.
struct World {
    source: Region,
    destination: Region,
    /// For lane `n`: arrivals at `16 n`, completions at `16 n + 8`.
    signals: Region,
    expected: Vec<u8>,
    expected_signals: [u64; LANES * 2],
}

impl World {
    fn new() -> Self {
        let source = Region::host(ROUTES * BYTES as usize);
        let bytes: Vec<u8> =
            (0..source.length_bytes()).map(|index| (index * 31 + index / 251) as u8).collect();
        source.copy_in(0, &bytes).unwrap();
        Self {
            source,
            destination: Region::host(LANES * BYTES as usize),
            signals: Region::host(LANES * 16),
            expected: vec![0; LANES * BYTES as usize],
            expected_signals: [0; LANES * 2],
        }
    }

    fn apply(&mut self, descriptor: &Descriptor) {
        let (route, lane) = (descriptor.route as usize, descriptor.route as usize / 2);
        let from = route * BYTES as usize + descriptor.source_offset as usize;
        let to = lane * BYTES as usize + descriptor.destination_offset as usize;
        let target = &mut self.expected[to..to + descriptor.length as usize];
        self.source.copy_out(from, target).unwrap();
        self.expected_signals[lane * 2] += u64::from(descriptor.arrival);
        self.expected_signals[lane * 2 + 1] += u64::from(descriptor.completion);
    }

    fn route(&self, index: usize) -> Route {
        let lane = index / 2;
        Route {
            lane: LaneId(lane as u32),
            source: RegionDescriptor {
                base: self.source.base_address() + index as u64 * BYTES,
                length_bytes: BYTES,
            },
            destination: RegionDescriptor {
                base: self.destination.base_address() + lane as u64 * BYTES,
                length_bytes: BYTES,
            },
            pull: false,
        }
    }

    fn lane(&self, index: usize) -> Lane {
        let arrival = self.signals.base_address() + index as u64 * 16;
        Lane { peer: Rank(1), arrival: Some(arrival), completion: Some(arrival + 8) }
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let mut bytes = vec![0; self.destination.length_bytes()];
        self.destination.copy_out(0, &mut bytes).unwrap();
        prop_assert_eq!(&bytes, &self.expected);
        for (index, expected) in self.expected_signals.iter().enumerate() {
            let seen = self.signals.word64(index * 8).unwrap().load(Ordering::Acquire);
            prop_assert_eq!(seen, *expected, "signal {}", index);
        }
        Ok(())
    }
}

/// Mostly short pieces that follow one another, as plans ring them; sometimes anything.
fn descriptors() -> impl Strategy<Value = Vec<Descriptor>> {
    let one = (0..ROUTES as u32, 0..BYTES, any::<u64>(), 0u64..40, 0u8..8);
    let one = one.prop_map(|(route, source, far, length, flags)| {
        let length = length.min(BYTES - source);
        let destination = if flags & 4 == 0 { source } else { far % (BYTES - length + 1) };
        let empty = length == 0;
        Descriptor {
            route,
            source_offset: if empty { 0 } else { source },
            destination_offset: if empty { 0 } else { destination },
            length: length as u32,
            arrival: empty || flags & 1 != 0,
            completion: flags & 2 != 0,
        }
    });
    let run = (one, 1u64..6).prop_map(|(first, count)| {
        let step = u64::from(first.length);
        (0..count)
            .map(|index| Descriptor {
                source_offset: first.source_offset + index * step,
                destination_offset: first.destination_offset + index * step,
                ..first
            })
            .filter(|next| {
                next.source_offset.max(next.destination_offset) + u64::from(next.length) <= BYTES
            })
            .collect::<Vec<_>>()
    });
    prop::collection::vec(run, 0..40).prop_map(|runs| runs.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    // R9, R11: whatever is coalesced, delayed, refused or reordered across lanes, memory and
    // signals end as if each descriptor had been done at once. `HostMemory` checks on the way that
    // every signal rises.
    #[test]
    fn the_proxy_is_a_row_of_memcpys(
        rung in descriptors(),
        seed in any::<u64>(),
        coalesce_bytes_max in prop::sample::select(vec![0u64, 64, 1 << 20]),
        batch_max in 1usize..20,
        refuse_per_mille in prop::sample::select(vec![0u32, 300, 900]),
        delay_polls_max in 0u32..4,
    ) {
        let mut world = World::new();
        let settings =
            EngineSettings { coalesce_bytes_max, batch_max, ..EngineSettings::default() };
        let regions =
            [&world.source, &world.destination, &world.signals].map(Region::clone).to_vec();
        let faults = Faults { refuse_per_mille, delay_polls_max, ..Faults::default() };
        let transport = Faulty::new(HostMemory::new(regions, seed), faults, seed);
        let mut rank = TestRank::new(0, 3, transport);
        let (attachment, handle) = rank.attachment(&settings);
        let mut proxy = Proxy::new(&settings);
        proxy.attach(attachment);
        for index in 0..LANES {
            handle.add_lane(LaneId(index as u32), world.lane(index)).unwrap();
        }
        for index in 0..ROUTES {
            handle.add_route(RouteId(index as u32), world.route(index)).unwrap();
        }
        let mut waiting = rung.iter().peekable();
        let mut steps = 0u64;
        loop {
            while let Some(next) = waiting.next_if(|next| rank.ring.producer.try_push(next).is_ok())
            {
                world.apply(next);
            }
            let progress = proxy.step(Duration::from_micros(steps));
            prop_assert_eq!(rank.alarm.errors(), []);
            if progress.is_idle() && !progress.is_waiting() && waiting.peek().is_none() {
                break;
            }
            steps += 1;
            prop_assert!(steps < 100_000, "no end in sight: {:?}", progress);
        }
        world.check()?;
        prop_assert_eq!(handle.statistics().descriptors, rung.len() as u64);
        let bytes: u64 = rung.iter().map(|next| u64::from(next.length)).sum();
        prop_assert_eq!(handle.statistics().bytes, bytes);
    }
}
