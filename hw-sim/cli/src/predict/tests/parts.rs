//! Packed trees on parts of a mesh, in the model: what of the optimum's factor over a ring they
//! reach.

use super::super::collective::Drafted;
use super::super::machine::graph;
use super::super::{Operation, Scene};
use super::a100::parse;
use super::low_latency::request;
use hwsim_machine::description::Description;
use hwsim_timing::{Machine, Network, simulate};
use ringdove::communicator::pack_forest;
use ringdove::plan::{Collective, CollectiveRequest, Draft, Limits, Pattern, RingOrder};
use ringdove::topology::graph::{CapacityGraph, NodeId};
use ringdove::topology::packing::{Rate, Roots, pack};
use ringdove::topology::ranks::{RankGpu, order_of_nodes};
use std::sync::Arc;

/// GPUs of a machine, and the machine with these GPUs first.
pub(super) struct Part {
    scene: Scene,
    machine: Machine,
    links: CapacityGraph,
    gpus: Vec<RankGpu>,
}

impl Part {
    pub fn new(name: &str, numbers: &[u32]) -> Self {
        let description = Description::find(name).expect("built in");
        let Operation::AllReduce(arguments) = parse(&format!("all-reduce -m {name}")).operation
        else {
            panic!("an all-reduce")
        };
        let scene = Scene::of(&description, &arguments.common).expect("built in");
        let mut graph = graph(&description);
        let others = (0..graph.gpu_count as u32).filter(|gpu| !numbers.contains(gpu));
        let order: Vec<u32> = numbers.iter().copied().chain(others).collect();
        let place =
            |point: usize| order.iter().position(|gpu| *gpu as usize == point).unwrap_or(point);
        graph.edges.iter_mut().for_each(|edge| edge.ends = edge.ends.map(place));
        let machine =
            Machine::new(&graph, 1, Network::default(), &scene.profile).expect("as it was");
        let nodes: Vec<_> = numbers.iter().map(|number| NodeId(*number)).collect();
        let links = scene.nvlinks.allocation(&nodes).expect("GPUs of the machine");
        let gpus = numbers.iter().map(|number| scene.gpus[*number as usize].clone()).collect();
        Self { scene, machine, links, gpus }
    }

    fn ranks(&self) -> u32 {
        self.gpus.len() as u32
    }

    fn request(&self, collective: Collective, bytes: u64) -> CollectiveRequest {
        let parts = match collective {
            Collective::AllGather | Collective::ReduceScatter => u64::from(self.ranks()),
            _ => 1,
        };
        request(collective, self.ranks(), bytes / parts / 64 * 64)
    }

    /// GB/s of all data.
    fn rate(&self, draft: &Draft, bytes: u64) -> f64 {
        let Operation::AllReduce(arguments) = parse("all-reduce").operation else {
            panic!("an all-reduce")
        };
        let mut setup = self.scene.setup(&arguments.common);
        setup.machine = &self.machine;
        let programs = Drafted { draft, stores: true, per_node: 8 };
        let end = simulate(setup, &programs).expect("it ends").end;
        bytes as f64 / end.seconds() / 1e9
    }

    /// Around the ring of all ranks by the proxy, in the order of ranks or of links.
    fn around(&self, collective: Collective, bytes: u64, by_links: bool) -> f64 {
        let order = order_of_nodes(&self.gpus, self.ranks(), true);
        let order = order.as_deref().and_then(RingOrder::new).filter(|_| by_links);
        let limits = Limits { order, ..Limits::new(4, 1 << 20, 4) };
        let draft = Draft::new(Pattern::Selected, &self.request(collective, bytes), &limits);
        self.rate(&draft.expect("a plan"), bytes)
    }

    /// Along packed trees in so many blocks.
    fn packed(&self, collective: Collective, bytes: u64, blocks: u32) -> Option<f64> {
        let forest = pack_forest(&self.links, collective.root(), blocks).ok()?;
        let limits = Limits { store_blocks: blocks, stores: true, ..Limits::new(4, 1 << 20, 4) };
        let draft =
            Draft::packed(&self.request(collective, bytes), &limits, &Arc::new(forest)).ok()?;
        Some(self.rate(&draft, bytes))
    }

    /// The optimum, GB/s of all data, at the rates that the profile's links reach.
    fn optimum(&self, collective: Collective) -> f64 {
        let roots = match collective.root() {
            Some(root) => Roots::one(&self.links, NodeId(root)),
            None => Roots::all(&self.links),
        };
        let optimum: Rate = pack(&self.links, &roots, None).expect("connected").optimum;
        let halves = if collective == Collective::AllReduce { 2.0 } else { 1.0 };
        *optimum.numer() as f64 / *optimum.denom() as f64 / 1e3 * 0.8 / halves
    }
}

#[test]
fn explore() {
    let bytes = 256 << 20;
    for gpus in [
        vec![0, 1, 2, 3, 4, 5, 6, 7],
        vec![0, 1, 2],
        vec![0, 1, 2, 3],
        vec![1, 2, 3, 4, 5, 6, 7],
        vec![0, 3, 4],
        vec![0, 1, 4, 5, 6],
    ] {
        let part = Part::new("dgx1v", &gpus);
        for collective in [
            Collective::AllGather,
            Collective::ReduceScatter,
            Collective::AllReduce,
            Collective::Broadcast { root: 1 },
            Collective::Reduce { root: 1 },
        ] {
            let optimum = part.optimum(collective);
            let around = [false, true].map(|by_links| part.around(collective, bytes, by_links));
            print!("{gpus:?} {}: optimum {optimum:.1}, rings {around:.1?};", collective.name());
            for blocks in [32, 48, 64, 96, 144, 192, 288] {
                if let Some(rate) = part.packed(collective, bytes, blocks) {
                    print!(" {blocks}: {:.3}", rate / optimum);
                }
            }
            println!();
        }
    }
}
