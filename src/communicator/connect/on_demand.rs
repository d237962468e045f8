//! Connections to ranks of other nodes, made when a transfer first needs them.
//!
//! Whoever needs the connection sends a request with its own end along the control tree. The other
//! rank's part is done on the I/O thread of its process, so nobody waits for a call of that rank,
//! and one thread may drive both. Either end may write only when the other one can receive:
//!
//! ```text
//! asks:     request(own end) ─────▶          answers: connects its end
//!           connects its end  ◀───── answer(own end)
//!           may write; ready  ─────▶          may write
//! ```
//!
//! Where both ask at a time, the request of the lower rank counts.

use super::description::PLACE_NOTE;
use crate::bootstrap::ControlPlane;
use crate::communicator::state::{Layout, lock};
use crate::error::{Error, Result, TransportCause};
use crate::id::{LaneId, Rank};
use crate::transport::verbs::{Adapter, Connect, Endpoint, RemoteRegion, VerbsControl};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// What ranks send one another about their connection.
#[derive(Serialize, Deserialize)]
enum Note {
    /// The sender's end, which waits.
    Request(Vec<u8>),
    /// The sender's end, which can receive.
    Answer(Vec<u8>),
    /// The sender's end can receive, too.
    Ready,
    /// There will be no connection, for this reason.
    Refused(String),
}

/// A connection on its way.
enum State {
    /// This side has asked, and waits for an answer since then.
    Requested { endpoint: Endpoint, own: Vec<u8>, since: Instant },
    /// This side has answered, and waits until the other one is ready.
    Answered { endpoint: Endpoint, since: Instant },
    /// The transport has it.
    Connected,
    /// It will not come.
    Failed(String),
}

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
    states: Mutex<HashMap<Rank, State>>,
    limit: Duration,
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
            states: Mutex::default(),
            limit: parts.limit,
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
        match states.get(&peer) {
            Some(State::Connected) => self.control.add_remote(peer, region),
            _ => Ok(()),
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
        match states.get(&peer) {
            Some(State::Connected) => self.control.remove_remote(peer, region),
            _ => Ok(()),
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
        let taken = match postcard::from_bytes(bytes) {
            Ok(note) if self.reaches(from) => self.take(&mut states, from, note),
            _ => Err(out_of_turn(from, "a note that makes no sense")),
        };
        if let Err(error) = taken {
            tracing::warn!(rank = self.rank.0, peer = from.0, %error, "no connection");
            let why = error.to_string();
            // It may be gone; then its own end of the communicator says why.
            let _ = self.send(from, &Note::Refused(why.clone()));
            states.insert(from, State::Failed(why));
        }
    }

    fn take(&self, states: &mut HashMap<Rank, State>, from: Rank, note: Note) -> Result<()> {
        let since = Instant::now();
        match (note, states.remove(&from)) {
            (Note::Request(_), Some(state @ State::Requested { .. })) if self.rank < from => {
                // Its answer to this side's request is on its way.
                states.insert(from, state);
            }
            (Note::Request(theirs), state @ (None | Some(State::Requested { .. }))) => {
                let (mut endpoint, own) = match state {
                    Some(State::Requested { endpoint, own, .. }) => (endpoint, own),
                    _ => Endpoint::create(&self.adapter)?,
                };
                endpoint.connect(&theirs).map_err(|error| error.told_by(from))?;
                self.send(from, &Note::Answer(own))?;
                states.insert(from, State::Answered { endpoint, since });
            }
            (Note::Answer(theirs), Some(State::Requested { mut endpoint, .. })) => {
                endpoint.connect(&theirs).map_err(|error| error.told_by(from))?;
                self.send(from, &Note::Ready)?;
                self.add(from, endpoint)?;
                states.insert(from, State::Connected);
            }
            (Note::Ready, Some(State::Answered { endpoint, .. })) => {
                self.add(from, endpoint)?;
                states.insert(from, State::Connected);
            }
            (Note::Refused(why), _) => {
                states.insert(from, State::Failed(format!("{from} says: {why}")));
            }
            _ => return Err(out_of_turn(from, "a note out of turn")),
        }
        Ok(())
    }

    /// Gives the transport a connection.
    fn add(&self, peer: Rank, endpoint: Endpoint) -> Result<()> {
        let lanes: Vec<_> = self.layout.ports_of(peer).map(|place| LaneId(place.number)).collect();
        let regions = lock(&self.remote).get(&peer).cloned().unwrap_or_default();
        self.control.add_peer(peer, endpoint, &regions, &lanes)?;
        tracing::debug!(rank = self.rank.0, peer = peer.0, "connected");
        Ok(())
    }

    fn send(&self, to: Rank, note: &Note) -> Result<()> {
        let bytes = postcard::to_allocvec(note).expect("writing to memory does not fail");
        match self.plane.upgrade() {
            Some(plane) => plane.send_note(to, &bytes),
            None => Ok(()),
        }
    }

    fn begin(&self, peer: Rank) -> Result<State> {
        let (endpoint, own) = Endpoint::create(&self.adapter)?;
        self.send(peer, &Note::Request(own.clone()))?;
        Ok(State::Requested { endpoint, own, since: Instant::now() })
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
        let mut states = lock(&connector.states);
        match states.get(&peer) {
            Some(State::Requested { since, .. } | State::Answered { since, .. })
                if since.elapsed() > connector.limit =>
            {
                Err(TransportCause::Other(format!(
                    "no connection with {peer} within {:?} (RINGDOVE_BOOTSTRAP_TIMEOUT_MS): its \
                     process does not answer",
                    connector.limit
                )))
            }
            Some(State::Failed(why)) => {
                Err(TransportCause::Other(format!("no connection with {peer}: {why}")))
            }
            Some(_) => Ok(()),
            None => {
                let begun = connector.begin(peer);
                let begun = begun.map_err(|error| TransportCause::Other(error.to_string()))?;
                states.insert(peer, begun);
                Ok(())
            }
        }
    }
}

fn out_of_turn(from: Rank, seen: &str) -> Error {
    Error::peer_value(from, "its connection", "a request, an answer, or that it is ready", seen)
}
