//! The machine: GPUs, memory, and the workers that play them.

use crate::clock::WallClock;
use crate::context::Context;
use crate::description::cluster::{FABRIC_VARIABLE, fabric_from_environment};
use crate::description::{Description, GpuModel};
use crate::engine::{EngineError, Engines, EnginesRequest};
use crate::error::{Error, Result};
use crate::gpu::{self, Footprint, Occupancy};
use crate::kernel::KernelRun;
use crate::memory::{GlobalMemory, Site};
use crate::module::Function;
use crate::scheduler::Scheduler;
use crate::stream::{Command, Stream};
use crate::worker::{self, Callbacks};
use hwsim_ptx::Launch;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A virtual machine. It lives until [`Machine::stop`], or as long as the process.
pub struct Machine {
    /// What it is made of.
    pub description: Description,
    /// Its memory.
    pub memory: Arc<GlobalMemory>,
    /// Its clock.
    pub clock: WallClock,
    /// Its scheduler.
    pub scheduler: Scheduler,
    pub(crate) callbacks: Callbacks,
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
        let machine = Arc::new(Self {
            memory: Arc::new(GlobalMemory::new(&sizes, site)?),
            clock: WallClock::start(),
            scheduler: Scheduler::new(occupancy),
            callbacks: Callbacks::default(),
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
        self.description.peer_access(from, to)
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

    /// A context on a GPU of this machine.
    pub fn create_context(self: &Arc<Self>, gpu: usize, flags: u32) -> Arc<Context> {
        Context::new(Arc::clone(self), gpu, flags)
    }
}
