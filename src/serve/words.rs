//! The orderings of memory that other members read and write: those of [`crate::shared`] that hand
//! something over, and those on which nothing depends.

pub(super) use crate::shared::{observe, publish, warn_before};

use crate::shared::{AtomicWord64, WordArray};
use std::ops::Range;
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

/// Copies words.
pub(super) fn copy(from: &WordArray, to: &WordArray) {
    copy_range(from, to, 0..from.count().min(to.count()));
}

/// Copies these words of a row to the same places of another.
pub(super) fn copy_range(from: &WordArray, to: &WordArray, range: Range<usize>) {
    let mut words = [0; CHUNK];
    for start in range.clone().step_by(CHUNK) {
        let words = &mut words[..CHUNK.min(range.end - start)];
        from.load_all(start, words);
        to.store_all(start, words);
    }
}

/// One word of a row.
pub(super) fn get(row: &WordArray, index: usize) -> u64 {
    row.load(index, Ordering::Relaxed)
}

/// Sets one word of a row.
pub(super) fn set(row: &WordArray, index: usize, value: u64) {
    row.store(index, value, Ordering::Relaxed);
}
