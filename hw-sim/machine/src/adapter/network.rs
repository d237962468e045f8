//! A process's share of the fabric: its adapters, its regions, its service thread.

use super::address::Endpoint;
use super::device::Device;
use super::error::{Result, VerbsError};
use super::fault::AdapterFaults;
use super::qp::QueuePair;
use super::region::{RegionRequest, Regions};
use super::service::Service;
use crate::description::Description;
use crate::fabric::Fabric;
use crate::fault::FAULTS_VARIABLE;
use crate::memory::GlobalMemory;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// Finds the memory of the process's virtual GPUs, if it uses any.
pub type GpuMemory = fn() -> Option<&'static GlobalMemory>;

/// A process's share of the fabric.
pub struct Network {
    /// The adapters of the process's node.
    pub devices: Vec<Arc<Device>>,
    pub(super) fabric: Arc<Fabric>,
    pub(super) regions: Regions,
    pub(super) service: Service,
    gpu_memory: GpuMemory,
    peer_memory: bool,
    /// Plain writes land out of order.
    pub(super) out_of_order: bool,
}

impl Network {
    /// Joins the fabric in `folder` as a process of this node. `faults` is a list as `HWSIM_FAULTS`
    /// has it.
    pub fn join(
        description: &Description,
        node: u32,
        folder: &Path,
        faults: &str,
        gpu_memory: GpuMemory,
    ) -> Result<Arc<Self>> {
        let fabric = Fabric::join(folder)?;
        let mut all_faults = Vec::new();
        for adapter in &description.adapters {
            let of_adapter = AdapterFaults::new(node, &adapter.name, &adapter.faults, faults);
            all_faults.push(of_adapter.map_err(|why| {
                VerbsError::Invalid(format!(
                    "faults of {} ({FAULTS_VARIABLE}): {why}",
                    adapter.name
                ))
            })?);
        }
        let network = Arc::new_cyclic(|network| Self {
            devices: description
                .adapters
                .iter()
                .zip(all_faults)
                .enumerate()
                .map(|(index, (adapter, faults))| {
                    let endpoint = Endpoint { node, adapter: index as u32 };
                    Device::new(adapter.clone(), endpoint, network.clone(), faults)
                })
                .collect(),
            fabric,
            regions: Regions::default(),
            service: Service::default(),
            gpu_memory,
            peer_memory: description.peer_memory,
            out_of_order: description.driver.place_out_of_order,
        });
        super::service::start(&network)?;
        Ok(network)
    }

    /// Registers memory at `base` of this process.
    pub fn register(&self, request: &RegionRequest, base: u64) -> Result<u32> {
        self.regions.register(request, base, (self.gpu_memory)(), self.peer_memory)
    }

    /// Registers a range of a dma-buf.
    pub fn register_dma_buf(
        &self,
        request: &RegionRequest,
        buffer: OwnedFd,
        offset: u64,
    ) -> Result<u32> {
        self.regions.register_dma_buf(request, buffer, offset)
    }

    /// Ends a registration.
    pub fn deregister(&self, key: u32) -> Result<()> {
        self.regions.deregister(key)
    }

    /// Does a protection domain still have regions or queue pairs?
    pub fn uses_domain(&self, domain: u64) -> bool {
        let uses = |pair: &Arc<QueuePair>| pair.domain == domain && !pair.is_destroyed();
        self.regions.uses(domain) || self.service.pairs().iter().any(uses)
    }

    pub(super) fn gpu_memory(&self) -> Option<&'static GlobalMemory> {
        (self.gpu_memory)()
    }

    /// Leaves the fabric: peers see that this process is gone, and its files are removed.
    pub fn leave(&self) {
        for pair in self.service.pairs() {
            pair.destroy();
        }
        self.fabric.leave();
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Its thread sees that the adapter's network was closed.
        self.fabric.own.adapters().wake();
    }
}
