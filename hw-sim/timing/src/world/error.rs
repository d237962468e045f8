//! Why there is no modelled time.

use crate::machine::MachineError;
use crate::program::ProgramError;
use crate::time::Time;

/// Why there is no modelled time.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// A program makes no sense.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The machine has no way for a lane.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// More ranks than GPUs.
    #[error("the plan has {ranks} ranks, and machine {machine} has {gpus} GPUs")]
    TooFewGpus {
        /// Ranks of the plan.
        ranks: u32,
        /// The machine.
        machine: String,
        /// GPUs of the machine.
        gpus: usize,
    },
    /// The engine needs constants that the profile does not have.
    #[error("profile {profile} has no section [{section}], which {what} needs")]
    NoSection {
        /// The profile.
        profile: String,
        /// What is missing.
        section: &'static str,
        /// Who needs it.
        what: &'static str,
    },
    /// More work than anybody will wait for.
    #[error(
        "the plan is not done after {steps} ops and events, at {at} of its own time; with fewer \
         rounds (larger slots, fewer blocks) it has fewer"
    )]
    TooLong {
        /// The bound.
        steps: u64,
        /// How far it came.
        at: Time,
    },
    /// Blocks wait for what never comes.
    #[error(
        "the plan is stuck at {at}: rank {rank} block {block} waits for {signal} {expected} of \
         lane {from} to {to}, and {seen} came; {others} more blocks wait"
    )]
    Stuck {
        /// When nothing moved any more.
        at: Time,
        /// The first block that waits.
        rank: u32,
        /// Its number, counted over all ranks.
        block: u32,
        /// What it waits for.
        signal: &'static str,
        /// How many of them.
        expected: i64,
        /// The lane.
        from: u32,
        /// The lane.
        to: u32,
        /// How many came.
        seen: u64,
        /// How many others wait.
        others: usize,
    },
}
