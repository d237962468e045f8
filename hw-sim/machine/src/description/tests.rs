use super::{Description, DescriptionError, LinkKind, Node, PciBusId, PciPath, Pcie};

fn invalid(source: &str) -> (usize, String, String) {
    match Description::parse(source, "test.toml") {
        Err(DescriptionError::Invalid { origin, line, key, reason }) => {
            assert_eq!(origin, "test.toml");
            (line, key, reason)
        }
        other => panic!("expected an invalid file, got {other:?}"),
    }
}

/// The smallest built-in file with one passage replaced: a fault is planted where it would occur.
fn spoilt(machine: &str, from: &str, to: &str) -> (usize, String, String) {
    let source = Description::builtin(machine).unwrap().source().to_owned();
    assert!(source.contains(from), "the built-in file no longer holds `{from}`");
    invalid(&source.replacen(from, to, 1))
}

/// A built-in file that does not parse would be found by the first user only.
#[test]
fn every_built_in_machine_parses_under_its_own_name() {
    let expected = [
        ("one-gpu", 1),
        ("pcie4", 4),
        ("dgx1v", 8),
        ("dgx-a100", 8),
        ("dgx-h100", 8),
        ("quad-pc", 4),
        ("ark", 8),
    ];
    assert_eq!(Description::built_in_names().count(), expected.len());
    for (name, gpus) in expected {
        let machine = Description::builtin(name).unwrap();
        assert_eq!((machine.name.as_str(), machine.gpus.len()), (name, gpus));
        for gpu in &machine.gpus {
            assert!(gpu.model.name.ends_with("(virtual)"), "{name}: its times would pass for real");
            assert!(gpu.model.memory_bytes >= 16 << 30, "{name}: the demo's buffers do not fit");
        }
    }
}

/// Two GPUs with one UUID look like one GPU to every launcher ("duplicate GPU detected").
#[test]
fn uuids_differ_and_do_not_change() {
    let mut seen = std::collections::BTreeSet::new();
    for name in Description::built_in_names() {
        let (once, again) =
            (Description::builtin(name).unwrap(), Description::builtin(name).unwrap());
        assert_eq!(once, again);
        for gpu in &once.gpus {
            assert!(seen.insert(gpu.uuid), "{name}: {} shares its UUID", gpu.name);
        }
    }
}

#[test]
fn dgx1v_has_the_hybrid_cube_mesh() {
    let machine = Description::builtin("dgx1v").unwrap();
    let two = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)];
    let one = [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)];
    for a in 0..8 {
        for b in 0..8 {
            let pair = (a.min(b), a.max(b));
            let links = 2 * u32::from(two.contains(&pair)) + u32::from(one.contains(&pair));
            assert_eq!(machine.nv_link_count(a, b), links, "GPU{a} and GPU{b}");
        }
        let total: u32 = (0..8).map(|b| machine.nv_link_count(a, b)).sum();
        assert_eq!(total, 6, "a V100 has six NVLinks; GPU{a}");
    }
    assert_eq!(machine.pci_path(0, 1), PciPath::OneSwitch);
    assert_eq!(machine.pci_path(0, 2), PciPath::HostBridge);
    assert_eq!(machine.pci_path(0, 5), PciPath::System);
}

#[test]
fn peer_access_follows_nvlink_the_pci_tree_and_the_chipset() {
    let refuses = Description::builtin("dgx1v").unwrap();
    let (yes, no) = ("peers_across_root_complexes = true", "peers_across_root_complexes = false");
    assert!(refuses.source().contains(no), "a DGX-1V is no more than a real one");
    let permits = Description::parse(&refuses.source().replace(no, yes), "test").unwrap();
    let by_default = Description::parse(&refuses.source().replace(no, ""), "test").unwrap();
    for machine in [&refuses, &by_default] {
        assert!(machine.peer_access(0, 4), "NVLink across sockets");
        assert!(machine.peer_access(0, 1) && machine.peer_access(0, 2), "one root complex");
        assert!(!machine.peer_access(0, 5), "no NVLink, and PCI between peers ends at the socket");
    }
    assert!(permits.peer_access(0, 5) && !permits.peer_access(3, 3));
}

#[test]
fn nv_switches_join_every_pair_with_all_links() {
    let machine = Description::builtin("dgx-a100").unwrap();
    for (a, b) in (0..8).flat_map(|a| (0..8).map(move |b| (a, b))).filter(|(a, b)| a != b) {
        assert_eq!(machine.nv_link_count(a, b), 12);
        assert!(machine.peer_access(a, b));
    }
    assert!(machine.matrix().contains("NV12"));
}

#[test]
fn the_demo_machine_has_two_switches_of_two() {
    let machine = Description::builtin("pcie4").unwrap();
    assert_eq!(machine.pci_path(0, 1), PciPath::OneSwitch);
    assert_eq!(machine.pci_path(1, 2), PciPath::HostBridge);
    assert!(machine.peer_access(0, 3));
    let links = machine.all_links();
    assert_eq!(links.len(), 6, "two switches and four GPUs hang in the tree");
    assert!(links.iter().all(|link| link.kind == LinkKind::Pcie));
    assert!(links.iter().any(|l| l.ends == [Node::Gpu(3), Node::Switch(1)]));
    assert!((links[0].gb_per_s - 15.75).abs() < 0.01, "PCIe 3.0 x16 is 15.75 GB/s");
}

#[test]
fn pcie_rates_are_the_standards() {
    let rate = |generation| Pcie { generation, lanes: 16 }.gb_per_s();
    for (generation, expected) in [(1, 4.0), (2, 8.0), (3, 15.75), (4, 31.5), (5, 63.0)] {
        assert!((rate(generation) - expected).abs() < 0.02, "PCIe {generation}: {expected}");
    }
}

#[test]
fn a_misspelt_key_is_named_with_its_line() {
    let (line, key, reason) = spoilt("one-gpu", "memory_mib", "memory_mb");
    assert_eq!((line, key.as_str()), (18, "memory_mb"));
    assert!(reason.contains("unknown field"), "{reason}");
}

#[test]
fn a_wrong_type_and_a_number_out_of_range_are_named_with_their_line() {
    let (line, key, reason) = spoilt("one-gpu", "memory_mib = 40960", "memory_mib = \"40 GB\"");
    assert_eq!((line, key.as_str()), (18, "memory_mib"));
    assert!(reason.contains("invalid type"), "{reason}");
    let (line, key, reason) = spoilt("one-gpu", "multiprocessors = 108", "multiprocessors = 0");
    assert_eq!((line, key.as_str()), (13, "multiprocessors"));
    assert_eq!(reason, "expected multiprocessors from 1 to 1024, found 0");
    let (_, key, _) = spoilt("one-gpu", "clock_mhz = 1410", "clock_mhz = -1");
    assert_eq!(key, "clock_mhz");
    let (_, key, reason) = spoilt("dgx1v", "gb_per_s = 25.0", "gb_per_s = nan");
    assert_eq!(key, "gb_per_s");
    assert!(reason.contains("found NaN"), "{reason}");
    let (_, key, _) = spoilt("pcie4", "lanes = 16", "lanes = 12");
    assert_eq!(key, "lanes");
}

#[test]
fn a_name_that_leads_nowhere_is_refused() {
    let (_, key, reason) = spoilt("pcie4", "under = \"switch1\"", "under = \"switch7\"");
    assert_eq!(key, "under");
    assert!(reason.contains("switch7"), "{reason}");
    let (_, key, reason) = spoilt("pcie4", "model = \"v100\"", "model = \"h100\"");
    assert_eq!(key, "model");
    assert!(reason.contains("(v100)") && reason.contains("h100"), "{reason}");
    let (line, key, reason) = spoilt("dgx1v", "[\"gpu4\", \"gpu7\"]", "[\"gpu4\", \"gpu8\"]");
    assert_eq!(key, "pairs");
    assert!(line > 100 && reason.contains("gpu8"), "{line}: {reason}");
    let (_, key, _) = spoilt("dgx1v", "[\"gpu4\", \"gpu7\"]", "[\"gpu4\", \"switch0\"]");
    assert_eq!(key, "pairs");
}

#[test]
fn duplicates_are_refused() {
    for (from, to, key) in [
        ("name = \"gpu1\"", "name = \"gpu0\"", "name"),
        ("name = \"gpu1\"", "name = \"cpu0\"", "name"),
        ("0000:05:00.0", "0000:04:00.0", "bus_id"),
    ] {
        let (_, seen, reason) = spoilt("pcie4", from, to);
        assert_eq!(seen, key);
        assert!(reason.contains("second device"), "{reason}");
    }
    let (_, _, reason) = spoilt("dgx1v", "[\"gpu1\", \"gpu2\"]", "[\"gpu3\", \"gpu0\"]");
    assert!(reason.contains("use `count`"), "{reason}");
}

/// A switch under itself would make every walk up the tree endless.
#[test]
fn a_switch_cannot_hang_under_itself_or_a_later_one() {
    for parent in ["switch0", "switch1"] {
        let to = format!("name = \"switch0\"\nunder = \"{parent}\"");
        let (_, key, _) = spoilt("pcie4", "name = \"switch0\"\nunder = \"cpu0\"", &to);
        assert_eq!(key, "under");
    }
}

#[test]
fn broken_and_empty_files_say_where() {
    let (line, _, reason) = invalid("name = \"x\"\nsummary = \n");
    assert_eq!(line, 2, "{reason}");
    let (_, _, reason) = invalid("");
    assert!(reason.contains("missing field"), "{reason}");
    let (line, key, reason) = invalid("name = \"x\"\nsummary = \"\"\n");
    assert_eq!((line, key.as_str()), (1, "name"));
    assert!(reason.contains("`[[gpus]]`"), "{reason}");
}

#[test]
fn an_unknown_machine_says_which_exist() {
    let message = Description::find("dgx-9000").unwrap_err().to_string();
    for name in Description::built_in_names() {
        assert!(message.contains(name), "{message}");
    }
    let message = Description::find("./no/such.toml").unwrap_err().to_string();
    assert!(message.starts_with("machine file ./no/such.toml: cannot be read"), "{message}");
}

#[test]
fn pci_addresses_are_read_in_both_lengths_and_nothing_else() {
    let id = PciBusId { domain: 1, bus: 0xb7, device: 0x1f, function: 7 };
    assert_eq!("0001:b7:1f.7".parse(), Ok(id));
    assert_eq!("00000001:B7:1F.7".parse(), Ok(id));
    assert_eq!(id.to_string().parse(), Ok(id));
    for wrong in ["", "0001:b7:1f", "1:b7:1f.0", "0001:b7:20.0", "0001:b7:1f.8", "+001:b7:1f.0"] {
        assert_eq!(wrong.parse::<PciBusId>(), Err(()), "{wrong}");
    }
}

#[test]
fn the_text_shows_tree_and_matrix() {
    let text = Description::builtin("pcie4").unwrap().describe();
    assert!(
        text.contains("\n    switch1 (15.8 GB/s up)\n      gpu2 (GPU2, 15.8 GB/s)\n"),
        "{text}"
    );
    assert!(text.contains("  GPU0   X     PIX   PHB   PHB\n"), "{text}");
}

/// The example is what users copy.
#[test]
fn the_machine_file_in_the_readme_is_valid() {
    let readme = include_str!("../../../README.md");
    let example = readme.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let machine = Description::parse(example, "README.md").unwrap();
    assert_eq!((machine.gpus.len(), machine.nv_link_count(0, 1)), (2, 2));
    assert_eq!((machine.adapters.len(), machine.peer_memory), (1, true));
}

#[test]
fn a_name_may_be_followed_by_a_number_of_nodes() {
    assert_eq!(Description::find("dgx1v").unwrap().nodes, 1);
    for text in ["dgx1v x 2", " dgx1v  x  2 "] {
        let cluster = Description::find(text).unwrap();
        assert_eq!((cluster.name.as_str(), cluster.nodes, cluster.node), ("dgx1v", 2, 0));
    }
    assert!(Description::find("dgx1v x 2").unwrap().describe().contains("\n2 nodes, each"));
    for (text, seen) in [("dgx1v x 0", "0"), ("dgx1v x two", "two"), ("dgx1v x 1025", "1025")] {
        let refused = Description::find(text).unwrap_err().to_string();
        assert!(refused.contains("1 to 1024 nodes") && refused.contains(seen), "{refused}");
    }
    let refused = Description::find("dgx9 x 2").unwrap_err().to_string();
    assert!(refused.contains("unknown machine `dgx9`"), "{refused}");
}

#[test]
fn a_file_may_say_how_many_nodes_there_are() {
    let one = Description::builtin("one-gpu").unwrap().source().to_owned();
    let two = Description::parse(&format!("nodes = 2\n{one}"), "test").unwrap();
    assert_eq!(two.nodes, 2);
    let (line, key, reason) = invalid(&format!("nodes = 0\n{one}"));
    assert_eq!((line, key.as_str()), (1, "nodes"));
    assert!(reason.contains("from 1 to 1024"), "{reason}");
}

/// Two GPUs with one UUID look like one GPU to every launcher, on whatever node they are.
#[test]
fn nodes_differ_in_uuids_alone() {
    let first = Description::builtin("pcie4").unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for node in 0..3 {
        let machine = first.clone().at_node(node);
        assert_eq!(machine.node, node);
        for (gpu, on_first) in machine.gpus.iter().zip(&first.gpus) {
            assert!(seen.insert(gpu.uuid), "{} of node {node} shares its UUID", gpu.name);
            assert_eq!(gpu.bus_id, on_first.bus_id, "equal nodes are cabled equally");
            assert_eq!(gpu.uuid == on_first.uuid, node == 0, "node 0 is the machine alone");
        }
    }
}

#[test]
fn adapters_have_a_place_in_the_tree() {
    let machine = Description::builtin("dgx-a100").unwrap();
    assert_eq!(machine.adapters.len(), 8, "a rail for each GPU");
    for (gpu, adapter) in machine.gpus.iter().zip(&machine.adapters) {
        assert_eq!((gpu.under, gpu.numa_node), (adapter.under, adapter.numa_node));
    }
    let text = machine.describe();
    assert!(text.contains("hwsim7 (adapter, InfiniBand, 25 GB/s)"), "{text}");
}

#[test]
fn wrong_adapters_are_named_with_their_line() {
    let (_, key, reason) = spoilt("one-gpu", "mtu = 4096", "mtu = 1500");
    assert_eq!(key, "mtu");
    assert!(reason.contains("4096 bytes, found 1500"), "{reason}");
    let (_, key, _) = spoilt("one-gpu", "link_layer = \"infiniband\"", "link_layer = \"token\"");
    assert_eq!(key, "link_layer");
    let fault = "mtu = 4096\nfaults = [\"port-drown\"]";
    let (_, key, reason) = spoilt("one-gpu", "mtu = 4096", fault);
    assert_eq!(key, "faults");
    assert!(reason.contains("port-down-after=N") && reason.contains("port-drown"), "{reason}");
    let (_, key, reason) = spoilt("dgx1v", "name = \"hwsim1\"", "name = \"hwsim0\"");
    assert_eq!(key, "name");
    assert!(reason.contains("names are unique"), "{reason}");
}

/// If engine and GPU are not below one switch, the library takes an engine far from its GPU.
#[test]
fn each_gpu_of_ark_has_an_engine_beside_it() {
    let machine = Description::builtin("ark").unwrap();
    assert_eq!(machine.engines.len(), machine.gpus.len());
    for (gpu, engine) in machine.gpus.iter().zip(&machine.engines) {
        assert_eq!((gpu.under, gpu.numa_node), (engine.under, engine.numa_node));
    }
    assert!(machine.describe().contains("engine7 (device engine, 12.66 GB/s)"));
    assert!(machine.links.iter().all(|link| link.kind == LinkKind::Cpu), "PCIe alone");
    assert_eq!(Description::find("ark x 2").unwrap().nodes, 2);
}

#[test]
fn wrong_engines_are_named_with_their_line() {
    let with = |text: &str| spoilt("ark", "gb_per_s = 12.66\n", &format!("{text}\n"));
    for (text, wrong, expected) in [
        ("gb_per_s = 0.0", "gb_per_s", "above 0 and up to 1e6, found 0"),
        ("gb_per_s = 1.0\nlane_depth = 63", "lane_depth", "from 64 to 65536, found 63"),
        ("gb_per_s = 1.0\nsub_request_bytes = 100", "sub_request_bytes", "multiple of 64 bytes"),
        ("gb_per_s = 1.0\nroutes = 1048577", "routes", "from 1 to 1048576, found 1048577"),
        ("gb_per_s = 1.0\nchannels = 0", "channels", "from 1 to 256, found 0"),
        ("gb_per_s = 1.0\nlimes = 3", "limes", "unknown field"),
        ("gb_per_s = 1.0\nfaults = [\"port-down\"]", "faults", "link-down-after=N"),
    ] {
        let (line, key, reason) = with(text);
        assert_eq!(key, wrong, "{reason}");
        assert!(line > 130 && reason.contains(expected), "{line}: {reason}");
    }
    let (_, key, reason) = spoilt("ark", "\"engine1\"", "\"hwsim1\"");
    assert_eq!(key, "name");
    assert!(reason.contains("names are unique"), "{reason}");
}

/// The machine file of the README is what people start from.
#[test]
fn the_readmes_machine_file_is_right() {
    let readme = include_str!("../../../README.md");
    let (_, rest) = readme.split_once("```toml\n").unwrap();
    let (text, _) = rest.split_once("```").unwrap();
    let machine = Description::parse(text, "README.md").unwrap();
    let engine = &machine.engines[0];
    assert_eq!(engine.limits, super::EngineLimits::default(), "it says so");
    assert_eq!(machine.adapters.len(), 1);
}

/// Without file, line and key nobody finds the misspelt key of a driver.
#[test]
fn keys_of_the_driver_are_checked_and_applied() {
    let table = "\n[driver]\nprofile = \"strict\"\nconnections = 2\ncapture = false\n";
    let source = format!("{}{table}", Description::builtin("one-gpu").unwrap().source());
    let machine = Description::parse(&source, "test").unwrap();
    assert_eq!(machine.driver.to_string(), "strict connections=2 capture=off");
    let lenient = machine.clone().with_driver(Some("lenient"), Some("memops=none")).unwrap();
    assert_eq!(lenient.driver.to_string(), "lenient connections=2 capture=off memops=none");
    for (from, to, key) in [
        ("capture", "captures", "captures"),
        ("connections = 2", "connections = 64", "connections"),
        ("\"strict\"", "\"harsh\"", "profile"),
    ] {
        let (line, seen, reason) = invalid(&source.replacen(from, to, 1));
        let place = source.lines().position(|line| line.contains(from)).unwrap() + 1;
        assert_eq!((line, seen.as_str()), (place, key), "{reason}");
        assert!(reason.contains("expected"), "{reason}");
    }
}
