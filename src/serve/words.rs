//! The orderings of memory that other members read and write: those of [`crate::shared`] that hand
//! something over, and those on which nothing depends.

pub(super) use crate::shared::{observe, publish, warn_before};

use crate::shared::{AtomicWord64, WordArray};
use std::sync::atomic::Ordering;

/// A load that nothing depends on.
pub(super) fn peek(word: &AtomicWord64) -> u64 {
    word.load(Ordering::Relaxed)
}

/// A store that nothing depends on.
pub(super) fn put(word: &AtomicWord64, value: u64) {
    word.store(value, Ordering::Relaxed);
}

/// Words that are taken out of a row at once: what is computed with them stays in the cache.
pub(super) const CHUNK: usize = 512;

/// One word of a row.
pub(super) fn get(row: &WordArray, index: usize) -> u64 {
    row.load(index, Ordering::Relaxed)
}

/// Sets one word of a row.
pub(super) fn set(row: &WordArray, index: usize, value: u64) {
    row.store(index, value, Ordering::Relaxed);
}
