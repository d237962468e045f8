//! Launches, in the order of calls.

use crate::communicator::connect::ConnectedRank;
use crate::communicator::state::{Launcher, Resident};
use crate::error::Result;
use cudarc::driver::CudaStream;
use ringdove_kernels::launch::LaunchArguments;
use std::sync::Arc;

/// Makes `stream` wait for the launches before: in a capture, for those of the same capture. To be
/// called before anything is enqueued.
///
/// # Errors
/// [`Error::Cuda`](crate::Error::Cuda) where the driver refuses.
pub(super) fn enter(
    launcher: &mut Launcher,
    stream: &Arc<CudaStream>,
    capture: Option<u64>,
) -> Result<()> {
    launcher.order(stream, capture)
}

/// Launches `plan` on `stream`.
///
/// # Errors
/// As [`enter`].
pub(super) fn launch(
    rank: &ConnectedRank,
    launcher: &mut Launcher,
    plan: &Resident,
    arguments: &mut LaunchArguments,
    (stream, capture): (&Arc<CudaStream>, Option<u64>),
) -> Result<()> {
    rank.engine().announce(launcher.announced());
    launcher.launch(plan, arguments, stream, capture)
}
