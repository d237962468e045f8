//! Does an adapter write aligned words of 8 bytes in one piece? Low-latency messages between nodes
//! rest on it (R13), and no specification says it: it is tried.
//!
//! The adapter writes into memory of the GPU, or pinned memory, over a connection to itself; what
//! it writes has equal halves in each word, and other halves than what it wrote before. A kernel
//! polls the words meanwhile, with the loads of low-latency messages. A word with different halves
//! came in two pieces. That none was seen is evidence, and no proof: it holds for this adapter, its
//! driver, this GPU and the bus between them, as they are now.

use crate::error::{Error, Result};
use crate::gpu::{DeviceMemory, GpuRange, HostMemory, Kernels, OwnStream, pci_address};
use crate::settings::Settings;
use crate::shared::{DeviceRange, Region};
use crate::transport::verbs::{
    Adapter, Adapters, Loopback, MemoryRegion, Near, RemoteAccess, VerbsSettings,
};
use cudarc::driver::{CudaContext, CudaStream};
use ringdove_kernels::ptx;
use ringdove_kernels::words::{WORDS_BYTES_PER_THREAD, WordsCall};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A page of every host, or several.
const PAGE_BYTES: usize = 64 << 10;
const BLOCKS: u32 = 4;
const THREADS: u32 = 256;
/// Bytes that the kernel polls: several packets of any adapter.
const TARGET_BYTES: u64 = WORDS_BYTES_PER_THREAD * BLOCKS as u64 * THREADS as u64;
/// What is written in turn.
const VERSIONS: u64 = 16;
/// Writes that are under way at a time.
const IN_FLIGHT_MAX: u64 = 4;
/// The kernel ends by itself so long after the last write should have begun.
const KERNEL_LIMIT: Duration = Duration::from_secs(10);
/// Fewer changes that the kernel has seen say nothing.
const CHANGES_MIN: u64 = 10_000;

/// Where the adapter writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordsMemory {
    /// Memory of the GPU, as slots and signals between nodes are by default.
    Device,
    /// Pinned memory of the host, as where adapters do not reach the GPU
    /// ([`InterNodeSlots`](crate::InterNodeSlots)).
    Host,
}

/// What the kernel saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterWords {
    /// The adapter, and its port.
    pub adapter: String,
    /// Writes that ended.
    pub writes: u64,
    /// How often a load found another word than the load before.
    pub changes: u64,
    /// How often it found a word whose halves were of two writes.
    pub torn: u64,
}

impl AdapterWords {
    /// Was no word torn, of enough?
    pub fn are_whole(&self) -> bool {
        self.torn == 0 && self.is_telling()
    }

    /// Did the kernel see at least 10,000 words change?
    pub fn is_telling(&self) -> bool {
        self.changes >= CHANGES_MIN
    }
}

/// Lets the adapter that a rank on the GPU of `context` would use write into `memory` for
/// `duration`, while a kernel there watches.
///
/// # Errors
/// [`Error::NotFound`] where there is no usable adapter, [`Error::System`] where it cannot reach
/// the memory, [`Error::Transport`] where it fails, [`Error::Cuda`] with the driver's answer, and
/// [`Error::FeatureOff`] without the feature `verbs`.
pub fn try_adapter_words(
    context: &Arc<CudaContext>,
    memory: WordsMemory,
    duration: Duration,
    settings: &Settings,
) -> Result<AdapterWords> {
    let near = Near { gpu: pci_address(context)?.parse().ok(), ordinal: context.ordinal() };
    let (adapter, _) = Adapters::look(near, &VerbsSettings::from(settings))?.open(None)?;
    let source = Region::host((VERSIONS * TARGET_BYTES) as usize);
    for offset in (0..VERSIONS * TARGET_BYTES).step_by(8) {
        // Any two versions differ in each byte, so that no cut goes unnoticed.
        let half = 0x0101_0101 * (offset / TARGET_BYTES + 1);
        source.word64(offset as usize)?.store(half << 32 | half, Ordering::Relaxed);
    }
    let target = Target::allocate(context, &adapter, memory)?;
    let watch = Watching::start(context, target.address, duration + KERNEL_LIMIT)?;
    let source = adapter.register_host(&source, RemoteAccess::None)?;
    let written = write_for(&source, &target.region, duration);
    let (changes, torn) = watch.end()?;
    Ok(AdapterWords { adapter: adapter.name().to_owned(), writes: written?, changes, torn })
}

/// Writes one version after the other: all of the target, or a part as a low-latency message may
/// be. Returns how many.
fn write_for(source: &MemoryRegion, target: &MemoryRegion, duration: Duration) -> Result<u64> {
    let mut loopback = Loopback::new(source, target)?;
    let (begun, mut count) = (Instant::now(), 0);
    while begun.elapsed() < duration || loopback.in_flight() > 0 {
        if begun.elapsed() > duration + KERNEL_LIMIT {
            return Err(Error::HostWaitExpired {
                what: "writes of an adapter to itself".into(),
                expected: "0 in flight".into(),
                seen: loopback.in_flight().to_string(),
                waited: begun.elapsed(),
            });
        }
        if begun.elapsed() < duration && loopback.in_flight() < IN_FLIGHT_MAX {
            let (at, length) = part(count);
            let version = count % VERSIONS * TARGET_BYTES;
            count += u64::from(loopback.write(version + at, at, length)?);
        }
        loopback.poll()?;
    }
    Ok(count)
}

/// Where write `number` begins, and its bytes: every other one is of the whole target.
fn part(number: u64) -> (u64, u64) {
    let pieces = TARGET_BYTES / WORDS_BYTES_PER_THREAD;
    if number.is_multiple_of(2) {
        return (0, TARGET_BYTES);
    }
    // Primes, so that the parts are many.
    let first = number.wrapping_mul(7919) % pieces;
    let count = 1 + number.wrapping_mul(104_729) % (pieces - first);
    (first * WORDS_BYTES_PER_THREAD, count * WORDS_BYTES_PER_THREAD)
}

/// What is written and watched.
struct Target {
    region: MemoryRegion,
    /// As kernels see it.
    address: u64,
    _host: Option<HostMemory>,
}

impl Target {
    fn allocate(
        context: &Arc<CudaContext>,
        adapter: &Arc<Adapter>,
        memory: WordsMemory,
    ) -> Result<Self> {
        match memory {
            WordsMemory::Device => {
                let memory = Arc::new(DeviceMemory::zeroed(context, TARGET_BYTES as usize)?);
                let range: Arc<dyn DeviceRange> = Arc::new(GpuRange::of_memory(context, &memory)?);
                let region = adapter.register_device(&range, RemoteAccess::Write)?;
                Ok(Self { region, address: memory.address(), _host: None })
            }
            WordsMemory::Host => {
                let memory = HostMemory::zeroed(context, TARGET_BYTES as usize)?;
                let region = adapter.register_host(memory.region(), RemoteAccess::Write)?;
                Ok(Self { region, address: memory.address(), _host: Some(memory) })
            }
        }
    }
}

/// The kernel that polls.
struct Watching {
    stream: Arc<CudaStream>,
    copies: OwnStream,
    stop: HostMemory,
    tally: DeviceMemory,
    _kernel: Kernels<WordsCall>,
}

impl Watching {
    fn start(context: &Arc<CudaContext>, words: u64, limit: Duration) -> Result<Self> {
        let kernel = Kernels::load(context, ptx::WORDS, &["ringdove_words"])?;
        let stop = HostMemory::zeroed(context, PAGE_BYTES)?;
        let tally = DeviceMemory::zeroed(context, 2 * size_of::<u64>())?;
        let call = WordsCall {
            words,
            stop: stop.address(),
            tally: tally.address(),
            timeout_ns: u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX),
        };
        let copies = OwnStream::new(context)?;
        let stream = context.new_stream().map_err(Error::from_driver("cuStreamCreate"))?;
        kernel.launch(0, &stream, (BLOCKS, THREADS), &call)?;
        Ok(Self { stream, copies, stop, tally, _kernel: kernel })
    }

    /// Changes and torn words.
    fn end(self) -> Result<(u64, u64)> {
        self.stop.region().word32(0)?.store(1, Ordering::Relaxed);
        self.stream.synchronize().map_err(Error::from_driver("cuStreamSynchronize"))?;
        let word = |index| self.tally.read_word(index * size_of::<u64>(), &self.copies);
        Ok((word(0)?, word(1)?))
    }
}
