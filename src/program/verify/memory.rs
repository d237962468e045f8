//! Tensors that lie in the same bytes: each has been used for the last time before another one is
//! used for the first, in this iteration and the next.

use super::Rank;
use super::clocks::Clocks;
use super::order::Use;
use crate::program::error::{Refusal, RefusalKind};
use crate::program::memory::may_share;
use std::collections::{HashMap, HashSet};

type Result = std::result::Result<(), Box<Refusal>>;

/// What uses a tensor: its first and last task, and all of them.
struct Users<'a> {
    first: u32,
    last: u32,
    uses: &'a [Use],
}

/// `uses`: of each tensor.
pub(super) fn check(rank: &Rank<'_>, clocks: &Clocks, uses: &[Vec<Use>]) -> Result {
    let program = rank.program;
    let of = |number: usize| -> Option<Users<'_>> {
        let uses = &uses[number];
        let first = uses.iter().map(|one| one.task).min()?;
        let last = uses.iter().map(|one| one.task).max()?;
        Some(Users { first, last, uses })
    };
    let is_placed = |number: usize| program.memory.range(&program.tensors, number).is_some();
    if let Some(number) = (0..program.tensors.len()).find(|&number| !is_placed(number)) {
        let task = of(number).map_or(0, |users| users.first);
        return Err(rank.refusal(RefusalKind::Memory, task, None));
    }
    let key = |number: usize| of(number).map(|users| users.first);
    let mut proved = HashSet::new();
    for stretch in program.memory.stretches(&program.tensors, key) {
        // Nobody writes what no task uses, but for the host.
        let is_used =
            |number: &usize| of(*number).is_some() || !may_share(&program.tensors[*number]);
        let stretch: Vec<usize> = stretch.into_iter().filter(is_used).collect();
        let neighbours = stretch.windows(2).map(|pair| (pair[0], pair[1], 0));
        let ends = stretch.first().zip(stretch.last()).filter(|(first, last)| first != last);
        let again = ends.map(|(first, last)| (*last, *first, 1));
        for (before, behind, at) in neighbours.chain(again) {
            if !proved.insert((before, behind, at)) {
                continue;
            }
            if let Some(host) = [before, behind].into_iter().find(|one| !is_task_only(rank, *one)) {
                let other = if host == before { behind } else { before };
                let task = of(other).or(of(host)).map_or(0, |users| users.first);
                return Err(rank.refusal(RefusalKind::Shared, task, None));
            }
            if let Some((before, behind)) = of(before).zip(of(behind)) {
                apart(rank, clocks, (&before, &behind), at)?;
            }
        }
    }
    Ok(())
}

fn is_task_only(rank: &Rank<'_>, number: usize) -> bool {
    may_share(&rank.program.tensors[number])
}

/// Has all that uses one tensor in the first iteration ended when anything begins to use the other
/// one in the iteration `at`?
fn apart(
    rank: &Rank<'_>,
    clocks: &Clocks,
    (before, behind): (&Users<'_>, &Users<'_>),
    at: usize,
) -> Result {
    if at == 0 && before.last >= behind.first {
        return Err(rank.refusal(RefusalKind::Shared, behind.first, Some(before.last)));
    }
    // Of each list, the last task stands for those before it.
    let mut last: HashMap<u32, (u32, u32)> = HashMap::new();
    for one in before.uses {
        let (list, place) = clocks.place(one.task);
        let known = last.entry(list).or_insert((place, one.task));
        *known = (*known).max((place, one.task));
    }
    for one in behind.uses {
        for &(_, other) in last.values() {
            if !clocks.is_before((other, 0), (one.task, at)) {
                let kind = match at {
                    0 => RefusalKind::Unordered,
                    _ => RefusalKind::UnorderedIterations,
                };
                return Err(rank.refusal(kind, one.task, Some(other)));
            }
        }
    }
    Ok(())
}
