//! What can go wrong, in the machine's own words. The vendor ABI maps each to a driver code.

use hwsim_ptx::memory::MemoryFault;

/// A condition that makes a context fail: every later call on it answers with the same error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u32)]
pub enum Sticky {
    /// An access outside every allocation, or to memory that the context may not reach.
    #[error("a kernel accessed an illegal address")]
    IllegalAddress = 1,
    /// An access that is not aligned to its size.
    #[error("a kernel made a misaligned access")]
    Misaligned = 2,
    /// `trap`, a divergent barrier, a stack overflow, or a defect of the simulator.
    #[error("a kernel failed")]
    LaunchFailed = 3,
    /// A device-side assertion.
    #[error("a device-side assertion failed")]
    Assert = 4,
    /// An instruction that cannot be executed.
    #[error("a kernel executed an illegal instruction")]
    IllegalInstruction = 5,
    /// The context was destroyed or reset while work was queued.
    #[error("the context was destroyed")]
    Destroyed = 6,
    /// A jump or a call through a value that names no code.
    #[error("a kernel jumped to an address that holds no code")]
    InvalidPc = 7,
}

impl Sticky {
    /// The condition with this code, None for 0 (no error).
    pub const fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            1 => Self::IllegalAddress,
            2 => Self::Misaligned,
            3 => Self::LaunchFailed,
            4 => Self::Assert,
            5 => Self::IllegalInstruction,
            6 => Self::Destroyed,
            7 => Self::InvalidPc,
            _ => return None,
        })
    }
}

impl From<MemoryFault> for Sticky {
    fn from(fault: MemoryFault) -> Self {
        match fault {
            MemoryFault::OutOfBounds | MemoryFault::Forbidden => Self::IllegalAddress,
            MemoryFault::Misaligned => Self::Misaligned,
        }
    }
}

/// Errors of stream captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    /// A call that is forbidden while a capture is under way, which it has invalidated.
    #[error("the call is not permitted while a stream is captured")]
    Unsupported,
    /// The capture was invalidated by an earlier call.
    #[error("the capture was invalidated by an earlier call")]
    Invalidated,
    /// Two captures would become one.
    #[error("the call would merge two captures")]
    Merge,
    /// The capture did not begin in this stream.
    #[error("the capture did not begin in this stream")]
    Unmatched,
    /// Another stream's commands are not joined back.
    #[error("the capture contains work that was not joined to its origin stream")]
    Unjoined,
    /// A captured stream waits for what is outside of its capture.
    #[error("a captured stream depends on work outside of its capture")]
    Isolation,
    /// The default stream would depend on a captured one.
    #[error("the call would make the default stream depend on a captured stream")]
    Implicit,
    /// An event of a capture, where it can have no meaning.
    #[error("the event was recorded in a capture")]
    CapturedEvent,
    /// The capture began in another thread.
    #[error("the capture began in another thread")]
    WrongThread,
    /// A capture begins where there is one, or ends where there is none.
    #[error("the stream's state does not permit the call")]
    IllegalState,
}

/// An error of one call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A stream capture does not allow it.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// An argument is wrong.
    #[error("{0}")]
    InvalidValue(String),
    /// The GPU's memory (or the host's address space) is used up.
    #[error("out of memory: {wanted} bytes wanted, {free} of {total} free")]
    OutOfMemory {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes free.
        free: u64,
        /// Bytes there are.
        total: u64,
    },
    /// The operating system refused.
    #[error("{what}: {cause}")]
    System {
        /// The action that failed.
        what: String,
        /// Its answer.
        cause: String,
    },
    /// Memory that is registered already.
    #[error("host memory at {0:#x} is registered already")]
    AlreadyRegistered(u64),
    /// Memory that is not registered.
    #[error("host memory at {0:#x} is not registered")]
    NotRegistered(u64),
    /// Nothing by that name.
    #[error("{0} was not found")]
    NotFound(String),
    /// The PTX was refused.
    #[error("{0}")]
    InvalidPtx(String),
    /// A launch asks for more than an SM has.
    #[error("{0}")]
    OutOfResources(String),
    /// A launch in clusters that the kernel or the GPU does not have.
    #[error("{0}")]
    InvalidClusterSize(String),
    /// A cooperative launch does not fit the GPU at once.
    #[error("cooperative launch of {blocks} blocks: at most {fit} are resident at once")]
    CooperativeTooLarge {
        /// Blocks of the grid.
        blocks: u64,
        /// Blocks that fit.
        fit: u64,
    },
    /// Two GPUs without a path.
    #[error("GPU {from} cannot reach the memory of GPU {to}")]
    PeerUnsupported {
        /// Who wants to reach.
        from: usize,
        /// What.
        to: usize,
    },
    /// Peer access is on already.
    #[error("peer access is enabled already")]
    PeerAlreadyEnabled,
    /// Peer access is off.
    #[error("peer access is not enabled")]
    PeerNotEnabled,
    /// Memory that no GPU of this node can reach.
    #[error("the handle comes from {0}: only processes of one node share device memory")]
    Elsewhere(String),
    /// Work is not done yet.
    #[error("not ready")]
    NotReady,
    /// An object of another or no context.
    #[error("{0}")]
    InvalidHandle(String),
    /// A call that this context's state does not allow.
    #[error("{0}")]
    InvalidContext(String),
    /// Not done by virtual hardware.
    #[error("{0} is not supported")]
    NotSupported(String),
    /// The context has failed.
    #[error(transparent)]
    Sticky(#[from] Sticky),
}

impl Error {
    /// The last error of the operating system, with what was tried.
    pub(crate) fn system(what: impl Into<String>) -> Self {
        let cause = std::io::Error::last_os_error().to_string();
        Self::System { what: what.into(), cause }
    }
}

/// The machine's result.
pub type Result<T> = std::result::Result<T, Error>;
