//! Ranks of one process that share a GPU enqueue their parts of a collective on different streams.

use super::sync::lock;
use crate::error::{Error, Result};
use crate::id::Rank;
use cudarc::driver::CudaStream;
use std::sync::Mutex;
use std::thread::ThreadId;

/// Which streams the latest collectives of ranks that share a GPU are on.
#[derive(Debug, Default)]
pub(crate) struct StreamClaims {
    claims: Mutex<Vec<Claim>>,
}

/// A rank's latest collective.
#[derive(Debug, PartialEq, Eq)]
struct Claim {
    rank: Rank,
    stream: StreamName,
    collective: u64,
}

/// What makes two streams the same. The per-thread default stream is a name that each thread has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StreamName {
    context: usize,
    handle: usize,
    thread: Option<ThreadId>,
}

impl StreamName {
    fn of(stream: &CudaStream) -> Self {
        /// `CU_STREAM_PER_THREAD`.
        const PER_THREAD: usize = 2;
        let handle = stream.cu_stream() as usize;
        let thread = (handle == PER_THREAD).then(|| std::thread::current().id());
        Self { context: stream.context().cu_ctx() as usize, handle, thread }
    }
}

impl StreamClaims {
    /// `rank` is about to enqueue its collective of this number on `stream`.
    ///
    /// # Errors
    /// [`Error::Argument`] where another rank has enqueued the same collective there: it runs first,
    /// and waits for this one, which stands behind it.
    pub fn claim(&self, rank: Rank, stream: &CudaStream, collective: u64) -> Result<()> {
        self.claim_named(rank, StreamName::of(stream), collective)
    }

    fn claim_named(&self, rank: Rank, stream: StreamName, collective: u64) -> Result<()> {
        let mut claims = lock(&self.claims);
        let same = |claim: &&Claim| claim.stream == stream && claim.collective == collective;
        if let Some(other) = claims.iter().filter(|claim| claim.rank != rank).find(same) {
            let expected = format!("another one than {} uses for this collective", other.rank);
            let seen = "the same: one rank would wait for the other behind it";
            return Err(Error::argument("stream", expected, seen));
        }
        claims.retain(|claim| claim.rank != rank);
        claims.push(Claim { rank, stream, collective });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, two ranks on one stream hang, or streams that take turns are refused.
    #[test]
    fn two_ranks_on_one_stream_are_refused() {
        let claims = StreamClaims::default();
        let stream = |handle| StreamName { context: 1, handle, thread: None };
        claims.claim_named(Rank(0), stream(7), 0).unwrap();
        let refused = claims.claim_named(Rank(1), stream(7), 0).unwrap_err().to_string();
        assert!(refused.contains("rank 0"), "{refused}");
        claims.claim_named(Rank(1), stream(8), 0).unwrap();
        // The other way round for the next one: each stands behind one that has ended by then.
        claims.claim_named(Rank(0), stream(8), 1).unwrap();
        claims.claim_named(Rank(1), stream(7), 1).unwrap();
    }
}
