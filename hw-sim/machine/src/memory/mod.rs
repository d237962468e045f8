//! The machine's memory: unified addressing, device address = host address.

mod arena;
mod atomic;
mod dma_buf;
mod heap;
mod ipc;
mod ledger;
mod mapping;
mod pages;
mod passing;
mod ranges;
mod reservation;
mod stream;
mod table;
mod view;
mod watches;
mod words;

pub(crate) use heap::Heap;
pub use ipc::{IpcHandle, Site};
pub use mapping::{GRANULARITY, Mapped, Physical};
pub use reservation::Reservation;
pub use table::{Allocation, AllocationKind, Rights};
pub use view::{Cursor, Reach, View};
pub(crate) use watches::Sleepers;
pub use words::SharedWords;

use crate::bytes;
use crate::error::{Error, Result};
use crate::fault::GpuFaults;
use arena::Arena;
use ipc::Sharing;
use ledger::Ledger;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard};
use table::AllocationTable;
use watches::Watches;

/// All memory that GPUs can touch.
#[derive(Debug)]
pub struct GlobalMemory {
    arenas: Vec<Arena>,
    table: AllocationTable,
    reservations: reservation::Reservations,
    spaces: mapping::Spaces,
    /// Held shared during accesses to memory on a GPU's behalf; taken exclusively where a mapping
    /// is exchanged or removed, so that an access that passed its check never finds a hole.
    gate: RwLock<()>,
    sharing: Mutex<Sharing>,
    /// What other processes of the node have taken; None for a process that is alone.
    ledger: Option<Ledger>,
    /// Who waits for which bytes.
    pub(crate) watches: Watches,
    /// Memory of a GPU was exported, imported, or given to something that writes it unasked.
    shared: AtomicBool,
    /// Device allocations reach as far as on real GPUs.
    rounds: AtomicBool,
    faults: GpuFaults,
}

/// Bytes that are compared at once.
const HELD_BYTES: usize = 64;

/// `1`: device allocations reach as far as on real GPUs.
pub const ROUND_VARIABLE: &str = "HWSIM_ROUND_ALLOCATIONS";

/// What real drivers round device allocations up to, and from where on to that.
const SMALL: u64 = 512;
const LARGE: u64 = 2 << 20;

/// Leave to access memory; holds the gate.
pub struct AccessGuard<'a> {
    _gate: RwLockReadGuard<'a, ()>,
}

impl GlobalMemory {
    /// One arena a GPU, with these sizes in bytes. What is exported can be opened at the same site.
    pub fn new(capacities: &[u64], site: Site) -> Result<Self> {
        let ledger = match &site.fabric {
            Some(fabric) => Some(
                Ledger::open(fabric, site.node, capacities.len())
                    .map_err(ipc::failed("opening the ledger of this node's memory"))?,
            ),
            None => None,
        };
        Ok(Self {
            ledger,
            arenas: capacities.iter().map(|&bytes| Arena::new(bytes)).collect::<Result<_>>()?,
            table: AllocationTable::default(),
            reservations: reservation::Reservations::default(),
            spaces: mapping::Spaces::default(),
            gate: RwLock::new(()),
            sharing: Mutex::new(Sharing::new(site)),
            watches: Watches::default(),
            shared: AtomicBool::new(false),
            rounds: AtomicBool::new(false),
            faults: GpuFaults::default(),
        })
    }

    /// With faults of GPUs.
    pub(crate) fn with_faults(self, faults: GpuFaults) -> Self {
        Self { faults, ..self }
    }

    /// The faults of the GPUs.
    pub(crate) fn faults(&self) -> &GpuFaults {
        &self.faults
    }

    /// From now on, before anything is allocated, device allocations reach as far as on real GPUs:
    /// to a multiple of 512 bytes, and from 2 MiB on of 2 MiB. Kernels can touch all of that.
    pub fn round_allocations(&self) {
        // Relaxed: nothing is allocated yet, and no thread runs that would care.
        self.rounds.store(true, Ordering::Relaxed);
    }

    /// Bytes that an allocation takes, before pages.
    fn rounded(&self, bytes: u64) -> u64 {
        if !self.rounds.load(Ordering::Relaxed) {
            return bytes;
        }
        let granularity = if bytes >= LARGE { LARGE } else { SMALL };
        bytes.checked_next_multiple_of(granularity).unwrap_or(bytes)
    }

    /// How far kernels can touch an allocation.
    fn reached(&self, allocation: &Allocation) -> u64 {
        match allocation.kind {
            AllocationKind::Device { .. } | AllocationKind::Managed { .. } => {
                self.rounded(allocation.bytes)
            }
            _ => allocation.bytes,
        }
    }

    /// Enters the gate for a slice of work.
    pub fn access(&self) -> AccessGuard<'_> {
        AccessGuard { _gate: self.gate.read().unwrap_or_else(|poison| poison.into_inner()) }
    }

    /// Enters the gate unless somebody waits for those inside to leave: for who holds a lock that
    /// these may need.
    pub fn try_access(&self) -> Option<AccessGuard<'_>> {
        self.gate.try_read().ok().map(|gate| AccessGuard { _gate: gate })
    }

    /// From now on, others than this machine may write memory of its GPUs.
    pub(crate) fn note_shared(&self) {
        // Relaxed: who waits looks again within a bounded time in any case.
        self.shared.store(true, Ordering::Relaxed);
    }

    /// Does everybody who writes the bytes say so to `watches`?
    pub(crate) fn is_told(&self, address: u64) -> bool {
        !self.shared.load(Ordering::Relaxed)
            && self.table.find(address).is_some_and(|found| is_of_kernels(found.kind))
    }

    /// Are these still the bytes at an address? Who asks holds the gate.
    pub(crate) fn holds(&self, _gate: &AccessGuard<'_>, address: u64, bytes: &[u8]) -> bool {
        let found = self.table.find(address);
        if found.is_none_or(|found| bytes.len() as u64 > found.end() - address) {
            return false;
        }
        bytes.chunks(HELD_BYTES).zip((address..).step_by(HELD_BYTES)).all(|(bytes, address)| {
            let mut seen = [0; HELD_BYTES];
            // SAFETY: the range was checked just now and stays mapped while the gate is held; the
            // buffer is our own and large enough.
            unsafe {
                bytes::copy_up(seen.as_mut_ptr() as u64, address, bytes.len() as u64);
            }
            seen[..bytes.len()] == *bytes
        })
    }

    /// Allocates on a GPU. `managed` memory is reachable from every GPU.
    pub fn allocate(&self, gpu: usize, bytes: u64, managed: bool, context: u64) -> Result<u64> {
        let kind =
            if managed { AllocationKind::Managed { gpu } } else { AllocationKind::Device { gpu } };
        self.allocate_kind(kind, gpu, bytes, context, None)
    }

    /// Allocates on a GPU what only GPUs with `rights` reach, if it has any of its own.
    pub fn allocate_with(
        &self,
        gpu: usize,
        bytes: u64,
        context: u64,
        rights: Option<Arc<Rights>>,
    ) -> Result<u64> {
        self.allocate_kind(AllocationKind::Device { gpu }, gpu, bytes, context, rights)
    }

    fn allocate_kind(
        &self,
        kind: AllocationKind,
        gpu: usize,
        bytes: u64,
        context: u64,
        rights: Option<Arc<Rights>>,
    ) -> Result<u64> {
        if self.faults.refuses_allocation(gpu) {
            return Err(Error::OutOfMemory { wanted: bytes, free: 0, total: 0 });
        }
        let base = self.take(gpu, self.rounded(bytes))?;
        let entry = Allocation { base, bytes, kind, id: 0, context, flags: 0, rights };
        self.table.insert(entry).expect("the arena hands out free ranges only");
        Ok(base)
    }

    /// Takes a range of a GPU's memory, unless other processes have left too little.
    fn take(&self, gpu: usize, bytes: u64) -> Result<u64> {
        let arena = &self.arenas[gpu];
        let Some(ledger) = &self.ledger else { return arena.allocate(bytes, 0) };
        let noting = ipc::failed("noting memory in the node's ledger");
        let taken = ledger.alone(|| {
            let base = arena.allocate(bytes, ledger.others(gpu).map_err(&noting)?)?;
            ledger.note(gpu, arena.used()).map_err(&noting)?;
            Ok(base)
        });
        taken.map_err(&noting)?
    }

    /// Frees memory of [`GlobalMemory::allocate`].
    pub fn free(&self, base: u64) -> Result<()> {
        let freeable =
            |kind| matches!(kind, AllocationKind::Device { .. } | AllocationKind::Managed { .. });
        let Some(allocation) = self.table.remove(base, freeable) else {
            return Err(Error::InvalidValue(format!("no device allocation starts at {base:#x}")));
        };
        self.unexport(&allocation)?;
        let gpu = allocation.kind.gpu().expect("device memory has a GPU");
        if self.reservations.begins(base) {
            self.reservations.note(gpu, allocation.bytes, false);
            return self.uncommit(gpu, self.rounded(allocation.bytes));
        }
        self.give_back(gpu, base, self.rounded(allocation.bytes))
    }

    /// Gives a range of a GPU's memory back.
    fn give_back(&self, gpu: usize, base: u64, bytes: u64) -> Result<()> {
        self.arenas[gpu].free(base, bytes);
        self.note_used(gpu)
    }

    /// Tells the other processes of the node how much this one uses.
    fn note_used(&self, gpu: usize) -> Result<()> {
        match &self.ledger {
            // Alone, or a number could overtake another thread's newer one.
            Some(ledger) => ledger
                .alone(|| ledger.note(gpu, self.arenas[gpu].used()))
                .flatten()
                .map_err(ipc::failed("noting memory in the node's ledger")),
            None => Ok(()),
        }
    }

    /// Takes memory for addresses that were set aside.
    fn commit(&self, gpu: usize, bytes: u64) -> Result<()> {
        let arena = &self.arenas[gpu];
        let Some(ledger) = &self.ledger else { return arena.commit(bytes, 0) };
        let noting = ipc::failed("noting memory in the node's ledger");
        let taken = ledger.alone(|| {
            arena.commit(bytes, ledger.others(gpu).map_err(&noting)?)?;
            ledger.note(gpu, arena.used()).map_err(&noting)
        });
        taken.map_err(&noting)?
    }

    /// Gives that memory back, and keeps the addresses.
    fn uncommit(&self, gpu: usize, bytes: u64) -> Result<()> {
        self.arenas[gpu].uncommit(bytes);
        self.note_used(gpu)
    }

    /// Allocates pinned host memory.
    pub fn allocate_host(&self, bytes: u64, flags: u32, context: u64) -> Result<u64> {
        let refused = Error::OutOfMemory { wanted: bytes, free: 0, total: 0 };
        if bytes > 1 << 46 || self.faults.refuses_pinned() {
            return Err(refused);
        }
        let base = pages::reserve(Arena::footprint(bytes)).map_err(|_| refused)?;
        let entry = Allocation {
            base,
            bytes,
            kind: AllocationKind::Pinned,
            id: 0,
            context,
            flags,
            rights: None,
        };
        self.table.insert(entry).expect("a fresh mapping overlaps nothing");
        Ok(base)
    }

    /// Frees memory of [`GlobalMemory::allocate_host`].
    pub fn free_host(&self, base: u64) -> Result<()> {
        let Some(allocation) = self.table.remove(base, |kind| kind == AllocationKind::Pinned)
        else {
            return Err(Error::InvalidValue(format!("no pinned host memory starts at {base:#x}")));
        };
        let _quiet = self.gate.write().unwrap_or_else(|poison| poison.into_inner());
        pages::unmap(base, Arena::footprint(allocation.bytes));
        Ok(())
    }

    /// Registers the program's own memory.
    pub fn register_host(&self, base: u64, bytes: u64, flags: u32, context: u64) -> Result<()> {
        if bytes == 0 || base == 0 || base.checked_add(bytes).is_none() {
            return Err(Error::InvalidValue(format!("cannot register {bytes} bytes at {base:#x}")));
        }
        let entry = Allocation {
            base,
            bytes,
            kind: AllocationKind::Registered,
            id: 0,
            context,
            flags,
            rights: None,
        };
        self.table.insert(entry).map(|_| ()).ok_or(Error::AlreadyRegistered(base))
    }

    /// Ends a registration. The program may unmap the memory at once, so wait until nobody who
    /// passed a check is still at it.
    pub fn unregister_host(&self, base: u64) -> Result<()> {
        let removed = self.table.remove(base, |kind| kind == AllocationKind::Registered);
        removed.ok_or(Error::NotRegistered(base))?;
        drop(self.gate.write().unwrap_or_else(|poison| poison.into_inner()));
        Ok(())
    }

    /// The allocation that holds an address.
    pub fn find(&self, address: u64) -> Option<Arc<Allocation>> {
        self.table.find(address)
    }

    /// The allocation nearest to an address.
    pub fn nearest(&self, address: u64) -> Option<Arc<Allocation>> {
        self.table.nearest(address)
    }

    /// The GPU in whose memory an address lies, allocated or not.
    pub fn arena_of(&self, address: u64) -> Option<usize> {
        self.arenas.iter().position(|arena| arena.contains(address))
    }

    /// Free and total bytes of a GPU.
    pub fn usage(&self, gpu: usize) -> (u64, u64) {
        let (free, total) = self.arenas[gpu].usage();
        // A ledger that cannot be read says so when memory is taken.
        let others = self.ledger.as_ref().and_then(|ledger| ledger.others(gpu).ok());
        (free.saturating_sub(others.unwrap_or(0)), total)
    }

    /// Frees all that a context made and has not freed.
    pub fn release_context(&self, context: u64) {
        self.forget_reservations(context);
        for allocation in self.table.of_context(context) {
            // An entry that somebody else removed in the meantime is what we want anyway.
            let _ = match allocation.kind {
                AllocationKind::Device { .. } | AllocationKind::Managed { .. } => {
                    self.free(allocation.base)
                }
                AllocationKind::Pinned => self.free_host(allocation.base),
                AllocationKind::Registered => self.unregister_host(allocation.base),
                AllocationKind::Imported { .. } => self.close(allocation.base, true),
                // No context's.
                AllocationKind::Mapped { .. } => Ok(()),
                // The heap gives its memory back as a whole.
                AllocationKind::Heap { .. } => {
                    self.table.remove(allocation.base, AllocationKind::is_heap);
                    Ok(())
                }
            };
        }
    }

    /// A context's rights shrank: what warps remember is void.
    pub fn rights_changed(&self) {
        self.table.invalidate();
    }

    /// Does one allocation that the host may name hold all of `bytes` at `address`?
    pub fn check(&self, address: u64, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        match self.table.find(address) {
            Some(found) if found.kind.is_heap() => Err(Error::InvalidValue(format!(
                "{address:#x} is memory of a kernel's malloc, which the host cannot use: copy \
                     it in a kernel"
            ))),
            Some(found) if bytes <= found.end() - address => Ok(()),
            Some(found) => Err(Error::InvalidValue(format!(
                "{bytes} bytes at {address:#x} reach past the allocation of {} bytes at {:#x}",
                found.bytes, found.base
            ))),
            None => Err(Error::InvalidValue(format!("no allocation holds {address:#x}"))),
        }
    }
}

/// Memory of a GPU that only kernels, copies and engines of this process write.
fn is_of_kernels(kind: AllocationKind) -> bool {
    matches!(kind, AllocationKind::Device { .. } | AllocationKind::Heap { .. })
}

/// Maps a whole memory file for an adapter, wherever there is room.
pub(crate) fn map_file(file: &std::fs::File, bytes: u64) -> Result<u64> {
    pages::map_shared(file, bytes, None)
}

#[cfg(test)]
pub(crate) fn memory_file_for_tests(bytes: u64) -> std::fs::File {
    pages::memory_file(c"hwsim-test", bytes).expect("memory files")
}
