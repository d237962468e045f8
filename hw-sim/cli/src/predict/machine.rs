//! A machine description as a machine of the model.

use super::PredictError;
use super::arguments::Common;
use hwsim_machine::description::{Description, EngineLimits, LinkKind, Node, PciBusId, Pcie};
use hwsim_timing::machine::{Edge, Graph, LinkKind as Kind};
use hwsim_timing::{Leaf, Machine, Network, Profile, ProfileError, Rate};
use ringdove::topology::PciAddress;
use ringdove::topology::graph::{CapacityGraph, NodeId};
use ringdove::topology::machine::{CLASS_GPU, CLASS_NVSWITCH, Gpu, NvLinks};
use ringdove::topology::ranks::RankGpu;

/// Points are GPUs, root complexes, PCI switches, and one for all NVSwitches: they are reached by
/// equal bundles, over which traffic is spread evenly.
pub(super) fn graph(description: &Description) -> Graph {
    let (gpus, roots) = (description.gpus.len(), description.root_complexes.len());
    let switches = description.switches.len();
    let point = |node| match node {
        Node::Gpu(index) => index,
        Node::RootComplex(index) => gpus + index,
        Node::Switch(index) => gpus + roots + index,
        Node::NvSwitch(_) => gpus + roots + switches,
    };
    let mut points: Vec<String> = description.gpus.iter().map(|it| it.name.clone()).collect();
    points.extend(description.root_complexes.iter().map(|it| it.name.clone()));
    points.extend(description.switches.iter().map(|it| it.name.clone()));
    if !description.nv_switches.is_empty() {
        points.push("nvswitches".into());
    }
    let mut edges: Vec<Edge> = Vec::new();
    for link in description.all_links() {
        let kind = match link.kind {
            LinkKind::NvLink => Kind::NvLink,
            LinkKind::Cpu => Kind::Cpu,
            LinkKind::Pcie => Kind::Pcie,
        };
        let edge =
            Edge { ends: link.ends.map(point), kind, count: link.count, gb_per_s: link.gb_per_s };
        let same = edges.iter_mut().find(|other| {
            (other.ends, other.kind, other.gb_per_s) == (edge.ends, edge.kind, edge.gb_per_s)
        });
        match same {
            Some(other) => other.count += edge.count,
            None => edges.push(edge),
        }
    }
    Graph { name: description.name.clone(), gpu_count: gpus, points, edges }
}

/// The GPUs of a node, and the NVLinks between them, also those through NVSwitches: MB/s in each
/// direction.
pub(super) fn nvlinks(description: &Description) -> Result<CapacityGraph, PredictError> {
    let mut graph = CapacityGraph::new();
    let gpus: Vec<NodeId> = description.gpus.iter().map(|gpu| graph.gpu(&gpu.name)).collect();
    let switches = 0..description.nv_switches.len();
    let switches: Vec<_> = switches.map(|nth| graph.switch(format!("nvswitch{nth}"))).collect();
    for link in description.all_links().iter().filter(|link| link.kind == LinkKind::NvLink) {
        let end = |node| match node {
            Node::Gpu(nth) => gpus.get(nth).copied(),
            Node::NvSwitch(nth) => switches.get(nth).copied(),
            Node::RootComplex(_) | Node::Switch(_) => None,
        };
        let [Some(one), Some(other)] = link.ends.map(end) else { continue };
        let megabytes = u64::from(link.count) * (link.gb_per_s * 1e3).round() as u64;
        graph.link(one, other, megabytes).map_err(|error| PredictError::Flag {
            flag: "--machine",
            expected: "NVLinks between two devices".into(),
            seen: error.to_string(),
        })?;
    }
    Ok(graph)
}

/// The GPUs of a node as ranks on them would tell each other, with adapters of so many GB/s.
pub(super) fn rank_gpus(description: &Description, adapter_gb_per_s: f64) -> Vec<RankGpu> {
    let address = |id: PciBusId| PciAddress {
        domain: id.domain.into(),
        bus: id.bus,
        device: id.device,
        function: id.function,
    };
    let megabytes = |pcie: Pcie| (pcie.gb_per_s() * 1e3) as u64;
    let links = description.all_links();
    let of = |(number, gpu): (usize, &hwsim_machine::description::Gpu)| {
        let own = Node::Gpu(number);
        let ends = links.iter().filter(|link| link.kind == LinkKind::NvLink);
        let others = ends.filter_map(|link| match link.ends {
            [one, other] if one == own => Some((other, link.count)),
            [other, one] if one == own => Some((other, link.count)),
            _ => None,
        });
        let nvlinks = others.filter_map(|(other, count)| {
            let (id, class) = match other {
                // A part of a machine keeps links to GPUs that it lacks.
                Node::Gpu(other) => (description.gpus.get(other)?.bus_id, CLASS_GPU),
                Node::NvSwitch(nth) => (description.nv_switches[nth].bus_id, CLASS_NVSWITCH),
                Node::RootComplex(_) | Node::Switch(_) => return None,
            };
            Some(NvLinks { to: address(id), count, class })
        });
        // A PCI switch is two bridges; nothing but their names matters here.
        let (mut bridges, mut under) = (Vec::new(), gpu.under);
        while let Node::Switch(nth) = under {
            let end = |device| PciAddress { domain: 1 << 16, bus: nth as u8, device, function: 0 };
            bridges.extend([end(1 + number as u8 % 31), end(0)]);
            under = description.switches[nth].under;
        }
        let (major, minor) = gpu.model.compute_capability;
        let compute = major * 10 + minor;
        RankGpu {
            address: address(gpu.bus_id),
            compute,
            nvlink_megabytes: Gpu { compute, ..Gpu::default() }.nvlink_megabytes(),
            nvlinks: nvlinks.collect(),
            adapter_megabytes: (adapter_gb_per_s * 1e3) as u64,
            pcie_megabytes: megabytes(gpu.pcie),
            bridges,
            socket: match under {
                Node::RootComplex(nth) => nth as u32,
                _ => 0,
            },
        }
    };
    description.gpus.iter().enumerate().map(of).collect()
}

/// Built-in profiles by the compute capability of the GPUs that they describe, and the one for
/// those that none describes.
const PROFILES: [((u32, u32), &str); 3] =
    [((7, 0), "ark-v100"), ((8, 0), "a100"), ((9, 0), "h100")];
const OTHERWISE: &str = "ark-v100";

/// The profile that the flags name, or the one for the machine's GPUs; with the limits of the
/// machine's device engines, if it has any. The model has one kind of engine: of several, the
/// least of each limit.
pub(super) fn profile(description: &Description, common: &Common) -> Result<Profile, ProfileError> {
    let fitting = || {
        let capability = description.gpus.first().map(|gpu| gpu.model.compute_capability);
        let fits = |(of, _): &&((u32, u32), &str)| Some(*of) == capability;
        PROFILES.iter().find(fits).map_or(OTHERWISE, |(_, name)| name)
    };
    let mut profile = Profile::find(common.profile.as_deref().unwrap_or_else(fitting))?;
    let engines = &description.engines;
    let least = |limit: fn(&EngineLimits) -> u32| engines.iter().map(|it| limit(&it.limits)).min();
    let device = &mut profile.device;
    if let Some(rate) = engines.iter().map(|it| Rate::from_gb_per_s(it.gb_per_s)).min() {
        device.unit = rate;
    }
    if let Some(bytes) = least(|it| it.sub_request_bytes) {
        device.sub_request = bytes.into();
    }
    if let Some(requests) = least(|it| it.in_flight_max) {
        device.in_flight = requests.into();
    }
    device.lane_depth = least(|it| it.lane_depth).unwrap_or(device.lane_depth);
    Ok(profile)
}

/// The machine that the flags describe.
pub(super) fn convert(
    description: &Description,
    common: &Common,
    profile: &Profile,
) -> Result<Machine, PredictError> {
    let leaf = common.leaf_nodes;
    let leaf = leaf.map(|nodes| Leaf { nodes, oversubscription: common.oversubscription });
    let network = Network { adapter_gb_per_s: common.adapter, leaf };
    let nodes = common.nodes.unwrap_or(description.nodes as usize);
    Ok(Machine::new(&graph(description), nodes, network, profile)?)
}
