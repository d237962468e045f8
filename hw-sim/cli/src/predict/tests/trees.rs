//! Packed trees in the model: how much of what their optimum promises over a ring they reach.

use super::super::collective::Drafted;
use super::super::{Operation, Scene};
use super::a100::parse;
use super::low_latency::request;
use super::parts::{Part, nodes_with_rails};
use hwsim_timing::{Setup, simulate};
use ringdove::ReduceOp;
use ringdove::communicator::pack_forest;
use ringdove::plan::{
    Collective, CollectiveRequest, Draft, Limits, Pattern, build, select_packed, verify,
};
use std::sync::Arc;

const RANKS: u32 = 8;
const BYTES: u64 = 256 << 20;

/// A collective of eight ranks: all data of it, and GB/s that its plan moves.
struct Modelled<'a> {
    scene: &'a Scene,
    collective: Collective,
}

impl Modelled<'_> {
    fn request(&self) -> CollectiveRequest {
        let parts = match self.collective {
            Collective::AllGather | Collective::ReduceScatter => u64::from(RANKS),
            _ => 1,
        };
        request(self.collective, RANKS, BYTES / parts)
    }

    fn rate(&self, draft: &Draft) -> f64 {
        let Operation::AllReduce(arguments) = parse("all-reduce --machine dgx1v").operation else {
            panic!("an all-reduce")
        };
        let setup: Setup<'_> = self.scene.setup(&arguments.common);
        let programs = Drafted { draft, stores: true, per_node: RANKS };
        let end = simulate(setup, &programs).expect("it ends").end;
        BYTES as f64 / end.seconds() / 1e9
    }

    /// Along the ring or chain of all ranks, in their order, by the proxy.
    fn around(&self) -> f64 {
        let limits = Limits::new(4, 1 << 20, 4);
        self.rate(&Draft::new(Pattern::Selected, &self.request(), &limits).expect("a plan"))
    }

    /// Along packed trees in so many blocks.
    fn packed(&self, blocks: u32) -> f64 {
        let root = self.collective.root();
        let forest = pack_forest(&self.scene.nvlinks, root, blocks).expect("trees");
        let limits = Limits { store_blocks: blocks, stores: true, ..Limits::new(4, 1 << 20, 4) };
        let draft = Draft::packed(&self.request(), &limits, &Arc::new(forest));
        self.rate(&draft.expect("a plan"))
    }
}

/// What is modelled here holds what it promises: sums and others; on one node, and on two with
/// rails. If this fails, rates of this model are those of plans that give wrong results.
#[test]
fn plans_along_packed_trees_are_proved() {
    let parts: [(&[u32], u32); 3] =
        [(&[0, 1, 2, 3, 4, 5, 6, 7], 8), (&[1, 3, 4, 5, 7], 5), (&[], 8)];
    let mut proved = 0;
    for (gpus, per_node) in parts {
        let part = Part::new("dgx1v", gpus);
        let (graph, ranks) = match gpus {
            [] => (nodes_with_rails(2, 300_000, 25_000), 16),
            _ => (part.links, per_node),
        };
        for collective in [
            Collective::AllReduce,
            Collective::AllGather,
            Collective::ReduceScatter,
            Collective::Broadcast { root: 1 },
            Collective::Reduce { root: 1 },
        ] {
            let forest = Arc::new(pack_forest(&graph, collective.root(), 32).expect("trees"));
            let ranks_per_node = if ranks == per_node { 0 } else { per_node };
            let limits = Limits {
                store_blocks: 32,
                stores: true,
                ranks_per_node,
                ..Limits::new(4, 1 << 20, 4)
            };
            for (reduce_op, in_place) in
                [(ReduceOp::Sum, false), (ReduceOp::Sum, true), (ReduceOp::Max, false)]
            {
                let plain = request(collective, ranks, 200_000);
                let request = CollectiveRequest { reduce_op, in_place, ..plain };
                let choice = select_packed(&request, &limits, &forest).expect("a plan");
                let proof = verify(build(&choice), &request.promise());
                proof.unwrap_or_else(|error| panic!("{request:?}: {error}"));
                proved += 1;
            }
        }
    }
    assert_eq!(proved, 45);
}

/// On the mesh of V100s a ring in the order of ranks crosses PCIe, at 13.14 GB/s in the profile.
/// An NVLink carries 20 GB/s there; the optimum is 48/7 of them for all-gathers and, from one root,
/// six (ForestColl, and Edmonds' theorem). The bars are what the plans reach of that factor, less
/// some: `src/plan/README.md` says why it is not all.
#[test]
fn trees_beat_rings_by_a_part_of_what_their_optimum_promises() {
    let Operation::AllReduce(arguments) = parse("all-reduce --machine dgx1v").operation else {
        panic!("an all-reduce")
    };
    let scene = Scene::new(&arguments.common).expect("built in");
    let (pcie, link, others) = (13.14, 20.0, 7.0 / 8.0);
    let (all, one) = (48.0 / 7.0 * link, 6.0 * link);
    let cases = [
        (Collective::AllGather, all, pcie / others, 0.63, 0.75),
        (Collective::ReduceScatter, all, pcie / others, 0.72, 0.84),
        (Collective::AllReduce, all / 2.0, pcie / others / 2.0, 0.90, 0.90),
        (Collective::Broadcast { root: 3 }, one, pcie, 0.47, 0.49),
        (Collective::Reduce { root: 3 }, one, pcie, 0.64, 0.74),
    ];
    for (collective, optimum, ring, bar_32, bar_48) in cases {
        let modelled = Modelled { scene: &scene, collective };
        let (around, promised) = (modelled.around(), optimum / ring);
        for (blocks, bar) in [(32, bar_32), (48, bar_48)] {
            let packed = modelled.packed(blocks);
            let reached = packed / around / promised;
            println!(
                "{}: {blocks} blocks {packed:.1} GB/s, ring {around:.1}, promised {promised:.2} \
                 times, reached {:.2} of that",
                collective.name(),
                reached
            );
            assert!(reached >= bar, "{collective:?} in {blocks} blocks: {reached}");
        }
    }
}
