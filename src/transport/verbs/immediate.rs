//! Signals in the immediate data of RDMA writes, for adapters and memory that place data out of
//! order: only the completion at the receiver says that all of a message is there. The receiver's
//! engine then raises the signal itself.
//!
//! Immediate data has 32 bits: which word of the receiver's signal memory, and the low bits of the
//! count that the word shall have. Counts of a word come in order and only rise, by less than the
//! bits can hold, so the receiver knows the whole count.

use crate::transport::SignalWrite;

/// Bits of the count. One transfer stands for 256 descriptors at most (the engine's batch).
const COUNT_BITS: u32 = 12;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;
/// The most words that 20 bits can name: 8 MiB of signals.
const WORDS_MAX: u64 = 1 << (32 - COUNT_BITS);
/// Bytes of a signal word.
const WORD_BYTES: u64 = 8;

/// The immediate data for a signal that lies `offset` bytes into the receiver's signal memory;
/// `None` for one that 20 bits cannot name.
pub(super) fn encode(offset: u64, count: u64) -> Option<u32> {
    let word = offset / WORD_BYTES;
    let named = offset.is_multiple_of(WORD_BYTES) && word < WORDS_MAX;
    named.then_some((word << COUNT_BITS | count & COUNT_MASK) as u32)
}

/// The receiver's signal memory, and how far each of its words has been raised.
pub(super) struct Arrivals {
    base: u64,
    counts: Box<[u64]>,
}

impl Arrivals {
    /// For `length_bytes` bytes of signals from `base` on.
    pub(super) fn new(base: u64, length_bytes: u64) -> Self {
        let words = (length_bytes / WORD_BYTES).min(WORDS_MAX);
        Self { base, counts: (0..words).map(|_| 0).collect() }
    }

    /// What immediate data asks for; `None` where it names no word of this memory.
    pub(super) fn decode(&mut self, immediate: u32) -> Option<SignalWrite> {
        let word = u64::from(immediate) >> COUNT_BITS;
        let count = self.counts.get_mut(usize::try_from(word).ok()?)?;
        *count += (u64::from(immediate).wrapping_sub(*count)) & COUNT_MASK;
        Some(SignalWrite { address: self.base + word * WORD_BYTES, value: *count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// If this fails, a signal falls, skips ahead, or is raised in the wrong place.
        #[test]
        fn counts_and_places_survive_the_way(
            // Few words, so that their counts pass what the bits hold.
            steps in prop::collection::vec((0..4_u64, 1..=256_u64), 0..500),
        ) {
            let mut arrivals = Arrivals::new(0x1000, 32);
            let mut counts = [0; 4];
            for (word, step) in steps {
                counts[word as usize] += step;
                let value = counts[word as usize];
                let immediate = encode(word * 8, value).unwrap();
                let expected = SignalWrite { address: 0x1000 + word * 8, value };
                prop_assert_eq!(arrivals.decode(immediate), Some(expected));
            }
        }
    }

    #[test]
    fn what_cannot_be_named_is_refused_at_both_ends() {
        assert_eq!(encode(4, 1), None);
        assert_eq!(encode(8 << 20, 1), None);
        assert!(encode((8 << 20) - 8, u64::MAX).is_some());
        assert_eq!(Arrivals::new(0, 64).decode(encode(64, 1).unwrap()), None);
    }
}
