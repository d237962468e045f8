//! Plans on the device, and the order of launches.

use super::world::Seat;
use crate::error::{Error, Result};
use crate::gpu::{Executor, Import, Upload};
use crate::plan::{Request, Transfer};
use cudarc::driver::{CudaEvent, CudaStream};
use ringdove_kernels::launch::LaunchArguments;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Alignment of an encoded plan, for the executor's 16-byte loads.
const PLAN_ALIGN: usize = 256;

/// Device memory for encoded plans, and as much pinned memory. A plan takes a few KiB.
const PLAN_MEMORY_BYTES: usize = 4 << 20;

/// What a plan on the device was made for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum PlanKey {
    /// A collective.
    Collective(Request),
    /// A group of sends and receives.
    Group(Vec<Transfer>),
}

/// A plan in device memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resident {
    /// Device address.
    pub address: u64,
    /// Blocks of its launch.
    pub blocks: u32,
    /// Threads of each block.
    pub threads: u32,
}

/// An encoded plan, before it is on the device.
pub(super) struct Encoded {
    /// The bytes of `ringdove_kernels::op`.
    pub bytes: Vec<u8>,
    /// Blocks of its launch.
    pub blocks: u32,
    /// Threads of each block.
    pub threads: u32,
}

/// One half of the plan memory. Halves take turns, so that room can be made without waiting for
/// the launches that were enqueued just now.
#[derive(Debug, Default)]
struct Half {
    used: usize,
    plans: HashMap<PlanKey, Resident>,
    /// Recorded when the other half took over: after it, nobody reads this half.
    left: Option<CudaEvent>,
}

/// Launches the executor for one rank.
#[derive(Debug)]
pub(super) struct Launcher {
    executor: Executor,
    upload: Upload,
    halves: [Half; 2],
    current: usize,
    launches: u64,
    collectives: u64,
    registered: Vec<(u64, u64)>,
    routes: HashMap<(usize, usize), u32>,
    next_route: u32,
    /// Peers' registered memory that routes lead to.
    imports: Vec<Arc<Import>>,
    /// The stream of the last launch.
    last: Option<Arc<CudaStream>>,
    /// Once launches came on a second stream: the end of the last one.
    ended: Option<CudaEvent>,
}

impl Launcher {
    /// A launcher for the rank of `seat`.
    pub fn new(seat: &Seat) -> Result<Self> {
        Ok(Self {
            executor: Executor::load(&seat.context)?,
            upload: Upload::new(&seat.context, PLAN_MEMORY_BYTES)?,
            halves: Default::default(),
            current: 0,
            launches: 0,
            collectives: 0,
            registered: Vec::new(),
            routes: HashMap::new(),
            // Static routes have the numbers of ports.
            next_route: seat.memory.layout.ports.len() as u32,
            imports: Vec::new(),
            last: None,
            ended: None,
        })
    }

    /// Launches so far.
    pub fn launches(&self) -> u64 {
        self.launches
    }

    /// The number of the next collective.
    pub fn next_collective(&mut self) -> u64 {
        self.collectives += 1;
        self.collectives - 1
    }

    /// Registered ranges (address, bytes), by number.
    pub fn registered(&self) -> &[(u64, u64)] {
        &self.registered
    }

    /// Adds a registered range.
    pub fn add_registered(&mut self, range: (u64, u64)) {
        self.registered.push(range);
    }

    /// The registration that holds a range, and the range's offset in it.
    pub fn find_registered(&self, address: u64, bytes: u64) -> Option<(usize, u64)> {
        let inside = |&(start, size): &(u64, u64)| {
            address >= start && address - start <= size && bytes <= size - (address - start)
        };
        let number = self.registered.iter().position(inside)?;
        Some((number, address - self.registered[number].0))
    }

    /// The first route of a pair of registrations. `add` is called, with the number, where the
    /// pair is new; it takes `count` routes, and gives what they need to stay reachable.
    pub fn route_base(
        &mut self,
        pair: (usize, usize),
        count: u32,
        add: impl FnOnce(u32) -> Result<Vec<Arc<Import>>>,
    ) -> Result<u32> {
        if let Some(&base) = self.routes.get(&pair) {
            return Ok(base);
        }
        let base = self.next_route;
        let most = ringdove_kernels::descriptor::ROUTE_MAX;
        if base + count > most {
            let expected = format!("at most {most} routes for all pairs of registered buffers");
            return Err(Error::argument("registered buffers", expected, base + count));
        }
        self.imports.extend(add(base)?);
        self.next_route += count;
        self.routes.insert(pair, base);
        Ok(base)
    }

    /// The plan of `key` on the device; `encode` makes it where it is not there yet.
    pub fn resident(
        &mut self,
        key: PlanKey,
        stream: &CudaStream,
        encode: impl FnOnce() -> Result<Encoded>,
    ) -> Result<Resident> {
        if let Some(plan) = self.halves.iter().find_map(|half| half.plans.get(&key)) {
            return Ok(*plan);
        }
        let encoded = encode()?;
        let size = encoded.bytes.len().next_multiple_of(PLAN_ALIGN);
        let half_bytes = self.upload.bytes() / 2;
        if size > half_bytes {
            let expected = format!("a plan of at most {half_bytes} bytes");
            return Err(Error::argument("size of the group", expected, size));
        }
        if self.halves[self.current].used + size > half_bytes {
            self.turn_over(stream)?;
        }
        let half = &mut self.halves[self.current];
        let offset = self.current * half_bytes + half.used;
        self.upload.enqueue(offset, &encoded.bytes, stream)?;
        half.used += size;
        let plan = Resident {
            address: self.upload.address(offset),
            blocks: encoded.blocks,
            threads: encoded.threads,
        };
        half.plans.insert(key, plan);
        Ok(plan)
    }

    /// Makes the other half current and empty.
    fn turn_over(&mut self, stream: &CudaStream) -> Result<()> {
        let last = self.last.as_deref().unwrap_or(stream);
        let event = last.record_event(None).map_err(Error::from_driver("cuEventRecord"))?;
        self.halves[self.current].left = Some(event);
        self.current = 1 - self.current;
        let next = &mut self.halves[self.current];
        if let Some(event) = next.left.take() {
            event.synchronize().map_err(Error::from_driver("cuEventSynchronize"))?;
        }
        next.used = 0;
        next.plans.clear();
        Ok(())
    }

    /// Makes `stream` wait for the launches before, where they ran on another stream. To be called
    /// before anything is enqueued for a launch.
    pub fn order(&mut self, stream: &Arc<CudaStream>) -> Result<()> {
        let Some(last) = &self.last else { return Ok(()) };
        if last.cu_stream() == stream.cu_stream() {
            return Ok(());
        }
        if self.ended.is_none() {
            // The first change of streams waits for all that the old one holds at this moment;
            // from now on each launch is followed by an event of its own.
            self.ended =
                Some(last.record_event(None).map_err(Error::from_driver("cuEventRecord"))?);
        }
        let ended = self.ended.as_ref().expect("set just now");
        stream.wait(ended).map_err(Error::from_driver("cuStreamWaitEvent"))
    }

    /// Launches `plan` on `stream`.
    pub fn launch(
        &mut self,
        plan: &Resident,
        arguments: &mut LaunchArguments,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        arguments.plan = plan.address;
        arguments.sequence = self.launches;
        self.executor.launch(stream, plan.blocks, plan.threads, arguments)?;
        self.launches += 1;
        self.last = Some(stream.clone());
        if let Some(ended) = &self.ended {
            ended.record(stream).map_err(Error::from_driver("cuEventRecord"))?;
        }
        Ok(())
    }

    /// Waits until all launches have ended, at most `limit`. False if they have not.
    pub fn wait(&self, limit: Duration) -> bool {
        let Some(last) = &self.last else { return true };
        let Ok(event) = last.record_event(None) else {
            // A failed context runs nothing any more.
            return true;
        };
        let deadline = Instant::now() + limit;
        loop {
            match event.try_is_complete() {
                Ok(true) | Err(_) => return true,
                Ok(false) if Instant::now() >= deadline => return false,
                Ok(false) => std::thread::sleep(Duration::from_micros(50)),
            }
        }
    }
}
