//! Kernels, and what it takes to start one.

use std::sync::Arc;

use crate::exec::program::Program;

/// Where one parameter lies in the parameter buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// Bytes from the start.
    pub offset: usize,
    /// Size.
    pub size_bytes: usize,
    /// Alignment.
    pub align: usize,
}

/// What a kernel says of its clusters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterRules {
    /// `.reqnctapercluster`: blocks of a cluster on each axis.
    pub required: Option<[u32; 3]>,
    /// `.maxclusterrank`: blocks of a cluster at most.
    pub most: Option<u32>,
    /// `.explicitcluster`: whoever launches it names the shape of clusters.
    pub explicit: bool,
    /// `.blocksareclusters`: grids are counted in clusters.
    pub counted: bool,
}

/// A kernel, linked and ready to run.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Its parameters, in order.
    pub params: Vec<Param>,
    /// Size of the parameter buffer.
    pub param_bytes: usize,
    /// `.shared` variables of fixed size.
    pub static_shared_bytes: u32,
    /// It asks where the system's own shared memory is, and so has some.
    pub(crate) uses_reserved_shared: bool,
    /// Local memory of each thread, frames of called functions included.
    pub local_bytes: u32,
    /// Rows of the register file, after allocation: an estimate of a real compiler's count.
    pub register_count: u32,
    /// `.maxntid` or `.reqntid`.
    pub max_block: Option<[u32; 3]>,
    /// It was `.reqntid`: blocks must have just that shape.
    pub block_is_exact: bool,
    /// What it says of its clusters.
    pub clusters: ClusterRules,
    pub(crate) program: Program,
}

/// A kernel with its grid and its arguments.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The operation.
    pub kernel: Arc<Kernel>,
    /// Blocks on each axis.
    pub grid: [u32; 3],
    /// Blocks of a cluster on each axis; they divide the grid's. None: every block is a cluster of
    /// its own, and nobody has said so.
    pub cluster: Option<[u32; 3]>,
    /// Threads of a block on each axis.
    pub block: [u32; 3],
    /// Shared memory beyond the kernel's own, in bytes.
    pub dynamic_shared_bytes: u32,
    /// The parameter buffer, laid out as [`Kernel::params`] says.
    pub params: Vec<u8>,
    /// `%gridid`
    pub grid_id: u64,
    /// `%nsmid`
    pub sm_count: u32,
    /// `%envreg1` and `%envreg2`: where blocks of a cooperative launch meet, 0 for other launches.
    /// The second word of 32 bits there is theirs, and zero before the first launch.
    pub grid_workspace: u64,
}

impl Launch {
    /// Threads of a block.
    pub fn block_threads(&self) -> u32 {
        self.block.iter().product()
    }

    /// Bytes of shared memory that a block asks for.
    pub(crate) fn shared_bytes(&self) -> u64 {
        u64::from(self.kernel.static_shared_bytes) + u64::from(self.dynamic_shared_bytes)
    }

    /// Where the system's own begins, for kernels that look for it.
    pub(crate) fn reserved_shared(&self) -> u64 {
        self.shared_bytes().next_multiple_of(16)
    }
}

/// Shared memory of each block that is the system's own, as real GPUs from sm_80 on have it. It is
/// zero when a block begins.
pub(crate) const RESERVED_SHARED_BYTES: u32 = 1024;

/// The world around the kernel that is no memory.
pub trait Clock {
    /// Nanoseconds since some fixed moment.
    fn now_ns(&self) -> u64;

    /// Takes what a thread printed.
    fn print(&self, text: &str) {
        print!("{text}");
    }
}
