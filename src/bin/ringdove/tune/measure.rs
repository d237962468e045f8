//! What `ringdove tune` measures, by the host's clock. A rate is the difference between a long
//! and a short piece of work, so that what both cost beside their bytes does not count; each time
//! is the shortest of several.
//!
//! Here are launches and copies by the driver; `kernels` has the executor and the engines,
//! `adapters` the network.

use super::kernels::Pair;
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{CudaContext, CudaStream};
use ringdove::cost::Profile;
use ringdove::cost::profile::permitted;
use ringdove::topology::machine::{Joined, Machine};
use ringdove::topology::pci::PciAddress;
use ringdove::topology::ranks::RankGpu;
use ringdove::{Communicator, ReduceOp, Settings, device_count, open_device};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Instant;

/// Runs of each piece of work.
const RUNS: usize = 7;
/// Bytes that one block copies: a short piece and a long one.
const BLOCK_BYTES: [usize; 2] = [1 << 20, 4 << 20];
/// Bytes of copies by the driver.
const COPY_BYTES: [usize; 2] = [16 << 20, 64 << 20];
/// Small copies that are submitted together.
const SUBMITTED: usize = 32;

/// A constant that was measured, in its unit.
pub struct Measured {
    pub name: &'static str,
    pub value: f64,
    pub unit: &'static str,
    /// What was done, for whoever reads the file.
    pub how: String,
}

/// All that was measured.
pub struct Found {
    /// GPUs and driver.
    pub machine: String,
    /// The profile whose values stand where nothing was measured.
    pub base: Profile,
    pub constants: Vec<Measured>,
    /// What could not be measured, with the reason.
    pub failed: Vec<String>,
    /// The process runs on virtual hardware.
    pub is_virtual: bool,
}

/// What has been measured so far.
pub struct Seen {
    constants: Vec<Measured>,
    failed: Vec<String>,
}

impl Seen {
    /// A way that this machine lacks is no reason to lose what was measured.
    fn add(&mut self, what: &str, found: Result<Vec<Measured>, String>) {
        match found {
            Ok(found) => self.constants.extend(found),
            Err(error) => self.failed.push(format!("{what}: {error}")),
        }
    }

    /// The value of a constant; 0 where it was not measured.
    pub fn value(&self, name: &str) -> f64 {
        self.constants.iter().find(|it| it.name == name).map_or(0.0, |it| it.value)
    }
}

/// Constants that show in a sum alone: each is `ratio` times that of the base profile, as the sum
/// is.
pub fn split(base: &Profile, names: &[&'static str], ratio: f64, how: &str) -> Vec<Measured> {
    let how = format!("{how}; of a sum that was measured, as large a part as in {}", base.name);
    let values = names.iter().filter_map(|name| Some((*name, base.value(name)?)));
    let part = |(name, value): (&'static str, f64)| Measured {
        name,
        value: value * ratio,
        unit: "us",
        how: how.clone(),
    };
    values.map(part).collect()
}

pub fn words(error: impl Display) -> String {
    error.to_string()
}

/// Measures the GPUs of this process; what is not measured is as in the built-in profile of this
/// name, or in that for such GPUs.
pub fn measure(base: Option<&str>) -> Result<Found, String> {
    let count = device_count().map_err(words)?;
    if count == 0 {
        return Err("no GPU to measure".to_owned());
    }
    let contexts = (0..count).map(open_device).collect::<Result<Vec<_>, _>>().map_err(words)?;
    let gpus = Gpus::of(&contexts);
    let first = &contexts[0];
    let fitting = gpus.known.first().and_then(Option::as_ref).map_or("pcie4", Profile::for_gpu);
    let base = Profile::built_in(base.unwrap_or(fitting)).map_err(words)?;
    let mut seen = Seen {
        constants: vec![launch(first)?, copy(first)?, memory(first)?, submit(first)?],
        failed: Vec::new(),
    };
    seen.constants.extend(links(&contexts, &gpus)?);
    seen.constants.extend(copy_engines(first));
    let pair = gpus.pair(&contexts, &base)?;
    seen.add("blocks", pair.blocks());
    let [op, step] = ["op", "step"].map(|name| seen.value(name).max(0.0));
    seen.add(
        "stores",
        match pair.gpus {
            Some(_) => pair.stores(op, step),
            None => Err("two GPUs whose links are known are needed".to_owned()),
        },
    );
    #[cfg(feature = "verbs")]
    seen.add("adapters", super::adapters::measure(&base));
    let (proxy, device) = (pair.proxy(&seen), pair.device(&seen));
    seen.add("the proxy", proxy);
    seen.add("device engines", device);
    let Seen { mut constants, failed } = seen;
    // What is no time at all is no measurement, nor is what no profile may say: on a busy machine a
    // difference of times can be anything.
    constants.retain(|it| it.value > 0.0 && permitted(it.unit).contains(&it.value));
    let name = first.name().map_err(words)?;
    // Virtual GPUs say so in their names.
    let is_virtual = name.contains("(virtual)");
    let note = if is_virtual { ": no figures of GPUs" } else { "" };
    Ok(Found { machine: format!("{count} x {name}{note}"), base, constants, failed, is_virtual })
}

/// The shortest time of `work`, in µs, after one run that does not count.
pub fn shortest(mut work: impl FnMut() -> Result<(), String>) -> Result<f64, String> {
    work()?;
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let start = Instant::now();
        work()?;
        best = best.min(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(best)
}

/// Bytes a µs, as GB/s, by the times of a short and of a long piece.
fn rate(bytes: [usize; 2], times: [f64; 2]) -> f64 {
    (bytes[1] - bytes[0]) as f64 / (times[1] - times[0]) / 1e3
}

fn idle(stream: &CudaStream) -> Result<f64, String> {
    shortest(|| stream.synchronize().map_err(words))
}

/// All-reduces of one rank, which are copies by the executor, in one block.
fn alone(context: &Arc<CudaContext>, bytes: usize) -> Result<f64, String> {
    let settings = Settings { blocks_max: 1, ..Settings::from_env().map_err(words)? };
    let ranks = Communicator::init_all(std::slice::from_ref(context), &settings).map_err(words)?;
    let stream = context.new_stream().map_err(words)?;
    let input = stream.alloc_zeros::<u32>(bytes / 4).map_err(words)?;
    let mut output = stream.alloc_zeros::<u32>(bytes / 4).map_err(words)?;
    shortest(|| {
        ranks[0].all_reduce(&input, &mut output, ReduceOp::Sum, &stream).map_err(words)?;
        stream.synchronize().map_err(words)?;
        ranks[0].check().map_err(words)
    })
}

fn launch(context: &Arc<CudaContext>) -> Result<Measured, String> {
    let stream = context.new_stream().map_err(words)?;
    let value = (alone(context, 16)? - idle(&stream)?).max(0.0);
    let how = "an all-reduce of 16 bytes of one rank, from the call until its stream has ended, \
               less an idle synchronization: more than a launch alone";
    Ok(Measured { name: "launch", value, unit: "us", how: how.to_owned() })
}

fn copy(context: &Arc<CudaContext>) -> Result<Measured, String> {
    let [short, long] = BLOCK_BYTES;
    let value = rate(BLOCK_BYTES, [alone(context, short)?, alone(context, long)?]);
    let how = "one block of the executor, 4 MiB against 1 MiB of an all-reduce of one rank";
    Ok(Measured { name: "copy", value, unit: "GB/s", how: how.to_owned() })
}

/// Copies of so many bytes from one GPU to another, or within one.
fn copied(from: &Arc<CudaContext>, to: &Arc<CudaContext>, bytes: usize) -> Result<f64, String> {
    let (source, target) = (from.new_stream().map_err(words)?, to.new_stream().map_err(words)?);
    let input = source.alloc_zeros::<u8>(bytes).map_err(words)?;
    let mut output = target.alloc_zeros::<u8>(bytes).map_err(words)?;
    source.synchronize().map_err(words)?;
    shortest(|| {
        target.memcpy_dtod(&input, &mut output).map_err(words)?;
        target.synchronize().map_err(words)
    })
}

fn copy_rate(from: &Arc<CudaContext>, to: &Arc<CudaContext>) -> Result<f64, String> {
    let [short, long] = COPY_BYTES;
    Ok(rate(COPY_BYTES, [copied(from, to, short)?, copied(from, to, long)?]))
}

fn memory(context: &Arc<CudaContext>) -> Result<Measured, String> {
    let value = copy_rate(context, context)?;
    let how = "a copy of the driver's within the GPU, 64 MiB against 16 MiB";
    Ok(Measured { name: "memory", value, unit: "GB/s", how: how.to_owned() })
}

/// What the driver says of copies at the same time.
fn copy_engines(context: &CudaContext) -> Option<Measured> {
    let attribute = Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT;
    let count = context.attribute(attribute).ok()?;
    let how = "what the driver says of the GPU".to_owned();
    Some(Measured { name: "copy_engines", value: f64::from(count), unit: "count", how })
}

fn submit(context: &Arc<CudaContext>) -> Result<Measured, String> {
    let stream = context.new_stream().map_err(words)?;
    let input = stream.alloc_zeros::<u8>(16).map_err(words)?;
    let mut output = stream.alloc_zeros::<u8>(16).map_err(words)?;
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        stream.synchronize().map_err(words)?;
        let start = Instant::now();
        for _ in 0..SUBMITTED {
            stream.memcpy_dtod(&input, &mut output).map_err(words)?;
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e6 / SUBMITTED as f64);
    }
    stream.synchronize().map_err(words)?;
    let how = format!("the host's time for a copy of 16 bytes, {SUBMITTED} in a row");
    Ok(Measured { name: "submit", value: best, unit: "us", how })
}

/// What is known of the GPUs of contexts.
struct Gpus {
    machine: Option<Machine>,
    known: Vec<Option<RankGpu>>,
    places: Vec<Option<usize>>,
}

impl Gpus {
    fn of(contexts: &[Arc<CudaContext>]) -> Self {
        let machine = Machine::discover().ok();
        let addresses: Vec<Option<PciAddress>> = contexts.iter().map(|it| address(it)).collect();
        let place = |address: &Option<PciAddress>| {
            let (machine, address) = (machine.as_ref()?, (*address)?);
            let gpus = machine.gpus();
            let places = gpus.iter().map(|(place, _)| *place);
            places.into_iter().find(|place| machine.devices[*place].address == address)
        };
        let places = addresses.iter().map(place).collect();
        let known = |address: &Option<PciAddress>| RankGpu::of(machine.as_ref()?, (*address)?);
        let known = addresses.iter().map(known).collect();
        Self { machine, known, places }
    }

    /// Two ranks: on the first two GPUs, or both on the only one.
    fn pair<'a>(
        &'a self,
        contexts: &'a [Arc<CudaContext>],
        base: &'a Profile,
    ) -> Result<Pair<'a>, String> {
        let second = contexts.len().min(2) - 1;
        let known = |number: usize| self.known.get(number).and_then(Option::as_ref);
        Ok(Pair {
            contexts: [&contexts[0], &contexts[second]],
            gpus: known(0).zip(known(1)).map(|(one, other)| [one, other]),
            base,
            settings: Settings::from_env().map_err(words)?,
        })
    }

    /// What the links between two of them carry by their data sheets, and whether they are NVLinks.
    fn nominal(&self, from: usize, to: usize) -> Option<(f64, bool)> {
        let (one, other) = (self.known[from].as_ref()?, self.known[to].as_ref()?);
        let (a, b) = (self.places[from]?, self.places[to]?);
        Some(match self.machine.as_ref()?.joined(a, b) {
            Joined::Itself => return None,
            Joined::NvLink(count) => (f64::from(count) * one.nvlink_megabytes as f64 / 1e3, true),
            _ => (one.pcie_megabytes.min(other.pcie_megabytes) as f64 / 1e3, false),
        })
    }
}

fn address(context: &CudaContext) -> Option<PciAddress> {
    let value = |attribute| context.attribute(attribute).ok();
    let domain = value(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
    let bus = value(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?;
    let device = value(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?;
    format!("{domain:04x}:{bus:02x}:{device:02x}.0").parse().ok()
}

/// The efficiency of NVLinks and of PCI links: of the pairs of each kind, the one in the middle.
fn links(contexts: &[Arc<CudaContext>], gpus: &Gpus) -> Result<Vec<Measured>, String> {
    let mut shares: [Vec<f64>; 2] = Default::default();
    for to in 1..contexts.len() {
        if let Some((nominal, is_nvlink)) = gpus.nominal(0, to).filter(|(rate, _)| *rate > 0.0) {
            let share = copy_rate(&contexts[0], &contexts[to])? / nominal;
            shares[usize::from(is_nvlink)].push(share);
        }
    }
    let names = ["pcie_efficiency", "nvlink_efficiency"];
    let mut found = Vec::new();
    for (name, mut shares) in names.into_iter().zip(shares) {
        shares.retain(|share| share.is_finite() && *share > 0.0);
        shares.sort_by(f64::total_cmp);
        let Some(share) = shares.get(shares.len() / 2) else { continue };
        let capped = if *share > 1.0 { ", which came to more than all of it" } else { "" };
        let how = format!(
            "copies from GPU 0 to {} others, 64 MiB against 16, of the data sheet's rate{capped}",
            shares.len()
        );
        found.push(Measured { name, value: share.clamp(1e-3, 1.0), unit: "ratio", how });
    }
    Ok(found)
}
