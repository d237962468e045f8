//! Routes between the registered buffers that a call uses, on every lane that needs them.

use super::request::OUTPUT;
use crate::communicator::connect::ConnectedRank;
use crate::communicator::state::{Launcher, RegisteredPlace};
use crate::engine::RegionDescriptor;
use crate::error::Result;

/// The first routes from input and output to the peers' outputs. They are added where the pair of
/// registrations is new, which waits until every rank has registered.
///
/// # Errors
/// As [`ConnectedRank::registered_buffer`]; [`Error::Argument`](crate::Error::Argument) where there
/// are too many pairs of registrations.
pub(super) fn collective(
    rank: &ConnectedRank,
    launcher: &mut Launcher,
    registered: Option<[RegisteredPlace; 2]>,
) -> Result<[u32; 2]> {
    let Some(places) = registered else { return Ok([0; 2]) };
    let output = places[OUTPUT].registration;
    let mut bases = [0; 2];
    for (base, place) in bases.iter_mut().zip(places) {
        let source = launcher.routes.range(place.registration).expect("found by the check");
        *base = launcher.routes.base((place.registration, output), |first| {
            // A source is always this rank's buffer, and needs no other rank.
            let destination = rank.registered_buffer(output)?;
            let source = RegionDescriptor { base: source.address, length_bytes: source.bytes };
            rank.engine().add_direct_routes(&rank.state, first, source, output, &destination)
        })?;
    }
    Ok(bases)
}
