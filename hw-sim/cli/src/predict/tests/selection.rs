//! What communicators choose by the cost model, against every other plan that they have.

use super::super::collective::{Drafted, Job};
use super::super::{AllReduceArguments, Operation, Scene};
use super::a100::parse;
use super::low_latency::request;
use hwsim_timing::simulate;
use ringdove::Settings;
use ringdove::communicator::pack_forest;
use ringdove::cost::{Means, Moved};
use ringdove::plan::{Choice, Collective, CollectiveRequest, Draft, Limits};
use ringdove::topology::ranks::capacities;
use std::time::{Duration, Instant};

/// A plan that is not taken is no more than so much faster.
const BAR: f64 = 1.10;

/// Buffers that are not registered gain nothing from less; those that are, neither.
const REGISTERED_MIN: u64 = 64 << 10;

/// Of more than the most bytes of a machine, this size.
const LARGE: u64 = 64 << 20;

struct World {
    arguments: AllReduceArguments,
    scene: Scene,
    ranks: u32,
}

impl World {
    fn new(machine: &str, ranks: u32, registered: bool) -> Self {
        let flag = if registered { "-R" } else { "" };
        let line = format!(
            "all-reduce --machine {machine} -g {ranks} --engine proxy --algorithm selected \
             {flag}"
        );
        let Operation::AllReduce(arguments) = parse(&line).operation else {
            panic!("an all-reduce")
        };
        let scene = Scene::new(&arguments.common).expect("built in");
        Self { arguments, scene, ranks }
    }

    fn limits(&self) -> Limits {
        let settings = Settings::default();
        Limits {
            low_latency_bytes: settings.low_latency_bytes,
            stores: true,
            store_blocks: settings.store_blocks,
            nvlink: self.scene.is_joined(self.ranks),
            symmetric: true,
            order: self.scene.ring_order(self.ranks, true),
            ..Limits::new(settings.blocks_max, settings.slot_bytes, settings.slot_count)
        }
    }

    fn request(&self, bytes: u64) -> CollectiveRequest {
        let plain = request(Collective::AllReduce, self.ranks, bytes);
        CollectiveRequest { registered: self.arguments.registered, ..plain }
    }

    /// Every plan that a communicator of these ranks could run.
    fn plans(&self, bytes: u64) -> Vec<Choice> {
        let forest = self.scene.forest(self.ranks);
        let means = Means { limits: self.limits(), forest: forest.as_ref() };
        means.plans(&self.request(bytes)).expect("valid")
    }

    /// How long it takes to pack trees, or to see that there are none; the shortest of three times.
    fn packing_takes(&self) -> Duration {
        let pack = |_| {
            let started = Instant::now();
            let graph =
                capacities(&self.scene.gpus[..self.ranks as usize], self.ranks).expect("links");
            let trees = pack_forest(&graph, None, self.limits().store_blocks);
            assert_eq!(trees.is_ok(), self.scene.forest(self.ranks).is_some());
            started.elapsed()
        };
        (0..3).map(pack).min().expect("three")
    }

    /// How long it takes to choose, the shortest of three times.
    fn choice_takes(&self, bytes: u64) -> Duration {
        let forest = self.scene.forest(self.ranks);
        let means = Means { limits: self.limits(), forest: forest.as_ref() };
        let model = self.scene.model(self.ranks).expect("few ranks");
        let choose = |_| {
            let started = Instant::now();
            let moved = Moved { by_device: false, stores: true };
            model.way(&self.request(bytes), &means, moved).expect("valid");
            started.elapsed()
        };
        (0..3).map(choose).min().expect("three")
    }

    /// µs, modelled.
    fn played(&self, choice: Choice) -> f64 {
        let draft = Draft::of(choice);
        let programs = Drafted { draft: &draft, stores: true, per_node: self.ranks };
        simulate(self.scene.setup(&self.arguments.common), &programs).expect("it ends").end.us()
    }

    /// µs of what is taken, and of the fastest with its name.
    fn times(&self, bytes: u64) -> (f64, f64, &'static str) {
        let Self { scene, arguments, ranks, .. } = self;
        let job = Job { scene, arguments, ranks: *ranks, bytes, forest: None };
        let taken = job.best(false).expect("a plan").outcome.end.us();
        let named = |choice: Choice| (choice.algorithm.name(), choice);
        let plans = self.plans(bytes).into_iter().map(named);
        let times = plans.map(|(name, choice)| (self.played(choice), name));
        let (best, name) = times.min_by(|a, b| a.0.total_cmp(&b.0)).expect("some");
        (taken, best, name)
    }
}

/// Powers of two, and some sizes between them.
fn sizes(most: u64) -> Vec<u64> {
    let powers = (3..=30).map(|power| 1u64 << power);
    let between = [12, 15, 18, 20, 23].map(|power| 3 << power);
    let odd = [1000, 20_000, 100_000, 700_000, 5_000_000];
    powers.chain(between).chain(odd).filter(|bytes| *bytes <= most).collect()
}

/// Of no size is a plan much faster than the one that is taken. If this fails, a communicator whose
/// cost model chooses has one that takes a tenth less of the modelled time, and does not take it.
fn check(machine: &str, ranks: std::ops::RangeInclusive<u32>, most: u64, bar: f64) {
    let (mut cases, mut worst, mut missed) = (0, (0.0, String::new()), Vec::new());
    for (ranks, registered) in ranks.flat_map(|ranks| [(ranks, false), (ranks, true)]) {
        let world = World::new(machine, ranks, registered);
        let mut sizes = sizes(most);
        sizes.extend(Some(LARGE).filter(|large| *large > most));
        sizes.retain(|bytes| !registered || *bytes >= REGISTERED_MIN);
        for bytes in sizes {
            let (taken, best, name) = world.times(bytes);
            let case = format!(
                "{machine}, {ranks} GPUs, {bytes} B, registered {registered}: {taken:.1} us, \
                 {name} {best:.1}"
            );
            let ratio = taken / best;
            if ratio > worst.0 {
                worst = (ratio, case.clone());
            }
            if ratio > bar {
                missed.push(case);
            }
            cases += 1;
        }
    }
    println!("{cases} cases, the worst {:.3} times the best: {}", worst.0, worst.1);
    assert!(cases > 90, "{cases}");
    assert!(missed.is_empty(), "{} of {cases}:\n{}", missed.len(), missed.join("\n"));
}

/// As [`check`]: engines for large data, stores below.
#[test]
fn no_plan_is_much_faster_on_pcie() {
    check("pcie4", 2..=4, 1 << 30, BAR);
}

/// As [`check`]: trees.
#[test]
fn no_plan_is_much_faster_on_a_mesh() {
    check("dgx1v", 2..=8, 16 << 20, BAR);
}

/// As [`check`]: two hops.
#[test]
fn no_plan_is_much_faster_on_nvswitch() {
    check("dgx-a100", 2..=8, 4 << 20, BAR);
}

/// As [`check`].
#[test]
fn no_plan_is_much_faster_on_the_next_nvswitch() {
    check("dgx-h100", 2..=8, 4 << 20, BAR);
}

/// As [`check`], of 1 GiB on all GPUs of a machine.
#[test]
fn no_plan_is_much_faster_for_a_gibibyte() {
    for machine in ["dgx1v", "dgx-a100", "dgx-h100"] {
        let (taken, best, name) = World::new(machine, 8, true).times(1 << 30);
        println!("{machine}: {taken:.0} us, {name} {best:.0}");
        assert!(taken <= BAR * best, "{machine}: {taken} us, {name} {best}");
    }
}

/// Several times what a choice takes on a busy machine.
const CHOICE_TAKES_MAX: Duration = Duration::from_millis(250);

/// If this fails, the first call of a class of sizes waits for the cost model. What is printed is
/// measured on this machine.
#[test]
fn the_model_chooses_soon() {
    for machine in ["pcie4", "dgx1v", "dgx-a100", "dgx-h100"] {
        for ranks in [2, 4, 8] {
            if ranks > 4 && machine == "pcie4" {
                continue;
            }
            let world = World::new(machine, ranks, true);
            let sizes = [8 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20, 1 << 30];
            let times = sizes.map(|bytes| world.choice_takes(bytes));
            let packing = world.packing_takes();
            println!(
                "{machine}, {ranks} GPUs, 8K 64K 1M 8M 64M 1G: {times:.1?}, trees {packing:.1?}"
            );
            let longest = packing + times.into_iter().max().expect("some");
            assert!(longest < CHOICE_TAKES_MAX, "{machine}, {ranks} GPUs: {longest:?}");
        }
    }
}
