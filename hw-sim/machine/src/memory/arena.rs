//! The memory of one GPU: one reservation, sub-allocated.

use super::pages::{self, HUGE_PAGE, PAGE};
use super::ranges::Ranges;
use crate::error::{Error, Result};
use std::sync::Mutex;

/// Freed pages that are kept for the next allocation, so that a program which allocates and frees
/// in a loop does not fault its pages in again and again. What is more the host may take.
const KEPT_BYTES_MAX: u64 = 256 << 20;

/// One GPU's memory. Addresses in it are the host's own, and stay mapped while the process lives.
#[derive(Debug)]
pub(crate) struct Arena {
    base: u64,
    span: u64,
    capacity: u64,
    state: Mutex<ArenaState>,
}

#[derive(Debug)]
struct ArenaState {
    free: Ranges,
    /// Free ranges whose pages were touched.
    kept: Ranges,
    used: u64,
}

impl Arena {
    /// Reserves address space for `capacity` bytes. Twice as much is reserved, so that holes
    /// between allocations never refuse what the GPU still has room for.
    pub fn new(capacity: u64) -> Result<Self> {
        let capacity = capacity.next_multiple_of(HUGE_PAGE);
        let span = 2 * capacity;
        let base = pages::reserve(span + HUGE_PAGE)?.next_multiple_of(HUGE_PAGE);
        let mut free = Ranges::default();
        free.insert(base, span);
        let state = Mutex::new(ArenaState { free, kept: Ranges::default(), used: 0 });
        Ok(Self { base, span, capacity, state })
    }

    /// Bytes that an allocation of `bytes` takes.
    pub fn footprint(bytes: u64) -> u64 {
        bytes.max(1).next_multiple_of(PAGE)
    }

    /// Takes `bytes`, page-aligned (large ones at huge pages), of a GPU on which other processes
    /// have taken `elsewhere`.
    pub fn allocate(&self, bytes: u64, elsewhere: u64) -> Result<u64> {
        let mut state = self.state.lock().unwrap();
        self.count(&mut state, bytes, elsewhere)?;
        let taken = state.take(bytes);
        taken.ok_or_else(|| {
            state.used -= Self::footprint(bytes);
            self.refused(bytes, 0)
        })
    }

    fn refused(&self, wanted: u64, free: u64) -> Error {
        Error::OutOfMemory { wanted, free, total: self.capacity }
    }

    /// Counts bytes as used, if there are so many.
    fn count(&self, state: &mut ArenaState, bytes: u64, elsewhere: u64) -> Result<()> {
        let free = self.capacity.saturating_sub(state.used).saturating_sub(elsewhere);
        if bytes > free || Self::footprint(bytes) > free {
            return Err(self.refused(bytes, free));
        }
        state.used += Self::footprint(bytes);
        Ok(())
    }

    /// Sets addresses aside without taking memory.
    pub fn reserve(&self, bytes: u64) -> Result<u64> {
        if bytes > self.capacity {
            return Err(self.refused(bytes, self.capacity));
        }
        let taken = self.state.lock().unwrap().take(bytes);
        taken.ok_or_else(|| self.refused(bytes, 0))
    }

    /// Gives addresses back that were set aside.
    pub fn unreserve(&self, address: u64, bytes: u64) {
        self.state.lock().unwrap().put_back(address, Self::footprint(bytes));
    }

    /// Takes memory for addresses that were set aside.
    pub fn commit(&self, bytes: u64, elsewhere: u64) -> Result<()> {
        self.count(&mut self.state.lock().unwrap(), bytes, elsewhere)
    }

    /// Gives that memory back, and keeps the addresses.
    pub fn uncommit(&self, bytes: u64) {
        self.state.lock().unwrap().used -= Self::footprint(bytes);
    }

    /// Gives an allocation back.
    pub fn free(&self, address: u64, bytes: u64) {
        let length = Self::footprint(bytes);
        let mut state = self.state.lock().unwrap();
        state.put_back(address, length);
        state.used -= length;
    }

    /// Free and total bytes.
    pub fn usage(&self) -> (u64, u64) {
        (self.capacity - self.state.lock().unwrap().used, self.capacity)
    }

    /// Bytes that are taken.
    pub fn used(&self) -> u64 {
        self.state.lock().unwrap().used
    }

    /// Does the address belong to this GPU, allocated or not?
    pub fn contains(&self, address: u64) -> bool {
        (self.base..self.base + self.span).contains(&address)
    }
}

impl ArenaState {
    /// Addresses for `bytes`, where there is room for them.
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let length = Arena::footprint(bytes);
        let align = if length >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
        let address = self.free.find(length, align)?;
        self.free.remove(address, length);
        self.kept.remove(address, length);
        Some(address)
    }

    fn put_back(&mut self, address: u64, length: u64) {
        self.free.insert(address, length);
        self.kept.insert(address, length);
        if self.kept.total() > KEPT_BYTES_MAX {
            for (start, length) in self.kept.iter() {
                pages::give_back(start, length);
            }
            self.kept.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_for_every_page_and_reuses_holes() {
        let arena = Arena::new(64 << 20).unwrap();
        let (free, total) = arena.usage();
        assert_eq!((free, total), (64 << 20, 64 << 20));
        let a = arena.allocate(1, 0).unwrap();
        let b = arena.allocate(3 << 20, 0).unwrap();
        assert_eq!(b % HUGE_PAGE, 0, "large allocations start at huge pages");
        assert_eq!(arena.usage().0, (64 << 20) - PAGE - (3 << 20));
        arena.free(a, 1);
        assert_eq!(arena.allocate(100, 0).unwrap(), a, "the lowest hole is taken first");
        assert!(matches!(arena.allocate(64 << 20, 0), Err(Error::OutOfMemory { .. })));
        arena.free(a, 100);
        arena.free(b, 3 << 20);
        assert_eq!(arena.usage().0, 64 << 20);
        assert!(arena.allocate(u64::MAX - 5, 0).is_err(), "sizes near 2^64 must not wrap");
    }

    /// Faults of this thread that needed no disk.
    fn faults() -> i64 {
        nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_THREAD)
            .unwrap()
            .minor_page_faults()
    }

    /// CubeCL measures a GPU with buffers of 1 GiB, one after the other. Clearing their pages anew
    /// took longer than the kernels.
    #[test]
    fn large_memory_that_is_freed_and_allocated_again_has_its_pages() {
        let bytes = 2 * KEPT_BYTES_MAX;
        let arena = Arena::new(bytes).unwrap();
        let counts = [0, 0].map(|_| {
            let address = arena.allocate(bytes, 0).unwrap();
            let before = faults();
            for page in (address..address + bytes).step_by(PAGE as usize) {
                // SAFETY: the arena has mapped the range, and nobody else knows it.
                unsafe { (page as *mut u8).write_volatile(1) };
            }
            arena.free(address, bytes);
            faults() - before
        });
        assert!(counts[0] >= (bytes / HUGE_PAGE) as i64, "{counts:?}");
        assert!(counts[1] < counts[0] / 4, "faults at first and again: {counts:?}");
    }

    #[test]
    fn fragmentation_does_not_refuse_what_is_free() {
        let arena = Arena::new(64 << 20).unwrap();
        let blocks: Vec<u64> = (0..32).map(|_| arena.allocate(2 << 20, 0).unwrap()).collect();
        for &block in blocks.iter().step_by(2) {
            arena.free(block, 2 << 20);
        }
        assert!(arena.allocate(32 << 20, 0).is_ok());
    }
}
