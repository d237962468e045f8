//! The engine's end of a ring: R2, R3, R6 and R7.

use super::cursor::RingSize;
use crate::error::Result;
use crate::id::Position;
use crate::shared::{AtomicWord64, Region, Row64, Word64, WordArray};
use ringdove_kernels::descriptor::DESCRIPTOR_BYTES;
use std::sync::atomic::Ordering;

/// A descriptor that was copied out of its slot. Its words are not checked beyond their lap bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// Where it stood.
    pub position: Position,
    /// The two words, lap bits included.
    pub words: [u64; 2],
}

/// Takes descriptors out of one ring, in order. There is exactly one consumer for a ring.
///
/// The ring is memory that devices reach, unless a simulation gives it words of another kind.
pub struct Consumer<S = WordArray, T = AtomicWord64> {
    slots: S,
    tail: T,
    size: RingSize,
    /// The position to read next; everything before is copied out and freed.
    next: Position,
    occupancy_max: u64,
}

impl Consumer {
    /// The consumer of the ring whose slots start at the first byte of `slots`. `tail` is the word
    /// that producers watch; both are zero at this point (R1).
    ///
    /// # Errors
    /// [`Error::Argument`](crate::error::Error::Argument) if `slots` is too small or misaligned.
    pub fn new(slots: &Region, tail: AtomicWord64, size: RingSize) -> Result<Self> {
        Self::starting_at(slots, tail, size, Position(0))
    }

    /// As [`new`](Self::new), for a ring whose first position is `start`: the slots must read as
    /// empty for its lap, and `tail` and `head` must hold `start`.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn starting_at(
        slots: &Region,
        tail: AtomicWord64,
        size: RingSize,
        start: Position,
    ) -> Result<Self> {
        let words = size.slots() as usize * DESCRIPTOR_BYTES / 8;
        Ok(Self::over(slots.words64(0, words)?, tail, size, start))
    }
}

impl<S: Row64, T: Word64> Consumer<S, T> {
    /// As [`starting_at`](Consumer::starting_at), over the words of the slots.
    pub fn over(slots: S, tail: T, size: RingSize, start: Position) -> Self {
        Self { slots, tail, size, next: start, occupancy_max: 0 }
    }

    /// Copies out, in order, what is committed, at most `out.len()` descriptors, and frees their
    /// slots with one store of the tail (R6, R7). Returns how many.
    pub fn poll(&mut self, out: &mut [Committed]) -> usize {
        let mut count = 0;
        // A batch is one lap at most: beyond it lie this batch's own slots, not freed yet.
        let limit = out.len().min(self.size.slots() as usize);
        for entry in &mut out[..limit] {
            let Some(words) = self.load(self.next) else { break };
            *entry = Committed { position: self.next, words };
            self.next = self.next.advance(1);
            count += 1;
        }
        if count > 0 {
            self.occupancy_max = self.occupancy_max.max(count as u64);
            if count == limit {
                self.probe_occupancy(count as u64);
            }
            // Release: a producer that sees this tail may overwrite the slots, so our loads of them
            // come first. Pairs with doorbell.cuh: ring, and Producer::has_room, R4.
            self.tail.store(self.next.0, Ordering::Release);
        }
        count
    }

    /// True if nothing is committed at the next position.
    pub fn is_empty(&self) -> bool {
        self.load(self.next).is_none()
    }

    /// The position that will be read next.
    pub fn next_position(&self) -> Position {
        self.next
    }

    /// The most slots that were seen in use at once.
    pub fn occupancy_max(&self) -> u64 {
        self.occupancy_max
    }

    /// The words of `position` if both were written in its lap (R3).
    fn load(&self, position: Position) -> Option<[u64; 2]> {
        let index = self.size.slot(position) * (DESCRIPTOR_BYTES / 8);
        // Acquire on each word: either one may arrive first, and whichever arrives last must still
        // order the payload before what we do next. Pairs with doorbell.cuh: release_payload, and
        // Producer::publish, R5. Word 1 first, because producers tend to write it last: an empty
        // slot then costs one load.
        let high = self.slots.load(index + 1, Ordering::Acquire);
        if !self.size.is_committed(high, position) {
            return None;
        }
        let low = self.slots.load(index, Ordering::Acquire);
        self.size.is_committed(low, position).then_some([low, high])
    }

    /// After a full batch of `drained` descriptors was copied out, and before they are freed: is
    /// there more behind it than ever before? Probes only from the record upwards, so all probes
    /// together cost one load for each full batch plus one for each new record.
    fn probe_occupancy(&mut self, drained: u64) {
        while self.occupancy_max < self.size.slots()
            && self.load(self.next.advance(self.occupancy_max - drained)).is_some()
        {
            self.occupancy_max += 1;
        }
    }
}
