//! All engines of a node as one process plays them: the channels that it serves, a step at a time.
//!
//! Nothing here knows of threads; time is an argument.

use super::channel::{Channel, ChannelAddress};
use super::dma::Dma;
use super::error::EngineError;
use super::fault::EngineFaults;
use super::fetch::Answer;
use super::link::{Door, RemoteLinks, Sent};
use super::registers::{ChannelRegisters, identity};
use crate::description::Description;
use crate::fabric::Fabric;
use crate::memory::GlobalMemory;
use ringdove_kernels::bar::Identity;
use std::fs::File;
use std::sync::Arc;
use std::time::Instant;

/// Sub-requests of each channel in one step. New doorbells, commands and packets are looked at
/// between steps.
const SUB_REQUESTS_PER_STEP: u32 = 4;

/// One engine.
pub(super) struct EngineDevice {
    pub identity: Identity,
    pub faults: EngineFaults,
    /// Requests that its channels have taken.
    pub taken: u64,
}

impl EngineDevice {
    pub fn is_stalled(&self) -> bool {
        self.faults.is_stalled(self.taken)
    }

    pub fn link_is_down(&self) -> bool {
        self.faults.link_is_down(self.taken)
    }
}

/// The engines of a node.
pub(super) struct EngineNode {
    pub devices: Vec<EngineDevice>,
    pub channels: Vec<Channel>,
    pub remote: RemoteLinks,
}

/// Result of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// Something moved.
    pub worked: bool,
    /// Something waits for a time or for a peer.
    pub waits: bool,
}

impl EngineNode {
    /// The engines that a machine has on this node. `faults` is a list as `HWSIM_FAULTS` has it;
    /// without a fabric there are no other processes.
    pub fn new(
        description: &Description,
        faults: &str,
        fabric: Option<Arc<Fabric>>,
    ) -> Result<Self, EngineError> {
        let node = description.node;
        let mut devices = Vec::new();
        for (index, engine) in description.engines.iter().enumerate() {
            let faults = EngineFaults::new(node, &engine.name, &engine.faults, faults)
                .map_err(|why| EngineError::Faults { engine: engine.name.clone(), why })?;
            devices.push(EngineDevice {
                identity: identity(engine, node, index),
                faults,
                taken: 0,
            });
        }
        Ok(Self { devices, channels: Vec::new(), remote: RemoteLinks::new(fabric) })
    }

    /// Serves a channel, which is reset by it.
    pub fn serve(
        &mut self,
        engine: usize,
        channel: u64,
        bar: File,
    ) -> Result<ChannelAddress, EngineError> {
        let identity = &self.devices[engine].identity;
        let place = ChannelAddress { link_address: identity.link_address, channel };
        if self.find(place).is_some() {
            return Err(EngineError::Served { channel });
        }
        let registers = ChannelRegisters::map(bar, identity, channel)?;
        let door = match &self.remote.fabric {
            Some(fabric) => {
                Some(Door::make(fabric, place)?.ok_or(EngineError::Served { channel })?)
            }
            None => None,
        };
        self.channels.push(Channel::new(place, engine, registers, door));
        Ok(place)
    }

    /// Serves a channel no more.
    pub fn release(&mut self, place: ChannelAddress) {
        if let Some(index) = self.find(place) {
            let mut channel = self.channels.remove(index);
            channel.reset();
            channel.registers.show_absent();
            self.remote.inbound.retain(|pipe| pipe.to != place);
        }
    }

    /// The channel at a place, if this process serves it.
    pub fn find(&self, place: ChannelAddress) -> Option<usize> {
        self.channels.iter().position(|channel| channel.place == place)
    }

    /// Lets all channels go on for a little.
    pub fn step(&mut self, memory: &GlobalMemory, now: Instant) -> Progress {
        let dma = Dma::new(memory);
        let mut progress = Progress::default();
        for index in 0..self.channels.len() {
            progress.worked |= self.look(index, &dma, now);
        }
        progress.worked |= self.serve_links(&dma, now);
        for _ in 0..SUB_REQUESTS_PER_STEP {
            for index in 0..self.channels.len() {
                progress.worked |= self.fetch(index, &dma, now);
            }
        }
        for index in 0..self.channels.len() {
            progress.waits |= self.show(index);
        }
        progress
    }

    /// Obeys a channel's host, and takes what stands in its ring. True if there was anything.
    pub fn look(&mut self, index: usize, dma: &Dma<'_>, now: Instant) -> bool {
        let (channel, device) = self.with_device(index);
        if device.is_stalled() {
            return false;
        }
        let obeyed = channel.obey(dma);
        let EngineDevice { faults, taken, .. } = device;
        let took = channel.take_descriptors(dma, |request| {
            request.spoilt = faults.fetch_faults(*taken);
            let delay = faults.delay(*taken);
            request.held_until = (!delay.is_zero()).then(|| now + delay);
            *taken += 1;
        });
        obeyed || took
    }

    /// Shows a channel's counters. True if requests are under way.
    pub fn show(&mut self, index: usize) -> bool {
        let (channel, device) = self.with_device(index);
        if device.is_stalled() {
            return false;
        }
        channel.show();
        channel.status.in_flight > 0
    }

    fn with_device(&mut self, index: usize) -> (&mut Channel, &mut EngineDevice) {
        let channel = &mut self.channels[index];
        let device = &mut self.devices[channel.engine];
        (channel, device)
    }

    /// Sends one sub-request of a channel. A lane whose peer has no room lets others go first.
    pub fn fetch(&mut self, index: usize, dma: &Dma<'_>, now: Instant) -> bool {
        let (channel, device) = self.with_device(index);
        if device.is_stalled() {
            return false;
        }
        for _ in 0..channel.lanes.turns.len() {
            let Some((packet, request)) = self.channels[index].propose(now) else { return false };
            match self.transmit(index, &packet, &request, dma) {
                Sent::Acknowledged => {
                    self.channels[index].sent(&packet, Answer::Acknowledged, dma);
                    return true;
                }
                Sent::Pending => {
                    self.channels[index].sent(&packet, Answer::Pending, dma);
                    return true;
                }
                Sent::NoRoom => self.channels[index].lanes.rotate(),
                Sent::Failed { code, limit, detail } => {
                    let mut record = request.error(code, limit, detail);
                    if code == ringdove_kernels::bar::ErrorCode::PeerRefused {
                        record.route = request.window;
                    }
                    self.channels[index].fail(dma, &record);
                    return true;
                }
            }
        }
        false
    }
}
