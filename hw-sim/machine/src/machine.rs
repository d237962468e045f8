//! The machine: GPUs, memory, and the workers that play them.

use crate::clock::WallClock;
use crate::context::Context;
use crate::copy::{Bulk, Source};
use crate::description::cluster::{FABRIC_VARIABLE, fabric_from_environment};
use crate::description::{Description, GpuModel};
use crate::driver::capture::Captures;
use crate::driver::slice::Slices;
use crate::driver::watch::Watchdog;
use crate::engine::{EngineError, Engines, EnginesRequest};
use crate::error::{Error, Result};
use crate::gpu::{self, Footprint, Occupancy};
use crate::kernel::KernelRun;
use crate::memory::{GlobalMemory, Site};
use crate::module::Function;
use crate::scheduler::{BlockOrder, Scheduler};
use crate::stream::{Command, Stream};
use crate::worker::{self, Callbacks};
use hwsim_ptx::Launch;
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// A virtual machine. It lives until [`Machine::stop`], or as long as the process.
pub struct Machine {
    /// Its description.
    pub description: Description,
    /// Its memory.
    pub memory: Arc<GlobalMemory>,
    /// Its clock.
    pub clock: WallClock,
    /// Its scheduler.
    pub scheduler: Scheduler,
    /// Stream captures under way.
    pub captures: Captures,
    pub(crate) callbacks: Callbacks,
    /// After how long calls that block say so.
    pub(crate) watchdog: Watchdog,
    /// Copies are to be looked at before they are done: the profile has some of them go elsewhere.
    pub(crate) has_odd_copies: bool,
    contexts: Mutex<Vec<Weak<Context>>>,
    loaded: Mutex<HashSet<u64>>,
    launches: AtomicU64,
}

/// A launch as a program asks for it.
pub struct LaunchRequest<'a> {
    /// The kernel.
    pub function: &'a Arc<Function>,
    /// Blocks in each direction.
    pub grid: [u32; 3],
    /// Threads in each direction.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub dynamic_shared_bytes: u32,
    /// All blocks must be resident at once.
    pub cooperative: bool,
    /// The parameters' bytes, laid out as the kernel wants them.
    pub params: Vec<u8>,
}

impl Machine {
    /// Builds a machine and starts its workers: as many as the host has cores, or as
    /// `HWSIM_WORKERS` says.
    pub fn new(description: Description) -> Result<Arc<Self>> {
        let setting = std::env::var("HWSIM_WORKERS").ok();
        let workers = match setting.as_deref().map(str::parse::<usize>) {
            None => std::thread::available_parallelism().map_or(1, usize::from),
            Some(Ok(count @ 1..=1024)) => count,
            Some(_) => {
                return Err(Error::InvalidValue(format!(
                    "HWSIM_WORKERS is {:?}: expected a number from 1 to 1024",
                    setting.unwrap_or_default()
                )));
            }
        };
        Self::with_workers(description, workers)
    }

    /// Builds a machine with this many workers.
    pub fn with_workers(description: Description, workers: usize) -> Result<Arc<Self>> {
        let sizes: Vec<u64> = description.gpus.iter().map(|gpu| gpu.model.memory_bytes).collect();
        let occupancy =
            description.gpus.iter().map(|gpu| Occupancy::new(gpu.model.clone())).collect();
        let fabric = fabric_from_environment().map_err(|cause| Error::System {
            what: format!("the folder that {FABRIC_VARIABLE} names"),
            cause: cause.to_string(),
        })?;
        let site = Site { node: description.node, fabric: fabric.map(Arc::new) };
        let watchdog = Watchdog::from_environment(&description.driver);
        let watchdog = watchdog.map_err(Error::InvalidValue)?;
        let slices = Slices::new(&description, site.fabric.as_deref())?;
        let order = BlockOrder::of(&description.driver);
        let machine = Arc::new(Self {
            memory: Arc::new(GlobalMemory::new(&sizes, site)?),
            clock: WallClock::start(),
            scheduler: Scheduler::new(occupancy, order, slices),
            captures: Captures::default(),
            callbacks: Callbacks::default(),
            watchdog,
            has_odd_copies: {
                let driver = &description.driver;
                driver.local_copies_as_kernels || !driver.broken_peer.is_none()
            },
            contexts: Mutex::default(),
            loaded: Mutex::default(),
            launches: AtomicU64::new(0),
            description,
        });
        worker::start(&machine, workers).map_err(|cause| Error::System {
            what: format!("starting {workers} worker threads"),
            cause: cause.to_string(),
        })?;
        Ok(machine)
    }

    /// The kind of a GPU.
    pub fn model(&self, gpu: usize) -> &GpuModel {
        &self.description.gpus[gpu].model
    }

    /// Can kernels of one GPU reach the memory of the other?
    pub fn can_access_peer(&self, from: usize, to: usize) -> bool {
        !self.description.driver.no_peer && self.description.peer_access(from, to)
    }

    /// Lets the workers end. What is queued stays undone.
    pub fn stop(&self) {
        self.scheduler.stop();
    }

    /// Enqueues a kernel.
    pub fn launch(&self, request: LaunchRequest<'_>, stream: &Arc<Stream>) -> Result<()> {
        let context = &stream.context;
        context.check()?;
        let function = request.function;
        if function.module.context.id != context.id {
            return Err(Error::InvalidHandle("kernel and stream are of different contexts".into()));
        }
        let (model, kernel) = (self.model(context.gpu), &function.kernel);
        let (grid, block, dynamic) = (request.grid, request.block, request.dynamic_shared_bytes);
        gpu::check_launch(model, kernel, grid, block, dynamic, function.dynamic_shared_max())?;
        let footprint = Footprint::of(model, kernel, block.iter().product(), dynamic);
        if request.cooperative {
            let blocks = grid.iter().map(|&extent| u64::from(extent)).product();
            let each = u64::from(footprint.blocks_per_multiprocessor(model));
            let fit = each * u64::from(model.multiprocessors);
            if blocks > fit {
                return Err(Error::CooperativeTooLarge { blocks, fit });
            }
        }
        let launch = Launch {
            kernel: Arc::clone(kernel),
            grid,
            block,
            dynamic_shared_bytes: dynamic,
            params: request.params,
            grid_id: 1 + self.launches.fetch_add(1, Ordering::Relaxed),
            sm_count: model.multiprocessors,
            grid_workspace: if request.cooperative { context.grid_workspace(stream)? } else { 0 },
        };
        let run = KernelRun::new(launch, context.view(), Arc::clone(stream), footprint);
        stream.submit(Command::Kernel(Arc::new(run)));
        Ok(())
    }

    /// The device engines of the machine, for this process. Once for each process: they share the
    /// fabric's folder by it.
    pub fn start_engines(
        &self,
        sysfs: PathBuf,
        faults: &str,
    ) -> std::result::Result<Arc<Engines>, EngineError> {
        let memory = Arc::clone(&self.memory);
        let fabric = fabric_from_environment()?.map(|fabric| fabric.path().to_owned());
        let description = &self.description;
        let request = EnginesRequest { description, memory, sysfs, faults, fabric };
        Engines::start(&request, Arc::clone(&self.scheduler.kernels))
    }

    /// The GPU within whose memory a copy stays, where such copies run on its multiprocessors.
    pub(crate) fn local_copy(&self, bulk: &Bulk) -> Option<usize> {
        if !self.description.driver.local_copies_as_kernels {
            return None;
        }
        let gpu_of = |address| self.memory.find(address).and_then(|found| found.kind.gpu());
        let Source::Memory { address, .. } = bulk.source else { return None };
        gpu_of(bulk.destination).filter(|&gpu| gpu_of(address) == Some(gpu))
    }

    /// Is what a GPU writes to an address lost?
    pub(crate) fn loses(&self, from: usize, address: u64) -> bool {
        if !self.has_odd_copies {
            return false;
        }
        let broken = &self.description.driver.broken_peer;
        let to = self.memory.find(address).and_then(|found| found.kind.gpu());
        to.is_some_and(|to| broken.has(from, to))
    }

    /// Is a copy lost, being one between two GPUs that lose each other's writes?
    pub(crate) fn loses_copy(&self, bulk: &Bulk) -> bool {
        let Source::Memory { address, .. } = bulk.source else { return false };
        let from = self.memory.find(address).and_then(|found| found.kind.gpu());
        from.is_some_and(|from| self.loses(from, bulk.destination))
    }

    /// Every context that lives.
    pub(crate) fn contexts(&self) -> Vec<Arc<Context>> {
        let contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        contexts.iter().filter_map(Weak::upgrade).collect()
    }

    /// Remembers a new context.
    pub(crate) fn note_context(&self, context: &Arc<Context>) {
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        contexts.retain(|context| context.strong_count() > 0);
        contexts.push(Arc::downgrade(context));
    }

    /// Takes the time that a real driver takes to compile a text, where the profile has it so: the
    /// first time that the process loads it. The text is known by its digest.
    pub(crate) fn compile(&self, digest: u64) {
        let delay = self.description.driver.jit_delay_ms;
        if delay == 0 {
            return;
        }
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if loaded.insert(digest) {
            drop(loaded);
            std::thread::sleep(Duration::from_millis(delay.into()));
        }
    }

    /// A context on a GPU of this machine.
    pub fn create_context(self: &Arc<Self>, gpu: usize, flags: u32) -> Arc<Context> {
        Context::new(Arc::clone(self), gpu, flags)
    }
}
