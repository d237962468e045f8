//! Positions, slots and laps: the arithmetic of R2 and R4, apart from any memory.

use crate::error::{Error, Result};
use crate::id::Position;
use ringdove_kernels::descriptor::LAP_BIT;

/// Number of slots of a ring, a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSize {
    log2: u32,
}

impl RingSize {
    /// The largest supported ring: 2^20 slots, 16 MiB.
    pub const LOG2_MAX: u32 = 20;

    /// A ring of `1 << log2` slots.
    ///
    /// # Errors
    /// [`Error::Argument`] above [`LOG2_MAX`](Self::LOG2_MAX).
    pub fn new(log2: u32) -> Result<Self> {
        if log2 > Self::LOG2_MAX {
            let expected = format_args!("log2 of at most {}", Self::LOG2_MAX);
            return Err(Error::argument("ring size", expected, log2));
        }
        Ok(Self { log2 })
    }

    /// `k`, where the ring has 2^k slots.
    pub const fn log2(self) -> u32 {
        self.log2
    }

    /// Number of slots.
    pub const fn slots(self) -> u64 {
        1 << self.log2
    }

    /// Where `position` lives (R2).
    pub const fn slot(self, position: Position) -> usize {
        (position.0 & (self.slots() - 1)) as usize
    }

    /// The lap bit that the words of `position` carry: the inverted parity of the lap, so that lap
    /// 0 writes 1 and zeroed memory reads as empty (R1, R2).
    pub const fn lap_bit(self, position: Position) -> bool {
        (position.0 >> self.log2) & 1 == 0
    }

    /// True if `word` was written for `position`, and not for the lap before (R3).
    pub const fn is_committed(self, word: u64, position: Position) -> bool {
        (word & LAP_BIT != 0) == self.lap_bit(position)
    }

    /// True if the producer that holds `position` may write its slot, given a tail (R4). A stale
    /// tail only errs towards waiting.
    ///
    /// The comparison is of distances, so it holds when the counters wrap. (They never do: at
    /// 10^9 descriptors a second that takes 584 years. Tests start close to the end anyway.)
    pub const fn has_room(self, position: Position, tail: Position) -> bool {
        // A tail beyond the position, possible only if the slot's lap is over, is no room.
        position.0.wrapping_sub(tail.0) < self.slots()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The plainest possible ring: remembers for each slot which position was written last.
    struct Oracle {
        written: Vec<Option<u64>>,
    }

    proptest! {
        // If this fails, a consumer reads a stale slot as new, or never sees a new one.
        #[test]
        fn lap_bits_tell_this_lap_from_the_one_before(
            log2 in 0u32..8, start in any::<u64>(), steps in 1usize..2000,
        ) {
            let size = RingSize::new(log2).unwrap();
            let start = start.min(u64::MAX - 4096) & !((size.slots() << 1) - 1);
            let mut oracle = Oracle { written: vec![None; size.slots() as usize] };
            let mut words = vec![0u64; size.slots() as usize];
            for offset in 0..steps as u64 {
                let position = Position(start + offset);
                let slot = size.slot(position);
                // Before the write: the slot holds the lap before, or zeros.
                prop_assert!(!size.is_committed(words[slot], position));
                prop_assert_eq!(oracle.written[slot], offset.checked_sub(size.slots()));
                words[slot] = if size.lap_bit(position) { LAP_BIT } else { 0 };
                oracle.written[slot] = Some(offset);
                prop_assert!(size.is_committed(words[slot], position));
                // The next lap must not mistake it for its own.
                prop_assert!(!size.is_committed(words[slot], position.advance(size.slots())));
            }
        }

        // If this fails, two producers own one slot at the same time.
        #[test]
        fn room_is_granted_to_exactly_one_lap(
            log2 in 0u32..12, tail in any::<u64>(), ahead in 0u64..10_000,
        ) {
            let size = RingSize::new(log2).unwrap();
            let position = Position(tail).advance(ahead);
            prop_assert_eq!(size.has_room(position, Position(tail)), ahead < size.slots());
            let (last, next) = (size.slots() - 1, size.slots());
            prop_assert!(size.has_room(Position(tail).advance(last), Position(tail)));
            prop_assert!(!size.has_room(Position(tail).advance(next), Position(tail)));
        }
    }

    #[test]
    fn a_zeroed_ring_is_empty() {
        for log2 in 0..=RingSize::LOG2_MAX {
            let size = RingSize::new(log2).unwrap();
            assert!(!size.is_committed(0, Position(0)));
            assert!(!size.is_committed(0, Position(size.slots() - 1)));
        }
        assert!(RingSize::new(RingSize::LOG2_MAX + 1).is_err());
    }
}
