//! Names for the numbers that a failed wait has left.

use super::Window;
use crate::error::{Error, StuckTask, TaskName};
use crate::id::Rank;
use crate::program::plan::Program;
use crate::program::task::is_message;
use ringdove_kernels::launch::WaitKind;
use ringdove_kernels::program::NO_COUNTER;

/// The error, with the names of tasks where it was a wait of a task.
pub(super) fn named(error: Error, program: &Program, window: Option<&Window>, done: u64) -> Error {
    let Error::WaitExpired(wait) = &error else { return error };
    if wait.kind != Some(WaitKind::Counter) {
        return error;
    }
    let record = &wait.record;
    let raises = |number: &u32| program.tasks[*number as usize].raises == Some(record.op);
    let raisers: Vec<u32> = (0..program.tasks.len() as u32).filter(raises).collect();
    // A message, which has no counter.
    let peer = program.tasks.get(record.segment as usize).filter(|task| is_message(task.kind));
    let sender =
        peer.and_then(|task| Some((Rank(task.option), window?.sender(record.segment)?.clone())));
    Error::StuckTask(Box::new(StuckTask {
        rank: wait.rank,
        block: record.block,
        waits: place(program, record.segment),
        counter: record.op,
        expected: record.expected,
        seen: record.seen,
        iteration: record.position,
        raiser: raisers.first().and_then(|&task| place(program, task)),
        raisers: raisers.len() as u32,
        sender: sender.filter(|_| record.op == NO_COUNTER).map(Box::new),
        done,
    }))
}

pub(super) fn place(program: &Program, task: u32) -> Option<TaskName> {
    let record = program.tasks.get(task as usize)?;
    let operator = &program.operators[record.operator as usize];
    Some(TaskName { number: task, operator: operator.name.clone(), tile: task - operator.tasks.0 })
}
