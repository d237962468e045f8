//! Why there is no plan.

/// Why there is no plan for what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A number does not fit.
    #[error("{what}: expected {expected}, got {seen}")]
    Number {
        /// Which number.
        what: &'static str,
        /// What would do.
        expected: &'static str,
        /// What was given.
        seen: u64,
    },
    /// A group receives into memory that it also sends from or receives into elsewhere.
    #[error(
        "rank {rank}: a group's transfers use bytes {:#x}..{:#x} and {:#x}..{:#x}, which overlap, \
         and receive into one of them; transfers of a group have no order, so they need memory of \
         their own",
        first.0, first.1, second.0, second.1
    )]
    Overlap {
        /// The rank.
        rank: u32,
        /// Start and end of the one with the lower address.
        first: (u64, u64),
        /// Start and end of the other.
        second: (u64, u64),
    },
    /// A rank sends to itself without a receive to match, or the other way round, or sizes differ.
    #[error(
        "rank {rank} exchanges with itself: send number {number} has {sent:?} bytes, receive \
         {received:?}; each send of a rank to itself needs a receive of the same size in the group"
    )]
    UnmatchedSelf {
        /// The rank.
        rank: u32,
        /// Which of its transfers to itself, from 0.
        number: usize,
        /// Bytes of the send, if there is one.
        sent: Option<u64>,
        /// Bytes of the receive, if there is one.
        received: Option<u64>,
    },
}

pub(in crate::plan) fn require(
    ok: bool,
    what: &'static str,
    expected: &'static str,
    seen: u64,
) -> Result<(), PlanError> {
    if ok { Ok(()) } else { Err(PlanError::Number { what, expected, seen }) }
}
