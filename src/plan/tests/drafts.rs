//! Patterns beside the ring: verified, run on host memory, and played by the timing model.

use super::*;
use hwsim_timing::{
    Edge, Engine, Graph, LinkKind, Machine, Network, Note, Port, Profile, Setup, simulate,
};
use std::collections::BTreeMap;

fn drafts() -> Vec<(CollectiveRequest, Draft)> {
    let mut drafts = Vec::new();
    let worlds = [
        (Pattern::TwoShot, 2),
        (Pattern::TwoShot, 3),
        (Pattern::TwoShot, 8),
        (Pattern::Halving, 2),
        (Pattern::Halving, 4),
        (Pattern::Halving, 16),
        (Pattern::Selected, 4),
    ];
    for (pattern, ranks) in worlds {
        for (bytes, blocks) in [(4, 1), (1000, 1), (5000, 2)] {
            for (op, in_place) in [(ReduceOp::PreMulSum, false), (ReduceOp::Avg, true)] {
                let request =
                    CollectiveRequest { reduce_op: op, in_place, ..request(ranks, bytes) };
                // What is selected depends on nodes and on LL messages; the other patterns do
                // not ask for them.
                let ways: &[(u32, u32, bool)] = match pattern {
                    Pattern::Selected => &[
                        (0, 0, false),
                        (2, 0, false),
                        (0, 1024, false),
                        (0, 1024, true),
                        (0, 0, true),
                        (2, 0, true),
                    ],
                    _ => &[(0, 0, false)],
                };
                for &(ranks_per_node, low_latency_bytes, stores) in ways {
                    let base = limits(blocks, 256, 4);
                    let (store_blocks, base) =
                        (4 * u32::from(stores), Limits { ranks_per_node, ..base });
                    let limits = Limits { low_latency_bytes, stores, store_blocks, ..base };
                    let draft = Draft::new(pattern, &request, &limits).expect("in range");
                    drafts.push((request, draft));
                }
            }
        }
    }
    drafts
}

/// If this fails, a pattern that the timing model prices does not all-reduce.
#[test]
fn every_pattern_is_verified_and_gives_every_rank_the_result() {
    for (number, (request, draft)) in (0..).zip(drafts()) {
        let verified = verify(draft.plan(), &request.promise());
        let verified = verified.unwrap_or_else(|error| panic!("{request:?}: {error}"));
        run(&request, &verified, number);
    }
}

#[test]
fn what_a_pattern_cannot_do_is_refused() {
    let limits = limits(1, 256, 4);
    for (pattern, ranks) in [(Pattern::TwoShot, 1), (Pattern::TwoShot, 18), (Pattern::Halving, 6)] {
        let request = request(ranks, 64);
        let error = Draft::new(pattern, &request, &limits).expect_err("out of range");
        assert!(error.to_string().contains(&format!("got {ranks}")), "{error}");
    }
    let request = request(1024, 64);
    let error = Draft::new(Pattern::Halving, &request, &limits).expect_err("slots too small");
    assert!(error.to_string().contains("slot bytes"), "{error}");
}

/// A lane, by what both sides call it.
type LaneKey = (u32, u32, u16, bool);

fn lane_key(lane: &Lane) -> LaneKey {
    (lane.from, lane.to, lane.index, lane.kind == LaneKind::Direct)
}

/// What a functional run does on each lane.
fn functional(draft: &Draft, request: &CollectiveRequest) -> BTreeMap<LaneKey, Vec<Event>> {
    let verified = verify(draft.plan(), &request.promise()).expect("verified");
    let mut host = host(&verified, element(request), 0);
    for rank in &mut host.ranks {
        let bytes = request.bytes as usize;
        rank.memory = [vec![0; bytes], vec![0; bytes], Vec::new()];
        rank.in_place = request.in_place.then_some([0, 0]);
    }
    host.launch(&mut fastrand::Rng::with_seed(7)).expect("runs to its end");
    let mut events: BTreeMap<LaneKey, Vec<Event>> = BTreeMap::new();
    for (lane, event) in host.events {
        events.entry(lane_key(&verified.lanes()[lane])).or_default().push(event);
    }
    events
}

/// What the timing model does on each lane.
fn modelled(draft: &Draft, engine: Engine) -> BTreeMap<LaneKey, Vec<Event>> {
    let lane = |end: &LaneEnd| hwsim_timing::Lane {
        from: end.lane.from,
        to: end.lane.to,
        index: 2 * u32::from(end.lane.index) + u32::from(end.lane.kind == LaneKind::Direct),
        stores: matches!(end.lane.kind, LaneKind::Stores | LaneKind::LowLatency),
    };
    let program = |rank| {
        let (encoded, table) = draft.encoded(rank);
        let port = |end| Port { lane: lane(end), sends: end.side == Side::Send };
        hwsim_timing::RankProgram { encoded, ports: table.iter().map(port).collect() }
    };
    let programs: Vec<_> = (0..draft.rank_count()).map(program).collect();
    let profile = Profile::find("a100").expect("built in");
    let gpus = programs.len();
    let edge = |gpu| Edge { ends: [gpu, gpus], kind: LinkKind::Pcie, count: 1, gb_per_s: 16.0 };
    let mut points: Vec<String> = (0..gpus).map(|gpu| format!("gpu{gpu}")).collect();
    points.push("switch".into());
    let edges = (0..gpus).map(edge).collect();
    let graph = Graph { name: "flat".into(), gpu_count: gpus, points, edges };
    let machine = Machine::new(&graph, 1, Network::default(), &profile).expect("in range");
    let setup = Setup { notes: true, ..Setup::new(&machine, &profile, engine) };
    let outcome = simulate(setup, &programs).expect("plays");
    let mut events: BTreeMap<LaneKey, Vec<Event>> = BTreeMap::new();
    for note in outcome.notes {
        let (number, event) = match note {
            Note::Put { lane, bytes, arrival, completion } => {
                (lane, Event::Put { bytes, arrival, completion })
            }
            Note::Credit { lane } => (lane, Event::Credit),
            Note::Signal { lane, signal, value } => (lane, Event::Raised { signal, value }),
        };
        let lane = outcome.lanes[number as usize];
        let key = (lane.from, lane.to, (lane.index / 2) as u16, lane.index % 2 == 1);
        events.entry(key).or_default().push(event);
    }
    events
}

/// The puts, credits and signals of a lane, each kind in its order. How they interleave is a
/// matter of time, and differs from run to run.
fn by_kind(events: &[Event]) -> BTreeMap<&'static str, Vec<Event>> {
    let mut kinds: BTreeMap<&'static str, Vec<Event>> = BTreeMap::new();
    for event in events {
        let kind = match event {
            Event::Put { .. } => "put",
            Event::Credit => "rung credit",
            Event::Raised { signal, .. } => signal,
        };
        kinds.entry(kind).or_default().push(*event);
    }
    kinds
}

/// Signals that the proxy merged skip values; a functional run raises them one by one.
fn unmerged(events: &[Event]) -> Vec<Event> {
    let mut all = Vec::new();
    let mut last = 0;
    for event in events {
        if let Event::Raised { signal, value } = *event {
            all.extend((last + 1..=value).map(|value| Event::Raised { signal, value }));
            last = value;
        } else {
            all.push(*event);
        }
    }
    all
}

/// If this fails, the timing model prices another run than the one that happens: on every lane it
/// must see the same puts, credits and signals, in the same order.
#[test]
fn the_timing_model_plays_what_a_functional_run_does() {
    for (request, draft) in drafts() {
        let expected = functional(&draft, &request);
        for (name, engine) in Engine::ALL {
            let seen = modelled(&draft, engine);
            assert_eq!(
                expected.keys().collect::<Vec<_>>(),
                seen.keys().collect::<Vec<_>>(),
                "{name}: {request:?}"
            );
            for (lane, events) in &expected {
                let (expected, seen) = (by_kind(events), by_kind(&seen[lane]));
                let seen: BTreeMap<_, _> =
                    seen.into_iter().map(|(kind, events)| (kind, unmerged(&events))).collect();
                assert_eq!(expected, seen, "{name}, lane {lane:?}: {request:?}");
            }
        }
    }
}
