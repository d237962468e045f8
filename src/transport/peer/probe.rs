//! What GPUs of a node really do for one another, tried at the creation of a communicator.
//!
//! Drivers grant peer access between GPUs whose writes to each other are then lost (PCI access
//! control, IOMMU), and stream memory operations that reach the stream's GPU only. Neither is
//! reported; a collective would hang on it until its wait expires. So each rank writes, before
//! anybody runs, some bytes and a signal to each peer by the way that it will use, and reads them
//! back.

use crate::error::{Error, Result};
use crate::gpu::{Current, DeviceMemory, Home, PinnedMemory, SignalStream, way_on_own_device};
use crate::id::{Rank, SignalWay};
use crate::lived::Lived;
use crate::shared::Region;
use cudarc::driver::sys;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bytes that are copied to a peer.
const DATA_BYTES: usize = 16;
/// What data and signals are written with, before the rank's number.
const PATTERN: u64 = 0x5249_4e47_0000_0000;
/// What is lost shows when the copies have ended. They take so long only where a GPU runs kernels
/// that do not end; those of many ranks on virtual hardware took two seconds on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);

/// A place in a peer's memory which this rank alone writes. The signal holds zeros; both hold them
/// after the probe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    /// Whose memory it is.
    pub peer: Rank,
    /// Address of a signal.
    pub signal: u64,
    /// Address of [some bytes](DATA_BYTES) for data; None where nothing but signals goes there.
    pub data: Option<u64>,
}

/// What a probe has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// How signals reach all peers.
    pub way: SignalWay,
    /// How long all copies took, there and back.
    pub took: Duration,
    /// The first wrong word that was read back from each peer to which copies do not come. `way`
    /// says nothing of those.
    pub lost: Vec<(Rank, Mismatch)>,
}

/// A word that was not read back as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mismatch {
    pub expected: u64,
    pub seen: u64,
}

/// Tries all `targets` of `rank`, from `home`, the context in which the copies of collectives are.
///
/// # Errors
/// [`Error::HostWaitExpired`] where the copies do not end; [`Error::Cuda`].
pub(crate) fn probe(home: &Home, rank: Rank, targets: Vec<Target>) -> Result<Found> {
    let mut probe = Probe::new(home, rank, targets)?;
    let began = Instant::now();
    let lost = probe.check_copies()?;
    let took = began.elapsed();
    probe.targets.retain(|target| lost.iter().all(|(peer, _)| *peer != target.peer));
    let way = probe.find_signal_way()?;
    Ok(Found { way, took, lost })
}

struct Probe<'a> {
    home: &'a Home,
    rank: Rank,
    targets: Vec<Target>,
    signals: SignalStream,
    memory: Arc<PinnedMemory>,
    region: Region,
    /// Where the data of a collective comes from, too: what a GPU sends and what a host sends go
    /// different ways.
    source: DeviceMemory,
}

/// Offsets in the probe's memory: pinned for signals, which come from there, and on the device for
/// data.
mod place {
    use super::DATA_BYTES;
    pub const PATTERN: usize = 0;
    pub const ZEROS: usize = DATA_BYTES;
    /// What comes back, to pinned memory: for each target data, then the signal.
    pub const SEEN: usize = 2 * DATA_BYTES;
    pub const SEEN_BYTES: usize = DATA_BYTES + size_of::<u64>();
}

impl<'a> Probe<'a> {
    fn new(home: &'a Home, rank: Rank, targets: Vec<Target>) -> Result<Self> {
        let context = home.context();
        let bytes = place::SEEN + targets.len() * place::SEEN_BYTES;
        let memory = Arc::new(PinnedMemory::zeroed(context, bytes)?);
        let region = memory.region();
        let pattern = PATTERN | u64::from(rank.0);
        let signal = region.word64(place::PATTERN)?;
        // Relaxed: copies that read it are enqueued after this, and the driver orders the two.
        signal.store(pattern, Ordering::Relaxed);
        let source = DeviceMemory::zeroed(context, 2 * DATA_BYTES)?;
        source.write(place::PATTERN, bytemuck::bytes_of(&[pattern; DATA_BYTES / 8]))?;
        let signals = SignalStream::new(home, SignalWay::Copy)?;
        Ok(Self { home, rank, targets, signals, memory, region, source })
    }

    fn pattern(&self) -> u64 {
        PATTERN | u64::from(self.rank.0)
    }

    /// Copies data and signals there and back. Gives what does not come back.
    fn check_copies(&self) -> Result<Vec<(Rank, Mismatch)>> {
        let current = self.home.bind()?;
        self.write_all(&current, place::PATTERN)?;
        self.read_all(&current)?;
        self.write_all(&current, place::ZEROS)?;
        self.wait(&current)?;
        let (expected, mut lost) = (self.pattern(), Vec::new());
        for (index, target) in self.targets.iter().enumerate() {
            let at = place::SEEN + index * place::SEEN_BYTES;
            let offsets = if target.data.is_some() { &[0, 8, 16][..] } else { &[16] };
            for offset in offsets {
                let seen = self.seen(at + offset)?;
                if seen != expected {
                    lost.push((target.peer, Mismatch { expected, seen }));
                    break;
                }
            }
        }
        Ok(lost)
    }

    /// Writes signals by stream memory operations, and looks which way reaches all peers.
    fn find_signal_way(&mut self) -> Result<SignalWay> {
        if way_on_own_device(self.home.context()) == SignalWay::Copy {
            return Ok(SignalWay::Copy);
        }
        let current = self.home.bind()?;
        self.signals.set_way(SignalWay::StreamWrite);
        // Another value than that of the copies, so that none of theirs is taken for it.
        let value = !self.pattern();
        let mut refused = false;
        for target in &self.targets {
            // SAFETY: a signal word of a peer, which the communicator keeps.
            refused |= unsafe { self.signals.raise(&current, target.signal, value) }.is_err();
        }
        self.signals.set_way(SignalWay::Copy);
        self.read_all(&current)?;
        self.write_all(&current, place::ZEROS)?;
        self.wait(&current)?;
        let mut reached = !refused;
        for index in 0..self.targets.len() {
            reached &= self.seen(place::SEEN + index * place::SEEN_BYTES + DATA_BYTES)? == value;
        }
        Ok(if reached { SignalWay::StreamWrite } else { SignalWay::Copy })
    }

    /// The word at an offset, after the copy that wrote it was waited for.
    fn seen(&self, offset: usize) -> Result<u64> {
        // Relaxed: the driver has said that the copy has ended.
        Ok(self.region.word64(offset)?.load(Ordering::Relaxed))
    }

    /// Enqueues copies of what stands at `offset` of the sources to all targets.
    fn write_all(&self, current: &Current, offset: usize) -> Result<()> {
        let [data_from, signal_from] =
            [self.source.address(), self.memory.address()].map(|base| base + offset as u64);
        for target in &self.targets {
            if let Some(data) = target.data {
                self.copy(current, data, data_from, DATA_BYTES)?;
            }
            self.copy(current, target.signal, signal_from, size_of::<u64>())?;
        }
        Ok(())
    }

    /// Enqueues copies of what stands at all targets to here.
    fn read_all(&self, current: &Current) -> Result<()> {
        for (index, target) in self.targets.iter().enumerate() {
            let to = self.memory.address() + (place::SEEN + index * place::SEEN_BYTES) as u64;
            if let Some(data) = target.data {
                self.copy(current, to, data, DATA_BYTES)?;
            }
            self.copy(current, to + DATA_BYTES as u64, target.signal, size_of::<u64>())?;
        }
        Ok(())
    }

    fn copy(&self, current: &Current, to: u64, from: u64, bytes: usize) -> Result<()> {
        // SAFETY: one side lies in the probe's memory, which outlives the stream, the other in
        // memory of the communicator.
        current.check("cuMemcpyAsync", unsafe {
            sys::cuMemcpyAsync(to, from, bytes, self.signals.stream().handle())
        })
    }

    /// Waits for all copies, a bounded time.
    fn wait(&self, current: &Current) -> Result<()> {
        let mut lived = Lived::new();
        while !self.signals.stream().is_idle(current)? {
            if lived.look() > LIMIT {
                let peers: Vec<_> = self.targets.iter().map(|target| target.peer).collect();
                return Err(Error::HostWaitExpired {
                    what: format!("copies of {} to {}", self.rank, crate::error::Ranks(&peers)),
                    expected: "all ended".into(),
                    seen: "some that have not; is the GPU busy with kernels that do not end?"
                        .into(),
                    waited: lived.time(),
                });
            }
            std::hint::spin_loop();
        }
        Ok(())
    }
}
