//! Launches of the executor: one rank's plans, routes and order of launches.

use super::backlog::{Backlog, COMMANDS_MIN};
use super::busy::BusyStreams;
use super::launching::launching;
use super::order::{CapturedOrders, LaunchOrder};
use super::plans::PlanMemory;
use super::rank::RankState;
use super::routes::{CachedRange, Routes};
use crate::error::{Error, Result};
use crate::gpu::{DeviceMemory, Executor, keeping_errors};
use crate::settings::Settings;
use cudarc::driver::CudaStream;
use ringdove_kernels::launch::LaunchArguments;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Launches the executor for one rank.
#[derive(Debug)]
pub(crate) struct Launcher {
    executor: Executor,
    pub plans: PlanMemory,
    pub routes: Routes,
    /// Memory that plans of files use beside slots. Launches are in order, as for slots.
    scratch: Option<DeviceMemory>,
    /// What the registration cache holds, the oldest first.
    pub cached: Vec<CachedRange>,
    launches: u64,
    collectives: u64,
    order: LaunchOrder,
    captured: CapturedOrders,
    /// Users' kernels may ring at any time.
    has_user_kernels: bool,
    /// A resident program has the rank's lanes.
    is_occupied: bool,
    backlog: Backlog,
    busy: BusyStreams,
    /// Never used. While a context has a stream of its own, cudarc records the uses of buffers and
    /// waits for them before it frees the memory; else it takes all uses to be on one stream, which
    /// is wrong where threads have default streams of their own or several contexts are used.
    _tracking: Arc<CudaStream>,
}

/// Blocks of a launch, and threads of each.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LaunchShape {
    pub blocks: u32,
    pub threads: u32,
}

impl Launcher {
    /// The commands of a driver's queue without which a rank cannot work.
    pub const COMMANDS_MIN: u32 = COMMANDS_MIN;

    /// A launcher for the rank of `state`.
    pub fn new(state: &RankState, settings: &Settings) -> Result<Self> {
        let (remedies, cubins) = (&settings.remedies, settings.cubins.as_deref());
        let layout = &state.memory.layout;
        let tracking = keeping_errors(&state.context, || state.context.new_stream());
        Ok(Self {
            executor: Executor::load(&state.context, cubins, remedies.eager_load)?,
            plans: PlanMemory::new(&state.context, layout.rank_count())?,
            routes: Routes::new(state.memory.static_routes(), layout.direct_lanes()),
            scratch: None,
            cached: Vec::new(),
            launches: 0,
            collectives: 0,
            order: LaunchOrder::default(),
            captured: CapturedOrders::default(),
            has_user_kernels: false,
            is_occupied: false,
            backlog: Backlog::new(remedies.bounded_launches),
            busy: BusyStreams::default(),
            _tracking: tracking.map_err(Error::from_driver("cuStreamCreate"))?,
        })
    }

    /// Plans of files have this memory from now on.
    pub fn take_scratch(&mut self, memory: DeviceMemory) {
        self.scratch = Some(memory);
    }

    /// So many bytes of that memory, which no call may use at the same time as another one.
    pub fn scratch(&self, bytes: u64) -> Range<u64> {
        let start = self.scratch.as_ref().map_or(0, DeviceMemory::address);
        let end = if start > 0 { start + bytes } else { 0 };
        start.min(end)..end
    }

    /// How many blocks of the executor, of so many threads each, the GPU runs at a time.
    pub fn blocks_at_once(&self, threads: u32) -> Result<u32> {
        self.executor.blocks_at_once(threads)
    }

    /// Ranks share the context: of the commands that the driver takes, this one may have so many,
    /// on so many streams at a time.
    pub fn share(&mut self, commands: u32, streams: u32) {
        self.backlog.share(commands);
        self.busy.bound(streams);
    }

    /// Launches so far.
    pub fn launches(&self) -> u64 {
        self.launches
    }

    /// How many launches the engine shall expect, with the next: all that will ever be where graphs
    /// were captured or users' kernels ring, whose launches nobody announces.
    pub fn announced(&self) -> u64 {
        match self.captured.is_empty() && !self.has_user_kernels {
            true => self.launches + 1,
            false => u64::MAX,
        }
    }

    /// From now on users' kernels may ring.
    pub fn expect_user_kernels(&mut self) {
        self.has_user_kernels = true;
    }

    /// A resident program takes the rank's lanes, or gives them back.
    pub fn occupy(&mut self, is_occupied: bool) {
        self.is_occupied = is_occupied;
    }

    /// Refuses a call beside a resident program: it would wait for the program's end.
    ///
    /// # Errors
    /// [`Error::Argument`].
    pub fn check_free(&self, call: &str) -> Result<()> {
        match self.is_occupied {
            false => Ok(()),
            true => {
                let expected = "no resident program on the communicator; pause or stop it first";
                Err(Error::argument(call, expected, "a program that runs"))
            }
        }
    }

    /// Launches another kernel that uses the rank's lanes, in the order of launches, or adds it to
    /// the graph that a capture makes. `launch` gets the number of the launch.
    pub fn launch_other(
        &mut self,
        stream: &Arc<CudaStream>,
        capture: Option<u64>,
        launch: impl FnOnce(u64) -> Result<()>,
    ) -> Result<()> {
        self.order(stream, capture)?;
        let _launching = launching();
        launch(self.launches)?;
        self.launches += 1;
        match capture {
            Some(capture) => self.captured.of(capture).leave(stream),
            None => self.order.leave(stream),
        }
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

    /// Waits until one more may be launched, on `stream`; see [`Backlog::make_room`] and
    /// [`BusyStreams::make_room`]. To be called before the other ranks get the call record.
    ///
    /// # Errors
    /// As [`Backlog::make_room`]. Nothing was enqueued.
    pub fn make_room(
        &mut self,
        stream: &CudaStream,
        limit: Duration,
        check: impl Fn() -> Result<()>,
    ) -> Result<()> {
        self.backlog.make_room(limit, &check)?;
        self.busy.make_room(stream, limit, check)
    }

    /// Makes `stream` wait for the launches before: in a capture, for those of the same capture. To
    /// be called before anything is enqueued for a launch.
    pub fn order(&mut self, stream: &Arc<CudaStream>, capture: Option<u64>) -> Result<()> {
        match capture {
            None => self.order.enter(stream),
            Some(capture) => self.captured.of(capture).enter(stream),
        }
    }

    /// Launches calls on `stream`, or adds their launch to the graph that a capture makes. All that
    /// a launch reads of those before it is in device memory, so that it can be repeated.
    pub fn launch(
        &mut self,
        LaunchShape { blocks, threads }: LaunchShape,
        arguments: &mut LaunchArguments,
        stream: &Arc<CudaStream>,
        capture: Option<u64>,
    ) -> Result<()> {
        arguments.sequence = self.launches;
        if capture.is_none() {
            self.backlog.launching(arguments.call_count, stream)?;
        }
        let _launching = launching();
        self.executor.launch(stream, blocks, threads, arguments)?;
        self.launches += 1;
        match capture {
            Some(capture) => self.captured.of(capture).leave(stream),
            None => {
                self.busy.launched(stream)?;
                self.order.leave(stream)
            }
        }
    }

    /// Waits until all launches have ended, at most `limit`. False if they have not. Of launches of
    /// graphs it does not know.
    pub fn wait(&self, limit: Duration) -> bool {
        self.order.wait(limit)
    }
}
