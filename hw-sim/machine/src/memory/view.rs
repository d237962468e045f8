//! Global memory as the kernels of one context see it: the interpreter's fast memory model.
//!
//! Strong accesses are the host's atomic loads and stores, word by word. Weak ones are plain
//! copies: they may tear and may race with host threads, exactly as a GPU's weak accesses may. x86
//! keeps stores in order and loads in order, so this model is never weaker than PTX asks.
//!
//! In Rust's own terms such a race, of a kernel that is wrong or of one that rightly does not care
//! what it reads, is undefined. It is harmless as compiled: the bytes are copied out once, into the
//! interpreter's registers, through an address that the guest computed and that no reference leads
//! to, so nothing is there from which the compiler could conclude that the two reads of a weak
//! access agree. What stands in them is data of the guest, and nothing here depends on it. Atomic
//! accesses would forbid the wide copies of a whole warp, which most of the speed comes from. What
//! the *host* copies, where a race is not the guest's own choice, is copied by atomic words:
//! `bytes`.

use super::GlobalMemory;
use super::atomic;
use super::heap::Heap;
use super::stream;
use super::table::Allocation;
use crate::profile::Profile;
use hwsim_ptx::memory::{AtomicOp, AtomicType, Memory, MemoryFault, Order, Strength};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// The GPUs whose memory a context's kernels may touch, a bit each.
#[derive(Debug)]
pub struct Reach {
    granted: AtomicU64,
    /// The context's GPU.
    gpu: usize,
    /// GPUs whose memory loses what is written to it from here, a bit each.
    losing: u64,
}

impl Reach {
    /// Only this GPU's own.
    pub fn own(gpu: usize) -> Self {
        Self { granted: AtomicU64::new(1 << gpu), gpu, losing: 0 }
    }

    /// As [`Reach::own`], with the broken pairs of a driver profile.
    pub fn of(gpu: usize, profile: &Profile) -> Self {
        let losing = (0..64).filter(|&other| profile.broken_peer.has(gpu, other));
        let losing = losing.fold(0, |bits, other| bits | 1 << other);
        Self { losing, ..Self::own(gpu) }
    }

    /// May kernels touch memory of `gpu`?
    pub fn holds(&self, gpu: usize) -> bool {
        self.granted.load(Ordering::Relaxed) & (1 << gpu) != 0
    }

    /// Grants; false if it was granted before.
    pub fn grant(&self, gpu: usize) -> bool {
        self.granted.fetch_or(1 << gpu, Ordering::Relaxed) & (1 << gpu) == 0
    }

    /// Withdraws; false if it was not granted. The caller voids the warps' memories.
    pub fn withdraw(&self, gpu: usize) -> bool {
        self.granted.fetch_and(!(1 << gpu), Ordering::Relaxed) & (1 << gpu) != 0
    }
}

/// Allocations that a warp used last.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    base: u64,
    end: u64,
}

/// What the host's processor moves at once.
#[cfg(target_arch = "x86_64")]
const CACHE_LINE: usize = 64;

/// How many allocations a warp remembers: a sum of four buffers that goes to four others touches
/// eight, and looks at a flag and at its program.
const SPANS: usize = 10;

/// Cache of a warp's last access.
#[derive(Debug, Default)]
pub struct Cursor {
    generation: u64,
    spans: [Span; SPANS],
    next: usize,
}

/// The memory of the machine, through the rights of one context.
#[derive(Debug)]
pub struct View {
    memory: Arc<GlobalMemory>,
    reach: Arc<Reach>,
    heap: Arc<Heap>,
    /// GPUs whose memory loses writes: see [`Reach`].
    losing: u64,
}

impl View {
    /// A view with these rights.
    pub(crate) fn new(memory: Arc<GlobalMemory>, reach: Arc<Reach>, heap: Arc<Heap>) -> Self {
        let losing = reach.losing;
        Self { memory, reach, heap, losing }
    }

    /// Another one with the same rights.
    pub(crate) fn again(&self) -> Self {
        Self::new(Arc::clone(&self.memory), Arc::clone(&self.reach), Arc::clone(&self.heap))
    }

    /// All of the memory.
    pub(crate) fn memory(&self) -> &Arc<GlobalMemory> {
        &self.memory
    }

    /// Are all of the bytes ours to touch?
    #[inline(always)]
    fn check(&self, cursor: &mut Cursor, address: u64, bytes: usize) -> Result<(), MemoryFault> {
        let end = address.wrapping_add(bytes as u64);
        if cursor.generation == self.memory.table.generation() && end > address {
            for span in &cursor.spans {
                if address >= span.base && end <= span.end {
                    return Ok(());
                }
            }
        }
        self.look_up(cursor, address, bytes)
    }

    #[cold]
    fn look_up(&self, cursor: &mut Cursor, address: u64, bytes: usize) -> Result<(), MemoryFault> {
        let generation = self.memory.table.generation();
        if cursor.generation != generation {
            *cursor = Cursor { generation, ..Cursor::default() };
        }
        let found = self.memory.table.below(address).ok_or(MemoryFault::OutOfBounds)?;
        let end = found.base + self.memory.reached(&found);
        if address >= end || bytes as u64 > end - address {
            return Err(MemoryFault::OutOfBounds);
        }
        if !self.may_touch(&found) {
            return Err(MemoryFault::Forbidden);
        }
        cursor.spans[cursor.next] = Span { base: found.base, end };
        cursor.next = (cursor.next + 1) % SPANS;
        Ok(())
    }

    fn may_touch(&self, allocation: &Allocation) -> bool {
        use super::table::AllocationKind;
        match allocation.kind {
            AllocationKind::Pinned
            | AllocationKind::Registered
            | AllocationKind::Managed { .. } => true,
            AllocationKind::Mapped { .. } => {
                allocation.rights.as_ref().is_some_and(|rights| rights.hold(self.reach.gpu))
            }
            AllocationKind::Device { gpu }
            | AllocationKind::Heap { gpu }
            | AllocationKind::Imported { gpu } => match &allocation.rights {
                Some(rights) if gpu != self.reach.gpu => {
                    let peers = !rights.replace_peer_access() && self.reach.holds(gpu);
                    peers || rights.hold(self.reach.gpu)
                }
                _ => self.reach.holds(gpu),
            },
        }
    }

    /// Is what is written to an address lost?
    #[cold]
    fn loses(&self, address: u64) -> bool {
        let gpu = self.memory.table.find(address).and_then(|found| found.kind.gpu());
        gpu.is_some_and(|gpu| self.losing & (1 << gpu) != 0)
    }
}

/// Does an atomic leave something else than it found?
#[inline(always)]
fn atomic_changes(op: AtomicOp, ty: AtomicType, old: u64, operand: u64, compare: u64) -> bool {
    use AtomicType as T;
    // Sums of floats may flush what they find.
    let is_integer = matches!(ty, T::B16 | T::B32 | T::B64 | T::U32 | T::U64 | T::S32 | T::S64);
    !is_integer
        || hwsim_ptx::atomic::apply(op, ty, old, operand, compare)
            != hwsim_ptx::atomic::apply(AtomicOp::Exch, ty, 0, old, 0)
}

/// The host's order for a load of this strength.
fn load_order(strength: Strength) -> Ordering {
    match strength.order {
        Order::Weak | Order::Relaxed | Order::Release => Ordering::Relaxed,
        // Pairs with whatever released the word: a kernel, the engine's proxy, a copy engine.
        Order::Acquire | Order::AcquireRelease | Order::SequentiallyConsistent => Ordering::Acquire,
    }
}

/// The host's order for a store of this strength.
fn store_order(strength: Strength) -> Ordering {
    match strength.order {
        Order::Weak | Order::Relaxed | Order::Acquire => Ordering::Relaxed,
        // Pairs with whoever acquires the word: a kernel, a host thread, another process.
        Order::Release | Order::AcquireRelease | Order::SequentiallyConsistent => Ordering::Release,
    }
}

macro_rules! load_words {
    ($atomic:ty, $plain:ty, $address:expr, $bytes:expr, $order:expr) => {
        for (index, chunk) in $bytes.chunks_exact_mut(size_of::<$plain>()).enumerate() {
            let pointer = ($address as *mut $plain).wrapping_add(index);
            // SAFETY: `check` found the bytes in one allocation, which stays mapped while the gate
            // is held; the caller checked alignment; nobody holds a Rust reference into it.
            let word = unsafe { <$atomic>::from_ptr(pointer) }.load($order);
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
    };
}

macro_rules! store_words {
    ($atomic:ty, $plain:ty, $address:expr, $bytes:expr, $order:expr) => {
        for (index, chunk) in $bytes.chunks_exact(size_of::<$plain>()).enumerate() {
            let pointer = ($address as *mut $plain).wrapping_add(index);
            let mut word = [0; size_of::<$plain>()];
            word.copy_from_slice(chunk);
            // SAFETY: as in `load_words`.
            unsafe { <$atomic>::from_ptr(pointer) }.store(<$plain>::from_ne_bytes(word), $order);
        }
    };
}

impl Memory for View {
    type Cursor = Cursor;

    #[inline]
    fn read(
        &self,
        cursor: &mut Cursor,
        address: u64,
        word: usize,
        strength: Strength,
        bytes: &mut [u8],
    ) -> Result<(), MemoryFault> {
        self.check(cursor, address, bytes.len())?;
        if strength.order == Order::Weak {
            // SAFETY: `check` found the bytes in one allocation, which stays mapped while the gate
            // is held; `bytes` is the interpreter's own and cannot overlap it. A concurrent writer
            // is the guest program's race: the bytes are copied out once and not trusted.
            unsafe {
                let source = address as *const u8;
                match bytes.len() {
                    4 => bytes.copy_from_slice(&source.cast::<[u8; 4]>().read()),
                    8 => bytes.copy_from_slice(&source.cast::<[u8; 8]>().read()),
                    16 => bytes.copy_from_slice(&source.cast::<[u8; 16]>().read()),
                    n => std::ptr::copy_nonoverlapping(source, bytes.as_mut_ptr(), n),
                }
            }
            return Ok(());
        }
        let order = load_order(strength);
        match word {
            1 => load_words!(AtomicU8, u8, address, bytes, order),
            2 => load_words!(AtomicU16, u16, address, bytes, order),
            4 => load_words!(AtomicU32, u32, address, bytes, order),
            _ => load_words!(AtomicU64, u64, address, bytes, order),
        }
        Ok(())
    }

    #[inline]
    fn write(
        &self,
        cursor: &mut Cursor,
        address: u64,
        word: usize,
        strength: Strength,
        bytes: &[u8],
    ) -> Result<(), MemoryFault> {
        self.check(cursor, address, bytes.len())?;
        if self.losing != 0 && self.loses(address) {
            return Ok(());
        }
        if strength.order == Order::Weak {
            // SAFETY: as in `read`, in the other direction.
            unsafe {
                let target = address as *mut u8;
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
            }
            // Whoever falls asleep at this moment is found at the end of the slice.
            self.memory.watches.written(address, bytes.len() as u64);
            return Ok(());
        }
        let order = store_order(strength);
        match word {
            1 => store_words!(AtomicU8, u8, address, bytes, order),
            2 => store_words!(AtomicU16, u16, address, bytes, order),
            4 => store_words!(AtomicU32, u32, address, bytes, order),
            _ => store_words!(AtomicU64, u64, address, bytes, order),
        }
        self.memory.watches.written_unfenced(address, bytes.len() as u64);
        Ok(())
    }

    fn copy(
        &self,
        cursor: &mut Cursor,
        to: u64,
        from: u64,
        bytes: usize,
        _word: usize,
    ) -> Result<(), MemoryFault> {
        self.check(cursor, from, bytes)?;
        self.check(cursor, to, bytes)?;
        if self.losing != 0 && self.loses(to) {
            return Ok(());
        }
        // SAFETY: `check` found both ranges in allocations that stay mapped while the gate is held;
        // the caller says that they are apart. What else the guest does there meanwhile is its
        // race: nothing here looks at the bytes.
        unsafe {
            let (from, to) = (from as *const u8, to as *mut u8);
            match bytes {
                stream::ROW_BYTES_MIN.. => stream::copy(from, to, bytes),
                _ => std::ptr::copy_nonoverlapping(from, to, bytes),
            }
        }
        self.memory.watches.written(to, bytes as u64);
        Ok(())
    }

    fn atomic(
        &self,
        cursor: &mut Cursor,
        address: u64,
        op: AtomicOp,
        ty: AtomicType,
        _strength: Strength,
        operand: u64,
        compare: u64,
    ) -> Result<u64, MemoryFault> {
        self.check(cursor, address, ty.size_bytes())?;
        if self.losing != 0 && self.loses(address) {
            return Ok(0);
        }
        // SAFETY: `check` found the bytes in one mapped allocation; the interpreter checked
        // alignment; nobody holds a Rust reference into it.
        let old = unsafe { atomic::rmw(address, op, ty, operand, compare) };
        // A locked instruction is a full fence. One that changed nothing wakes nobody: those who
        // look by such atomics would keep one another awake.
        if atomic_changes(op, ty, old, operand, compare) {
            self.memory.watches.written(address, ty.size_bytes() as u64);
        }
        Ok(old)
    }

    fn allocate(&self, bytes: u64) -> u64 {
        self.heap.allocate(&self.memory, &self.memory.table, bytes)
    }

    fn release(&self, address: u64) -> bool {
        self.heap.release(&self.memory.table, address)
    }

    #[inline(always)]
    fn expect(&self, address: u64, bytes: usize) {
        #[cfg(target_arch = "x86_64")]
        for line in (address..address.saturating_add(bytes as u64)).step_by(CACHE_LINE) {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            // SAFETY: a hint, which faults at no address.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(line as *const i8) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (address, bytes);
    }

    fn fence(&self, _cursor: &mut Cursor, _strength: Strength) {
        // Sequentially consistent whatever was asked: the strength does not say whether it was
        // `fence.sc`, and this pairs with every other fence.
        fence(Ordering::SeqCst);
    }
}
