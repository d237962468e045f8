//! Network adapters of a machine: what they are, and how a file describes them.

use super::check::Check;
use super::file::PcieEntry;
use super::{Description, DescriptionError, Node, PciBusId, Pcie};
use crate::fault::AdapterFault;
use serde::Deserialize;
use toml::Spanned;

/// Adapters of one machine at most: more would not fit the addresses of the virtual fabric.
pub const ADAPTERS_MAX: usize = 32;

/// One RDMA adapter of a machine, with one port.
#[derive(Debug, Clone, PartialEq)]
pub struct Adapter {
    /// Its name, as programs see it.
    pub name: String,
    /// Its parent in the PCI tree: a root complex or a switch.
    pub under: Node,
    /// Its PCI address.
    pub bus_id: PciBusId,
    /// The connection to what it hangs under.
    pub pcie: Pcie,
    /// The NUMA node of its root complex.
    pub numa_node: u32,
    /// The port's link layer.
    pub link_layer: LinkLayer,
    /// Rate of the port in one direction, GB/s.
    pub gb_per_s: f64,
    /// The largest packet, bytes: a power of two from 256 to 4096.
    pub mtu: u32,
    /// Faults that the adapter shows, as `HWSIM_FAULTS` names them.
    pub faults: Vec<String>,
}

/// Link layer of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkLayer {
    /// InfiniBand: ports have LIDs.
    InfiniBand,
    /// Ethernet: RDMA goes over RoCE, and ports have GIDs alone.
    Ethernet,
}

/// An adapter as its file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AdapterEntry {
    pub name: Spanned<String>,
    pub under: Spanned<String>,
    pub bus_id: Spanned<String>,
    pub pcie: PcieEntry,
    pub link_layer: LinkLayer,
    pub gb_per_s: Spanned<f64>,
    pub mtu: Spanned<u32>,
    #[serde(default)]
    pub faults: Vec<Spanned<String>>,
}

impl Check<'_> {
    /// Resolves all adapters of the file.
    pub(super) fn adapters(
        &mut self,
        entries: &[AdapterEntry],
        machine: &mut Description,
    ) -> Result<(), DescriptionError> {
        for entry in entries {
            let adapter = self.adapter(entry, machine)?;
            machine.adapters.push(adapter);
        }
        Ok(())
    }

    fn adapter(
        &mut self,
        entry: &AdapterEntry,
        machine: &Description,
    ) -> Result<Adapter, DescriptionError> {
        let index = machine.adapters.len();
        if index >= ADAPTERS_MAX {
            let reason = format!("expected at most {ADAPTERS_MAX} `[[adapters]]` entries");
            return Err(self.invalid(entry.name.span(), reason));
        }
        let name = self.device_name("adapter", &entry.name)?;
        if machine.adapters.iter().any(|adapter| adapter.name == name) {
            let reason = format!("a second adapter `{name}`: names are unique");
            return Err(self.invalid(entry.name.span(), reason));
        }
        let under = self.pci_parent(&entry.under)?;
        let gb_per_s = self.rate(&entry.gb_per_s)?;
        let mtu = *entry.mtu.as_ref();
        if !(256..=4096).contains(&mtu) || !mtu.is_power_of_two() {
            let reason = format!("expected 256, 512, 1024, 2048 or 4096 bytes, found {mtu}");
            return Err(self.invalid(entry.mtu.span(), reason));
        }
        for fault in &entry.faults {
            if let Err(reason) = fault.as_ref().parse::<AdapterFault>() {
                return Err(self.invalid(fault.span(), reason));
            }
        }
        Ok(Adapter {
            name,
            under,
            bus_id: self.bus_id(&entry.bus_id)?,
            pcie: self.pcie(&entry.pcie)?,
            numa_node: machine.numa_node_of(under),
            link_layer: entry.link_layer,
            gb_per_s,
            mtu,
            faults: entry.faults.iter().map(|fault| fault.as_ref().clone()).collect(),
        })
    }
}

impl Description {
    /// The NUMA node of the root complex that a switch or root complex belongs to.
    pub(super) fn numa_node_of(&self, mut node: Node) -> u32 {
        // Each switch hangs under an earlier one, which bounds the climb.
        while let Node::Switch(index) = node {
            node = self.switches[index].under;
        }
        match node {
            Node::RootComplex(index) => self.root_complexes[index].numa_node,
            _ => 0,
        }
    }
}
