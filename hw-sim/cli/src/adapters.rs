//! What programs see of a machine's RDMA adapters before they open one: a tree like the kernel's
//! `/sys`, which holds the other PCI functions, too, and the names under which the verbs library
//! looks for a provider.
//!
//! The verbs library reads the tree below `SYSFS_PATH`, finds the adapters' names in it, and loads
//! `libhwsim.so` by the path in `RDMAV_DRIVERS`.

use crate::engines;
use crate::error::Error;
use hwsim_machine::adapter::Endpoint;
use hwsim_machine::adapter::address::GidKind;
use hwsim_machine::description::{Adapter, Description, Engine, LinkLayer, Node, PciBusId, Pcie};
use hwsim_machine::engine::PCI_CLASS;
use hwsim_machine::fabric::Directory;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Where the verbs library and tools look for `/sys`.
pub const SYSFS_VARIABLE: &str = "SYSFS_PATH";
/// The provider that the verbs library loads: a path without the end of its name.
pub const DRIVERS_VARIABLE: &str = "RDMAV_DRIVERS";
/// The provider's name without its end.
const PROVIDER: &str = "libhwsim";
/// Its ends: one for each version of the verbs library's private interface.
const PROVIDER_SUFFIXES: [&str; 4] = ["-rdmav34.so", "-rdmav57.so", "-rdmav59.so", "-rdmav64.so"];

/// Links the provider's names to the library, in a folder that is there. Gives what
/// [`DRIVERS_VARIABLE`] must hold.
pub fn link_provider(folder: &Path, library: &Path) -> Result<PathBuf, Error> {
    for suffix in PROVIDER_SUFFIXES {
        let link = folder.join(format!("{PROVIDER}{suffix}"));
        symlink(library, &link)
            .map_err(Error::system(format!("linking {} to the library", link.display())))?;
    }
    Ok(folder.join(PROVIDER))
}

/// Writes the tree of one node into a folder that does not exist yet. The BARs of its engines are
/// files in the fabric's folder.
pub fn write_sysfs(
    root: &Path,
    machine: &Description,
    node: u32,
    fabric: &Directory,
) -> Result<(), Error> {
    let tree = Tree { root, machine };
    tree.write().map_err(Error::system(format!("writing {}", root.display())))?;
    for (index, engine) in machine.engines.iter().enumerate() {
        let function = engines::function(machine, node, index, fabric)?;
        tree.engine(engine, &function)
            .map_err(Error::system(format!("writing {}", root.display())))?;
    }
    for (index, adapter) in machine.adapters.iter().enumerate() {
        let endpoint = Endpoint { node, adapter: index as u32 };
        tree.adapter(index, adapter, endpoint)
            .map_err(Error::system(format!("writing {}", root.display())))?;
    }
    Ok(())
}

struct Tree<'a> {
    root: &'a Path,
    machine: &'a Description,
}

type Written = std::io::Result<()>;

impl Tree<'_> {
    fn write(&self) -> Written {
        self.file("class/infiniband_verbs/abi_version", 6)?;
        fs::create_dir_all(self.root.join("bus/pci/devices"))?;
        for gpu in &self.machine.gpus {
            self.pci_function(gpu.under, gpu.bus_id, gpu.pcie, gpu.numa_node, "0x030200")?;
        }
        Ok(())
    }

    fn file(&self, path: &str, content: impl std::fmt::Display) -> Written {
        let path = self.root.join(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, format!("{content}\n"))
    }

    /// The folder of a PCI function, below those of the switches above it.
    fn pci_path(&self, under: Node, bus_id: PciBusId) -> String {
        let mut above = vec![bus_id.to_string()];
        let mut node = under;
        // Each switch hangs under an earlier one, which bounds the climb.
        while let Node::Switch(index) = node {
            // Descriptions give switches no addresses; no real device is in this domain.
            above.push(format!("ffff:{index:02x}:00.0"));
            node = self.machine.switches[index].under;
        }
        let root = if let Node::RootComplex(index) = node { index } else { 0 };
        above.push(format!("devices/pci{root:04x}:00"));
        above.reverse();
        above.join("/")
    }

    fn pci_function(
        &self,
        under: Node,
        bus_id: PciBusId,
        pcie: Pcie,
        numa_node: u32,
        class: &str,
    ) -> Written {
        let path = self.pci_path(under, bus_id);
        self.file(&format!("{path}/numa_node"), numa_node)?;
        self.file(&format!("{path}/class"), class)?;
        self.file(&format!("{path}/vendor"), "0x0000")?;
        self.file(&format!("{path}/device"), "0x0000")?;
        let speed = ["2.5", "5.0", "8.0", "16.0", "32.0", "64.0"][pcie.generation as usize - 1];
        for which in ["current", "max"] {
            self.file(&format!("{path}/{which}_link_speed"), format!("{speed} GT/s PCIe"))?;
            self.file(&format!("{path}/{which}_link_width"), pcie.lanes)?;
        }
        symlink(format!("../../../{path}"), self.root.join(format!("bus/pci/devices/{bus_id}")))
    }

    fn engine(&self, engine: &Engine, function: &engines::Function) -> Written {
        let Engine { under, bus_id, pcie, numa_node, .. } = engine;
        self.pci_function(*under, *bus_id, *pcie, *numa_node, &format!("{PCI_CLASS:#08x}"))?;
        let path = self.pci_path(*under, *bus_id);
        self.file(&format!("{path}/vendor"), &function.vendor)?;
        self.file(&format!("{path}/device"), &function.device)?;
        self.file(&format!("{path}/resource"), &function.resource)?;
        symlink(&function.bar, self.root.join(path).join("resource0"))
    }

    fn adapter(&self, index: usize, adapter: &Adapter, endpoint: Endpoint) -> Written {
        let Adapter { name, under, bus_id, pcie, numa_node, .. } = adapter;
        self.pci_function(*under, *bus_id, *pcie, *numa_node, "0x020700")?;
        let pci = self.pci_path(*under, *bus_id);
        let class = format!("class/infiniband/{name}");
        let guid = groups(&endpoint.guid().to_be_bytes());
        for (file, content) in [
            ("node_type", "1: CA"),
            ("node_guid", &guid),
            ("sys_image_guid", &guid),
            ("node_desc", name),
            ("fw_ver", concat!(env!("CARGO_PKG_VERSION"), " (virtual)")),
            ("hca_type", "hwsim (virtual)"),
            ("board_id", "virtual"),
        ] {
            self.file(&format!("{class}/{file}"), content)?;
        }
        symlink(format!("../../../{pci}"), self.root.join(&class).join("device"))?;
        let verbs = format!("{pci}/infiniband_verbs/{}", device_name(index));
        for (file, content) in [("ibdev", name.as_str()), ("abi_version", "1"), ("dev", "1:3")] {
            self.file(&format!("{verbs}/{file}"), content)?;
        }
        let link = format!("class/infiniband_verbs/{}", device_name(index));
        symlink(format!("../../{verbs}"), self.root.join(link))?;
        self.port(&format!("{class}/ports/1"), adapter, endpoint)
    }

    fn port(&self, port: &str, adapter: &Adapter, endpoint: Endpoint) -> Written {
        let layer = adapter.link_layer;
        let infiniband = layer == LinkLayer::InfiniBand;
        let lid = if infiniband { endpoint.lid() } else { 0 };
        let down = adapter.faults.iter().any(|fault| fault == "port-down");
        for (file, content) in [
            ("state", if down { "1: DOWN" } else { "4: ACTIVE" }.to_owned()),
            ("phys_state", if down { "3: Disabled" } else { "5: LinkUp" }.to_owned()),
            ("link_layer", if infiniband { "InfiniBand" } else { "Ethernet" }.to_owned()),
            ("rate", format!("{} Gb/sec (4X)", adapter.gb_per_s * 8.0)),
            ("lid", format!("{lid:#x}")),
            ("sm_lid", if infiniband { "0x1" } else { "0x0" }.to_owned()),
            ("lid_mask_count", "0".to_owned()),
            ("cap_mask", "0x00010000".to_owned()),
            ("pkeys/0", "0xffff".to_owned()),
        ] {
            self.file(&format!("{port}/{file}"), content)?;
        }
        for (index, gid) in endpoint.gids(layer).iter().enumerate() {
            self.file(&format!("{port}/gids/{index}"), groups(&gid.raw))?;
            let kind = match gid.kind {
                GidKind::InfiniBand | GidKind::RoceV1 => "IB/RoCE v1",
                GidKind::RoceV2 => "RoCE v2",
            };
            self.file(&format!("{port}/gid_attrs/types/{index}"), kind)?;
        }
        Ok(())
    }
}

/// The name of an adapter's device file.
pub fn device_name(index: usize) -> String {
    format!("uverbs{index}")
}

/// Bytes in groups of two, as sysfs shows GUIDs and GIDs.
fn groups(bytes: &[u8]) -> String {
    let groups: Vec<_> =
        bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    groups.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that is missing here hides the adapters from that version of the verbs library.
    #[test]
    fn the_provider_has_all_names_that_the_library_knows() {
        assert_eq!(PROVIDER_SUFFIXES, hwsim::verbs::PROVIDER_SUFFIXES);
    }

    /// The tree's links lead where they say: from adapter to PCI function, and to its neighbours.
    #[test]
    fn the_tree_leads_from_adapters_to_pci() {
        let folder = tempfile::tempdir().unwrap();
        let machine = Description::builtin("dgx-a100").unwrap();
        let fabric = Directory::open(folder.path()).unwrap();
        write_sysfs(folder.path(), &machine, 3, &fabric).unwrap();
        let read = |path: &str| fs::read_to_string(folder.path().join(path)).unwrap();
        assert_eq!(read("class/infiniband/hwsim5/device/numa_node"), "7\n");
        assert_eq!(read("class/infiniband_verbs/uverbs5/ibdev"), "hwsim5\n");
        assert_eq!(read("class/infiniband/hwsim5/ports/1/lid"), "0x66\n", "1 + 3 * 32 + 5");
        let place = |path: &str| folder.path().join(path).canonicalize().unwrap();
        let adapter = place("class/infiniband/hwsim5/device");
        assert_eq!(adapter, place("bus/pci/devices/0000:94:00.0"));
        let gpu = place(&format!("bus/pci/devices/{}", machine.gpus[5].bus_id));
        assert_eq!(adapter.parent(), gpu.parent(), "below one switch");
    }

    /// What a driver of the real function would find, and whose channels are whose.
    #[test]
    fn engines_are_pci_functions_with_a_bar() {
        let (folder, fabric) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let fabric = Directory::open(fabric.path()).unwrap();
        let machine = Description::find("ark x 2").unwrap();
        for node in 0..2 {
            let root = folder.path().join(node.to_string());
            write_sysfs(&root, &machine, node, &fabric).unwrap();
            // Another run on the same node.
            let root = folder.path().join(format!("again{node}"));
            write_sysfs(&root, &machine, node, &fabric).unwrap();
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
            assert_eq!(place(path.clone()).parent(), beside.parent(), "below one switch");
            let again = function(&format!("again{node}"), engine.bus_id);
            assert_eq!(place(path.join("resource0")), place(again.join("resource0")));
        }
        assert_eq!(addresses.len(), 16);
    }
}
