//! What the kernels of one-sided transfers (`kernels/cuda/window.cu`) are given.

use bytemuck::{Pod, Zeroable};

/// [`WindowCall::kind`]: an engine moves the data; the call ends when it has.
pub const WINDOW_MOVE: u32 = 1;
/// [`WindowCall::kind`]: raises the peer's signal, behind all that was moved before.
pub const WINDOW_SIGNAL: u32 = 2;
/// [`WindowCall::kind`]: waits for signals of the peer.
pub const WINDOW_WAIT: u32 = 3;

/// The parameter of the entries `window_copy` and `window_call`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct WindowCall {
    /// Device address of the [`DeviceCommunicator`](crate::launch::DeviceCommunicator).
    pub communicator: u64,
    /// Number of the launch, for the record of a failed wait.
    pub sequence: u64,
    /// `window_copy`: device address of the first byte to read. Else its offset in the route.
    pub source: u64,
    /// `window_copy`: device address of the first byte to write. Else its offset in the route.
    pub destination: u64,
    /// Bytes to move.
    pub bytes: u64,
    /// `window_call`: [`WINDOW_MOVE`] and so on.
    pub kind: u32,
    /// [`WINDOW_MOVE`]: the route. [`WINDOW_WAIT`]: how many signals.
    pub value: u32,
    /// The send port of the lane to the peer; for [`WINDOW_WAIT`], the receive port of the lane
    /// from it.
    pub port: u32,
    /// [`WINDOW_MOVE`]: not 0 if the peer's signal is raised behind the data.
    pub signal: u32,
}

const _: () = assert!(size_of::<WindowCall>() == 56);
