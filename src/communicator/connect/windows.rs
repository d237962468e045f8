//! Routes of one-sided transfers: from one rank's part of a registration to a rank's part of
//! another, on this rank's lane to one of the two.

use super::description::registration_window;
use super::rank::ConnectedRank;
use super::single_routes::Destination;
use crate::communicator::state::Launcher;
use crate::engine::RegionDescriptor;
use crate::error::{Error, Result};
use crate::id::{EngineKind, Rank};

/// A rank's part of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::communicator) struct PartOf {
    pub registration: usize,
    pub rank: u32,
    /// Its address as this rank's engine knows it.
    pub address: u64,
    pub bytes: u64,
}

impl PartOf {
    fn name(&self) -> (usize, u32) {
        (self.registration, self.rank)
    }

    fn region(&self) -> RegionDescriptor {
        RegionDescriptor { base: self.address, length_bytes: self.bytes }
    }
}

impl ConnectedRank {
    /// Is the rank reached by adapters alone?
    pub fn is_far(&self, rank: u32) -> bool {
        let by_device = || self.process.geometry.are_apart(self.rank().0, rank);
        let by_adapter = |rank| self.inter_node.as_ref().is_some_and(|to| to.leads_to(rank));
        by_adapter(Rank(rank)) || by_device()
    }

    /// Can this rank's engine move data from the one part to the other at once?
    pub fn engine_moves(&self, from: &PartOf, to: &PartOf) -> bool {
        let own = self.rank().0;
        match (self.process.geometry.engine, from.rank == own, to.rank == own) {
            (_, true, true) => false,
            (_, true, false) => true,
            (EngineKind::Device, false, _) => false,
            (EngineKind::Proxy, false, true) => true,
            (EngineKind::Proxy, false, false) => !self.is_far(from.rank) && !self.is_far(to.rank),
        }
    }

    /// The route from the one part to the other, on the lane whose send port is `port`. It is added
    /// where it is new.
    ///
    /// # Errors
    /// [`Error::Argument`] where the engine cannot move this, or there are too many routes.
    pub fn window_route(
        &self,
        launcher: &mut Launcher,
        port: u32,
        [from, to]: [&PartOf; 2],
    ) -> Result<u32> {
        if !self.engine_moves(from, to) {
            let expected = match self.process.geometry.engine {
                EngineKind::Proxy => "ends of which this rank's engine reaches both",
                EngineKind::Device => {
                    "a source of this rank: device engines write and do not read \
                     (RINGDOVE_ENGINE=proxy does)"
                }
            };
            let seen = format!("from {} to {}", Rank(from.rank), Rank(to.rank));
            return Err(Error::argument("transfer between windows", expected, seen));
        }
        let routes = self.engine().routes(&self.process.geometry);
        let is_device = self.process.geometry.engine == EngineKind::Device;
        launcher.routes.part([from.name(), to.name()], |route| {
            if from.rank != self.rank().0 {
                let pull = self.is_far(from.rank);
                return routes.add_foreign(route, port, [from.region(), to.region()], pull);
            }
            let number = registration_window(to.registration);
            let destination = match is_device {
                true => Destination::Window { number, offset: 0, bytes: to.bytes },
                false => Destination::Memory(to.region()),
            };
            routes.add(route, port, from.region(), &destination)
        })
    }
}
