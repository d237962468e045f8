//! The flags of `hwsim predict`.

use super::PredictError;
use super::experts::ExpertsArguments;
use super::plan_file::PlanArguments;
use super::step::StepArguments;
use super::train::TrainArguments;
use clap::{Args, Subcommand};
use hwsim_timing::{Engine, Machine};
use ringdove::plan::Pattern;
use ringdove::{Settings, Stores};
use ringdove_figures::size::{parse_size, short};
use std::path::PathBuf;
use std::str::FromStr;

/// What `hwsim predict` is asked to do.
#[derive(Args)]
pub struct PredictArguments {
    #[command(subcommand)]
    pub(super) operation: Operation,
}

#[derive(Subcommand)]
pub(super) enum Operation {
    /// Every rank gets the sum of all
    AllReduce(AllReduceArguments),
    /// One GPU puts to another: latency and throughput
    P2p(P2pArguments),
    /// A plan from a file: of this library, of MSCCL or of MSCCL++
    Plan(PlanArguments),
    /// Dispatch and combine of expert parallelism
    Experts(ExpertsArguments),
    /// A step of computation with collectives, resident or driven otherwise
    Step(StepArguments),
    /// Synchronous training of a network on many workers
    Train(TrainArguments),
}

/// About a minute on two cores.
pub(super) const OPS_MAX: u64 = 150_000_000;

#[derive(Args)]
pub(super) struct Common {
    /// The smallest size, in bytes; K, M and G are powers of 1024
    #[arg(short = 'b', long, value_name = "SIZE", default_value = "8K")]
    pub minimum: Size,
    /// The largest size
    #[arg(short = 'e', long, value_name = "SIZE", default_value = "1G")]
    pub maximum: Size,
    /// Each size is this many times the one before
    #[arg(short = 'f', long, value_name = "N", default_value_t = 2)]
    pub factor: u64,
    /// A built-in machine, or the path of a machine file
    #[arg(long, short, value_name = "NAME|FILE", default_value = "pcie4")]
    pub machine: String,
    /// How many such machines a network joins [default: as the machine says]
    #[arg(long, value_name = "N")]
    pub nodes: Option<usize>,
    /// GB/s of each GPU's adapter [default: the profile's]
    #[arg(long, value_name = "GB/S")]
    pub adapter: Option<f64>,
    /// Nodes below one leaf switch [default: a network that never limits]
    #[arg(long, value_name = "N")]
    pub leaf_nodes: Option<usize>,
    /// How many times the rate of a leaf's adapters exceeds that of its uplinks
    #[arg(long, value_name = "RATIO", default_value_t = 1.0, requires = "leaf_nodes")]
    pub oversubscription: f64,
    /// What moves data: cpu-driven, proxy, device or stores
    #[arg(long, value_name = "NAME", default_value = "proxy")]
    pub engine: EngineName,
    /// Proxies rest before the run, as after a pause between launches; else they poll already
    #[arg(long)]
    pub rested: bool,
    /// A built-in profile of constants, or the path of a profile file [default: the one for the
    /// machine's GPUs]
    #[arg(long, short, value_name = "NAME|FILE")]
    pub profile: Option<String>,
    /// The most ops that all sizes together may play; a prediction with more is refused
    #[arg(long, value_name = "N", default_value_t = OPS_MAX)]
    pub ops_max: u64,
    /// Write the results to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw the results to this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Write a trace of the largest size to this file, for Perfetto or Chrome's tracing page
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}

#[derive(Args)]
pub(super) struct AllReduceArguments {
    #[command(flatten)]
    pub common: Common,
    /// Ranks [default: all GPUs of all nodes]
    #[arg(short = 'g', long, value_name = "N")]
    pub ranks: Option<u32>,
    /// selected (what the library runs), two-shot or halving (drafts: verified plans that the
    /// library does not run yet), trees (packed into the NVLinks of one node: what the library runs
    /// with RINGDOVE_ALGORITHM=trees), or auto (the fastest of the first three that fit)
    #[arg(long, alias = "pattern", value_name = "NAME", default_value = "auto")]
    pub algorithm: AlgorithmName,
    /// Blocks of a rank's kernel, 1 to 1024 [default: what the library uses; the best of a draft]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub blocks: Option<u32>,
    /// Bytes of a staging slot [default: what the library uses; of a draft 512K, and 4M for more
    /// than 64 ranks]
    #[arg(long, value_name = "SIZE")]
    pub slot_bytes: Option<Size>,
    /// Staging slots of each lane [default: what the library uses]
    #[arg(long, value_name = "N")]
    pub slots: Option<u32>,
    /// As RINGDOVE_LOW_LATENCY_BYTES: up to this size the library sends LL messages
    /// [default: what the library uses]
    #[arg(long, value_name = "SIZE")]
    pub low_latency_bytes: Option<Size>,
    /// As RINGDOVE_LOW_LATENCY_ADAPTERS=true: the proxy sends LL messages between nodes, too
    #[arg(long)]
    pub low_latency_adapters: bool,
    /// As RINGDOVE_STORES: what GPU threads move where the engine is the proxy
    #[arg(long, value_name = "auto|always|never", default_value = "auto")]
    pub stores: StoresName,
    /// As RINGDOVE_ALGORITHM=table, which `selected` alone obeys: the table of selection has each
    /// all-reduce, and not the library's cost model
    #[arg(long)]
    pub table: bool,
    /// Buffers are registered: engines reach them directly where the pattern allows it
    #[arg(short = 'R', long)]
    pub registered: bool,
    /// As RINGDOVE_REPRODUCIBLE=true, which `selected` alone obeys
    #[arg(long)]
    pub reproducible: bool,
    /// Play every rank, also those of nodes that do the same as another at the same time
    #[arg(long)]
    pub every_rank: bool,
}

#[derive(Args)]
pub(super) struct P2pArguments {
    #[command(flatten)]
    pub common: Common,
    /// The GPU that puts
    #[arg(long, value_name = "GPU", default_value_t = 0)]
    pub from: u32,
    /// The GPU that receives
    #[arg(long, value_name = "GPU", default_value_t = 1)]
    pub to: u32,
    /// Messages in flight, at most
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub window: u32,
    /// Each message follows the one before it in memory, so that a proxy may merge them
    #[arg(long)]
    pub contiguous: bool,
}

/// A number of bytes: `8K`, `1M`, `64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = parse_size(text).map_err(|error| error.to_string())? as u64;
        let expected = || format!("expected less than 1T bytes, but saw {text:?}");
        if bytes < 1 << 40 { Ok(Self(bytes)) } else { Err(expected()) }
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&short(self.0))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct EngineName(pub Engine);

impl FromStr for EngineName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Engine::ALL.iter().find(|(name, _)| *name == text);
        let names = Engine::ALL.map(|(name, _)| name).join(", ");
        found.map(|(_, engine)| Self(*engine)).ok_or(format!("expected one of {names}"))
    }
}

/// `None`: the fastest.
#[derive(Clone, Copy, Debug)]
pub(super) struct AlgorithmName(pub Option<Pattern>);

/// Patterns with the names that the command takes, and whether they are drafts.
pub(super) const PATTERNS: [(&str, Pattern); 4] = [
    ("selected", Pattern::Selected),
    ("two-shot", Pattern::TwoShot),
    ("halving", Pattern::Halving),
    ("trees", Pattern::Trees),
];

impl FromStr for AlgorithmName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self(None));
        }
        let found = PATTERNS.iter().find(|(name, _)| *name == text);
        let names = PATTERNS.map(|(name, _)| name).join(", ");
        found.map(|(_, it)| Self(Some(*it))).ok_or(format!("expected auto or one of {names}"))
    }
}

impl Common {
    /// All sizes of the sweep.
    pub fn sizes(&self) -> Result<Vec<u64>, PredictError> {
        let flag = |flag, expected: &str, seen: u64| {
            Err(PredictError::Flag { flag, expected: expected.into(), seen: seen.to_string() })
        };
        if self.minimum.0 == 0 {
            return flag("--minimum", "at least 1", 0);
        }
        if self.maximum.0 < self.minimum.0 {
            return flag("--maximum", "no less than --minimum", self.maximum.0);
        }
        if self.factor < 2 {
            return flag("--factor", "at least 2", self.factor);
        }
        let next = |size: &u64| size.checked_mul(self.factor);
        let sizes = std::iter::successors(Some(self.minimum.0), next);
        Ok(sizes.take_while(|size| *size <= self.maximum.0).collect())
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct StoresName(pub Stores);

impl FromStr for StoresName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|()| "expected auto, always or never".into())
    }
}

impl AllReduceArguments {
    /// Do GPU threads store LL messages?
    pub fn stores(&self) -> bool {
        match self.common.engine.0 {
            Engine::Stores => true,
            Engine::Proxy => self.stores.0 != Stores::Never,
            Engine::CpuDriven | Engine::Device => false,
        }
    }

    /// Do LL messages go between nodes?
    pub fn sends_words_apart(&self) -> bool {
        match self.common.engine.0 {
            Engine::Device => true,
            Engine::Proxy => self.low_latency_adapters,
            Engine::Stores | Engine::CpuDriven => false,
        }
    }

    /// How many lanes of stores with slots are there between each two ranks, which NVLink joins
    /// or not?
    pub fn store_blocks(&self, nvlink: bool) -> u32 {
        let has_any = self.stores() && (nvlink || self.stores.0 == Stores::Always);
        if has_any { Settings::default().store_blocks } else { 0 }
    }

    pub fn ranks(&self, machine: &Machine) -> Result<u32, PredictError> {
        let gpus = machine.gpu_count() as u32;
        let ranks = self.ranks.unwrap_or(gpus);
        if !(2..=gpus).contains(&ranks) {
            let expected = format!("2 to {gpus}, the GPUs of {}", machine.name());
            return Err(PredictError::Flag { flag: "--ranks", expected, seen: ranks.to_string() });
        }
        Ok(ranks)
    }
}

impl P2pArguments {
    pub fn ends(&self, machine: &Machine) -> Result<(u32, u32), PredictError> {
        let gpus = machine.gpu_count() as u32;
        for (flag, seen) in [("--from", self.from), ("--to", self.to)] {
            if seen >= gpus {
                let expected = format!("less than {gpus}, the GPUs of {}", machine.name());
                return Err(PredictError::Flag { flag, expected, seen: seen.to_string() });
            }
        }
        if self.from == self.to {
            let (expected, seen) = ("another GPU than --from".into(), self.to.to_string());
            return Err(PredictError::Flag { flag: "--to", expected, seen });
        }
        if !(1..=4096).contains(&self.window) {
            let (expected, seen) = ("1 to 4096".into(), self.window.to_string());
            return Err(PredictError::Flag { flag: "--window", expected, seen });
        }
        Ok((self.from, self.to))
    }
}
