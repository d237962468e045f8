//! A rank as the engine of another one sees it, wherever it runs.

use super::inter_node::InterNodeEndpoint;
use super::sharing;
use crate::communicator::state::{
    Endpoint, Geometry, HostLanes, Layout, Nodes, Obstacle, Offsets, PortAddresses, PortPlace,
    RankState,
};
use crate::error::Result;
use crate::gpu::{
    Access, Current, Export, Import, discard, enable_peer_access, is_without_peer_access,
};
use crate::id::Rank;
use crate::shared::PeerRange;
use cudarc::driver::CudaContext;
use std::sync::Arc;

/// Signals are words of 8 bytes, and engines write them whole.
const SIGNAL_ALIGN: u64 = 8;
/// Bytes of memory in which one rank tries to reach another one.
const TRIAL_BYTES: u64 = 16;
/// Kernels read slots 16 bytes at a time.
const STAGING_ALIGN: u64 = 16;

/// One rank, reachable from the context for which this was made.
#[derive(Debug)]
pub(in crate::communicator) struct Peer {
    /// Where its memory lies, as this context addresses it.
    endpoint: Endpoint,
    /// Where everything lies in it.
    pub layout: Layout,
    /// In place of the above, where messages to it go through host memory.
    host: Option<HostLanes>,
    /// What keeps the memory reachable.
    imports: Vec<Arc<Import>>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Closing them may wait for the device.
        discard(std::mem::take(&mut self.imports));
    }
}

/// A peer, or why its memory is not reached.
pub(super) type Reach = std::result::Result<Peer, Obstacle>;

impl Peer {
    /// A rank of the same process. Its memory lives as long as the process.
    pub fn in_process(context: &CudaContext, state: &RankState) -> Result<Reach> {
        if enable_peer_access(context, &state.context)? == Access::ThroughHost {
            return Ok(Err(Obstacle::NoPeerAccess));
        }
        let layout = state.memory.layout;
        let endpoint = state.memory.endpoint();
        Ok(Ok(Self { endpoint, layout, host: None, imports: Vec::new() }))
    }

    /// A rank of this node whose messages go through `host`.
    pub fn through_host(layout: Layout, host: HostLanes) -> Self {
        let endpoint = Endpoint { signals: 0, staging: 0 };
        Self { endpoint, layout, host: Some(host), imports: Vec::new() }
    }

    /// Do messages to it go through host memory?
    pub fn is_through_host(&self) -> bool {
        self.host.is_some()
    }

    /// Where this rank's engine writes for the peer's port at `place`.
    pub(super) fn port(&self, place: &PortPlace) -> PortAddresses {
        let through_host = self.host.as_ref().and_then(|host| host.addresses(place.number));
        if let Some((signal, slots)) = through_host {
            return PortAddresses { signal, slots: slots.unwrap_or(0) };
        }
        let endpoint = self.endpoint;
        PortAddresses {
            signal: endpoint.signals.wrapping_add(place.signal),
            slots: endpoint.staging.wrapping_add(place.slots),
        }
    }

    /// Is its memory on another GPU, to which NVLink joins that of `context`?
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda) where the driver refuses.
    pub(super) fn is_joined(&self, context: &CudaContext) -> Result<bool> {
        let current = Current::bind(context)?;
        match current.device_of(self.endpoint.staging) {
            Some(device) if device != context.ordinal() => current.is_joined_to(context, device),
            _ => Ok(false),
        }
    }

    /// Where rank `from` may try, before anybody runs, whether its data arrives: it alone writes
    /// there. These places stand close together in memory that the peer uses in any case. In a slot
    /// of each pair they would touch all of it. None where messages go through host memory.
    pub(super) fn trial(&self, from: Rank) -> Option<u64> {
        let offset = u64::from(from.0) * TRIAL_BYTES;
        // What ranks of other nodes write may lie elsewhere.
        let fits = offset + TRIAL_BYTES <= self.layout.inter_node().staging;
        (fits && self.host.is_none()).then(|| self.endpoint.staging + offset)
    }

    /// A rank of another node: addresses are its own, and only an adapter reaches them.
    ///
    /// # Errors
    /// [`Error::PeerValue`] where they do not lie in the memory that it has registered.
    pub fn inter_node(geometry: &Geometry, place: &InterNodeEndpoint) -> Result<Self> {
        let layout = Layout::new(geometry, place.rank);
        check_inter_node(geometry, &layout, place)?;
        Ok(Self { endpoint: place.addresses, layout, host: None, imports: Vec::new() })
    }

    /// A rank of another process on this node, which exports its memory.
    ///
    /// # Errors
    /// [`Error::PeerValue`] where the driver knows of less memory than the rank's layout takes.
    pub fn on_node(
        rank: Rank,
        context: &Arc<CudaContext>,
        geometry: &Geometry,
        exports: &[Export; 2],
    ) -> Result<Reach> {
        let layout = Layout::new(geometry, rank);
        let ranges =
            [signals_of(rank, layout.signal_bytes()), staging_of(rank, layout.staging_bytes())];
        let (mut imports, mut addresses) = (Vec::new(), Vec::new());
        for (export, range) in exports.iter().zip(&ranges) {
            match Import::find(context, export, range)? {
                Ok((import, address)) => {
                    imports.push(import);
                    addresses.push(address);
                }
                Err(refused) => {
                    tracing::debug!(%rank, %refused, "memory of another process not opened");
                    discard(imports);
                    let no_access = is_without_peer_access(&refused);
                    let why = if no_access { Obstacle::NoPeerAccess } else { Obstacle::NotShared };
                    return Ok(Err(why));
                }
            }
        }
        let endpoint = Endpoint { signals: addresses[0], staging: addresses[1] };
        sharing::warn_of_slices(rank, context, endpoint.staging)?;
        Ok(Ok(Self { endpoint, layout, host: None, imports }))
    }
}

/// Does what this side will write on another node lie in the memory that the rank there has
/// registered? Whether *that* is true only the rank's own adapter knows: it refuses addresses that
/// its key does not cover, and the connection ends with a typed error.
fn check_inter_node(geometry: &Geometry, layout: &Layout, place: &InterNodeEndpoint) -> Result<()> {
    // Only the part that ranks of other nodes write, where that stands by itself: addresses before
    // it may lie outside.
    let from = match geometry.nodes {
        Nodes::Even { .. } => layout.inter_node(),
        Nodes::One | Nodes::Uneven => Offsets::default(),
    };
    let [signals, staging] = place.regions;
    let Endpoint { signals: signals_at, staging: staging_at } = place.addresses;
    signals_of(place.rank, layout.signal_bytes() - from.signals)
        .at_address(signals, signals_at.wrapping_add(from.signals))?;
    staging_of(place.rank, layout.staging_bytes() - from.staging)
        .at_address(staging, staging_at.wrapping_add(from.staging))?;
    Ok(())
}

/// Signal memory as a peer describes it.
fn signals_of(rank: Rank, length_bytes: u64) -> PeerRange<'static> {
    PeerRange { rank, what: "its signal memory", length_bytes, align: SIGNAL_ALIGN }
}

/// Staging memory as a peer describes it.
fn staging_of(rank: Rank, length_bytes: u64) -> PeerRange<'static> {
    PeerRange { rank, what: "its staging memory", length_bytes, align: STAGING_ALIGN }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::settings::Settings;
    use crate::shared::Extent;

    /// A rank of another node whose memory is `bytes` long, described at `shift` from where it is.
    fn place(layout: &Layout, missing: u64, shift: u64) -> InterNodeEndpoint {
        let region = |base, length_bytes| Extent { base, length_bytes };
        let regions = [
            region(0x10_0000, layout.signal_bytes()),
            region(0x4000_0000, layout.staging_bytes() - missing),
        ];
        let addresses =
            Endpoint { signals: regions[0].base.wrapping_add(shift), staging: regions[1].base };
        InterNodeEndpoint { rank: Rank(1), addresses, regions }
    }

    /// If this fails, a rank of another node learns of its false numbers at its first transfer
    /// only, as the error of an adapter.
    #[test]
    fn addresses_of_another_node_lie_in_its_registered_memory() {
        for nodes in [Nodes::Even { ranks: 1 }, Nodes::Uneven] {
            let geometry = Geometry::new(2, nodes, &Settings::default()).unwrap();
            let layout = Layout::new(&geometry, Rank(1));
            Peer::inter_node(&geometry, &place(&layout, 0, 0)).unwrap();
            for (missing, shift, what) in
                [(0, u64::MAX / 2, "signal"), (0, 8, "signal"), (1, 0, "staging")]
            {
                let refused =
                    Peer::inter_node(&geometry, &place(&layout, missing, shift)).unwrap_err();
                let Error::PeerValue { rank: Rank(1), field, .. } = &refused else {
                    panic!("{refused}");
                };
                assert!(field.contains(what), "{refused}");
            }
        }
    }

    /// In host memory stands only what other nodes write; the addresses sent to peers lie before
    /// it.
    #[test]
    fn addresses_before_host_memory_are_accepted() {
        let geometry = Geometry::new(4, Nodes::Even { ranks: 2 }, &Settings::default()).unwrap();
        let layout = Layout::new(&geometry, Rank(2));
        let region = |base, length_bytes| Extent { base, length_bytes };
        let regions = [
            region(8, layout.signal_bytes() - layout.inter_node().signals),
            region(1 << 30, layout.staging_bytes() - layout.inter_node().staging),
        ];
        let addresses = Endpoint {
            signals: regions[0].base.wrapping_sub(layout.inter_node().signals),
            staging: regions[1].base.wrapping_sub(layout.inter_node().staging),
        };
        Peer::inter_node(&geometry, &InterNodeEndpoint { rank: Rank(2), addresses, regions })
            .unwrap();
    }
}
