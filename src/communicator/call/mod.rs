//! The way of a call: check, agree, plan, connect, bind, launch. Each step is a module with one
//! job, and [`enqueue`] is the whole way, also of several calls that are made together.
//!
//! A call is a span of `tracing`. Its `sequence` is the number of its launch, which is also in the
//! record of an expired wait.
//!
//! * `request`: a call; `element`: types and reductions
//! * `check`: are the arguments usable? No other rank knows of the call yet
//! * `agree`: do all ranks make the same call?
//! * `cache`: allocations that the library registers by itself
//! * `place`: which sends and receives go from registered memory, or to it, without a copy
//! * `plan`: the verified plan, encoded, in device memory
//! * `connect`: routes between the registered buffers that the call uses
//! * `bind`: addresses and routes, as the kernel takes them
//! * `launch`: in the order of calls, on the caller's stream, several at a time where possible
//! * `resident`: calls that a resident program makes, ready to be launched by it
//! * `windows`: one-sided transfers, which no other rank agrees on
//! * `device_handle`: no call, but what users' kernels need for theirs

mod agree;
mod bind;
mod cache;
pub(super) mod check;
mod connect;
mod device_handle;
mod element;
mod launch;
mod place;
mod plan;
mod request;
mod resident;
mod windows;

pub(super) use check::capture;
pub(super) use device_handle::{Rings, device_handle};
pub use element::{Element, Reduction, Scalar};
pub(super) use request::{Call, Calls, GroupCall, Shape};
pub(crate) use resident::ResidentCalls;
pub(super) use resident::resident_calls;
pub(crate) use windows::{WindowEnd, WindowStep};
pub(super) use windows::{step, window_port};

use super::connect::ConnectedRank;
use super::state::{Launcher, Prepared, RegisteredPlace, Turn};
use crate::error::Result;
use crate::id::Rank;
use cudarc::driver::CudaStream;
use launch::{Batch, Memory, Step};
use ringdove_kernels::launch::LAUNCH_CALLS_MAX;
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
    launcher.check_free(calls.name())?;
    span.record("sequence", launcher.launches());
    let capture = check::capture(rank, calls.name(), stream)?;
    make_room(rank, &mut launcher, stream, capture)?;
    // Before the ranks agree: the other ranks do not know yet of a group that is refused here.
    let turn = launcher.plans.turn();
    place::open_waiting(rank, &launcher, capture);
    let placed = match calls.messages {
        Some(group) => Some(place::group(rank, &mut launcher, group, capture)?),
        None => None,
    };
    let mut messages = match placed.as_deref() {
        Some(group) => Some((group, plan::group(rank, &launcher, group, capture)?)),
        None => None,
    };
    claim(rank, &launcher, calls, stream)?;
    let mut places: Each<Places> = SmallVec::new();
    for (call, checked) in calls.collectives.iter().zip(&checked) {
        places.push(check::registered(rank, &launcher, call, checked)?);
    }
    if capture.is_some() {
        places.iter().try_for_each(|registered| check::captured(rank, *registered))?;
    }
    let mut collectives = calls.collectives.iter().zip(places);
    loop {
        let mut now: Each<(&Call, Places)> = SmallVec::new();
        let mut launched = 0;
        while launched < LAUNCH_CALLS_MAX
            && let Some((call, registered)) = collectives.next()
        {
            launched += usize::from(!call.is_empty());
            now.push((call, registered));
        }
        let is_last = collectives.len() == 0;
        let messages = if is_last { messages.take() } else { None };
        if let Some((group, _)) = messages {
            agree::group(rank, group)?;
        }
        for (call, registered) in &now {
            agree::collective(rank, &mut launcher, call, *registered)?;
        }
        let now = Together { collectives: now, messages, turn };
        // All ranks have agreed on the calls and would wait for this one.
        let enqueued = launch(rank, &mut launcher, now, stream, capture);
        enqueued.map_err(|error| rank.fail(error))?;
        if is_last {
            return Ok(());
        }
        // The others have been told of a part of the calls, and wait for the rest.
        let room = make_room(rank, &mut launcher, stream, capture);
        room.map_err(|error| rank.fail(error))?;
    }
}

/// Input and output in registered buffers, where both are.
type Places = Option<[RegisteredPlace; 2]>;

/// Calls on which all ranks have agreed, as many as one launch may run.
struct Together<'a> {
    collectives: Each<(&'a Call, Places)>,
    messages: Option<(&'a GroupCall, Prepared<'a>)>,
    /// When the plan of the messages was prepared.
    turn: Turn,
}

/// Plan, connect, bind, launch.
fn launch(
    rank: &ConnectedRank,
    launcher: &mut Launcher,
    Together { collectives, messages, turn }: Together<'_>,
    stream: &Arc<CudaStream>,
    capture: Option<u64>,
) -> Result<()> {
    if messages.is_none() && collectives.iter().all(|(call, _)| call.is_empty()) {
        return Ok(());
    }
    let mut batch = Batch::enter(rank, launcher, stream, capture)?;
    for (call, registered) in collectives.into_iter().filter(|(call, _)| !call.is_empty()) {
        let request = call.request(rank.rank().0, rank.rank_count(), registered.is_some());
        if let Some(messages) = place::as_messages(rank, call) {
            let messages = place::group(rank, launcher, &messages, capture)?.into_owned();
            let plan = plan::group(rank, launcher, &messages, capture)?;
            let plan = batch.bring(launcher, plan)?;
            let arguments = bind::group(launcher, &messages, stream, capture)?;
            let memory = Memory::of(rank.rank().0, call, &request, 0..0);
            batch.add(launcher, Step { plan, arguments, memory })?;
            continue;
        }
        let source = place::input(rank, launcher, &request, registered, capture);
        // This rank alone decides where its input is put from.
        let request = match source {
            None if request.may_send_from_input() => request.staged(),
            _ => request,
        };
        let plan = plan::collective(rank, launcher, &request, capture)?;
        let plan = batch.bring(launcher, plan)?;
        let routes = connect::collective(rank, launcher, registered, capture)?;
        let scratch = launcher.scratch(plan.shape.scratch_bytes);
        let mut arguments = bind::collective(call, registered, routes, source, &scratch);
        let reached = (registered, &plan.shape);
        bind::peers(rank, launcher, &mut arguments, reached, (stream, capture))?;
        let memory = Memory::of(rank.rank().0, call, &request, scratch);
        batch.add(launcher, Step { plan, arguments, memory })?;
    }
    if let Some((group, plan)) = messages {
        let plan = match launcher.plans.turn() == turn {
            true => plan,
            // Those of the collectives may have taken its place.
            false => plan::group(rank, launcher, group, capture)?,
        };
        let plan = batch.bring(launcher, plan)?;
        let arguments = bind::group(launcher, group, stream, capture)?;
        let memory = Memory::Messages(group);
        batch.add(launcher, Step { plan, arguments, memory })?;
    }
    batch.launch(launcher)
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
fn make_room(
    rank: &ConnectedRank,
    launcher: &mut Launcher,
    stream: &CudaStream,
    capture: Option<u64>,
) -> Result<()> {
    match capture {
        None => launcher.make_room(stream, rank.settings.wait_timeout, || rank.check()),
        Some(_) => launcher.plans.check_kept_room(),
    }
}
