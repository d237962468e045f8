//! Whatever uses data that a task writes is ordered with it, and nothing is read before it is
//! written.

use super::clocks::Clocks;
use super::{Rank, memory};
use crate::program::error::{Refusal, RefusalKind};
use crate::program::task::{Access, accesses};
use crate::program::tensor::{Area, Origin, TensorId};
use ringdove_kernels::program::TaskKind;
use std::collections::HashSet;

/// A task's use of a tensor.
#[derive(Clone, Copy)]
pub(super) struct Use {
    pub task: u32,
    pub area: Area,
    writes: bool,
}

pub(super) fn check(rank: &Rank<'_>, clocks: &Clocks) -> Result<(), Box<Refusal>> {
    chain(rank, clocks)?;
    let all = by_tensor(rank);
    memory::check(rank, clocks, &all)?;
    for (tensor, mut uses) in all.into_iter().enumerate() {
        pairs(rank, clocks, &mut uses)?;
        if rank.program.tensors[tensor].origin == Origin::Tasks {
            written(rank, &uses)?;
        }
    }
    Ok(())
}

/// Each collective has ended on all of its blocks before the next begins on any.
fn chain(rank: &Rank<'_>, clocks: &Clocks) -> Result<(), Box<Refusal>> {
    let service = &rank.program.service;
    let refused = |task, other| Err(rank.refusal(RefusalKind::Lanes, task, Some(other)));
    for pair in service.windows(2) {
        if !clocks.is_before((pair[0], 0), (pair[1], 0)) {
            return refused(pair[1], pair[0]);
        }
    }
    match (service.first(), service.last()) {
        (Some(&first), Some(&last)) if !clocks.is_before((last, 0), (first, 1)) => {
            refused(first, last)
        }
        _ => Ok(()),
    }
}

/// Who uses each tensor.
pub(super) fn by_tensor(rank: &Rank<'_>) -> Vec<Vec<Use>> {
    let program = rank.program;
    let mut all: Vec<Vec<Use>> = vec![Vec::new(); program.tensors.len()];
    for (task, record) in (0..).zip(&program.tasks) {
        for access in accesses(record, &program.operators[record.operator as usize]) {
            let Access { tensor: TensorId(tensor), area, writes } = access;
            all[tensor as usize].push(Use { task, area, writes });
        }
    }
    all
}

/// All pairs that meet, one of which writes: by a sweep over rows.
fn pairs(rank: &Rank<'_>, clocks: &Clocks, uses: &mut [Use]) -> Result<(), Box<Refusal>> {
    if !uses.iter().any(|one| one.writes) {
        return Ok(());
    }
    uses.sort_by_key(|one| one.area.rows.0);
    let (mut readers, mut writers): (Vec<Use>, Vec<Use>) = (Vec::new(), Vec::new());
    for own in uses.iter() {
        let is_open = |other: &Use| other.area.rows.1 > own.area.rows.0;
        writers.retain(is_open);
        writers.iter().try_for_each(|other| ordered(rank, clocks, own, other))?;
        if own.writes {
            readers.retain(is_open);
            readers.iter().try_for_each(|other| ordered(rank, clocks, own, other))?;
            writers.push(*own);
        } else {
            readers.push(*own);
        }
    }
    Ok(())
}

fn ordered(rank: &Rank<'_>, clocks: &Clocks, a: &Use, b: &Use) -> Result<(), Box<Refusal>> {
    if a.task == b.task || !a.area.meets(&b.area) {
        return Ok(());
    }
    let (first, second) = (a.task.min(b.task), a.task.max(b.task));
    if !clocks.is_before((first, 0), (second, 0)) {
        return Err(rank.refusal(RefusalKind::Unordered, second, Some(first)));
    }
    if !clocks.is_before((second, 0), (first, 1)) {
        return Err(rank.refusal(RefusalKind::UnorderedIterations, first, Some(second)));
    }
    Ok(())
}

/// Every read of a tensor without first values is covered by writes of tasks before it. Their order
/// has been proved.
fn written(rank: &Rank<'_>, uses: &[Use]) -> Result<(), Box<Refusal>> {
    // A signal that opens a tensor to another rank writes nothing: the wait for that rank does.
    let writes =
        |one: &&Use| one.writes && rank.program.tasks[one.task as usize].kind != TaskKind::Signal;
    let mut writers: Vec<&Use> = uses.iter().filter(writes).collect();
    writers.sort_by_key(|one| one.task);
    let mut readers: Vec<&Use> = uses.iter().filter(|one| !one.writes).collect();
    readers.sort_by_key(|one| one.task);
    // Tiles share bands of their operands: what one of them finds written, those behind it do.
    let mut proved = HashSet::new();
    for own in readers {
        if !proved.insert(own.area) {
            continue;
        }
        let mut left = vec![own.area];
        let before = writers.iter().take_while(|writer| writer.task < own.task);
        for writer in before.filter(|writer| writer.area.meets(&own.area)) {
            left = left.iter().flat_map(|area| area.without(&writer.area)).collect();
            if left.is_empty() {
                break;
            }
        }
        if !left.is_empty() {
            return Err(rank.refusal(RefusalKind::Unwritten, own.task, None));
        }
    }
    Ok(())
}
