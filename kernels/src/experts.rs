//! What the kernels of expert parallelism (`kernels/cuda/experts.cu`) are given, and what they
//! leave.
//!
//! Offsets named here are bytes from the start of the group's window, the same on every rank. `R`
//! is the number of ranks, `E` that of a rank's experts, `T` the most tokens of a rank.
//!
//! A *message* goes from one rank to another in each dispatch: an [`ExpertsHeader`], `E` counts
//! (u32), and rows, one for each token that has a choice there. A *row* is a token's data, its
//! scales, and its [`ExpertsRow`]; the local expert of each choice (i32, -1 for none) and their
//! weights (f32) follow. In throughput mode a row goes back for each that came, in the same order.
//!
//! In low-latency mode a row goes back for each choice: by expert, then by token. Behind the
//! weights stands then for each choice its place (u32) among those of its expert.
//!
//! Where rows are *relayed* (throughput mode on several nodes), the message to another node has a
//! count for each of the node's experts, then the number of rows for each of its ranks. A row's
//! local experts are numbered within the node, and behind the weights follows, for each choice, the
//! row in the message that the chosen rank gets (u32, `u32::MAX` where the choice has no row).

use bytemuck::{Pod, Zeroable};

/// A row goes back for each choice of a token (low latency).
pub const EXPERTS_LOW_LATENCY: u32 = 0;
/// A row goes back for all choices of a token on one rank (throughput).
pub const EXPERTS_THROUGHPUT: u32 = 1;

/// Bytes between words of arrival, so that two ranks never write one sector.
pub const EXPERTS_WORD_STRIDE: u64 = 32;

/// Indices are i64, not i32: those of a dispatch, or those of received rows.
pub const EXPERTS_WIDE_INDICES: u32 = 1;
/// The caller passed more tokens than the group takes: none is sent, and every rank is told.
pub const EXPERTS_TOO_MANY: u32 = 2;
/// Input of the dispatch or the combine has weights.
pub const EXPERTS_WEIGHTS: u32 = 4;

/// The kernel quantises the tokens; else they are e4m3, with the caller's scales.
pub const EXPERTS_QUANTISE: u32 = 8;

/// Rows are of the type of the combine.
pub const EXPERTS_NO_SCALES: u32 = 0;
/// An f32 for each 128 elements; the last may be of fewer.
pub const EXPERTS_F32_SCALES: u32 = 1;
/// A byte for each 128 elements, the last of perhaps fewer: the exponent of a power of two, as f32
/// has it.
pub const EXPERTS_UE8M0_SCALES: u32 = 2;
/// Elements that share a scale.
pub const EXPERTS_SCALE_ELEMENTS: u32 = 128;

/// The value of [`ExpertsState::first_fault`] where there is none.
pub const EXPERTS_NO_FAULT: u64 = u64::MAX;

/// A group, in device memory. The host writes it once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ExpertsGroup {
    /// Device address of the [`DeviceHandle`](crate::user::DeviceHandle), whose window 0 is the
    /// group's.
    pub handle: u64,
    /// Device address of the [`ExpertsState`].
    pub state: u64,
    /// Offset of the words of arrival: `R` for dispatches, then `R` for combines.
    pub arrivals: u64,
    /// Offset of what dispatches receive: two steps in turn, each `R` messages.
    pub received: u64,
    /// Bytes of the longest message.
    pub message_bytes: u64,
    /// Offset of what combines receive: two steps in turn.
    pub returned: u64,
    /// Bytes of one of them.
    pub returned_bytes: u64,
    /// Offset of messages that wait for an engine.
    pub outgoing: u64,
    /// Offset of rows of a combine that wait for an engine: `R` times `return_rows_max`; where rows
    /// are relayed, of sums of rows, as many for each node.
    pub returning: u64,
    /// Offset of the messages that this rank relays: two steps in turn, each one for each node.
    pub relayed: u64,
    /// Bytes of the longest of them.
    pub relayed_bytes: u64,
    /// Offset of the rows of a combine that this rank adds for ranks of other nodes: two steps in
    /// turn, each `R` times `rows_max`.
    pub gathered: u64,
    /// Bytes of one of these.
    pub gathered_bytes: u64,
    /// Device address of a table: u32 for each `E` experts, the rank that has them, or `u32::MAX`
    /// where none has.
    pub owners: u64,
    /// Device address of a table: u32 for each rank, its first expert.
    pub first_experts: u64,
    /// Device address of a table: u32 for each rank, 0 or 1 where it is given up. Only where the
    /// group goes on.
    pub gone: u64,
    /// For how long a rank is awaited when another one has died. Nanoseconds.
    pub grace_ns: u64,
    /// Device address of a table: u64 for each expert, in which choices are counted while tokens
    /// are routed; zeros at all other times. Only in throughput mode.
    pub histogram: u64,
    /// Experts of all ranks.
    pub experts: u32,
    /// `E`.
    pub local_experts: u32,
    /// Choices of a token.
    pub top_k: u32,
    /// `T`.
    pub tokens_max: u32,
    /// The most rows of a message.
    pub rows_max: u32,
    /// The most rows that a rank gets back in one combine.
    pub home_rows_max: u32,
    /// Bytes of header and counts, a multiple of 16.
    pub header_bytes: u32,
    /// Bytes of a token's data in a row.
    pub data_bytes: u32,
    /// Bytes of its scales, a multiple of 16; 0 without.
    pub scale_bytes: u32,
    /// Bytes of a row.
    pub row_bytes: u32,
    /// Bytes of a token's data in a row of a combine.
    pub return_data_bytes: u32,
    /// Bytes of a row of a combine.
    pub return_row_bytes: u32,
    /// [`EXPERTS_LOW_LATENCY`] or [`EXPERTS_THROUGHPUT`].
    pub mode: u32,
    /// [`DataType`](crate::element::DataType) code of the rows of a combine.
    pub data_type: u32,
    /// The user lane of dispatches; that of combines is the next.
    pub lane: u32,
    /// Counts of received rows are rounded up to a multiple of this; at least 1.
    pub alignment: u32,
    /// Rows of a dispatch are e4m3 with scales of this form: [`EXPERTS_NO_SCALES`] and others.
    pub scales: u32,
    /// Elements of a token.
    pub hidden: u32,
    /// Ranks of each node, where rows to other nodes are relayed; else 0.
    pub node_ranks: u32,
    /// Bytes of the head of a relayed message, a multiple of 16.
    pub relayed_header_bytes: u32,
    /// Bytes of a row of a relayed message.
    pub relayed_row_bytes: u32,
    /// 1 where a step ends without the ranks that do not answer, and marks their tokens; else 0.
    pub goes_on: u32,
    /// The most rows that go back to one rank in a combine.
    pub return_rows_max: u32,
    /// Bytes of one number for each choice in a row, a multiple of 16.
    pub choices_bytes: u32,
}

/// What is wrong with the routing of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ExpertsFaultCode {
    /// An index is neither an expert's nor -1. The value is the index.
    Index = 1,
    /// A token names one expert twice. The value is the index.
    Repeated = 2,
    /// A weight is not a number. The value is its bits.
    Weight = 3,
    /// There are more tokens than the group takes. The value is their number.
    Tokens = 4,
    /// A message has counts that cannot be. The value is the number of its rows.
    Message = 5,
    /// A rank was given up in an earlier step, so this one was not sent. The value is the lowest
    /// such rank.
    Gone = 6,
}

impl ExpertsFaultCode {
    /// Every code, in order; they start at 1.
    pub const ALL: [Self; 6] =
        [Self::Index, Self::Repeated, Self::Weight, Self::Tokens, Self::Message, Self::Gone];

    /// The code with this number.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|known| *known as u32 == code)
    }
}

/// A fault of one rank's routing in one dispatch. A code of 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ExpertsFault {
    /// The dispatch, counted from 0.
    pub step: u64,
    /// Token times 16, plus the choice.
    pub place: u64,
    /// What was seen there.
    pub value: i64,
    /// An [`ExpertsFaultCode`].
    pub code: u32,
    /// The rank whose routing it is.
    pub rank: u32,
}

/// What launches of a group leave for the next, in device memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ExpertsState {
    /// Dispatches sent.
    pub sent: u64,
    /// Dispatches received.
    pub received: u64,
    /// Combines sent.
    pub returns_sent: u64,
    /// Combines received.
    pub returns_received: u64,
    /// Blocks of the running launch that are done.
    pub blocks_done: u64,
    /// Those that are done with what engines take.
    pub blocks_done_far: u64,
    /// The least `place * 8 + code` of the running launch's faults, or [`EXPERTS_NO_FAULT`].
    pub first_fault: u64,
    /// Ranks that are given up.
    pub gone_count: u64,
    /// Of the last dispatch that had faults, that of the lowest rank.
    pub fault: ExpertsFault,
}

/// The start of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ExpertsHeader {
    /// The dispatch, counted from 0: nothing of another one is taken for it.
    pub step: u64,
    /// Rows of the message.
    pub rows: u32,
    /// The first of the rows that go back for this message, among all that its sender gets back.
    pub home_base: u32,
    /// What is wrong at the sender, which then sends no rows.
    pub fault: ExpertsFault,
}

/// What a row says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ExpertsRow {
    /// The token's number at its rank.
    pub token: u32,
    /// Which of its choices it is; in a message, the first one there.
    pub choice: u32,
    /// Bits of that choice's weight (f32).
    pub weight: u32,
    /// Zero.
    pub reserved: u32,
}

/// Device addresses of a handle's tables: where the tokens of one dispatch went, and where those
/// that came lie. A *bucket* is what rows are numbered in: an expert in low-latency mode, a rank in
/// throughput mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ExpertsRouting {
    /// i32, `T * top_k`.
    pub indices: u64,
    /// f32, `T * top_k`.
    pub weights: u64,
    /// u32, `T * top_k`: the row in its bucket; `u32::MAX` where the choice has no row.
    pub places: u64,
    /// u32, `T * top_k`: the row among all that come back; `u32::MAX` as above.
    pub homes: u64,
    /// u32, all experts: choices of each; then `R`: rows for each rank; then, where rows are
    /// relayed, rows for each node.
    pub counts: u64,
    /// u32, all experts: the first row of each among those that come back from its rank.
    pub bases: u64,
    /// u32, `R`: rows of the message to each rank; where rows are relayed, then to each node.
    pub rows: u64,
    /// u32, as many: the first of those that come back from there, among all that come back.
    pub home_bases: u64,
    /// u32, as many: the first row of the message among the rows of all messages.
    pub message_bases: u64,
    /// An [`ExpertsFault`], and a u64: the number of tokens.
    pub fault: u64,
    /// u32, `R`: rows that came from each rank.
    pub in_rows: u64,
    /// u32, `R`: rows that go back to each rank. In throughput mode they are as many.
    pub in_returns: u64,
    /// u32, `R`: where they go back to.
    pub in_homes: u64,
    /// u32, `R * E`: the first row of an expert among those that go back to a rank.
    pub in_bases: u64,
    /// u32, `R * E`: where the rows of a rank for an expert begin in the output. In throughput mode
    /// `R`: where those of a rank do.
    pub in_starts: u64,
    /// u32, `R * return_rows_max`: the row of the output for each row that goes back.
    pub in_places: u64,
    /// u32, `T * top_k`: the row in the message to a rank (low latency) or to a node (where rows
    /// are relayed); `u32::MAX` where an earlier choice of the token has it. Only there.
    pub message_places: u64,
    /// u32, nodes: rows that this rank relays for each. This and the next two are there where rows
    /// are relayed.
    pub relay_rows: u64,
    /// u32, nodes: where their sums go back to.
    pub relay_homes: u64,
    /// u32, nodes times `T * top_k`: the gathered row for each choice of a relayed row, `u32::MAX`
    /// where it has none.
    pub relay_choices: u64,
    /// u32, `T`: of each combined token, a bit for each choice whose result is missing. Only where
    /// the group goes on.
    pub missing: u64,
}

/// The parameter of every kernel, by value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ExpertsCall {
    /// Device address of the [`ExpertsGroup`].
    pub group: u64,
    /// The handle.
    pub routing: ExpertsRouting,
    /// Tokens of a dispatch, or rows of a combine.
    pub input: u64,
    /// Scales of a dispatch; 0 without.
    pub scales: u64,
    /// Indices of a dispatch.
    pub indices: u64,
    /// Weights of a dispatch, or of the rows of a combine; of a combine's tokens, in low-latency
    /// mode, in place of those of the dispatch; 0 without.
    pub weights: u64,
    /// Received rows, or combined tokens.
    pub output: u64,
    /// Their scales; 0 without.
    pub output_scales: u64,
    /// u32 for each local expert: received rows. In throughput mode one more: rows in all.
    pub output_counts: u64,
    /// Local experts of each received row; 0 without.
    pub output_indices: u64,
    /// Their weights, or the sums of a combine's weights; 0 without.
    pub output_weights: u64,
    /// The [`ExpertsRow`] of each received row; 0 without.
    pub output_sources: u64,
    /// u32 for each combined token, as [`ExpertsRouting::missing`]; 0 without.
    pub output_missing: u64,
    /// Tokens of a dispatch, or of the dispatch that a combine answers.
    pub tokens: u32,
    /// [`EXPERTS_WIDE_INDICES`] and others.
    pub flags: u32,
}

const _: () = {
    assert!(size_of::<ExpertsGroup>() == 240);
    assert!(size_of::<ExpertsFault>() == 32);
    assert!(size_of::<ExpertsState>() == 96);
    assert!(size_of::<ExpertsHeader>() == 48);
    assert!(size_of::<ExpertsRow>() == 16);
    assert!(size_of::<ExpertsRouting>() == 168);
    assert!(size_of::<ExpertsCall>() == 272);
};
