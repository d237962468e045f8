//! Which bytes exist: every allocation that a GPU may touch, with its bounds.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

/// Kind of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationKind {
    /// Memory of a GPU.
    Device {
        /// Which.
        gpu: usize,
    },
    /// A piece of a heap: what a kernel got of `malloc`.
    Heap {
        /// On which GPU.
        gpu: usize,
    },
    /// Memory that another process exported, on this GPU.
    Imported {
        /// Which.
        gpu: usize,
    },
    /// Memory that a program has mapped at addresses of its choice, on this GPU.
    Mapped {
        /// Which.
        gpu: usize,
    },
    /// Managed memory, reachable from everywhere.
    Managed {
        /// The GPU it was allocated on.
        gpu: usize,
    },
    /// Pinned host memory that the machine allocated.
    Pinned,
    /// The program's own memory, registered.
    Registered,
}

impl AllocationKind {
    /// The GPU that holds the memory, None for the host's.
    pub const fn gpu(self) -> Option<usize> {
        match self {
            Self::Device { gpu }
            | Self::Heap { gpu }
            | Self::Imported { gpu }
            | Self::Mapped { gpu }
            | Self::Managed { gpu } => Some(gpu),
            Self::Pinned | Self::Registered => None,
        }
    }

    /// Is it a piece of a heap, which only kernels may use?
    pub const fn is_heap(self) -> bool {
        matches!(self, Self::Heap { .. })
    }

    /// Is it the host's memory?
    pub const fn is_host(self) -> bool {
        matches!(self, Self::Pinned | Self::Registered)
    }
}

/// The GPUs whose kernels may touch memory that has rights of its own.
#[derive(Debug, Default)]
pub struct Rights {
    /// A bit for each GPU.
    gpus: AtomicU64,
    /// Contexts with peer access may touch the memory as well.
    joins_peer_access: bool,
}

impl Rights {
    /// Those of GPUs, a bit each.
    pub(crate) fn of(gpus: u64) -> Self {
        Self { gpus: AtomicU64::new(gpus), joins_peer_access: false }
    }

    /// No GPU's yet, beside those that peer access gives.
    pub fn beside_peer_access() -> Self {
        Self { joins_peer_access: true, ..Self::default() }
    }

    /// Does peer access count for nothing here?
    pub fn replace_peer_access(&self) -> bool {
        !self.joins_peer_access
    }

    /// Grants or withdraws. Who withdraws voids the warps' memories.
    pub fn set(&self, gpu: usize, granted: bool) {
        // Relaxed: the caller orders this against the kernels that it is for.
        match granted {
            true => self.gpus.fetch_or(1 << gpu, Ordering::Relaxed),
            false => self.gpus.fetch_and(!(1 << gpu), Ordering::Relaxed),
        };
    }

    /// May kernels of a GPU touch the memory?
    pub fn hold(&self, gpu: usize) -> bool {
        self.gpus.load(Ordering::Relaxed) & (1 << gpu) != 0
    }
}

impl PartialEq for Rights {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Rights {}

/// One allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// First byte; device address and host address are the same.
    pub base: u64,
    /// Bytes that were asked for: the bound of every access.
    pub bytes: u64,
    /// The kind.
    pub kind: AllocationKind,
    /// Never used twice.
    pub id: u64,
    /// The context that made it.
    pub context: u64,
    /// Flags that it was made with (host allocations and registrations).
    pub flags: u32,
    /// Rights of its own, beside or in place of peer access: those of a memory pool or a mapping.
    pub rights: Option<Arc<Rights>>,
}

impl Allocation {
    /// One past its last byte.
    pub fn end(&self) -> u64 {
        self.base + self.bytes
    }

    /// Do contexts with peer access need more than that to touch it?
    pub fn has_own_rights(&self) -> bool {
        self.rights.as_ref().is_some_and(|rights| rights.replace_peer_access())
    }
}

/// All allocations, by address.
#[derive(Debug, Default)]
pub(crate) struct AllocationTable {
    map: RwLock<BTreeMap<u64, Arc<Allocation>>>,
    /// Grows whenever an allocation goes or a right is withdrawn; what a warp remembers from
    /// before is void.
    generation: Generation,
    next_id: AtomicU64,
}

/// A cache line of its own: all warps look at it all the time, and the lock of the map, which
/// every question writes, must not take it from them.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Generation(AtomicU64);

impl AllocationTable {
    /// Enters an allocation; None if it overlaps another.
    pub fn insert(&self, mut allocation: Allocation) -> Option<Arc<Allocation>> {
        allocation.id = 1 + self.next_id.fetch_add(1, Ordering::Relaxed);
        let mut map = self.map.write().unwrap();
        let before = map.range(..allocation.end()).next_back();
        if before.is_some_and(|(_, other)| other.end() > allocation.base) {
            return None;
        }
        let allocation = Arc::new(allocation);
        map.insert(allocation.base, Arc::clone(&allocation));
        Some(allocation)
    }

    /// Takes out the allocation that starts at `base`, if `matches` agrees.
    pub fn remove(
        &self,
        base: u64,
        matches: impl Fn(AllocationKind) -> bool,
    ) -> Option<Arc<Allocation>> {
        let mut map = self.map.write().unwrap();
        if !map.get(&base).is_some_and(|allocation| matches(allocation.kind)) {
            return None;
        }
        let removed = map.remove(&base);
        self.invalidate();
        removed
    }

    /// Takes out the allocations that start at `gone` and enters others, in one step: nobody finds
    /// a hole where both have the same bytes.
    pub fn replace(&self, gone: &[u64], new: Vec<Allocation>) {
        let mut map = self.map.write().unwrap();
        for base in gone {
            map.remove(base);
        }
        for mut allocation in new {
            allocation.id = 1 + self.next_id.fetch_add(1, Ordering::Relaxed);
            map.insert(allocation.base, Arc::new(allocation));
        }
        self.invalidate();
    }

    /// The allocation that holds `address`.
    pub fn find(&self, address: u64) -> Option<Arc<Allocation>> {
        let map = self.map.read().unwrap();
        let (_, allocation) = map.range(..=address).next_back()?;
        (address < allocation.end()).then(|| Arc::clone(allocation))
    }

    /// The allocation that holds `address`, or that is next below it.
    pub fn below(&self, address: u64) -> Option<Arc<Allocation>> {
        let map = self.map.read().unwrap();
        map.range(..=address).next_back().map(|(_, allocation)| Arc::clone(allocation))
    }

    /// The allocation nearest to `address`, for a report.
    pub fn nearest(&self, address: u64) -> Option<Arc<Allocation>> {
        let map = self.map.read().unwrap();
        let below = map.range(..=address).next_back().map(|(_, a)| a);
        let above = map.range(address..).next().map(|(_, a)| a);
        let nearest = match (below, above) {
            (Some(b), Some(a)) if a.base - address < address.saturating_sub(b.end()) => a,
            (Some(b), _) => b,
            (None, Some(a)) => a,
            (None, None) => return None,
        };
        Some(Arc::clone(nearest))
    }

    /// The allocations that `context` made.
    pub fn of_context(&self, context: u64) -> Vec<Arc<Allocation>> {
        let map = self.map.read().unwrap();
        map.values().filter(|a| a.context == context).cloned().collect()
    }

    /// Voids what warps remember.
    pub fn invalidate(&self) {
        // Pairs with `generation`: a warp that sees the new number looks the table up again.
        self.generation.0.fetch_add(1, Ordering::Release);
    }

    /// The present generation.
    #[inline(always)]
    pub fn generation(&self) -> u64 {
        // Pairs with `invalidate`.
        self.generation.0.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocation(base: u64, bytes: u64) -> Allocation {
        Allocation {
            base,
            bytes,
            kind: AllocationKind::Pinned,
            id: 0,
            context: 1,
            flags: 0,
            rights: None,
        }
    }

    #[test]
    fn bounds_are_exact() {
        let table = AllocationTable::default();
        table.insert(allocation(1000, 10)).unwrap();
        assert!(table.find(999).is_none());
        assert_eq!(table.find(1000).unwrap().bytes, 10);
        assert_eq!(table.find(1009).unwrap().base, 1000);
        assert!(table.find(1010).is_none());
    }

    #[test]
    fn overlaps_are_refused_and_removal_voids_cursors() {
        let table = AllocationTable::default();
        table.insert(allocation(1000, 10)).unwrap();
        for (base, bytes) in [(1009, 1), (995, 6), (990, 100), (1002, 2), (1000, 10)] {
            assert!(table.insert(allocation(base, bytes)).is_none(), "{base}+{bytes}");
        }
        table.insert(allocation(1010, 5)).unwrap();
        let before = table.generation();
        assert!(table.remove(1001, |_| true).is_none());
        assert!(table.remove(1000, |kind| !kind.is_host()).is_none());
        assert_eq!(table.generation(), before);
        assert!(table.remove(1000, |_| true).is_some());
        assert_ne!(table.generation(), before);
    }

    #[test]
    fn nearest_names_the_closer_neighbour() {
        let table = AllocationTable::default();
        assert!(table.nearest(5).is_none());
        table.insert(allocation(1000, 10)).unwrap();
        table.insert(allocation(2000, 10)).unwrap();
        assert_eq!(table.nearest(1100).unwrap().base, 1000);
        assert_eq!(table.nearest(1900).unwrap().base, 2000);
        assert_eq!(table.nearest(0).unwrap().base, 1000);
        assert_eq!(table.nearest(u64::MAX).unwrap().base, 2000);
    }
}
