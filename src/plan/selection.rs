//! Selection: which algorithm and which sizes, for a request. A pure function of its arguments, so
//! that every rank chooses alike.
//!
//! | data          | blocks                | slices of a chunk | threads |
//! |---------------|-----------------------|-------------------|---------|
//! | up to 32 KiB  | 1                     | 1                 | 128     |
//! | up to 256 KiB | 1                     | 2                 | 256     |
//! | up to 4 MiB   | 2                     | 2                 | 256     |
//! | more          | 4                     | 2                 | 256     |
//!
//! Up to `Limits::flagged_bytes` and up to 8 ranks, all-pairs comes before the table: one block,
//! and a thread for 64 bytes. By default that is 16 KiB, measured against the ring on virtual GPUs
//! (benches/README.md): with 2 and with 4 of them the ring is as quick from 16 to 32 KiB on. On
//! real ones, one hop should win for longer: at 32 KiB, four ranks on PCIe send 192 KiB each, which
//! takes about as long as two of the ring's six hops.
//!
//! Blocks are bounded by `Limits::blocks_max`, slices by half of the slots. These rows, and the
//! sizes below, come from reasoning (a message wants the fewest hops and barriers when it is small,
//! and at least two slices in flight when it is large), not from a measurement on hardware.

use super::{GRANULE_BYTES, Promise, SlotShape};
use ringdove_kernels::descriptor::LENGTH_BYTES_MAX;
use ringdove_kernels::element::ReduceOp;
use ringdove_kernels::op::ll_bytes;

/// Data up to `bytes` uses these.
struct Row {
    bytes: u64,
    blocks: u32,
    slices: u32,
    thread_count: u32,
}

const TABLE: [Row; 4] = [
    Row { bytes: 32 << 10, blocks: 1, slices: 1, thread_count: 128 },
    Row { bytes: 256 << 10, blocks: 1, slices: 2, thread_count: 256 },
    Row { bytes: 4 << 20, blocks: 2, slices: 2, thread_count: 256 },
    Row { bytes: u64::MAX, blocks: 4, slices: 2, thread_count: 256 },
];

/// Below this, the grant handshake of a direct plan costs more than the copies it saves.
const DIRECT_BYTES_MIN: u64 = 64 << 10;
/// The most ranks that exchange everything with everybody.
pub(crate) const ALL_PAIRS_RANKS_MAX: u32 = 8;
/// Threads of the one block that does so, at most.
const ALL_PAIRS_THREADS_MAX: u32 = 512;
/// What one of them handles.
const ALL_PAIRS_BYTES_PER_THREAD: u64 = 64;
/// Slots of a flagged lane.
pub(crate) const FLAGGED_SLOTS: u32 = 2;
/// A flagged message has to fit one put, with its flags, also where it fills its slot.
const FLAGGED_BYTES_MAX: u64 = 1 << 20;
/// One put of a direct plan: long enough to hide its doorbell, short enough to pipeline.
const DIRECT_SLICE_BYTES_MAX: u64 = 1 << 20;
/// One copy where there is nobody to talk to.
const ALONE_SLICE_BYTES_MAX: u64 = 1 << 20;
/// Messages of a transfer are not cut below this.
const MESSAGE_BYTES_MIN: u64 = 64 << 10;
/// A transfer is cut into about this many messages, as far as the sizes allow.
const MESSAGES_WANTED: u64 = 8;

/// A collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Every rank gets the reduction of all ranks' inputs.
    AllReduce,
}

/// What a call asks for; alike on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Which collective.
    pub collective: Collective,
    /// Ranks of the communicator.
    pub rank_count: u32,
    /// Bytes of each rank's data.
    pub bytes: u64,
    /// Bytes of one element: 1, 2, 4 or 8.
    pub element_bytes: u32,
    /// The reduction.
    pub reduce_op: ReduceOp,
    /// Input and output are the same memory.
    pub in_place: bool,
    /// Input and output are registered on every rank, so that engines may reach them.
    pub registered: bool,
}

impl Request {
    /// What a plan for this request has to achieve.
    pub fn promise(&self) -> Promise {
        match self.collective {
            Collective::AllReduce => Promise::AllReduce {
                rank_count: self.rank_count,
                bytes: self.bytes,
                element_bytes: self.element_bytes,
                reduce_op: self.reduce_op,
                in_place: self.in_place,
            },
        }
    }
}

/// What a communicator has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// The most blocks of a launch; each block of a ring has lanes of its own.
    pub blocks_max: u32,
    /// Bytes of one slot, a multiple of 16.
    pub slot_bytes: u32,
    /// Slots of each lane: a power of two, at least 2.
    pub slot_count: u32,
    /// The most bytes of data in one flagged message, a multiple of 16; 0 without flagged lanes.
    pub flagged_bytes: u32,
    /// Ranks of each node, where all nodes have the same number and their ranks follow one another;
    /// else 0: no node is told from another.
    pub ranks_per_node: u32,
}

/// How a request is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// One rank alone: a local copy.
    Copy,
    /// Ring through slots.
    RingStaged,
    /// Ring between registered, distinct buffers.
    RingDirect,
    /// Ring in place: reduce-scatter through slots, all-gather between registered buffers.
    RingHybrid,
    /// Every rank sends all it has to every other, in flagged messages.
    AllPairs,
    /// Rings on each node, and rings over the nodes on every rail.
    Hierarchical,
}

/// Everything that [`build`](super::build) needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// What is asked for.
    pub request: Request,
    /// How.
    pub algorithm: Algorithm,
    /// Blocks of the launch; block `b` uses the lanes with index `b`.
    pub blocks: u32,
    /// Messages of one chunk.
    pub slices: u32,
    /// Bytes of one message, a multiple of [`GRANULE_BYTES`].
    pub slice_bytes: u32,
    /// How often each block walks its ring; 0 when there is nothing to do.
    pub rounds: u32,
    /// Threads of each block.
    pub thread_count: u32,
    /// Slots of each slotted lane.
    pub slots: SlotShape,
    /// Ring orders; block `b` uses number `b` modulo their number. Each is a permutation of the
    /// ranks.
    pub rings: Vec<Vec<u32>>,
    /// Ranks of each node.
    pub ranks_per_node: u32,
}

impl Choice {
    /// Bytes that all blocks handle in one round.
    pub fn round_bytes(&self) -> u64 {
        if self.algorithm == Algorithm::AllPairs {
            return u64::from(self.slice_bytes);
        }
        u64::from(self.blocks)
            * u64::from(self.request.rank_count)
            * u64::from(self.slices)
            * u64::from(self.slice_bytes)
    }

    /// Makes this the choice of all-pairs, but for the size of messages: one block, flagged slots,
    /// and a thread for 64 bytes, which it handles in four turns. More threads would hide more of
    /// each other's latency; but on virtual GPUs each warp costs some 20 µs.
    pub(super) fn all_pairs(&mut self, limits: &Limits) {
        self.algorithm = Algorithm::AllPairs;
        (self.blocks, self.slices, self.slots) = (1, 1, limits.flagged_slots());
        let wanted = self.request.bytes.div_ceil(ALL_PAIRS_BYTES_PER_THREAD);
        let threads = wanted.clamp(32, u64::from(ALL_PAIRS_THREADS_MAX)).next_multiple_of(32);
        self.thread_count = threads as u32;
    }

    /// Sets the size of messages (for tuning and tests) and the rounds that follow from it.
    pub fn set_slice_bytes(&mut self, slice_bytes: u32) {
        self.slice_bytes = slice_bytes;
        let rounds = self.request.bytes.div_ceil(self.round_bytes());
        // More rounds than fit are refused by the verifier, which bounds the ops of all rounds.
        self.rounds = u32::try_from(rounds).unwrap_or(u32::MAX);
    }
}

/// Why there is no plan for what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A number does not fit.
    #[error("{what}: expected {expected}, got {seen}")]
    Number {
        /// Which number.
        what: &'static str,
        /// What would do.
        expected: &'static str,
        /// What was given.
        seen: u64,
    },
    /// A group receives into memory that it also sends from or receives into elsewhere.
    #[error(
        "rank {rank}: a group's transfers use bytes {:#x}..{:#x} and {:#x}..{:#x}, which overlap, \
         and receive into one of them; transfers of a group have no order, so they need memory of \
         their own",
        first.0, first.1, second.0, second.1
    )]
    Overlap {
        /// The rank.
        rank: u32,
        /// Start and end of the one with the lower address.
        first: (u64, u64),
        /// Start and end of the other.
        second: (u64, u64),
    },
    /// A rank sends to itself without a receive to match, or the other way round, or sizes differ.
    #[error(
        "rank {rank} exchanges with itself: send number {number} has {sent:?} bytes, receive \
         {received:?}; each send to the own rank needs a receive of the same size in the group"
    )]
    UnmatchedSelf {
        /// The rank.
        rank: u32,
        /// Which of its transfers to itself, from 0.
        number: usize,
        /// Bytes of the send, if there is one.
        sent: Option<u64>,
        /// Bytes of the receive, if there is one.
        received: Option<u64>,
    },
}

fn require(
    ok: bool,
    what: &'static str,
    expected: &'static str,
    seen: u64,
) -> Result<(), PlanError> {
    if ok { Ok(()) } else { Err(PlanError::Number { what, expected, seen }) }
}

impl Limits {
    /// The slots of each lane.
    pub fn slots(&self) -> SlotShape {
        SlotShape { bytes: self.slot_bytes, count: self.slot_count }
    }

    /// The slots of each flagged lane. Two suffice: see `all_reduce_all_pairs`.
    pub fn flagged_slots(&self) -> SlotShape {
        let bytes = ll_bytes(u64::from(self.flagged_bytes)) as u32;
        SlotShape { bytes, count: FLAGGED_SLOTS }
    }

    pub(super) fn check(&self) -> Result<(), PlanError> {
        let (bytes, count) = (u64::from(self.slot_bytes), u64::from(self.slot_count));
        require(self.blocks_max > 0, "blocks of a launch", "at least 1", 0)?;
        let shaped = bytes >= GRANULE_BYTES && bytes.is_multiple_of(GRANULE_BYTES);
        require(shaped, "slot bytes", "a multiple of 16, at least 16", bytes)?;
        // With one slot, a ring in which everybody has sent waits for itself.
        let counted = count >= 2 && count.is_power_of_two();
        require(counted, "slots of a lane", "a power of two, at least 2", count)?;
        let flagged = u64::from(self.flagged_bytes);
        let fits = flagged.is_multiple_of(GRANULE_BYTES) && flagged <= FLAGGED_BYTES_MAX;
        require(fits, "bytes of a flagged message", "a multiple of 16, at most 1 MiB", flagged)
    }
}

/// Chooses algorithm and sizes for a request.
///
/// # Errors
/// A number in `request` or `limits` that no plan can be built for.
pub fn select(request: &Request, limits: &Limits) -> Result<Choice, PlanError> {
    limits.check()?;
    let element = u64::from(request.element_bytes);
    require(request.rank_count > 0, "ranks", "at least 1", 0)?;
    let per_node = match limits.ranks_per_node {
        0 => request.rank_count,
        ranks => ranks,
    };
    let divides = request.rank_count.is_multiple_of(per_node);
    require(divides, "ranks of a node", "a divisor of the number of ranks", per_node.into())?;
    require(matches!(element, 1 | 2 | 4 | 8), "element bytes", "1, 2, 4 or 8", element)?;
    let whole = request.bytes.is_multiple_of(element);
    require(whole, "bytes", "a whole number of elements", request.bytes)?;
    require(request.bytes < 1 << 40, "bytes", "less than 1 TiB", request.bytes)?;

    let row = TABLE.iter().find(|row| request.bytes <= row.bytes).expect("the last row has no end");
    let direct = request.registered && request.bytes >= DIRECT_BYTES_MIN;
    let spread = per_node < request.rank_count;
    // Flagged words are trusted on the transport inside of a node alone (R13).
    let all_pairs = !spread
        && limits.flagged_bytes > 0
        && request.rank_count <= ALL_PAIRS_RANKS_MAX
        && request.bytes <= u64::from(limits.flagged_bytes);
    let algorithm = match (request.rank_count, direct, request.in_place) {
        (1, ..) => Algorithm::Copy,
        _ if all_pairs => Algorithm::AllPairs,
        _ if spread && per_node > 1 => Algorithm::Hierarchical,
        // A grant costs a way between nodes, and direct lanes do not follow rails.
        _ if spread => Algorithm::RingStaged,
        (_, false, _) => Algorithm::RingStaged,
        (_, true, false) => Algorithm::RingDirect,
        (_, true, true) => Algorithm::RingHybrid,
    };
    let mut choice = Choice {
        request: *request,
        algorithm,
        blocks: row.blocks.min(limits.blocks_max),
        slices: row.slices.min(limits.slot_count / 2),
        slice_bytes: GRANULE_BYTES as u32,
        rounds: 0,
        thread_count: row.thread_count,
        slots: limits.slots(),
        rings: vec![(0..request.rank_count).collect()],
        ranks_per_node: per_node,
    };
    let slice_bytes_max = match algorithm {
        Algorithm::Copy => ALONE_SLICE_BYTES_MAX,
        Algorithm::RingDirect => DIRECT_SLICE_BYTES_MAX,
        Algorithm::RingStaged | Algorithm::RingHybrid | Algorithm::Hierarchical => {
            u64::from(limits.slot_bytes)
        }
        Algorithm::AllPairs => u64::from(limits.flagged_bytes),
    };
    if algorithm == Algorithm::AllPairs {
        choice.all_pairs(limits);
    }
    choice.set_slice_bytes(even_slice(&choice, slice_bytes_max.min(LENGTH_BYTES_MAX)));
    let unchanged = request.in_place && request.reduce_op != ReduceOp::PreMulSum;
    if algorithm == Algorithm::Copy && unchanged {
        choice.rounds = 0;
    }
    Ok(choice)
}

/// The message size which spreads the data evenly over the fewest rounds that `maximum` allows.
fn even_slice(choice: &Choice, maximum: u64) -> u32 {
    // One slice per byte of slice size: `round_bytes` of a choice whose slice is one granule.
    let slices_in_round = choice.round_bytes() / u64::from(choice.slice_bytes);
    let rounds = choice.request.bytes.div_ceil(slices_in_round * maximum).max(1);
    let slice = choice.request.bytes.div_ceil(slices_in_round * rounds);
    slice.next_multiple_of(GRANULE_BYTES).clamp(GRANULE_BYTES, maximum) as u32
}

/// Bytes of one message of a transfer of `bytes` between two ranks. Depends on what both ends know
/// alike, and on nothing else.
pub(super) fn message_bytes(bytes: u64, limits: &Limits) -> u64 {
    let wanted = bytes.div_ceil(MESSAGES_WANTED).next_multiple_of(GRANULE_BYTES);
    wanted.max(MESSAGE_BYTES_MIN).min(u64::from(limits.slot_bytes)).min(LENGTH_BYTES_MAX)
}

/// Threads of a group's blocks: by its largest transfer.
pub(super) fn group_thread_count(bytes_max: u64) -> u32 {
    TABLE.iter().find(|row| bytes_max <= row.bytes).expect("the last row has no end").thread_count
}
