//! What the kernel that tries the queues of a context (`kernels/cuda/mark.cu`) is given.

use bytemuck::{Pod, Zeroable};

/// The parameter of the entry `ringdove_mark`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct MarkCall {
    /// Device address of a u64 that becomes 1 when the kernel runs.
    pub mark: u64,
    /// Device address of a u32 that is not 0 once the kernel is to end.
    pub gate: u64,
    /// Nanoseconds after which the kernel ends by itself (R10).
    pub timeout_ns: u64,
}
