//! Who carries out what comes to a queue pair that processes share ([`super::sharing`]).

/// How a process takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turns {
    /// It has made the queue pair.
    Maker,
    /// Another process has.
    Guest,
}
