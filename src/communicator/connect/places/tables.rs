//! What a rank keeps of places, and what it tells others of them.

use super::super::single_routes::Destination;
use crate::communicator::state::Offer;
use crate::engine::RegionDescriptor;
use crate::gpu::Import;
use crate::id::Rank;
use crate::transport::verbs::RemoteRegion;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

/// What ranks of different processes tell each other.
#[derive(Serialize, Deserialize)]
pub(super) enum Note {
    Offer(Offer),
    Known { number: u64, grant: u32, generation: u32 },
    Withdraw { number: u64 },
    Gone { number: u64 },
}

/// Memory of this rank from which it puts.
pub(super) struct Source {
    /// Its registration; of staging memory none.
    pub registration: Option<usize>,
    pub region: RegionDescriptor,
    /// The route to the slots of port 0, if there was one; 0 of staging memory.
    pub slots: u32,
    /// Ports to whose slots there is a route.
    pub ports: BTreeSet<u32>,
    /// Graphs may hold its number for as long as the communicator lives.
    pub is_captured: bool,
}

/// Memory of a peer that this rank may be granted.
pub(super) struct Grant {
    pub peer: Rank,
    pub registration: u64,
    pub lane: u32,
    pub destination: Destination,
    pub generation: u32,
    /// By source.
    pub routes: BTreeMap<u32, u32>,
    pub import: Option<Arc<Import>>,
    pub remote: Option<RemoteRegion>,
}

/// What a peer knows of memory of this rank.
#[derive(Clone, Copy)]
pub(super) enum Offered {
    Asked { since: Instant },
    Known { grant: u32, generation: u32 },
    Withdrawn,
}

/// What a rank knows of places.
#[derive(Default)]
pub(super) struct Inner {
    pub sources: BTreeMap<u32, Source>,
    /// Numbers of sources that are gone and that graphs may hold: a replay is refused (R15.4).
    pub retired: BTreeSet<u32>,
    pub grants: BTreeMap<u32, Grant>,
    pub generations: BTreeMap<u32, u32>,
    pub offered: BTreeMap<(Rank, u64), Offered>,
    /// This rank's registrations.
    pub own: BTreeMap<usize, Offer>,
    /// Offers whose memory cannot be opened while kernels run.
    pub waiting: Vec<(Rank, Offer)>,
}
