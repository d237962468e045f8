//! The heap of a context's kernels: device `malloc` and `free`.
//!
//! Its memory is taken from the GPU when a thread first asks for some, and goes with the context.
//! Each piece is an allocation of its own, so accesses are checked against what was asked for, and
//! those to freed memory fail. A piece begins at a multiple of 16 bytes and has 16 bytes behind it
//! that belong to nobody, so that a small overrun of one never lands in the next.
//!
//! The host cannot copy heap memory, free it, or hand it to others, as CUDA says; kernels of every
//! context that reaches the GPU can use it.

use super::ranges::Ranges;
use super::table::{Allocation, AllocationKind};
use super::{AllocationTable, GlobalMemory};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Alignment of each piece, and the gap behind it.
const ALIGN: u64 = 16;

/// Bytes of a heap that no program has sized, as on real hardware.
pub const HEAP_BYTES_DEFAULT: u64 = 8 << 20;

/// A context's heap.
#[derive(Debug)]
pub(crate) struct Heap {
    gpu: usize,
    context: u64,
    limit: AtomicU64,
    region: Mutex<Region>,
}

#[derive(Debug, Default)]
struct Region {
    /// The memory, once taken: 0 bytes if the GPU had none to give.
    taken: Option<(u64, u64)>,
    free: Ranges,
}

impl Heap {
    /// The heap of a context's kernels.
    pub fn new(gpu: usize, context: u64) -> Self {
        let limit = AtomicU64::new(HEAP_BYTES_DEFAULT);
        Self { gpu, context, limit, region: Mutex::default() }
    }

    /// Its size, bytes.
    pub fn limit(&self) -> u64 {
        // Relaxed: nothing but the number is shared by it.
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets its size; false if kernels have used it already.
    pub fn set_limit(&self, bytes: u64) -> bool {
        let region = self.region.lock().unwrap();
        let unused = region.taken.is_none();
        if unused {
            self.limit.store(bytes, Ordering::Relaxed);
        }
        unused
    }

    /// Bytes that a piece takes.
    fn footprint(bytes: u64) -> Option<u64> {
        bytes.checked_next_multiple_of(ALIGN)?.checked_add(ALIGN)
    }

    /// A piece; 0 if there is no room, or nothing is asked for.
    pub fn allocate(&self, memory: &GlobalMemory, table: &AllocationTable, bytes: u64) -> u64 {
        let Some(length) = Self::footprint(bytes).filter(|_| bytes > 0) else { return 0 };
        let mut guard = self.region.lock().unwrap();
        let region = &mut *guard;
        if region.taken.is_none() {
            let size = self.limit();
            let base = memory.take(self.gpu, size).ok().filter(|_| size > 0);
            region.taken = Some((base.unwrap_or(0), base.map_or(0, |_| size)));
            if let Some(base) = base {
                region.free.insert(base, size);
            }
        }
        let Some(base) = region.free.find(length, ALIGN) else { return 0 };
        region.free.remove(base, length);
        let kind = AllocationKind::Heap { gpu: self.gpu };
        let (id, flags, rights) = (0, 0, None);
        let piece = Allocation { base, bytes, kind, id, context: self.context, flags, rights };
        table.insert(piece).expect("the heap hands out free ranges only");
        base
    }

    /// Takes a piece back; false if there is none that begins there.
    pub fn release(&self, table: &AllocationTable, base: u64) -> bool {
        let mut region = self.region.lock().unwrap();
        // Pieces of other contexts' heaps, and what is no piece, are not ours to free.
        let own = table.find(base).filter(|found| found.context == self.context);
        let removed = own.and_then(|_| table.remove(base, AllocationKind::is_heap));
        let Some(piece) = removed else { return false };
        region.free.insert(base, Self::footprint(piece.bytes).unwrap_or(ALIGN));
        true
    }

    /// Ends the heap with its context, whose kernels have ended.
    pub fn end(&self, memory: &GlobalMemory) {
        let mut region = self.region.lock().unwrap();
        region.free.clear();
        if let Some((base, bytes)) = region.taken.replace((0, 0))
            && bytes > 0
        {
            // The ledger of a node that cannot be written says so when memory is taken next.
            let _ = memory.give_back(self.gpu, base, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Site;
    use std::collections::HashMap;

    /// Against a list of live pieces: none overlaps another, each can be freed once, and a heap
    /// whose pieces are all free gives as much as a fresh one.
    #[test]
    fn pieces_never_overlap_and_all_come_back() {
        let seed = 11;
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let memory = GlobalMemory::new(&[64 << 20], Site::default()).unwrap();
        let heap = Heap::new(0, 1);
        assert!(heap.set_limit(1 << 16));
        let mut live: HashMap<u64, u64> = HashMap::new();
        for _ in 0..5000 {
            if random.bool() {
                let bytes = random.u64(1..3000);
                let base = heap.allocate(&memory, &memory.table, bytes);
                if base == 0 {
                    continue;
                }
                assert_eq!(base % ALIGN, 0);
                let apart = |(start, length): (&u64, &u64)| {
                    base + bytes + ALIGN <= *start || start + length + ALIGN <= base
                };
                assert!(live.iter().all(apart), "{bytes} bytes at {base:#x} beside {live:x?}");
                live.insert(base, bytes);
            } else if let Some(&base) = live.keys().nth(random.usize(..live.len().max(1))) {
                assert!(!heap.release(&memory.table, base + 1));
                assert!(heap.release(&memory.table, base));
                assert!(!heap.release(&memory.table, base));
                live.remove(&base);
            }
        }
        assert!(live.keys().all(|base| heap.release(&memory.table, *base)));
        assert_ne!(heap.allocate(&memory, &memory.table, (1 << 16) - ALIGN), 0);
        assert!(!heap.set_limit(1 << 20));
        let used = memory.usage(0).0;
        memory.release_context(1);
        heap.end(&memory);
        assert_eq!(memory.usage(0).0, used + (1 << 16));
    }
}
