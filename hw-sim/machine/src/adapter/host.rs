//! The host of a process's adapters: its place in the fabric, and the memory that they may touch.

use super::error::Result;
use super::receive::Domains;
use super::region::{GpuReach, Held, RegionChange, RegionRequest, Regions};
use crate::description::Description;
use crate::fabric::{Fabric, copy};
use crate::memory::GlobalMemory;
use crate::profile::OutOfOrder;
use std::sync::Arc;

/// Finds the memory of the process's virtual GPUs, if it uses any.
pub type GpuMemory = fn() -> Option<&'static GlobalMemory>;

/// What all adapters of a process share.
pub(super) struct Host {
    pub fabric: Arc<Fabric>,
    pub regions: Regions,
    pub domains: Domains,
    gpu_memory: GpuMemory,
    peer_memory: bool,
    /// Which plain writes land out of order.
    pub out_of_order: OutOfOrder,
    whole_words: bool,
}

impl Host {
    pub fn new(description: &Description, fabric: Arc<Fabric>, gpu_memory: GpuMemory) -> Self {
        Self {
            fabric,
            regions: Regions::default(),
            domains: Domains::default(),
            gpu_memory,
            peer_memory: description.peer_memory,
            out_of_order: description.driver.place_out_of_order,
            whole_words: description.driver.whole_words,
        }
    }

    /// Does what is written by this key land later than it arrives?
    pub fn lands_late(&self, key: u32) -> bool {
        match self.out_of_order {
            OutOfOrder::Never => false,
            OutOfOrder::Always => true,
            OutOfOrder::Relaxed => self.hold().is_relaxed(key),
        }
    }

    /// Copies what a peer writes to where it goes.
    ///
    /// # Safety
    /// As [`copy::land`].
    pub unsafe fn land(&self, target: u64, source: u64, length: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            match self.whole_words {
                true => copy::land(target, source, length),
                false => copy::land_in_halves(target, source, length),
            }
        }
    }

    /// Registers memory at `base` of this process.
    pub fn register(&self, request: &RegionRequest, base: u64) -> Result<u32> {
        self.regions.register(request, base, self.reach())
    }

    /// Changes a registration.
    pub fn reregister(&self, key: u32, change: &RegionChange) -> Result<()> {
        self.regions.reregister(key, change, self.reach())
    }

    fn reach(&self) -> GpuReach<'static> {
        GpuReach { memory: (self.gpu_memory)(), peer_memory: self.peer_memory }
    }

    /// Holds all regions for a copy.
    pub fn hold(&self) -> Held<'_> {
        self.regions.hold((self.gpu_memory)())
    }
}
