//! A rank as the engine of another one sees it, wherever it runs.

use super::far::FarPlace;
use super::layout::{Geometry, Layout};
use super::memory::Endpoint;
use super::world::Seat;
use crate::error::{Error, Result};
use crate::gpu::{Access, Export, Import, enable_peer_access};
use crate::id::Rank;
use cudarc::driver::CudaContext;
use std::sync::Arc;

/// One rank, reachable from the context for which this was made.
#[derive(Debug)]
pub(super) struct Peer {
    /// Where its memory lies, as this context addresses it.
    pub endpoint: Endpoint,
    /// Where everything lies in it.
    pub layout: Layout,
    /// What keeps the memory reachable.
    _imports: Vec<Arc<Import>>,
}

impl Peer {
    /// A rank of the same process. Its memory lives as long as the world.
    pub fn in_process(rank: Rank, context: &CudaContext, seat: &Seat) -> Result<Self> {
        if enable_peer_access(context, &seat.context)? == Access::ThroughHost {
            return Err(Error::NotFound {
                wanted: format!("path for peer access from {rank} to {}", seat.rank),
                looked_for: "peer access between their two devices".into(),
                advice: "use devices under one PCI root complex, or joined by NVLink".into(),
            });
        }
        let layout = seat.memory.layout.clone();
        Ok(Self { endpoint: seat.memory.endpoint(), layout, _imports: Vec::new() })
    }

    /// A rank of another node: addresses are its own, and only an adapter reaches them.
    pub fn far(geometry: &Geometry, place: &FarPlace) -> Self {
        let layout = Layout::new(geometry, place.rank);
        Self { endpoint: place.addresses, layout, _imports: Vec::new() }
    }

    /// A rank of another process on this node, which exports its memory.
    pub fn on_node(
        rank: Rank,
        context: &Arc<CudaContext>,
        geometry: &Geometry,
        [signals, staging]: [&Export; 2],
    ) -> Result<Self> {
        let imports = [signals, staging].map(|export| Import::open(context, &export.handle));
        let [signal_memory, staging_memory] = imports;
        let (signal_memory, staging_memory) = (signal_memory?, staging_memory?);
        let endpoint = Endpoint {
            signals: signal_memory.address() + signals.offset,
            staging: staging_memory.address() + staging.offset,
        };
        let layout = Layout::new(geometry, rank);
        Ok(Self { endpoint, layout, _imports: vec![signal_memory, staging_memory] })
    }
}
