//! The register map of a device engine, as a host finds it in the function's first BAR.
//!
//! `kernels/BAR.md` is the specification: what each register does, in which order they are used,
//! and what the hardware does with a descriptor. This file fixes the offsets.
//!
//! ```text
//! 0x0000_0000  Identity                 read only, the same for all channels
//! channel c at identity.channels_offset + c * identity.channel_bytes:
//!   + CONTROL_OFFSET    Control         written by the host
//!   + STATUS_OFFSET     Status          written by the engine
//!   + ERROR_OFFSET      ErrorRecord     written by the engine, once
//!   + RING_OFFSET       16 << ring_log2_max bytes of descriptors: all that a GPU needs to reach
//!   + peers_offset, lanes_offset, signals_offset, windows_offset, routes_offset   tables
//! ```
//!
//! Every field is a little-endian word of 64 bits, aligned to 8, and read or written whole.

use bytemuck::{Pod, Zeroable};

/// PCI class of a device engine: processing accelerator, no programming interface.
pub const PCI_CLASS: u32 = 0x12_00_00;
/// Vendor number of virtual engines. No number is assigned: makers of hardware use their own.
pub const PCI_VENDOR_VIRTUAL: u16 = 0x0000;
/// Device number of virtual engines.
pub const PCI_DEVICE_VIRTUAL: u16 = 0x5244;

/// [`Identity::magic`]: the bytes `RDENGINE`.
pub const MAGIC: u64 = u64::from_le_bytes(*b"RDENGINE");
/// [`Identity::version`] that this file describes. Another major number (upper 32 bits) is another
/// map; a greater minor number only adds.
pub const VERSION: u64 = 1 << 32;

/// Offset of [`Control`] in a channel.
pub const CONTROL_OFFSET: u64 = 0x000;
/// Offset of [`Status`] in a channel.
pub const STATUS_OFFSET: u64 = 0x100;
/// Offset of [`ErrorRecord`] in a channel.
pub const ERROR_OFFSET: u64 = 0x200;
/// Offset of the ring in a channel. On its own page, with nothing else up to the tables, so
/// that a GPU can be given the ring alone.
pub const RING_OFFSET: u64 = 0x1_0000;
/// Channels and tables start on a multiple of this, the largest page size of common hosts.
pub const PAGE_BYTES: u64 = 0x1_0000;

/// Identity and capacities of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Identity {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`VERSION`].
    pub version: u64,
    /// Where this engine is on its link; unique among engines that reach one another, never 0.
    pub link_address: u64,
    /// Bytes a second that the link carries in one direction; 0: not known.
    pub link_bytes_per_second: u64,
    /// Number of channels.
    pub channel_count: u64,
    /// Offset of channel 0 in the BAR.
    pub channels_offset: u64,
    /// Distance between channels. Bytes.
    pub channel_bytes: u64,
    /// The largest ring has `1 << ring_log2_max` slots.
    pub ring_log2_max: u64,
    /// Entries of the peer table, and its offset in a channel.
    pub peer_count: u64,
    /// Offset of the [`Peer`] table in a channel.
    pub peers_offset: u64,
    /// Entries of the lane table.
    pub lane_count: u64,
    /// Offset of the [`Lane`] table in a channel.
    pub lanes_offset: u64,
    /// Entries of the signal table.
    pub signal_count: u64,
    /// Offset of the [`Signal`] table in a channel.
    pub signals_offset: u64,
    /// Entries of the window table.
    pub window_count: u64,
    /// Offset of the [`Window`] table in a channel.
    pub windows_offset: u64,
    /// Entries of the route table.
    pub route_count: u64,
    /// Offset of the [`Route`] table in a channel.
    pub routes_offset: u64,
    /// Requests of one lane that the engine holds before the decoder waits for that lane.
    pub lane_depth: u64,
    /// The fetch unit reads sources in pieces of at most this many bytes.
    pub sub_request_bytes: u64,
    /// Requests of one channel whose data may be under way at once.
    pub in_flight_max: u64,
}

/// Control registers of a channel. Written by the host only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Control {
    /// A [`Command`]. The rest is read when this becomes [`Command::Run`].
    pub command: u64,
    /// The ring has `1 << ring_log2` slots, from [`RING_OFFSET`] on.
    pub ring_log2: u64,
    /// Address of the `tail` word of the ring (u64, R7).
    pub tail_address: u64,
    /// Address of the abort word (u32, R12), where the engine writes 1 when it stops with an error.
    /// 0: none.
    pub abort_address: u64,
    /// A number of this use of the channel, never 0 and never twice the same: packets from peers
    /// of an earlier use carry another one.
    pub generation: u64,
    /// The rank, for packet captures and error records of peers. No meaning to the engine.
    pub rank: u64,
}

/// Commands to a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u64)]
pub enum Command {
    /// Stop at once; zero ring, tables, status, error record. A channel begins like this.
    Reset = 0,
    /// Serve the ring.
    Run = 1,
    /// Start nothing more, drop what waits; let what is under way end.
    Halt = 2,
}

/// Status registers of a channel. Written by the engine only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Status {
    /// A [`State`].
    pub state: u64,
    /// Descriptors taken from the ring: the position of the next one.
    pub position: u64,
    /// Requests that were taken and have not ended.
    pub in_flight: u64,
    /// Requests that have ended, their signals raised.
    pub completed: u64,
    /// Bytes that the fetch unit has read for this channel.
    pub bytes_sent: u64,
    /// Bytes that the write unit has written for this channel.
    pub bytes_received: u64,
    /// Signals that this channel's requests have asked for.
    pub signals: u64,
    /// Sub-requests that the fetch unit has made.
    pub sub_requests: u64,
    /// Times that the decoder found the lane of the next descriptor full.
    pub decoder_stalls: u64,
    /// The most descriptors that stood in the ring at once, as far as the decoder saw.
    pub occupancy_max: u64,
    /// Packets that were refused, for whatever reason.
    pub packets_refused: u64,
}

/// States of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u64)]
pub enum State {
    /// No answer yet: the function has no power, or its engine has not started.
    Absent = 0,
    /// Reset is done; the host may fill tables.
    Ready = 1,
    /// The ring is served.
    Running = 2,
    /// Halted or failed, and nothing is under way any more.
    Stopped = 3,
}

impl State {
    /// The state with this code.
    pub const fn from_code(code: u64) -> Option<Self> {
        Some(match code {
            0 => Self::Absent,
            1 => Self::Ready,
            2 => Self::Running,
            3 => Self::Stopped,
            _ => return None,
        })
    }
}

/// Why a channel stopped. The engine writes every field, then `state`; it never writes it again
/// before a reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ErrorRecord {
    /// 0: no error. 1: the record is complete.
    pub state: u64,
    /// An [`ErrorCode`].
    pub code: u64,
    /// Ring position of the descriptor; where none is to blame, of the next one.
    pub position: u64,
    /// Its two words, as they were in the ring.
    pub words: [u64; 2],
    /// The route that it names, or [`NONE`]; of a peer's refusal, its window.
    pub route: u64,
    /// The lane of that route, or [`NONE`].
    pub lane: u64,
    /// The entry of the peer table behind the lane, or [`NONE`].
    pub peer: u64,
    /// The limit that was not kept (bytes of a region), or an address.
    pub limit: u64,
    /// More, as the code says.
    pub detail: u64,
}

/// Codes of [`ErrorRecord`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u64)]
pub enum ErrorCode {
    /// The words are no descriptor. `detail`: 1 a reserved bit, 2 a range without data, 3 empty.
    Malformed = 1,
    /// The route is not valid, or its lane or the lane's peer is not.
    UnknownRoute = 2,
    /// The source ends past the route's source region, whose length is `limit`.
    SourceRange = 3,
    /// The destination ends past the route's destination, whose length is `limit`.
    DestinationRange = 4,
    /// The lane has no arrival signal.
    NoArrivalSignal = 5,
    /// The lane has no completion signal.
    NoCompletionSignal = 6,
    /// The fetch unit could not read `limit`, an address.
    FetchFault = 7,
    /// This engine's write unit could not write a signal, the tail or the abort word at `limit`.
    WriteFault = 8,
    /// The peer refused a packet. `detail`: a [`Refusal`], `limit` as it says.
    PeerRefused = 9,
    /// The peer cannot be reached any more. `detail`: its link address.
    LinkLost = 10,
    /// A register has a value, `limit`, that makes no sense. `detail`: its offset in the channel.
    BadRegister = 11,
}

impl ErrorCode {
    /// The code with this number.
    pub const fn from_code(code: u64) -> Option<Self> {
        Some(match code {
            1 => Self::Malformed,
            2 => Self::UnknownRoute,
            3 => Self::SourceRange,
            4 => Self::DestinationRange,
            5 => Self::NoArrivalSignal,
            6 => Self::NoCompletionSignal,
            7 => Self::FetchFault,
            8 => Self::WriteFault,
            9 => Self::PeerRefused,
            10 => Self::LinkLost,
            11 => Self::BadRegister,
            _ => return None,
        })
    }
}

/// Why a peer's write unit refused a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u64)]
pub enum Refusal {
    /// It does not know the sender, or the channel is of another generation or not running.
    UnknownSender = 1,
    /// It has no such window.
    UnknownWindow = 2,
    /// The data ends past its window, whose length is `limit`.
    WindowRange = 3,
    /// It has no such signal, or not for this sender.
    UnknownSignal = 4,
    /// It could not write the memory at `limit`.
    WriteFault = 5,
}

impl Refusal {
    /// The reason with this number.
    pub const fn from_code(code: u64) -> Option<Self> {
        Some(match code {
            1 => Self::UnknownSender,
            2 => Self::UnknownWindow,
            3 => Self::WindowRange,
            4 => Self::UnknownSignal,
            5 => Self::WriteFault,
            _ => return None,
        })
    }
}

/// A channel of some engine that this one exchanges packets with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Peer {
    /// [`Identity::link_address`] of its engine.
    pub link_address: u64,
    /// Its channel there.
    pub channel: u64,
    /// [`Control::generation`] of that channel.
    pub generation: u64,
    /// 1: valid. Written last, as in every table.
    pub valid: u64,
}

/// A directed path to a peer (R11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Lane {
    /// Entry of the peer table.
    pub peer: u64,
    /// Entry of the *peer's* signal table that arrivals raise; [`NONE`]: none.
    pub arrival_signal: u64,
    /// Address of the completion signal on this side; 0: none.
    pub completion_address: u64,
    /// 1: valid.
    pub valid: u64,
}

/// No entry.
pub const NONE: u64 = u64::MAX;

/// A signal on this side that a peer may raise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Signal {
    /// Address of the word (u64).
    pub address: u64,
    /// Entry of the peer table: the only one that may raise it.
    pub peer: u64,
    /// Zero.
    pub reserved: u64,
    /// 1: valid.
    pub valid: u64,
}

/// Memory on this side that peers may write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Window {
    /// Address of its first byte.
    pub base: u64,
    /// Bytes.
    pub length: u64,
    /// Zero.
    pub reserved: u64,
    /// 1: valid.
    pub valid: u64,
}

/// A route: the object that descriptors name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Route {
    /// Entry of the lane table.
    pub lane: u64,
    /// Address of the first byte that may be read.
    pub source_base: u64,
    /// Bytes that may be read; 0 for a route that carries signals alone.
    pub source_length: u64,
    /// Entry of the *peer's* window table.
    pub window: u64,
    /// Offset of the destination in that window.
    pub window_offset: u64,
    /// Bytes that may be written from there.
    pub destination_length: u64,
    /// Zero.
    pub reserved: u64,
    /// 1: valid.
    pub valid: u64,
}

const _: () = {
    assert!(size_of::<Identity>() == 21 * 8);
    assert!(size_of::<Control>() <= (STATUS_OFFSET - CONTROL_OFFSET) as usize);
    assert!(size_of::<Status>() <= (ERROR_OFFSET - STATUS_OFFSET) as usize);
    assert!(ERROR_OFFSET as usize + size_of::<ErrorRecord>() <= RING_OFFSET as usize);
    assert!(size_of::<Peer>() == 32 && size_of::<Lane>() == 32);
    assert!(size_of::<Signal>() == 32 && size_of::<Window>() == 32);
    assert!(size_of::<Route>() == 64);
};
