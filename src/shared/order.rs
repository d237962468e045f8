//! How a word hands memory over: the three patterns that most of the library needs.
//!
//! What an adapter has placed before it reported a completion, or before a word that it wrote
//! later, is seen behind these loads, too.

use super::word::{HostWord64, Word64};
use std::sync::atomic::Ordering;

/// Stores a word behind everything that was stored before.
pub fn publish(word: &impl Word64, value: u64) {
    // Release. Pairs with observe, here or at a peer; with an acquire load of a kernel (wait.cuh:
    // signals, R9; program.cuh: MailboxPoll); or with the order of an adapter's read.
    word.store(value, Ordering::Release);
}

/// Loads a word before everything that is loaded later.
pub fn observe(word: &impl Word64) -> u64 {
    // Acquire. Pairs with publish, with a release store of a kernel (program.cuh: tell_host), or
    // with the order of a peer's accesses.
    word.load(Ordering::Acquire)
}

/// Stores a word before everything that is stored later: a warning that what it guards changes.
pub fn warn_before(word: &impl HostWord64, value: u64) {
    word.store(value, Ordering::Relaxed);
    // Pairs with a reader that loads the word after the data (serve: Client::pull): who has read a
    // byte of the new data reads the new word.
    word.fence(Ordering::Release);
}
