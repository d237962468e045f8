//! Expert parallelism: dispatch and combine, compared with the reference bit for bit.
//!
//! Random tests print their seed; `RINGDOVE_TEST_SEED` gives them another.

#[path = "experts/fp8.rs"]
mod fp8;
#[path = "experts/graphs.rs"]
mod graphs;
#[path = "experts/input.rs"]
mod input;
#[path = "experts/layer.rs"]
mod layer;
#[path = "experts/loss.rs"]
mod loss;
#[path = "experts/recovery.rs"]
mod recovery;
#[path = "experts/sample.rs"]
mod sample;

mod hardware;

use half::{bf16, f16};
use hardware::engines::{ENGINE, on_engines};
use hardware::{
    World, on_machine, on_machine_env, on_machine_with, settings, try_join_with, wait_for_error,
};
use layer::{LOADS, Member, Step, members, step};
use ringdove::experts::{Config, Mode, OnLoss, Surplus};
use ringdove::{Communicator, DataType, Settings};

const MODES: [Mode; 2] = [Mode::LowLatency, Mode::Throughput];

/// `RINGDOVE_THROUGH_HOST=always` puts windows into host memory.
fn with_lanes() -> Settings {
    let through_host = Settings::from_env().unwrap().through_host;
    Settings { user_lanes: 2, through_host, ..settings() }
}

/// The seed of a random test.
fn seed() -> u64 {
    let given = std::env::var("RINGDOVE_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("RINGDOVE_TEST_SEED={seed}");
    seed
}

fn config(mode: Mode, ranks: u32, data_type: DataType) -> Config {
    Config {
        experts: 3 * ranks,
        top_k: 4,
        hidden: 1088,
        tokens_max: 37,
        surplus: Surplus::Refuse,
        data_type,
        fp8: None,
        mode,
        alignment: 1,
        lane: 0,
        on_loss: OnLoss::End,
    }
}

/// A random configuration for so many ranks.
fn random_config(
    mode: Mode,
    ranks: u32,
    data_type: DataType,
    random: &mut fastrand::Rng,
) -> Config {
    let experts = ranks * random.u32(1..=9);
    Config {
        experts,
        top_k: random.u32(1..=16.min(experts)),
        hidden: 8 * random.u32(1..=300),
        tokens_max: random.u32(1..=70),
        alignment: [1, 16][random.usize(..2)],
        ..config(mode, ranks, data_type)
    }
}

/// Steps under every load, in one group.
fn all_loads(members: &mut [Member<'_>], ranks: usize, random: &mut fastrand::Rng) {
    let config = *members[0].group.config();
    for load in LOADS {
        println!("{load:?} {config:?}");
        macro_rules! steps {
            ($type:ty, $index:ty) => {{
                let first = Step::random::<$type>(&config, ranks, load, random);
                step::<$type, $index>(members, &first, false);
                step::<$type, $index>(members, &first, true);
            }};
        }
        match (config.data_type, random.bool()) {
            (DataType::F32, true) => steps!(f32, i32),
            (DataType::F32, false) => steps!(f32, i64),
            (DataType::F16, true) => steps!(f16, i32),
            (DataType::F16, false) => steps!(f16, i64),
            (_, true) => steps!(bf16, i32),
            (_, false) => steps!(bf16, i64),
        }
    }
}

/// If this fails, a token reaches a wrong expert, a wrong place or not at all, a row is added in
/// another order or twice, or a step takes what belongs to another one.
fn equal_to_the_reference(communicators: &[Communicator], seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let ranks = communicators[0].rank_count();
    for mode in MODES {
        for data_type in [DataType::F32, DataType::F16, DataType::BF16] {
            let config = random_config(mode, ranks, data_type, &mut random);
            let mut members = members(communicators, &config);
            all_loads(&mut members, ranks as usize, &mut random);
        }
    }
}

#[test]
fn both_modes_equal_the_reference_on_one_node() {
    on_engines("dgx-a100", || {
        let seed = seed();
        for ranks in [2, 5, 8] {
            let world = World::with(ranks, &with_lanes());
            equal_to_the_reference(&world.communicators, seed);
            world.finish();
        }
    });
}

/// If this fails, places or counts of more experts than a block has threads are mixed up, or a
/// token that fills half of a warp with its choices.
#[test]
fn four_thousand_experts_equal_the_reference() {
    on_engines("dgx-a100", || {
        let world = World::with(4, &with_lanes());
        let mut random = fastrand::Rng::with_seed(seed());
        for mode in MODES {
            let few = Config {
                experts: 4096,
                top_k: 16,
                hidden: 24,
                tokens_max: 9,
                ..config(mode, 4, DataType::F16)
            };
            all_loads(&mut members(&world.communicators, &few), 4, &mut random);
        }
        world.finish();
    });
}

/// What rounding treats apart: values that are no numbers, those that the largest number of the
/// type is not far from, ties, and those that the smallest is not far from.
const EDGES: [f32; 12] = [
    f32::NAN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::MAX,
    -65504.0,
    1.0,
    1.007_812_5,
    -0.0,
    0.0,
    1.0e-38,
    6.0e-8,
    -1.0e-40,
];

fn edges_equal_the_reference() {
    let world = World::with(4, &with_lanes());
    let mut random = fastrand::Rng::with_seed(seed());
    for mode in MODES {
        for data_type in [DataType::F16, DataType::BF16] {
            let config = config(mode, 4, data_type);
            let mut members = members(&world.communicators, &config);
            macro_rules! steps {
                ($type:ty) => {{
                    let any = Step::random::<$type>(&config, 4, LOADS[0], &mut random);
                    let edges = any.with_elements::<$type>(&EDGES, &mut random);
                    step::<$type, i64>(&mut members, &edges, false);
                }};
            }
            match data_type {
                DataType::F16 => steps!(f16),
                _ => steps!(bf16),
            }
        }
    }
    world.finish();
}

/// If this fails, GPUs that convert to bf16 themselves give other bits than the rule: to nearest,
/// ties to even, what is too large to infinity, and every NaN to 0x7fff.
#[test]
fn edges_of_types_are_rounded_alike_on_newer_gpus() {
    on_machine("dgx-a100", edges_equal_the_reference);
}

/// As above, where the conversion is computed in integers.
#[test]
fn edges_of_types_are_rounded_alike_on_older_gpus() {
    on_machine("pcie4", edges_equal_the_reference);
}

/// As [`both_modes_equal_the_reference_on_one_node`], where some GPUs do not reach each other's
/// memory: windows lie in pinned host memory.
#[test]
fn both_modes_equal_the_reference_through_host_memory() {
    on_machine("dgx1v", || {
        let seed = seed();
        for ranks in [6, 8] {
            let world = World::with(ranks, &with_lanes());
            equal_to_the_reference(&world.communicators, seed);
            world.finish();
        }
    });
}

/// As above, in two processes, which map each other's windows.
#[test]
fn both_modes_equal_the_reference_between_processes_through_host_memory() {
    on_machine_env("dgx1v", &["--procs", "2"], &[], || {
        let ranks = try_join_with(4, with_lanes()).unwrap();
        equal_to_the_reference(&ranks, 20_261_129);
        finish(&ranks);
    });
}

/// As above, on two nodes, whose adapters move rows from host memory to host memory.
#[test]
fn both_modes_equal_the_reference_across_nodes_through_host_memory() {
    on_machine_env(
        "dgx1v x 2",
        &["--procs", "2"],
        &[("RINGDOVE_THROUGH_HOST", "always")],
        over_nodes,
    );
}

/// As [`both_modes_equal_the_reference_on_one_node`], where engines move everything although GPUs
/// reach each other.
#[test]
fn both_modes_equal_the_reference_without_stores() {
    on_machine_env("dgx-a100", &[], &[("RINGDOVE_STORES", "never")], || {
        let stores = Settings::from_env().unwrap().stores;
        let world = World::with(4, &Settings { stores, ..with_lanes() });
        equal_to_the_reference(&world.communicators, seed());
        world.finish();
    });
}

fn over_nodes() {
    let ranks = try_join_with(2, with_lanes()).unwrap();
    equal_to_the_reference(&ranks, 20_261_124);
    finish(&ranks);
}

/// All ranks of a job leave together.
fn finish(ranks: &[Communicator]) {
    ranks.iter().for_each(|rank| rank.finalize().unwrap());
    let streams: Vec<_> = ranks.iter().map(|rank| rank.context().new_stream().unwrap()).collect();
    ranks.iter().zip(&streams).for_each(|(rank, stream)| rank.barrier(stream).unwrap());
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
}

/// As above, where stores and adapters serve one group.
#[test]
fn both_modes_equal_the_reference_across_nodes() {
    on_machine_with("dgx-a100 x 2", &["--procs", "2"], over_nodes);
}

/// As above, on four nodes: 16 ranks, of which each has engines to 12 and stores to 3. A few steps
/// of each mode, for each rank compares all that it gets.
#[test]
fn sixteen_ranks_on_four_nodes_equal_the_reference() {
    on_machine_with("pcie4 x 4", &["--procs", "4"], || {
        let ranks = try_join_with(4, with_lanes()).unwrap();
        let mut random = fastrand::Rng::with_seed(20_261_125);
        for mode in MODES {
            let config = Config {
                experts: 32,
                top_k: 6,
                hidden: 8 * random.u32(1..=40),
                tokens_max: 24,
                ..config(mode, 16, DataType::BF16)
            };
            let mut members = members(&ranks, &config);
            let relayed = if mode == Mode::Throughput { 4 } else { 0 };
            assert_eq!(members[0].group.node_ranks(), relayed, "who passes rows on");
            all_loads(&mut members, 16, &mut random);
        }
        finish(&ranks);
    });
}

/// As above, with 64 ranks that share the GPUs of one node.
#[test]
fn sixty_four_ranks_equal_the_reference() {
    on_machine("dgx-a100", || {
        let world = World::with(64, &with_lanes());
        let mut random = fastrand::Rng::with_seed(seed());
        for mode in MODES {
            let config = Config {
                experts: 128,
                top_k: 8,
                hidden: 64,
                tokens_max: 6,
                ..config(mode, 64, DataType::F16)
            };
            let mut members = members(&world.communicators, &config);
            for load in [layer::Load::Zipf, layer::Load::EmptyRanks] {
                let first = Step::random::<f16>(&config, 64, load, &mut random);
                step::<f16, i64>(&mut members, &first, false);
            }
        }
        world.finish();
    });
}

/// As above, from one device engine to another.
#[test]
fn both_modes_equal_the_reference_across_device_engines() {
    on_machine_env("ark x 2", &["--procs", "2"], &[(ENGINE, "device")], over_nodes);
}
