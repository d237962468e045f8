//! Topology files as people post them, files that are wrong, and bytes that nobody meant.

use super::machine::{Joined, Machine};
use super::packing::{Rate, Roots, pack};
use crate::error::Error;

/// Two GPUs below one PCI switch and one on the other socket, with what NCCL writes beside.
const SMALL: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/topology/three-gpus.xml"));

/// A mesh as RCCL writes it.
const MESH: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/topology/mi250-mesh.xml"));

#[test]
fn a_posted_file_is_read_and_its_links_are_found() {
    let machine = Machine::from_nccl(SMALL).unwrap();
    let gpus: Vec<_> = machine.gpus().iter().map(|(place, _)| *place).collect();
    let [a, b, c] = gpus[..] else { panic!("{gpus:?}") };
    assert_eq!(machine.joined(a, b), Joined::NvLink(2));
    assert_eq!(machine.joined(b, c), Joined::Sys);
    assert_eq!(machine.joined_by_pci(a, b), Joined::Pix);
    let (adapter, port) = machine.ports().next().unwrap();
    assert_eq!((port.name.as_str(), port.mbps, port.guid), ("mlx5_0", 100_000, 0xb8ce_f603_0067));
    assert_eq!(machine.joined(a, adapter), Joined::Pix);

    // One NVLink 2 holds up all that comes from GPU 2, and all that it gets.
    let graph = machine.capacities(&[0, 1, 2], 1).unwrap();
    let packing = pack(&graph, &Roots::all(&graph), None).unwrap();
    assert_eq!(packing.optimum, Rate::from_integer(3 * 25_000 / 2));
    // GPUs 1 and 2 have no NVLink in common: PCIe 3 with 8 lanes then.
    let graph = machine.capacities(&[1, 2], 1).unwrap();
    let packing = pack(&graph, &Roots::all(&graph), None).unwrap();
    assert_eq!(packing.optimum, Rate::from_integer(2 * 7_876));
    // The adapter is as near to both GPUs: each has half of 100 Gbit/s.
    let graph = machine.capacities(&[0, 1], 4).unwrap();
    let packing = pack(&graph, &Roots::all(&graph), None).unwrap();
    packing.check(&graph, &Roots::all(&graph)).unwrap();
    assert_eq!(packing.optimum, Rate::new(8 * 12_500, 6));
}

#[test]
fn what_is_written_is_read_as_the_same_machine() {
    let machine = Machine::from_nccl(SMALL).unwrap();
    assert_eq!(Machine::from_nccl(&machine.to_nccl()).unwrap(), machine);
}

/// Guests of clouds see no NVSwitch, and NCCL writes a name that is no address.
#[test]
fn hidden_switches_join_their_gpus() {
    let hidden = SMALL.replace(
        r#"target="0000:1c:00.0" count="2" tclass="0x030200""#,
        r#"target="fffffff:ffff:ff" count="12" tclass="0x068000""#,
    );
    let hidden = hidden.replace(
        r#"target="0000:1a:00.0" count="2" tclass="0x030200""#,
        r#"target="fffffff:ffff:ff" count="12" tclass="0x068000""#,
    );
    let machine = Machine::from_nccl(&hidden).unwrap();
    let (a, b) = (machine.gpus()[0].0, machine.gpus()[1].0);
    assert_eq!(machine.joined(a, b), Joined::NvLink(12));
    assert_eq!(Machine::from_nccl(&machine.to_nccl()).unwrap(), machine);
}

#[test]
fn a_wrong_file_is_refused_with_line_and_reason() {
    let cases = [
        ("</system>", "", "line 1", "never closed"),
        ("<system", "<graph", "line", "graph"),
        ("busid=\"0000:16:00.0\"", "", "line 4", "no such attribute"),
        ("busid=\"0000:1c:00.0\"", "busid=\"1c\"", "line 11", "1c"),
        ("busid=\"0000:1c:00.0\"", "busid=\"0000:1a:00.0\"", "line 11", "0000:1a:00.0 again"),
        ("dev=\"1\" sm", "dev=\"-1\" sm", "line 12", "-1"),
        ("count=\"1\"", "count=\"99999999999\"", "line 8", "99999999999"),
        ("count=\"1\"", "count=\"0\"", "line 8", "count from 1 to 1024"),
        ("target=\"0000:1a:00.0\"", "target=\"0000:1c:00.0\"", "line 11", "to itself"),
        ("speed=\"100000\"", "speed=\"fast\"", "line 18", "fast"),
    ];
    for (from, to, line, reason) in cases {
        let error = Machine::from_nccl(&SMALL.replace(from, to)).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Argument { .. }), "{text}");
        assert!(text.contains(line) && text.contains(reason), "{from} as {to}: {text}");
    }
    // A link that leads nowhere is an error where it matters.
    let text = SMALL.replacen("target=\"0000:88:00.0\"", "target=\"0000:77:00.0\"", 1);
    let error = Machine::from_nccl(&text).unwrap().capacities(&[0, 1, 2], 1).unwrap_err();
    assert!(error.to_string().contains("0000:77:00.0"), "{error}");
}

#[test]
fn trees_of_any_depth_are_read_or_refused() {
    let bridge = |n: usize| format!("<pci busid=\"{:04x}:00:00.0\">", n);
    let deep = |depth: usize| {
        let open: String = (0..depth).map(bridge).collect();
        format!("<system><cpu numaid=\"0\">{open}{}</cpu></system>", "</pci>".repeat(depth))
    };
    assert_eq!(Machine::from_nccl(&deep(32)).unwrap().devices.len(), 32);
    assert!(Machine::from_nccl(&deep(33)).unwrap_err().to_string().contains("deep"));
    // The parser has a limit of its own, and no stack overflows.
    Machine::from_nccl(&deep(50_000)).unwrap_err();
}

#[test]
fn mutations_are_read_or_refused() {
    let seed = std::env::var("RINGDOVE_FUZZ_SEED").map_or(2026, |seed| seed.parse().unwrap());
    println!("RINGDOVE_FUZZ_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut read, mut packed) = (0, 0);
    for _ in 0..3000 {
        // Large ones seldom: each is packed.
        let file = if random.u8(..) < 16 { MESH } else { SMALL };
        let mut bytes = file.as_bytes().to_vec();
        for _ in 0..random.usize(1..=3) {
            let at = random.usize(0..bytes.len());
            match random.u8(0..4) {
                0 => bytes[at] = random.choice(b"0123456789abf\"<>/ -".iter()).copied().unwrap(),
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, random.choice(b"0129\"<&".iter()).copied().unwrap()),
                _ => {
                    let end = (at + random.usize(0..40)).min(bytes.len());
                    let piece = bytes[at..end].to_vec();
                    drop(bytes.splice(at..at, piece));
                }
            }
        }
        let Ok(text) = String::from_utf8(bytes) else { continue };
        let Ok(machine) = Machine::from_nccl(&text) else { continue };
        read += 1;
        let gpus: Vec<_> = machine.gpus().iter().map(|(_, gpu)| gpu.number).collect();
        let Ok(graph) = machine.capacities(&gpus, 1) else { continue };
        let roots = Roots::all(&graph);
        if let Ok(packing) = pack(&graph, &roots, Some(1)) {
            packing.check(&graph, &roots).unwrap();
            packed += 1;
        }
    }
    println!("{read} read, {packed} packed");
    assert!(read > 100 && packed > 10);
}
