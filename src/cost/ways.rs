//! The ways between ranks' GPUs: which links a message crosses, what these carry, and how long the
//! first byte takes.

use super::profile::Profile;
use crate::error::{Error, Result};
use crate::topology::machine::{CLASS_NVSWITCH, SOCKETS_MBPS, nvlinks_between};
use crate::topology::pci::PciAddress;
use crate::topology::ranks::RankGpu;
use std::collections::HashMap;

/// A link in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// A way.
#[derive(Clone, Debug, Default)]
pub struct Way {
    /// The links that it crosses, in order.
    pub links: Vec<LinkId>,
    /// µs until the first byte is there.
    pub latency: f64,
}

/// Ways between each two ranks.
#[derive(Clone, Debug)]
pub struct Ways {
    rank_count: u32,
    per_node: u32,
    names: Vec<String>,
    /// Bytes a µs.
    rates: Vec<f64>,
    /// By sender and receiver: over NVLink where there is one, and over PCI.
    over_all: Vec<Way>,
    over_pci: Vec<Way>,
}

/// The most ranks for which ways are made.
pub const RANKS_MAX: usize = 64;

struct Building<'a> {
    profile: &'a Profile,
    numbers: HashMap<String, LinkId>,
    names: Vec<String>,
    rates: Vec<f64>,
}

impl Building<'_> {
    /// The link of this name, which carries so many MB/s by its data sheet.
    fn link(&mut self, name: String, megabytes: u64, efficiency: f64) -> LinkId {
        if let Some(known) = self.numbers.get(&name) {
            return *known;
        }
        let id = LinkId(self.rates.len() as u32);
        self.rates.push((megabytes.max(1)) as f64 * efficiency);
        self.names.push(name.clone());
        self.numbers.insert(name, id);
        id
    }

    fn nvlink(
        &mut self,
        node: usize,
        from: (usize, &RankGpu),
        to: (usize, &RankGpu),
    ) -> Option<Way> {
        let ((a, one), (b, other)) = (from, to);
        let count = nvlinks_between(&one.nvlinks, other.address, &other.nvlinks);
        if count == 0 {
            return None;
        }
        let efficiency = self.profile.nvlink_efficiency;
        let megabytes = |count: u32, of: &RankGpu| u64::from(count) * of.nvlink_megabytes;
        if one.nvlinks.iter().any(|links| links.to == other.address) {
            let name = format!("node {node}: NVLink {a} to {b}");
            let link = self.link(name, megabytes(count, one), efficiency);
            return Some(Way { links: vec![link], latency: self.profile.nvlink_latency });
        }
        let all = |gpu: &RankGpu| {
            let switched = gpu.nvlinks.iter().filter(|links| links.class == CLASS_NVSWITCH);
            switched.map(|links| links.count).sum::<u32>()
        };
        let out = format!("node {node}: NVSwitch, out of {a}");
        let out = self.link(out, megabytes(all(one), one), efficiency);
        let into = format!("node {node}: NVSwitch, into {b}");
        let into = self.link(into, megabytes(all(other), other), efficiency);
        Some(Way { links: vec![out, into], latency: 2.0 * self.profile.nvlink_latency })
    }

    fn pci(
        &mut self,
        node: usize,
        (a, one): (usize, &RankGpu),
        (b, other): (usize, &RankGpu),
    ) -> Way {
        let Profile { pcie_efficiency, cpu_efficiency, pcie_latency, cpu_latency, .. } =
            *self.profile;
        let mut up = vec![self.link(
            format!("node {node}: PCI, out of {a}"),
            one.pcie_megabytes,
            pcie_efficiency,
        )];
        let mut down = vec![self.link(
            format!("node {node}: PCI, into {b}"),
            other.pcie_megabytes,
            pcie_efficiency,
        )];
        let same_socket = one.socket == other.socket;
        let meets =
            |bridge: &PciAddress, bridges: &[PciAddress]| same_socket && bridges.contains(bridge);
        // A PCI switch is two bridges: one towards the device, one towards the root.
        for (gpu, others, links, way) in
            [(one, &other.bridges, &mut up, "out of"), (other, &one.bridges, &mut down, "into")]
        {
            for pair in gpu.bridges.chunks(2) {
                if pair.iter().any(|bridge| meets(bridge, others)) {
                    break;
                }
                if let [_, upstream] = pair {
                    let name = format!("node {node}: PCI, {way} switch {upstream}");
                    links.push(self.link(name, gpu.pcie_megabytes, pcie_efficiency));
                }
            }
        }
        let mut latency = (up.len() + down.len()) as f64 * pcie_latency;
        if !same_socket {
            let name = format!("node {node}: socket {} to {}", one.socket, other.socket);
            up.push(self.link(name, SOCKETS_MBPS, cpu_efficiency));
            latency += cpu_latency;
        }
        down.reverse();
        up.append(&mut down);
        Way { links: up, latency }
    }

    fn network(&mut self, (a, one): (usize, &RankGpu), (b, other): (usize, &RankGpu)) -> Way {
        let efficiency = self.profile.network_efficiency;
        let out = self.link(format!("adapter, out of {a}"), one.adapter_megabytes, efficiency);
        let into = self.link(format!("adapter, into {b}"), other.adapter_megabytes, efficiency);
        Way { links: vec![out, into], latency: 2.0 * self.profile.network_latency }
    }
}

impl Ways {
    /// The ways between ranks with these GPUs, so many on each node.
    ///
    /// # Errors
    /// [`Error::Argument`] for more than 64 ranks, and nodes of different sizes.
    pub fn new(gpus: &[RankGpu], per_node: u32, profile: &Profile) -> Result<Self> {
        let whole = per_node > 0 && gpus.len().is_multiple_of(per_node as usize);
        if !whole || gpus.len() > RANKS_MAX {
            let expected = format!("up to {RANKS_MAX} ranks, as many on each node");
            let seen = format!("{} with {per_node} on each", gpus.len());
            return Err(Error::argument("ranks of a model", expected, seen));
        }
        let mut building =
            Building { profile, numbers: HashMap::new(), names: Vec::new(), rates: Vec::new() };
        let (mut over_all, mut over_pci) = (Vec::new(), Vec::new());
        let node_of = |rank: usize| rank / per_node as usize;
        for (a, one) in gpus.iter().enumerate() {
            for (b, other) in gpus.iter().enumerate() {
                let (all, pci) = if node_of(a) != node_of(b) {
                    let way = building.network((a, one), (b, other));
                    (way.clone(), way)
                } else if a == b || one.address == other.address {
                    (Way::default(), Way::default())
                } else {
                    let pci = building.pci(node_of(a), (a, one), (b, other));
                    let nvlink = building.nvlink(node_of(a), (a, one), (b, other));
                    (nvlink.unwrap_or_else(|| pci.clone()), pci)
                };
                over_all.push(all);
                over_pci.push(pci);
            }
        }
        let Building { names, rates, .. } = building;
        Ok(Self { rank_count: gpus.len() as u32, per_node, names, rates, over_all, over_pci })
    }

    /// The same ways with this share of what each link carries.
    pub(super) fn shared(&self, share: f64) -> Self {
        let rates = self.rates.iter().map(|rate| rate * share).collect();
        Self { rates, ..self.clone() }
    }

    /// Where the way between each two ranks is out of the one and into the other, and all ranks'
    /// links are alike: the same ways with the links of one rank for all of them.
    pub(super) fn folded(&self) -> Option<Self> {
        let ranks = self.rank_count;
        let pairs = (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
        let pairs = pairs.filter(|(from, to)| from != to);
        let [out, into] = *self.over_all.get(1)?.links else { return None };
        let mut of_rank = vec![[None; 2]; ranks as usize];
        for (from, to) in pairs {
            let way = self.between(from, to, false);
            let &[first, second] = &way.links[..] else { return None };
            let is_own = *of_rank[from as usize][0].get_or_insert(first) == first
                && *of_rank[to as usize][1].get_or_insert(second) == second;
            let is_alike = self.rate(first) == self.rate(out)
                && self.rate(second) == self.rate(into)
                && way.latency == self.over_all[1].latency;
            if !is_own || !is_alike {
                return None;
            }
        }
        let mut all: Vec<_> = of_rank.into_iter().flatten().collect();
        all.sort_unstable();
        all.dedup();
        if all.len() != 2 * ranks as usize {
            return None;
        }
        let way = |way: &Way| match way.links.is_empty() {
            true => way.clone(),
            false => Way { links: vec![LinkId(0), LinkId(1)], latency: way.latency },
        };
        Some(Self {
            names: [out, into].map(|link| self.name(link).to_owned()).to_vec(),
            rates: [out, into].map(|link| self.rate(link)).to_vec(),
            over_all: self.over_all.iter().map(way).collect(),
            over_pci: self.over_all.iter().map(way).collect(),
            ..self.clone()
        })
    }

    /// Ranks.
    pub fn rank_count(&self) -> u32 {
        self.rank_count
    }

    /// Are the two on one node?
    pub fn is_near(&self, from: u32, to: u32) -> bool {
        from / self.per_node == to / self.per_node
    }

    /// The way from one rank to another, or that of a device engine, for which NVLink is none.
    pub fn between(&self, from: u32, to: u32, over_pci: bool) -> &Way {
        let place = (from * self.rank_count + to) as usize;
        if over_pci { &self.over_pci[place] } else { &self.over_all[place] }
    }

    pub(super) fn link_count(&self) -> usize {
        self.rates.len()
    }

    /// Bytes a µs of a link.
    pub fn rate(&self, link: LinkId) -> f64 {
        self.rates[link.0 as usize]
    }

    /// A link's name.
    pub fn name(&self, link: LinkId) -> &str {
        &self.names[link.0 as usize]
    }
}
