//! A rank's engine, of either kind.

use crate::communicator::connect::description::registration_window;
use crate::communicator::connect::peer::Peer;
use crate::communicator::connect::single_routes::EngineRoutes;
use crate::communicator::state::{Geometry, ProcessState, RankState, RegisteredBuffer};
use crate::engine::device::DeviceAttachment;
use crate::engine::{Alarm, Attached, ProxyThreads, RegionDescriptor, Route, Snapshot, Watch};
use crate::error::Result;
use crate::id::{LaneId, RouteId};
use crate::plan::Side;
use ringdove_kernels::bar;
use std::sync::Arc;
use std::time::Duration;

/// A rank's engine.
pub(in crate::communicator) enum RankEngine {
    Proxy {
        attached: Attached,
        /// What the routes lead to, as long as the engine may use them.
        peers: Arc<Vec<Peer>>,
        /// The record of an expired wait, which the proxy looks at now and then.
        watch: Watch,
        process: Arc<ProcessState>,
        /// Keeps the threads running.
        _threads: Arc<ProxyThreads>,
    },
    Device(DeviceAttachment),
}

impl RankEngine {
    /// Makes registration `number` of this rank known, so that peers may write there.
    pub fn add_registration(&self, number: usize, address: u64, bytes: u64) -> Result<()> {
        match self {
            // Its peers' proxies have the addresses.
            Self::Proxy { .. } => Ok(()),
            Self::Device(device) => {
                device.channel().enter_window(registration_window(number), address, bytes)
            }
        }
    }

    /// The window of local registration `number`, of those counted from the table's end.
    pub fn local_window(&self, number: usize) -> u64 {
        match self {
            Self::Proxy { .. } => 0,
            Self::Device(device) => {
                let windows = device.channel().function().identity().window_count;
                windows.saturating_sub(1 + number as u64)
            }
        }
    }

    /// Makes a local registration known; gives its window.
    pub fn add_local_registration(&self, number: usize, address: u64, bytes: u64) -> Result<u64> {
        let window = self.local_window(number);
        if let Self::Device(device) = self {
            device.channel().enter_window(window, address, bytes)?;
        }
        Ok(window)
    }

    /// Makes a window unknown: peers do not write there any more.
    pub fn remove_window(&self, window: u64) {
        if let Self::Device(device) = self {
            device.channel().clear_window(window);
        }
    }

    /// Makes registration `number` unknown: peers do not write there any more.
    pub fn remove_registration(&self, number: usize) {
        if let Self::Device(device) = self {
            device.channel().clear_window(registration_window(number));
        }
    }

    /// Removes routes on which nothing is rung or in flight, and waits, at most `limit`, until the
    /// engine knows it.
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`](crate::Error::HostWaitExpired) after `limit`.
    pub fn remove_routes(&self, routes: &[u32], limit: Duration) -> Result<()> {
        let mut routes = routes.iter().map(|&route| RouteId(route));
        match self {
            Self::Proxy { attached, .. } => {
                routes.try_for_each(|route| attached.handle().remove_route(route))?;
                attached.handle().wait_applied(limit)
            }
            Self::Device(device) => {
                routes.for_each(|route| device.channel().clear_route(route));
                Ok(())
            }
        }
    }

    /// Adds the routes from `source`, a range of `state`'s memory, to registration `output` on the
    /// peer of every lane on which registered buffers move, from number `first` on.
    pub fn add_direct_routes(
        &self,
        state: &RankState,
        first: u32,
        source: RegionDescriptor,
        output: usize,
        destination: &RegisteredBuffer,
    ) -> Result<()> {
        for place in state.memory.layout.ports() {
            let number = place.number;
            let lane = place.end.lane;
            if place.end.side != Side::Send || !lane.kind.moves_buffers() {
                continue;
            }
            let route = RouteId(first + place.route_index);
            match self {
                Self::Proxy { attached, .. } => {
                    let base = destination.addresses[lane.to as usize];
                    let destination = RegionDescriptor { base, length_bytes: destination.bytes };
                    let lane = LaneId(number);
                    attached
                        .handle()
                        .add_route(route, Route { lane, source, destination, pull: false })?;
                }
                Self::Device(device) => device.channel().enter_route(
                    route,
                    bar::Route {
                        lane: number.into(),
                        source_base: source.base,
                        source_length: source.length_bytes,
                        window: registration_window(output),
                        window_offset: 0,
                        destination_length: destination.bytes,
                        reserved: 0,
                        valid: 1,
                    },
                )?,
            }
        }
        Ok(())
    }

    /// What adds single routes, also while this is used elsewhere.
    pub fn routes(&self, geometry: &Geometry) -> EngineRoutes {
        match self {
            Self::Proxy { attached, peers, .. } => {
                EngineRoutes::Proxy { handle: attached.handle().clone(), peers: peers.clone() }
            }
            Self::Device(device) => {
                EngineRoutes::Device { channel: device.channel().clone(), geometry: *geometry }
            }
        }
    }

    /// Launches up to number `count`, whose kernels ring, are about to be enqueued.
    pub fn announce(&self, count: u64) {
        match self {
            Self::Proxy { attached, .. } => attached.handle().announce(count),
            // Hardware does not sleep.
            Self::Device(_) => {}
        }
    }

    /// Raises the alarm for what is wrong and was not noticed yet.
    pub fn look(&self) {
        match self {
            // A stream may have ended before the proxy's next look: its wait has expired, and its
            // results are not to be called right. (An alarm knows more than the record.)
            Self::Proxy { watch, process, .. } => {
                if !process.is_raised()
                    && let Some(error) = watch.poll()
                {
                    process.raise(error);
                }
            }
            Self::Device(device) => device.look(),
        }
    }

    /// The counters as they are now.
    pub fn statistics(&self) -> Snapshot {
        match self {
            Self::Proxy { attached, .. } => attached.handle().statistics(),
            Self::Device(device) => device.statistics(),
        }
    }

    /// Waits until the engine has ended all that the rank's kernels, which have ended, have rung:
    /// `head` descriptors.
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`](crate::Error::HostWaitExpired) if work is left after `limit`.
    pub fn wait_idle(&self, head: u64, limit: Duration) -> Result<()> {
        match self {
            Self::Proxy { attached, .. } => attached.handle().wait_idle(limit),
            Self::Device(device) => device.channel().wait_idle(head, limit),
        }
    }

    /// Lets the engine finish, and takes the rank out of it. `head` is how many descriptors the
    /// rank's kernels have rung, if they have ended.
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`](crate::Error::HostWaitExpired) if work was left after `limit`.
    pub fn detach(self, head: impl FnOnce() -> Option<u64>, limit: Duration) -> Result<()> {
        match self {
            Self::Proxy { attached, peers, _threads, .. } => {
                let detached = attached.detach(limit);
                drop((peers, _threads));
                detached
            }
            Self::Device(device) => device.detach(head(), limit),
        }
    }
}
