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

/// What is launched, and on which stream.
pub(super) struct Launch<'a> {
    pub plan: &'a Resident,
    pub stream: &'a Arc<CudaStream>,
    /// The number of the capture that the stream is in.
    pub capture: Option<u64>,
}

/// Launches a plan.
///
/// # Errors
/// As [`enter`].
pub(super) fn launch(
    rank: &ConnectedRank,
    launcher: &mut Launcher,
    Launch { plan, stream, capture }: Launch<'_>,
    arguments: &mut LaunchArguments,
) -> Result<()> {
    rank.engine().announce(launcher.announced());
    launcher.launch(plan, arguments, stream, capture)
}
