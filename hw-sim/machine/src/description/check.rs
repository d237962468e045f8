//! From the file as written to a description that holds: names resolved, numbers in range.

use super::file::{self, GpuEntry, LinkEntry, LinkEntryKind, MachineFile, ModelEntry, PcieEntry};
use super::{
    Description, DescriptionError, Gpu, GpuModel, Link, LinkKind, Node, NvSwitch, PciBusId,
    PciSwitch, Pcie, RootComplex, cluster,
};
use crate::profile::{FromFile, Profile};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Range, RangeInclusive};
use toml::Spanned;

/// GPUs of one machine at most.
const GPUS_MAX: usize = 64;
/// What follows the name of every virtual GPU, so that no program takes its times for real ones.
const VIRTUAL_MARK: &str = " (virtual)";
/// Bytes of a model's name at most: NVML gives a name 96, with the mark and the final NUL.
const MODEL_NAME_MAX: usize = 95 - VIRTUAL_MARK.len();
/// NVLinks of one GPU at most: what NVML's interface can name.
const NV_LINKS_PER_GPU_MAX: u32 = 18;

type Result<T> = std::result::Result<T, DescriptionError>;

/// Turns a file into a description, or says what in it is wrong.
pub(super) fn resolve(file: MachineFile, source: &str, origin: &str) -> Result<Description> {
    let mut check = Check { source, origin, nodes: BTreeMap::new(), bus_ids: BTreeSet::new() };
    check.machine_name(&file.name)?;
    let models = check.models(&file.models)?;
    let mut description = Description {
        name: file.name.as_ref().clone(),
        summary: file.summary,
        root_complexes: Vec::new(),
        switches: Vec::new(),
        nv_switches: Vec::new(),
        gpus: Vec::new(),
        links: Vec::new(),
        peers_across_root_complexes: file.peers_across_root_complexes,
        adapters: Vec::new(),
        engines: Vec::new(),
        peer_memory: file.peer_memory,
        driver: Profile::lenient(),
        driver_of_file: check.driver(&file.driver)?,
        nodes: match &file.nodes {
            Some(nodes) => check.number("nodes", nodes, cluster::NODES)?,
            None => 1,
        },
        node: 0,
        origin: origin.into(),
        source: source.into(),
    };
    for (index, entry) in file.root_complexes.iter().enumerate() {
        check.add_node(&entry.name, Node::RootComplex(index))?;
        let numa_node = check.number("a NUMA node", &entry.numa_node, 0..=1023)?;
        let name = entry.name.as_ref().clone();
        description.root_complexes.push(RootComplex { name, numa_node });
    }
    for (index, entry) in file.switches.iter().enumerate() {
        // Resolved before its own name is known: nothing can hang under itself or a later switch.
        let under = check.pci_parent(&entry.under)?;
        check.add_node(&entry.name, Node::Switch(index))?;
        let (name, pcie) = (entry.name.as_ref().clone(), check.pcie(&entry.pcie)?);
        description.switches.push(PciSwitch { name, under, pcie });
    }
    for (index, entry) in file.nv_switches.iter().enumerate() {
        check.add_node(&entry.name, Node::NvSwitch(index))?;
        let (name, bus_id) = (entry.name.as_ref().clone(), check.bus_id(&entry.bus_id)?);
        description.nv_switches.push(NvSwitch { name, bus_id });
    }
    if !(1..=GPUS_MAX).contains(&file.gpus.len()) {
        let seen = file.gpus.len();
        let reason = format!("expected 1 to {GPUS_MAX} `[[gpus]]` entries, found {seen}");
        return Err(check.invalid(file.name.span(), reason));
    }
    for entry in &file.gpus {
        let gpu = check.gpu(entry, &models, &description)?;
        description.gpus.push(gpu);
    }
    for entry in &file.links {
        check.links(entry, &mut description)?;
    }
    description.driver = description.driver_of_file.resolve(None, None)?;
    check.adapters(&file.adapters, &mut description)?;
    check.engines(&file.engines, &mut description)?;
    Ok(description.at_node(0))
}

pub(super) struct Check<'a> {
    source: &'a str,
    origin: &'a str,
    nodes: BTreeMap<String, Node>,
    bus_ids: BTreeSet<PciBusId>,
}

impl Check<'_> {
    /// The `[driver]` table.
    fn driver(&self, table: &BTreeMap<Spanned<String>, Spanned<toml::Value>>) -> Result<FromFile> {
        let mut driver = FromFile::default();
        for (key, value) in table {
            let text = match value.as_ref() {
                toml::Value::String(text) => text.clone(),
                toml::Value::Integer(number) => number.to_string(),
                toml::Value::Boolean(set) => if *set { "on" } else { "off" }.into(),
                other => other.to_string(),
            };
            driver.add(key.as_ref(), text).map_err(|reason| self.invalid(key.span(), reason))?;
        }
        Ok(driver)
    }

    pub(super) fn invalid(
        &self,
        span: Range<usize>,
        reason: impl Into<String>,
    ) -> DescriptionError {
        file::invalid(self.source, self.origin, span, reason)
    }

    pub(super) fn number(
        &self,
        what: &str,
        seen: &Spanned<u32>,
        range: RangeInclusive<u32>,
    ) -> Result<u32> {
        let value = *seen.as_ref();
        if range.contains(&value) {
            return Ok(value);
        }
        let (least, most) = (range.start(), range.end());
        let reason = format!("expected {what} from {least} to {most}, found {value}");
        Err(self.invalid(seen.span(), reason))
    }

    /// A rate in GB/s.
    pub(super) fn rate(&self, seen: &Spanned<f64>) -> Result<f64> {
        let gb_per_s = *seen.as_ref();
        if gb_per_s > 0.0 && gb_per_s <= 1e6 {
            return Ok(gb_per_s);
        }
        let reason = format!("expected GB/s above 0 and up to 1e6, found {gb_per_s}");
        Err(self.invalid(seen.span(), reason))
    }

    /// The name of an adapter or an engine: it becomes a folder's name, and a pattern that others
    /// match.
    pub(super) fn device_name(&self, what: &str, seen: &Spanned<String>) -> Result<String> {
        let name = seen.as_ref();
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if !name.is_empty() && name.len() <= 40 && name.chars().all(plain) {
            return Ok(name.clone());
        }
        let reason = format!(
            "expected an {what}'s name: 1 to 40 letters, digits, `-` or `_`, found `{name}`"
        );
        Err(self.invalid(seen.span(), reason))
    }

    fn machine_name(&self, name: &Spanned<String>) -> Result<()> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let text = name.as_ref();
        if !text.is_empty() && text.len() <= 64 && text.chars().all(plain) {
            return Ok(());
        }
        let reason = format!("expected 1 to 64 letters, digits, `-`, `_` or `.`, found `{text}`");
        Err(self.invalid(name.span(), reason))
    }

    fn models(&self, entries: &[ModelEntry]) -> Result<BTreeMap<String, GpuModel>> {
        let mut models = BTreeMap::new();
        for entry in entries {
            if models.insert(entry.id.as_ref().clone(), self.model(entry)?).is_some() {
                let reason = format!("a second model `{}`: ids are unique", entry.id.as_ref());
                return Err(self.invalid(entry.id.span(), reason));
            }
        }
        Ok(models)
    }

    fn model(&self, entry: &ModelEntry) -> Result<GpuModel> {
        let name = entry.name.as_ref();
        if name.is_empty() || name.len() > MODEL_NAME_MAX || name.contains('\0') {
            let seen = name.len();
            let reason = format!("expected 1 to {MODEL_NAME_MAX} bytes without NUL, found {seen}");
            return Err(self.invalid(entry.name.span(), reason));
        }
        let kib =
            |what, seen, range| self.number(what, seen, range).map(|kib| u64::from(kib) << 10);
        let khz = |what, seen| self.number(what, seen, 1..=100_000).map(|mhz| mhz * 1000);
        Ok(GpuModel {
            name: format!("{name}{VIRTUAL_MARK}"),
            compute_capability: self.compute_capability(&entry.compute_capability)?,
            multiprocessors: self.number("multiprocessors", &entry.multiprocessors, 1..=1024)?,
            threads_per_multiprocessor: self.number(
                "threads (a block of 1024 must fit)",
                &entry.threads_per_multiprocessor,
                1024..=4096,
            )?,
            blocks_per_multiprocessor: self.number(
                "blocks",
                &entry.blocks_per_multiprocessor,
                1..=64,
            )?,
            registers_per_multiprocessor: self.number(
                "registers",
                &entry.registers_per_multiprocessor,
                32768..=1 << 20,
            )?,
            shared_memory_per_multiprocessor: kib(
                "KiB (48 for a block, and 1 reserved by the system)",
                &entry.shared_memory_per_multiprocessor_kib,
                49..=1024,
            )?,
            memory_bytes: u64::from(self.number("MiB", &entry.memory_mib, 64..=1 << 20)?) << 20,
            clock_khz: khz("MHz", &entry.clock_mhz)?,
            memory_clock_khz: khz("MHz", &entry.memory_clock_mhz)?,
            memory_bus_bits: self.number("bits", &entry.memory_bus_bits, 32..=16384)?,
            l2_cache_bytes: kib("KiB", &entry.l2_cache_kib, 1..=1 << 20)?,
            dma_buf: entry.dma_buf.unwrap_or(true),
        })
    }

    fn compute_capability(&self, seen: &Spanned<String>) -> Result<(u32, u32)> {
        let text = seen.as_ref();
        let parsed = text.split_once('.').and_then(|(major, minor)| {
            Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
        });
        match parsed {
            Some((major, minor)) if (5..=12).contains(&major) && minor <= 9 => Ok((major, minor)),
            _ => {
                let reason = format!("expected MAJOR.MINOR from 5.0 to 12.9, found `{text}`");
                Err(self.invalid(seen.span(), reason))
            }
        }
    }

    pub(super) fn pcie(&self, entry: &PcieEntry) -> Result<Pcie> {
        let generation = self.number("a PCIe generation", &entry.generation, 1..=6)?;
        let lanes = self.number("lanes", &entry.lanes, 1..=32)?;
        if !lanes.is_power_of_two() {
            let reason = format!("expected 1, 2, 4, 8, 16 or 32 lanes, found {lanes}");
            return Err(self.invalid(entry.lanes.span(), reason));
        }
        Ok(Pcie { generation, lanes })
    }

    pub(super) fn bus_id(&mut self, seen: &Spanned<String>) -> Result<PciBusId> {
        let text = seen.as_ref();
        let id = text.parse::<PciBusId>().map_err(|()| {
            let reason = format!("expected a PCI address like `0000:07:00.0`, found `{text}`");
            self.invalid(seen.span(), reason)
        })?;
        if !self.bus_ids.insert(id) {
            let reason = format!("a second device at `{id}`: PCI addresses are unique");
            return Err(self.invalid(seen.span(), reason));
        }
        Ok(id)
    }

    fn add_node(&mut self, name: &Spanned<String>, node: Node) -> Result<()> {
        if name.as_ref().is_empty() {
            return Err(self.invalid(name.span(), "expected a name, found an empty string"));
        }
        if self.nodes.insert(name.as_ref().clone(), node).is_some() {
            let reason = format!("a second device `{}`: names are unique", name.as_ref());
            return Err(self.invalid(name.span(), reason));
        }
        Ok(())
    }

    pub(super) fn pci_parent(&self, name: &Spanned<String>) -> Result<Node> {
        match self.nodes.get(name.as_ref()) {
            Some(node @ (Node::RootComplex(_) | Node::Switch(_))) => Ok(*node),
            _ => {
                let seen = name.as_ref();
                let reason = format!(
                    "expected the name of a root complex or of an earlier switch, found `{seen}`"
                );
                Err(self.invalid(name.span(), reason))
            }
        }
    }

    fn gpu(
        &mut self,
        entry: &GpuEntry,
        models: &BTreeMap<String, GpuModel>,
        machine: &Description,
    ) -> Result<Gpu> {
        let under = self.pci_parent(&entry.under)?;
        self.add_node(&entry.name, Node::Gpu(machine.gpus.len()))?;
        let model = models.get(entry.model.as_ref()).cloned().ok_or_else(|| {
            let known = models.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let seen = entry.model.as_ref();
            let reason = format!("expected the id of a model ({known}), found `{seen}`");
            self.invalid(entry.model.span(), reason)
        })?;
        let (name, bus_id) = (entry.name.as_ref().clone(), self.bus_id(&entry.bus_id)?);
        Ok(Gpu {
            // Set for the whole machine at once, at the end.
            uuid: [0; 16],
            name,
            model,
            under,
            bus_id,
            pcie: self.pcie(&entry.pcie)?,
            numa_node: machine.numa_node_of(under),
        })
    }

    fn links(&self, entry: &LinkEntry, machine: &mut Description) -> Result<()> {
        let count = self.number("links", &entry.count, 1..=NV_LINKS_PER_GPU_MAX)?;
        let gb_per_s = self.rate(&entry.gb_per_s)?;
        for pair in &entry.pairs {
            let (kind, ends) = self.link_ends(entry.kind, pair)?;
            let known = |link: &Link| link.ends == ends || link.ends == [ends[1], ends[0]];
            if machine.links.iter().any(known) {
                let [a, b] = pair.as_ref();
                let reason = format!("a second entry for `{a}` and `{b}`: use `count`");
                return Err(self.invalid(pair.span(), reason));
            }
            machine.links.push(Link { kind, ends, count, gb_per_s });
            for gpu in ends.into_iter().filter(|node| matches!(node, Node::Gpu(_))) {
                let of_gpu = machine.links.iter().filter(|link| link.ends.contains(&gpu));
                let total: u32 = of_gpu.map(|link| link.count).sum();
                if total > NV_LINKS_PER_GPU_MAX {
                    let name = machine.node_name(gpu);
                    let reason = format!(
                        "expected at most {NV_LINKS_PER_GPU_MAX} NVLinks on `{name}`, found {total}"
                    );
                    return Err(self.invalid(pair.span(), reason));
                }
            }
        }
        Ok(())
    }

    fn link_ends(
        &self,
        kind: LinkEntryKind,
        pair: &Spanned<[String; 2]>,
    ) -> Result<(LinkKind, [Node; 2])> {
        let [a, b] = pair.as_ref();
        let node = |name: &String| {
            self.nodes.get(name).copied().ok_or_else(|| {
                let reason = format!("expected the names of two devices, found no `{name}`");
                self.invalid(pair.span(), reason)
            })
        };
        let ends = [node(a)?, node(b)?];
        let (resolved, fits, expected) = match kind {
            LinkEntryKind::NvLink => {
                let gpu = |node: &Node| matches!(node, Node::Gpu(_));
                let nv_switch = |node: &Node| matches!(node, Node::NvSwitch(_));
                let fits = ends.iter().any(gpu) && ends.iter().all(|n| gpu(n) || nv_switch(n));
                (LinkKind::NvLink, fits, "two GPUs, or a GPU and an NVSwitch")
            }
            LinkEntryKind::Cpu => {
                let fits = ends.iter().all(|node| matches!(node, Node::RootComplex(_)));
                (LinkKind::Cpu, fits, "two root complexes")
            }
        };
        if a == b || !fits {
            let reason = format!("expected {expected}, found `{a}` and `{b}`");
            return Err(self.invalid(pair.span(), reason));
        }
        Ok((resolved, ends))
    }
}

/// A version-8 UUID (free form) from a text: FNV-1a with two bases, so it never changes.
pub(super) fn uuid(text: &str) -> [u8; 16] {
    let hash = |basis: u64| {
        text.bytes()
            .fold(basis, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
    };
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&hash(0xcbf2_9ce4_8422_2325).to_be_bytes());
    uuid[8..].copy_from_slice(&hash(0x6c62_272e_07bb_0142).to_be_bytes());
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}
