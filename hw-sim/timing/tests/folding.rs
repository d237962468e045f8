//! Equivalent nodes are played once: what comes out is what the whole world gives.

mod worlds;

use hwsim_timing::{Engine, Leaf, Machine, Network, Outcome, Profile, Setup, Time, simulate};
use proptest::prelude::*;
use ringdove::plan::{Limits, Pattern};
use worlds::{draft_within, nvswitch, pcie, profile, programs};

#[derive(Clone, Debug)]
struct Case {
    pattern: Pattern,
    nodes: usize,
    gpus: usize,
    bytes: u64,
    blocks: u32,
    engine: Engine,
    leaf: Option<Leaf>,
    has_nvswitch: bool,
    profile: &'static str,
}

impl Case {
    fn machine(&self, profile: &Profile) -> Machine {
        let graph = if self.has_nvswitch { nvswitch(self.gpus) } else { pcie(self.gpus) };
        let network = Network { adapter_gb_per_s: None, leaf: self.leaf };
        Machine::new(&graph, self.nodes, network, profile).expect("in range")
    }

    fn run(&self, folds: bool) -> Outcome {
        let profile = profile(self.profile);
        let machine = self.machine(&profile);
        let ranks_per_node = self.gpus as u32;
        let limits = Limits { ranks_per_node, ..Limits::new(self.blocks, 64 << 10, 4) };
        let ranks = (self.nodes * self.gpus) as u32;
        let draft = draft_within(self.pattern, ranks, self.bytes, &limits);
        let setup = Setup { folds, ..Setup::new(&machine, &profile, self.engine) };
        simulate(setup, &programs(&draft)).expect("a plan that ends")
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let patterns = [Pattern::Selected, Pattern::TwoShot, Pattern::Halving].to_vec();
    let engines = Engine::ALL.map(|(_, engine)| engine).to_vec();
    let leaves = (prop::sample::select(vec![0usize, 1, 2, 4]), 1u32..4);
    let machines = (1u32..4, 0u32..3, leaves, any::<bool>());
    let plans = (prop::sample::select(patterns), 1u32..4, any::<bool>(), 1u64..100_000);
    let engines = (prop::sample::select(engines), any::<bool>());
    (machines, plans, engines).prop_map(|(machine, plan, (engine, is_ark))| {
        let (nodes, gpus, (leaf_nodes, oversubscription), has_nvswitch) = machine;
        let (pattern, blocks, is_even, count) = plan;
        let (nodes, gpus) = (1usize << nodes, 1usize << gpus);
        let pieces = (nodes * gpus) as u64 * u64::from(blocks) * 16;
        let oversubscription = f64::from(oversubscription);
        Case {
            // More than a block has ports for.
            pattern: match pattern {
                Pattern::TwoShot if nodes * gpus > 16 => Pattern::Halving,
                pattern => pattern,
            },
            nodes,
            gpus,
            bytes: if is_even { (4 * count).next_multiple_of(pieces) } else { 4 * count },
            blocks,
            engine,
            leaf: (leaf_nodes > 0).then_some(Leaf { nodes: leaf_nodes, oversubscription }),
            has_nvswitch,
            // Without the section for stores.
            profile: if is_ark && engine != Engine::Stores { "what-if-400g" } else { "a100" },
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// If this fails, a large world gets another time than it would if every rank were played.
    #[test]
    fn a_folded_world_gives_what_the_whole_one_gives(case in cases()) {
        let (whole, folded) = (case.run(false), case.run(true));
        // Below leaf switches, events of one picosecond may have another order in a folded world.
        let tolerance = if case.leaf.is_some() { 500 } else { u64::MAX };
        let are_equal = |whole: Time, folded: Time| {
            whole.0.abs_diff(folded.0) <= whole.0 / tolerance
        };
        prop_assert!(are_equal(whole.end, folded.end), "{:?} {:?}", whole.end, folded.end);
        prop_assert_eq!(whole.link_bytes, folded.link_bytes);
        prop_assert_eq!(whole.ranks_played, case.nodes * case.gpus);
        prop_assert!(folded.ranks_played <= whole.ranks_played);
        let longest = |list: &[Time]| list.iter().copied().max().unwrap_or(Time::ZERO);
        let busy = [
            (longest(&whole.busy.issue), longest(&folded.busy.issue)),
            (longest(&whole.busy.blocks), longest(&folded.busy.blocks)),
        ];
        prop_assert!(busy.iter().all(|(whole, folded)| are_equal(*whole, *folded)), "{busy:?}");
    }
}

/// If this fails, nothing is folded, or too much: the time of a large world is then either out of
/// reach or wrong.
#[test]
fn equivalent_nodes_fold_and_a_clipped_piece_prevents_it() {
    let even = Case {
        pattern: Pattern::Halving,
        nodes: 16,
        gpus: 2,
        bytes: 32 * 2 * 16 * 10,
        blocks: 2,
        engine: Engine::Proxy,
        leaf: None,
        has_nvswitch: true,
        profile: "a100",
    };
    assert_eq!(even.run(true).ranks_played, 2);
    let below_leaves =
        Case { leaf: Some(Leaf { nodes: 4, oversubscription: 2.0 }), ..even.clone() };
    assert_eq!(below_leaves.run(true).ranks_played, 8, "nodes of one leaf share its uplink");
    // Every rank is some exchange away from the one whose last piece is short.
    let clipped = Case { bytes: even.bytes - 16, ..even.clone() };
    assert_eq!(clipped.run(true).ranks_played, 32);
    // A ring over the nodes has no first node.
    let ring = Case { pattern: Pattern::Selected, ..even };
    assert_eq!(ring.run(true).ranks_played, 2);
}
