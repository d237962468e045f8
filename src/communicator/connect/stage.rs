//! What a rank of a communicator lays out, exchanges and plans, without a GPU, a thread or a
//! network: for simulations, which bring the memory and play the rest. Of the terms that ranks
//! agree on, the layout of their memory, the checks of what peers say, the ports, the lanes and
//! routes of an engine, the handshake of connections ([`Handshakes`]), and the choice, proof and
//! encoding of plans, this is the code of every communicator; its ranks reach each other's GPU
//! memory, as on one node.

use super::attach::{LaneMemory, register, stored_at};
use super::inter_node::InterNodeEndpoint;
use super::peer::Peer;
use crate::bootstrap::Term;
use crate::communicator::state::{
    Endpoint, Geometry, Layout, Nodes, PortMemory, PortPlace, Reach, agreed_settings, device_port,
    with_peer,
};
use crate::engine::{AttachmentHandle, RegionDescriptor};
use crate::error::{Error, Result};
use crate::id::Rank;
use crate::plan::{self, CollectiveRequest, LaneEnd};
use crate::settings::Settings;
use crate::shared::Extent;
use ringdove_kernels::port::Port;
use std::collections::BTreeSet;

pub use super::handshake::{Ends, Handshakes};

/// One rank.
pub struct StagedRank {
    rank: Rank,
    geometry: Geometry,
    own: Own,
    /// All ranks, once they have met.
    peers: Vec<Peer>,
}

/// The rank's own memory.
struct Own {
    layout: Layout,
    endpoint: Endpoint,
}

/// A plan as a kernel reads it.
pub struct StagedPlan {
    /// The name of its algorithm.
    pub algorithm: &'static str,
    /// What the executor reads.
    pub bytes: Vec<u8>,
    /// Blocks of the launch.
    pub blocks: u32,
    /// Threads of each block.
    pub threads: u32,
}

impl StagedRank {
    /// Rank `rank` of `rank_count` ranks on one node.
    ///
    /// # Errors
    /// [`Error::Setting`] for settings that no communicator can have.
    pub fn new(rank: Rank, rank_count: u32, settings: &Settings) -> Result<Self> {
        let geometry = Geometry::new(rank_count, Nodes::One, settings)?;
        let layout = Layout::new(&geometry, rank);
        let endpoint = Endpoint { signals: 0, staging: 0 };
        Ok(Self { rank, geometry, own: Own { layout, endpoint }, peers: Vec::new() })
    }

    /// Names and values that must be equal on all ranks.
    pub fn terms(&self, settings: &Settings) -> Vec<Term> {
        agreed_settings(&self.geometry, settings)
    }

    /// Bytes of its signal memory and of its staging memory.
    pub fn memory_bytes(&self) -> [u64; 2] {
        [self.own.layout.signal_bytes(), self.own.layout.staging_bytes()]
    }

    /// Its signals and its staging memory, zeros both, lie at these addresses. Gives what the other
    /// ranks have to be told.
    pub fn place(&mut self, signals: u64, staging: u64) -> Vec<u8> {
        self.own.endpoint = Endpoint { signals, staging };
        let [signal_bytes, staging_bytes] = self.memory_bytes();
        bytemuck::cast_slice(&[signals, signal_bytes, staging, staging_bytes]).to_vec()
    }

    /// What all ranks have told, by rank.
    ///
    /// # Errors
    /// [`Error::PeerValue`] where a rank's memory is not what its layout needs.
    pub fn meet(&mut self, told: &[Vec<u8>]) -> Result<()> {
        let peer = |(rank, told): (u32, &Vec<u8>)| {
            let rank = Rank(rank);
            let [signals, signal_bytes, staging, staging_bytes] = told.as_chunks::<8>().0 else {
                let seen = format!("{} bytes", told.len());
                return Err(Error::peer_value(rank, "where its memory lies", "four words", seen));
            };
            let words = [signals, signal_bytes, staging, staging_bytes];
            let [signals, signal_bytes, staging, staging_bytes] =
                words.map(|word| u64::from_ne_bytes(*word));
            let addresses = Endpoint { signals, staging };
            let regions = [(signals, signal_bytes), (staging, staging_bytes)]
                .map(|(base, length_bytes)| Extent { base, length_bytes });
            Peer::inter_node(&self.geometry, &InterNodeEndpoint { rank, addresses, regions })
        };
        self.peers = (0..).zip(told).map(peer).collect::<Result<_>>()?;
        Ok(())
    }

    /// Its ports, once all have met.
    pub fn ports(&self) -> Vec<Port> {
        let endpoint = self.own.endpoint;
        let port = |place: PortPlace| {
            let memory = PortMemory {
                endpoint,
                completions: endpoint.signals,
                through_host: None,
                is_in_host: false,
                shared_route: self.own.shared_route(place.number),
            };
            let there = stored_at(&self.geometry, &place, &self.peers[place.peer().index()]);
            with_peer(device_port(&place, &memory), &place, there)
        };
        self.own.layout.ports().map(port).collect()
    }

    /// Tells a proxy of its lanes and routes.
    ///
    /// # Errors
    /// [`Error::EngineStopped`] if the proxy is gone.
    pub fn register(&self, handle: &AttachmentHandle) -> Result<()> {
        register(handle, &self.own, &self.peers, &BTreeSet::new())
    }

    /// The plan of a collective: chosen by selection, proved, and encoded for this rank; with so
    /// many threads of a block at most.
    ///
    /// # Errors
    /// [`Error::System`] for a fault of the library.
    pub fn collective(&self, request: &CollectiveRequest, threads_max: u32) -> Result<StagedPlan> {
        let wrong = |cause: &dyn std::fmt::Display| Error::System {
            what: format!("the plan of {}", request.collective.name()),
            cause: cause.to_string(),
        };
        let reach = Reach { all: true, nvlink: false, modelled_blocks: 0, writes_registered: true };
        let limits = self.geometry.limits_for(self.geometry.slot_bytes, &reach);
        let mut choice = plan::select(request, &limits).map_err(|error| wrong(&error))?;
        choice.thread_count = choice.thread_count.min(threads_max);
        let proved = plan::verify(plan::build(&choice), &request.promise());
        let proved = proved.map_err(|error| wrong(&error))?;
        let port = |end: LaneEnd| Some(self.own.layout.port(end)?.number);
        let bytes = proved.encode(self.rank.0, &port).map_err(|error| wrong(&error))?;
        Ok(StagedPlan {
            algorithm: choice.algorithm.name(),
            bytes,
            blocks: proved.block_count(self.rank.0),
            threads: proved.plan().thread_count,
        })
    }
}

impl LaneMemory for Own {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    fn source(&self, _: &PortPlace) -> RegionDescriptor {
        let length_bytes = self.layout.staging_bytes();
        RegionDescriptor { base: self.endpoint.staging, length_bytes }
    }

    fn shared_source(&self, _: bool) -> Option<RegionDescriptor> {
        None
    }

    fn shared_route(&self, number: u32) -> u32 {
        self.layout.port_count() + number
    }
}
