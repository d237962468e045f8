//! When blocks ran their tasks: a ring of time stamps for each.

use super::{Driven, Options, Phase, Resident};
use crate::error::{Error, Result, TaskName};
use crate::gpu::DeviceMemory;
use cudarc::driver::CudaContext;
use ringdove_kernels::program::ProgramStamp;
use serde_json::json;
use std::sync::Arc;

/// Memory of all rings of a program, at most.
const RINGS_BYTES_MAX: u64 = 1 << 30;

/// When a block ran a task, by the GPU's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The block; the first ones run collectives.
    pub block: u32,
    /// The task.
    pub task: TaskName,
    /// Its iteration.
    pub iteration: u64,
    /// The block came to the task, and began to wait.
    pub came_ns: u64,
    /// What the task waited for was there.
    pub began_ns: u64,
    /// The task ended.
    pub ended_ns: u64,
}

/// The rings of all blocks.
#[derive(Debug)]
pub(super) struct Rings {
    memory: DeviceMemory,
    blocks: u32,
    /// Stamps of each.
    capacity: u32,
}

impl Rings {
    /// Empty ones, if the options ask for stamps.
    pub fn new(context: &Arc<CudaContext>, blocks: u32, options: Options) -> Result<Option<Self>> {
        let capacity = options.stamps;
        if capacity == 0 || options.driven != Driven::Resident {
            return Ok(None);
        }
        let one = size_of::<ProgramStamp>() as u64 * u64::from(blocks);
        let bytes = one * u64::from(capacity);
        if bytes > RINGS_BYTES_MAX {
            let expected = format!("at most {} for {blocks} blocks", RINGS_BYTES_MAX / one);
            return Err(Error::argument("time stamps of each block", expected, capacity));
        }
        let memory = DeviceMemory::zeroed(context, bytes as usize)?;
        Ok(Some(Self { memory, blocks, capacity }))
    }

    /// As the kernel is told of them.
    pub fn place(&self) -> (u64, u32) {
        (self.memory.address(), self.capacity)
    }
}

impl Resident<'_> {
    /// The time stamps that the blocks have kept, in the order of beginnings. None where
    /// [`Options::stamps`] asks for none, and of launches.
    ///
    /// # Errors
    /// [`Error::Argument`] while the program runs.
    pub fn stamps(&self) -> Result<Vec<Stamp>> {
        if self.phase == Phase::Running {
            self.in_phase("access to time stamps", Phase::Paused)?;
        }
        let Some(rings) = &self.stamps else { return Ok(Vec::new()) };
        let mut records =
            vec![ProgramStamp::default(); rings.blocks as usize * rings.capacity as usize];
        rings.memory.read(0, bytemuck::cast_slice_mut(&mut records), &self.copies)?;
        let by_block = (0u32..).zip(records.chunks(rings.capacity as usize));
        let all = by_block.flat_map(|(block, ring)| ring.iter().map(move |one| (block, one)));
        let stamp = |(block, record): (u32, &ProgramStamp)| {
            let task = super::report::place(&self.program, record.task)?;
            let ProgramStamp { iteration, came_ns, began_ns, ended_ns, .. } = *record;
            // A task that a failure cut short has the end of an older one.
            let is_whole = came_ns != 0 && came_ns <= began_ns && began_ns <= ended_ns;
            is_whole.then_some(Stamp { block, task, iteration, came_ns, began_ns, ended_ns })
        };
        let mut stamps: Vec<Stamp> = all.filter_map(stamp).collect();
        stamps.sort_by_key(|stamp| (stamp.began_ns, stamp.block));
        Ok(stamps)
    }

    /// The same as a trace for Perfetto or Chrome's tracing page: a row for each block, with waits
    /// and tasks. Times are the GPU's, from the first stamp on.
    ///
    /// # Errors
    /// As [`Self::stamps`].
    pub fn trace(&self) -> Result<String> {
        let stamps = self.stamps()?;
        let first_ns = stamps.iter().map(|stamp| stamp.came_ns).min().unwrap_or(0);
        let process = self.communicator.rank();
        let event = |stamp: &Stamp, name: &str, (from, to): (u64, u64)| {
            let micro = |ns: u64| ns as f64 / 1e3;
            let TaskName { number, operator, tile } = &stamp.task;
            json!({
                "ph": "X", "pid": process, "tid": stamp.block, "name": name,
                "ts": micro(from - first_ns), "dur": micro(to - from),
                "args": { "iteration": stamp.iteration, "task": number, "operator": operator,
                    "tile": tile },
            })
        };
        let events = stamps.iter().flat_map(|stamp| {
            let waited = (stamp.came_ns, stamp.began_ns);
            let wait = (waited.1 > waited.0).then(|| event(stamp, "wait", waited));
            let ran = event(stamp, &stamp.task.operator, (stamp.began_ns, stamp.ended_ns));
            wait.into_iter().chain([ran])
        });
        let events: Vec<_> = events.collect();
        Ok(json!({ "traceEvents": events, "displayTimeUnit": "ns" }).to_string())
    }
}
