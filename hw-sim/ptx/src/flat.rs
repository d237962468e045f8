//! Global memory as one buffer, for tests, examples and benches.

use std::cell::RefCell;

use crate::exec::atomic;
use crate::memory::{AtomicOp, AtomicType, Memory, MemoryFault, Strength};

/// One allocation at a made-up address, seen by one thread of the host.
#[derive(Debug, Default)]
pub struct FlatMemory {
    base: u64,
    bytes: RefCell<Vec<u8>>,
}

impl FlatMemory {
    /// `size` zero bytes from `base` on.
    pub fn new(base: u64, size: usize) -> Self {
        Self { base, bytes: RefCell::new(vec![0; size]) }
    }

    /// The first address.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Writes from the host.
    ///
    /// # Panics
    ///
    /// If the bytes do not fit.
    pub fn fill(&self, offset: usize, bytes: &[u8]) {
        self.bytes.borrow_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Reads from the host.
    ///
    /// # Panics
    ///
    /// If there are not so many bytes.
    pub fn copy(&self, offset: usize, length: usize) -> Vec<u8> {
        self.bytes.borrow()[offset..offset + length].to_vec()
    }

    fn range(&self, address: u64, length: usize) -> Result<std::ops::Range<usize>, MemoryFault> {
        let start = address.checked_sub(self.base).ok_or(MemoryFault::OutOfBounds)? as usize;
        let end = start.checked_add(length).ok_or(MemoryFault::OutOfBounds)?;
        if end > self.bytes.borrow().len() {
            return Err(MemoryFault::OutOfBounds);
        }
        Ok(start..end)
    }
}

impl Memory for FlatMemory {
    type Cursor = ();

    fn read(
        &self,
        (): &mut (),
        address: u64,
        _word: usize,
        _strength: Strength,
        bytes: &mut [u8],
    ) -> Result<(), MemoryFault> {
        let range = self.range(address, bytes.len())?;
        bytes.copy_from_slice(&self.bytes.borrow()[range]);
        Ok(())
    }

    fn write(
        &self,
        (): &mut (),
        address: u64,
        _word: usize,
        _strength: Strength,
        bytes: &[u8],
    ) -> Result<(), MemoryFault> {
        let range = self.range(address, bytes.len())?;
        self.bytes.borrow_mut()[range].copy_from_slice(bytes);
        Ok(())
    }

    fn atomic(
        &self,
        (): &mut (),
        address: u64,
        op: AtomicOp,
        ty: AtomicType,
        _strength: Strength,
        operand: u64,
        compare: u64,
    ) -> Result<u64, MemoryFault> {
        let range = self.range(address, ty.size_bytes())?;
        let mut bytes = self.bytes.borrow_mut();
        let word = &mut bytes[range];
        let mut raw = [0; 8];
        raw[..word.len()].copy_from_slice(word);
        let old = u64::from_le_bytes(raw);
        let new = atomic::apply(op, ty, old, operand, compare);
        let length = word.len();
        word.copy_from_slice(&new.to_le_bytes()[..length]);
        Ok(old)
    }

    fn fence(&self, (): &mut (), _strength: Strength) {}
}
