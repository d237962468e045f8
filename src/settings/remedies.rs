//! What the library does about drivers that block, refuse or lose. Each remedy can be switched off,
//! so that a test can show the failure which it prevents.

use crate::id::SignalWay;

/// Switches for tests; nothing else should change them, and no environment variable does.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedies {
    /// How signals go to other GPUs; None: as a probe finds.
    pub signal_way: Option<SignalWay>,
    /// Each pair of GPUs of a node is tried when a communicator is made.
    pub reach_probe: bool,
    /// The executor is loaded when a communicator is made, not by its first launch.
    pub eager_load: bool,
    /// Calls of engines' threads do not count for stream captures of others.
    pub apart_from_captures: bool,
    /// A caller that runs ahead of its launches is held back.
    pub bounded_launches: bool,
    /// What waits for the device is freed when no launch of the process runs.
    pub late_frees: bool,
    /// What kernels read first comes from pinned memory, and is waited for.
    pub pinned_uploads: bool,
    /// Ranks that share a GPU and could not run together are refused.
    pub sharing_check: bool,
    /// GPUs are given the right to memory of pools that is registered.
    pub open_pools: bool,
    /// Memory of other processes is opened when no collective runs.
    pub idle_opens: bool,
}

impl Default for Remedies {
    fn default() -> Self {
        Self {
            signal_way: None,
            reach_probe: true,
            eager_load: true,
            apart_from_captures: true,
            bounded_launches: true,
            late_frees: true,
            pinned_uploads: true,
            sharing_check: true,
            open_pools: true,
            idle_opens: true,
        }
    }
}
