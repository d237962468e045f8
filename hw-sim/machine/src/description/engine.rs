//! Device engines of a machine: what they are, and how a file describes them.

use super::check::Check;
use super::file::PcieEntry;
use super::{Description, DescriptionError, Node, PciBusId, Pcie};
use crate::fault::EngineFault;
use serde::Deserialize;
use std::ops::RangeInclusive;
use toml::Spanned;

/// Device engines of one machine at most: more would not fit the addresses of their links.
pub const ENGINES_MAX: usize = 64;

/// One device engine of a machine: a PCI function as `kernels/BAR.md` specifies it.
#[derive(Debug, Clone, PartialEq)]
pub struct Engine {
    /// Its name in the file.
    pub name: String,
    /// Its parent in the PCI tree: a root complex or a switch.
    pub under: Node,
    /// Its PCI address.
    pub bus_id: PciBusId,
    /// The connection to what it hangs under.
    pub pcie: Pcie,
    /// The NUMA node of its root complex.
    pub numa_node: u32,
    /// Rate of its link to other engines in one direction, GB/s.
    pub gb_per_s: f64,
    /// How much of everything it has.
    pub limits: EngineLimits,
    /// Faults that the engine shows, as `HWSIM_FAULTS` names them.
    pub faults: Vec<String>,
}

/// How much of everything an engine has: what `kernels/BAR.md` leaves to its maker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineLimits {
    /// Channels: users at one time.
    pub channels: u32,
    /// The largest ring has `1 << ring_log2_max` slots.
    pub ring_log2_max: u32,
    /// Entries of the peer table of a channel.
    pub peers: u32,
    /// Entries of the lane table of a channel.
    pub lanes: u32,
    /// Entries of the signal table of a channel.
    pub signals: u32,
    /// Entries of the window table of a channel.
    pub windows: u32,
    /// Entries of the route table of a channel.
    pub routes: u32,
    /// Requests of one lane that the engine holds.
    pub lane_depth: u32,
    /// Sources are read in pieces of this many bytes at most.
    pub sub_request_bytes: u32,
    /// Requests of one channel whose data is under way at most.
    pub in_flight_max: u32,
}

impl Default for EngineLimits {
    /// Tables as large as any use so far wants (routes: all that a descriptor can name); requests
    /// and pieces as in the timing profile `ark-v100`.
    fn default() -> Self {
        Self {
            channels: 16,
            ring_log2_max: 16,
            peers: 1024,
            lanes: 8192,
            signals: 8192,
            windows: 1024,
            routes: 65536,
            lane_depth: 64,
            sub_request_bytes: 20480,
            in_flight_max: 64,
        }
    }
}

/// An engine as its file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EngineEntry {
    pub name: Spanned<String>,
    pub under: Spanned<String>,
    pub bus_id: Spanned<String>,
    pub pcie: PcieEntry,
    pub gb_per_s: Spanned<f64>,
    pub channels: Option<Spanned<u32>>,
    pub ring_log2_max: Option<Spanned<u32>>,
    pub peers: Option<Spanned<u32>>,
    pub lanes: Option<Spanned<u32>>,
    pub signals: Option<Spanned<u32>>,
    pub windows: Option<Spanned<u32>>,
    pub routes: Option<Spanned<u32>>,
    pub lane_depth: Option<Spanned<u32>>,
    pub sub_request_bytes: Option<Spanned<u32>>,
    pub in_flight_max: Option<Spanned<u32>>,
    #[serde(default)]
    pub faults: Vec<Spanned<String>>,
}

impl Check<'_> {
    /// Resolves all engines of the file.
    pub(super) fn engines(
        &mut self,
        entries: &[EngineEntry],
        machine: &mut Description,
    ) -> Result<(), DescriptionError> {
        for entry in entries {
            let engine = self.engine(entry, machine)?;
            machine.engines.push(engine);
        }
        Ok(())
    }

    fn engine(
        &mut self,
        entry: &EngineEntry,
        machine: &Description,
    ) -> Result<Engine, DescriptionError> {
        let name = self.device_name("engine", &entry.name)?;
        if machine.engines.len() >= ENGINES_MAX {
            let reason = format!("expected at most {ENGINES_MAX} `[[engines]]` entries");
            return Err(self.invalid(entry.name.span(), reason));
        }
        // Faults name devices of both kinds in one list.
        let adapters = machine.adapters.iter().map(|adapter| &adapter.name);
        if machine.engines.iter().map(|engine| &engine.name).chain(adapters).any(|n| *n == name) {
            let reason = format!("a second device `{name}`: names are unique");
            return Err(self.invalid(entry.name.span(), reason));
        }
        let under = self.pci_parent(&entry.under)?;
        let gb_per_s = self.rate(&entry.gb_per_s)?;
        for fault in &entry.faults {
            if let Err(reason) = fault.as_ref().parse::<EngineFault>() {
                return Err(self.invalid(fault.span(), reason));
            }
        }
        Ok(Engine {
            name,
            under,
            bus_id: self.bus_id(&entry.bus_id)?,
            pcie: self.pcie(&entry.pcie)?,
            numa_node: machine.numa_node_of(under),
            gb_per_s,
            limits: self.engine_limits(entry)?,
            faults: entry.faults.iter().map(|fault| fault.as_ref().clone()).collect(),
        })
    }

    fn engine_limits(&self, entry: &EngineEntry) -> Result<EngineLimits, DescriptionError> {
        let usual = EngineLimits::default();
        let limit =
            |what, seen: &Option<Spanned<u32>>, range: RangeInclusive<u32>, usual| match seen {
                Some(seen) => self.number(what, seen, range),
                None => Ok(usual),
            };
        let table = 1..=1 << 20;
        let limits = EngineLimits {
            channels: limit("channels", &entry.channels, 1..=256, usual.channels)?,
            ring_log2_max: limit(
                "a ring size (log2)",
                &entry.ring_log2_max,
                0..=20,
                usual.ring_log2_max,
            )?,
            peers: limit("peers", &entry.peers, table.clone(), usual.peers)?,
            lanes: limit("lanes", &entry.lanes, table.clone(), usual.lanes)?,
            signals: limit("signals", &entry.signals, table.clone(), usual.signals)?,
            windows: limit("windows", &entry.windows, table, usual.windows)?,
            // A descriptor has 20 bits for its route.
            routes: limit("routes", &entry.routes, 1..=1 << 20, usual.routes)?,
            // BAR.md: at least 64.
            lane_depth: limit(
                "requests of a lane",
                &entry.lane_depth,
                64..=1 << 16,
                usual.lane_depth,
            )?,
            sub_request_bytes: limit(
                "bytes of a sub-request",
                &entry.sub_request_bytes,
                64..=64 << 10,
                usual.sub_request_bytes,
            )?,
            in_flight_max: limit(
                "requests in flight",
                &entry.in_flight_max,
                1..=1 << 16,
                usual.in_flight_max,
            )?,
        };
        match &entry.sub_request_bytes {
            Some(seen) if !limits.sub_request_bytes.is_multiple_of(64) => {
                let bytes = limits.sub_request_bytes;
                let reason = format!("expected a multiple of 64 bytes, found {bytes}");
                Err(self.invalid(seen.span(), reason))
            }
            _ => Ok(limits),
        }
    }
}
