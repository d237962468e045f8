//! Combinations of ranks, nodes, engines, stores and loads: a sample with a seed, and the largest.

use super::layer::{Load, Step, members, step};
use super::{MODES, config, finish, seed, with_lanes};
use crate::hardware::engines::ENGINE;
use crate::hardware::{on_machine_env, try_join_with};
use half::{bf16, f16};
use ringdove::experts::Config;
use ringdove::{DataType, Settings};

/// What the processes of one machine are told.
const COMBINATION: &str = "RINGDOVE_TEST_EXPERTS";
/// How many combinations a run takes. CI's share of time bounds them.
const SAMPLES: usize = 4;
/// The most ranks of a combination.
const RANKS_MAX: u32 = 64;
/// The most ranks of a combination that is drawn: 64 are tried in every run.
const DRAWN_MAX: u32 = 24;

const LOADS: [Load; 5] =
    [Load::Uniform, Load::Zipf, Load::AllToOne, Load::EmptyRanks, Load::RandomNone];

/// How bytes reach other ranks of a node.
const WAYS: [&str; 3] = ["stores", "proxy", "device"];

#[derive(Clone, Copy, Debug)]
struct Combination {
    nodes: u32,
    ranks_per_node: u32,
    way: usize,
    seed: u64,
}

impl Combination {
    fn random(random: &mut fastrand::Rng) -> Self {
        let nodes = random.u32(1..=4);
        let least = if nodes == 1 { 2 } else { 1 };
        let ranks_per_node = random.u32(least..=DRAWN_MAX / nodes);
        Self { nodes, ranks_per_node, way: random.usize(..WAYS.len()), seed: random.u64(..) }
    }

    fn text(&self) -> String {
        let Self { nodes, ranks_per_node, way, seed } = self;
        format!("{nodes},{ranks_per_node},{way},{seed}")
    }

    fn parse(text: &str) -> Self {
        let numbers: Vec<u64> = text.split(',').map(|part| part.parse().unwrap()).collect();
        let [nodes, ranks_per_node, way, seed] = numbers[..] else { panic!("{text}") };
        Self { nodes: nodes as u32, ranks_per_node: ranks_per_node as u32, way: way as usize, seed }
    }

    /// Runs it on virtual machines of its own, one process on each node.
    fn run(&self) {
        let way = WAYS[self.way];
        println!("{self:?}, {way}");
        let machine = if way == "device" { "ark" } else { "pcie4" };
        let machine = match self.nodes {
            1 => machine.to_owned(),
            nodes => format!("{machine} x {nodes}"),
        };
        let text = self.text();
        let mut variables = vec![(COMBINATION, text.as_str())];
        variables.extend(match way {
            "proxy" => Some(("RINGDOVE_STORES", "never")),
            "device" => Some((ENGINE, "device")),
            _ => None,
        });
        let processes = self.nodes.to_string();
        on_machine_env(&machine, &["--procs", &processes], &variables, || {
            unreachable!("the combination runs in other processes")
        });
    }

    /// One process's part: a step of each mode under every load, all of which it compares.
    fn take_part(&self) {
        let stores = Settings::from_env().unwrap().stores;
        let settings = Settings { stores, ..with_lanes() };
        let communicators = try_join_with(self.ranks_per_node, settings).unwrap();
        let ranks = self.nodes * self.ranks_per_node;
        let mut random = fastrand::Rng::with_seed(self.seed);
        for mode in MODES {
            let experts = ranks * random.u32(1..=3);
            let data_type = [DataType::F32, DataType::F16, DataType::BF16][random.usize(..3)];
            let config = Config {
                experts,
                top_k: random.u32(1..=8.min(experts)),
                hidden: 8 * random.u32(1..=16),
                tokens_max: random.u32(1..=6),
                ..config(mode, ranks, data_type)
            };
            let mut members = members(&communicators, &config);
            for load in LOADS {
                println!("{load:?} {config:?}");
                macro_rules! step {
                    ($type:ty, $index:ty) => {{
                        let bring =
                            Step::random::<$type>(&config, ranks as usize, load, &mut random);
                        step::<$type, $index>(&mut members, &bring, false);
                    }};
                }
                match (data_type, random.bool()) {
                    (DataType::F32, true) => step!(f32, i32),
                    (DataType::F32, false) => step!(f32, i64),
                    (DataType::F16, _) => step!(f16, i32),
                    _ => step!(bf16, i64),
                }
            }
        }
        finish(&communicators);
    }
}

/// Is this a process of a combination? Then it takes its part.
fn takes_part() -> bool {
    let text = std::env::var(COMBINATION);
    text.map(|text| Combination::parse(&text).take_part()).is_ok()
}

/// If this fails, some number of ranks on some number of nodes, with some way between them, gives
/// results that are not the reference's.
#[test]
fn a_sample_of_combinations_equals_the_reference() {
    if takes_part() {
        return;
    }
    let mut random = fastrand::Rng::with_seed(seed());
    (0..SAMPLES).for_each(|_| Combination::random(&mut random).run());
}

/// As above, with the most ranks on the most nodes, by stores and proxies.
#[test]
fn sixty_four_ranks_on_four_nodes_equal_the_reference() {
    if takes_part() {
        return;
    }
    let seed = seed();
    Combination { nodes: 4, ranks_per_node: RANKS_MAX / 4, way: 0, seed }.run();
}
