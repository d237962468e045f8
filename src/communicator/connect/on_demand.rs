//! Connections to ranks of other nodes, made when a transfer first needs them: [`Handshakes`] with
//! the adapter's endpoints.
//!
//! The other rank's part is done on the I/O thread of its process, so nobody waits for a call of
//! that rank, and one thread may drive both.

use super::description::PLACE_NOTE;
use super::handshake::{Ends, Handshakes, out_of_turn};
use crate::bootstrap::ControlPlane;
use crate::communicator::state::{Layout, lock};
use crate::error::{Result, TransportCause};
use crate::id::{LaneId, Rank};
use crate::transport::verbs::{Adapter, Connect, Endpoint, RemoteRegion, VerbsControl};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// Connects one rank with those of other nodes.
pub(super) struct Connector {
    rank: Rank,
    adapter: Arc<Adapter>,
    control: Arc<VerbsControl>,
    plane: Weak<ControlPlane>,
    layout: Layout,
    /// Memory of each rank on another node that this one may write. Locked after `states`.
    remote: Mutex<HashMap<Rank, Vec<RemoteRegion>>>,
    /// The peer of each lane, by number.
    peers: Vec<Rank>,
    states: Mutex<Handshakes<Endpoint>>,
}

/// What connections are made of.
pub(super) struct Parts<'a> {
    pub rank: Rank,
    pub layout: Layout,
    pub adapter: &'a Arc<Adapter>,
    pub control: &'a Arc<VerbsControl>,
    pub plane: &'a Arc<ControlPlane>,
    /// Signals and staging memory of each rank on another node.
    pub remote: HashMap<Rank, Vec<RemoteRegion>>,
    /// How long a connection may take.
    pub limit: Duration,
}

impl Connector {
    /// A connector that answers the other ranks' requests from now on.
    pub fn new(parts: Parts<'_>) -> Arc<Self> {
        let connector = Arc::new(Self {
            rank: parts.rank,
            adapter: parts.adapter.clone(),
            control: parts.control.clone(),
            plane: Arc::downgrade(parts.plane),
            layout: parts.layout,
            remote: Mutex::new(parts.remote),
            peers: parts.layout.ports().map(|place| place.peer()).collect(),
            states: Mutex::new(Handshakes::new(parts.rank, parts.limit)),
        });
        let receiver = Arc::downgrade(&connector);
        parts.plane.on_note(move |from, bytes| {
            if let Some(connector) = receiver.upgrade() {
                connector.receive(from, bytes);
            }
        });
        connector
    }

    /// More memory of `peer`, connected or not, that this rank may write.
    ///
    /// # Errors
    /// [`Error::EngineStopped`](crate::Error::EngineStopped) if the transport is gone.
    pub fn add_remote(&self, peer: Rank, region: RemoteRegion) -> Result<()> {
        let states = lock(&self.states);
        lock(&self.remote).entry(peer).or_default().push(region);
        match states.is_connected(peer) {
            true => self.control.add_remote(peer, region),
            false => Ok(()),
        }
    }

    /// Forgets memory of `peer`: no transfer may name it any more.
    ///
    /// # Errors
    /// As [`add_remote`](Self::add_remote).
    pub fn remove_remote(&self, peer: Rank, region: RemoteRegion) -> Result<()> {
        let states = lock(&self.states);
        if let Some(regions) = lock(&self.remote).get_mut(&peer) {
            regions.retain(|other| *other != region);
        }
        match states.is_connected(peer) {
            true => self.control.remove_remote(peer, region),
            false => Ok(()),
        }
    }

    /// Is the rank on another node?
    pub fn reaches(&self, peer: Rank) -> bool {
        lock(&self.remote).contains_key(&peer)
    }

    /// A note of another rank. Runs on the I/O thread.
    fn receive(&self, from: Rank, bytes: &[u8]) {
        if bytes.first() == Some(&PLACE_NOTE) {
            return;
        }
        let mut states = lock(&self.states);
        let taken = match self.reaches(from) {
            true => states.receive(&mut &*self, from, bytes, Instant::now()),
            false => {
                let error = out_of_turn(from, "a note that makes no sense");
                states.refuse(&mut &*self, from, error.to_string());
                Err(error)
            }
        };
        if let Err(error) = taken {
            tracing::warn!(rank = self.rank.0, peer = from.0, %error, "no connection");
        }
    }
}

impl Ends for &Connector {
    type End = Endpoint;

    fn create(&mut self) -> Result<(Endpoint, Vec<u8>)> {
        Endpoint::create(&self.adapter)
    }

    fn connect(&mut self, end: &mut Endpoint, theirs: &[u8]) -> Result<()> {
        end.connect(theirs)
    }

    fn send(&mut self, to: Rank, note: &[u8]) -> Result<()> {
        match self.plane.upgrade() {
            Some(plane) => plane.send_note(to, note),
            None => Ok(()),
        }
    }

    /// Gives the transport a connection.
    fn add(&mut self, peer: Rank, end: Endpoint) -> Result<()> {
        let lanes: Vec<_> = self.layout.ports_of(peer).map(|place| LaneId(place.number)).collect();
        let regions = lock(&self.remote).get(&peer).cloned().unwrap_or_default();
        self.control.add_peer(peer, end, &regions, &lanes)?;
        tracing::debug!(rank = self.rank.0, peer = peer.0, "connected");
        Ok(())
    }
}

/// The transport's end of a connector.
pub(super) struct Requests(pub Arc<Connector>);

impl Connect for Requests {
    fn request(&mut self, lane: LaneId) -> std::result::Result<(), TransportCause> {
        let connector = &self.0;
        let peer = connector.peers.get(lane.0 as usize).copied();
        let peer = peer.filter(|&peer| connector.reaches(peer));
        let peer = peer.ok_or(TransportCause::UnknownLane { known: connector.peers.len() })?;
        lock(&connector.states).request(&mut &**connector, peer, Instant::now())
    }
}
