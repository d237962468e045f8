//! Waits of resident programs that ended without what they waited for.

use crate::id::Rank;
use std::fmt;

/// A task of a program, as errors name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskName {
    /// Its number in the program.
    pub number: u32,
    /// Its operator's name.
    pub operator: String,
    /// Its place among the operator's tiles.
    pub tile: u32,
}

impl fmt::Display for TaskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {} ('{}', tile {})", self.number, self.operator, self.tile)
    }
}

/// A task that waited for a counter until the deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckTask {
    /// The rank.
    pub rank: Rank,
    /// Block of the resident launch.
    pub block: u32,
    /// The task that waited; `None`: block 0, for all blocks to end an iteration.
    pub waits: Option<TaskName>,
    /// The counter that it waited for.
    pub counter: u32,
    /// The value that the counter should have come to.
    pub expected: u64,
    /// The value that it had.
    pub seen: u64,
    /// The iteration, from 0.
    pub iteration: u64,
    /// The first of the tasks that raise the counter.
    pub raiser: Option<TaskName>,
    /// How many raise it.
    pub raisers: u32,
    /// Where it waited for a message: the rank and the task that send it. There is no counter then.
    pub sender: Option<Box<(Rank, TaskName)>>,
    /// Iterations that had been done.
    pub done: u64,
}

impl fmt::Display for StuckTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, block, counter, expected, seen, iteration, done, .. } = self;
        match &self.waits {
            Some(task) => write!(f, "{rank}, block {block}: {task}"),
            None => write!(f, "{rank}, block {block}: the end of an iteration"),
        }?;
        match self.sender {
            Some(_) => write!(f, " waited in vain for a message"),
            None => write!(f, " waited in vain for counter {counter}"),
        }?;
        write!(f, " in iteration {iteration}: expected {expected}, seen {seen}")?;
        if let Some((sender, task)) = self.sender.as_deref() {
            return write!(f, "; {task} of {sender} sends it. {done} iterations were done before");
        }
        match &self.raiser {
            Some(first) => write!(f, "; {} tasks from {first} on raise it", self.raisers)?,
            None => write!(f, "; all blocks raise it")?,
        }
        write!(f, ". {done} iterations were done before")
    }
}
