//! A process's share of the fabric: its adapters, its queue pairs, its service thread.

use super::address::Endpoint;
use super::completion::CompletionQueue;
use super::counters::Counters;
use super::device::{Device, Events};
use super::error::{Result, VerbsError};
use super::fault::AdapterFaults;
use super::host::{GpuMemory, Host};
use super::qp::{QueuePair, QueuePairRequest};
use super::receive::{ReceiveQueue, XrcDomain, XrcPart};
use super::region::{RegionChange, RegionRequest};
use super::service::Service;
use super::window::WindowKind;
use super::xrc::DomainRequest;
use crate::description::{Adapter, Description};
use crate::fabric::Fabric;
use crate::fault::FAULTS_VARIABLE;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// A process's share of the fabric. Its queue pairs are served as long as it lives.
pub struct Network {
    /// The adapters of the process's node.
    pub devices: Vec<Arc<Device>>,
    host: Arc<Host>,
    service: Arc<Service>,
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
        let adapters = description.adapters.iter().zip(all_faults).enumerate();
        let device = |(index, (adapter, faults)): (usize, (&Adapter, AdapterFaults))| {
            let endpoint = Endpoint { node, adapter: index as u32 };
            let counters = Counters::of(&fabric, endpoint);
            Device::new(adapter.clone(), endpoint, faults, counters)
        };
        let devices: Vec<_> = adapters.map(device).collect();
        let host = Arc::new(Host::new(description, fabric, gpu_memory));
        Ok(Arc::new(Self { service: Service::start(&host, devices.clone())?, devices, host }))
    }

    /// Makes a queue pair of an adapter.
    pub fn create_queue_pair(
        &self,
        device: &Arc<Device>,
        request: QueuePairRequest,
    ) -> Result<Arc<QueuePair>> {
        let pair = QueuePair::make(&self.host, device, request)?;
        self.service.add(&pair);
        Ok(pair)
    }

    /// Makes a shared receive queue of an XRC domain and a protection domain, with this capacity
    /// and pieces of a request, whose requests complete in `completions`.
    pub fn make_xrc_queue(
        &self,
        sizes: (u32, u32),
        owner: (u64, Arc<dyn Events>),
        domains: (Arc<XrcDomain>, u64),
        completions: Arc<CompletionQueue>,
    ) -> Result<Arc<ReceiveQueue>> {
        let xrc = XrcPart::new(&self.host.fabric, domains.0, domains.1, completions)?;
        Ok(ReceiveQueue::of_xrc(sizes, owner.0, owner.1, xrc))
    }

    /// Opens the XRC domain that a file names, with the processes of the node that have.
    pub fn open_xrc_domain(&self, request: DomainRequest) -> Result<Arc<XrcDomain>> {
        self.host.domains.open(&self.host.fabric, request)
    }

    /// The queue pair that another process has made to receive for an XRC domain, by its number.
    /// It lives until [`QueuePair::destroy`] was called as often as this, by each process that has
    /// opened it.
    pub fn open_xrc_receiver(
        &self,
        device: &Arc<Device>,
        domain: &Arc<XrcDomain>,
        number: u32,
    ) -> Result<Arc<QueuePair>> {
        let pair = self.service.deputy(device, number).filter(|pair| pair.receives_for(domain));
        let none = || VerbsError::Invalid(format!("the XRC domain has no queue pair {number}"));
        let pair = pair.ok_or_else(none)?;
        pair.open()?;
        Ok(pair)
    }

    /// Registers memory at `base` of this process.
    pub fn register(&self, request: &RegionRequest, base: u64) -> Result<u32> {
        self.host.register(request, base)
    }

    /// Registers a range of a dma-buf.
    pub fn register_dma_buf(
        &self,
        request: &RegionRequest,
        buffer: OwnedFd,
        offset: u64,
    ) -> Result<u32> {
        self.host.regions.register_dma_buf(request, buffer, offset)
    }

    /// Ends a registration.
    pub fn deregister(&self, key: u32) -> Result<()> {
        self.host.regions.deregister(key)
    }

    /// Changes a registration of memory that is no dma-buf.
    pub fn reregister(&self, key: u32, change: &RegionChange) -> Result<()> {
        self.host.reregister(key, change)
    }

    /// Makes a memory window; gives its first key.
    pub fn make_window(&self, domain: u64, kind: WindowKind) -> u32 {
        self.host.regions.make_window(domain, kind)
    }

    /// Ends the memory window that one of its keys names.
    pub fn end_window(&self, key: u32) -> Result<()> {
        self.host.regions.end_window(key)
    }

    /// Does a protection domain still have regions, windows or queue pairs?
    pub fn uses_domain(&self, domain: u64) -> bool {
        let uses = |pair: &Arc<QueuePair>| pair.domain() == domain && !pair.is_destroyed();
        self.host.regions.uses(domain) || self.service.pairs().iter().any(uses)
    }

    /// Leaves the fabric: peers see that this process is gone, and its files are removed.
    pub fn leave(&self) {
        self.service.leave();
        for pair in self.service.pairs() {
            pair.destroy();
        }
        for device in &self.devices {
            device.counters.publish();
        }
        self.host.fabric.leave();
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.service.end();
    }
}
