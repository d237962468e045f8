//! What the kernel that watches an adapter's writes (`kernels/cuda/words.cu`) is given.

use bytemuck::{Pod, Zeroable};

/// Bytes that each thread watches: two words, which low-latency messages load at once.
pub const WORDS_BYTES_PER_THREAD: u64 = 16;

/// The parameter of the entry `ringdove_words`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct WordsCall {
    /// Device address of the words, [`WORDS_BYTES_PER_THREAD`] for each thread of the launch. Both
    /// halves of each word that is written are equal.
    pub words: u64,
    /// Device address of a u32 that is not 0 once the kernel is to end.
    pub stop: u64,
    /// Device address of two u64: how often a word had changed, and how often its halves differed.
    pub tally: u64,
    /// Nanoseconds after which the kernel ends by itself (R10).
    pub timeout_ns: u64,
}
