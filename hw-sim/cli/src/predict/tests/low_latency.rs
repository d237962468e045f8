//! Low-latency messages win where selection takes them: modelled, on every built-in machine, and
//! with both engines of the library; with the proxy, by stores, too.

use super::super::arguments::{AllReduceArguments, PredictArguments};
use super::super::collective::Drafted;
use super::super::{Operation, Scene};
use super::a100::parse;
use hwsim_machine::description::Description;
use hwsim_timing::simulate;
use ringdove::Settings;
use ringdove::plan::{Algorithm, Collective, CollectiveRequest, Draft, Limits, Pattern, select};

/// Ways of LL messages: the engine, and whether GPU threads store them.
const WAYS: [(&str, bool); 3] = [("proxy", true), ("proxy", false), ("device", false)];

fn limits(low_latency_bytes: u32, stores: bool) -> Limits {
    let library = Settings::default();
    let one_node = Limits::new(library.blocks_max, library.slot_bytes, library.slot_count);
    Limits { low_latency_bytes, stores, ..one_node }
}

pub(super) fn request(collective: Collective, rank_count: u32, bytes: u64) -> CollectiveRequest {
    CollectiveRequest::new(collective, rank_count, bytes)
}

/// Modelled µs of what selection takes.
fn time(
    scene: &Scene,
    arguments: &AllReduceArguments,
    request: &CollectiveRequest,
    limits: &Limits,
) -> f64 {
    let draft = Draft::new(Pattern::Selected, request, limits).expect("a plan");
    let programs = Drafted {
        draft: &draft,
        stores: limits.stores,
        per_node: scene.machine.gpus_per_node() as u32,
    };
    let outcome = simulate(scene.setup(&arguments.common), &programs).expect("it ends");
    outcome.end.us()
}

/// What the model says of one request.
struct Outcome {
    text: String,
    low_latency_wins: bool,
}

/// Every request for which selection takes LL messages, on one machine with one engine. By engines,
/// an all-reduce is left out: its limit is the setting, which was measured on virtual GPUs.
fn outcomes(machine: &str, engine: &str, stores: bool) -> Vec<(Collective, Outcome)> {
    let line = parse(&format!("all-reduce -m {machine} --engine {engine}")).operation;
    let Operation::AllReduce(arguments) = &line else { panic!("an all-reduce was asked for") };
    let scene = Scene::new(&arguments.common).expect("built in");
    let gpus = scene.machine.gpus_per_node() as u32;
    let (with, without) = (limits(16 << 10, stores), limits(0, stores));
    let mut outcomes = Vec::new();
    for ranks in 2..=gpus.min(8) {
        let all = Collective::all(ranks - 1).into_iter();
        for collective in all.filter(|it| stores || *it != Collective::AllReduce) {
            let sizes = [
                4,
                64,
                128,
                256,
                508,
                512,
                768,
                1024,
                1536,
                2048,
                4096,
                6144,
                8192,
                12 << 10,
                16 << 10,
            ];
            let sizes = if collective == Collective::Barrier { &[0][..] } else { &sizes[..] };
            for &bytes in sizes {
                let request = request(collective, ranks, bytes);
                let choice = select(&request, &with).expect("a plan");
                if choice.algorithm != Algorithm::AllPairs {
                    continue;
                }
                let [ll, slots] =
                    [with, without].map(|limits| time(&scene, arguments, &request, &limits));
                let name = collective.name();
                let text = format!(
                    "{machine}, {engine}, stores {stores}, {ranks} ranks, {name}, {bytes} bytes: \
                     modelled {ll:.1} µs by LL messages, {slots:.1} µs through slots"
                );
                outcomes.push((collective, Outcome { text, low_latency_wins: ll < slots }));
            }
        }
    }
    outcomes
}

/// If this fails, selection takes LL messages where the plan in slots is quicker, or nowhere.
#[test]
fn low_latency_messages_win_where_selection_takes_them() {
    let mut taken = std::collections::BTreeMap::new();
    let mut lost = Vec::new();
    let machines = Description::built_in_names().filter(|name| *name != "one-gpu");
    for (machine, (engine, stores)) in machines.flat_map(|name| WAYS.map(|way| (name, way))) {
        for (collective, Outcome { text, low_latency_wins }) in outcomes(machine, engine, stores) {
            println!("{text}");
            *taken.entry((stores, collective.name())).or_insert(0) += 1;
            if !low_latency_wins {
                lost.push(text);
            }
        }
    }
    println!("places where LL messages are taken: {taken:?}");
    assert!(lost.is_empty(), "slots are quicker:\n  {}", lost.join("\n  "));
    assert_eq!(taken.len(), 9 + 8, "every collective goes by LL messages somewhere, both ways");
}

/// If this fails, selection takes lanes of stores for an all-reduce where LL messages or the proxy
/// are quicker by more than it says.
#[test]
fn lanes_of_stores_win_where_selection_takes_them() {
    let (mut taken, mut lost) = (0, Vec::new());
    for machine in Description::built_in_names().filter(|name| *name != "one-gpu") {
        let line = parse(&format!("all-reduce -m {machine} --engine proxy")).operation;
        let Operation::AllReduce(arguments) = &line else { panic!("an all-reduce was asked for") };
        let scene = Scene::new(&arguments.common).expect("built in");
        for ranks in 2..=scene.machine.gpus_per_node().min(8) as u32 {
            let nvlink = scene.is_joined(ranks);
            let store_blocks = arguments.store_blocks(true);
            for bytes in (9..=26).map(|log2| 1 << log2) {
                let request = request(Collective::AllReduce, ranks, bytes);
                let time = |request, limits: Limits| time(&scene, arguments, request, &limits);
                let with_slots = Limits { store_blocks, nvlink, ..limits(16 << 10, true) };
                if select(&request, &with_slots).expect("a plan").stores {
                    taken += 1;
                    let stores = time(&request, with_slots);
                    let direct = CollectiveRequest { registered: true, ..request };
                    let others = [
                        time(&request, limits(256 << 10, false)),
                        time(&request, limits(0, false)),
                        time(&direct, limits(0, false)),
                    ];
                    // Two or three V100s are joined by a link or two.
                    let most = match nvlink {
                        true if bytes > 4 << 20 => 1.14,
                        false if bytes > 512 << 10 => 1.42,
                        _ => 1.0,
                    };
                    let text = format!(
                        "{machine}, {ranks} ranks, {bytes} bytes: {stores} µs by stores, {others:?}"
                    );
                    println!("{text}");
                    let wins = others.iter().all(|other| stores <= most * other);
                    lost.extend((!wins).then_some(text));
                }
            }
        }
    }
    assert!(lost.is_empty(), "stores lose:\n  {}", lost.join("\n  "));
    assert!(taken > 100, "{taken}");
}

/// Ways of LL messages where there are several nodes.
const WAYS_APART: [(&str, bool); 2] = [("proxy", true), ("device", false)];

/// Clusters of up to 8 GPUs: machine, nodes, GPUs of each, and whether NVLink joins these.
const CLUSTERS: [(&str, u32, usize, bool); 14] = [
    ("one-gpu", 2, 1, false),
    ("one-gpu", 3, 1, false),
    ("one-gpu", 4, 1, false),
    ("one-gpu", 8, 1, false),
    ("pcie4", 2, 4, false),
    ("pcie4", 2, 2, false),
    ("pcie4", 2, 3, false),
    ("pcie4", 4, 2, false),
    ("dgx-a100", 2, 4, true),
    ("dgx-a100", 2, 2, true),
    ("dgx-a100", 4, 2, true),
    ("dgx-h100", 2, 4, true),
    ("dgx1v", 2, 4, true),
    ("ark", 2, 4, false),
];

/// The first GPUs of each node of a cluster.
fn part(machine: &str, nodes: u32, gpus: usize, engine: &str) -> (Scene, PredictArguments) {
    let line = format!("all-reduce -m {machine} --nodes {nodes} --engine {engine}");
    let line = parse(&line);
    let Operation::AllReduce(arguments) = &line.operation else { panic!("an all-reduce") };
    let mut description = Description::find(&arguments.common.machine).expect("built in");
    description.gpus.truncate(gpus);
    (Scene::of(&description, &arguments.common).expect("a cluster"), line)
}

/// If this fails, selection takes LL messages between nodes where the plan in slots is quicker.
#[test]
fn low_latency_messages_win_between_nodes_where_selection_takes_them() {
    let mut taken = std::collections::BTreeMap::new();
    let mut lost = Vec::new();
    for ((machine, nodes, gpus, nvlink), (engine, stores)) in
        CLUSTERS.into_iter().flat_map(|cluster| WAYS_APART.map(|way| (cluster, way)))
    {
        let (scene, line) = part(machine, nodes, gpus, engine);
        let Operation::AllReduce(arguments) = &line.operation else { panic!("an all-reduce") };
        let ranks = nodes * gpus as u32;
        let without = Limits {
            ranks_per_node: gpus as u32,
            nvlink,
            store_blocks: if nvlink && stores && gpus > 1 { 32 } else { 0 },
            ..limits(0, stores)
        };
        let with = Limits { low_latency_bytes: 16 << 10, ..without };
        for collective in Collective::all(ranks - 1) {
            let sizes = [16, 256, 512, 1024, 2048, 4096, 8192, 16 << 10];
            let sizes = if collective == Collective::Barrier { &[0][..] } else { &sizes[..] };
            for &bytes in sizes {
                let request = request(collective, ranks, bytes);
                if select(&request, &with).expect("a plan").algorithm != Algorithm::AllPairs {
                    continue;
                }
                let [ll, slots] =
                    [with, without].map(|limits| time(&scene, arguments, &request, &limits));
                *taken.entry((engine, stores, collective.name())).or_insert(0) += 1;
                let text = format!(
                    "{nodes} x {gpus} of {machine}, {engine}, {}, {bytes} bytes: modelled \
                     {ll:.2} µs by LL messages, {slots:.2} µs through slots",
                    collective.name()
                );
                println!("{text}");
                lost.extend((ll > slots).then_some(text));
            }
        }
    }
    println!("places where LL messages are taken: {taken:?}");
    assert!(lost.is_empty(), "slots are quicker:\n  {}", lost.join("\n  "));
    assert_eq!(taken.len(), 2 * 9, "every collective goes by LL messages somewhere, each way");
}
