//! Which adapter, which port, which GID: a pure function of what was found.

use super::adapter::{LinkLayer, Port, PortState, natural};
use super::gid::{self, Gid};
use super::pci::{self, PciAddress};
use crate::error::{Error, Result};
use crate::id::AdapterName;
use std::cmp::Reverse;
use std::fmt;
use std::path::Path;

/// Adapter, port and GID that the user has set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The adapter (and port) to use; the nearest one without.
    pub adapter: Option<AdapterName>,
    /// The GID to use; the best one without.
    pub gid_index: Option<u8>,
}

/// Whom an adapter is wanted for.
#[derive(Clone, Debug, Default)]
pub struct Near {
    /// The GPU's PCI address; adapters that are near to it come first.
    pub gpu: Option<PciAddress>,
    /// Which of several adapters that are equally good: a node's ranks pass their local rank, and
    /// so spread over all of them.
    pub ordinal: usize,
}

/// The chosen adapter, the reason, and the ports that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortChoice {
    /// The adapter's name.
    pub adapter: String,
    /// Its port, from 1.
    pub port: u8,
    /// The link layer of the port.
    pub link_layer: LinkLayer,
    /// The address that peers will see.
    pub gid: Gid,
    /// Why this one.
    pub because: String,
    /// Ports that cannot be used, each with the reason.
    pub passed_over: Vec<PassedOver>,
}

/// A port that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedOver {
    /// The adapter's name.
    pub adapter: String,
    /// Its port.
    pub port: u8,
    /// Why not.
    pub why: String,
}

impl fmt::Display for PassedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {}: {}", self.adapter, self.port, self.why)
    }
}

impl fmt::Display for PortChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { adapter, port, link_layer, gid, because, .. } = self;
        write!(f, "{adapter} port {port} ({link_layer}), {gid}: {because}")?;
        for other in &self.passed_over {
            write!(f, "; not used: {other}")?;
        }
        Ok(())
    }
}

/// How near a port's adapter is to the GPU: bridges in common, then the same NUMA node.
type Nearness = (usize, bool);

/// Where a PCI function (a GPU, an adapter, a device engine) is attached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PciLocation {
    /// Bridges from the PCI root down to it; see [`pci::path_of`].
    pub pci_path: Vec<String>,
    /// Its NUMA node.
    pub numa: Option<u32>,
}

impl PciLocation {
    /// The location of the PCI function at `address`. `sysfs` is where sysfs is mounted.
    pub fn of(sysfs: &Path, address: PciAddress) -> Self {
        let folder = pci::folder_of(sysfs, address);
        Self { pci_path: pci::path_of(&folder), numa: pci::numa_of(&folder) }
    }
}

/// Picks one of `ports`.
///
/// # Errors
/// [`Error::NotFound`] says of every port why it cannot be used.
pub fn choose(
    ports: &[Port],
    gpu: &PciLocation,
    ordinal: usize,
    wanted: &Wanted,
) -> Result<PortChoice> {
    let asked = |port: &&Port| {
        wanted.adapter.as_ref().is_none_or(|wanted| {
            wanted.name == port.adapter && wanted.port.is_none_or(|number| number == port.number)
        })
    };
    let mut passed_over = Vec::new();
    let mut usable = Vec::new();
    for port in ports.iter().filter(asked) {
        match gid_of(port, wanted.gid_index) {
            Ok(gid) => usable.push((port, gid)),
            Err(why) => passed_over.push(PassedOver {
                adapter: port.adapter.clone(),
                port: port.number,
                why,
            }),
        }
    }
    let nearness = |port: &Port| -> Nearness {
        (pci::common(&port.pci_path, &gpu.pci_path), gpu.numa.is_some() && port.numa == gpu.numa)
    };
    // Near first, then fast; names make the order the same in every run.
    usable.sort_by_key(|(port, _)| {
        (Reverse((nearness(port), port.rate_mbps)), natural(&port.adapter), port.number)
    });
    let Some((first, _)) = usable.first() else {
        return Err(nothing(ports, &passed_over, wanted.adapter.as_ref()));
    };
    let rank = |port: &Port| (nearness(port), port.rate_mbps);
    let equals = usable.iter().take_while(|(port, _)| rank(port) == rank(first)).count();
    let (port, gid) = &usable[ordinal % equals];
    Ok(PortChoice {
        adapter: port.adapter.clone(),
        port: port.number,
        link_layer: port.link_layer,
        gid: *gid,
        because: because(wanted, nearness(port), equals, usable.len()),
        passed_over,
    })
}

/// The link layers on which the GPU has usable ports: that of the port which [`choose`] takes, and
/// then the other one, if there is a port for it.
///
/// # Errors
/// As [`choose`].
pub fn link_layers(
    ports: &[Port],
    gpu: &PciLocation,
    ordinal: usize,
    wanted: &Wanted,
) -> Result<Vec<LinkLayer>> {
    let first = choose(ports, gpu, ordinal, wanted)?.link_layer;
    let mut layers = vec![first];
    for other in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
        let ports: Vec<_> = ports.iter().filter(|port| port.link_layer == other).cloned().collect();
        if other != first && choose(&ports, gpu, ordinal, wanted).is_ok() {
            layers.push(other);
        }
    }
    Ok(layers)
}

/// The GID to use on a port, or why the port cannot be used.
fn gid_of(port: &Port, wanted: Option<u8>) -> std::result::Result<Gid, String> {
    if port.state != PortState::Active {
        return Err(format!("the port is {}", port.state));
    }
    if port.link_layer == LinkLayer::Other {
        return Err("its link layer is neither InfiniBand nor Ethernet".into());
    }
    match wanted {
        Some(index) => port
            .gids
            .iter()
            .find(|gid| gid.index == index && !gid.is_empty())
            .copied()
            .ok_or_else(|| format!("GID {index}, which RINGDOVE_GID_INDEX asks for, is empty")),
        None => gid::best(&port.gids).copied().ok_or_else(|| {
            "it has no GID; on Ethernet the network interface needs an IP address".into()
        }),
    }
}

fn because(wanted: &Wanted, near: Nearness, equals: usize, usable: usize) -> String {
    let mut why = match (wanted.adapter.is_some(), near) {
        (true, _) => "RINGDOVE_ADAPTER asks for it".to_owned(),
        (false, (2.., _)) => format!("shares {} levels of the PCI tree with the GPU", near.0),
        (false, (1, _)) => "is below the GPU's PCI root".to_owned(),
        (false, (_, true)) => "is on the GPU's NUMA node".to_owned(),
        (false, _) if usable > 1 => "is as near as any, and the fastest".to_owned(),
        (false, _) => "is the only one that can be used".to_owned(),
    };
    if equals > 1 {
        why.push_str(&format!(", one of {equals} equals"));
    }
    why
}

fn nothing(ports: &[Port], passed_over: &[PassedOver], asked: Option<&AdapterName>) -> Error {
    let seen = if !passed_over.is_empty() {
        passed_over.iter().map(PassedOver::to_string).collect::<Vec<_>>().join("; ")
    } else if ports.is_empty() {
        "ibv_get_device_list finds none".to_owned()
    } else {
        let names: Vec<_> =
            ports.iter().map(|port| format!("{}:{}", port.adapter, port.number)).collect();
        format!("there are {}", names.join(", "))
    };
    let wanted = match asked {
        Some(AdapterName { name, port: Some(port) }) => format!("RDMA adapter {name}:{port}"),
        Some(AdapterName { name, port: None }) => format!("RDMA adapter {name}"),
        None => "RDMA adapter with an active port".to_owned(),
    };
    Error::NotFound {
        wanted,
        looked_for: seen,
        advice: "bring a port up, load the adapter's driver, or name another one in \
                 RINGDOVE_ADAPTER; in a container, /dev/infiniband must be passed in"
            .into(),
    }
}

#[cfg(test)]
#[path = "choice_tests.rs"]
mod tests;
