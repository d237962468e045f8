//! What ops have in common: the port and the range that they name, and what is left out of files.

use super::{Op, PortIndex, Range};

pub(super) fn one_message() -> u16 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
pub(super) fn is_one_message(messages: &u16) -> bool {
    *messages == 1
}

impl Op {
    /// The port that the op itself names, or the first of several (operands may name others).
    pub fn port(&self) -> Option<PortIndex> {
        match *self {
            Self::Copy { .. } | Self::Reduce { .. } | Self::InSwitch(_) => None,
            Self::Collect { first, .. } => Some(first),
            Self::Pack { port, .. }
            | Self::Put { port, .. }
            | Self::Credit { port, .. }
            | Self::Grant { port, .. }
            | Self::WaitSignal { port, .. }
            | Self::WaitCompletion { port, .. }
            | Self::Advance { port, .. } => Some(port),
        }
    }

    /// The op's range, if it handles data.
    pub fn range(&self) -> Option<Range> {
        match *self {
            Self::Copy { range, .. }
            | Self::Reduce { range, .. }
            | Self::Pack { range, .. }
            | Self::Collect { range, .. }
            | Self::Put { range, .. } => Some(range),
            Self::InSwitch(work) => Some(work.range()),
            _ => None,
        }
    }
}
