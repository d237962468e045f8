//! Machine descriptions: which GPUs a virtual machine has, and how they are joined.
//!
//! A description is a TOML file. [`Description::find`] takes the name of a built-in machine or the
//! path of a file; what it returns is resolved and checked, so that no later code has to look a
//! name up or doubt a number. Rates are the data sheet's, in GB/s (1e9 bytes) of one direction.

mod adapter;
mod check;
pub mod cluster;
mod engine;
mod file;
#[cfg(test)]
mod tests;
mod text;

pub use adapter::{ADAPTERS_MAX, Adapter, LinkLayer};
pub use engine::{ENGINES_MAX, Engine, EngineLimits};

use crate::profile::{FromFile, Profile, ProfileError};
use check::uuid;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The machines compiled into the program: name and file.
const BUILT_IN: [(&str, &str); 7] = [
    ("one-gpu", include_str!("../machines/one-gpu.toml")),
    ("pcie4", include_str!("../machines/pcie4.toml")),
    ("dgx1v", include_str!("../machines/dgx1v.toml")),
    ("dgx-a100", include_str!("../machines/dgx-a100.toml")),
    ("dgx-h100", include_str!("../machines/dgx-h100.toml")),
    ("quad-pc", include_str!("../machines/quad-pc.toml")),
    ("ark", include_str!("../machines/ark.toml")),
];

/// The environment variable that names the machine of a process: a built-in name or a path.
pub const MACHINE_VARIABLE: &str = "HWSIM_MACHINE";
/// The machine of a process whose environment names none.
pub const MACHINE_DEFAULT: &str = "pcie4";

/// A virtual machine, as its file describes it: resolved and checked.
///
/// Indices ([`Node`]) point into the lists of the same description.
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    /// The machine's name, as `--machine` takes it.
    pub name: String,
    /// One line that says what it is.
    pub summary: String,
    /// PCI root complexes, one for each socket or NUMA node.
    pub root_complexes: Vec<RootComplex>,
    /// PCI switches; each comes after the switch that it hangs under.
    pub switches: Vec<PciSwitch>,
    /// NVSwitches.
    pub nv_switches: Vec<NvSwitch>,
    /// GPUs; the index is the CUDA and NVML ordinal.
    pub gpus: Vec<Gpu>,
    /// Links beside the PCI tree: NVLink, and the sockets' own.
    pub links: Vec<Link>,
    /// PCI traffic between GPUs may cross from one root complex to another.
    pub peers_across_root_complexes: bool,
    /// RDMA adapters.
    pub adapters: Vec<Adapter>,
    /// Device engines.
    pub engines: Vec<Engine>,
    /// Adapters take plain GPU addresses, as with the `nvidia-peermem` kernel module.
    pub peer_memory: bool,
    /// How its driver behaves.
    pub driver: Profile,
    pub(crate) driver_of_file: FromFile,
    /// How many nodes like this one the cluster has.
    pub nodes: u32,
    /// Which of them this one is, counted from 0.
    pub node: u32,
    origin: String,
    source: String,
}

/// A PCI root complex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootComplex {
    /// Its name in the file.
    pub name: String,
    /// The NUMA node of its memory and cores.
    pub numa_node: u32,
}

/// A PCI switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PciSwitch {
    /// Its name in the file.
    pub name: String,
    /// Its parent in the PCI tree: a root complex or an earlier switch.
    pub under: Node,
    /// The upstream connection.
    pub pcie: Pcie,
}

/// An NVSwitch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NvSwitch {
    /// Its name in the file.
    pub name: String,
    /// Its PCI address.
    pub bus_id: PciBusId,
}

/// One GPU of a machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Gpu {
    /// Its name in the file.
    pub name: String,
    /// Its model.
    pub model: GpuModel,
    /// Its parent in the PCI tree: a root complex or a switch.
    pub under: Node,
    /// Its PCI address.
    pub bus_id: PciBusId,
    /// The connection to what it hangs under.
    pub pcie: Pcie,
    /// The NUMA node of its root complex.
    pub numa_node: u32,
    /// Identity, derived from machine name, GPU name, PCI address and node: the same on every run.
    pub uuid: [u8; 16],
}

impl Gpu {
    /// The UUID as the driver and NVML write it: `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
    pub fn uuid_text(&self) -> String {
        let mut text = String::from("GPU");
        for (index, byte) in self.uuid.iter().enumerate() {
            if matches!(index, 0 | 4 | 6 | 8 | 10) {
                text.push('-');
            }
            text += &format!("{byte:02x}");
        }
        text
    }
}

/// The figures of one kind of GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuModel {
    /// The name that the driver reports; it ends in ` (virtual)`.
    pub name: String,
    /// Major and minor compute capability.
    pub compute_capability: (u32, u32),
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// Threads resident on one multiprocessor at most.
    pub threads_per_multiprocessor: u32,
    /// Blocks resident on one multiprocessor at most.
    pub blocks_per_multiprocessor: u32,
    /// 32-bit registers of one multiprocessor.
    pub registers_per_multiprocessor: u32,
    /// Shared memory of one multiprocessor, bytes.
    pub shared_memory_per_multiprocessor: u64,
    /// Device memory, bytes.
    pub memory_bytes: u64,
    /// Core clock, kHz.
    pub clock_khz: u32,
    /// Memory clock, kHz.
    pub memory_clock_khz: u32,
    /// Width of the memory bus, bits.
    pub memory_bus_bits: u32,
    /// L2 cache, bytes.
    pub l2_cache_bytes: u64,
    /// The driver exports its memory as dma-bufs.
    pub dma_buf: bool,
}

impl GpuModel {
    /// Shared memory that a block gets without asking, bytes: 48 KiB on every architecture.
    pub const SHARED_MEMORY_PER_BLOCK: u64 = 48 * 1024;

    /// Shared memory that the system keeps of each block, bytes: 1 KiB since compute capability 8.
    pub fn shared_memory_reserved_per_block(&self) -> u64 {
        if self.compute_capability.0 >= 8 { 1024 } else { 0 }
    }

    /// Shared memory that a block gets when its function opts in, bytes.
    pub fn shared_memory_per_block_optin(&self) -> u64 {
        self.shared_memory_per_multiprocessor - self.shared_memory_reserved_per_block()
    }
}

/// A device of a description, by its place in the list of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Node {
    /// An index into [`Description::root_complexes`].
    RootComplex(usize),
    /// An index into [`Description::switches`].
    Switch(usize),
    /// An index into [`Description::nv_switches`].
    NvSwitch(usize),
    /// An index into [`Description::gpus`].
    Gpu(usize),
}

/// A bundle of equal links between two devices.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    /// Its kind.
    pub kind: LinkKind,
    /// Both ends; the order means nothing.
    pub ends: [Node; 2],
    /// How many links run side by side.
    pub count: u32,
    /// Rate of one link in one direction, GB/s.
    pub gb_per_s: f64,
}

/// Kinds of links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LinkKind {
    /// NVLink, GPU to GPU or GPU to NVSwitch.
    NvLink,
    /// Between root complexes: QPI, UPI, xGMI.
    Cpu,
    /// An edge of the PCI tree; only in [`Description::all_links`].
    Pcie,
}

/// A PCI Express connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pcie {
    /// Generation, 1 to 6.
    pub generation: u32,
    /// Lanes, 1 to 32.
    pub lanes: u32,
}

impl Pcie {
    /// Raw rate of one direction after line coding, GB/s.
    pub fn gb_per_s(self) -> f64 {
        // GT/s of a lane by 8 bits, times the code: 8b/10b up to generation 2, then 128b/130b.
        let lane = match self.generation {
            1 => 0.25,
            2 => 0.5,
            generation => f64::from(1u32 << (generation - 3)) * 128.0 / 130.0,
        };
        lane * f64::from(self.lanes)
    }
}

/// The address of a PCI function: `domain:bus:device.function`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciBusId {
    /// PCI domain.
    pub domain: u16,
    /// Bus.
    pub bus: u8,
    /// Device, 0 to 31.
    pub device: u8,
    /// Function, 0 to 7.
    pub function: u8,
}

impl fmt::Display for PciBusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function}")
    }
}

impl FromStr for PciBusId {
    type Err = ();

    /// Takes `DDDD:BB:DD.F` in hexadecimal of either case; the domain may have 4 or 8 digits.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (domain, rest) = text.split_once(':').ok_or(())?;
        let (bus, rest) = rest.split_once(':').ok_or(())?;
        let (device, function) = rest.split_once('.').ok_or(())?;
        let shaped = matches!(domain.len(), 4 | 8) && bus.len() == 2 && device.len() == 2;
        let hexadecimal = [domain, bus, device, function]
            .iter()
            .all(|part| part.bytes().all(|byte| byte.is_ascii_hexdigit()));
        if !shaped || function.len() != 1 || !hexadecimal {
            return Err(());
        }
        let id = Self {
            domain: u32::from_str_radix(domain, 16)
                .ok()
                .and_then(|d| d.try_into().ok())
                .ok_or(())?,
            bus: u8::from_str_radix(bus, 16).map_err(drop)?,
            device: u8::from_str_radix(device, 16).map_err(drop)?,
            function: u8::from_str_radix(function, 16).map_err(drop)?,
        };
        if id.device < 32 && id.function < 8 { Ok(id) } else { Err(()) }
    }
}

/// How two GPUs reach each other through the PCI tree, nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PciPath {
    /// The same GPU.
    Same,
    /// Below one PCI switch, and that switch alone.
    OneSwitch,
    /// Through several PCI switches, without the host bridge.
    Switches,
    /// Through the host bridge of one root complex.
    HostBridge,
    /// Through two root complexes of one NUMA node.
    Node,
    /// Across NUMA nodes.
    System,
}

/// Why a description cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DescriptionError {
    /// The file cannot be read.
    #[error("machine file {}: cannot be read: {source}", path.display())]
    Read {
        /// The path as it was given.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file's content is wrong.
    #[error("{origin}:{line}: {key}: {reason}")]
    Invalid {
        /// The file's path, or which built-in machine.
        origin: String,
        /// Line, counted from 1.
        line: usize,
        /// The key that is wrong.
        key: String,
        /// The expected and the seen value.
        reason: String,
    },
    /// Neither a built-in machine nor a file.
    #[error(
        "unknown machine `{name}`: expected one of the built-in machines {}, or the path of a \
         machine file (no such file)",
        Description::built_in_names().collect::<Vec<_>>().join(", ")
    )]
    Unknown {
        /// The name as it was given.
        name: String,
    },
    /// `NAME x NODES` with a number of nodes that cannot be.
    #[error(
        "machine `{text}`: expected {} to {} nodes, found `{seen}`",
        cluster::NODES.start(),
        cluster::NODES.end()
    )]
    NodeCount {
        /// The whole as it was given.
        text: String,
        /// The number in it.
        seen: String,
    },
    /// The environment names a node that cannot be.
    #[error(
        "{} is `{seen}`: expected the index of a node, 0 to {}",
        cluster::NODE_VARIABLE,
        cluster::NODES.end() - 1
    )]
    Node {
        /// The variable's value.
        seen: String,
    },
    /// A setting of the driver's profile is wrong.
    #[error(transparent)]
    Driver(#[from] ProfileError),
}

impl Description {
    /// Names of the built-in machines.
    pub fn built_in_names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// The built-in machine of this name.
    pub fn builtin(name: &str) -> Result<Self, DescriptionError> {
        let (name, source) = BUILT_IN
            .iter()
            .find(|(built_in, _)| *built_in == name)
            .ok_or_else(|| DescriptionError::Unknown { name: name.into() })?;
        Self::parse(source, &format!("built-in machine {name}"))
    }

    /// The machine that a file describes, as the first node of its cluster.
    pub fn load(path: &Path) -> Result<Self, DescriptionError> {
        let source = file::read(path)
            .map_err(|source| DescriptionError::Read { path: path.into(), source })?;
        Self::parse(&source, &path.display().to_string())
    }

    /// A built-in machine by name, or else a file by path; either may be followed by ` x NODES`,
    /// which overrides the file's own number of nodes.
    ///
    /// A built-in name wins over a file of the same name in the working directory; `./NAME` is
    /// always the file. A file whose very name ends in ` x 2` is a file.
    pub fn find(name_or_path: &str) -> Result<Self, DescriptionError> {
        let path = Path::new(name_or_path);
        if !path.exists()
            && let Some((name, nodes)) = cluster::split(name_or_path)?
        {
            return Ok(Self { nodes, ..Self::find(name)? });
        }
        let built_in = Self::built_in_names().any(|name| name == name_or_path);
        let looks_like_a_path = name_or_path.contains('/') || name_or_path.ends_with(".toml");
        if !built_in && (looks_like_a_path || path.exists()) {
            return Self::load(path);
        }
        Self::builtin(name_or_path)
    }

    /// The machine that [`MACHINE_VARIABLE`] names, or [`MACHINE_DEFAULT`], as the node that
    /// [`cluster::NODE_VARIABLE`] names.
    pub fn from_environment() -> Result<Self, DescriptionError> {
        let machine = match std::env::var_os(MACHINE_VARIABLE) {
            Some(name) if !name.is_empty() => match name.to_str() {
                Some(name) => Self::find(name),
                // A path need not be UTF-8; a built-in name is.
                None => Self::load(Path::new(&name)),
            },
            _ => Self::builtin(MACHINE_DEFAULT),
        };
        let mut machine = machine?.at_node(cluster::node_from_environment()?.unwrap_or(0));
        machine.driver = machine.driver_of_file.resolve_here()?;
        Ok(machine)
    }

    /// The machine with another driver profile and further keys, as `hwsim run` is told them.
    pub fn with_driver(
        mut self,
        profile: Option<&str>,
        keys: Option<&str>,
    ) -> Result<Self, DescriptionError> {
        self.driver = self.driver_of_file.resolve(profile, keys)?;
        Ok(self)
    }

    /// Reads a description from text. `origin` names the text in errors.
    pub fn parse(source: &str, origin: &str) -> Result<Self, DescriptionError> {
        check::resolve(file::parse(source, origin)?, source, origin)
    }

    /// The text that this description was read from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Where the text came from: a path, or which built-in machine.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The name of a device.
    pub fn node_name(&self, node: Node) -> &str {
        match node {
            Node::RootComplex(index) => &self.root_complexes[index].name,
            Node::Switch(index) => &self.switches[index].name,
            Node::NvSwitch(index) => &self.nv_switches[index].name,
            Node::Gpu(index) => &self.gpus[index].name,
        }
    }

    /// Every link of the machine: [`Self::links`] and the edges of the PCI tree.
    pub fn all_links(&self) -> Vec<Link> {
        let edge = |ends, pcie: Pcie| Link {
            kind: LinkKind::Pcie,
            ends,
            count: 1,
            gb_per_s: pcie.gb_per_s(),
        };
        let switches = self.switches.iter().enumerate();
        let gpus = self.gpus.iter().enumerate();
        let mut links: Vec<_> =
            switches.map(|(i, s)| edge([Node::Switch(i), s.under], s.pcie)).collect();
        links.extend(gpus.map(|(i, gpu)| edge([Node::Gpu(i), gpu.under], gpu.pcie)));
        links.extend(self.links.iter().cloned());
        links
    }

    /// NVLinks that two different GPUs can use between them: the direct ones, or where they meet
    /// at NVSwitches, as many as both have there.
    pub fn nv_link_count(&self, a: usize, b: usize) -> u32 {
        if a == b {
            return 0;
        }
        let between = |x, y| -> u32 {
            let joins = |link: &&Link| {
                link.kind == LinkKind::NvLink && (link.ends == [x, y] || link.ends == [y, x])
            };
            self.links.iter().filter(joins).map(|link| link.count).sum()
        };
        let (a, b) = (Node::Gpu(a), Node::Gpu(b));
        let switched: u32 = (0..self.nv_switches.len())
            .map(Node::NvSwitch)
            .map(|switch| between(a, switch).min(between(b, switch)))
            .sum();
        between(a, b) + switched
    }

    /// How two GPUs reach each other through the PCI tree.
    pub fn pci_path(&self, a: usize, b: usize) -> PciPath {
        if a == b {
            return PciPath::Same;
        }
        let (up_a, up_b) = (self.ancestors(a), self.ancestors(b));
        // The first ancestor that both have, nearest to the GPUs, decides.
        match up_a.iter().find(|node| up_b.contains(node)) {
            Some(Node::Switch(_)) if up_a[0] == up_b[0] => PciPath::OneSwitch,
            Some(Node::Switch(_)) => PciPath::Switches,
            Some(_) => PciPath::HostBridge,
            None if self.gpus[a].numa_node == self.gpus[b].numa_node => PciPath::Node,
            None => PciPath::System,
        }
    }

    /// Whether a kernel on one GPU can be given access to the memory of another: over NVLink, over
    /// PCI below one root complex, or farther where [`Self::peers_across_root_complexes`] says so
    /// (chipsets differ). Copies between other GPUs go through the host.
    pub fn peer_access(&self, a: usize, b: usize) -> bool {
        let over_pci =
            self.peers_across_root_complexes || self.pci_path(a, b) <= PciPath::HostBridge;
        a != b && (over_pci || self.nv_link_count(a, b) > 0)
    }

    /// What a GPU hangs under, nearest first, up to the root complex.
    fn ancestors(&self, gpu: usize) -> Vec<Node> {
        let mut chain = vec![self.gpus[gpu].under];
        // Each switch hangs under an earlier one, which bounds the climb.
        while let Some(Node::Switch(index)) = chain.last().copied() {
            chain.push(self.switches[index].under);
        }
        chain
    }
}
