//! Ranks of one process that share a GPU: their kernels wait for one another, so all of them must
//! run at the same time.

use crate::communicator::state::{Launcher, ProcessState, RankState};
use crate::error::{Error, Result};
use crate::gpu::{Current, LIBRARY_STREAMS, Queues, hardware_queues};
use crate::id::{EngineKind, Rank};
use crate::settings::Remedies;
use cudarc::driver::CudaContext;
use std::sync::Once;

/// Threads of a block of the largest plan.
const BLOCK_THREADS: u32 = 256;

/// Room, in blocks of so many threads, for a copy within the GPU's memory: drivers run such copies
/// as kernels, and those of ranks that share the GPU wait for them.
const COPY_BLOCKS: u32 = 2;

/// Do the ranks on `state`'s GPU run together? Gives this one its part of the GPU's queues: of the
/// commands that they hold, and of the queues themselves, since a rank whose calls are on many
/// streams at a time may stop each queue, and the kernels of the others that it waits for.
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
    // Where copies are in the program's context, they need queues there, too.
    let is_apart = state.memory.streams().home().is_own();
    let has_copies = process.geometry.engine == EngineKind::Proxy && !is_apart;
    let copies = if has_copies { LIBRARY_STREAMS } else { 0 };
    let mut queues = Queues::of(&state.context, ranks + copies)?;
    let (count, is_set) = hardware_queues();
    // Services may give a context more queues than it has asked for; that is not to be relied on.
    if is_set {
        queues.streams = queues.streams.min(count);
    }
    let room = Room { blocks: launcher.blocks_at_once(BLOCK_THREADS)?, queues, copies };
    fit(state.context.ordinal(), ranks, process.blocks_max(), room)?;
    // No more streams were tried than are needed; if all run, there are as many queues as usual.
    let found_all = queues.streams >= ranks + copies;
    let streams = if found_all { count.max(queues.streams) } else { queues.streams };
    // Half of them: a stream keeps its queue until what stands behind the launches has ended, too.
    launcher.share(queues.commands / ranks, streams.saturating_sub(copies) / ranks / 2);
    Ok(())
}

/// What ranks share.
struct Room {
    /// Blocks that the GPU runs at a time.
    blocks: u32,
    queues: Queues,
    /// Streams of the library among those of the queues.
    copies: u32,
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
    let Room { blocks, queues: Queues { streams, commands }, copies } = room;
    let limits = [
        (
            (blocks.saturating_sub(COPY_BLOCKS) / each.max(1)).max(1),
            format!(
                "it runs {blocks} blocks at a time, copies take {COPY_BLOCKS}, and each rank has \
                 up to {each} (RINGDOVE_BLOCKS)"
            ),
        ),
        (
            streams.saturating_sub(copies).max(1),
            format!(
                "{}, and each rank needs one (CUDA_DEVICE_MAX_CONNECTIONS is {})",
                match copies {
                    0 => "so many streams run beside each other".to_owned(),
                    _ => format!(
                        "so many streams run beside the {copies} on which the library copies \
                         (RINGDOVE_COPY_CONTEXT=own takes them out)"
                    ),
                },
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
        let apart = |blocks, streams, commands, copies| {
            let queues = Queues { streams, commands };
            Room { blocks, queues, copies }
        };
        let room = |blocks, streams, commands| apart(blocks, streams, commands, 0);
        fit(0, 4, 4, room(18, 4, 960)).unwrap();
        for (ranks, room, says) in [
            (4, room(16, 5, 960), "at most 3: it runs 16"),
            (2, room(4, 5, 960), "at most 1: it runs 4"),
            (2, room(528, 1, 960), "at most 1: so many streams"),
            (6, room(528, 6, 64), "at most 5: the driver takes 64 commands"),
            (5, apart(528, 8, 960, 4), "at most 4: so many streams run beside the 4"),
            (2, apart(528, 3, 960, 4), "at most 1: so many streams run beside the 4"),
        ] {
            let error = fit(3, ranks, 4, room).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("GPU 3"), "{error}");
        }
    }
}
