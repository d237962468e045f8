//! Routes between the registered buffers that a call uses, on every lane that needs them.

use super::request::OUTPUT;
use crate::communicator::connect::ConnectedRank;
use crate::communicator::state::{Launcher, RegisteredPlace};
use crate::engine::RegionDescriptor;
use crate::error::{Error, Result};

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
    capture: Option<u64>,
) -> Result<[u32; 2]> {
    let Some(places) = registered else { return Ok([0; 2]) };
    let output = places[OUTPUT].registration;
    let mut bases = [0; 2];
    for (base, place) in bases.iter_mut().zip(places) {
        *base = routes(rank, launcher, place.registration, output)?;
        if capture.is_some() {
            launcher.routes.capture(*base);
        }
    }
    Ok(bases)
}

/// The first route from this rank's part of one registration to the peers' parts of another; as
/// [`collective`].
///
/// # Errors
/// As [`collective`]; [`Error::Argument`] for a registration that was taken back.
pub(super) fn routes(
    rank: &ConnectedRank,
    launcher: &mut Launcher,
    source: usize,
    destination: usize,
) -> Result<u32> {
    let range = launcher.routes.range(source).ok_or_else(|| {
        Error::argument("registration", "one of this communicator, in use", source)
    })?;
    launcher.routes.base((source, destination), |first| {
        // A source is always this rank's buffer, and needs no other rank.
        let buffer = rank.registered_buffer(destination)?;
        let source = RegionDescriptor { base: range.address, length_bytes: range.bytes };
        rank.engine().add_direct_routes(&rank.state, first, source, destination, &buffer)
    })
}
