//! What programs see of a machine before they open anything: a tree like the kernel's `/sys`, with
//! PCI functions and the bridges above them, RDMA adapters, network interfaces and NUMA nodes.
//!
//! The verbs library reads it below `SYSFS_PATH`. Without `--no-sys` it is shown as `/sys` itself,
//! beside what the host has there. All of it follows from the machine's description, as do the
//! answers of the virtual driver, of NVML and of the verbs provider.

mod adapter;
mod nodes;

use crate::engines;
use crate::error::Error;
use crate::pci::function::{self, Bar, Identity};
use crate::pci::tree::{self, Place, Port};
use hwsim_machine::adapter::{Endpoint, counters};
use hwsim_machine::description::{Description, LinkLayer, PciBusId};
use hwsim_machine::fabric::Directory;
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Where the verbs library and tools look for `/sys`.
pub const VARIABLE: &str = "SYSFS_PATH";
/// Where Linux has it.
pub const HOST: &str = "/sys";
/// NVIDIA. Its products' numbers belong to real ones: virtual ones have 0, as NVML says too.
const NVIDIA: u16 = 0x10de;
/// Nobody: virtual adapters are no vendor's, or the driver library of that vendor would take them.
const NOBODY: u16 = 0;
/// The product number of virtual adapters.
const ADAPTER: u16 = 0x5241;
/// Red Hat, whose number QEMU's bridges have, its generic port and its host bridge.
const BRIDGE: (u16, u16) = (0x1b36, 0x000c);
const HOST_BRIDGE: (u16, u16) = (0x1b36, 0x0008);
/// Made-up addresses of BARs: registers of GPUs, and their memory, 256 GiB apart. Engines come
/// behind.
const REGISTERS: u64 = 0xd000_0000;
const REGISTER_BYTES: u64 = 16 << 20;
const MEMORY: u64 = 0x3000_0000_0000;
const MEMORY_STRIDE: u64 = 1 << 38;

/// What is written of one node.
pub struct Shown<'a> {
    /// The machine.
    pub machine: &'a Description,
    /// Which node of the cluster.
    pub node: u32,
    /// The folder with the BARs of its engines.
    pub fabric: &'a Directory,
    /// All that Linux shows, and not only what the verbs library and ringdove look at.
    pub whole: bool,
    /// Its adapters have network interfaces, of which the first of the node has this index.
    pub interfaces: Option<u32>,
}

/// Writes the tree of one node into a folder that does not exist yet.
pub fn write(root: &Path, shown: &Shown) -> Result<(), Error> {
    let machine = shown.machine;
    let places = tree::places(machine, &on_host(HOST));
    let places = places.into_iter().map(|place| (place.address, place)).collect();
    let whole = shown.whole.then(nodes::host_processors);
    let tree = Tree { root, machine, places, whole };
    let failed = || Error::system(format!("writing {}", root.display()));
    tree.write().map_err(failed())?;
    for (index, engine) in machine.engines.iter().enumerate() {
        let function = engines::function(machine, shown.node, index, shown.fabric)?;
        let path = tree.path(engine.bus_id);
        tree.function(engine.bus_id, function.identity, &[function.bar]).map_err(failed())?;
        symlink(&function.file, root.join(path).join("resource0")).map_err(failed())?;
    }
    for (index, adapter) in machine.adapters.iter().enumerate() {
        let endpoint = Endpoint { node: shown.node, adapter: index as u32 };
        tree.adapter(index, adapter, endpoint).map_err(failed())?;
        // Where the fabric's folder has no room, an adapter does not count.
        if let Ok(page) = counters::make_page(shown.fabric, endpoint) {
            tree.counters(adapter, &page).map_err(failed())?;
        }
        if let Some(first) = shown.interfaces {
            tree.interface(adapter, endpoint, first + index as u32).map_err(failed())?;
        }
    }
    if shown.interfaces.is_some() {
        tree.loopback().map_err(failed())?;
    }
    Ok(())
}

/// The devices of the host that are shown beside those of the machine, on buses of its root
/// complexes.
fn on_host(sysfs: &str) -> impl Fn(u8, u8) -> bool {
    let sysfs = Path::new(sysfs).to_owned();
    move |bus, device| {
        let root = sysfs.join(format!("devices/pci0000:{bus:02x}"));
        (0..8).any(|function| root.join(format!("0000:{bus:02x}:{device:02x}.{function}")).exists())
    }
}

struct Tree<'a> {
    root: &'a Path,
    machine: &'a Description,
    places: HashMap<PciBusId, Place>,
    /// The host's processors, where all is to be written.
    whole: Option<String>,
}

type Written = std::io::Result<()>;

impl Tree<'_> {
    fn write(&self) -> Written {
        self.file("class/infiniband_verbs/abi_version", 6)?;
        self.file("class/infiniband_mad/abi_version", 5)?;
        self.file("class/misc/rdma_cm/abi_version", 4)?;
        fs::create_dir_all(self.root.join("class/infiniband"))?;
        fs::create_dir_all(self.root.join("bus/pci/devices"))?;
        fs::create_dir_all(self.root.join("class/pci_bus"))?;
        for (index, gpu) in self.machine.gpus.iter().enumerate() {
            let identity = Identity { vendor: NVIDIA, device: 0, class: 0x03_0200 };
            let registers = Bar {
                register: 0,
                start: REGISTERS + index as u64 * REGISTER_BYTES,
                bytes: REGISTER_BYTES,
                is_wide: false,
            };
            let memory = Bar {
                register: 1,
                start: MEMORY + index as u64 * MEMORY_STRIDE,
                bytes: gpu.model.memory_bytes.next_power_of_two(),
                is_wide: true,
            };
            self.function(gpu.bus_id, identity, &[registers, memory])?;
        }
        for adapter in &self.machine.adapters {
            let class = match adapter.link_layer {
                LinkLayer::InfiniBand => 0x02_0700,
                LinkLayer::Ethernet => 0x02_0000,
            };
            let identity = Identity { vendor: NOBODY, device: ADAPTER, class };
            self.function(adapter.bus_id, identity, &[])?;
        }
        if self.whole.is_none() {
            return Ok(());
        }
        for switch in &self.machine.nv_switches {
            let identity = Identity { vendor: NVIDIA, device: 0, class: 0x06_8000 };
            self.function(switch.bus_id, identity, &[])?;
        }
        for place in self.places.values().filter(|place| place.port != Port::Endpoint) {
            let ((vendor, device), class) = match place.port {
                Port::Host => (HOST_BRIDGE, 0x06_0000),
                _ => (BRIDGE, 0x06_0400),
            };
            self.function(place.address, Identity { vendor, device, class }, &[])?;
        }
        self.nodes()
    }

    fn file(&self, path: &str, content: impl std::fmt::Display) -> Written {
        let path = self.root.join(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, format!("{content}\n"))
    }

    /// Several files of a folder.
    fn files(&self, folder: &str, files: &[(&str, &dyn std::fmt::Display)]) -> Written {
        files.iter().try_for_each(|(name, content)| self.file(&format!("{folder}/{name}"), content))
    }

    /// The folder of a PCI function, below those of the bridges above it.
    fn path(&self, address: PciBusId) -> String {
        match self.places.get(&address) {
            Some(place) => place.path.clone(),
            None => format!("devices/{address}"),
        }
    }

    fn function(&self, address: PciBusId, identity: Identity, bars: &[Bar]) -> Written {
        let Some(place) = self.places.get(&address) else { return Ok(()) };
        let path = &place.path;
        let Identity { vendor, device, class } = identity;
        self.files(
            path,
            &[
                ("class", &format!("{class:#08x}")),
                ("vendor", &format!("{vendor:#06x}")),
                ("device", &format!("{device:#06x}")),
                ("numa_node", &place.numa_node),
                ("resource", &function::resource(bars)),
            ],
        )?;
        if let Some(processors) = &self.whole {
            let id = format!("PCI_CLASS={class:X}\nPCI_ID={vendor:04X}:{device:04X}");
            self.files(
                path,
                &[
                    ("subsystem_vendor", &"0x0000"),
                    ("subsystem_device", &"0x0000"),
                    ("revision", &"0x00"),
                    ("irq", &0),
                    ("enable", &1),
                    ("local_cpulist", &processors.trim_end()),
                    ("local_cpus", &nodes::mask(processors)),
                    ("uevent", &format!("{id}\nPCI_SLOT_NAME={address}")),
                ],
            )?;
            let configuration = function::configuration(identity, place, bars);
            fs::write(self.root.join(path).join("config"), configuration)?;
        }
        if let Some(pcie) = place.pcie {
            for which in ["current", "max"] {
                let speed = format!("{} GT/s PCIe", function::speed(pcie));
                self.file(&format!("{path}/{which}_link_speed"), speed)?;
                self.file(&format!("{path}/{which}_link_width"), pcie.lanes)?;
            }
        }
        let link = format!("bus/pci/devices/{address}");
        symlink(format!("../../../{path}"), self.root.join(link))?;
        let up = "../".repeat(path.split('/').count());
        symlink(format!("{up}bus/pci"), self.root.join(path).join("subsystem"))?;
        self.bus(path)
    }

    /// Shows the bus that the function with this folder is on. NCCL finds functions by their buses,
    /// and their bridges from there.
    fn bus(&self, function: &str) -> Written {
        let Some((bridge, address)) = function.rsplit_once('/') else { return Ok(()) };
        let Some((bus, _)) = address.rsplit_once(':') else { return Ok(()) };
        let link = self.root.join("class/pci_bus").join(bus);
        if link.symlink_metadata().is_ok() {
            return Ok(());
        }
        fs::create_dir_all(self.root.join(bridge).join("pci_bus").join(bus))?;
        symlink(format!("../../{bridge}/pci_bus/{bus}"), link)
    }
}

#[cfg(test)]
mod tests;
