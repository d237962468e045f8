//! The verifier: is what the blocks do, in any order that their waits allow, the same as the tasks
//! one after the other, iteration after iteration?
//!
//! 1. **Structure**: each task stands in one list; waits name counters that are raised, as often as
//!    they ask for, in this iteration or the one before.
//! 2. **No deadlock**: two iterations are played on all ranks at once. A task is played when its
//!    block has come to it and its counters are complete; a collective, when it is on all ranks.
//!    What can never be played is named with what it waits for. Counters only rise and blocks have
//!    fixed lists, so whatever one order of play completes, every other one completes too.
//! 3. **Order**: with each task goes the number of steps of each block that have ended when it
//!    begins (a vector clock). Whatever writes data that another task uses must have ended before
//!    it or begin behind it, as the order of tasks says; and in the next iteration likewise. Later
//!    iterations are shifted copies: the kernel begins none before the one two before has ended.
//! 4. **Written before it is read**: what tasks write first, they write in the same iteration.
//! 5. **Memory**: where tensors lie in the same bytes, all that uses one of them has ended before
//!    anything uses the next, also across iterations; and none of them is the host's.
//!
//! A wait for a part of a counter orders nothing here: nobody knows which tasks raised it.

mod clocks;
mod memory;
mod order;
mod structure;

use super::error::{ProgramError, Refusal, RefusalKind};
use super::plan::Program;
use crate::error::TaskName;
use clocks::Clocks;

/// A program that was verified, with those of all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Verified {
    program: Program,
    /// The ranks that it was verified for; `None`: any number that its all-to-alls and broadcasts
    /// allow, all with this program.
    rank_count: Option<u32>,
}

impl Verified {
    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The number of ranks that it was verified for, if that matters.
    pub fn rank_count(&self) -> Option<u32> {
        self.rank_count
    }
}

/// Verifies the programs of all ranks, by rank.
///
/// # Errors
/// [`ProgramError::Refused`] names the two tasks.
pub fn verify(programs: Vec<Program>) -> Result<Vec<Verified>, ProgramError> {
    let rank_count = check(&programs, Some(programs.len() as u32))?;
    Ok(programs.into_iter().map(|program| Verified { program, rank_count }).collect())
}

/// Verifies a program that all ranks run alike.
///
/// # Errors
/// As [`verify`].
pub fn verify_same(program: Program) -> Result<Verified, ProgramError> {
    let rank_count = check(std::slice::from_ref(&program), None)?;
    Ok(Verified { program, rank_count })
}

/// Checks the programs of so many ranks; of any number where that is not known. Gives what is known
/// of their number then.
fn check(programs: &[Program], known: Option<u32>) -> Result<Option<u32>, ProgramError> {
    let refused = |refusal: Box<Refusal>| ProgramError::Refused(refusal);
    let ranks: Vec<Rank<'_>> =
        (0..).zip(programs).map(|(rank, program)| Rank { rank, program }).collect();
    let mut rank_count = known;
    for rank in &ranks {
        structure::check(rank).map_err(refused)?;
        rank_count = structure::rank_count(rank, rank_count).map_err(refused)?;
    }
    structure::check_calls(&ranks).map_err(refused)?;
    let clocks = Clocks::play(&ranks).map_err(refused)?;
    for (rank, clocks) in ranks.iter().zip(&clocks) {
        order::check(rank, clocks).map_err(refused)?;
    }
    Ok(rank_count)
}

/// A rank's program, for messages.
struct Rank<'a> {
    rank: u32,
    program: &'a Program,
}

impl Rank<'_> {
    fn name(&self, number: u32) -> TaskName {
        let known = self.program.tasks.get(number as usize);
        let operator = known.and_then(|task| self.program.operators.get(task.operator as usize));
        let (name, first) = match operator {
            Some(operator) => (operator.name.clone(), operator.tasks.0),
            None => ("unknown".to_owned(), number),
        };
        TaskName { number, operator: name, tile: number.saturating_sub(first) }
    }

    fn refusal(&self, kind: RefusalKind, task: u32, other: Option<u32>) -> Box<Refusal> {
        let other = other.map(|other| self.name(other));
        Box::new(Refusal { rank: self.rank, kind, task: self.name(task), other })
    }
}

/// The tasks that raise each counter.
fn raisers(program: &Program) -> Vec<Vec<u32>> {
    let mut raisers = vec![Vec::new(); program.counters as usize];
    for (number, task) in (0..).zip(&program.tasks) {
        if let Some(list) = task.raises.and_then(|counter| raisers.get_mut(counter as usize)) {
            list.push(number);
        }
    }
    raisers
}
