//! Launches, in the order of calls.

use crate::communicator::connect::ConnectedRank;
use crate::communicator::state::{Launcher, Resident};
use crate::error::Result;
use cudarc::driver::CudaStream;
use ringdove_kernels::launch::LaunchArguments;
use std::sync::Arc;

/// Makes `stream` wait for the launches before. To be called before anything is enqueued.
///
/// # Errors
/// [`Error::Cuda`](crate::Error::Cuda) where the driver refuses.
pub(super) fn enter(launcher: &mut Launcher, stream: &Arc<CudaStream>) -> Result<()> {
    launcher.order(stream)
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
    stream: &Arc<CudaStream>,
) -> Result<()> {
    rank.engine().announce(launcher.launches() + 1);
    launcher.launch(plan, arguments, stream)
}
