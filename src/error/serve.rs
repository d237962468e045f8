//! What can go wrong between the servers and workers of a model.

use crate::id::Rank;

/// A member of a job of servers and workers cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The others have removed this server.
    #[error(
        "{rank}: more than half of the members have removed this server: it did not answer them, \
         or another server. What it has acknowledged is with its replica; start it in a new job"
    )]
    Removed {
        /// This server.
        rank: Rank,
    },
    /// No server is left that holds a shard.
    #[error("shard {shard}: no server is left that holds it")]
    Lost {
        /// The shard.
        shard: usize,
    },
    /// A server refused what a worker wrote into its slot.
    #[error("shard {shard} refused write {number} of worker {worker}: {why}")]
    Refused {
        /// The shard.
        shard: usize,
        /// Number of the worker, from 0.
        worker: usize,
        /// Number of the write.
        number: u64,
        /// What is wrong with it.
        why: &'static str,
    },
}
