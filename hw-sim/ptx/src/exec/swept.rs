//! What a loop over memory comes to, and what such loops share with straight runs of loads and
//! stores.

use super::program::Op;
use super::registers::AluFn;

/// A loop whose body loads rows, combines them or not, stores them, and moves its addresses on.
/// All but its last iteration can be done in one go; the last one runs as it stands, and leaves
/// every register as the loop leaves it. Where nobody behind the loop reads what was loaded, the
/// last one moves its data with the others, and the rest of its body then runs alone.
///
/// What is loaded lies in *cargo* rows as it lies in memory, not lane by lane: what is done to it
/// is the same for every lane and every word of a vector, so their order makes no difference.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The instruction that stands at the head.
    pub first: Op,
    /// Addresses, as sums of registers.
    pub sums: Vec<Sum>,
    /// The registers that go on from one iteration to the next, each with what is added to it.
    pub counters: Vec<(u32, Vec<u32>)>,
    /// The loop goes on while this sum, by its number, is below this register.
    pub bound: (usize, u32),
    /// What an iteration does, in parts that have nothing to do with one another.
    pub strips: Vec<Strip>,
    /// Bytes that one lane moves at once.
    pub lane_bytes: usize,
    /// Bytes of a word.
    pub word_bytes: usize,
    /// Does an iteration copy adjacent bytes, and nothing else?
    pub copy: Option<PlainCopy>,
    /// What an iteration does besides, in order, if nobody but the loop reads what it loads: sums
    /// and the comparison.
    pub rest: Option<Vec<Op>>,
    /// Instructions from the head to the branch back.
    pub length: u32,
}

/// Adjacent bytes of an iteration that go to adjacent bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainCopy {
    /// Where from: the number of a sum, and bytes added to it.
    pub from: (usize, u64),
    /// Where to.
    pub to: (usize, u64),
    /// How many.
    pub bytes: usize,
}

/// A sum of 64-bit registers, as they are at the head of a loop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Slots.
    pub terms: Vec<u32>,
    /// Slots whose sum is what an iteration adds.
    pub steps: Vec<u32>,
}

impl Sweep {
    /// All that an iteration accesses.
    pub fn spans(&self) -> impl Iterator<Item = &Span> {
        self.strips.iter().flat_map(|strip| strip.loads.iter().chain(&strip.stores))
    }
}

/// A part of an iteration: what it loads, combines then, and stores. The parts of an iteration are
/// done one after the other, so that data is still in the processor's first cache when it is
/// stored, and the next data comes meanwhile.
#[derive(Clone, Debug, Default)]
pub struct Strip {
    /// What it loads.
    pub loads: Vec<Span>,
    /// What it then combines.
    pub pairs: Vec<Pair>,
    /// What it then stores.
    pub stores: Vec<Span>,
}

/// Adjacent bytes of all lanes, in memory and in the cargo rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Number of the sum that is lane 0's address.
    pub sum: usize,
    /// Bytes added to it.
    pub offset: u64,
    /// First cargo row.
    pub row: usize,
    /// How many.
    pub rows: usize,
}

/// Cargo rows that are combined.
#[derive(Clone, Debug)]
pub struct Pair {
    /// What is done.
    pub run: AluFn,
    /// [`Args::e`] of it.
    pub extra: u32,
    /// First row of the first operand.
    pub a: usize,
    /// First row of the second.
    pub b: usize,
    /// First row of the result, which is one of both.
    pub to: usize,
}
