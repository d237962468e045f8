//! The data of a room, in memory of the host or of a GPU: copies inside of it, and gradients that
//! are applied there.

use super::fabric::Pinned;
use super::job::Memory;
use super::optimizer::{Optimizer, Weights};
use super::words::CHUNK;
use crate::error::Result;
use crate::gpu::{DeviceMemory, GpuRange, Home, Kernels, OwnStream, open_device};
use crate::shared::{DeviceRange, Region};
use crate::transport::verbs::{Adapter, MemoryRegion, Piece, RemoteAccess};
use ringdove_kernels::optimizer::{OPTIMIZER_GRADIENTS, OptimizerCall};
use ringdove_kernels::ptx;
use std::ops::Range;
use std::sync::Arc;

/// The most gradients of one pass.
pub(super) const GRADIENTS_MAX: usize = OPTIMIZER_GRADIENTS;
/// Threads of a block, and the most blocks of a launch.
const THREADS: u32 = 128;
const BLOCKS_MAX: u64 = 1024;

/// Where data of shards lies, of all rooms of a server.
pub(super) enum Place {
    Host,
    Gpu { home: Home, kernels: Arc<Kernels<OptimizerCall>> },
}

/// Data of a room, as a server uses it. Clones share the memory.
#[derive(Clone)]
pub(super) enum Store {
    /// In memory of the host.
    Host(Region),
    /// In memory of a GPU.
    Gpu { memory: Arc<DeviceMemory>, stream: Arc<OwnStream>, kernels: Arc<Kernels<OptimizerCall>> },
}

/// Data of a room, and what the adapter knows of it.
pub(super) struct Data {
    pub(super) store: Store,
    pub(super) memory: MemoryRegion,
}

/// Gradients that are applied in one pass over a part of a shard, in their order. Places are bytes
/// of the data.
pub(super) struct Change<'a> {
    pub(super) optimizer: Optimizer,
    /// The number of the first gradient, counted from 1.
    pub(super) step: u64,
    /// What is read: parameters, and behind them what the optimiser keeps, of the whole shard.
    pub(super) from: u64,
    /// What is written, likewise.
    pub(super) to: u64,
    /// Bytes of the parameters.
    pub(super) bytes: u64,
    /// Where each gradient lies.
    pub(super) gradients: &'a [u64],
    /// Which bytes of the parameters change: whole words.
    pub(super) range: Range<u64>,
}

impl Place {
    /// # Errors
    /// [`Error::NotFound`](crate::Error::NotFound) without a GPU;
    /// [`Error::Cuda`](crate::Error::Cuda) with the driver's answer.
    pub(super) fn open(memory: Memory, ordinal: usize) -> Result<Self> {
        if memory == Memory::Host {
            return Ok(Self::Host);
        }
        let context = open_device(ordinal)?;
        let kernels = Kernels::load(&context, ptx::OPTIMIZER, &[ptx::OPTIMIZER_ENTRY])?;
        Ok(Self::Gpu { home: Home::from(&context), kernels: Arc::new(kernels) })
    }

    /// Zeros that workers and servers reach.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) where memory cannot be registered.
    pub(super) fn data(&self, adapter: &Arc<Adapter>, bytes: u64) -> Result<Data> {
        match self {
            Self::Host => {
                let Pinned { region, memory } = Pinned::new(adapter, bytes, RemoteAccess::Write)?;
                Ok(Data { store: Store::Host(region), memory })
            }
            Self::Gpu { home, kernels } => {
                let context = home.context();
                let device = Arc::new(DeviceMemory::zeroed(context, bytes as usize)?);
                let range: Arc<dyn DeviceRange> = Arc::new(GpuRange::of_memory(context, &device)?);
                let memory = adapter.register_device(&range, RemoteAccess::Write)?;
                let (stream, kernels) = (Arc::new(OwnStream::new(context)?), kernels.clone());
                Ok(Data { store: Store::Gpu { memory: device, stream, kernels }, memory })
            }
        }
    }
}

impl Data {
    pub(super) fn at(&self, offset: u64) -> Piece<'_> {
        Piece { memory: &self.memory, offset }
    }
}

impl Store {
    /// Copies bytes to another place. It is done when [`finish`](Self::finish) has returned.
    pub(super) fn copy(&self, from: u64, to: u64, length: u64) -> Result<()> {
        match self {
            Self::Host(region) => {
                let mut bytes = [0; 8 * CHUNK];
                for at in (0..length).step_by(bytes.len()) {
                    let bytes = &mut bytes[..(length - at).min(8 * CHUNK as u64) as usize];
                    region.copy_out((from + at) as usize, bytes)?;
                    region.copy_in((to + at) as usize, bytes)?;
                }
                Ok(())
            }
            Self::Gpu { memory, stream, .. } => memory.copy_within(from, to, length, stream),
        }
    }

    /// Applies gradients; otherwise as [`copy`](Self::copy).
    pub(super) fn change(&self, change: &Change<'_>) -> Result<()> {
        match self {
            Self::Host(region) => change_host(region, change),
            Self::Gpu { memory, stream, kernels } => {
                let call = call(change, memory.address());
                let blocks = (call.count.div_ceil(u64::from(THREADS))).clamp(1, BLOCKS_MAX);
                kernels.launch_on(0, stream, (blocks as u32, THREADS), &call)
            }
        }
    }

    /// Waits until all that was asked for is done.
    pub(super) fn finish(&self) -> Result<()> {
        match self {
            Self::Host(_) => Ok(()),
            Self::Gpu { stream, .. } => stream.synchronize(),
        }
    }
}

/// Each chunk of parameters takes all gradients while it is in the cache.
fn change_host(region: &Region, change: &Change<'_>) -> Result<()> {
    let count = (change.bytes / 8) as usize;
    let row = |at: u64| region.words64(at as usize, count);
    let states = change.optimizer.states();
    let (from, to) = (row(change.from)?, row(change.to)?);
    let mut kept = Vec::new();
    for part in 1..=states as u64 {
        let at = part * change.bytes;
        kept.push((row(change.from + at)?, row(change.to + at)?));
    }
    let gradients = change.gradients.iter().map(|at| row(*at)).collect::<Result<Vec<_>>>()?;
    let steps = (change.step..).zip(&gradients).map(|(step, _)| change.optimizer.at(step));
    let steps: Vec<_> = steps.collect();
    let (mut weights, mut changes) = (Weights::default(), [0; CHUNK]);
    let words = (change.range.start / 8) as usize..(change.range.end / 8) as usize;
    for start in words.clone().step_by(CHUNK) {
        let words = CHUNK.min(words.end - start);
        from.load_all(start, &mut weights.parameters[..words]);
        for ((from, _), state) in kept.iter().zip(&mut weights.states) {
            from.load_all(start, &mut state[..words]);
        }
        for (gradient, step) in gradients.iter().zip(&steps) {
            gradient.load_all(start, &mut changes[..words]);
            step.apply(&mut weights, &changes);
        }
        to.store_all(start, &weights.parameters[..words]);
        for ((_, to), state) in kept.iter().zip(&weights.states) {
            to.store_all(start, &state[..words]);
        }
    }
    Ok(())
}

/// The same for the kernel.
fn call(change: &Change<'_>, base: u64) -> OptimizerCall {
    let first = change.range.start;
    let mut call = OptimizerCall {
        from: base + change.from + first,
        to: base + change.to + first,
        state_bytes: change.bytes,
        count: (change.range.end - first) / 4,
        gradient_count: change.gradients.len() as u32,
        ..change.optimizer.call()
    };
    for (index, at) in change.gradients.iter().enumerate() {
        call.gradients[index] = base + at + first;
        call.corrections[index] = change.optimizer.at(change.step + index as u64).corrections();
    }
    call
}
