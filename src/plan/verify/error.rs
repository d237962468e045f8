//! What the verifier says about a plan that it refuses.

use super::super::{Lane, LaneEnd};
use std::fmt;

/// A plan is wrong: where, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{site}: {reason}")]
pub struct VerifyError {
    /// Where.
    pub site: Site,
    /// Why. Boxed, for it is large and rare.
    pub reason: Box<Reason>,
}

/// Where in a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Site {
    /// The plan as a whole.
    Plan,
    /// One rank's program.
    Rank {
        /// The rank.
        rank: u32,
    },
    /// One block's program.
    Block {
        /// The rank.
        rank: u32,
        /// The block.
        block: u32,
    },
    /// One op, in one round.
    Op {
        /// The rank.
        rank: u32,
        /// The block.
        block: u32,
        /// The segment.
        segment: u32,
        /// The round.
        round: u32,
        /// The op's place in the segment.
        op: u32,
        /// The op, readable.
        text: String,
    },
    /// A lane, once all ranks have ended.
    Lane(Lane),
    /// A rank's memory, once all ranks have ended.
    Memory {
        /// Name of the memory, with its rank.
        memory: String,
        /// First byte.
        start: u64,
        /// End of the bytes.
        end: u64,
    },
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plan => f.write_str("plan"),
            Self::Rank { rank } => write!(f, "rank {rank}"),
            Self::Block { rank, block } => write!(f, "rank {rank} block {block}"),
            Self::Op { rank, block, segment, round, op, text } => write!(
                f,
                "rank {rank} block {block} segment {segment} round {round} op {op} ({text})"
            ),
            Self::Lane(lane) => write!(f, "{lane} at the end"),
            Self::Memory { memory, start, end } => {
                write!(f, "bytes {start}..{end} of {memory} at the end")
            }
        }
    }
}

/// A read or a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Read,
    /// Write.
    Write,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}

/// One block that waits for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// The wait.
    pub site: Site,
    /// What the wait needs, counted from the start of the launch.
    pub expected: i64,
    /// What has been raised, counted likewise.
    pub seen: i64,
}

fn list(stuck: &[Stuck]) -> String {
    let line = |stuck: &Stuck| {
        format!("{} needs {}, only {} raised", stuck.site, stuck.expected, stuck.seen)
    };
    stuck.iter().map(line).collect::<Vec<_>>().join("; ")
}

/// Why a plan is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what each field is")]
pub enum Reason {
    #[error("{what}: expected {expected}, seen {seen}")]
    Shape { what: &'static str, expected: &'static str, seen: u64 },
    #[error("the promise is for {expected} ranks, the plan for {seen}")]
    RankCount { expected: usize, seen: usize },
    #[error("names {port}, which is not at this rank, or not a lane between two ranks")]
    ForeignPort { port: LaneEnd },
    #[error("names {port}, which block {other} names too (or this block twice)")]
    SharedPort { port: LaneEnd, other: u32 },
    #[error("port {port} is not in the block's list of {ports}")]
    UnknownPort { port: u16, ports: usize },
    #[error("{port} cannot do this: {rule}")]
    WrongPort { port: LaneEnd, rule: &'static str },
    #[error("operands cannot be used like this: {rule}")]
    Operands { rule: &'static str },
    #[error("{length} bytes at {offset} of a slot of {slot_bytes} bytes")]
    OutsideSlot { offset: u64, length: u64, slot_bytes: u32 },
    #[error("{value} is not a multiple of {alignment}")]
    Misaligned { value: u64, alignment: u64 },
    #[error("no memory at byte {at} of {memory}")]
    Unmapped { memory: String, at: u64 },
    #[error("reads bytes {start}..{end} of {memory}, which hold nothing yet")]
    Undefined { memory: String, start: u64, end: u64 },
    #[error(
        "{access} of bytes {start}..{end} of {memory} may happen before or after the \
         {other_access} by {other}: nothing orders them"
    )]
    Race {
        access: Access,
        memory: String,
        start: u64,
        end: u64,
        other_access: Access,
        other: String,
    },
    #[error("writes {memory}, the input of a call that is not in place")]
    InputModified { memory: String },
    #[error("message {seen} is put where {expected} is next")]
    MessageOrder { expected: i64, seen: i64 },
    #[error("an LL message without data: nobody would see it arrive")]
    EmptyMessage,
    #[error("collects a message of {memory} that was packed without data")]
    NoData { memory: String },
    #[error("message {message} has {packed} bytes where it was packed, {seen} here")]
    MessageLength { message: i64, packed: u64, seen: u64 },
    #[error("message {message} was not packed, or not with this number, or not in this slot")]
    NotPacked { message: i64 },
    #[error(
        "packs message {message} after reading {read} messages from a peer; {message} are needed \
         to know that its slot is free"
    )]
    NotInStep { message: i64, read: i64 },
    #[error("{lane} has no lane back in this block, by which it would know of free slots")]
    OneWay { lane: Lane },
    #[error("message {message} has been put already")]
    MessageGone { message: i64 },
    #[error(
        "message {message} uses a slot that is free at credit {needed}; waited for {observed} only"
    )]
    SlotNotFree { message: i64, needed: i64, observed: i64 },
    #[error("message {message} has not been waited for (arrivals waited for: {observed})")]
    NotArrived { message: i64, observed: i64 },
    #[error("message {message} has been given back to its sender (credits: {credits})")]
    SlotReturned { message: i64, credits: i64 },
    #[error("gives message {message} back to its sender while {other} may still use its slot")]
    SlotInUse { message: i64, other: String },
    #[error(
        "grants message {message} and what follows while it has returned {credits} credits: those \
         of all messages before must have gone, and no more"
    )]
    EarlyGrant { message: i64, credits: i64 },
    #[error("puts message {message} without having waited for the grant of it")]
    NotGranted { message: i64 },
    #[error("puts message {message} into what was granted for others: the next grant has come")]
    GrantGone { message: i64 },
    #[error("combines or scales a value that is finished already")]
    AfterFinish,
    #[error("scales what rank {rank} contributed; each rank has a scalar of its own")]
    ForeignScale { rank: u32 },
    #[error("combines {seen} contributions, of {ranks} ranks: some count twice")]
    TooManyTerms { seen: usize, ranks: usize },
    #[error("nothing moves any more: {}", list(.0))]
    Deadlock(Vec<Stuck>),
    #[error("{what}: {expected} expected, {seen} seen")]
    Unbalanced { what: &'static str, expected: i64, seen: i64 },
    #[error("{access} by {other} may still be going on when the kernel has ended")]
    Unfinished { access: Access, other: String },
    #[error("leaves the barrier without word of rank {other}")]
    NotMet { other: u32 },
    #[error("{what} in a switch is planned: nothing runs it yet")]
    Planned { what: &'static str },
    #[error("promised {expected}, holds {seen}")]
    WrongResult { expected: String, seen: String },
}

impl VerifyError {
    pub(super) fn new(site: Site, reason: Reason) -> Self {
        Self { site, reason: Box::new(reason) }
    }
}
