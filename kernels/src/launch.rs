//! Arguments of a launch of the executor, and the record of an expired wait.

use crate::op::BUFFERS_MAX;
use bytemuck::{Pod, Zeroable};

/// State that all launches of one communicator share; one per rank, in device memory, written once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct DeviceCommunicator {
    /// Device address of ring slot 0 (pinned host memory that the engine polls).
    pub ring_slots: u64,
    /// Device address of `head`, the next free position (device memory; producers fetch-add it).
    pub ring_head: u64,
    /// Device address of `tail`, the first position not yet freed (written by the engine).
    pub ring_tail: u64,
    /// Device address of the producers' cached copy of `tail` (device memory).
    pub ring_tail_cache: u64,
    /// The ring has `1 << ring_log2` slots.
    pub ring_log2: u32,
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub rank_count: u32,
    /// Number of entries in the port table.
    pub port_count: u32,
    /// Device address of the [`Port`](crate::port::Port) table.
    pub ports: u64,
    /// Device address of the abort word (pinned host memory, `u32`): non-zero stops every wait.
    pub abort: u64,
    /// Device address of the claim word of the record (device memory, `u32`): one thread
    /// changes it from 0 to [`RECORD_CLAIMED`].
    pub record_claim: u64,
    /// Device address of the [`WaitRecord`] (pinned host memory).
    pub record: u64,
    /// How long one wait may last, in nanoseconds.
    pub timeout_ns: u64,
    /// Device address of the rank's staging memory, which holds the slots of its ports. A put from
    /// a slot names its source by the offset from here.
    pub staging: u64,
    /// The same for ports whose slots lie in pinned host memory, where adapters reach no device
    /// memory; 0 without such ports.
    pub host_staging: u64,
    /// The same for ports whose slots lie in host memory that ranks of the same node write, whose
    /// GPUs reach no memory of this one's; 0 without such ports.
    pub shared_staging: u64,
    /// Device address of the number of blocks of the running launch that have ended (device
    /// memory, `u64`).
    pub blocks_ended: u64,
    /// Device address of the number of launches that have ended (pinned host memory, `u64`), for
    /// an engine that idles between launches; 0 where none does.
    pub launches_ended: u64,
    /// Device address of the routes from this rank's sources ([`place::source_entry`]; pinned host
    /// memory, which the host changes while kernels run); 0 without such sources.
    pub sources: u64,
}

/// Places in registered memory, as one word, and the table that leads from them to routes (R15).
///
/// Two kinds of places: one in this rank's memory, from which it puts, has the number of a
/// *source*; one in a peer's memory, which that peer has granted, has the number of a *grant*,
/// given by the rank that may write there, and the *generation* of that number.
pub mod place {
    /// Bits of the offset from the start of the registered memory.
    pub const OFFSET_BITS: u32 = 40;
    /// Where the generation of a grant begins; below is its number.
    pub const GENERATION_SHIFT: u32 = 52;
    /// The most sources of a rank; number 0 is its staging memory.
    pub const SOURCES_MAX: u32 = 64;
    /// The most grants that a rank knows, of all its peers; number 0 stands for slots.
    pub const GRANTS_MAX: u32 = 256;
    /// The largest generation; 0 is none.
    pub const GENERATION_MAX: u32 = (1 << 12) - 1;
    /// Where the generation begins in an entry of the table; below is the route.
    pub const ENTRY_GENERATION_SHIFT: u32 = 20;
    /// Bytes of the table.
    pub const TABLE_BYTES: usize = (SOURCES_MAX * GRANTS_MAX) as usize * 4;

    /// A place in a source.
    pub const fn of_source(source: u32, offset: u64) -> u64 {
        (source as u64) << OFFSET_BITS | offset
    }

    /// A place that is granted.
    pub const fn of_grant(grant: u32, generation: u32, offset: u64) -> u64 {
        (generation as u64) << GENERATION_SHIFT | (grant as u64) << OFFSET_BITS | offset
    }

    /// The index of an entry (`u32`) of the table. With grant 0 the entry is the route from the
    /// source to the slots of port 0, to which a put adds the number of its port's route; else it
    /// is [`entry`]. 0: there is none.
    pub const fn source_entry(source: u32, grant: u32) -> u32 {
        source * GRANTS_MAX + grant
    }

    /// The entry of a grant.
    pub const fn entry(route: u32, generation: u32) -> u32 {
        generation << ENTRY_GENERATION_SHIFT | route
    }
}

/// The most calls that one launch runs.
pub const LAUNCH_CALLS_MAX: usize = 8;

/// The parameter of the executor kernel, by value.
///
/// Each block runs its parts of all calls, one call after the other, and does not wait for the
/// other blocks in between. So calls of one launch use each port in one block alone, the same for
/// all of them, and no call touches memory that another one writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct LaunchArguments {
    /// Device address of the [`DeviceCommunicator`].
    pub communicator: u64,
    /// Counts the launches of this communicator; reported in the record of an expired wait.
    pub sequence: u64,
    /// How many of `calls` there are: 1 to [`LAUNCH_CALLS_MAX`].
    pub call_count: u32,
    /// Zero.
    pub reserved: u32,
    /// In their order.
    pub calls: [CallArguments; LAUNCH_CALLS_MAX],
}

/// What one call of a launch reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct CallArguments {
    /// Device address of the encoded plan.
    pub plan: u64,
    /// Device addresses of the call's buffers: 0 input, 1 output, others as the plan says.
    pub buffers: [u64; BUFFERS_MAX],
    /// For buffers that are registered: bytes from the start of the registered region, the same
    /// on every rank.
    pub region_offsets: [u64; BUFFERS_MAX],
    /// First route of the pair (source buffer, destination buffer); a put adds its port's
    /// `route_index`. Index: `source * BUFFERS_MAX + destination`.
    pub route_bases: [u32; BUFFERS_MAX * BUFFERS_MAX],
    /// The scalar of `PreMulSum`: the bits of an f64 for f64, of an f32 for the other floats
    /// (f16 and bf16 too), the integer's bits, sign-extended, for integers.
    pub scalar: u64,
    /// A [`DataType`](crate::element::DataType) code.
    pub data_type: u32,
    /// A [`ReduceOp`](crate::element::ReduceOp) code.
    pub reduce_op: u32,
    /// Device address of a table of device addresses (u64), for operands in
    /// [`Space::Address`](crate::op::Space::Address).
    pub addresses: u64,
    /// Entries of the table.
    pub address_count: u32,
    /// The number of the source that the input is in, `region_offsets[0]` bytes from its start; 0
    /// where plans copy what they send.
    pub source: u32,
}

/// Kinds of waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum WaitKind {
    /// Data from `peer`. Where data and flag travel together, `expected` and `seen` of the record
    /// are flags, and `position` is the message's number.
    Arrival = 1,
    /// A credit (or grant) from `peer`.
    Credit = 2,
    /// The local engine, to finish reading a source that goes to `peer`.
    Completion = 3,
    /// The local engine, to free a ring slot.
    RingSpace = 4,
    /// Not a wait: the executor refused the plan. The record's `position` is a [`PlanFault`],
    /// `expected` what was expected or the limit, `seen` what the plan says.
    BadPlan = 5,
    /// Not a wait: the claim of the record holds a value that no thread writes. `expected` is
    /// [`RECORD_CLAIMED`], `seen` the value.
    StrayClaim = 6,
    /// Not a wait: a call of a user's kernel was refused. Fields as for `BadPlan`; the sequence is
    /// the user's.
    BadCall = 7,
    /// A counter of a resident program. `segment` of the record is the task that waits, `op` the
    /// counter, `position` the iteration.
    Counter = 8,
}

/// The claim of the record once a thread has taken it; 0 before.
pub const RECORD_CLAIMED: u32 = 0x4b41_454c;

impl WaitKind {
    /// The kind with this code.
    pub const fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            1 => Self::Arrival,
            2 => Self::Credit,
            3 => Self::Completion,
            4 => Self::RingSpace,
            5 => Self::BadPlan,
            6 => Self::StrayClaim,
            7 => Self::BadCall,
            8 => Self::Counter,
            _ => return None,
        })
    }
}

/// Why the executor refused a plan, or a call of a user's kernel was refused. A verified and
/// correctly encoded plan never causes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum PlanFault {
    /// The plan does not start with its magic number.
    Magic = 1,
    /// The launch has fewer blocks than the plan.
    BlockCount = 2,
    /// The launch's blocks have fewer threads than the plan's, or not a multiple of 32.
    ThreadCount = 3,
    /// A record lies outside of the plan, or is misaligned. `seen`: its end.
    Range = 4,
    /// A block uses more ports than it can cache.
    PortCount = 5,
    /// A port's number is not in the communicator's table.
    PortNumber = 6,
    /// No op has this code.
    OpCode = 7,
    /// An op names a place that is not in its block's list of ports.
    OpPort = 8,
    /// An operand is in a space in which the op cannot use it.
    Space = 9,
    /// No such buffer or entry of the table of addresses, or the launch does not bind it.
    BufferNumber = 10,
    /// An operand reaches past its slot, or its lane has no slots.
    SlotRange = 11,
    /// A put of more than a descriptor can carry.
    PutLength = 12,
    /// An offset that a descriptor cannot carry.
    DescriptorOffset = 13,
    /// A route that a descriptor cannot carry.
    Route = 14,
    /// An operand of a reduction is not a whole number of elements. `expected`: element size.
    Alignment = 15,
    /// The call's data type has no such code.
    DataType = 16,
    /// The call's reduction has no such code.
    ReduceOp = 17,
    /// A wait on a signal that the port does not have.
    NoSignal = 18,
    /// A put between slots of another port than its own.
    SlotPort = 19,
    /// An op collects no message, or more than it can.
    MessageCount = 20,
    /// LL messages that one op handles have different numbers at its ports.
    MessageNumber = 21,
    /// A user's kernel opens a lane to a rank that is no other rank. `expected`: number of ranks.
    Peer = 22,
    /// A user's kernel opens a lane that does not exist. `expected`: user lanes of each peer.
    Lane = 23,
    /// The launch has no calls, or more than it can. `expected`: [`LAUNCH_CALLS_MAX`].
    CallCount = 24,
    /// A source, or a grant, that this rank has no route for (any more): `expected` is the
    /// generation of the grant, `seen` that of the route. Or a registered buffer of a peer that was
    /// taken back.
    Place = 25,
}

impl PlanFault {
    /// Every fault, in the order of the codes, which start at 1.
    pub const ALL: [Self; 25] = [
        Self::Magic,
        Self::BlockCount,
        Self::ThreadCount,
        Self::Range,
        Self::PortCount,
        Self::PortNumber,
        Self::OpCode,
        Self::OpPort,
        Self::Space,
        Self::BufferNumber,
        Self::SlotRange,
        Self::PutLength,
        Self::DescriptorOffset,
        Self::Route,
        Self::Alignment,
        Self::DataType,
        Self::ReduceOp,
        Self::NoSignal,
        Self::SlotPort,
        Self::MessageCount,
        Self::MessageNumber,
        Self::Peer,
        Self::Lane,
        Self::CallCount,
        Self::Place,
    ];

    /// The fault with this code.
    pub const fn from_code(code: u64) -> Option<Self> {
        if code >= 1 && code <= Self::ALL.len() as u64 {
            Some(Self::ALL[code as usize - 1])
        } else {
            None
        }
    }
}

/// The record of R10, in pinned host memory. The winning thread writes every field, then `state`
/// with system-scope release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct WaitRecord {
    /// 0: no record. 1: complete, the wait's deadline passed (or the plan was refused).
    /// 2: complete, the wait saw the abort word.
    pub state: u32,
    /// A [`WaitKind`].
    pub kind: u32,
    /// Block that waited.
    pub block: u32,
    /// Segment of the block's program.
    pub segment: u32,
    /// Op within the segment.
    pub op: u32,
    /// Round of the segment.
    pub round: u32,
    /// Port (index into the communicator's port table), or `u32::MAX` where there is none.
    pub port: u32,
    /// The rank at the other end, or `u32::MAX` where there is none.
    pub peer: u32,
    /// Signal value that was waited for (for `RingSpace`: the tail that was needed).
    pub expected: u64,
    /// Signal value seen last.
    pub seen: u64,
    /// The port's position when the wait began (for `RingSpace`: the ring position taken; for
    /// `BadPlan` and `BadCall`: a [`PlanFault`]).
    pub position: u64,
    /// `sequence` of the launch.
    pub sequence: u64,
    /// How long the wait had lasted, in nanoseconds.
    pub waited_ns: u64,
    /// Which of the launch's calls.
    pub call: u64,
    /// Zero.
    pub reserved: [u64; 2],
}

const _: () = {
    assert!(size_of::<DeviceCommunicator>() == 136);
    assert!(size_of::<CallArguments>() == 168);
    assert!(size_of::<LaunchArguments>() == 24 + 168 * LAUNCH_CALLS_MAX);
    assert!(size_of::<WaitRecord>() == 96);
};
