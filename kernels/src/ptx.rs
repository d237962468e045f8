//! The compiled device code: PTX text, generated from `kernels/cuda` and committed, so that
//! building ringdove needs no CUDA toolchain.

/// The executor kernel, entry `ringdove_execute`.
pub const EXECUTOR: &str = include_str!("../ptx/executor.ptx");
/// Entry of the executor kernel.
pub const EXECUTOR_ENTRY: &str = "ringdove_execute";
