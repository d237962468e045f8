//! How a kernel ends badly.

use crate::memory::MemoryFault;

/// Kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// No allocation holds all bytes of an access.
    OutOfBounds,
    /// The address is not a multiple of the access's size.
    Misaligned,
    /// The memory exists but this kernel may not access it so.
    Forbidden,
    /// Past the end of the block's shared memory.
    SharedOutOfBounds,
    /// Past the end of the thread's local memory.
    LocalOutOfBounds,
    /// Past the end of the kernel's parameters, or a store to them.
    ParamOutOfBounds,
    /// `trap`, or `brkpt`.
    Trap,
    /// `assert` failed.
    Assert,
    /// Threads of a warp wait at different barriers, or none can arrive any more.
    DivergentBarrier,
    /// An instruction of the whole warp that not all of its 32 threads execute.
    PartialWarp,
    /// A barrier number above 15, or a count that is no multiple of the warp size.
    InvalidBarrier,
    /// A bulk copy, a tensor map or a matrix descriptor that PTX does not allow.
    InvalidBulk,
    /// Code ran past its end, or a jump table's index was out of range.
    InvalidPc,
    /// A call through a pointer that is no function's.
    IndirectCall,
    /// Calls nested deeper than local memory holds.
    StackOverflow,
    /// `free` of what `malloc` has not given, or of what is free already.
    InvalidFree,
    /// An instruction that a memory which tells threads apart does not model.
    NotByThread,
}

impl FaultKind {
    /// In words.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::OutOfBounds => "access outside of any allocation",
            Self::Misaligned => "misaligned access",
            Self::Forbidden => "access to memory that this device may not use so",
            Self::SharedOutOfBounds => "access past the end of shared memory",
            Self::LocalOutOfBounds => "access past the end of local memory",
            Self::ParamOutOfBounds => "access outside of the kernel's parameters",
            Self::Trap => "trap instruction",
            Self::Assert => "device-side assertion failed",
            Self::DivergentBarrier => "barrier that not all threads can reach",
            Self::PartialWarp => "instruction of a whole warp without all of its 32 threads",
            Self::InvalidBarrier => "invalid barrier number or thread count",
            Self::InvalidBulk => "invalid bulk copy, tensor map or matrix descriptor",
            Self::InvalidPc => "invalid program counter",
            Self::IndirectCall => "call through an invalid function pointer",
            Self::StackOverflow => "stack overflow",
            Self::NotByThread => "instruction that the weak memory does not model",
            Self::InvalidFree => "free of memory that is not malloc's, or free already",
        }
    }
}

impl From<MemoryFault> for FaultKind {
    fn from(fault: MemoryFault) -> Self {
        match fault {
            MemoryFault::OutOfBounds => Self::OutOfBounds,
            MemoryFault::Misaligned => Self::Misaligned,
            MemoryFault::Forbidden => Self::Forbidden,
        }
    }
}

/// A kernel's bad end: what, and exactly where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What.
    pub kind: FaultKind,
    /// The kernel.
    pub kernel: String,
    /// The block.
    pub block: [u32; 3],
    /// The thread in it; the lowest of those at fault.
    pub thread: [u32; 3],
    /// Line in the PTX text, from 1.
    pub line: u32,
    /// The instruction there.
    pub instruction: String,
    /// File and line of the source that a compiler made it from, if it said so (`.loc`).
    pub source: String,
    /// The address, for accesses: as the thread computed it.
    pub address: Option<u64>,
    /// Bytes of the access, 0 where there was none.
    pub bytes: u32,
    /// More, for assertions: what failed, where.
    pub detail: String,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ([bx, by, bz], [tx, ty, tz]) = (self.block, self.thread);
        write!(f, "{} in kernel {}, ", self.kind.describe(), self.kernel)?;
        write!(f, "block ({bx}, {by}, {bz}), thread ({tx}, {ty}, {tz}), ")?;
        write!(f, "PTX line {}: {}", self.line, self.instruction)?;
        if !self.source.is_empty() {
            write!(f, " ({})", self.source)?;
        }
        if let Some(address) = self.address {
            write!(f, "; address {address:#x}, {} bytes", self.bytes)?;
        }
        if !self.detail.is_empty() {
            write!(f, "; {}", self.detail)?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}

/// A fault before it is known which thread has it.
#[derive(Clone, Debug)]
pub struct Trouble {
    /// What.
    pub kind: FaultKind,
    /// Lane.
    pub lane: u32,
    /// Address, if any.
    pub address: Option<u64>,
    /// Bytes of the access.
    pub bytes: u32,
    /// More.
    pub detail: String,
}

impl Trouble {
    /// Without an address.
    pub fn new(kind: FaultKind, mask: u32) -> Box<Self> {
        let lane = mask.trailing_zeros().min(31);
        Box::new(Self { kind, lane, address: None, bytes: 0, detail: String::new() })
    }

    /// At an address.
    pub fn at(kind: FaultKind, lane: usize, address: u64, bytes: usize) -> Box<Self> {
        Box::new(Self {
            kind,
            lane: lane as u32,
            address: Some(address),
            bytes: bytes as u32,
            detail: String::new(),
        })
    }
}
