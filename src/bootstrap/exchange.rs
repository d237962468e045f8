//! An exchange of typed values between all ranks, over the control planes of this process's ranks.

use super::plane::ControlPlane;
use crate::error::{Error, Result};
use crate::id::Rank;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// Sends all ranks the values of the ranks that `planes` belong to; gives every rank's value.
///
/// # Errors
/// As [`ControlPlane::all_gather`]; [`Error::PeerValue`] where values are missing;
/// [`Error::Disagreement`] where a rank's value cannot be decoded.
pub(crate) fn exchange<T: Serialize + DeserializeOwned>(
    planes: &[Arc<ControlPlane>],
    values: &[T],
) -> Result<Vec<T>> {
    let encode = |value: &T| postcard::to_allocvec(value).expect("writing to memory does not fail");
    // Begun on all before any is waited for: a thread may hold the planes of several ranks.
    let begun = planes.iter().zip(values).map(|(plane, own)| plane.begin_all_gather(&encode(own)));
    let begun: Vec<_> = begun.collect::<Result<_>>()?;
    let mut all = Vec::new();
    for gather in begun {
        all = gather.finish()?;
    }
    let (plane, count) = (&planes[0], planes[0].rank_count() as usize);
    if all.len() != count {
        // The parent put it together.
        let by = plane.parent().unwrap_or(plane.rank());
        let (expected, seen) = (format!("those of {count} ranks"), all.len());
        return Err(Error::peer_value(by, "the values of all ranks", expected, seen));
    }
    let decode = |(rank, bytes): (u32, &Vec<u8>)| {
        postcard::from_bytes(bytes).map_err(|cause| Error::Disagreement {
            what: "the form of values that ranks exchange".into(),
            rank: Rank(rank),
            value: format!("{} bytes that cannot be decoded: {cause}", bytes.len()),
            peer: plane.rank(),
            peer_value: "what this version writes".into(),
        })
    };
    (0..).zip(&all).map(decode).collect()
}
