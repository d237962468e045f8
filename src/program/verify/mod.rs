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
//! 6. **Messages**: each is sent and awaited once in every iteration. What is put into another
//!    rank's memory comes when all that used the data there has ended, and is used there when its
//!    message has come. For this the clocks of all ranks know of one another.
//!
//! A wait for a part of a counter orders nothing here: nobody knows which tasks raised it.

mod clocks;
mod memory;
mod messages;
mod order;
mod structure;

use super::error::{ProgramError, Refusal, RefusalKind};
use super::plan::Program;
use crate::error::TaskName;
use clocks::Clocks;
use messages::Messages;

/// A program that was verified, with those of all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Verified {
    program: Program,
    /// The ranks that it was verified for; `None`: any number that its all-to-alls and broadcasts
    /// allow, all with this program.
    rank_count: Option<u32>,
    messages: Option<Exchange>,
}

/// What a rank that exchanges messages has to know of the others.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Exchange {
    /// The rank whose program it is.
    pub rank: u32,
    /// Bytes of tensors, of the rank that has most.
    pub bytes: u64,
    /// The tasks that send the messages that tasks of this program wait for: by these, in their
    /// order.
    pub senders: Vec<(u32, TaskName)>,
}

impl Verified {
    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    pub(super) fn messages(&self) -> Option<&Exchange> {
        self.messages.as_ref()
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
    let (rank_count, exchanges) = check(&programs, Some(programs.len() as u32))?;
    let verified = |(program, messages)| Verified { program, rank_count, messages };
    Ok(programs.into_iter().zip(exchanges).map(verified).collect())
}

/// Verifies a program that all ranks run alike. It has no messages, which name other ranks.
///
/// # Errors
/// As [`verify`].
pub fn verify_same(program: Program) -> Result<Verified, ProgramError> {
    let (rank_count, _) = check(std::slice::from_ref(&program), None)?;
    Ok(Verified { program, rank_count, messages: None })
}

/// Checks the programs of so many ranks; of any number where that is not known. Gives what is known
/// of their number then, and of the messages of each.
fn check(
    programs: &[Program],
    known: Option<u32>,
) -> Result<(Option<u32>, Vec<Option<Exchange>>), ProgramError> {
    let refused = |refusal: Box<Refusal>| ProgramError::Refused(refusal);
    let ranks: Vec<Rank<'_>> =
        (0..).zip(programs).map(|(rank, program)| Rank { rank, program }).collect();
    let mut rank_count = known;
    for rank in &ranks {
        structure::check(rank).map_err(refused)?;
        rank_count = structure::rank_count(rank, rank_count).map_err(refused)?;
    }
    structure::check_calls(&ranks).map_err(refused)?;
    let messages = Messages::of(&ranks, known.is_some()).map_err(refused)?;
    let clocks = Clocks::play(&ranks, &messages).map_err(refused)?;
    for (rank, clocks) in ranks.iter().zip(&clocks) {
        order::check(rank, clocks).map_err(refused)?;
    }
    messages.check(&ranks, &clocks).map_err(refused)?;
    let bytes = programs.iter().map(|program| program.memory.bytes).max().unwrap_or(0);
    let exchange = |rank: &Rank<'_>| Exchange {
        rank: rank.rank,
        bytes,
        senders: messages.senders(rank.rank, &ranks),
    };
    let exchanges = ranks.iter().map(|rank| (!messages.is_empty()).then(|| exchange(rank)));
    Ok((rank_count, exchanges.collect()))
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
        let (rank, task) = (self.rank, self.name(task));
        Box::new(Refusal { rank, kind, task, other, other_rank: rank })
    }

    /// The same, where the other task is another rank's.
    fn refusal_with(
        &self,
        kind: RefusalKind,
        task: u32,
        (rank, other): (&Rank<'_>, u32),
    ) -> Box<Refusal> {
        let refusal = *self.refusal(kind, task, None);
        let (other, other_rank) = (Some(rank.name(other)), rank.rank);
        Box::new(Refusal { other, other_rank, ..refusal })
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
