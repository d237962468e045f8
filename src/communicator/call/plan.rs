//! The verified plan of a call, encoded, in device memory. It is looked up before it is built.

use super::request::GroupCall;
use crate::communicator::connect::ConnectedRank;
use crate::communicator::state::{
    Encoded, Launcher, PlanKey, PlanShape, PortUse, Prepared, ProcessState,
};
use crate::error::{Error, Result};
use crate::id::AlgorithmKind;
use crate::plan::{
    self, Choice, CollectiveRequest, Limits, PlanError, PortResolver, Verified, VerifyError,
};
use crate::settings::Algorithms;
use std::sync::Arc;

/// The plan of a collective: where it is in device memory, or what must go there.
///
/// # Errors
/// [`Error::System`] for a fault of the library.
pub(super) fn collective<'a>(
    rank: &ConnectedRank,
    launcher: &Launcher,
    request: &'a CollectiveRequest,
    capture: Option<u64>,
) -> Result<Prepared<'a>> {
    launcher.plans.prepare(PlanKey::Collective(request), capture, || {
        if let Some(verified) = of_file(rank, request)? {
            return encode(rank, &verified, OF_FILE);
        }
        let choice = choose(rank, request).map_err(|e| internal("plan", &e))?;
        let Choice { algorithm, blocks, rounds, .. } = choice;
        let (bytes, collective) = (request.bytes, request.collective.name());
        tracing::debug!(collective, bytes, ?algorithm, blocks, rounds);
        if rank.process.is_first(collective, algorithm.name()) {
            let algorithm = algorithm.name();
            tracing::info!(collective, bytes, algorithm, blocks, "first call of this kind");
        }
        let refused = |error: VerifyError| internal("plan", &error);
        let proved = |choice: &Choice| {
            let proof = || plan::verify(plan::build(choice), &choice.request.promise());
            rank.process.plans.plan(request, || proof().map_err(refused))
        };
        // A rank's own part is of no use to others.
        let own_part = || plan::own_part(&choice, rank.rank().0).map(Arc::new).map_err(refused);
        let verified = match (plan::is_proved(&choice), plan::stand_in(&choice)) {
            (true, None) => proved(&choice)?,
            (true, Some(stand_in)) => proved(&stand_in).and_then(|_| own_part())?,
            (false, _) => own_part()?,
        };
        encode(rank, &verified, algorithm.name())
    })
}

/// The name of plans from files, where algorithms have theirs.
const OF_FILE: &str = "plan-file";

/// The plan of a file, where a setting names one that fits. All ranks decide alike: they have the
/// same files and the same lanes.
fn of_file(rank: &ConnectedRank, request: &CollectiveRequest) -> Result<Option<Arc<Verified>>> {
    let process = &rank.process;
    let Some(files) = process.plan_files() else { return Ok(None) };
    let limits = process.limits(process.geometry.slot_bytes);
    // Expressions of reductions are those of the library's own plans.
    if request.collective.reduces() && process.geometry.reproducible {
        return Ok(None);
    }
    let lanes = process.limits_of_trees();
    let is_stored = |from, to| process.stores_reach(from, to);
    let found = files.find(request, &limits, &lanes, &is_stored);
    let Some((path, verified)) = found else { return Ok(None) };
    let (bytes, collective) = (request.bytes, request.collective.name());
    if process.is_first(collective, OF_FILE) {
        let file = path.display();
        tracing::info!(collective, bytes, %file, "first call of this kind, by the plan of a file");
    }
    Ok(Some(verified))
}

/// The name under which it is remembered that a warning has told of a missing plan.
const NOT_BY_NAME: &str = "not by name";

/// How a collective is done: by a plan of the kind that a setting names; by the plan that the
/// cost model prefers, where it is asked (of all-reduces on a node, and where there are packed
/// trees and nobody forbids them); else as selection says. All ranks choose alike.
fn choose(rank: &ConnectedRank, request: &CollectiveRequest) -> Result<Choice, PlanError> {
    let process = &rank.process;
    if let Some(choice) = process.modelled(request)? {
        return Ok(choice);
    }
    let limits = process.limits(process.geometry.slot_bytes);
    if let Algorithms::Only(kind) = process.geometry.algorithm {
        return choose_by_name(process, request, &limits, kind);
    }
    let forest = process.asks_for_trees(request).then(|| process.forest(request)).flatten();
    let Some(forest) = forest else { return plan::select(request, &limits) };
    let mut candidates = plan::candidates(request, &limits)?;
    candidates.push(plan::select_packed(request, &process.limits_of_trees(), &forest)?);
    Ok(candidates.swap_remove(process.chosen(&candidates)))
}

/// A plan of this kind; where ranks have none, the one that selection says, with a warning.
fn choose_by_name(
    process: &ProcessState,
    request: &CollectiveRequest,
    limits: &Limits,
    kind: AlgorithmKind,
) -> Result<Choice, PlanError> {
    let mut candidates = plan::candidates(request, limits)?;
    let nth = plan::choose_of(kind, &candidates);
    let choice = match nth {
        Some(nth) => candidates.swap_remove(nth),
        None => plan::select(request, &process.limits_of_table())?,
    };
    let moves = request.rank_count > 1 && request.bytes > 0;
    let (bytes, collective) = (request.bytes, request.collective.name());
    if nth.is_none() && moves && process.is_first(collective, NOT_BY_NAME) {
        let (asked, taken) = (kind, choice.algorithm.name());
        tracing::warn!(collective, bytes, %asked, taken, "ranks have no such plan for this call");
    }
    Ok(choice)
}

/// The plan of a group: where it is in device memory, or what must go there.
///
/// # Errors
/// [`Error::Argument`] for transfers that do not match, and for a group whose plan is too large.
pub(super) fn group<'a>(
    rank: &ConnectedRank,
    launcher: &Launcher,
    call: &'a GroupCall,
    capture: Option<u64>,
) -> Result<Prepared<'a>> {
    launcher.plans.prepare(PlanKey::Group(&call.transfers), capture, || {
        let geometry = &rank.process.geometry;
        let limits = rank.process.limits(geometry.pair_slot_bytes);
        let group = plan::group(rank.rank().0, geometry.rank_count, &call.transfers, &limits)
            .map_err(|error| Error::argument("group", "transfers that match", error))?;
        let verified = plan::verify(group.plan, &group.promise);
        let verified = verified.map_err(|error| internal("group's plan", &error))?;
        encode(rank, &verified, "messages")
    })
}

/// This rank's part of a plan, as the executor reads it.
fn encode(rank: &ConnectedRank, plan: &Verified, name: &'static str) -> Result<Encoded> {
    let own = rank.rank().0;
    let bytes = plan.encode(own, rank).map_err(|e| internal("plan", &e))?;
    let mut ports: Vec<PortUse> = plan
        .ports(own)
        .filter_map(|(block, end)| rank.port(end).map(|port| PortUse { port, block }))
        .collect();
    ports.sort_unstable();
    let memory = &rank.state.memory;
    let wants_engine = ports.iter().any(|place| !memory.is_stored(place.port));
    let (blocks, threads) = (plan.block_count(own), plan.plan().thread_count);
    let (ports, scratch_bytes) = (ports.into(), plan.plan().scratch_bytes(own));
    let reaches_peers = plan.plan().reaches_peers();
    let shape =
        PlanShape { name, blocks, threads, ports, wants_engine, scratch_bytes, reaches_peers };
    Ok(Encoded { bytes, shape })
}

/// A fault of the library itself, as an error instead of a panic.
fn internal(what: &str, error: &dyn std::fmt::Display) -> Error {
    Error::System {
        what: format!("internal error in a {what}; please report it"),
        cause: error.to_string(),
    }
}
