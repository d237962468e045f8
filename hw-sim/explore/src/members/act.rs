//! What processes of a run of members do, and in which job.

use std::time::Duration;

/// Which job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Job {
    World,
    Part(u32),
    /// Of those that are left.
    Rest,
}

impl Job {
    pub fn number(self) -> u32 {
        match self {
            Self::World => 0,
            Self::Part(part) => 1 + part,
            Self::Rest => 99,
        }
    }
}

/// What a process does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Join(Job),
    Gather(Job, u32),
    /// Ranks tell each other where their memory lies.
    Meet(Job),
    /// A collective on GPUs.
    Call(Job, u32),
    /// The rank's kernels end, and it leaves its engine.
    Close(Job),
    /// It is there for so long, and does nothing; for ever where no time is given.
    Stay(Job, Option<Duration>),
    Leave(Job),
}

impl Act {
    pub fn job(self) -> Job {
        match self {
            Self::Join(job)
            | Self::Gather(job, _)
            | Self::Meet(job)
            | Self::Call(job, _)
            | Self::Close(job)
            | Self::Stay(job, _)
            | Self::Leave(job) => job,
        }
    }
}
