//! What can be wrong with the routing of a dispatch.

use super::bootstrap::Ranks;
use crate::id::Rank;
use ringdove_kernels::experts::ExpertsFaultCode;
use std::fmt;

/// The routing of one rank in one dispatch was refused. Every rank of the group is told. That rank
/// sent no token in the dispatch, and its combine gives nothing; the group stays usable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutingFault {
    /// The rank whose routing it is.
    pub rank: Rank,
    /// The dispatch, counted from 0 over the life of the group.
    pub step: u64,
    /// The token.
    pub token: u64,
    /// Which of its choices.
    pub choice: u64,
    /// What is wrong.
    pub kind: RoutingFaultKind,
}

/// Ranks that a group of experts has given up, because they did not answer in time. The step ended
/// without them, and tokens whose experts did not all answer are marked. No further step begins in
/// this group, on any rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoneRanks {
    /// The ranks, in order.
    pub ranks: Vec<Rank>,
}

impl fmt::Display for GoneRanks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} did not answer in a step of experts, which ended without; tokens that miss a \
             result are marked. Agree on who is left with Communicator::survive, and go on in a \
             group of that communicator",
            Ranks(&self.ranks)
        )
    }
}

/// What is wrong with a choice, or with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RoutingFaultKind {
    /// The index is neither an expert's nor -1.
    Index {
        /// The index.
        seen: i64,
        /// Number of experts.
        experts: u32,
    },
    /// The token names this expert in an earlier choice, too.
    Repeated {
        /// The expert.
        expert: i64,
    },
    /// The weight is not a number.
    WeightNotANumber,
    /// There are more tokens than the group takes.
    Tokens {
        /// How many the call has.
        seen: i64,
        /// The most.
        most: u32,
    },
    /// The message of the rank has counts that cannot be, so its rows were not used.
    Message {
        /// Rows that it says it has.
        rows: i64,
    },
    /// The rank had given up another one in an earlier step, so it sent nothing.
    Gone {
        /// The lowest rank that it had given up.
        gone: i64,
    },
    /// A code that this version does not know.
    Unknown {
        /// The code.
        code: u32,
    },
}

impl RoutingFaultKind {
    /// Of what a kernel has left; `experts` and `most` are the group's.
    pub(crate) fn of(code: u32, seen: i64, experts: u32, most: u32) -> Self {
        match ExpertsFaultCode::from_code(code) {
            Some(ExpertsFaultCode::Index) => Self::Index { seen, experts },
            Some(ExpertsFaultCode::Repeated) => Self::Repeated { expert: seen },
            Some(ExpertsFaultCode::Weight) => Self::WeightNotANumber,
            Some(ExpertsFaultCode::Tokens) => Self::Tokens { seen, most },
            Some(ExpertsFaultCode::Message) => Self::Message { rows: seen },
            Some(ExpertsFaultCode::Gone) => Self::Gone { gone: seen },
            None => Self::Unknown { code },
        }
    }
}

impl fmt::Display for RoutingFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, step, token, choice, kind } = self;
        write!(f, "{rank}: its routing in dispatch {step} was refused: ")?;
        match kind {
            RoutingFaultKind::Index { seen, experts } => write!(
                f,
                "choice {choice} of token {token} names expert {seen}; expected -1 or less than \
                 {experts}"
            ),
            RoutingFaultKind::Repeated { expert } => {
                write!(f, "choice {choice} of token {token} names expert {expert} once more")
            }
            RoutingFaultKind::WeightNotANumber => {
                write!(f, "the weight of choice {choice} of token {token} is not a number")
            }
            RoutingFaultKind::Tokens { seen, most } => {
                write!(f, "expected at most {most} tokens, seen {seen}")
            }
            RoutingFaultKind::Message { rows } => {
                write!(f, "its message says {rows} rows, which its counts contradict")
            }
            RoutingFaultKind::Gone { gone } => {
                write!(f, "it had given up rank {gone} in an earlier step, and sent nothing")
            }
            RoutingFaultKind::Unknown { code } => write!(f, "fault {code}"),
        }?;
        write!(f, ". No token of {rank} was used in that dispatch; the group stays usable")
    }
}
