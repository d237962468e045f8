//! Ranks of one process that share a GPU: their kernels wait for one another, so all of them must
//! run at the same time.

use crate::communicator::state::{Launcher, ProcessState, RankState};
use crate::error::{Error, Result};
use crate::gpu::{Current, hardware_queues};
use crate::id::Rank;
use cudarc::driver::CudaContext;
use std::sync::Once;

/// Threads of a block of the largest plan.
const BLOCK_THREADS: u32 = 256;

/// Do the ranks on `state`'s GPU run together?
///
/// # Errors
/// [`Error::Argument`] with the number of ranks that would.
pub(super) fn check(process: &ProcessState, state: &RankState, launcher: &Launcher) -> Result<()> {
    let ranks = process.ranks_on(&state.context) as u32;
    if ranks < 2 {
        return Ok(());
    }
    let blocks = launcher.blocks_at_once(BLOCK_THREADS)?;
    let (queues, is_set) = hardware_queues();
    if queues < ranks && !is_set {
        tracing::warn!(
            rank = state.rank.0,
            ranks,
            queues,
            "more ranks share this GPU than it has hardware queues: two of their streams may share \
             one, and wait for each other; set CUDA_DEVICE_MAX_CONNECTIONS"
        );
    }
    let queues = if is_set { queues } else { u32::MAX };
    fit(state.context.ordinal(), ranks, (blocks, process.geometry.blocks), queues)
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
}
