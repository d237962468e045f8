//! Reads and writes of the engine in the memory of its process.
//!
//! Every address is looked up first: an engine touches GPU memory and pinned host memory that is
//! allocated at this moment, and nothing else. Who holds [`Dma`] holds the memory's gate, so that
//! what was found stays mapped.

use crate::memory::{AccessGuard, GlobalMemory};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// An address that the engine cannot use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault(pub u64);

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
    pub fn check(&self, address: u64, length: u64) -> Result<(), Fault> {
        self.memory.check(address, length).map_err(|_| Fault(address))
    }

    /// Copies inside of the process.
    pub fn copy(&self, target: u64, source: u64, length: u64) -> Result<(), Fault> {
        self.check(source, length)?;
        self.check(target, length)?;
        // SAFETY: both ranges are allocated, and stay mapped while the gate is held; they are the
        // guest program's, so that nobody holds a Rust reference into them.
        unsafe { copy_words(target, source, length) };
        Ok(())
    }

    /// Copies into a buffer of the engine's own.
    ///
    /// # Safety
    /// `buffer` has room for `length` bytes, and nobody else uses it.
    pub unsafe fn fetch(&self, buffer: u64, source: u64, length: u64) -> Result<(), Fault> {
        self.check(source, length)?;
        // SAFETY: as in `copy`; the caller vouches for the buffer.
        unsafe { copy_words(buffer, source, length) };
        Ok(())
    }

    /// Copies out of a buffer of the engine's own.
    ///
    /// # Safety
    /// `buffer` holds `length` bytes, which nobody changes.
    pub unsafe fn deliver(&self, target: u64, buffer: u64, length: u64) -> Result<(), Fault> {
        self.check(target, length)?;
        // SAFETY: as in `copy`; the caller vouches for the buffer.
        unsafe { copy_words(target, buffer, length) };
        Ok(())
    }

    /// Writes a count: what was written before is seen before it (R9).
    pub fn write_count(&self, address: u64, count: u64) -> Result<(), Fault> {
        if !address.is_multiple_of(8) {
            return Err(Fault(address));
        }
        self.check(address, 8)?;
        // SAFETY: allocated and aligned; the guest reads the word as an atomic.
        let word = unsafe { AtomicU64::from_ptr(address as *mut u64) };
        // Release pairs with the acquire of the kernel's wait (wait.cuh, R9), of producers that
        // look for room (R4), and of hosts.
        word.store(count, Ordering::Release);
        Ok(())
    }

    /// Writes 1 to an abort word.
    pub fn raise(&self, address: u64) -> Result<(), Fault> {
        if !address.is_multiple_of(4) {
            return Err(Fault(address));
        }
        self.check(address, 4)?;
        // SAFETY: allocated and aligned; the guest reads the word as an atomic.
        let word = unsafe { AtomicU32::from_ptr(address as *mut u32) };
        // Release: who sees the word sees the error record. It carries no other data (R12).
        word.store(1, Ordering::Release);
        Ok(())
    }
}

/// Copies in ascending order. Aligned words of 8 bytes of the target are written whole (R13), which
/// `memcpy` promises to nobody.
///
/// # Safety
/// Both ranges can be accessed for `length` bytes, and nobody holds a Rust reference into them.
unsafe fn copy_words(target: u64, source: u64, length: u64) {
    let head = (target.wrapping_neg() % 8).min(length);
    let words = (length - head) / 8;
    let bytes = |from: u64, to: u64| {
        for at in from..to {
            // SAFETY: the caller's contract; volatile, as the guest may race with us.
            unsafe {
                let byte = ((source + at) as *const u8).read_volatile();
                AtomicU8::from_ptr((target + at) as *mut u8).store(byte, Ordering::Relaxed);
            }
        }
    };
    bytes(0, head);
    let (from, to) = ((source + head) as *const u64, (target + head) as *mut u64);
    for index in 0..words as usize {
        // SAFETY: the caller's contract; the target is aligned from `head` on. Relaxed: a count
        // that is released later announces the data.
        unsafe {
            let word = from.add(index).read_unaligned();
            AtomicU64::from_ptr(to.add(index)).store(word, Ordering::Relaxed);
        }
    }
    bytes(head + 8 * words, length);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_is_copied_whole() {
        let source: Vec<u8> = (0..96).map(|byte| byte as u8 + 1).collect();
        for (start, shift) in (0..9).flat_map(|start| (0..9).map(move |shift| (start, shift))) {
            for length in 0..48 {
                let mut target = [0u8; 72];
                let (to, from) = (target.as_mut_ptr() as u64, source.as_ptr() as u64);
                // SAFETY: both ranges lie in locals that are longer.
                unsafe { copy_words(to + start as u64, from + shift as u64, length as u64) };
                assert_eq!(target[start..start + length], source[shift..shift + length]);
                let outside = target[..start].iter().chain(&target[start + length..]);
                assert!(outside.into_iter().all(|byte| *byte == 0));
            }
        }
    }
}
