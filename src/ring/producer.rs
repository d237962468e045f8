//! A host's end of a ring: R4 and R5, as device threads follow them in `doorbell.cuh`.
//!
//! The host rings for tests, for benches and for host-side signalling. `head` must then be host
//! memory: a ring is rung either by a device or by hosts.

use super::cursor::RingSize;
use crate::error::{Error, Result};
use crate::id::Position;
use crate::shared::{AtomicWord64, Region, WordArray};
use ringdove_kernels::descriptor::{DESCRIPTOR_BYTES, Descriptor};
use std::sync::atomic::Ordering;

/// The four parts of a ring's memory, as a producer needs them.
#[derive(Clone)]
pub struct RingMemory {
    /// The slots, from their first byte.
    pub slots: Region,
    /// The next free position.
    pub head: AtomicWord64,
    /// The first position that is not freed yet.
    pub tail: AtomicWord64,
    /// The producers' own copy of `tail` (R4).
    pub tail_cache: AtomicWord64,
}

impl RingMemory {
    /// A zeroed ring in host memory.
    ///
    /// # Errors
    /// None in practice; the region is made to fit.
    pub fn host(size: RingSize) -> Result<Self> {
        let slots_bytes = size.slots() as usize * DESCRIPTOR_BYTES;
        // Each word on its own cache line: three parties write them.
        let words = Region::host(3 * 64);
        Ok(Self {
            slots: Region::host(slots_bytes),
            head: words.word64(0)?,
            tail: words.word64(64)?,
            tail_cache: words.word64(128)?,
        })
    }
}

/// Why a descriptor was not rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The ring is full. Nothing was reserved; the push can be repeated.
    #[error("the doorbell ring of {slots} slots is full (tail {tail})")]
    Full {
        /// Slots of the ring.
        slots: u64,
        /// The tail that was seen.
        tail: u64,
    },
    /// The caller gave up while it held a position. The ring has a hole there for ever, so its
    /// communicator must be aborted.
    #[error(
        "timed out at ring {position}: the ring was full (tail {tail}); it cannot be used again"
    )]
    Abandoned {
        /// The position that stays empty.
        position: Position,
        /// The tail that was seen last.
        tail: u64,
    },
}

/// Rings descriptors from host threads. Clones ring the same ring.
#[derive(Clone)]
pub struct Producer {
    slots: WordArray,
    head: AtomicWord64,
    tail: AtomicWord64,
    tail_cache: AtomicWord64,
    size: RingSize,
}

impl Producer {
    /// A producer for the ring in `memory`.
    ///
    /// # Errors
    /// [`Error::Argument`] if the slots do not fit the size.
    pub fn new(memory: &RingMemory, size: RingSize) -> Result<Self, Error> {
        let words = size.slots() as usize * DESCRIPTOR_BYTES / 8;
        Ok(Self {
            slots: memory.slots.words64(0, words)?,
            head: memory.head.clone(),
            tail: memory.tail.clone(),
            tail_cache: memory.tail_cache.clone(),
            size,
        })
    }

    /// Rings as a device thread does: takes a position with one fetch-add, waits for room, writes
    /// both words (R4). `give_up` is asked between looks at the tail, and ends the wait (R10) when
    /// it returns true; it also is the place to yield.
    ///
    /// # Errors
    /// [`PushError::Abandoned`] if `give_up` said so.
    pub fn push(
        &self,
        descriptor: &Descriptor,
        mut give_up: impl FnMut() -> bool,
    ) -> Result<Position, PushError> {
        // Relaxed: the fetch-add only hands out numbers; the words carry the data.
        let position = Position(self.head.fetch_add(1, Ordering::Relaxed));
        while !self.has_room(position) {
            if give_up() {
                let tail = self.tail.load(Ordering::Relaxed);
                return Err(PushError::Abandoned { position, tail });
            }
        }
        self.publish(position, descriptor);
        Ok(position)
    }

    /// Rings if there is room now. Takes its position by compare-and-swap, after it saw room, so
    /// that a full ring leaves no hole; mixes with [`push`](Self::push).
    ///
    /// # Errors
    /// [`PushError::Full`].
    pub fn try_push(&self, descriptor: &Descriptor) -> Result<Position, PushError> {
        let mut head = self.head.load(Ordering::Relaxed);
        // Bounded: each failure means that another producer advanced.
        loop {
            let position = Position(head);
            if !self.has_room(position) {
                // A head that is stale lies behind the tail and looks full too: look again.
                let seen = self.head.load(Ordering::Relaxed);
                if seen != head {
                    head = seen;
                    continue;
                }
                let tail = self.tail.load(Ordering::Relaxed);
                return Err(PushError::Full { slots: self.size.slots(), tail });
            }
            let next = position.advance(1).0;
            match self.head.compare_exchange(head, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    self.publish(position, descriptor);
                    return Ok(position);
                }
                Err(seen) => head = seen,
            }
        }
    }

    /// R4: looks at the cached tail first, and at the engine's only when that one says no.
    fn has_room(&self, position: Position) -> bool {
        // Acquire on both paths: our stores to the slot must come after the consumer's loads of
        // what stood there. Pairs with Consumer::poll (tail); the cache passes that on from the
        // producer that refreshed it, below.
        let cached = self.tail_cache.load(Ordering::Acquire);
        if self.size.has_room(position, Position(cached)) {
            return true;
        }
        let tail = self.tail.load(Ordering::Acquire);
        // Max, because producers refresh the cache concurrently. (A device just stores: an old tail
        // costs it another look, R4.)
        // Release pairs with the acquire load of the cache above.
        self.tail_cache.fetch_max(tail, Ordering::Release);
        self.size.has_room(position, Position(tail))
    }

    /// R5: a reader that accepts the words sees all that this thread wrote before.
    fn publish(&self, position: Position, descriptor: &Descriptor) {
        let words = descriptor.encode(self.size.lap_bit(position));
        let index = self.size.slot(position) * (DESCRIPTOR_BYTES / 8);
        // Release on each word, since the consumer may accept on either. Pairs with Consumer::load.
        self.slots.store(index, words[0], Ordering::Release);
        self.slots.store(index + 1, words[1], Ordering::Release);
    }
}
