//! A node as a tree: sockets, PCI bridges, GPUs and adapters; and the NVLinks between GPUs.

use super::graph::{CapacityGraph, NodeId};
use super::network::Network;
use super::pci::PciAddress;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A node's sockets and devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// NUMA nodes that devices hang on.
    pub sockets: Vec<Socket>,
    /// Bridges, GPUs and adapters; each behind what it hangs on.
    pub devices: Vec<Device>,
}

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Socket {
    /// Its number, where it is known.
    pub numa_node: Option<u32>,
    /// Architecture, such as `x86_64`.
    pub arch: String,
    /// The processor's vendor, such as `GenuineIntel`.
    pub vendor: String,
    /// Number of the processor's family.
    pub family: Option<u32>,
    /// Number of the processor's model.
    pub model: Option<u32>,
    /// The processors of this NUMA node, as a mask in hexadecimal digits.
    pub affinity: String,
}

/// What a device hangs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// A socket's root complex, by the socket's place.
    Socket(usize),
    /// A bridge, by its place among the devices.
    Device(usize),
}

/// A PCI function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its address.
    pub address: PciAddress,
    /// What it hangs on.
    pub parent: Parent,
    /// Its PCI class, such as `0x030200`.
    pub class: u32,
    /// Its link to what it hangs on, where it is known.
    pub link: Option<PcieLink>,
    /// What it is.
    pub kind: DeviceKind,
}

/// Speed of a PCI Express link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcieLink {
    /// Transfers a second on each lane, in units of 0.1 GT/s.
    pub decitransfers: u32,
    /// Lanes.
    pub lanes: u32,
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A bridge or a PCI switch.
    Bridge,
    /// A GPU.
    Gpu(Gpu),
    /// A network adapter with its ports.
    Adapter(Vec<NetworkPort>),
}

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    /// Its number among those of the node.
    pub number: u32,
    /// Compute capability, ten times the major part plus the minor one; 0 if it is not known.
    pub compute: u32,
    /// AMD's name of its architecture, of a GPU of AMD's; its links are xGMI then.
    pub gcn: Option<String>,
    /// Its NVLinks or xGMI links, by their other ends.
    pub nvlinks: Vec<NvLinks>,
}

/// NVLinks to one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvLinks {
    /// The other end. Of an NVSwitch that a guest does not see, any address that names it.
    pub to: PciAddress,
    /// How many links.
    pub count: u32,
    /// PCI class of the other end.
    pub class: u32,
}

/// A port of an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkPort {
    /// The adapter's name, such as `mlx5_0`.
    pub name: String,
    /// The port's number, from 1.
    pub port: u32,
    /// Megabits a second.
    pub mbps: u64,
    /// The adapter's identity.
    pub guid: u64,
    /// Does it read and write GPU memory?
    pub gpu_direct: bool,
}

/// PCI classes.
pub(super) const CLASS_BRIDGE: u32 = 0x06_04_00;
/// PCI class of GPUs.
pub const CLASS_GPU: u32 = 0x03_02_00;
pub(super) const CLASS_INFINIBAND: u32 = 0x02_07_00;
/// PCI class of NVSwitches.
pub const CLASS_NVSWITCH: u32 = 0x06_80_00;

/// Between two sockets, MB/s in each direction. An assumption: no interface tells it. It is that of
/// two UPI links of 10.4 GT/s.
pub(crate) const SOCKETS_MBPS: u64 = 20_800;

/// Of a PCI link that nobody describes: generation 3, 16 lanes.
const UNKNOWN_PCIE: PcieLink = PcieLink { decitransfers: 80, lanes: 16 };

impl PcieLink {
    /// Reads what Linux says: `8.0 GT/s PCIe`, and `16`.
    pub(super) fn from_texts(speed: &str, width: &str) -> Option<Self> {
        let speed: f64 = speed.split_whitespace().next()?.parse().ok()?;
        let decitransfers = (speed * 10.0).round();
        let lanes = width.trim().parse().ok()?;
        let is_known = (1.0..=10_000.0).contains(&decitransfers) && (1..=64).contains(&lanes);
        is_known.then_some(Self { decitransfers: decitransfers as u32, lanes })
    }

    /// MB/s in each direction, less the line code.
    pub fn megabytes(self) -> u64 {
        let bits = u64::from(self.decitransfers) * 100 * u64::from(self.lanes);
        // 8b/10b up to generation 2, then 128b/130b.
        match self.decitransfers < 80 {
            true => bits * 8 / 10 / 8,
            false => bits * 128 / 130 / 8,
        }
    }
}

impl Gpu {
    /// MB/s in each direction of one NVLink or xGMI link, from data sheets.
    pub fn nvlink_megabytes(&self) -> u64 {
        if let Some(gcn) = &self.gcn {
            return match gcn.as_str() {
                "906" | "908" | "gfx906" | "gfx908" => 46_000,
                "910" | "gfx90a" => 50_000,
                _ => 64_000,
            };
        }
        match self.compute {
            1..70 => 20_000,
            100.. => 50_000,
            _ => 25_000,
        }
    }
}

/// How two devices of a node are joined, in the words of `nvidia-smi topo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Joined {
    /// The same device.
    Itself,
    /// By so many NVLinks, or as many as both have to NVSwitches.
    NvLink(u32),
    /// Below one PCI switch.
    Pix,
    /// Below several PCI switches.
    Pxb,
    /// Through a socket's root complexes.
    Phb,
    /// Across sockets.
    Sys,
}

impl std::fmt::Display for Joined {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = match self {
            Self::Itself => "X",
            Self::NvLink(count) => return f.pad(&format!("NV{count}")),
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::Phb => "PHB",
            Self::Sys => "SYS",
        };
        f.pad(text)
    }
}

/// NVLinks that join a GPU with these links to the one at `other`, which has those: direct ones, or
/// as many as both have to common switches.
pub(crate) fn nvlinks_between(own: &[NvLinks], other: PciAddress, others: &[NvLinks]) -> u32 {
    let direct: u32 = own.iter().filter(|links| links.to == other).map(|links| links.count).sum();
    if direct > 0 {
        return direct;
    }
    // A switch passes anything on to all that are plugged into it; a GPU does not.
    let switched = |links: &[NvLinks], far: &[NvLinks]| -> u32 {
        let switches = links.iter().filter(|links| links.class == CLASS_NVSWITCH);
        let common = switches.filter(|links| far.iter().any(|far| far.to == links.to));
        common.map(|links| links.count).sum()
    };
    switched(own, others).min(switched(others, own))
}

/// How the PCI tree of a socket joins two devices with these bridges above, the nearest first.
pub(super) fn meeting<T: PartialEq>(above_a: &[T], above_b: &[T]) -> Joined {
    let meet = above_a.iter().position(|bridge| above_b.contains(bridge));
    let Some(steps_a) = meet else { return Joined::Phb };
    let steps_b = above_b.iter().position(|bridge| *bridge == above_a[steps_a]).unwrap_or(0);
    // A PCI switch is a bridge above, and one for each device below.
    if steps_a.max(steps_b) <= 1 { Joined::Pix } else { Joined::Pxb }
}

impl Machine {
    /// The GPUs with their places among the devices, by number.
    pub fn gpus(&self) -> Vec<(usize, &Gpu)> {
        let devices = self.devices.iter().enumerate();
        let mut gpus: Vec<_> = devices
            .filter_map(|(place, device)| match &device.kind {
                DeviceKind::Gpu(gpu) => Some((place, gpu)),
                _ => None,
            })
            .collect();
        gpus.sort_by_key(|(_, gpu)| gpu.number);
        gpus
    }

    /// The adapters' ports with the adapters' places among the devices.
    pub fn ports(&self) -> impl Iterator<Item = (usize, &NetworkPort)> {
        self.devices.iter().enumerate().flat_map(|(place, device)| {
            let ports = match &device.kind {
                DeviceKind::Adapter(ports) => ports.as_slice(),
                DeviceKind::Bridge | DeviceKind::Gpu(_) => &[],
            };
            ports.iter().map(move |port| (place, port))
        })
    }

    /// The bridges above a device, the nearest first, and its socket.
    pub(super) fn above(&self, place: usize) -> (Vec<usize>, usize) {
        let mut bridges = Vec::new();
        let mut parent = self.devices[place].parent;
        loop {
            match parent {
                Parent::Socket(socket) => return (bridges, socket),
                Parent::Device(bridge) => {
                    bridges.push(bridge);
                    parent = self.devices[bridge].parent;
                }
            }
        }
    }

    /// The link of a device to what it hangs on: where nobody describes it, as the best of those
    /// below it, or else a usual one.
    pub(super) fn link(&self, place: usize) -> PcieLink {
        let below =
            self.devices.iter().enumerate().filter(
                |(_, device)| matches!(device.parent, Parent::Device(above) if above == place),
            );
        let of_below = || below.map(|(below, _)| self.link(below)).max_by_key(|l| l.megabytes());
        self.devices[place].link.or_else(of_below).unwrap_or(UNKNOWN_PCIE)
    }

    /// MB/s in each direction of one NVLink of a GPU.
    pub(super) fn nvlink_megabytes(&self, place: usize) -> u64 {
        match &self.devices[place].kind {
            DeviceKind::Gpu(gpu) => gpu.nvlink_megabytes(),
            DeviceKind::Bridge | DeviceKind::Adapter(_) => 0,
        }
    }

    /// How two devices are joined: by NVLink if they are, else by the PCI tree.
    pub fn joined(&self, a: usize, b: usize) -> Joined {
        if a == b {
            return Joined::Itself;
        }
        match self.nvlinks_between(a, b) {
            0 => self.joined_by_pci(a, b),
            count => Joined::NvLink(count),
        }
    }

    /// How the PCI tree joins two devices.
    pub fn joined_by_pci(&self, a: usize, b: usize) -> Joined {
        let ((above_a, socket_a), (above_b, socket_b)) = (self.above(a), self.above(b));
        if socket_a != socket_b {
            return Joined::Sys;
        }
        meeting(&above_a, &above_b)
    }

    fn nvlinks_between(&self, a: usize, b: usize) -> u32 {
        let (DeviceKind::Gpu(gpu_a), DeviceKind::Gpu(gpu_b)) =
            (&self.devices[a].kind, &self.devices[b].kind)
        else {
            return 0;
        };
        nvlinks_between(&gpu_a.nvlinks, self.devices[b].address, &gpu_b.nvlinks)
    }

    /// As [`capacities_over`](Self::capacities_over), with one network that holds nobody up.
    ///
    /// # Errors
    /// As there.
    pub fn capacities(&self, gpus: &[u32], nodes: u32) -> Result<CapacityGraph> {
        self.capacities_over(gpus, nodes, Network::default())
    }

    /// Capacities in MB/s between the GPUs with these numbers, on so many nodes like this one. Of
    /// one node: the NVLinks, if they connect all of them, else with them the PCI tree. Of several:
    /// NVLinks and adapters, the network that joins them, and of each adapter for each GPU that it
    /// is nearest to an equal share.
    ///
    /// # Errors [`Error::Argument`] if there is no such GPU, or one is named twice; if an NVLink's
    /// other end is no device of the machine; if several nodes have no adapter, or their network
    /// makes no sense.
    pub fn capacities_over(
        &self,
        gpus: &[u32],
        nodes: u32,
        network: Network,
    ) -> Result<CapacityGraph> {
        if nodes != 1 {
            let mut graph = self.nvlinks(gpus, nodes)?;
            let of_node = self.adapter_shares(&self.chosen(gpus)?);
            let shares: Vec<_> = (0..nodes).flat_map(|_| of_node.clone()).collect();
            network.join(&mut graph, of_node.len() as u32, &shares)?;
            return Ok(graph);
        }
        let graph = self.nvlinks(gpus, 1)?;
        if graph.is_connected() {
            return Ok(graph);
        }
        self.with_pci(graph, gpus)
    }

    /// Places of the GPUs with these numbers.
    pub(super) fn chosen(&self, numbers: &[u32]) -> Result<Vec<usize>> {
        let gpus = self.gpus();
        let mut places = Vec::new();
        for number in numbers {
            let Some((place, _)) = gpus.iter().find(|(_, gpu)| gpu.number == *number) else {
                let all: Vec<_> = gpus.iter().map(|(_, gpu)| gpu.number.to_string()).collect();
                return Err(Error::argument("GPU", format!("one of {}", all.join(" ")), number));
            };
            if places.contains(place) {
                return Err(Error::argument("GPUs", "each once", format!("{number} twice")));
            }
            places.push(*place);
        }
        Ok(places)
    }

    /// GPUs of all nodes, node by node, with their NVLinks and NVSwitches.
    fn nvlinks(&self, numbers: &[u32], nodes: u32) -> Result<CapacityGraph> {
        let places = self.chosen(numbers)?;
        let mut graph = CapacityGraph::new();
        let of_node = |node: u32| if nodes > 1 { format!("node {node}, ") } else { String::new() };
        for node in 0..nodes {
            for number in numbers {
                graph.gpu(format!("{}GPU {number}", of_node(node)));
            }
        }
        let known = |address| self.devices.iter().any(|device| device.address == address);
        for node in 0..nodes {
            let first = node * places.len() as u32;
            let mut switches: BTreeMap<String, Vec<(NodeId, u64)>> = BTreeMap::new();
            for (nth, &place) in (first..).zip(&places) {
                let DeviceKind::Gpu(gpu) = &self.devices[place].kind else { continue };
                for links in &gpu.nvlinks {
                    let capacity = u64::from(links.count) * gpu.nvlink_megabytes();
                    let far = places.iter().position(|far| self.devices[*far].address == links.to);
                    if let Some(far) = far {
                        // Each end names the link: each adds its own direction.
                        graph.arc(NodeId(nth), NodeId(first + far as u32), capacity)?;
                    } else if links.class == CLASS_NVSWITCH {
                        let plugged = switches.entry(links.to.to_string()).or_default();
                        plugged.push((NodeId(nth), capacity));
                    } else if !known(links.to) {
                        let what = format!("NVLink of GPU {}", gpu.number);
                        return Err(Error::argument(&what, "a device of the machine", links.to));
                    }
                }
            }
            // Switches that join the same GPUs equally pass on what one does that has all links.
            let mut alike: BTreeMap<Vec<(NodeId, u64)>, u64> = BTreeMap::new();
            switches.into_values().for_each(|plugged| *alike.entry(plugged).or_default() += 1);
            for (plugged, count) in alike {
                let switch = graph.switch(format!("{}{count} NVSwitch", of_node(node)));
                for (gpu, capacity) in plugged {
                    graph.link(gpu, switch, capacity * count)?;
                }
            }
        }
        Ok(graph)
    }

    /// Adds the PCI tree below the sockets, and what joins these.
    fn with_pci(&self, mut graph: CapacityGraph, numbers: &[u32]) -> Result<CapacityGraph> {
        let places = self.chosen(numbers)?;
        let mut nodes: BTreeMap<usize, NodeId> = BTreeMap::new();
        let mut sockets: BTreeMap<usize, NodeId> = BTreeMap::new();
        for (nth, &gpu) in (0..).zip(&places) {
            let (mut below, mut at) = (NodeId(nth), gpu);
            loop {
                let megabytes = self.link(at).megabytes();
                let (above, is_new) = match self.devices[at].parent {
                    Parent::Socket(socket) => {
                        let name = format!("socket {socket}");
                        let node = sockets.entry(socket).or_insert_with(|| graph.switch(name));
                        (*node, false)
                    }
                    Parent::Device(bridge) => {
                        at = bridge;
                        let is_new = !nodes.contains_key(&bridge);
                        let name = format!("bridge {}", self.devices[bridge].address);
                        (*nodes.entry(bridge).or_insert_with(|| graph.switch(name)), is_new)
                    }
                };
                graph.link(below, above, megabytes)?;
                if !is_new {
                    break;
                }
                below = above;
            }
        }
        let sockets: Vec<_> = sockets.into_values().collect();
        for (nth, &a) in sockets.iter().enumerate() {
            for &b in &sockets[nth + 1..] {
                graph.link(a, b, SOCKETS_MBPS)?;
            }
        }
        Ok(graph)
    }

    /// MB/s of adapters for each of the GPUs at these places: of each port for each GPU that it is
    /// nearest to an equal share.
    pub(super) fn adapter_shares(&self, places: &[usize]) -> Vec<u64> {
        let mut shares = vec![0; places.len()];
        for (adapter, port) in self.ports() {
            let distance = |gpu: &usize| self.joined_by_pci(*gpu, adapter);
            let Some(nearest) = places.iter().map(distance).min() else { continue };
            let near: Vec<_> =
                (0..places.len()).filter(|gpu| distance(&places[*gpu]) == nearest).collect();
            for &gpu in &near {
                shares[gpu] += port.mbps / 8 / near.len() as u64;
            }
        }
        shares
    }
}
