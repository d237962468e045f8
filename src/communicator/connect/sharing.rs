//! Ranks of one process that share a GPU: their kernels wait for one another, so all of them must
//! run at the same time.

use crate::communicator::state::{Launcher, ProcessState, RankState};
use crate::error::{Error, Result};
use crate::gpu::{Current, Queues, hardware_queues};
use crate::id::Rank;
use crate::settings::Remedies;
use cudarc::driver::CudaContext;
use std::sync::Once;

/// Threads of a block of the largest plan.
const BLOCK_THREADS: u32 = 256;

/// Room, in blocks of so many threads, for a copy within the GPU's memory: drivers run such copies
/// as kernels, and those of ranks that share the GPU wait for them.
const COPY_BLOCKS: u32 = 2;

/// Do the ranks on `state`'s GPU run together? Gives this one its part of the GPU's queue.
///
/// # Errors
/// [`Error::Argument`] with the number of ranks that would.
pub(super) fn check(
    process: &ProcessState,
    state: &RankState,
    launcher: &mut Launcher,
    remedies: &Remedies,
) -> Result<()> {
    let ranks = process.ranks_on(&state.context) as u32;
    if ranks < 2 || !remedies.sharing_check {
        return Ok(());
    }
    let mut queues = Queues::of(&state.context, ranks)?;
    // What was tried are streams in turn; whose streams share a queue is also a matter of luck.
    if let (set, true) = hardware_queues() {
        queues.streams = queues.streams.min(set);
    }
    let room = Room { blocks: launcher.blocks_at_once(BLOCK_THREADS)?, queues };
    fit(state.context.ordinal(), ranks, process.blocks_max(), room)?;
    launcher.share(queues.commands / ranks);
    Ok(())
}

/// What ranks share.
struct Room {
    /// Blocks that the GPU runs at a time.
    blocks: u32,
    queues: Queues,
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
                "ranks of two processes share a GPU, and no MPS is declared \
                 (CUDA_MPS_PIPE_DIRECTORY): the driver runs their kernels in turns, and each \
                 message waits for a turn"
            );
        });
    }
    Ok(())
}

/// Do `ranks` ranks with up to so many blocks `each` fit on a GPU?
fn fit(gpu: usize, ranks: u32, each: u32, room: Room) -> Result<()> {
    let Room { blocks, queues: Queues { streams, commands } } = room;
    let limits = [
        (
            (blocks.saturating_sub(COPY_BLOCKS) / each.max(1)).max(1),
            format!(
                "it runs {blocks} blocks at a time, copies take {COPY_BLOCKS}, and each rank has \
                 up to {each} (RINGDOVE_BLOCKS)"
            ),
        ),
        (
            streams,
            format!(
                "so many streams run beside each other, and each rank needs one \
                 (CUDA_DEVICE_MAX_CONNECTIONS is {})",
                hardware_queues().0
            ),
        ),
        (
            commands / Launcher::COMMANDS_MIN,
            format!(
                "the driver takes {commands} commands at a time, and each rank needs {}",
                Launcher::COMMANDS_MIN
            ),
        ),
    ];
    match limits.into_iter().find(|(most, _)| ranks > *most) {
        None => Ok(()),
        Some((most, why)) => {
            let what = format!("ranks that share GPU {gpu}");
            Err(Error::argument(&what, format!("at most {most}: {why}"), ranks))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, ranks that cannot run together hang, or nobody says how many could.
    #[test]
    fn ranks_that_do_not_fit_are_refused_with_the_number_that_does() {
        let room =
            |blocks, streams, commands| Room { blocks, queues: Queues { streams, commands } };
        fit(0, 4, 4, room(18, 4, 960)).unwrap();
        for (ranks, room, says) in [
            (4, room(16, 5, 960), "at most 3: it runs 16"),
            (2, room(4, 5, 960), "at most 1: it runs 4"),
            (2, room(528, 1, 960), "at most 1: so many streams"),
            (6, room(528, 6, 64), "at most 5: the driver takes 64 commands"),
        ] {
            let error = fit(3, ranks, 4, room).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("GPU 3"), "{error}");
        }
    }
}
