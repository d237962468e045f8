//! Helpers for tests: machines, and the library's plans as programs of the model.
#![allow(dead_code, reason = "each test file uses its own part")]

use hwsim_timing::{Edge, Graph, Lane, LinkKind, Machine, Network, Port, Profile, RankProgram};
use ringdove::plan::{Collective, CollectiveRequest, Draft, LaneKind, Limits, Pattern, Side};

pub fn profile(name: &str) -> Profile {
    Profile::find(name).expect("built in")
}

fn edge(a: usize, b: usize, kind: LinkKind, gb_per_s: f64) -> Edge {
    Edge { ends: [a, b], kind, count: 1, gb_per_s }
}

fn points(gpus: usize, others: &[&str]) -> Vec<String> {
    let mut points: Vec<String> = (0..gpus).map(|gpu| format!("gpu{gpu}")).collect();
    points.extend(others.iter().map(|name| (*name).to_owned()));
    points
}

/// GPUs below two PCI switches of one root complex.
pub fn pcie(gpus: usize) -> Graph {
    let mut edges: Vec<Edge> =
        (0..gpus).map(|gpu| edge(gpu, gpus + 1 + 2 * gpu / gpus, LinkKind::Pcie, 15.754)).collect();
    edges.push(edge(gpus + 1, gpus, LinkKind::Pcie, 15.754));
    edges.push(edge(gpus + 2, gpus, LinkKind::Pcie, 15.754));
    let points = points(gpus, &["cpu0", "switch0", "switch1"]);
    Graph { name: "two switches".into(), gpu_count: gpus, points, edges }
}

/// The same, and an NVSwitch that joins all GPUs.
pub fn nvswitch(gpus: usize) -> Graph {
    let mut graph = pcie(gpus);
    let switch = graph.points.len();
    graph.points.push("nvswitch".into());
    graph.edges.extend((0..gpus).map(|gpu| edge(gpu, switch, LinkKind::NvLink, 300.0)));
    Graph { name: "nvswitch".into(), ..graph }
}

pub fn machine(graph: &Graph, nodes: usize, profile: &Profile) -> Machine {
    Machine::new(graph, nodes, Network::default(), profile).expect("in range")
}

pub fn draft(pattern: Pattern, ranks: u32, bytes: u64, blocks: u32) -> Draft {
    draft_within(pattern, ranks, bytes, &Limits::new(blocks, 64 << 10, 4))
}

pub fn draft_within(pattern: Pattern, ranks: u32, bytes: u64, limits: &Limits) -> Draft {
    let request = CollectiveRequest::new(Collective::AllReduce, ranks, bytes);
    Draft::new(pattern, &request, limits).expect("a pattern that fits")
}

pub fn programs(draft: &Draft) -> Vec<RankProgram> {
    programs_with(draft, false)
}

/// `stores`: LL lanes are lanes of stores.
pub fn programs_with(draft: &Draft, stores: bool) -> Vec<RankProgram> {
    let rank = |rank| {
        let (encoded, table) = draft.encoded(rank);
        let port = |end: &ringdove::plan::LaneEnd| Port {
            lane: Lane {
                from: end.lane.from,
                to: end.lane.to,
                index: 2 * u32::from(end.lane.index) + u32::from(end.lane.kind == LaneKind::Direct),
                stores: end.lane.kind == LaneKind::Stores
                    || stores && end.lane.kind == LaneKind::LowLatency,
            },
            sends: end.side == Side::Send,
        };
        RankProgram { encoded, ports: table.iter().map(port).collect() }
    };
    (0..draft.rank_count()).map(rank).collect()
}
