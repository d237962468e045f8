//! Machines as files: a rack, a mesh of another maker's GPUs; their optima, by all cuts where that
//! is possible, and allocations of some of their GPUs.

use super::graph::NodeId;
use super::machine::{Joined, Machine};
use super::packing::tests::by_all_cuts;
use super::packing::{Rate, Roots, pack};

macro_rules! fixture {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/topology/", $name))
    };
}

/// 72 GPUs with 18 NVLinks of 50 GB/s each, behind switches that guests do not see.
const RACK: &str = fixture!("gb200-rack.xml");
/// Sixteen dies, two on each module, joined by xGMI links of 50 GB/s, as RCCL writes it.
const MESH: &str = fixture!("mi250-mesh.xml");

fn random() -> fastrand::Rng {
    let seed = std::env::var("RINGDOVE_TEST_SEED").map_or(17, |seed| seed.parse().unwrap());
    println!("RINGDOVE_TEST_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

/// If this fails, a rack behind NVSwitches is read as lone boxes, or packed below its rate.
#[test]
fn a_rack_is_one_machine() {
    let rack = Machine::from_nccl(RACK).unwrap();
    let gpus: Vec<u32> = rack.gpus().iter().map(|(_, gpu)| gpu.number).collect();
    assert_eq!(gpus, (0..72).collect::<Vec<_>>());
    let places: Vec<usize> = rack.gpus().iter().map(|(place, _)| *place).collect();
    assert_eq!(rack.joined(places[0], places[71]), Joined::NvLink(18));
    assert_eq!(Machine::from_nccl(&rack.to_nccl()).unwrap(), rack);
    let mut random = random();
    for count in [72, 36, 5, 2] {
        let mut some = gpus.clone();
        random.shuffle(&mut some);
        some.truncate(count);
        let graph = rack.capacities(&some, 1).unwrap();
        let roots = Roots::all(&graph);
        let packing = pack(&graph, &roots, None).unwrap();
        packing.check(&graph, &roots).unwrap();
        let count = count as u64;
        assert_eq!(packing.rate(), Rate::new(count * 900_000, count - 1), "{count} GPUs");
    }
}

/// If this fails, links of another maker are not read, or a mesh is packed below what its cuts
/// admit.
#[test]
fn a_mesh_of_xgmi_links_is_packed_to_its_tightest_cut() {
    let mesh = Machine::from_nccl(MESH).unwrap();
    let gpus: Vec<u32> = mesh.gpus().iter().map(|(_, gpu)| gpu.number).collect();
    let places: Vec<usize> = mesh.gpus().iter().map(|(place, _)| *place).collect();
    assert_eq!(mesh.joined(places[0], places[1]), Joined::NvLink(4));
    assert_eq!(Machine::from_nccl(&mesh.to_nccl()).unwrap(), mesh);
    let graph = mesh.capacities(&gpus, 1).unwrap();
    assert_eq!(graph.capacity(NodeId(0), NodeId(1)), 200_000);
    let roots = Roots::all(&graph);
    let packing = pack(&graph, &roots, None).unwrap();
    packing.check(&graph, &roots).unwrap();
    assert_eq!(packing.rate(), by_all_cuts(&graph, &roots));
    println!("sixteen dies: {} MB/s of all data", packing.rate());
    let root = Roots::one(&graph, NodeId(5));
    let packing = pack(&graph, &root, None).unwrap();
    packing.check(&graph, &root).unwrap();
    assert_eq!(packing.rate(), by_all_cuts(&graph, &root));
}

/// Some GPUs of the mesh, and of it and others the PCI tree where links do not connect them.
#[test]
fn allocations_of_files_are_packed_to_their_tightest_cut() {
    let mut random = random();
    let mesh = Machine::from_nccl(MESH).unwrap();
    let (mut by_links, mut by_pci) = (0, 0);
    for _ in 0..40 {
        let mut gpus: Vec<u32> = (0..16).collect();
        random.shuffle(&mut gpus);
        gpus.truncate(random.usize(2..=8));
        let graph = mesh.capacities(&gpus, 1).unwrap();
        let links_alone = graph.len() == gpus.len();
        *(if links_alone { &mut by_links } else { &mut by_pci }) += 1;
        let roots = Roots::all(&graph);
        let packing = pack(&graph, &roots, None).unwrap();
        packing.check(&graph, &roots).unwrap();
        assert_eq!(packing.rate(), by_all_cuts(&graph, &roots), "{gpus:?}");
    }
    println!("{by_links} by links alone, {by_pci} with PCI");
    assert!(by_links > 0 && by_pci > 0);
}

/// If this fails, a broken file ends in a panic or in a machine that nobody has, or the error does
/// not say where it is broken.
#[test]
fn broken_files_are_refused_with_line_and_reason() {
    let refused = |text: &str, parts: [&str; 2]| {
        let error = Machine::from_nccl(text).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{parts:?}: {error}");
    };
    // A tree that comes back to where it began: the same bridge again below itself.
    let bridge = "<pci busid=\"0000:01:00.0\">";
    let round = format!("<system>\n<cpu>\n{bridge}\n{bridge}\n</pci></pci></cpu></system>");
    refused(&round, ["line 4", "0000:01:00.0 again"]);
    refused(
        &MESH.replacen("<xgmi target=\"0000:14:00.0\" count=\"4\"", "<xgmi count=\"4\"", 1),
        ["line 5", "no such attribute"],
    );
    refused(&RACK.replacen("count=\"18\"", "count=\"many\"", 1), ["line 5", "many"]);
    // Links that carry nothing, and links of one direction, are no machine's.
    let one_way =
        MESH.replacen("<xgmi target=\"0000:14:00.0\" count=\"4\" tclass=\"0x038000\"/>", "", 1);
    let machine = Machine::from_nccl(&one_way).unwrap();
    let all: Vec<u32> = (0..16).collect();
    let graph = machine.capacities(&all, 1).unwrap();
    let error = pack(&graph, &Roots::all(&graph), None).unwrap_err().to_string();
    assert!(error.contains("GPU") && error.contains("as much capacity in as out"), "{error}");
    let itself = MESH.replacen("target=\"0000:14:00.0\"", "target=\"0000:10:00.0\"", 1);
    refused(&itself, ["line 3", "0000:10:00.0 to itself"]);
}
