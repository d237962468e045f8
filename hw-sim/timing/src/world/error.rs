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
        /// The missing item.
        section: &'static str,
        /// Who needs it.
        what: &'static str,
    },
    /// The runs of one prediction have more ops than it may play.
    #[error(
        "the prediction would take too long: this size has {wanted} ops to play, the sizes before \
         it had {taken}, and all together may have at most {most}. Predict fewer sizes or ranks, \
         use larger slots or fewer blocks, or raise --ops-max"
    )]
    TooManyOps {
        /// Of this run.
        wanted: u64,
        /// Of runs that have started or ended.
        taken: u64,
        /// The bound.
        most: u64,
    },
    /// The run did not end within its bound of ops and events.
    #[error(
        "the plan has not ended after {steps} ops and events, at modelled time {at}; larger slots \
         or fewer blocks reduce its rounds"
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
         lane {from} to {to}, seen {seen}; {others} more blocks wait"
    )]
    Stuck {
        /// When nothing moved any more.
        at: Time,
        /// The first block that waits.
        rank: u32,
        /// Its number, counted over all ranks.
        block: u32,
        /// Kind of the signal.
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
