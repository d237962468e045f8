//! Ranks of one process that share a GPU: their kernels wait for one another, so all of them must
//! run at the same time.

use super::launcher::Launcher;
use super::world::{Seat, World, lock};
use crate::error::{Error, Result};
use crate::gpu::{Current, hardware_queues};
use crate::id::Rank;
use cudarc::driver::{CudaContext, CudaStream};
use std::sync::{Mutex, Once};
use std::thread::ThreadId;

/// Threads of a block of the largest plan.
const BLOCK_THREADS: u32 = 256;

/// Do the ranks on `seat`'s GPU run together?
///
/// # Errors
/// [`Error::Argument`] with the number of ranks that would.
pub(super) fn check(world: &World, seat: &Seat, launcher: &Launcher) -> Result<()> {
    let ranks = world.ranks_on(&seat.context) as u32;
    if ranks < 2 {
        return Ok(());
    }
    let blocks = launcher.blocks_at_once(BLOCK_THREADS)?;
    let (queues, is_set) = hardware_queues();
    if queues < ranks && !is_set {
        tracing::warn!(
            rank = seat.rank.0,
            ranks,
            queues,
            "more ranks share this GPU than it has hardware queues: two of their streams may share \
             one, and wait for each other; set CUDA_DEVICE_MAX_CONNECTIONS"
        );
    }
    let queues = if is_set { queues } else { u32::MAX };
    fit(seat.context.ordinal(), ranks, (blocks, world.geometry.blocks), queues)
}

/// Says once, where `peer`, a rank of another process whose memory is at `address`, runs on the GPU
/// of `context`, what that costs.
pub(super) fn warn_of_slices(peer: Rank, context: &CudaContext, address: u64) -> Result<()> {
    /// Where programs find the service by which processes share a GPU.
    const MPS: &str = "CUDA_MPS_PIPE_DIRECTORY";
    static SAID: Once = Once::new();
    let device = Current::bind(context)?.device_of(address);
    if device == Some(context.ordinal()) && std::env::var_os(MPS).is_none() {
        SAID.call_once(|| {
            tracing::warn!(
                %peer,
                gpu = context.ordinal(),
                "ranks of two processes share a GPU, and no MPS is declared (CUDA_MPS_PIPE_DIRECTORY): \
                 the driver runs their kernels in turns, and each message waits for a turn"
            );
        });
    }
    Ok(())
}

/// Do `ranks` ranks fit on a GPU which runs `room` blocks at a time, and has so many queues?
fn fit(gpu: usize, ranks: u32, (room, each): (u32, u32), queues: u32) -> Result<()> {
    let by_blocks = room / each.max(1);
    if ranks <= by_blocks && ranks <= queues {
        return Ok(());
    }
    let what = format!("ranks that share GPU {gpu}");
    let expected = match by_blocks < queues {
        true => format!(
            "at most {by_blocks}: it runs {room} blocks at a time, and each rank has up to {each} \
             (RINGDOVE_BLOCKS)"
        ),
        false => format!(
            "at most {queues}: each needs a hardware queue (CUDA_DEVICE_MAX_CONNECTIONS={queues})"
        ),
    };
    Err(Error::argument(&what, expected, ranks))
}

/// Which streams the latest collectives of ranks that share a GPU are on.
#[derive(Debug, Default)]
pub(super) struct StreamClaims {
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

    /// If this fails, ranks that cannot run together hang, or nobody says how many could.
    #[test]
    fn ranks_that_do_not_fit_are_refused_with_the_number_that_does() {
        fit(0, 4, (16, 4), u32::MAX).unwrap();
        fit(0, 4, (16, 4), 4).unwrap();
        for (ranks, blocks, queues, says) in
            [(5, 16, u32::MAX, "at most 4: it runs 16"), (2, 528, 1, "at most 1: each needs")]
        {
            let error = fit(3, ranks, (blocks, 4), queues).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("GPU 3"), "{error}");
        }
    }

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
