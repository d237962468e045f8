//! Control planes of two ranks each, which end when one of the two does, and not with the job's.
//!
//! One of the two opens a place to meet and tells the other where, over the control plane of the
//! job. What they prove to each other is derived from the job's secret, so that nothing secret
//! travels.

use super::{ControlPlane, JoinRequest, Launch, Root, UniqueId};
use crate::error::Result;
use crate::id::Rank;
use crate::settings::Settings;
use std::net::{SocketAddr, TcpListener};

/// Where the two meet.
pub(crate) enum PairPlace {
    /// At a listener of this rank, which is known by these addresses.
    Here(TcpListener, Vec<SocketAddr>),
    /// At the other rank's.
    There(Vec<SocketAddr>),
}

impl PairPlace {
    /// A place of this rank.
    ///
    /// # Errors
    /// As [`Root::open`].
    pub fn open(settings: &Settings) -> Result<Self> {
        let (listener, addresses) = Root::listen(settings)?;
        Ok(Self::Here(listener, addresses))
    }

    /// What the other one has to know.
    pub fn addresses(&self) -> &[SocketAddr] {
        let (Self::Here(_, addresses) | Self::There(addresses)) = self;
        addresses
    }
}

impl Launch {
    /// Begins to meet `peer`; [`ControlPlane::assembled`] waits for the end of it. Of the two, the
    /// lower rank is rank 0 there.
    ///
    /// # Errors
    /// As [`ControlPlane::start`].
    pub(crate) fn begin_pair(
        &self,
        peer: Rank,
        place: PairPlace,
        settings: &Settings,
    ) -> Result<ControlPlane> {
        let (low, high) = (self.rank.min(peer.0), self.rank.max(peer.0));
        let id = UniqueId::with(place.addresses(), self.key().of_pair(low, high));
        let rank = Rank(u32::from(self.rank == high));
        let root = match place {
            PairPlace::Here(listener, _) => Some(Root::serve(listener, id, settings)?),
            PairPlace::There(_) => None,
        };
        let request = JoinRequest { id, rank, rank_count: 2, terms: Vec::new() };
        let plane = ControlPlane::start(request, settings)?;
        root.into_iter().for_each(Root::detach);
        Ok(plane)
    }
}
