//! What can be seen without playing: lists of blocks, numbers of counters, collectives of all
//! ranks.

use super::{Rank, raisers};
use crate::communicator::Collective;
use crate::program::error::{Refusal, RefusalKind};
use crate::program::runtime::is_for;
use crate::program::task::{accesses, is_message};
use crate::program::tensor::{TensorId, batches};
use ringdove_kernels::program::{BATCHES, TaskKind};

pub(super) fn check(rank: &Rank<'_>) -> Result<(), Box<Refusal>> {
    let program = rank.program;
    let mut places = vec![0u32; program.tasks.len()];
    let service = program.service.iter().map(|&task| (task, true));
    let blocks = program.blocks.iter().flatten().map(|&task| (task, false));
    for (number, is_service) in service.chain(blocks) {
        let Some(task) = program.tasks.get(number as usize) else {
            return Err(rank.refusal(RefusalKind::Place, number, None));
        };
        let operator = program.operators.get(task.operator as usize);
        let is_call = operator.is_some_and(|operator| operator.collective.is_some())
            && task.operands[..2].iter().all(Option::is_some);
        let is_collective = task.kind == TaskKind::Collective;
        if is_collective != is_service || is_collective != is_call {
            return Err(rank.refusal(RefusalKind::Service, number, None));
        }
        places[number as usize] += 1;
    }
    if let Some(number) = places.iter().position(|&count| count != 1) {
        return Err(rank.refusal(RefusalKind::Place, number as u32, None));
    }
    check_batches(rank)?;
    let raisers = raisers(program);
    for (number, task) in (0..).zip(&program.tasks) {
        if task.raises.is_some_and(|counter| counter >= program.counters) {
            return Err(rank.refusal(RefusalKind::NoCounter, number, None));
        }
        for wait in &task.waits {
            let raisers = raisers.get(wait.counter as usize).map_or(&[][..], Vec::as_slice);
            let Some(&one) = raisers.first() else {
                return Err(rank.refusal(RefusalKind::NoCounter, number, None));
            };
            if wait.count as usize > raisers.len() {
                return Err(rank.refusal(RefusalKind::Unsatisfiable, number, Some(one)));
            }
            if wait.lag > 1 {
                return Err(rank.refusal(RefusalKind::Lag, number, Some(one)));
            }
        }
    }
    Ok(())
}

/// Batches are read, by tasks that compute, and there are not too many.
fn check_batches(rank: &Rank<'_>) -> Result<(), Box<Refusal>> {
    let program = rank.program;
    let known: Vec<TensorId> = batches(&program.tensors).collect();
    for (number, task) in (0..).zip(&program.tasks) {
        let computes =
            !is_message(task.kind) && !matches!(task.kind, TaskKind::Collective | TaskKind::Keep);
        let Some(operator) = program.operators.get(task.operator as usize) else { continue };
        for access in accesses(task, operator) {
            let place = known.iter().position(|&batch| batch == access.tensor);
            if place.is_some_and(|place| access.writes || !computes || place >= BATCHES) {
                return Err(rank.refusal(RefusalKind::Batch, number, None));
            }
        }
    }
    Ok(())
}

/// The number of ranks that the collectives of a program are for; `None`: any. `known` is what it
/// has to be, where that is known.
pub(super) fn rank_count(rank: &Rank<'_>, known: Option<u32>) -> Result<Option<u32>, Box<Refusal>> {
    let call = |&number: &u32| {
        let task = &rank.program.tasks[number as usize];
        let collective = rank.program.operators.get(task.operator as usize)?.collective?;
        let rows = |place: usize| Some(task.operands[place]?.shape().0);
        Some((number, collective, rows(0)?, rows(1)?))
    };
    let calls: Vec<_> = rank.program.service.iter().filter_map(call).collect();
    let says = |&(number, collective, out, from): &(u32, Collective, u32, u32)| {
        let count = match collective {
            Collective::AllGather => out.checked_div(from)?,
            Collective::ReduceScatter => from.checked_div(out)?,
            _ => return None,
        };
        Some((count, Some(number)))
    };
    let found = known.map(|count| (count, None)).or_else(|| calls.iter().find_map(says));
    let Some((count, other)) = found else { return Ok(None) };
    match calls.iter().find(|(_, collective, out, from)| !is_for(*collective, *out, *from, count)) {
        Some(&(number, ..)) => Err(rank.refusal(RefusalKind::RankCount, number, other)),
        None => Ok(Some(count)),
    }
}

/// All ranks make the same collectives, in one order.
pub(super) fn check_calls(ranks: &[Rank<'_>]) -> Result<(), Box<Refusal>> {
    let Some(first) = ranks.first() else { return Ok(()) };
    let call = |rank: &Rank<'_>, place: usize| {
        let number = *rank.program.service.get(place)?;
        let task = &rank.program.tasks[number as usize];
        let operator = rank.program.operators.get(task.operator as usize)?;
        let [out, from, ..] = task.operands.map(|view| view.map(|view| view.shape()));
        let tensor = task.operands[0].map(|view| view.tensor.0 as usize);
        let element = tensor.and_then(|one| rank.program.tensors.get(one)).map(|one| one.element);
        Some((number, (out, from, element, operator.collective, operator.reduction)))
    };
    for rank in &ranks[1..] {
        let count = first.program.service.len().max(rank.program.service.len());
        for place in 0..count {
            let (expected, seen) = (call(first, place), call(rank, place));
            if expected.map(|(_, call)| call) == seen.map(|(_, call)| call) {
                continue;
            }
            let (task, other) = (seen.or(expected), expected.or(seen));
            let number = |found: Option<(u32, _)>| found.map_or(0, |(number, _)| number);
            let mut refusal = rank.refusal(RefusalKind::Ranks, number(task), None);
            refusal.other = Some(first.name(number(other)));
            return Err(refusal);
        }
    }
    Ok(())
}
