//! The cost model with which communicators choose (`ringdove::cost`), against this one: the order
//! in which both see plans, and what the choice costs.

use super::super::collective::Drafted;
use super::super::{Operation, Scene};
use super::a100::parse;
use super::low_latency::request;
use hwsim_timing::simulate;
use ringdove::Settings;
use ringdove::cost::{Model, Moved, Profile};
use ringdove::plan::{Choice, Collective, CollectiveRequest, Draft, Limits, candidates};

const SIZES: [u64; 8] =
    [1 << 10, 8 << 10, 48 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];

/// Machines of one node with so many ranks.
const MACHINES: [(&str, u32); 6] =
    [("pcie4", 4), ("ark", 8), ("dgx1v", 8), ("dgx1v", 5), ("dgx-a100", 8), ("dgx-h100", 8)];

struct World {
    name: String,
    scene: Scene,
    ranks: u32,
    model: Model,
}

impl World {
    fn new((name, ranks): (&str, u32)) -> Self {
        let arguments = arguments(name);
        let scene = Scene::new(&arguments.common).expect("built in");
        let model = scene.model(ranks).expect("few ranks");
        Self { name: format!("{name}, {ranks} ranks"), scene, ranks, model }
    }

    fn limits(&self) -> Limits {
        let settings = Settings::default();
        let nvlink = self.scene.is_joined(self.ranks);
        Limits {
            low_latency_bytes: settings.low_latency_bytes,
            stores: true,
            store_blocks: if nvlink { settings.store_blocks } else { 0 },
            nvlink,
            order: self.scene.ring_order(self.ranks, true),
            ..Limits::new(settings.blocks_max, settings.slot_bytes, settings.slot_count)
        }
    }

    fn candidates(&self, collective: Collective, bytes: u64, registered: bool) -> Vec<Choice> {
        let plain = request(collective, self.ranks, bytes);
        let request = CollectiveRequest { registered, ..plain };
        let forest = self.scene.forest(self.ranks);
        // Trees have lanes of stores, whatever others have.
        let store_blocks = Settings::default().store_blocks;
        let limits = self.limits();
        let mut all = candidates(&request, &limits).expect("valid");
        let of_trees = Limits { store_blocks, ..limits };
        all.extend(
            forest.and_then(|forest| {
                ringdove::plan::select_packed(&request, &of_trees, &forest).ok()
            }),
        );
        all
    }

    /// µs by `hwsim predict`, and by the model of communicators.
    fn times(&self, choice: &Choice) -> (f64, f64) {
        let arguments = arguments("pcie4");
        let draft = Draft::of(choice.clone());
        let programs = Drafted { draft: &draft, stores: true, per_node: self.ranks };
        let played = simulate(self.scene.setup(&arguments.common), &programs).expect("it ends");
        let moved = Moved { by_device: false, stores: true };
        let predicted = self.model.predict(choice, moved).expect("as many ranks");
        (played.end.us(), predicted.us)
    }
}

fn arguments(machine: &str) -> super::super::AllReduceArguments {
    match parse(&format!("all-reduce --machine {machine}")).operation {
        Operation::AllReduce(arguments) => arguments,
        _ => panic!("an all-reduce"),
    }
}

fn ranks_of(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    for (rank, nth) in (0..).zip(order) {
        ranks[nth] = f64::from(rank);
    }
    ranks
}

/// Spearman's: 1 where both have the same order, 0 where the one says nothing of the other.
fn rank_correlation(pairs: &[(f64, f64)]) -> f64 {
    let (one, other): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let (one, other) = (ranks_of(&one), ranks_of(&other));
    let count = one.len() as f64;
    let squares: f64 = one.iter().zip(&other).map(|(a, b)| (a - b).powi(2)).sum();
    1.0 - 6.0 * squares / (count * (count * count - 1.0))
}

/// If this fails, a communicator takes slower plans than its table has, or prefers plans for
/// reasons that the timing model does not know.
#[test]
fn both_models_see_plans_in_one_order() {
    let (mut all, mut errors, mut gains) = (Vec::new(), Vec::new(), Vec::new());
    let (mut hits, mut choices) = (0, 0);
    for machine in MACHINES {
        let world = World::new(machine);
        let mut of_machine = Vec::new();
        for collective in
            [Collective::AllReduce, Collective::AllGather, Collective::Broadcast { root: 0 }]
        {
            for bytes in SIZES {
                if collective == Collective::AllGather && bytes > 16 << 20 {
                    continue;
                }
                let candidates = world.candidates(collective, bytes, false);
                let times: Vec<_> = candidates.iter().map(|it| (it, world.times(it))).collect();
                let played = times.iter().map(|it| it.1.0).fold(f64::MAX, f64::min);
                let best = times.iter().min_by(|a, b| a.1.1.total_cmp(&b.1.1)).expect("some");
                // What a communicator would take is no slower than what the table has.
                let moved = Moved { by_device: false, stores: true };
                let taken = world.model.choose(&candidates, moved);
                let (before, with) = (times[0].1.0, times[taken].1.0);
                assert!(
                    // Communicators do not ask the model of less.
                    bytes < 64 << 10 || with <= 1.1 * before,
                    "{}: {} of {bytes}: {with:.1} us instead of {before:.1}",
                    world.name,
                    collective.name()
                );
                gains.push(before / with);
                // Played, what the model takes for the best is hardly slower than the best.
                hits += u32::from(best.1.0 <= 1.1 * played);
                choices += 1;
                if best.1.0 > 1.25 * played {
                    println!(
                        "{}: {} of {bytes}: {} is played in {:.1} us, the best in {played:.1}",
                        world.name,
                        collective.name(),
                        best.0.algorithm.name(),
                        best.1.0
                    );
                }
                for (choice, (played, predicted)) in times {
                    let error = predicted / played - 1.0;
                    if error.abs() > 0.5 {
                        println!(
                            "{}: {} of {bytes}, {} x{}: played {played:.1} us, predicted \
                             {predicted:.1}",
                            world.name,
                            collective.name(),
                            choice.algorithm.name(),
                            choice.blocks
                        );
                    }
                    errors.push(error.abs());
                    of_machine.push((played, predicted));
                }
            }
        }
        println!("{}: rank correlation {:.4}", world.name, rank_correlation(&of_machine));
        all.extend(of_machine);
    }
    errors.sort_by(f64::total_cmp);
    let better = gains.iter().filter(|gain| **gain > 1.1).count();
    println!("{better} of {} choices are more than 10 % faster than the table's", gains.len());
    let correlation = rank_correlation(&all);
    println!(
        "{} plans: rank correlation {correlation:.4}, median error {:.1} %, nine of ten below \
         {:.1} %; of {choices} choices {hits} within 10 % of the best",
        all.len(),
        errors[errors.len() / 2] * 100.0,
        errors[errors.len() * 9 / 10] * 100.0
    );
    assert!(correlation > 0.99, "{correlation}");
    assert!(hits * 100 >= choices * 95, "{hits} of {choices}");
}

/// What a communicator takes where the model has a say is no more than 10 % slower than what the
/// table alone takes, and trees are taken where they win. If this fails, the model costs time.
#[test]
fn no_size_is_slower_for_the_model() {
    let moved = Moved { by_device: false, stores: true };
    let mut taken = 0;
    for machine in [("dgx1v", 8), ("dgx1v", 7), ("dgx1v", 6), ("dgx1v", 5), ("dgx1v", 3)] {
        let world = World::new(machine);
        for bytes in SIZES.into_iter().filter(|bytes| *bytes >= 64 << 10) {
            for registered in [false, true] {
                let candidates = world.candidates(Collective::AllReduce, bytes, registered);
                let (table, packed) = (&candidates[0], candidates.last().expect("trees"));
                assert_eq!(packed.algorithm.name(), "packed trees");
                let takes = world.model.choose(&[table.clone(), packed.clone()], moved) == 1;
                let [before, with] = [table, packed].map(|choice| world.times(choice).0);
                println!(
                    "{}, {bytes}, registered {registered}: table {} {before:.1} us, trees \
                     {with:.1} us, taken: {takes}",
                    world.name,
                    table.algorithm.name()
                );
                assert!(!takes || with <= 1.1 * before, "{}: {bytes}", world.name);
                taken += u32::from(takes);
            }
        }
    }
    assert!(taken >= 10, "trees are taken {taken} times");
}

/// The library's profiles say the same as those of this model, from which they come. If this fails,
/// two files tell two stories of one machine.
#[test]
fn profiles_of_both_models_are_alike() {
    for (library, timing) in [("v100", "ark-v100"), ("a100", "a100"), ("h100", "h100")] {
        let ours = Profile::built_in(library).expect("built in");
        let theirs = hwsim_timing::Profile::find(timing).expect("built in");
        let stores = theirs.stores.expect("it has stores");
        for (name, value) in [
            ("launch", theirs.block.launch.us()),
            ("op", theirs.block.op.us()),
            ("doorbell", theirs.block.doorbell.us()),
            ("copy", theirs.block.copy.gb_per_s()),
            ("reduce", theirs.block.reduce.gb_per_s()),
            ("memory", theirs.block.memory.gb_per_s()),
            ("submit", theirs.proxy.submit.us()),
            ("copy_setup", theirs.proxy.copy_setup.us()),
            ("signal", theirs.proxy.signal_latency.us()),
            ("decode", theirs.device.decode.us()),
            ("store_block", stores.block.gb_per_s()),
            ("store_latency", stores.latency.us()),
        ] {
            let seen = ours.value(name).expect("a constant");
            assert!((seen - value).abs() < 1e-6 * (1.0 + value), "{library}, {name}: {seen}");
        }
    }
}
