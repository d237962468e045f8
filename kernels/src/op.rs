//! The encoded plan: what one rank's executor kernel runs.
//!
//! One contiguous piece of device memory, all offsets in bytes from its start, all records 16-byte
//! aligned:
//!
//! ```text
//! PlanHeader | BlockProgram x block_count | port lists (u32) | segments | ops
//! ```
//!
//! Block `b` of the launch runs `BlockProgram` `b`: its segments in order; a segment's ops
//! `rounds` times. In round `r` every offset into a *buffer* is moved by `r * round_stride` bytes
//! (offsets into slots are not), and the op's length is clipped:
//! `clamp(limit - (extent + r * round_stride), 0, length)`. An op whose clipped length is 0 moves
//! nothing, but a put still raises its signals, so that counts stay equal on both sides.

use bytemuck::{Pod, Zeroable};

/// "RDPLAN" and the layout's version; the executor refuses anything else.
pub const PLAN_MAGIC: u64 = 0x0001_4e41_4c50_4452;
/// The most ports that one block may use (they are cached in shared memory).
pub const BLOCK_PORTS_MAX: usize = 32;

/// The most threads of a block.
pub const THREADS_MAX: u32 = 640;
/// The most buffers that a launch can bind by number.
pub const BUFFERS_MAX: usize = 4;
/// Where the number of an entry in the launch's table of addresses begins, in a 64-bit address of a
/// plan: below are the bytes behind it. No transfer is as long.
pub const ADDRESS_NUMBER_SHIFT: u32 = 40;
/// The most LL messages that one op collects: one for each peer of 16 ranks.
pub const MESSAGES_MAX: usize = 15;
/// An LL message whose number is a multiple of this, or follows one closely enough to be the
/// first in its slot, fills its slot. So no word of a slot keeps a flag until that flag, of which
/// there are 2^32, is expected again.
pub const WHOLE_SLOT_PERIOD: u64 = 1 << 30;

/// Bytes that `data_bytes` take in a slot as an LL message: each 4 with a flag of 4, padded to
/// whole pairs of such words, for accesses of 16 bytes.
pub const fn ll_bytes(data_bytes: u64) -> u64 {
    2 * data_bytes.next_multiple_of(8)
}

/// The flag of message `number` of a lane. Zero is a slot that was never written.
pub const fn flag_of(number: u64) -> u32 {
    (number as u32).wrapping_add(1)
}

/// Start of an encoded plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct PlanHeader {
    /// [`PLAN_MAGIC`].
    pub magic: u64,
    /// Bytes of the whole encoded plan.
    pub size_bytes: u32,
    /// Blocks of the launch.
    pub block_count: u32,
    /// Threads of each block, a multiple of 32.
    pub thread_count: u32,
    /// Zero.
    pub reserved: [u32; 3],
}

/// One block's program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockProgram {
    /// Byte offset of the block's first [`Segment`].
    pub segments: u32,
    /// Number of segments.
    pub segment_count: u32,
    /// Byte offset of the block's list of port numbers (`u32` each, indices into the
    /// communicator's port table). Ops name ports by their place in this list.
    pub ports: u32,
    /// Number of ports, at most [`BLOCK_PORTS_MAX`].
    pub port_count: u32,
}

/// Ops that run `rounds` times over successive pieces of the buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Segment {
    /// Byte offset of the first [`Op`].
    pub ops: u32,
    /// Number of ops.
    pub op_count: u32,
    /// How often they run.
    pub rounds: u32,
    /// Zero.
    pub reserved: u32,
    /// Bytes that buffer offsets move by from one round to the next.
    pub round_stride: u64,
    /// Bytes at which lengths are clipped.
    pub limit: u64,
}

/// Codes of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum OpCode {
    /// `destination = a`.
    Copy = 1,
    /// `destination = a (op) b`, elementwise, with the launch's data type and reduction.
    Reduce = 2,
    /// Ring a doorbell: move `a` to `destination` at the peer of `port` (a send port). On a lane of
    /// stores an LL message is there already. `a` is a slot or, to a slot or what was granted, the
    /// input, where it is registered
    /// ([`CallArguments::source`](crate::launch::CallArguments::source)),
    /// or an entry of the table of addresses that is a [`place`](crate::launch::place) of
    /// registered memory.
    Put = 3,
    /// Ring a doorbell without data: return one credit on `port` (a receive port). On a lane of
    /// stores `value` credits at once.
    Credit = 4,
    /// Wait until the port's signal has reached `position + value` (signed).
    WaitSignal = 5,
    /// Wait until the port's completion signal has reached `completion_position + value`.
    WaitCompletion = 6,
    /// Advance the port: `position += value`, `completion_position += destination.offset`.
    Advance = 7,
    /// Write `a` as LL message `position + destination.number` of `port` (the send port of an LL
    /// lane). The bits of `value` are the places of all ports whose puts send it: at those of
    /// lanes of stores it is written into the peers' slots; if there are others, also into the
    /// slot at `port`, from where engines take it. Without `a` ([`Space::None`]) the message's data
    /// is zeros, and says only that it has come.
    Pack = 8,
    /// `destination` = the reduction of `a` and of LL messages `position + b.number` at
    /// `value` ports, of which `port` is the first (receive ports of LL lanes). The messages
    /// are taken in the order of their ports, and `a` after the first `before` of them. Waits for
    /// each word of them. Without `a`, it is the reduction of the messages: of one, a copy. Without
    /// `destination`, it only waits.
    Collect = 9,
    /// Ring a doorbell: return one credit on `port` (a receive port) that says where the messages
    /// to come go, in the [`place`](crate::launch::place) beside the sender's slots (R15): entry
    /// `a.number - 1` of the table of addresses, `a.offset` bytes behind it, is the place. Without
    /// `a` ([`Space::None`]) they go into their slots.
    Grant = 10,
}

impl OpCode {
    /// The code with this number.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Copy,
            2 => Self::Reduce,
            3 => Self::Put,
            4 => Self::Credit,
            5 => Self::WaitSignal,
            6 => Self::WaitCompletion,
            7 => Self::Advance,
            8 => Self::Pack,
            9 => Self::Collect,
            10 => Self::Grant,
            _ => return None,
        })
    }
}

/// Flags of an op.
pub mod flags {
    /// `Put`: raise the arrival signal at the peer.
    pub const ARRIVAL: u8 = 1;
    /// `Put`: raise this port's completion signal when the source may be overwritten.
    pub const COMPLETION: u8 = 2;
    /// `Copy`: multiply by the launch's scalar. `Reduce`: multiply operand `b` by it first.
    /// Only with `ReduceOp::PreMulSum`; ignored for other reductions.
    pub const SCALE: u8 = 4;
    /// `Reduce`: this is the last contribution; apply what the reduction needs at its end (the
    /// division of `ReduceOp::Avg`). `Copy` with this flag does so too (one rank alone).
    /// `Collect`: apply it after the last term.
    pub const FINISH: u8 = 8;
    /// `Put`: the slot holds an LL message of `length` bytes of data.
    pub const LOW_LATENCY: u8 = 16;
}

/// Where an operand lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Space {
    /// No operand.
    None = 0,
    /// Buffer `number` of the launch, `offset` bytes into it; moves with the round.
    Buffer = 1,
    /// The slot of message `position + number` at port `port`, `offset` bytes into it.
    Slot = 2,
    /// `offset` bytes behind entry `number - 1` of the launch's table of addresses; number 0: the
    /// device address `offset` itself. Moves with the round. For a put the entry is a place of
    /// registered memory, and no address.
    Address = 3,
    /// Of a put alone: `offset` bytes behind what the peer has granted last, which moves with the
    /// round; if that was its slots, the slot of message `position + number` at port `port`.
    Granted = 4,
    /// As [`Address`](Self::Address): memory of the rank at the other end of port `port`, which
    /// this rank's threads reach.
    Peer = 5,
}

/// One operand of an op.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Operand {
    /// Bytes from the start of the buffer or slot, or a device address.
    pub offset: u64,
    /// Buffer number, or message number relative to the port's position.
    pub number: u32,
    /// Place of the port in the block's list ([`Space::Slot`], [`Space::Granted`] and
    /// [`Space::Peer`] only).
    pub port: u16,
    /// A [`Space`].
    pub space: u8,
    /// Zero.
    pub reserved: u8,
}

/// One op, 80 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Op {
    /// An [`OpCode`].
    pub code: u8,
    /// [`flags`].
    pub flags: u8,
    /// Place of the op's port in the block's list; of `Collect`, of the first port.
    pub port: u16,
    /// Bytes, before clipping.
    pub length: u32,
    /// Where the op's bytes stand in the collective's element range, for clipping. Bytes.
    pub extent: u64,
    /// `Wait*`: expected signal relative to the position. `Advance`: how far. `Collect`: number of
    /// ports. `Pack`: a set of ports. `Copy`, `Reduce`: how many ops behind it may share its pass
    /// over memory.
    pub value: i64,
    /// `Collect`: how many messages come before `a` in the order of terms.
    pub before: u64,
    /// Where data goes. For a `Put` this is memory of the peer.
    pub destination: Operand,
    /// First source.
    pub a: Operand,
    /// Second source (`Reduce`), or the messages' number (`Collect`).
    pub b: Operand,
}

const _: () = {
    assert!(size_of::<PlanHeader>() == 32);
    assert!(size_of::<BlockProgram>() == 16);
    assert!(size_of::<Segment>() == 32);
    assert!(size_of::<Operand>() == 16);
    assert!(size_of::<Op>() == 80);
};
