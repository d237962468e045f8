//! Plans on the device, and the order of launches.

use super::backlog::Backlog;
use super::order::LaunchOrder;
use super::tidy::launching;
use super::world::Seat;
use crate::error::{Error, Result};
use crate::gpu::{Executor, Import, Upload, discard, keeping_errors, outside_captures};
use crate::plan::{CollectiveRequest, PointToPoint};
use crate::settings::Remedies;
use cudarc::driver::{CudaEvent, CudaStream};
use ringdove_kernels::launch::LaunchArguments;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Alignment of an encoded plan, for the executor's 16-byte loads.
const PLAN_ALIGN: usize = 256;

/// Device memory for encoded plans, and as much pinned memory. A plan takes a few KiB.
const PLAN_MEMORY_BYTES: usize = 4 << 20;

/// What a plan on the device was made for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum PlanKey {
    /// A collective.
    Collective(CollectiveRequest),
    /// A group of sends and receives.
    Group(Vec<PointToPoint>),
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
    registered: Vec<RegisteredRange>,
    routes: HashMap<(usize, usize), u32>,
    next_route: u32,
    /// Peers' registered memory that routes lead to.
    imports: Vec<Arc<Import>>,
    order: LaunchOrder,
    backlog: Backlog,
    /// Never used. While a context has a stream of its own, cudarc records the uses of buffers and
    /// waits for them before it frees the memory; else it takes all uses to be on one stream, which
    /// is wrong where threads have default streams of their own or several contexts are used.
    _tracking: Arc<CudaStream>,
}

/// A registered buffer of this rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegisteredRange {
    /// Device address.
    pub address: u64,
    pub bytes: u64,
    /// The allocation that held it when it was registered.
    pub allocation: u64,
}

/// Where a range lies in the registered buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RegisteredPlace {
    /// Number of the registration.
    pub registration: usize,
    /// Bytes from its start.
    pub offset: u64,
}

/// Memory at a registered address that is not what was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stale {
    pub registration: usize,
    /// The allocation that was registered.
    pub registered: u64,
}

impl Launcher {
    /// A launcher for the rank of `seat`.
    pub fn new(seat: &Seat, remedies: &Remedies) -> Result<Self> {
        let tracking = keeping_errors(&seat.context, || seat.context.new_stream());
        Ok(Self {
            executor: Executor::load(&seat.context, remedies.eager_load)?,
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
            order: LaunchOrder::default(),
            backlog: Backlog::new(remedies.bounded_launches),
            _tracking: tracking.map_err(Error::from_driver("cuStreamCreate"))?,
        })
    }

    /// How many blocks of the executor, of so many threads each, the GPU runs at a time.
    pub fn blocks_at_once(&self, threads: u32) -> Result<u32> {
        self.executor.blocks_at_once(threads)
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

    /// The number that the next collective will have.
    pub fn collective(&self) -> u64 {
        self.collectives
    }

    /// Registered ranges, by number.
    pub fn registered(&self) -> &[RegisteredRange] {
        &self.registered
    }

    /// Adds a registered range.
    pub fn add_registered(&mut self, range: RegisteredRange) {
        self.registered.push(range);
    }

    /// Where a range of `allocation` lies in the registered buffers, if it does.
    ///
    /// # Errors
    /// [`Stale`] where another allocation was registered at this address: routes lead there, and
    /// the memory that they lead to is gone.
    pub fn find_registered(
        &self,
        (address, bytes): (u64, u64),
        allocation: u64,
    ) -> Result<Option<RegisteredPlace>, Stale> {
        let mut stale = None;
        for (registration, range) in self.registered.iter().enumerate() {
            let Some(offset) = address.checked_sub(range.address) else { continue };
            if offset > range.bytes || bytes > range.bytes - offset {
                continue;
            }
            if range.allocation == allocation {
                return Ok(Some(RegisteredPlace { registration, offset }));
            }
            stale = Some(Stale { registration, registered: range.allocation });
        }
        stale.map_or(Ok(None), Err)
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
        // The stream waits for the launches before, so what it has reached now, they have ended.
        let event = keeping_errors(stream.context(), || stream.record_event(None))
            .map_err(Error::from_driver("cuEventRecord"))?;
        self.halves[self.current].left = Some(event);
        self.current = 1 - self.current;
        let next = &mut self.halves[self.current];
        if let Some(event) = next.left.take() {
            let waited =
                keeping_errors(stream.context(), || outside_captures(|| event.synchronize()));
            waited.map_err(Error::from_driver("cuEventSynchronize"))?;
        }
        next.used = 0;
        next.plans.clear();
        Ok(())
    }

    /// Waits until one more may be launched; see [`Backlog::make_room`]. To be called before the
    /// other ranks are told of the launch.
    ///
    /// # Errors
    /// As [`Backlog::make_room`]. Nothing was enqueued.
    pub fn make_room(&mut self, limit: Duration, check: impl Fn() -> Result<()>) -> Result<()> {
        self.backlog.make_room(limit, check)
    }

    /// Makes `stream` wait for the launches before. To be called before anything is enqueued for a
    /// launch.
    pub fn order(&mut self, stream: &Arc<CudaStream>) -> Result<()> {
        self.order.enter(stream)
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
        let _launching = launching();
        self.executor.launch(stream, plan.blocks, plan.threads, arguments)?;
        self.launches += 1;
        self.backlog.launched(stream)?;
        self.order.leave(stream)
    }

    /// Waits until all launches have ended, at most `limit`. False if they have not.
    pub fn wait(&self, limit: Duration) -> bool {
        self.order.wait(limit)
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // Closing them may wait for the device.
        discard(std::mem::take(&mut self.imports));
    }
}
