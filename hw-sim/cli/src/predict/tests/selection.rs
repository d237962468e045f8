//! What communicators choose by the cost model, against every other plan that they have.

use super::super::collective::{Drafted, Job};
use super::super::{AllReduceArguments, Operation, Scene};
use super::a100::parse;
use super::low_latency::request;
use hwsim_timing::simulate;
use ringdove::Settings;
use ringdove::cost::Means;
use ringdove::plan::{Choice, Collective, CollectiveRequest, Draft, Limits};

/// A plan that is not taken is no more than so much faster.
const BAR: f64 = 1.10;

/// Buffers that are not registered gain nothing from less; those that are, neither.
const REGISTERED_MIN: u64 = 64 << 10;

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
             --model {flag}"
        );
        let Operation::AllReduce(arguments) = parse(&line).operation else {
            panic!("an all-reduce")
        };
        let scene = Scene::new(&arguments.common).expect("built in");
        Self { arguments, scene, ranks }
    }

    /// Every plan that a communicator of these ranks could run.
    fn plans(&self, bytes: u64) -> Vec<Choice> {
        let settings = Settings::default();
        let limits = Limits {
            low_latency_bytes: settings.low_latency_bytes,
            stores: true,
            store_blocks: settings.store_blocks,
            nvlink: self.scene.is_joined(self.ranks),
            order: self.scene.ring_order(self.ranks, true),
            ..Limits::new(settings.blocks_max, settings.slot_bytes, settings.slot_count)
        };
        let plain = request(Collective::AllReduce, self.ranks, bytes);
        let request = CollectiveRequest { registered: self.arguments.registered, ..plain };
        let forest = self.scene.forest(self.ranks);
        Means { limits, forest: forest.as_ref() }.plans(&request).expect("valid")
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
fn check(machine: &str, ranks: std::ops::RangeInclusive<u32>, most: u64) {
    let (mut cases, mut worst, mut missed) = (0, (0.0, String::new()), Vec::new());
    for (ranks, registered) in ranks.flat_map(|ranks| [(ranks, false), (ranks, true)]) {
        let world = World::new(machine, ranks, registered);
        let mut sizes = sizes(most);
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
            if ratio > BAR {
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
    check("pcie4", 2..=4, 1 << 30);
}

/// As [`check`]: trees.
#[test]
fn no_plan_is_much_faster_on_a_mesh() {
    check("dgx1v", 2..=8, 16 << 20);
}

/// As [`check`]: two hops.
#[test]
fn no_plan_is_much_faster_on_nvswitch() {
    check("dgx-a100", 2..=8, 4 << 20);
}

/// As [`check`].
#[test]
fn no_plan_is_much_faster_on_the_next_nvswitch() {
    check("dgx-h100", 2..=8, 4 << 20);
}
