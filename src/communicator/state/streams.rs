//! Ranks of one process that share a GPU enqueue their parts of a collective, and both ends of a
//! message, on different streams.

use super::sync::lock;
use crate::error::{Error, Result};
use crate::id::Rank;
use crate::plan::Direction;
use cudarc::driver::CudaStream;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Mutex;
use std::thread::ThreadId;

/// Which streams the latest collectives of ranks that share a GPU are on.
#[derive(Debug, Default)]
pub(crate) struct StreamClaims {
    claims: Mutex<Vec<Claim>>,
    messages: Mutex<Messages>,
}

/// Messages between ranks that share a GPU.
#[derive(Debug, Default)]
struct Messages {
    /// How many ends of each kind there were.
    counts: BTreeMap<End, u64>,
    /// Those of which one end was enqueued, and on which stream.
    halves: BTreeMap<(End, u64), StreamName>,
}

/// An end of the messages from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct End {
    from: Rank,
    to: Rank,
    is_receive: bool,
}

impl End {
    fn other(self) -> Self {
        Self { is_receive: !self.is_receive, ..self }
    }
}

/// The collectives that a rank has enqueued last.
#[derive(Debug, PartialEq, Eq)]
struct Claim {
    rank: Rank,
    stream: StreamName,
    collectives: Range<u64>,
}

/// What makes two streams the same. The per-thread default stream is a name that each thread has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamName {
    context: usize,
    handle: usize,
    thread: Option<ThreadId>,
}

impl StreamName {
    pub(super) fn of(stream: &CudaStream) -> Self {
        /// `CU_STREAM_PER_THREAD`.
        const PER_THREAD: usize = 2;
        let handle = stream.cu_stream() as usize;
        let thread = (handle == PER_THREAD).then(|| std::thread::current().id());
        Self { context: stream.context().cu_ctx() as usize, handle, thread }
    }
}

impl StreamClaims {
    /// `rank` is about to enqueue its collectives of these numbers on `stream`.
    ///
    /// # Errors
    /// [`Error::Argument`] where another rank has enqueued one of them there: it runs first, and
    /// waits for this one, which stands behind it.
    pub fn claim(&self, rank: Rank, stream: &CudaStream, collectives: Range<u64>) -> Result<()> {
        self.claim_named(rank, StreamName::of(stream), collectives)
    }

    fn claim_named(&self, rank: Rank, stream: StreamName, collectives: Range<u64>) -> Result<()> {
        let mut claims = lock(&self.claims);
        let same = |claim: &&Claim| {
            let (other, own) = (&claim.collectives, &collectives);
            claim.stream == stream && other.start < own.end && own.start < other.end
        };
        if let Some(other) = claims.iter().filter(|claim| claim.rank != rank).find(same) {
            let expected = format!("another one than {} uses for this collective", other.rank);
            let seen = "the same: one rank would wait for the other behind it";
            return Err(Error::argument("stream", expected, seen));
        }
        claims.retain(|claim| claim.rank != rank);
        claims.push(Claim { rank, stream, collectives });
        Ok(())
    }

    /// `rank` is about to enqueue a group on `stream` with these ends of messages: direction, and
    /// peer on the same GPU.
    ///
    /// # Errors
    /// [`Error::Argument`] where the other end of one of them was enqueued there: it runs first,
    /// and waits for this one, which stands behind it.
    pub fn claim_messages(
        &self,
        rank: Rank,
        stream: &CudaStream,
        ends: impl Iterator<Item = (Direction, Rank)>,
    ) -> Result<()> {
        self.claim_messages_named(rank, StreamName::of(stream), ends)
    }

    fn claim_messages_named(
        &self,
        rank: Rank,
        stream: StreamName,
        ends: impl Iterator<Item = (Direction, Rank)>,
    ) -> Result<()> {
        let mut messages = lock(&self.messages);
        let Messages { counts, halves } = &mut *messages;
        // Only what is enqueued counts: a group that is refused leaves all as it was.
        let (mut counted, mut numbered) = (counts.clone(), BTreeSet::new());
        for (direction, peer) in ends {
            let end = match direction {
                Direction::Send => End { from: rank, to: peer, is_receive: false },
                Direction::Receive => End { from: peer, to: rank, is_receive: true },
            };
            let count = counted.entry(end).or_default();
            numbered.insert((end, *count));
            *count += 1;
        }
        for (end, number) in &numbered {
            if halves.get(&(end.other(), *number)) == Some(&stream) {
                let peer = if end.is_receive { end.from } else { end.to };
                let expected = format!("another one than {peer} uses for the same message");
                let seen = "the same: one rank would wait for the other behind it";
                return Err(Error::argument("stream", expected, seen));
            }
        }
        *counts = counted;
        for (end, number) in numbered {
            if halves.remove(&(end.other(), number)).is_none() {
                halves.insert((end, number), stream);
            }
        }
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
        claims.claim_named(Rank(0), stream(7), 0..3).unwrap();
        for collectives in [0..1, 2..4] {
            let refused = claims.claim_named(Rank(1), stream(7), collectives).unwrap_err();
            assert!(refused.to_string().contains("rank 0"), "{refused}");
        }
        claims.claim_named(Rank(1), stream(8), 0..3).unwrap();
        // The other way round for the next one: each stands behind one that has ended by then.
        claims.claim_named(Rank(0), stream(8), 3..4).unwrap();
        claims.claim_named(Rank(1), stream(7), 3..4).unwrap();
    }

    /// If this fails, both ends of a message on one stream hang, or streams that take turns are
    /// refused.
    #[test]
    fn both_ends_of_a_message_on_one_stream_are_refused() {
        use Direction::{Receive, Send};
        let claims = StreamClaims::default();
        let claim = |rank, handle, ends: &[(Direction, u32)]| {
            let ends = ends.iter().map(|&(direction, peer)| (direction, Rank(peer)));
            let stream = StreamName { context: 1, handle, thread: None };
            claims.claim_messages_named(Rank(rank), stream, ends)
        };
        claim(0, 7, &[(Send, 1), (Send, 1), (Receive, 1)]).unwrap();
        for ends in [&[(Receive, 0)][..], &[(Send, 0)], &[(Send, 2), (Receive, 0)]] {
            let refused = claim(1, 7, ends).unwrap_err().to_string();
            assert!(refused.contains("rank 0"), "{refused}");
        }
        // What was refused does not count.
        claim(1, 8, &[(Receive, 0), (Send, 0)]).unwrap();
        assert!(claim(1, 7, &[(Receive, 0)]).is_err(), "the second of rank 0's");
        claim(1, 9, &[(Receive, 0)]).unwrap();
        // Each stands behind one that has ended by then.
        claim(1, 7, &[(Receive, 0)]).unwrap();
        claim(0, 8, &[(Send, 1)]).unwrap();
        assert!(lock(&claims.messages).halves.is_empty(), "what is matched is forgotten");
    }
}
