//! What the interpreter asks of memory. The machine implements it; the interpreter is generic over
//! it (static dispatch), so a checking or weak-memory model costs the fast one nothing.
//!
//! Only the *global* space (and generic addresses that fall into it) passes through this trait.
//! Shared, local and parameter memory belong to the block and stay inside the interpreter.

/// How strong an access is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Plain: no ordering, may tear.
    Weak,
    /// Single-copy atomic. `.volatile` is relaxed at system scope.
    Relaxed,
    /// Acquire load.
    Acquire,
    /// Release store.
    Release,
    /// Both, for atomics and fences.
    AcquireRelease,
    /// Both, and in one order with all such fences: `fence.sc` and `membar`.
    SequentiallyConsistent,
}

/// Who an ordered access is ordered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// `.cta`
    Block,
    /// `.cluster`
    Cluster,
    /// `.gpu`
    Gpu,
    /// `.sys`
    System,
}

/// An order with its scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Strength {
    /// How strong.
    pub order: Order,
    /// With whom.
    pub scope: Scope,
}

impl Strength {
    /// A plain access.
    pub const WEAK: Self = Self { order: Order::Weak, scope: Scope::Block };
}

/// A read-modify-write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The names are PTX's own.
pub enum AtomicOp {
    Add,
    And,
    Or,
    Xor,
    Min,
    Max,
    Inc,
    Dec,
    Exch,
    Cas,
}

/// How an atomic reads its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The names are PTX's own.
pub enum AtomicType {
    B16,
    B32,
    B64,
    U32,
    U64,
    S32,
    S64,
    F16,
    F16x2,
    BF16,
    BF16x2,
    F32,
    F64,
}

impl AtomicType {
    /// Bytes of the word.
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::B16 | Self::F16 | Self::BF16 => 2,
            Self::B32 | Self::U32 | Self::S32 | Self::F16x2 | Self::BF16x2 | Self::F32 => 4,
            Self::B64 | Self::U64 | Self::S64 | Self::F64 => 8,
        }
    }
}

/// Why an access cannot be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryFault {
    /// No allocation holds all of the bytes.
    OutOfBounds,
    /// The address is not a multiple of the access's size.
    Misaligned,
    /// The memory exists but may not be accessed so (no peer access, read only).
    Forbidden,
}

/// Bytes that a copy takes at once where a memory has no way of its own.
const COPIED_AT_ONCE: usize = 2048;

/// Global memory, as one kernel sees it.
pub trait Memory {
    /// What a warp remembers between accesses, so that most bounds checks are two comparisons.
    type Cursor: Default + Send;

    /// Does it tell threads apart? If so, each thread's accesses come one by one, behind
    /// [`Memory::turn`], shared memory passes through it, too (in its window of the generic address
    /// space), and it learns of barriers.
    const BY_THREAD: bool = false;

    /// What comes next is done by this thread, counted in its block.
    fn turn(&self, thread: u32) {
        let _ = thread;
    }

    /// The thread arrives at barrier `id` of its block, in this generation of it.
    fn arrive(&self, id: u8, generation: u64) {
        let _ = (id, generation);
    }

    /// The thread leaves it: all have arrived.
    fn leave(&self, id: u8, generation: u64) {
        let _ = (id, generation);
    }

    /// Threads of a warp pass a `bar.warp.sync` together.
    fn meet(&self, threads: impl Iterator<Item = u32> + Clone) {
        let _ = threads;
    }

    /// Reads `bytes.len()` bytes from `address` on. `word` is the size of the accesses that make
    /// it up (1 to 8): strong words are read whole. Alignment was checked by the caller.
    fn read(
        &self,
        cursor: &mut Self::Cursor,
        address: u64,
        word: usize,
        strength: Strength,
        bytes: &mut [u8],
    ) -> Result<(), MemoryFault>;

    /// Writes `bytes` from `address` on; otherwise as [`Memory::read`].
    fn write(
        &self,
        cursor: &mut Self::Cursor,
        address: u64,
        word: usize,
        strength: Strength,
        bytes: &[u8],
    ) -> Result<(), MemoryFault>;

    /// Copies `bytes` bytes by weak accesses of words of `word` bytes. The ranges have no byte in
    /// common. If it fails, some of them may have been copied.
    fn copy(
        &self,
        cursor: &mut Self::Cursor,
        to: u64,
        from: u64,
        bytes: usize,
        word: usize,
    ) -> Result<(), MemoryFault> {
        let weak = Strength { order: Order::Weak, scope: Scope::System };
        let mut part = [0; COPIED_AT_ONCE];
        for done in (0..bytes).step_by(COPIED_AT_ONCE) {
            let part = &mut part[..COPIED_AT_ONCE.min(bytes - done)];
            self.read(cursor, from.wrapping_add(done as u64), word, weak, part)?;
            self.write(cursor, to.wrapping_add(done as u64), word, weak, part)?;
        }
        Ok(())
    }

    /// One read-modify-write; gives the old value. `compare` counts for [`AtomicOp::Cas`] only.
    #[allow(clippy::too_many_arguments)] // All are words of one instruction.
    fn atomic(
        &self,
        cursor: &mut Self::Cursor,
        address: u64,
        op: AtomicOp,
        ty: AtomicType,
        strength: Strength,
        operand: u64,
        compare: u64,
    ) -> Result<u64, MemoryFault>;

    /// `malloc` of a thread: where `bytes` bytes are, aligned to 16, or 0 if the heap is full.
    /// Memory without a heap is always full.
    fn allocate(&self, bytes: u64) -> u64 {
        let _ = bytes;
        0
    }

    /// `free` of a thread: false if [`Memory::allocate`] has not given the address, or it is free
    /// again. Null is the caller's business.
    fn release(&self, address: u64) -> bool {
        let _ = address;
        false
    }

    /// These bytes will be accessed soon, probably: they may be brought near. They need not exist.
    fn expect(&self, address: u64, bytes: usize) {
        let _ = (address, bytes);
    }

    /// A fence.
    fn fence(&self, cursor: &mut Self::Cursor, strength: Strength);
}
