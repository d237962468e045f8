//! The way of a call: check, agree, plan, connect, bind, launch. Each step is a module with one
//! job, and [`enqueue`] is the whole way, also of several calls that are made together.
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
//! * `launch`: in the order of calls, on the caller's stream, several at a time where possible
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
pub(super) use request::{Call, Calls, GroupCall, Shape};

use super::connect::ConnectedRank;
use super::state::{Launcher, RegisteredPlace};
use crate::error::Result;
use crate::id::Rank;
use cudarc::driver::CudaStream;
use launch::{Batch, Memory, Step};
use smallvec::SmallVec;
use std::sync::Arc;
use tracing::field;

/// Makes calls, the collectives in their order, then the group of sends and receives. Whoever calls
/// it keeps the memory until `stream` has passed the calls.
///
/// # Errors
/// Those of [`Communicator::all_reduce`](super::Communicator::all_reduce) and of
/// [`Group::launch`](super::Group::launch).
pub(super) fn enqueue(
    rank: &ConnectedRank,
    calls: &Calls<'_>,
    stream: &Arc<CudaStream>,
) -> Result<()> {
    let span = span(rank, calls);
    let _entered = span.enter();
    let mut checked: Each<check::Checked> = SmallVec::new();
    for call in calls.collectives {
        checked.push(check::collective(rank, call, stream)?);
    }
    if let Some(group) = calls.messages {
        check::group(rank, group)?;
    }
    // Held to the end: calls take effect in the order in which they come here.
    let mut launcher = rank.launcher();
    span.record("sequence", launcher.launches());
    let capture = check::capture(rank, calls.name(), stream)?;
    make_room(rank, &mut launcher, capture)?;
    // Before the ranks agree: the other ranks do not know yet of a group that is refused here.
    let turn = launcher.plans.turn();
    let messages = match calls.messages {
        Some(group) => Some((group, plan::group(rank, &launcher, group, capture)?)),
        None => None,
    };
    claim(rank, &launcher, calls, stream)?;
    let mut places: Each<Option<[RegisteredPlace; 2]>> = SmallVec::new();
    for (call, checked) in calls.collectives.iter().zip(&checked) {
        places.push(check::registered(rank, &launcher, call, checked)?);
    }
    if capture.is_some() {
        places.iter().try_for_each(|registered| check::captured(rank, *registered))?;
    }
    if let Some(group) = calls.messages {
        agree::group(rank, group)?;
    }
    for (call, registered) in calls.collectives.iter().zip(&places) {
        agree::collective(rank, &mut launcher, call, *registered)?;
    }
    let collectives = calls.collectives.iter().zip(places).filter(|(call, _)| !call.is_empty());
    let mut collectives = collectives.peekable();
    if messages.is_none() && collectives.peek().is_none() {
        return Ok(());
    }
    let enqueue = || {
        let mut batch = Batch::enter(rank, &mut launcher, stream, capture)?;
        for (call, registered) in collectives {
            let request = call.request(rank.rank().0, rank.rank_count(), registered.is_some());
            let plan = plan::collective(rank, &launcher, &request, capture)?;
            if launcher.plans.displaces(&plan, capture) {
                batch.launch(&mut launcher)?;
            }
            let plan = plan::resident(&mut launcher, plan, stream, capture)?;
            let routes = connect::collective(rank, &mut launcher, registered)?;
            let arguments = bind::collective(call, registered, routes);
            let memory = Memory::of(rank, call);
            batch.add(&mut launcher, Step { plan, arguments, memory })?;
        }
        if let Some((group, plan)) = messages {
            let plan = match launcher.plans.turn() == turn {
                true => plan,
                // Those of the collectives may have taken its place.
                false => plan::group(rank, &launcher, group, capture)?,
            };
            if launcher.plans.displaces(&plan, capture) {
                batch.launch(&mut launcher)?;
            }
            let plan = plan::resident(&mut launcher, plan, stream, capture)?;
            let arguments = bind::group(&mut launcher, group, stream, capture)?;
            let memory = Memory::Messages(group);
            batch.add(&mut launcher, Step { plan, arguments, memory })?;
        }
        batch.launch(&mut launcher)
    };
    // All ranks have agreed on the calls and would wait for this one.
    enqueue().map_err(|error| rank.fail(error))
}

/// One value for each collective; mostly there is one.
type Each<T> = SmallVec<[T; 1]>;

fn span(rank: &ConnectedRank, calls: &Calls<'_>) -> tracing::Span {
    let rank = rank.rank().0;
    match (calls.collectives, calls.messages) {
        ([call], None) => tracing::debug_span!(
            "collective",
            operation = call.shape.collective.name(),
            rank,
            sequence = field::Empty,
            count = call.shape.count
        ),
        (collectives, messages) => tracing::debug_span!(
            "group",
            rank,
            sequence = field::Empty,
            collectives = collectives.len(),
            transfers = messages.map_or(0, |group| group.transfers.len())
        ),
    }
}

/// Refuses a stream on which another rank's part of a collective, or the other end of a message,
/// stands.
fn claim(
    rank: &ConnectedRank,
    launcher: &Launcher,
    calls: &Calls<'_>,
    stream: &Arc<CudaStream>,
) -> Result<()> {
    let streams = &rank.process.streams;
    if let Some(group) = calls.messages {
        let neighbours = rank.process.ranks_beside(&rank.state);
        if !neighbours.is_empty() {
            let ends = group.transfers.iter().map(|one| (one.direction, Rank(one.peer)));
            let ends = ends.filter(|(_, peer)| neighbours.contains(peer));
            streams.claim_messages(rank.rank(), stream, ends)?;
        }
    }
    if !calls.collectives.is_empty() && rank.process.ranks_on(&rank.state.context) > 1 {
        let first = launcher.collective();
        let numbers = first..first + calls.collectives.len() as u64;
        streams.claim(rank.rank(), stream, numbers)?;
    }
    Ok(())
}

/// Waits until one more may be launched. What is captured is launched by whoever launches the
/// graph; it needs room for its plan.
fn make_room(rank: &ConnectedRank, launcher: &mut Launcher, capture: Option<u64>) -> Result<()> {
    match capture {
        None => launcher.make_room(rank.settings.wait_timeout, || rank.check()),
        Some(_) => launcher.plans.check_kept_room(),
    }
}
