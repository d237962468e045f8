//! What programs would find.

use super::*;
use std::path::PathBuf;

/// Writes a node's tree.
fn write_node(root: &Path, machine: &Description, node: u32, fabric: &Directory, whole: bool) {
    let shown = Shown { machine, node, fabric, whole, interfaces: None };
    write(root, &shown).unwrap();
}

/// The switch above a function: what is right below its root complex.
fn switch_of(function: &Path) -> Option<&Path> {
    let is_root =
        |path: &Path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("pci"));
    function.ancestors().find(|path| path.parent().is_some_and(is_root))
}

/// The tree's links lead where they say: from adapter to PCI function, and to its neighbours.
#[test]
fn the_tree_leads_from_adapters_to_pci() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Description::builtin("dgx-a100").unwrap();
    let fabric = Directory::open(folder.path()).unwrap();
    write_node(folder.path(), &machine, 3, &fabric, false);
    let read = |path: &str| fs::read_to_string(folder.path().join(path)).unwrap();
    assert_eq!(read("class/infiniband/hwsim5/device/numa_node"), "7\n");
    assert_eq!(read("class/infiniband_verbs/uverbs5/ibdev"), "hwsim5\n");
    assert_eq!(read("class/infiniband/hwsim5/ports/1/lid"), "0x66\n", "1 + 3 * 32 + 5");
    let place = |path: &str| folder.path().join(path).canonicalize().unwrap();
    let adapter = place("class/infiniband/hwsim5/device");
    assert_eq!(adapter, place("bus/pci/devices/0000:94:00.0"));
    for class in ["infiniband/hwsim5", "infiniband_verbs/uverbs5"] {
        let link = folder.path().join(format!("class/{class}/device"));
        let target = fs::read_link(&link).unwrap();
        assert_eq!(target, Path::new("../../../0000:94:00.0"), "programs read it from the link");
        assert_eq!(link.canonicalize().unwrap(), adapter);
    }
    let gpu = place(&format!("bus/pci/devices/{}", machine.gpus[5].bus_id));
    assert_eq!(switch_of(&adapter), switch_of(&gpu), "below one switch");
}

/// What a driver of the real function would find, and whose channels are whose.
#[test]
fn engines_are_pci_functions_with_a_bar() {
    let (folder, fabric) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let fabric = Directory::open(fabric.path()).unwrap();
    let machine = Description::find("ark x 2").unwrap();
    for node in 0..2 {
        let root = folder.path().join(node.to_string());
        write_node(&root, &machine, node, &fabric, false);
        // Another run on the same node.
        let root = folder.path().join(format!("again{node}"));
        write_node(&root, &machine, node, &fabric, false);
    }
    let function = |root: &str, bus_id: PciBusId| {
        folder.path().join(format!("{root}/bus/pci/devices/{bus_id}"))
    };
    let mut addresses = std::collections::BTreeSet::new();
    for (node, gpu, engine) in (0..2).flat_map(|node| {
        machine.gpus.iter().zip(&machine.engines).map(move |(gpu, engine)| (node, gpu, engine))
    }) {
        let path = function(&node.to_string(), engine.bus_id);
        let read = |name: &str| fs::read_to_string(path.join(name)).unwrap();
        assert_eq!(read("class"), "0x120000\n");
        assert_eq!((read("vendor"), read("device")), ("0x0000\n".into(), "0x5244\n".into()));
        let resource = read("resource");
        let line = resource.lines().next().unwrap();
        let mut words = line
            .split(' ')
            .map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap());
        let (start, end) = (words.next().unwrap(), words.next().unwrap());
        let bar = fs::read(path.join("resource0")).unwrap();
        assert_eq!(end - start + 1, bar.len() as u64);
        assert_eq!(&bar[..8], b"RDENGINE");
        let address = u64::from_le_bytes(bar[16..24].try_into().unwrap());
        assert!(addresses.insert(address), "two engines of the cluster share an address");
        let place = |path: PathBuf| path.canonicalize().unwrap();
        let beside = place(function(&node.to_string(), gpu.bus_id));
        assert_eq!(switch_of(&place(path.clone())), switch_of(&beside), "below one switch");
        let again = function(&format!("again{node}"), engine.bus_id);
        assert_eq!(place(path.join("resource0")), place(again.join("resource0")));
    }
    assert_eq!(addresses.len(), 16);
}

/// `lspci -t` and NCCL go by the bridges: each function is on the bus behind its bridge, and
/// within the range of every bridge further up.
#[test]
fn functions_are_on_the_buses_behind_their_bridges() {
    for name in ["dgx-a100", "dgx-h100", "dgx1v", "ark", "pcie4", "one-gpu", "quad-pc"] {
        let machine = Description::builtin(name).unwrap();
        let places = tree::places(&machine, &|_, _| false);
        let mut seen = std::collections::BTreeSet::new();
        for place in &places {
            assert!(seen.insert(place.address.to_string()), "{name}: {} twice", place.address);
            let (above, _) = place.path.rsplit_once('/').unwrap();
            let bus = place.address.bus;
            match places.iter().find(|bridge| bridge.path == above) {
                Some(bridge) => assert_eq!(bridge.buses.unwrap()[0], bus, "{name}: {}", place.path),
                None => assert!(above.ends_with(&format!(":{bus:02x}")), "{name}: {}", place.path),
            }
            let further = places.iter().filter(|b| place.path.starts_with(&format!("{}/", b.path)));
            for [first, last] in further.filter_map(|bridge| bridge.buses) {
                assert!((first..=last).contains(&bus), "{name}: {}", place.path);
            }
        }
        let endpoints = places.iter().filter(|place| place.port == Port::Endpoint).count();
        let expected = machine.gpus.len() + machine.adapters.len() + machine.engines.len();
        assert_eq!(endpoints, expected + machine.nv_switches.len(), "{name}");
        // fabric-lib reads the NUMA node of a bus from its device 0, which is one on real machines.
        let first = |bus| places.iter().find(|p| p.address.bus == bus && p.address.device == 0);
        for place in &places {
            let first = first(place.address.bus).unwrap_or_else(|| panic!("{name}: {place:?}"));
            assert_eq!(first.numa_node, place.numa_node, "{name}: {}", place.path);
        }
    }
}

/// Two functions that show one range would be one to whoever maps it.
#[test]
fn the_whole_tree_has_configuration_spaces_and_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Description::builtin("dgx-a100").unwrap();
    let fabric = Directory::open(folder.path()).unwrap();
    write_node(folder.path(), &machine, 0, &fabric, true);
    let mut ranges = std::collections::BTreeSet::new();
    for gpu in &machine.gpus {
        let path = folder.path().join(format!("bus/pci/devices/{}", gpu.bus_id));
        let configuration = fs::read(path.join("config")).unwrap();
        assert_eq!(configuration[..4], [0xde, 0x10, 0, 0]);
        let resource = fs::read_to_string(path.join("resource")).unwrap();
        for line in resource.lines().filter(|line| !line.starts_with("0x0000000000000000")) {
            assert!(ranges.insert(line.to_owned()), "{line} twice");
        }
        let link = fs::read_to_string(path.join("current_link_speed")).unwrap();
        assert_eq!(link, "16.0 GT/s PCIe\n");
    }
    assert_eq!(ranges.len(), 2 * machine.gpus.len());
    let nodes = folder.path().join("devices/system/node");
    assert_eq!(fs::read_to_string(nodes.join("online")).unwrap(), "0,1,2,3,4,5,6,7\n");
    let of = |node: u32| fs::read_to_string(nodes.join(format!("node{node}/cpulist"))).unwrap();
    let mut all: Vec<u32> = (0..8).flat_map(|n| nodes::numbers(&of(n))).collect();
    all.sort_unstable();
    assert_eq!(all, nodes::numbers(&nodes::host_processors()), "each processor is of one node");
}
