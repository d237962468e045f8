//! Reads and writes of the engine in the memory of its process.
//!
//! Every address is looked up first: an engine touches GPU memory and pinned host memory that is
//! allocated at this moment, and nothing else. Who holds [`Dma`] holds the memory's gate, so that
//! what was found stays mapped.

use super::model::EngineMemory;
use super::registers::ChannelRegisters;
use crate::bytes;
use crate::memory::{AccessGuard, GlobalMemory};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// An address that the engine cannot use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DmaFault(pub u64);

/// Leave to touch the memory that the engine reaches.
pub(super) enum Dma<'a> {
    /// That of the process.
    Process(&'a GlobalMemory, #[expect(dead_code, reason = "held")] AccessGuard<'a>),
    /// Another one.
    Other(&'a dyn EngineMemory),
}

impl<'a> Dma<'a> {
    /// Enters the memory's gate.
    pub fn new(memory: &'a GlobalMemory) -> Self {
        Self::Process(memory, memory.access())
    }

    /// The process's memory, with a range in it that is there.
    fn of_process(&self, address: u64, length: u64) -> Result<&'a GlobalMemory, DmaFault> {
        self.check(address, length)?;
        match self {
            Self::Process(memory, _) => Ok(memory),
            // Not reached: these channels have no links to other processes.
            Self::Other(_) => Err(DmaFault(address)),
        }
    }

    /// Is all of a range there?
    pub fn check(&self, address: u64, length: u64) -> Result<(), DmaFault> {
        let is_there = match self {
            Self::Process(memory, _) => memory.check(address, length).is_ok(),
            Self::Other(memory) => memory.holds(address, length),
        };
        is_there.then_some(()).ok_or(DmaFault(address))
    }

    /// The two words of a slot of a channel's ring, each loaded once (R6).
    pub fn slot(&self, registers: &ChannelRegisters, slot: u64) -> [u64; 2] {
        match self {
            Self::Process(..) => registers.slot(slot),
            Self::Other(memory) => memory.slot(slot),
        }
    }

    /// Copies inside of the process.
    pub fn copy(&self, target: u64, source: u64, length: u64) -> Result<(), DmaFault> {
        self.check(source, length)?;
        self.check(target, length)?;
        if let Self::Other(memory) = self {
            memory.copy(target, source, length);
            return Ok(());
        }
        let memory = self.of_process(target, length)?;
        // SAFETY: both ranges are allocated, and stay mapped while the gate is held; they are the
        // guest program's, so that no Rust reference to them exists.
        unsafe { bytes::copy_up(target, source, length) };
        memory.watches.written_unfenced(target, length);
        Ok(())
    }

    /// Copies into a buffer of the engine's own.
    ///
    /// # Safety
    /// `buffer` has room for `length` bytes, and is not used elsewhere.
    pub unsafe fn fetch(&self, buffer: u64, source: u64, length: u64) -> Result<(), DmaFault> {
        self.of_process(source, length)?;
        // SAFETY: as in `copy`; the caller vouches for the buffer.
        unsafe { bytes::copy_up(buffer, source, length) };
        Ok(())
    }

    /// Copies out of a buffer of the engine's own.
    ///
    /// # Safety
    /// `buffer` holds `length` bytes, which do not change meanwhile.
    pub unsafe fn deliver(&self, target: u64, buffer: u64, length: u64) -> Result<(), DmaFault> {
        let memory = self.of_process(target, length)?;
        // SAFETY: as in `copy`; the caller vouches for the buffer.
        unsafe { bytes::copy_up(target, buffer, length) };
        memory.watches.written_unfenced(target, length);
        Ok(())
    }

    /// Writes a count: what was written before is seen before it (R9).
    pub fn write_count(&self, address: u64, count: u64) -> Result<(), DmaFault> {
        if !address.is_multiple_of(8) {
            return Err(DmaFault(address));
        }
        if let Self::Other(memory) = self {
            self.check(address, 8)?;
            memory.write_count(address, count);
            return Ok(());
        }
        let memory = self.of_process(address, 8)?;
        // SAFETY: allocated and aligned; the guest reads the word as an atomic.
        let word = unsafe { AtomicU64::from_ptr(address as *mut u64) };
        // Release pairs with the acquire of the kernel's wait (wait.cuh, R9), of producers that
        // look for room (R4), and of hosts.
        word.store(count, Ordering::Release);
        memory.watches.written_unfenced(address, 8);
        Ok(())
    }

    /// Writes 1 to an abort word.
    pub fn raise(&self, address: u64) -> Result<(), DmaFault> {
        if !address.is_multiple_of(4) {
            return Err(DmaFault(address));
        }
        if let Self::Other(memory) = self {
            self.check(address, 4)?;
            memory.raise(address);
            return Ok(());
        }
        let memory = self.of_process(address, 4)?;
        // SAFETY: allocated and aligned; the guest reads the word as an atomic.
        let word = unsafe { AtomicU32::from_ptr(address as *mut u32) };
        // Release pairs with hosts that look at the record once they see the word. To kernels it
        // carries no data (R12).
        word.store(1, Ordering::Release);
        memory.watches.written_unfenced(address, 4);
        Ok(())
    }
}
