//! Plans: what every rank does for one collective, as data.
//!
//! A plan is an object of the whole world: for each rank and each block a program of ops. Every
//! rank builds the same plan from the same request, [`verify`] proves it, and each rank then
//! encodes its own part for the executor kernel. Only a [`Verified`] plan can be encoded.
//!
//! Where [`is_proved`] says no, a rank builds its own program alone, and it is checked op by op
//! ([`own_part`]): ports, operands and sizes, and not what the ranks do together. A proof compares
//! what all agents know of each other: of a direct exchange of 256 ranks these are 65,280 lanes,
//! and the proof would take more memory than the data. The programs come from the algorithms that
//! are proved for fewer ranks, by the same formulas; tests prove plans of 100 and 256 ranks, too.
//! Where a plan is long, a short one is proved in its place ([`stand_in`]).
//!
//! `README.md` says how an algorithm is written.
//!
//! * `request`: the collectives, and what each rank has and gets
//! * `builder`: pieces that algorithms share (claim a slot, put it, wait, release it)
//! * `forest`: trees that span all ranks; `packed_trees`: data along them
//! * `order`: the order in which rings pass the ranks of a node
//! * `piece`: messages that hold parts of several ranks; `part`: blocks with a piece for each rank
//! * `all_pairs`, `all_reduce_doubling`, `all_reduce_halving`, `all_reduce_hierarchical`,
//!   `all_reduce_ring`, `all_reduce_symmetric`, `all_reduce_two_shot`, `all_reduce_two_shot_nodes`,
//!   `alone`, `barrier`, `bruck`, `chain`, `exchange`, `exchange_direct`, `in_rank_order`, `ring`,
//!   `send_recv`, `star`, `tree`: one file for each algorithm
//! * `selection`: which algorithm and which sizes, as one documented table
//! * `verify`: the symbolic verifier
//! * `proof`: what is proved of a long plan
//! * `encode`: typed ops to the bytes of [`ringdove_kernels::op`]; `fuse`: ops that go in one pass
//! * `draft`: programs one rank at a time, for worlds too large to hold (feature `draft-plans`)
//! * `display`: a plan as text, one op a line; `file`: a plan in a file, with what it is for
//! * `op`: what all ops have, whatever they do
//! * `in_switch`: multicast and reduction in switches, *planned*
//! * `lacks`: what a plan of a file uses and a communicator lacks
//! * `import`: plans of others, MSCCL's and MSCCL++'s; `scratch`: memory that some of them need

mod all_pairs;
mod all_reduce_doubling;
mod all_reduce_halving;
mod all_reduce_hierarchical;
mod all_reduce_ring;
mod all_reduce_ring_symmetric;
mod all_reduce_symmetric;
mod all_reduce_two_shot;
mod all_reduce_two_shot_nodes;
mod alone;
mod barrier;
mod bruck;
mod builder;
mod chain;
mod display;
#[cfg(any(test, feature = "draft-plans"))]
mod draft;
mod encode;
mod exchange;
mod exchange_direct;
mod file;
mod forest;
mod fuse;
#[cfg(test)]
mod host;
mod import;
mod in_rank_order;
mod in_switch;
mod lacks;
mod op;
mod order;
mod packed;
mod packed_trees;
mod part;
mod piece;
mod proof;
mod request;
mod ring;
mod scratch;
mod selection;
mod send_recv;
mod star;
#[cfg(test)]
pub(crate) mod tests;
mod tree;
mod verify;

#[cfg(any(test, feature = "draft-plans"))]
pub use draft::{Draft, Pattern};
pub use encode::{ENCODED_BYTES_MAX, EncodeError, PortResolver};
pub use file::{FileError, PlanFile};
pub use forest::{Forest, ForestError, SpanningTree};
pub(crate) use fuse::shared;
pub use import::{ImportError, ImportedPlan, SCRATCH_BYTES_MAX};
pub use in_switch::InSwitch;
pub use lacks::lacks;
pub use order::{ORDERED_RANKS_MAX, RingOrder};
pub(crate) use packed_trees::SLICES_AHEAD;
pub use proof::stand_in;
pub use request::{Collective, CollectiveRequest, Delivery};
pub(crate) use scratch::places;
pub(crate) use selection::TREES_PER_LANE;
pub(crate) use selection::{
    ALL_PAIRS_RANKS_MAX, DIRECT_PAIRS_RANKS_MAX, goes_in_place, is_granted,
};
pub use selection::{
    Algorithm, Choice, Limits, PlanError, candidates, choose_of, select, select_packed,
};
pub(crate) use send_recv::check_overlap;
pub use send_recv::{Direction, Group, PointToPoint, group, group_plan};
pub use verify::{Access, Promise, Reason, Site, Stuck, Verified, VerifyError, verify};

use serde::{Deserialize, Serialize};

/// The page on how algorithms are written; its example is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("README.md")]
struct Readme;

/// Every piece of a buffer that one op handles starts at a multiple of this many bytes (from the
/// start of the buffer), so that the executor's 16-byte accesses stay aligned.
pub const GRANULE_BYTES: u64 = 16;

/// Builds the plan that `choice` describes.
///
/// # Panics
/// If a ring of the choice lacks a rank, which [`select`] never does.
pub fn build(choice: &Choice) -> Plan {
    let ranks = (0..choice.request.rank_count).map(|rank| program(choice, rank)).collect();
    Plan { ranks, thread_count: choice.thread_count, slots: choice.slots }
}

/// The most ranks of a collective whose plan is proved before it runs, whatever it is.
pub const PROVED_RANKS_MAX: u32 = 64;

/// The same of plans in few hops.
pub const PROVED_RANKS_MAX_IN_FEW_HOPS: u32 = 256;

/// Is this plan proved before it runs? All ranks answer alike.
pub fn is_proved(choice: &Choice) -> bool {
    let most = match choice.algorithm {
        Algorithm::Doubling
        | Algorithm::Halving
        | Algorithm::Tree
        | Algorithm::Bruck
        | Algorithm::Dissemination => PROVED_RANKS_MAX_IN_FEW_HOPS,
        _ => PROVED_RANKS_MAX,
    };
    choice.request.rank_count <= most
}

/// The program of `rank` alone, of the plan that `choice` describes: the other ranks' programs are
/// empty. For worlds that are too large for [`verify`]; every op is checked by itself.
///
/// # Errors
/// The first op that no executor would run.
///
/// # Panics
/// As [`build`].
pub fn own_part(choice: &Choice, rank: u32) -> Result<Verified, VerifyError> {
    let empty = || RankProgram { blocks: vec![BlockProgram::default()] };
    let own = |other| if other == rank { program(choice, rank) } else { empty() };
    let ranks = (0..choice.request.rank_count).map(own).collect();
    verify::check_ops(Plan { ranks, thread_count: choice.thread_count, slots: choice.slots })
}

/// One rank's part of [`build`].
fn program(choice: &Choice, rank: u32) -> RankProgram {
    match &choice.order {
        Some(order) => program_of_place(choice, order, rank),
        None => program_in_order(choice, rank),
    }
}

/// The same by the program of the rank's place on rings.
fn program_of_place(choice: &Choice, order: &RingOrder, rank: u32) -> RankProgram {
    let placed = Choice { request: order.request(&choice.request), ..choice.clone() };
    let mut program = program_in_order(&placed, order.place_of(rank));
    for port in program.blocks.iter_mut().flat_map(|block| &mut block.ports) {
        port.lane.from = order.rank_at(port.lane.from);
        port.lane.to = order.rank_at(port.lane.to);
    }
    program
}

/// The same where rings go by the numbers of ranks, or of places.
fn program_in_order(choice: &Choice, rank: u32) -> RankProgram {
    match choice.algorithm {
        Algorithm::Copy => alone::program(choice),
        Algorithm::AllPairs => all_pairs::program(choice, rank),
        Algorithm::Hierarchical | Algorithm::HierarchicalHybrid => {
            all_reduce_hierarchical::program(choice, rank)
        }
        Algorithm::RingHybrid => all_reduce_ring::program(choice, rank),
        Algorithm::RingStaged | Algorithm::RingDirect => match choice.request.collective {
            Collective::AllReduce => all_reduce_ring::program(choice, rank),
            _ => ring::program(choice, rank),
        },
        Algorithm::Chain | Algorithm::ChainDirect => chain::program(choice, rank),
        Algorithm::Exchange => exchange::program(choice, rank),
        Algorithm::ExchangeDirect => exchange_direct::program(choice, rank),
        Algorithm::Star => star::program(choice, rank),
        Algorithm::Dissemination => barrier::program(choice, rank),
        Algorithm::Doubling => all_reduce_doubling::program(choice, rank),
        Algorithm::Halving => part::program(choice, rank, all_reduce_halving::program),
        Algorithm::TwoShot => part::program(choice, rank, all_reduce_two_shot::program),
        Algorithm::Symmetric => part::program(choice, rank, all_reduce_symmetric::program),
        Algorithm::RingSymmetric => part::program(choice, rank, all_reduce_ring_symmetric::program),
        Algorithm::TwoShotNodes => all_reduce_two_shot_nodes::program(choice, rank),
        Algorithm::Tree => tree::program(choice, rank),
        Algorithm::Bruck => bruck::program(choice, rank),
        Algorithm::InRankOrder => in_rank_order::program(choice, rank),
        Algorithm::Packed => packed_trees::program(choice, rank),
    }
}

/// What all ranks do for one collective.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Plan {
    /// One program for each rank.
    pub ranks: Vec<RankProgram>,
    /// Threads of each block, a multiple of 32.
    pub thread_count: u32,
    /// The slots of every lane that has slots; a plan uses such lanes of one kind only.
    pub slots: SlotShape,
}

/// What one rank does: one program for each block of its launch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RankProgram {
    /// The blocks; at least one.
    pub blocks: Vec<BlockProgram>,
}

/// What one block does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct BlockProgram {
    /// The lane ends that the block's ops use; ops name them by [`PortIndex`].
    pub ports: Vec<LaneEnd>,
    /// The block's segments, run in order.
    pub segments: Vec<Segment>,
}

/// Ops that run `rounds` times over successive pieces of the buffers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Segment {
    /// How often the ops run.
    pub rounds: u32,
    /// Bytes that buffer offsets and addresses move by from one round to the next.
    pub round_stride: u64,
    /// Bytes of the collective at which lengths are clipped.
    pub limit: u64,
    /// The ops of one round.
    pub ops: Vec<Op>,
}

impl Segment {
    /// Bytes of `range` that exist in `round`: `clamp(limit - start, 0, length)`.
    pub fn clip(&self, round: u32, range: Range) -> u64 {
        let start = range.extent + u64::from(round) * self.round_stride;
        self.limit.saturating_sub(start).min(u64::from(range.length))
    }
}

/// Slots of a lane: equal pieces of staging memory at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SlotShape {
    /// Bytes of one slot, a multiple of 16.
    pub bytes: u32,
    /// Number of slots, a power of two.
    pub count: u32,
}

/// A lane: the unit of ordering, from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Lane {
    /// The rank that puts.
    pub from: u32,
    /// The rank that receives.
    pub to: u32,
    /// Which of the lanes of this kind between the two.
    pub index: u16,
    /// With slots, or between registered buffers.
    pub kind: LaneKind,
}

/// What a lane moves data between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum LaneKind {
    /// Staging slots at both ends; a credit frees one slot.
    Slots,
    /// Registered buffers; a credit is a grant to write the receiver's buffer.
    Direct,
    /// Slots at both ends that only ever hold LL messages (R13). No signals, no credits.
    LowLatency,
    /// Slots at the receiver, which the sender's blocks write themselves; a credit frees one. No
    /// engine takes part: a put is the arrival signal alone (R14).
    Stores,
    /// Slots at both ends, as [`Slots`](Self::Slots), between neighbours on a rail. There is one
    /// for each lane of stores on the nodes, of the same shape: one block feeds both.
    Rail,
    /// Slots, or registered buffers: what a user's kernel says. No plan uses it.
    User,
}

impl LaneKind {
    /// Do registered buffers move on lanes of this kind, for each pair of which they need a route?
    pub(crate) fn moves_buffers(self) -> bool {
        matches!(self, Self::Direct | Self::User)
    }
}

/// Which end of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Side {
    /// At the source: puts, waits for credits and completions.
    Send,
    /// At the destination: waits for arrivals, returns credits.
    Receive,
}

/// One end of a lane; the communicator has a port for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LaneEnd {
    /// The lane.
    pub lane: Lane,
    /// Which end of it.
    pub side: Side,
}

impl LaneEnd {
    /// The rank at this end.
    pub fn rank(&self) -> u32 {
        match self.side {
            Side::Send => self.lane.from,
            Side::Receive => self.lane.to,
        }
    }

    /// The rank at the other end.
    pub fn peer(&self) -> u32 {
        match self.side {
            Side::Send => self.lane.to,
            Side::Receive => self.lane.from,
        }
    }
}

/// Place of a port in its block's list.
pub type PortIndex = u16;

/// A buffer that the launch binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Buffer {
    /// Buffer 0: the caller's input.
    Input,
    /// Buffer 1: the caller's output (the same memory as the input for an in-place call).
    Output,
    /// Buffer 2: memory of the rank's own, which holds nothing when a launch begins.
    Scratch,
}

impl Buffer {
    /// The buffer's number in the launch.
    pub fn number(self) -> u32 {
        match self {
            Self::Input => 0,
            Self::Output => 1,
            Self::Scratch => 2,
        }
    }
}

/// Where an operand lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Operand {
    /// `offset` bytes into a buffer; moves with the round.
    Buffer {
        /// Which buffer.
        buffer: Buffer,
        /// Bytes from its start, in round 0.
        offset: u64,
    },
    /// The slot of a message at one of the block's ports.
    Slot {
        /// The port.
        port: PortIndex,
        /// Message number relative to the port's position.
        message: u32,
        /// Bytes from the start of the slot.
        offset: u64,
    },
    /// A device address, or, from 2^40 on, the entry of the launch's table of addresses with the
    /// number in the bits from 40 on, and bytes behind it. Moves with the round. As the source of a
    /// put, or as what is granted, it is registered memory.
    Address(u64),
    /// Of a put alone: what the peer has granted last on this lane: `offset` bytes behind that
    /// place, which moves with the round, or the message's slot.
    Granted {
        /// The op's port.
        port: PortIndex,
        /// Message number relative to the port's position.
        message: u32,
        /// Bytes behind a place, in round 0.
        offset: u64,
    },
    /// `offset` bytes into a registered buffer of the rank at the other end of one of the block's
    /// ports, which is one of a lane of stores: threads read it at a receive port, and write it at
    /// a send port. Moves with the round.
    Peer {
        /// The port.
        port: PortIndex,
        /// Which buffer: the input or the output.
        buffer: Buffer,
        /// Bytes from its start, in round 0.
        offset: u64,
    },
}

/// How many bytes an op handles and where they stand in the collective, for clipping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Range {
    /// Bytes from the start of the collective's data, in round 0.
    pub extent: u64,
    /// Bytes, before clipping.
    pub length: u32,
}

/// What a copy or reduction does beyond moving and combining.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Modifiers {
    /// Multiply the source (of a reduction: operand `b`) by the launch's scalar first.
    pub scale: bool,
    /// This is the last contribution: apply what the reduction needs at its end.
    pub finish: bool,
}

impl Modifiers {
    /// Neither.
    pub const NONE: Self = Self { scale: false, finish: false };
    /// Scale only.
    pub const SCALE: Self = Self { scale: true, finish: false };
}

/// One op. The comments of [`ringdove_kernels::op::OpCode`] say what each does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Op {
    /// `destination = source`.
    Copy {
        /// Where to.
        destination: Operand,
        /// Where from.
        source: Operand,
        /// How much.
        range: Range,
        /// Scaling and finishing.
        modifiers: Modifiers,
    },
    /// `destination = a (op) b`.
    Reduce {
        /// Where to; may equal `a` or `b`.
        destination: Operand,
        /// First operand.
        a: Operand,
        /// Second operand, the one that `scale` applies to.
        b: Operand,
        /// How much.
        range: Range,
        /// Scaling and finishing.
        modifiers: Modifiers,
    },
    /// Write `source` as an LL message into the slot at a send port. Puts on this lane and on
    /// others, at which the same message is next, may take it from there.
    Pack {
        /// The send port of an LL lane.
        port: PortIndex,
        /// Message number relative to the port's position.
        message: u32,
        /// A buffer or address; `None`: the message has no data, and says only that it has come.
        source: Option<Operand>,
        /// How much.
        range: Range,
    },
    /// Reduce the LL messages at several receive ports and `own`, as they arrive. One message alone
    /// is copied.
    Collect {
        /// Where to; may equal `own`. `None`: nowhere, what counts is that they have come.
        destination: Option<Operand>,
        /// A buffer or address: the term that no message brings. `None`: there is none.
        own: Option<Operand>,
        /// How many messages come before it in the order of terms.
        before: u16,
        /// The first port.
        first: PortIndex,
        /// How many ports.
        count: u16,
        /// Message number relative to each port's position.
        message: u32,
        /// How much.
        range: Range,
        /// Apply what the reduction needs at its end. Nothing is scaled here: each rank scales what
        /// it sends, for each may have a scalar of its own.
        finish: bool,
    },
    /// Ring a doorbell: the engine moves `source` to `destination` at the peer. On an LL lane
    /// this is a packed message, and `range` counts its data.
    Put {
        /// A send port.
        port: PortIndex,
        /// Memory of the peer: the same message's slot, a registered buffer, or what it has
        /// granted.
        destination: Operand,
        /// Local slot, or registered memory.
        source: Operand,
        /// How much.
        range: Range,
        /// Raise the arrival signal at the peer.
        arrival: bool,
        /// Raise this port's completion signal once the source may be overwritten.
        completion: bool,
    },
    /// Return credits (or a grant) on a receive port.
    Credit {
        /// A receive port.
        port: PortIndex,
        /// For so many messages; for more than one on lanes of stores alone.
        #[serde(default = "op::one_message", skip_serializing_if = "op::is_one_message")]
        messages: u16,
    },
    /// Return the credit for the first of several messages early, and say where all of them go
    /// (R15). The credit for the second one stands for both.
    Grant {
        /// A receive port.
        port: PortIndex,
        /// Registered memory of this rank, an address; `None`: the slots.
        place: Option<u64>,
    },
    /// Wait until the port's signal has reached `position + value`.
    WaitSignal {
        /// Credits at a send port, arrivals at a receive port.
        port: PortIndex,
        /// Relative to the port's position.
        value: i64,
    },
    /// Wait until the port's completion signal has reached `completion_position + value`.
    WaitCompletion {
        /// A send port.
        port: PortIndex,
        /// Relative to the port's completion position.
        value: i64,
    },
    /// Move the port's positions forward.
    Advance {
        /// Any port.
        port: PortIndex,
        /// Signals consumed since the last advance.
        signals: u32,
        /// Completions consumed since the last advance.
        completions: u32,
    },
    /// Work of a switch: *planned*, the verifier refuses it.
    InSwitch(InSwitch),
}
