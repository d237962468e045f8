//! Reads and writes of the engine in the memory of its process.
//!
//! Every address is looked up first: an engine touches GPU memory and pinned host memory that is
//! allocated at this moment, and nothing else. Who holds [`Dma`] holds the memory's gate, so that
//! what was found stays mapped.

use crate::bytes;
use crate::memory::{AccessGuard, GlobalMemory};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// An address that the engine cannot use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DmaFault(pub u64);

/// Leave to touch the memory of the process.
pub(super) struct Dma<'a> {
    memory: &'a GlobalMemory,
    _gate: AccessGuard<'a>,
}

impl<'a> Dma<'a> {
    /// Enters the memory's gate.
    pub fn new(memory: &'a GlobalMemory) -> Self {
        Self { memory, _gate: memory.access() }
    }

    /// Is all of a range there?
    pub fn check(&self, address: u64, length: u64) -> Result<(), DmaFault> {
        self.memory.check(address, length).map_err(|_| DmaFault(address))
    }

    /// Copies inside of the process.
    pub fn copy(&self, target: u64, source: u64, length: u64) -> Result<(), DmaFault> {
        self.check(source, length)?;
        self.check(target, length)?;
        // SAFETY: both ranges are allocated, and stay mapped while the gate is held; they are the
        // guest program's, so that no Rust reference to them exists.
        unsafe { bytes::copy_up(target, source, length) };
        self.memory.watches.written_unfenced(target, length);
        Ok(())
    }

    /// Copies into a buffer of the engine's own.
    ///
    /// # Safety
    /// `buffer` has room for `length` bytes, and is not used elsewhere.
    pub unsafe fn fetch(&self, buffer: u64, source: u64, length: u64) -> Result<(), DmaFault> {
        self.check(source, length)?;
        // SAFETY: as in `copy`; the caller vouches for the buffer.
        unsafe { bytes::copy_up(buffer, source, length) };
        Ok(())
    }

    /// Copies out of a buffer of the engine's own.
    ///
    /// # Safety
    /// `buffer` holds `length` bytes, which do not change meanwhile.
    pub unsafe fn deliver(&self, target: u64, buffer: u64, length: u64) -> Result<(), DmaFault> {
        self.check(target, length)?;
        // SAFETY: as in `copy`; the caller vouches for the buffer.
        unsafe { bytes::copy_up(target, buffer, length) };
        self.memory.watches.written_unfenced(target, length);
        Ok(())
    }

    /// Writes a count: what was written before is seen before it (R9).
    pub fn write_count(&self, address: u64, count: u64) -> Result<(), DmaFault> {
        if !address.is_multiple_of(8) {
            return Err(DmaFault(address));
        }
        self.check(address, 8)?;
        // SAFETY: allocated and aligned; the guest reads the word as an atomic.
        let word = unsafe { AtomicU64::from_ptr(address as *mut u64) };
        // Release pairs with the acquire of the kernel's wait (wait.cuh, R9), of producers that
        // look for room (R4), and of hosts.
        word.store(count, Ordering::Release);
        self.memory.watches.written_unfenced(address, 8);
        Ok(())
    }

    /// Writes 1 to an abort word.
    pub fn raise(&self, address: u64) -> Result<(), DmaFault> {
        if !address.is_multiple_of(4) {
            return Err(DmaFault(address));
        }
        self.check(address, 4)?;
        // SAFETY: allocated and aligned; the guest reads the word as an atomic.
        let word = unsafe { AtomicU32::from_ptr(address as *mut u32) };
        // Release pairs with hosts that look at the record once they see the word. To kernels it
        // carries no data (R12).
        word.store(1, Ordering::Release);
        self.memory.watches.written_unfenced(address, 4);
        Ok(())
    }
}
