//! What a block takes of a multiprocessor.

use crate::description::GpuModel;
use hwsim_ptx::Kernel;

/// Threads of a warp.
pub const WARP_THREADS: u32 = 32;

/// Resources of a multiprocessor that one block takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Threads, whole warps.
    pub threads: u32,
    /// Shared memory, static and dynamic, bytes.
    pub shared_bytes: u32,
    /// Registers of all threads.
    pub registers: u32,
}

impl Footprint {
    /// Of a kernel's block of `threads` with so much dynamic shared memory.
    pub fn of(model: &GpuModel, kernel: &Kernel, threads: u32, dynamic_shared: u32) -> Self {
        let threads = threads.max(1).next_multiple_of(WARP_THREADS);
        let reserved = model.shared_memory_reserved_per_block() as u32;
        let shared = kernel.static_shared_bytes.saturating_add(dynamic_shared);
        let shared_bytes = shared.saturating_add(reserved).next_multiple_of(128);
        Self { threads, shared_bytes, registers: threads * registers_per_thread(kernel) }
    }

    /// Blocks of this kind that one multiprocessor holds at once.
    pub fn blocks_per_multiprocessor(&self, model: &GpuModel) -> u32 {
        let by_threads = model.threads_per_multiprocessor / self.threads;
        let by_shared = model.shared_memory_per_multiprocessor as u32 / self.shared_bytes.max(1);
        let by_registers = model.registers_per_multiprocessor / self.registers.max(1);
        by_threads.min(by_shared).min(by_registers).min(model.blocks_per_multiprocessor)
    }
}

/// Registers that a compiler would give a thread: PTX has virtual registers, any number of them.
pub fn registers_per_thread(kernel: &Kernel) -> u32 {
    // A block of 1024 threads has to fit 65536 registers, as a compiler would see to with spills.
    kernel.register_count.clamp(16, 64).next_multiple_of(8)
}
