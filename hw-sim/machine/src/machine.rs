//! The machine: GPUs, memory, and the workers that play them.

use crate::callback::Callbacks;
use crate::clock::WallClock;
use crate::copy::{Bulk, Source};
use crate::description::cluster::{FABRIC_VARIABLE, fabric_from_environment};
use crate::description::{Description, GpuModel};
use crate::driver::capture::Captures;
use crate::driver::slice::Slices;
use crate::driver::watch::Watchdog;
use crate::engine::{EngineError, Engines, EnginesRequest};
use crate::error::{Error, Result};
use crate::fault::GpuFaults;
use crate::gpu::Occupancy;
use crate::memory::{GlobalMemory, Site};
use crate::scheduler::{BlockOrder, Scheduler};
use crate::worker::Worker;
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
    pub scheduler: Arc<Scheduler>,
    /// Stream captures under way.
    pub captures: Captures,
    pub(crate) callbacks: Callbacks,
    /// After how long calls that block say so.
    pub(crate) watchdog: Watchdog,
    /// Copies are to be looked at before they are done: the profile has some of them go elsewhere.
    pub(crate) has_odd_copies: bool,
    loaded: Mutex<HashSet<u64>>,
    launches: AtomicU64,
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
        let faults = GpuFaults::from_environment(description.node, sizes.len());
        let faults = faults.map_err(Error::InvalidValue)?;
        let memory = Arc::new(GlobalMemory::new(&sizes, site)?.with_faults(faults));
        let clock = WallClock::start();
        let scheduler = Scheduler::new(occupancy, order, slices, Arc::clone(&memory), clock);
        let scheduler = Arc::new(scheduler);
        let sleepers: Weak<Scheduler> = Arc::downgrade(&scheduler);
        memory.watches.wake_by(sleepers);
        let worker = Worker { scheduler, memory, clock };
        worker.start(workers).map_err(|cause| Error::System {
            what: format!("starting {workers} worker threads"),
            cause: cause.to_string(),
        })?;
        let Worker { scheduler, memory, clock } = worker;
        Ok(Arc::new(Self {
            memory,
            clock,
            scheduler,
            captures: Captures::default(),
            callbacks: Callbacks::default(),
            watchdog,
            has_odd_copies: {
                let driver = &description.driver;
                driver.local_copies_as_kernels || !driver.broken_peer.is_none()
            },
            loaded: Mutex::default(),
            launches: AtomicU64::new(0),
            description,
        }))
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

    /// A number that no other launch has.
    pub(crate) fn next_grid_id(&self) -> u64 {
        1 + self.launches.fetch_add(1, Ordering::Relaxed)
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
}
