//! Ports: the two ends of a lane, as the executor kernel sees them.
//!
//! A *lane* goes from one rank to another and is the unit of ordering (R11): what is rung on it
//! arrives in order. Its *send port* sits at the source, its *receive port* at the destination.
//!
//! * The receive port waits on the **arrival** signal, which the sender's engine raises.
//! * The send port waits on the **credit** signal, which the receiver returns through its own
//!   engine, and on the **completion** signal, which the sender's engine raises when a source may
//!   be overwritten.
//!
//! A lane may have *slots*: `slot_count` equal pieces of staging memory at both ends. Message
//! number `m` of the lane (counted over the life of the communicator) uses slot
//! `m & slot_mask` at both ends. A lane without slots moves data between registered buffers; its
//! credit is a *grant*: the receiver says that its buffer may be written.
//!
//! Behind the slots of a lane, 32 bytes at either end are for grants: the receiver says in the
//! first word where the messages to come go (R15).
//!
//! An *LL lane* carries low-latency (LL) messages (R13): it has no arrival signals and no credits.
//! Its slots hold LL messages only.
//!
//! On a *lane of stores* the sender's block writes the peer's slots itself, and no engine takes
//! part. It is one from its creation on; the send port says so.
//!
//! Signals are monotonic (R9) and never reset. What a finished launch has consumed is kept in
//! `position` and `completion_position`, so a plan counts from zero at each launch.

use bytemuck::{Pod, Zeroable};

/// Bytes behind the slots of a lane, at either end, for a grant.
pub const GRANT_BYTES: u64 = 32;

/// One end of a lane, in device memory. The host writes it once; afterwards only the executor
/// changes the two positions, at the end of a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Port {
    /// Device address of the signal word: credits at a send port, arrivals at a receive port.
    pub signal: u64,
    /// How many of those signals earlier launches have consumed. Equals the number of messages
    /// that went before on this lane, so it also selects the slot.
    pub position: u64,
    /// Device address of the completion signal word; 0 at a receive port.
    pub completion: u64,
    /// How many completions earlier launches have consumed; at the receive port of a lane of
    /// stores, how many credits have been returned.
    pub completion_position: u64,
    /// Device address of slot 0 at this end; 0 for a lane without slots.
    pub slots: u64,
    /// Bytes of one slot, a multiple of 16.
    pub slot_bytes: u32,
    /// Number of slots minus one; the number is a power of two.
    pub slot_mask: u32,
    /// Send port with slots: the route from the rank's staging memory to the peer's slots. Receive
    /// port: the route that returns credits.
    /// Unused (0) at a send port without slots, where the launch binds routes.
    pub route: u32,
    /// Send port without slots: what the plan's ops add to a launch's route base. Send port with
    /// slots: the route for what arrived in memory of another kind than [`in_host`](Self::in_host)
    /// says, and goes on as it lies. Else 0.
    pub route_index: u32,
    /// The rank at the other end, for the record of an expired wait.
    pub peer: u32,
    /// Where the slots lie: 0 on the device, 1 in pinned host memory for adapters, 2 in host memory
    /// that a rank of the same node writes. Source offsets of a put count from
    /// `DeviceCommunicator::staging`, `host_staging` or `shared_staging`.
    pub in_host: u32,
    /// Send port of an LL lane of stores: device address of the peer's slot 0, as this GPU reaches
    /// it. Else 0. (At other send ports of lanes of stores `slots` has it: there are none at this
    /// end.)
    pub peer_slots: u64,
    /// Either port of a lane of stores that is no LL lane: device address of the signal word at the
    /// other end, as this GPU reaches it. Else 0: an engine raises signals.
    pub peer_signal: u64,
}

const _: () = assert!(size_of::<Port>() == 80);
