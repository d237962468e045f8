//! Generic addresses: the highest byte says which memory is meant.

/// Shift of the byte that names the window.
pub const SHIFT: u32 = 56;
/// Shared memory.
pub const SHARED: u64 = 1 << SHIFT;
/// Local memory of the thread.
pub const LOCAL: u64 = 2 << SHIFT;
/// Parameters of the kernel.
pub const PARAM: u64 = 3 << SHIFT;
/// A function; the low bits are its number in the module.
pub const FUNCTION: u64 = 4 << SHIFT;
/// What is left of an address without its window.
pub const OFFSET: u64 = (1 << SHIFT) - 1;
