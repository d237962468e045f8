//! The model cannot lie quietly: limits of physics, conservation, and what must matter does.

mod worlds;

use hwsim_timing::p2p::{Stream, measure};
use hwsim_timing::{Engine, Leaf, Machine, Network, Note, Outcome, Profile, Setup, Time, simulate};
use proptest::prelude::*;
use ringdove::plan::Pattern;
use worlds::{draft, machine, nvswitch, pcie, profile, programs};

fn engines() -> impl Strategy<Value = Engine> {
    prop::sample::select(Engine::ALL.map(|(_, engine)| engine).to_vec())
}

#[derive(Clone, Debug)]
struct Case {
    pattern: Pattern,
    ranks: u32,
    nodes: usize,
    bytes: u64,
    blocks: u32,
    engine: Engine,
    with_nvswitch: bool,
}

impl Case {
    fn machine(&self, profile: &Profile) -> Machine {
        let gpus = self.ranks as usize / self.nodes;
        let graph = if self.with_nvswitch { nvswitch(gpus) } else { pcie(gpus) };
        machine(&graph, self.nodes, profile)
    }

    fn run(&self, machine: &Machine, profile: &Profile) -> Outcome {
        let draft = draft(self.pattern, self.ranks, self.bytes, self.blocks);
        let setup = Setup { notes: true, ..Setup::new(machine, profile, self.engine) };
        simulate(setup, &programs(&draft)).expect("a plan that ends")
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let patterns = [Pattern::Selected, Pattern::TwoShot, Pattern::Halving].to_vec();
    let shape = (prop::sample::select(patterns), 1u32..4, any::<bool>(), 1u64..300_000);
    (shape, 1u32..4, engines(), any::<bool>()).prop_map(|(shape, blocks, engine, with_nvswitch)| {
        let (pattern, log2, two_nodes, count) = shape;
        let nodes = if two_nodes { 2 } else { 1 };
        Case { pattern, ranks: 1 << log2, nodes, bytes: 4 * count, blocks, engine, with_nvswitch }
    })
}

/// Bytes that each lane was rung for.
fn lane_bytes(outcome: &Outcome) -> Vec<u64> {
    let mut bytes = vec![0; outcome.lanes.len()];
    for note in &outcome.notes {
        if let Note::Put { lane, bytes: put, .. } = *note {
            bytes[lane as usize] += put;
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// If this fails, the model is faster than light or copper.
    #[test]
    fn no_run_beats_the_physical_limits(case in cases()) {
        let profile = profile("a100");
        let machine = case.machine(&profile);
        let outcome = case.run(&machine, &profile);
        let links = outcome.link_bytes.iter().zip(&outcome.link_rates);
        for (link, (bytes, rate)) in links.enumerate() {
            // A nanosecond for rates that are rounded.
            let least = rate.time(*bytes);
            let end = outcome.end + Time(1000);
            prop_assert!(end >= least, "{} carried {bytes} B", machine.link_name(link as u32));
        }
        // However it is done, without a reducing network each byte crosses from rank to rank
        // n - 1 times while it is reduced, and n - 1 times while the result spreads.
        let sent: u64 = lane_bytes(&outcome).iter().sum();
        prop_assert!(sent >= 2 * u64::from(case.ranks - 1) * case.bytes, "sent {sent} B");
        // The narrowest cut, by the data sheets: a GPU, or a node, must take in as much as the
        // result has, since nothing of it is known inside; it may come over all links at once.
        let gpu_gb = 15.754 + if case.with_nvswitch { 300.0 } else { 0.0 };
        let gpus = case.ranks as usize / case.nodes;
        let into_gpu: f64 = if gpus > 1 { gpu_gb + 25.0 } else { 25.0 };
        let into_node = if case.nodes > 1 { gpus as f64 * 25.0 } else { f64::INFINITY };
        let least = case.bytes as f64 / 1e9 / into_gpu.min(into_node);
        prop_assert!(outcome.end.seconds() >= least, "{} < {least} s", outcome.end);
        // Data makes at least two hops in turn, or one if two ranks just swap.
        let hop = match case.engine {
            Engine::CpuDriven => profile.cpu.event + profile.cpu.synchronise,
            Engine::Proxy => profile.proxy.doorbell_latency,
            Engine::Device => profile.device.doorbell_latency + profile.device.decode,
            Engine::Stores => profile.stores.expect("in this profile").latency,
        };
        prop_assert!(outcome.end >= profile.block.launch + hop.times(2));
    }

    /// If this fails, bytes get lost on the way, or appear from nowhere.
    #[test]
    fn every_link_carries_what_was_put_across_it(case in cases()) {
        let profile = profile("a100");
        let machine = case.machine(&profile);
        let outcome = case.run(&machine, &profile);
        let mut expected = vec![0; outcome.link_bytes.len()];
        for (lane, bytes) in outcome.lanes.iter().zip(lane_bytes(&outcome)) {
            let path = Setup::new(&machine, &profile, case.engine).path(lane.from, lane.to);
            for &link in path.expect("it ran").links() {
                expected[link as usize] += bytes;
            }
        }
        prop_assert_eq!(expected, outcome.link_bytes);
    }

    /// If this fails, equal runs differ, and no result can be reproduced.
    #[test]
    fn equal_runs_are_equal_to_the_picosecond(case in cases()) {
        let profile = profile("a100");
        let machine = case.machine(&profile);
        let (first, second) = (case.run(&machine, &profile), case.run(&machine, &profile));
        prop_assert_eq!(first.end, second.end);
        prop_assert_eq!(first.events, second.events);
        prop_assert_eq!(first.notes, second.notes);
    }

    /// If this fails, latency or throughput between two GPUs is better than its parts allow.
    #[test]
    fn one_transfer_takes_the_sum_of_its_latencies(bytes in 1u64..(8 << 20), engine in engines()) {
        let profile = profile("a100");
        let machine = machine(&nvswitch(4), 1, &profile);
        let stream = Stream { from: 0, to: 3, bytes, count: 1, window: 16, contiguous: false };
        let point = measure(Setup::new(&machine, &profile, engine), stream).expect("it fits");
        let path = Setup::new(&machine, &profile, engine).path(0, 3).expect("joined");
        let proxy = profile.proxy;
        let device = profile.device;
        let sum = path.latency + profile.block.launch + match engine {
            Engine::CpuDriven => {
                let cpu = profile.cpu;
                cpu.event + cpu.synchronise + cpu.launch + proxy.submit + proxy.copy_setup
            }
            Engine::Proxy => {
                proxy.doorbell_latency + proxy.submit + proxy.copy_setup + proxy.completion
                    + proxy.signal_latency
            }
            Engine::Device => {
                device.doorbell_latency + device.decode + device.fetch_latency
                    + device.link_latency + device.signal_latency
            }
            Engine::Stores => profile.stores.expect("in this profile").latency,
        };
        let rate = outcome_rate(&machine, engine, &profile);
        prop_assert!(point.latency >= sum + rate.time(bytes), "{} < {sum}", point.latency);
        prop_assert!(point.gb_per_s <= rate.gb_per_s() * (1.0 + 1e-6), "{} GB/s", point.gb_per_s);
    }
}

/// If this fails, ops that share a pass over memory take longer than one after another, or data is
/// read and written for nothing.
#[test]
fn a_shared_pass_costs_each_source_and_each_destination() {
    for name in ["ark-v100", "a100", "h100"] {
        let block = profile(name).block;
        let time = |sources, destinations| 1.0 / block.pass(sources, destinations).gb_per_s();
        assert_eq!(block.pass(1, 1), block.copy, "{name}");
        assert_eq!(block.pass(2, 1), block.reduce, "{name}");
        let (copy, reduce) = (time(1, 1), time(2, 1));
        for more in 2..=4 {
            let to_many = time(1, more);
            assert!(to_many > copy && to_many <= f64::from(more) * copy * 1.001, "{name}");
        }
        for more in 3..=4 {
            let of_many = time(more, 1);
            let one_by_one = f64::from(more - 1) * reduce;
            assert!(of_many >= reduce * 0.999 && of_many <= one_by_one * 1.001, "{name}");
        }
        assert!(time(4, 4) <= 3.0 * (reduce + copy) * 1.001, "{name}");
    }
}

/// What one stream reaches at most.
fn outcome_rate(machine: &Machine, engine: Engine, profile: &Profile) -> hwsim_timing::Rate {
    let rates: Vec<_> = machine.link_rates().collect();
    let path = Setup::new(machine, profile, engine).path(0, 3).expect("joined");
    let narrowest = path.links().iter().map(|&link| rates[link as usize]).min().expect("links");
    match engine {
        Engine::Device => narrowest.min(profile.device.unit),
        Engine::Stores => narrowest.min(profile.stores.expect("in this profile").block),
        _ => narrowest,
    }
}

/// If this fails, a pause between launches costs nothing in the model, or costs more than the wake
/// that the launch gives the proxy.
#[test]
fn a_proxy_that_rested_is_late_by_its_wake_at_most() {
    let profile = profile("ark-v100");
    let machine = machine(&pcie(4), 1, &profile);
    let stream = Stream { from: 0, to: 3, bytes: 64, count: 1, window: 1, contiguous: false };
    let latency = |engine, rested| {
        let setup = Setup { rested, ..Setup::new(&machine, &profile, engine) };
        measure(setup, stream).expect("fits").latency
    };
    let late = latency(Engine::Proxy, true) - latency(Engine::Proxy, false);
    // The doorbell travels meanwhile.
    assert!(late > hwsim_timing::Time::ZERO && late < profile.proxy.wake, "{late}");
    for engine in [Engine::Device, Engine::CpuDriven] {
        assert_eq!(latency(engine, true), latency(engine, false), "{engine:?} never rests");
    }
}

/// If this fails, a link's rate matters where it should not, or does not where it should.
#[test]
fn half_a_link_halves_the_streams_that_cross_it_and_no_others() {
    let profile = profile("ark-v100");
    for engine in [Engine::Proxy, Engine::Device, Engine::CpuDriven] {
        let whole = machine(&pcie(4), 1, &profile);
        let stream =
            Stream { from: 0, to: 3, bytes: 1 << 20, count: 1, window: 16, contiguous: false };
        let path = whole.path(0, 3).expect("joined");
        assert_eq!(path.links().len(), 4, "through both switches and the root complex");
        let before = measure(Setup::new(&whole, &profile, engine), stream).expect("fits");
        for link in 0..whole.links_per_node() {
            let slower = whole.with_link_scaled(link, 0.5);
            let after = measure(Setup::new(&slower, &profile, engine), stream).expect("fits");
            let name = whole.link_name(link);
            if path.links().contains(&link) {
                let ratio = after.gb_per_s / before.gb_per_s;
                assert!((0.45..0.56).contains(&ratio), "{engine:?}: half {name} gives {ratio}");
                assert!(after.latency > before.latency, "{engine:?}: {name}");
            } else {
                assert_eq!(after, before, "{engine:?}: {name} is not on the way");
            }
        }
    }
}

/// The same for a whole collective: the uplinks of the switches are what limits it, the GPUs' own
/// links have room for more.
#[test]
fn half_of_what_limits_a_collective_slows_it_and_half_of_what_does_not_hardly() {
    let profile = profile("ark-v100");
    let whole = machine(&pcie(8), 1, &profile);
    let case = Case {
        pattern: Pattern::TwoShot,
        ranks: 8,
        nodes: 1,
        bytes: 32 << 20,
        blocks: 4,
        engine: Engine::Proxy,
        with_nvswitch: false,
    };
    let before = case.run(&whole, &profile);
    let limit = before.limit(None, &whole);
    assert!(limit.name.starts_with("link switch"), "limited by {}", limit.name);
    let run = |link| case.run(&whole.with_link_scaled(link, 0.5), &profile).end.seconds();
    let links = 0..whole.links_per_node();
    for link in links.filter(|link| !whole.link_name(*link).starts_with("adapter")) {
        let name = whole.link_name(link);
        let ratio = run(link) / before.end.seconds();
        if name.contains("cpu0") {
            assert!(ratio > 1.6, "half {name} gives {ratio}");
        } else {
            assert!((0.98..1.5).contains(&ratio), "half {name} gives {ratio}");
        }
    }
    let unused = links_named(&whole, "adapter");
    assert!(unused.iter().all(|&link| run(link) == before.end.seconds()), "adapters are idle");
}

fn links_named(machine: &Machine, part: &str) -> Vec<u32> {
    (0..machine.links_per_node()).filter(|link| machine.link_name(*link).contains(part)).collect()
}

/// If this fails, the machine does not matter to the answer.
#[test]
fn other_topologies_give_other_answers() {
    let profile = profile("a100");
    let time = |case: &Case, machine: &Machine| case.run(machine, &profile).end;
    let case = Case {
        pattern: Pattern::Halving,
        ranks: 8,
        nodes: 1,
        bytes: 8 << 20,
        blocks: 4,
        engine: Engine::Stores,
        with_nvswitch: false,
    };
    let flat = time(&case, &machine(&nvswitch(8), 1, &profile));
    let tree = time(&case, &machine(&pcie(8), 1, &profile));
    let nodes = time(&case, &machine(&nvswitch(4), 2, &profile));
    assert!(flat < nodes && nodes < tree, "{flat}, {nodes}, {tree}");
    let mut last = Time::ZERO;
    for oversubscription in [1.0, 4.0, 16.0] {
        let leaf = Some(Leaf { nodes: 1, oversubscription });
        let network = Network { leaf, ..Network::default() };
        let machine = Machine::new(&nvswitch(1), 8, network, &profile).expect("in range");
        let now = time(&case, &machine);
        assert!(now > last, "oversubscription {oversubscription}: {now} after {last}");
        last = now;
    }
}
