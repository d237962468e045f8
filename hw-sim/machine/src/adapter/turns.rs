//! Who carries out what comes to a queue pair that processes share ([`super::sharing`]).

use crate::fabric::ProcessId;

/// How a process takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turns {
    /// It has made the queue pair.
    Owner,
    /// Another process has.
    Deputy { owner: ProcessId },
}
