//! Packed trees in the model: how much of what their optimum promises over a ring they reach.

use super::super::collective::Drafted;
use super::super::{Operation, Scene};
use super::a100::parse;
use super::low_latency::request;
use hwsim_timing::{Setup, simulate};
use ringdove::communicator::pack_forest;
use ringdove::plan::{Collective, CollectiveRequest, Draft, Limits, Pattern};
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
        (Collective::AllReduce, all / 2.0, pcie / others / 2.0, 0.59, 0.78),
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
