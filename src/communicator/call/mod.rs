//! The way of a call: check, agree, plan, connect, bind, launch. Each step is a module with one
//! job, and [`collective`] and [`group`] are the whole way.
//!
//! A call is a span of `tracing`. Its `sequence` is the number of its launch, which is also in the
//! record of an expired wait.
//!
//! * `request`: a call; `element`: types and reductions
//! * `check`: are the arguments usable? No other rank knows of the call yet
//! * `agree`: do all ranks make the same call?
//! * `plan`: the verified plan, encoded, in device memory
//! * `connect`: routes between the registered buffers that the call uses
//! * `bind`: addresses and routes, as the kernel takes them
//! * `launch`: in the order of calls, on the caller's stream
//! * `device_handle`: no call, but what users' kernels need for theirs

mod agree;
mod bind;
pub(super) mod check;
mod connect;
mod device_handle;
mod element;
mod launch;
mod plan;
mod request;

pub(super) use device_handle::device_handle;
pub use element::{Element, Reduction, Scalar};
pub(super) use request::{Call, GroupCall, Shape};

use super::connect::ConnectedRank;
use super::state::Launcher;
use crate::error::Result;
use crate::id::Rank;
use cudarc::driver::CudaStream;
use std::sync::Arc;
use tracing::field;

/// Makes a collective call. Whoever calls it keeps the memory until `stream` has passed the call.
///
/// # Errors
/// Those of [`Communicator::all_reduce`](super::Communicator::all_reduce).
pub(super) fn collective(
    rank: &ConnectedRank,
    call: &Call,
    stream: &Arc<CudaStream>,
) -> Result<()> {
    let span = tracing::debug_span!(
        "collective",
        operation = call.shape.collective.name(),
        rank = rank.rank().0,
        sequence = field::Empty,
        count = call.shape.count
    );
    let _entered = span.enter();
    let checked = check::collective(rank, call, stream)?;
    // Held to the end: calls take effect in the order in which they come here.
    let mut launcher = rank.launcher();
    span.record("sequence", launcher.launches());
    let capture = check::capture(rank, call.shape.collective.name(), stream)?;
    make_room(rank, &mut launcher, capture)?;
    if rank.process.ranks_on(&rank.state.context) > 1 {
        rank.process.streams.claim(rank.rank(), stream, launcher.collective())?;
    }
    let registered = check::registered(rank, &launcher, call, &checked)?;
    if capture.is_some() {
        check::captured(rank, registered)?;
    }
    let request = call.request(rank.rank().0, rank.rank_count(), registered.is_some());
    agree::collective(rank, &mut launcher, call, registered)?;
    if call.is_empty() {
        return Ok(());
    }
    let mut enqueue = || {
        launch::enter(&mut launcher, stream, capture)?;
        let plan = plan::collective(rank, &mut launcher, &request, stream, capture)?;
        let routes = connect::collective(rank, &mut launcher, registered)?;
        let mut arguments = bind::collective(rank, call, registered, routes);
        launch::launch(
            rank,
            &mut launcher,
            launch::Launch { plan: &plan, stream, capture },
            &mut arguments,
        )
    };
    // All ranks have agreed on the call and would wait for this one.
    enqueue().map_err(|error| rank.fail(error))
}

/// Refuses a stream on which the other end of one of the group's messages stands.
fn claim_messages(rank: &ConnectedRank, call: &GroupCall, stream: &Arc<CudaStream>) -> Result<()> {
    let neighbours = rank.process.ranks_beside(&rank.state);
    if neighbours.is_empty() {
        return Ok(());
    }
    let ends = call.transfers.iter().map(|one| (one.direction, Rank(one.peer)));
    let ends = ends.filter(|(_, peer)| neighbours.contains(peer));
    rank.process.streams.claim_messages(rank.rank(), stream, ends)
}

/// Makes the call of a group of sends and receives. Whoever calls it keeps the memory until
/// `stream` has passed the call.
///
/// # Errors
/// Those of [`Group::launch`](super::Group::launch).
pub(super) fn group(
    rank: &ConnectedRank,
    call: &GroupCall,
    stream: &Arc<CudaStream>,
) -> Result<()> {
    let span = tracing::debug_span!(
        "group",
        rank = rank.rank().0,
        sequence = field::Empty,
        transfers = call.transfers.len()
    );
    let _entered = span.enter();
    check::group(rank, call)?;
    let mut launcher = rank.launcher();
    span.record("sequence", launcher.launches());
    let capture = check::capture(rank, "a group of sends and receives", stream)?;
    make_room(rank, &mut launcher, capture)?;
    // Before the ranks agree: the other ranks do not know yet of a group that is refused here.
    let plan = plan::group(rank, &launcher, call, capture)?;
    claim_messages(rank, call, stream)?;
    agree::group(rank, call)?;
    let enqueue = || {
        launch::enter(&mut launcher, stream, capture)?;
        let plan = plan::resident(&mut launcher, plan, stream, capture)?;
        let mut arguments = bind::group(rank, &mut launcher, call, stream, capture)?;
        launch::launch(
            rank,
            &mut launcher,
            launch::Launch { plan: &plan, stream, capture },
            &mut arguments,
        )
    };
    enqueue().map_err(|error| rank.fail(error))
}

/// Waits until one more may be launched. What is captured is launched by whoever launches the
/// graph; it needs room for its plan.
fn make_room(rank: &ConnectedRank, launcher: &mut Launcher, capture: Option<u64>) -> Result<()> {
    match capture {
        None => launcher.make_room(rank.settings.wait_timeout, || rank.check()),
        Some(_) => launcher.plans.check_kept_room(),
    }
}
