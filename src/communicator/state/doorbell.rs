//! The doorbell ring of a rank whose engine is a device: a channel of it, and the ring's pages as
//! kernels reach them.

use super::geometry::Geometry;
use super::layout::Layout;
use crate::engine::device::{Candidate, Channel, Need, claim};
use crate::error::Result;
use crate::gpu::{IoMemory, pci_address};
use crate::settings::Settings;
use crate::topology::adapter::sysfs;
use crate::topology::{PciLocation, engine};
use cudarc::driver::CudaContext;
use std::sync::Arc;
use std::time::Duration;

/// How long an engine may take for a step of a channel's life. Hardware needs microseconds.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(5);

/// A channel from its claim on. Its owner resets it before it drops it.
#[derive(Debug)]
pub(crate) struct Doorbell {
    pub channel: Arc<Channel>,
    pages: IoMemory,
}

impl Doorbell {
    /// Takes a channel of the engine nearest to `context`'s GPU for rank number `place` of its
    /// node, resets it, and shows its ring to kernels.
    ///
    /// # Errors
    /// [`Error::NotFound`](crate::Error::NotFound) where there is no engine or no free channel;
    /// [`Error::UnfitEngine`](crate::Error::UnfitEngine) where the engine has too little;
    /// [`Error::Cuda`](crate::Error::Cuda) where the driver does not take I/O memory;
    /// [`Error::HostWaitExpired`](crate::Error::HostWaitExpired) where the engine does not answer.
    pub fn claim(
        context: &Arc<CudaContext>,
        geometry: &Geometry,
        layout: &Layout,
        place: usize,
        settings: &Settings,
    ) -> Result<Self> {
        let sysfs = sysfs();
        let gpu = pci_address(context)?.parse().map(|address| PciLocation::of(&sysfs, address));
        let functions = engine::read(&sysfs, &settings.engine_ids);
        let wanted = &settings.engine_devices;
        let nearest = engine::candidates(&functions, &gpu.unwrap_or_default(), place, wanted)?;
        let candidates: Vec<_> = nearest
            .into_iter()
            .map(|function| Candidate {
                name: function.address.to_string(),
                resource: function.resource.clone(),
            })
            .collect();
        let ports = u64::from(layout.port_count());
        let channel = claim(
            &candidates,
            &Need {
                ring_log2: settings.ring_log2,
                peers: geometry.rank_count.into(),
                lanes: ports,
                signals: ports,
                windows: 1,
                routes: ports,
                lane_depth: geometry.slot_count.into(),
            },
        )?;
        // Before the reset: a virtual engine serves the channels whose rings are registered.
        let pages = IoMemory::register(context, channel.ring(settings.ring_log2)?)?;
        let doorbell = Self { channel: Arc::new(channel), pages };
        doorbell.channel.reset(STEP_TIMEOUT)?;
        tracing::debug!(channel = doorbell.channel.describe(), "claimed");
        Ok(doorbell)
    }

    /// Ends what the channel does: afterwards the engine knows none of the rank's memory. Peers may
    /// have returned credits until now.
    ///
    /// # Errors
    /// As [`Channel::reset`]. The engine may then still write.
    pub fn reset(&self) -> Result<()> {
        self.channel.reset(STEP_TIMEOUT)
    }

    /// Device address of the ring's first slot.
    pub fn ring_address(&self) -> u64 {
        self.pages.address()
    }
}
