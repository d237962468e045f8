//! What a user's kernel is given (`kernels/cuda/ringdove.cuh`): where its lanes and windows are.

use bytemuck::{Pod, Zeroable};

/// The value of a port's number where there is none.
pub const NO_PORT: u32 = u32::MAX;

/// All that a user's kernel needs of a communicator, in device memory. The host writes it once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct DeviceHandle {
    /// Device address of the [`DeviceCommunicator`](crate::launch::DeviceCommunicator).
    pub communicator: u64,
    /// Device address of a table of [`LanePorts`]: by peer, then by lane. Those of the rank itself
    /// are [`NO_PORT`].
    pub ports: u64,
    /// Device address of a table of [`WindowEntry`]s.
    pub windows: u64,
    /// Device address of a table of first routes, `u32`: `source * window_count + destination`. A
    /// put adds the `route_index` of its send port.
    pub routes: u64,
    /// Lanes to each peer, and as many from each.
    pub lane_count: u32,
    /// Number of windows.
    pub window_count: u32,
    /// Device address of a table of addresses, `u64`: `window * rank_count + rank` is that rank's
    /// part of the window, as this GPU's stores reach it; 0 where they do not.
    pub reached: u64,
}

/// The ports of a lane to a peer, and of the lane with the same number from that peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct LanePorts {
    /// Number of the send port.
    pub send: u32,
    /// Number of the receive port.
    pub receive: u32,
}

/// A window: this rank's part of a registration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct WindowEntry {
    /// Device address.
    pub address: u64,
    /// Bytes, the same on every rank.
    pub bytes: u64,
}

const _: () = {
    assert!(size_of::<DeviceHandle>() == 48);
    assert!(size_of::<LanePorts>() == 8);
    assert!(size_of::<WindowEntry>() == 16);
};
