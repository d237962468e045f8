//! The decoded form: one kernel with all functions that it can reach, ready to run.

use std::sync::Arc;

use super::bulk::{BulkCopy, MapChange, MapCopy};
use super::cluster::{AsyncChange, ClusterAddress};
use super::copy_async::CopyAsync;
use super::matrix::group::GroupMultiply;
use super::matrix::memory::{Lines, Tiles, Transpose};
use super::matrix::multiply::Multiply;
use super::mbarrier::BarrierWord;
use super::pool::WarpPool;
use super::registers::{AluFn, Args, RegisterSpan, Row, TestFn};
pub use super::special::{LaneMask, Special};
use super::swept::{Pair, Sweep};
use super::tensor_copy::TensorCopy;
use crate::memory::{AtomicOp, AtomicType, Scope, Strength};

/// A destination that is not wanted (`_`), and a base that is not there.
pub const NO_SLOT: u32 = u32::MAX;

/// One instruction.
#[derive(Clone, Debug)]
pub struct Instruction {
    /// Its effect.
    pub op: Op,
    /// Predicate reference: the lanes that do it.
    pub guard: u32,
    /// Line in the PTX text.
    pub line: u32,
}

/// Operation of an instruction. Rare ones are boxed, so that the common ones stay small.
#[derive(Clone, Debug)]
pub enum Op {
    /// Computes, on registers alone.
    Alu(AluFn, Args),
    /// Compares, into predicates.
    Compare(Box<Compare>),
    /// Reads a special register.
    Special {
        /// Destination.
        d: u32,
        /// Which.
        which: Special,
        /// Bytes of the destination.
        width: u8,
    },
    /// A load.
    Load(Box<Access>),
    /// A store.
    Store(Box<Access>),
    /// The first of some loads whose values only go to the stores behind them. These instructions
    /// stand behind it unchanged, for lanes that cannot take the quick way.
    Transit(Box<Transit>),
    /// The first of some additions of bf16 to f32. They stand behind it unchanged, too.
    Accumulate(Box<Accumulate>),
    /// The first of some fused multiply-adds. They stand behind it unchanged, too.
    Products(Box<Products>),
    /// The head of a loop that does nothing but move or combine memory, row by row.
    Sweep(Box<Sweep>),
    /// A read-modify-write.
    Atomic(Box<Atomic>),
    /// A fence.
    Fence(Strength),
    /// Jumps.
    Branch(u32),
    /// Jumps to an entry of a table.
    BranchIndex(Box<BranchIndex>),
    /// Calls a function.
    Call(Box<Call>),
    /// Returns; at depth 0 ends the thread.
    Return,
    /// Ends the thread.
    Exit,
    /// A block barrier.
    Barrier(Box<Barrier>),
    /// `bar.warp.sync`: slot of the mask.
    WarpSync(u32),
    /// `shfl.sync`
    Shuffle(Box<Shuffle>),
    /// `vote`, `match`, `redux`, `elect`
    Collective(Box<Collective>),
    /// `mma`, `wmma.mma`
    Multiply(Box<Multiply>),
    /// `ldmatrix`, `stmatrix`
    Tiles(Box<Tiles>),
    /// `wmma.load`, `wmma.store`
    Lines(Box<Lines>),
    /// `movmatrix`
    Transpose(Transpose),
    /// `wgmma.mma_async`
    GroupMultiply(Box<GroupMultiply>),
    /// `cp.async`
    CopyAsync(Box<CopyAsync>),
    /// `cp.async.bulk`
    BulkCopy(Box<BulkCopy>),
    /// `cp.async.bulk.tensor`
    TensorCopy(Box<TensorCopy>),
    /// `tensormap.replace`
    MapChange(Box<MapChange>),
    /// `tensormap.cp_fenceproxy`
    MapCopy(Box<MapCopy>),
    /// `mapa`, `getctarank`
    ClusterAddress(Box<ClusterAddress>),
    /// `st.async`, `red.async`
    AsyncChange(Box<AsyncChange>),
    /// `barrier.cluster`
    ClusterBarrier {
        /// Arrives; else waits for the generation that the warp arrived in.
        arrives: bool,
    },
    /// `mbarrier`, `cp.async.mbarrier`
    BarrierWord(Box<BarrierWord>),
    /// `mbarrier.pending_count`
    PendingCount {
        /// Destination.
        to: u32,
        /// A barrier's state.
        state: u32,
    },
    /// `activemask`
    ActiveMask(u32),
    /// A nap: others may run.
    Nanosleep,
    /// Nothing.
    Nop,
    /// `trap`
    Trap,
    /// Copies bytes between two places in each lane's local memory.
    CopyLocal(Box<CopyLocal>),
    /// `vprintf`, `__assertfail`
    Builtin(Box<Builtin>),
}

/// `setp`, and the comparing half of `set`.
#[derive(Clone, Debug)]
pub struct Compare {
    /// Gives a bit per lane.
    pub test: TestFn,
    /// Sources.
    pub a: u32,
    /// Sources.
    pub b: u32,
    /// How a third predicate joins in.
    pub combine: Option<(Logic, u32)>,
    /// Destination.
    pub p: u32,
    /// Destination of the complement.
    pub q: u32,
}

/// A boolean operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logic {
    /// `.and`
    And,
    /// `.or`
    Or,
    /// `.xor`
    Xor,
}

impl Logic {
    /// Applies it to whole masks.
    pub const fn apply(self, a: u32, b: u32) -> u32 {
        match self {
            Self::And => a & b,
            Self::Or => a | b,
            Self::Xor => a ^ b,
        }
    }
}

/// Where an access goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// By the window of each address.
    Generic,
    /// Memory outside.
    Global,
    /// The block's.
    Shared,
    /// That of any block of the cluster.
    Cluster,
    /// The thread's.
    Local,
    /// The kernel's parameters.
    Param,
}

/// A load or a store.
#[derive(Clone, Debug)]
pub struct Access {
    /// Where.
    pub space: Space,
    /// Slot of the base address; [`NO_SLOT`] for none.
    pub base: u32,
    /// The base is a 32-bit register.
    pub narrow_base: bool,
    /// Bytes added to it.
    pub offset: u64,
    /// Registers, in the order of their elements.
    pub registers: Vec<u32>,
    /// Bytes of each register.
    pub register_bytes: u8,
    /// Bytes of each element in memory.
    pub element_bytes: u8,
    /// Loads fill up with the sign.
    pub signed: bool,
    /// How strong.
    pub strength: Strength,
}

impl Access {
    /// Bytes that one lane moves.
    pub fn lane_bytes(&self) -> usize {
        self.registers.len() * usize::from(self.element_bytes)
    }
}

/// Instructions that widen bf16 to f32, perhaps multiply, and add: as many times three or two as
/// there are terms. Nobody else reads what is between them.
#[derive(Clone, Debug)]
pub struct Accumulate {
    /// The instruction that stands there.
    pub first: Op,
    /// What is added, in order.
    pub terms: Vec<Term>,
    /// Instructions.
    pub length: u32,
}

/// `d = sum + factor * half`, with a product that is rounded before it is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// Destination.
    pub d: u32,
    /// What it is added to.
    pub sum: u32,
    /// The word with the half.
    pub word: u32,
    /// Is it the upper half?
    pub is_high: bool,
    /// What it is multiplied by; [`NO_SLOT`] for nothing.
    pub factor: u32,
}

/// Fused multiply-adds in f32, one behind the other.
#[derive(Clone, Debug)]
pub struct Products {
    /// The instruction that stands there.
    pub first: Op,
    /// What they add up, in order.
    pub chains: Vec<Chain>,
    /// Both factors of each instruction.
    pub factors: Vec<[u32; 2]>,
}

/// `d = sum`, and so many products added to it one by one. Nobody else reads what is between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    /// What the first product is added to.
    pub sum: u32,
    /// Products.
    pub length: usize,
    /// Destination.
    pub d: u32,
}

/// Loads, perhaps what combines what they bring, and the stores that take all of that; before the
/// loads perhaps constants for registers that those loads fill, of which nobody sees anything.
///
/// What is loaded lies in cargo rows, as in a [`Sweep`], load after load.
#[derive(Clone, Debug)]
pub struct Transit {
    /// The instruction that stands there.
    pub first: Op,
    /// The loads.
    pub loads: Vec<Access>,
    /// What is combined.
    pub pairs: Vec<Pair>,
    /// The stores.
    pub stores: Vec<Access>,
    /// The first cargo row that each store takes.
    pub sources: Vec<u64>,
    /// Cargo rows of an access.
    pub rows: usize,
    /// The predicates that guard loads and stores.
    pub guards: Vec<u32>,
    /// Instructions, with all that stands among them.
    pub length: u32,
}

/// `atom` and `red`.
#[derive(Clone, Debug)]
pub struct Atomic {
    /// Where.
    pub space: Space,
    /// Slot of the base address.
    pub base: u32,
    /// The base is a 32-bit register.
    pub narrow_base: bool,
    /// Bytes added to it.
    pub offset: u64,
    /// What.
    pub op: AtomicOp,
    /// On what.
    pub ty: AtomicType,
    /// How strong.
    pub strength: Strength,
    /// Destination of the old value; [`NO_SLOT`] for `red`.
    pub d: u32,
    /// Operand.
    pub operand: u32,
    /// What `.cas` compares with.
    pub compare: u32,
}

/// `brx.idx`
#[derive(Clone, Debug)]
pub struct BranchIndex {
    /// Slot of the index.
    pub index: u32,
    /// Targets.
    pub targets: Vec<u32>,
}

/// A call.
#[derive(Clone, Debug)]
pub struct Call {
    /// Where to.
    pub target: Target,
    /// Bytes of the caller's frame: the callee's begins after them.
    pub frame_bytes: u32,
    /// The caller's registers, where the callee could come back into the caller.
    pub save: Option<Arc<RegisterSpan>>,
}

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Known.
    Direct(u32),
    /// Slot of a function's address.
    Indirect(u32),
}

/// Barrier instructions.
#[derive(Clone, Debug)]
pub struct Barrier {
    /// Slot of the barrier's number.
    pub id: u32,
    /// Slot of the thread count; [`NO_SLOT`] for all threads of the block.
    pub count: u32,
    /// What it does besides waiting.
    pub kind: BarrierKind,
    /// Must the warp come whole?
    pub aligned: bool,
}

/// Kinds of barrier instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierKind {
    /// Waits.
    Sync,
    /// Does not wait.
    Arrive,
    /// Counts the threads whose predicate holds: destination, predicate.
    Count(u32, u32),
    /// All, or any, of the predicates: destination, predicate.
    All(u32, u32),
    /// All, or any, of the predicates: destination, predicate.
    Any(u32, u32),
}

/// `shfl.sync`
#[derive(Clone, Debug)]
pub struct Shuffle {
    /// Which way.
    pub mode: ShuffleMode,
    /// Destination.
    pub d: u32,
    /// Predicate destination: was the source in range?
    pub p: u32,
    /// Source.
    pub a: u32,
    /// Lane or distance.
    pub b: u32,
    /// Clamp and segment mask.
    pub c: u32,
    /// Slot of the member mask; [`NO_SLOT`] for the old form without.
    pub members: u32,
}

/// Ways to shuffle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names are PTX's own.
pub enum ShuffleMode {
    Up,
    Down,
    Butterfly,
    Index,
}

/// Instructions that look at a value of every lane.
#[derive(Clone, Debug)]
pub struct Collective {
    /// What.
    pub kind: CollectiveKind,
    /// Destination, register or predicate as the kind says.
    pub d: u32,
    /// Second destination predicate.
    pub p: u32,
    /// Source: predicate reference or slot.
    pub a: u32,
    /// Slot of the member mask; [`NO_SLOT`] for the old form without.
    pub members: u32,
}

/// Kinds of [`Collective`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names are PTX's own.
pub enum CollectiveKind {
    VoteAll,
    VoteAny,
    VoteUniform,
    VoteBallot,
    MatchAny32,
    MatchAny64,
    MatchAll32,
    MatchAll64,
    ReduceAdd,
    ReduceMinUnsigned,
    ReduceMaxUnsigned,
    ReduceMinSigned,
    ReduceMaxSigned,
    ReduceAnd,
    ReduceOr,
    ReduceXor,
    Elect,
}

/// Bytes copied between local addresses.
#[derive(Clone, Debug)]
pub struct CopyLocal {
    /// Slot of the local address read.
    pub from: u32,
    /// Slot of the local address written.
    pub to: u32,
    /// How many.
    pub bytes: u32,
}

/// A function of the device runtime that the interpreter answers itself.
#[derive(Clone, Debug)]
pub struct Builtin {
    /// Which.
    pub kind: BuiltinKind,
    /// Slots of its arguments, 64 bits each.
    pub arguments: Vec<u32>,
    /// Slot of the result, 64 bits for `malloc` and 32 for the others.
    pub result: u32,
}

/// Built-in functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuiltinKind {
    /// `vprintf(format, arguments)`
    Print,
    /// `__assertfail(message, file, line, function, char size)`
    AssertFail,
    /// `malloc(bytes)`
    Allocate,
    /// `free(address)`
    Free,
}

/// A value that a constant register holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Constant {
    /// Bits.
    Bits(u64),
    /// Address of a module variable plus bytes: known when the module is linked.
    Symbol(String, i64),
}

/// A kernel's code and the layout of its registers.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// All code; the kernel starts at 0.
    pub code: Vec<Instruction>,
    /// The place of each instruction in the order in which parts of a warp run.
    pub places: Vec<u32>,
    /// For each instruction, the next one behind it that does not follow it in that order.
    pub seams: Vec<u32>,
    /// Entry of each function of the module that is in here, by the function's number.
    pub entries: Vec<Option<u32>>,
    /// Constant registers, in the order of their rows: width in bytes, value.
    pub constants: Vec<(u8, Constant)>,
    /// Rows of the constants, for all warps; filled in when linked.
    pub constant_rows: Arc<[Row]>,
    /// Warps to use again.
    pub pool: WarpPool,
    /// Rows of the register file of a warp.
    pub rows: usize,
    /// The first cargo row, for [`Sweep`]: behind the registers that the kernel names.
    pub cargo: u32,
    /// Predicates.
    pub predicates: usize,
    /// Where a warp starts that has run a block of the same launch: what all blocks compute alike
    /// is still in registers that nothing else writes.
    pub follow: u32,
    /// How many instructions fewer that start has.
    pub followed: u64,
    /// Bytes of local memory that a thread needs.
    pub local_bytes: u32,
    /// Slot of the frame register: where the running function's local frame begins.
    pub frame: u32,
    /// Source texts of instructions, for faults: sorted by line.
    /// Each with its place in the file that a compiler made it from, where that is known.
    pub texts: Vec<(u32, String, Arc<str>)>,
}

impl Program {
    /// Does it ask where the system's own shared memory is?
    pub fn uses_reserved_shared(&self) -> bool {
        let asks = |op: &Op| matches!(op, Op::Special { which: Special::ReservedShared(_), .. });
        self.code.iter().any(|instruction| asks(&instruction.op))
    }

    /// The text of the instruction on a line, and its place in the compiler's source.
    pub fn text(&self, line: u32) -> (&str, &str) {
        match self.texts.binary_search_by_key(&line, |entry| entry.0) {
            Ok(found) => (&self.texts[found].1, &self.texts[found].2),
            Err(_) => ("", ""),
        }
    }
}

/// The scope that an access without one has: the whole system.
pub const DEFAULT_SCOPE: Scope = Scope::System;
