//! Errors of the rendezvous of ranks, and of the connections that they keep.
//! These errors travel: the rank that notices sends the error itself to all others.

use super::Error;
use crate::id::Rank;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// A failure of the rendezvous or of the control plane. Every rank that can still be reached gets
/// the same one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// Two ranks hold values that must be equal; becomes [`Error::Disagreement`].
    #[error("ranks disagree on {what}: {rank} says {value}, {peer} says {peer_value}")]
    Disagreement {
        /// The quantity.
        what: String,
        /// One rank.
        rank: Rank,
        /// Its value.
        value: String,
        /// The other.
        peer: Rank,
        /// That rank's value.
        peer_value: String,
    },
    /// Somebody ended the job; becomes [`Error::Aborted`].
    #[error("aborted by {by}: {why}")]
    Aborted {
        /// Who.
        by: Rank,
        /// Its reason.
        why: String,
    },
    /// Ranks did not come, or did not make a call, in time.
    #[error(
        "timed out after {:.3} s on {what}: no sign of {} of {rank_count} ranks. Look at {} for an \
         earlier error or a process that was never started; if the job is only slow, raise \
         RINGDOVE_BOOTSTRAP_TIMEOUT_MS", waited.as_secs_f64(), Ranks(missing), theirs(missing)
    )]
    Missing {
        /// The awaited item.
        what: String,
        /// The ranks that are missing, in order.
        missing: Vec<Rank>,
        /// Ranks of the job.
        rank_count: u32,
        /// How long the wait lasted.
        waited: Duration,
    },
    /// A connection to a rank broke before the rank left: its process or its machine has ended.
    #[error("the connection to {rank} was lost{}: {cause}", seen_by(*by))]
    Lost {
        /// The rank that is gone.
        rank: Rank,
        /// Who noticed, where it was a rank.
        by: Option<Rank>,
        /// The cause.
        cause: String,
    },
    /// A rank left in good order while others still wanted something of it.
    #[error("{rank} has left: it dropped its communicator while others still called {call}")]
    Left {
        /// The rank that is gone.
        rank: Rank,
        /// The call that it will not make.
        call: String,
    },
    /// Two processes claim one rank.
    #[error(
        "{rank} joined twice: from {first} and from {second}. Every process needs its own rank; \
         check the variables that the launcher sets"
    )]
    Duplicate {
        /// The rank.
        rank: Rank,
        /// Where the first one connected from.
        first: String,
        /// Where the second one connected from.
        second: String,
    },
    /// A rank is not below the number of ranks.
    #[error("rank {} from {address} is out of range: expected less than {rank_count}", rank.0)]
    OutOfRange {
        /// The rank.
        rank: Rank,
        /// The number of ranks.
        rank_count: u32,
        /// Where it connected from.
        address: String,
    },
    /// The ranks have different versions of the wire protocol.
    #[error(
        "{rank} at {address} uses version {theirs} of the bootstrap protocol, the root version \
         {root}; install the same version of ringdove on every node"
    )]
    Version {
        /// The rank.
        rank: Rank,
        /// Where it connected from, or what it connected to.
        address: String,
        /// Its version.
        theirs: u16,
        /// The root's version.
        root: u16,
    },
    /// A rank cannot reach another one, or the root.
    #[error(
        "{rank} could not reach {target} within {:.3} s; tried {tried}. Check that it is running, \
         that no firewall is between them, that both have the same unique id (or \
         RINGDOVE_BOOTSTRAP_SECRET), and that RINGDOVE_BOOTSTRAP_INTERFACE is right",
        waited.as_secs_f64()
    )]
    Unreachable {
        /// The rank that tried.
        rank: Rank,
        /// The target.
        target: String,
        /// Addresses, each with its last failure.
        tried: String,
        /// How long it tried.
        waited: Duration,
    },
    /// The root of the rendezvous ended before all ranks were connected.
    #[error("the connection to the root at {address} was lost before all ranks joined: {cause}")]
    RootLost {
        /// The root's address.
        address: String,
        /// The cause.
        cause: String,
    },
    /// The contributions of a call are too large together.
    #[error("{call} would gather {bytes} bytes; one call gathers at most {bytes_max}")]
    TooLarge {
        /// The call.
        call: String,
        /// Bytes of all contributions seen so far.
        bytes: u64,
        /// The bound.
        bytes_max: u64,
    },
    /// An authenticated peer broke the protocol: a fault of the library, never of the caller.
    #[error("{peer} violated the bootstrap protocol: expected {expected}, seen {seen}")]
    Protocol {
        /// Who.
        peer: String,
        /// The expected message.
        expected: String,
        /// The seen message.
        seen: String,
    },
    /// Code on the I/O thread panicked: the library's, or a function that the caller handed to it.
    #[error(
        "{by} ended because the bootstrap's I/O thread panicked: {what}. Unless the message comes \
         from your own code, this is a bug of the library; please report it"
    )]
    Panicked {
        /// Whose task it was.
        by: String,
        /// The panic's message.
        what: String,
    },
}

impl From<BootstrapError> for Error {
    fn from(error: BootstrapError) -> Self {
        match error {
            BootstrapError::Disagreement { what, rank, value, peer, peer_value } => {
                Self::Disagreement { what, rank, value, peer, peer_value }
            }
            BootstrapError::Aborted { by, why } => Self::Aborted { by: Some(by), why },
            other => Self::Bootstrap(Box::new(other)),
        }
    }
}

fn seen_by(by: Option<Rank>) -> String {
    by.map(|by| format!(" (seen by {by})")).unwrap_or_default()
}

fn theirs(missing: &[Rank]) -> &'static str {
    if missing.len() == 1 { "its log" } else { "their logs" }
}

/// Ranks in the short form that a person reads: `rank 3`, or `ranks 3, 7-12`.
#[derive(Clone, Copy, Debug)]
pub struct Ranks<'a>(
    /// In rising order.
    pub &'a [Rank],
);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            [] => return f.write_str("no rank"),
            [_] => "rank ",
            _ => "ranks ",
        })?;
        for (index, run) in self.0.chunk_by(|a, b| a.0.checked_add(1) == Some(b.0)).enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            match run {
                [one] => write!(f, "{comma}{}", one.0)?,
                [one, two] => write!(f, "{comma}{}, {}", one.0, two.0)?,
                _ => write!(f, "{comma}{}-{}", run[0].0, run[run.len() - 1].0)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_listed_as_a_person_would() {
        let show =
            |ranks: &[u32]| Ranks(&ranks.iter().copied().map(Rank).collect::<Vec<_>>()).to_string();
        assert_eq!(show(&[3]), "rank 3");
        assert_eq!(show(&[3, 7, 8, 9, 10, 11, 12]), "ranks 3, 7-12");
        assert_eq!(show(&[0, 1, u32::MAX]), "ranks 0, 1, 4294967295");
        assert_eq!(show(&[]), "no rank");
    }
}
