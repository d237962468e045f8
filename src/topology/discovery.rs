//! This node as a [`Machine`]: GPUs and NVLinks from NVML, adapters and the PCI tree from sysfs.

use super::adapter::{Adapter, LinkLayer, sysfs};
use super::machine::{
    CLASS_BRIDGE, CLASS_GPU, CLASS_INFINIBAND, Device, DeviceKind, Gpu, Machine, NetworkPort,
    Parent, PcieLink, Socket,
};
use super::nvml::Management;
use super::pci::{self, PciAddress};
use std::collections::HashMap;
use std::path::Path;

/// PCI class of adapters for Ethernet.
const CLASS_ETHERNET: u32 = 0x02_00_00;

impl Machine {
    /// What this node is made of.
    ///
    /// # Errors
    /// In words, why NVML cannot be asked.
    pub fn discover() -> Result<Self, String> {
        let sysfs = sysfs();
        Ok(Self::of(&Management::read()?, &super::adapter::read(&sysfs), &sysfs))
    }

    /// The machine that management library, adapters and sysfs describe.
    pub fn of(management: &Management, adapters: &[Adapter], sysfs: &Path) -> Self {
        let mut building = Building { machine: Self::default(), sysfs, places: HashMap::new() };
        for gpu in &management.gpus {
            let kind = DeviceKind::Gpu(Gpu {
                number: management.number(gpu.pci).unwrap_or(0),
                compute: gpu.compute.0 * 10 + gpu.compute.1,
                gcn: None,
                nvlinks: management.nvlinks(gpu),
            });
            building.add(gpu.pci, CLASS_GPU, gpu.pcie.and_then(of_generation), kind);
        }
        for adapter in adapters {
            let Some(address) = adapter.pci else { continue };
            let port = |port: &super::Port| NetworkPort {
                name: adapter.name.clone(),
                port: u32::from(port.number),
                mbps: port.rate_mbps,
                guid: port.gids.first().map_or(0, |gid| {
                    // The lower half of an address on InfiniBand is the port's identity.
                    gid.raw[8..].iter().fold(0, |guid, byte| guid << 8 | u64::from(*byte))
                }),
                gpu_direct: true,
            };
            let kind = DeviceKind::Adapter(adapter.ports.iter().map(port).collect());
            building.add(address, class_of(adapter), None, kind);
        }
        building.machine
    }
}

/// What the ports of an adapter say that it is.
fn class_of(adapter: &Adapter) -> u32 {
    let mut ports = adapter.ports.iter();
    match ports.any(|port| port.link_layer == LinkLayer::Ethernet) {
        true => CLASS_ETHERNET,
        false => CLASS_INFINIBAND,
    }
}

/// Speed of a generation of PCI Express.
fn of_generation((generation, lanes): (u32, u32)) -> Option<PcieLink> {
    let decitransfers = match generation {
        1 => 25,
        2 => 50,
        3..=7 => 80 << (generation - 3),
        _ => return None,
    };
    Some(PcieLink { decitransfers, lanes })
}

struct Building<'a> {
    machine: Machine,
    sysfs: &'a Path,
    /// Of devices, by address.
    places: HashMap<PciAddress, usize>,
}

impl Building<'_> {
    /// Adds a device, with the bridges above it that are not there yet. Its class is what Linux
    /// says, or this one where Linux does not know the function.
    fn add(&mut self, address: PciAddress, class: u32, link: Option<PcieLink>, kind: DeviceKind) {
        if self.places.contains_key(&address) {
            return;
        }
        let folder = pci::folder_of(self.sysfs, address);
        let mut parent = Parent::Socket(self.socket(pci::numa_of(&folder)));
        let path = pci::path_of(&folder);
        let bridges = path.iter().filter_map(|part| part.parse::<PciAddress>().ok());
        for bridge in bridges.filter(|bridge| *bridge != address) {
            let place = match self.places.get(&bridge) {
                Some(&place) => place,
                None => {
                    let link = self.link(bridge);
                    self.push(bridge, parent, CLASS_BRIDGE, link, DeviceKind::Bridge)
                }
            };
            parent = Parent::Device(place);
        }
        let link = link.or_else(|| self.link(address));
        self.push(address, parent, class, link, kind);
    }

    fn push(
        &mut self,
        address: PciAddress,
        parent: Parent,
        class: u32,
        link: Option<PcieLink>,
        kind: DeviceKind,
    ) -> usize {
        let place = self.machine.devices.len();
        let class = self.class(address).unwrap_or(class);
        self.machine.devices.push(Device { address, parent, class, link, kind });
        self.places.insert(address, place);
        place
    }

    /// The place of a NUMA node.
    fn socket(&mut self, numa_node: Option<u32>) -> usize {
        let sockets = &mut self.machine.sockets;
        sockets.iter().position(|socket| socket.numa_node == numa_node).unwrap_or_else(|| {
            let arch = std::env::consts::ARCH.to_owned();
            sockets.push(Socket { numa_node, arch, ..Socket::default() });
            sockets.len() - 1
        })
    }

    /// What a function is, as Linux shows it: `0x020000`.
    fn class(&self, address: PciAddress) -> Option<u32> {
        let path = pci::folder_of(self.sysfs, address).join("class");
        let text = std::fs::read_to_string(path).ok()?;
        u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
    }

    /// The fastest that a function's link can be, as Linux shows it.
    fn link(&self, address: PciAddress) -> Option<PcieLink> {
        let folder = pci::folder_of(self.sysfs, address);
        let read = |name| std::fs::read_to_string(folder.join(name)).ok();
        PcieLink::from_texts(&read("max_link_speed")?, &read("max_link_width")?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// An adapter below a bridge; its class and link layer are these, where Linux says them.
    fn add(root: &Path, name: &str, bus: &str, class: Option<&str>, link_layer: Option<&str>) {
        let bridge = format!("devices/pci0000:00/0000:00:0{bus}.0");
        let function = format!("{bridge}/0000:0{bus}:00.0");
        write(root, &format!("{bridge}/class"), "0x060400\n");
        write(root, &format!("{function}/numa_node"), "0\n");
        if let Some(class) = class {
            write(root, &format!("{function}/class"), class);
        }
        let devices = root.join("bus/pci/devices");
        std::fs::create_dir_all(&devices).unwrap();
        symlink(root.join(&bridge), devices.join(format!("0000:00:0{bus}.0"))).unwrap();
        symlink(root.join(&function), devices.join(format!("0000:0{bus}:00.0"))).unwrap();
        let adapter = format!("class/infiniband/{name}");
        write(root, &format!("{adapter}/ports/1/state"), "4: ACTIVE\n");
        if let Some(layer) = link_layer {
            write(root, &format!("{adapter}/ports/1/link_layer"), layer);
        }
        symlink(root.join(&function), root.join(adapter).join("device")).unwrap();
    }

    /// If this fails, an exported topology calls adapters what they are not, and NCCL, which reads
    /// it, groups them with others than on the machine itself.
    #[test]
    fn classes_are_those_that_linux_shows_or_that_the_ports_say() {
        let root = tempfile::tempdir().unwrap();
        let cases = [
            ("a0", "1", Some("0x020000\n"), Some("Ethernet\n"), 0x02_00_00),
            ("a1", "2", Some("0x020700\n"), Some("InfiniBand\n"), 0x02_07_00),
            // Linux's word counts: an adapter for both may be an InfiniBand controller.
            ("a2", "3", Some("0x020700\n"), Some("Ethernet\n"), 0x02_07_00),
            ("a3", "4", None, Some("Ethernet\n"), 0x02_00_00),
            ("a4", "5", Some("nonsense\n"), Some("Ethernet\n"), 0x02_00_00),
            ("a5", "6", None, None, 0x02_07_00),
        ];
        for (name, bus, class, layer, _) in cases {
            add(root.path(), name, bus, class, layer);
        }
        let management =
            Management { driver_version: String::new(), gpus: Vec::new(), silent: Vec::new() };
        let adapters = super::super::adapter::read(root.path());
        let machine = Machine::of(&management, &adapters, root.path());
        for (name, bus, _, _, expected) in cases {
            let address: PciAddress = format!("0000:0{bus}:00.0").parse().unwrap();
            let device = machine.devices.iter().find(|device| device.address == address);
            assert_eq!(device.expect(name).class, expected, "{name}");
        }
        let bridges = machine.devices.iter().filter(|device| device.class == CLASS_BRIDGE);
        assert_eq!(bridges.count(), cases.len());
    }
}
