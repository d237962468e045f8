//! This node as a [`Machine`]: GPUs and NVLinks from NVML, adapters and the PCI tree from sysfs.

use super::adapter::{Adapter, sysfs};
use super::machine::{
    CLASS_BRIDGE, CLASS_GPU, CLASS_INFINIBAND, Device, DeviceKind, Gpu, Machine, NetworkPort,
    Parent, PcieLink, Socket,
};
use super::nvml::Management;
use super::pci::{self, PciAddress};
use std::collections::HashMap;
use std::path::Path;

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
            building.add(address, CLASS_INFINIBAND, None, kind);
        }
        building.machine
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
    /// Adds a device, with the bridges above it that are not there yet.
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

    /// The fastest that a function's link can be, as Linux shows it.
    fn link(&self, address: PciAddress) -> Option<PcieLink> {
        let folder = pci::folder_of(self.sysfs, address);
        let read = |name| std::fs::read_to_string(folder.join(name)).ok();
        PcieLink::from_texts(&read("max_link_speed")?, &read("max_link_width")?)
    }
}
