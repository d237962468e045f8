//! Stream memory operations: waiting for a word, writing a word.

use crate::error::Result;
use crate::memory::GlobalMemory;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// When a wait for a word ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// `(word - value) >= 0`, signed: a cyclic comparison.
    AtLeast,
    /// `word == value`
    Equal,
    /// `(word & value) != 0`
    And,
    /// `!(word | value) != 0`
    Nor,
}

/// A wait for a word of 4 or 8 bytes.
#[derive(Clone, Copy, Debug)]
pub struct WaitValue {
    /// Where.
    pub address: u64,
    /// With what the word is compared.
    pub value: u64,
    /// How.
    pub condition: Condition,
    /// Eight bytes instead of four.
    pub wide: bool,
}

impl WaitValue {
    /// Where the word is, and its bytes.
    pub(crate) fn places(&self) -> impl Iterator<Item = (u64, u64)> {
        std::iter::once((self.address, if self.wide { 8 } else { 4 }))
    }

    /// Is the condition met? Memory that was freed meets every condition, so that nobody waits
    /// for it for ever.
    pub fn is_met(&self, memory: &GlobalMemory) -> bool {
        let _access = memory.access();
        if memory.check(self.address, if self.wide { 8 } else { 4 }).is_err() {
            return true;
        }
        // Acquire pairs with whoever releases the word: a kernel, a host thread, a write value.
        if self.wide {
            // SAFETY: the word is in an allocation (checked above) that stays mapped while
            // `_access` lives; alignment was checked when the command was made.
            let word = unsafe { AtomicU64::from_ptr(self.address as *mut u64) };
            self.compare64(word.load(Ordering::Acquire))
        } else {
            // SAFETY: as above.
            let word = unsafe { AtomicU32::from_ptr(self.address as *mut u32) };
            self.compare32(word.load(Ordering::Acquire))
        }
    }

    fn compare64(&self, word: u64) -> bool {
        match self.condition {
            Condition::AtLeast => word.wrapping_sub(self.value) as i64 >= 0,
            Condition::Equal => word == self.value,
            Condition::And => word & self.value != 0,
            Condition::Nor => !(word | self.value) != 0,
        }
    }

    fn compare32(&self, word: u32) -> bool {
        let value = self.value as u32;
        match self.condition {
            Condition::AtLeast => word.wrapping_sub(value) as i32 >= 0,
            Condition::Equal => word == value,
            Condition::And => word & value != 0,
            Condition::Nor => !(word | value) != 0,
        }
    }
}

/// A write of a word of 4 or 8 bytes.
#[derive(Clone, Copy, Debug)]
pub struct WriteValue {
    /// Where.
    pub address: u64,
    /// What.
    pub value: u64,
    /// Eight bytes instead of four.
    pub wide: bool,
}

impl WriteValue {
    /// Writes; all earlier work of the stream is visible to who acquires the word.
    pub fn run(&self, memory: &GlobalMemory) -> Result<()> {
        let _access = memory.access();
        memory.check(self.address, if self.wide { 8 } else { 4 })?;
        // Release pairs with the acquire of whoever waits for the word (R9): a kernel, a host
        // thread, a wait value.
        if self.wide {
            // SAFETY: as in `WaitValue::is_met`.
            let word = unsafe { AtomicU64::from_ptr(self.address as *mut u64) };
            word.store(self.value, Ordering::Release);
        } else {
            // SAFETY: as in `WaitValue::is_met`.
            let word = unsafe { AtomicU32::from_ptr(self.address as *mut u32) };
            word.store(self.value as u32, Ordering::Release);
        }
        memory.watches.written_unfenced(self.address, if self.wide { 8 } else { 4 });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_least_is_cyclic() {
        let wait = |value, condition, wide| WaitValue { address: 0, value, condition, wide };
        assert!(wait(5, Condition::AtLeast, true).compare64(5));
        assert!(!wait(5, Condition::AtLeast, true).compare64(4));
        assert!(wait(u64::MAX, Condition::AtLeast, true).compare64(3), "wrapped around");
        assert!(wait(0xffff_fff0, Condition::AtLeast, false).compare32(3));
        assert!(!wait(3, Condition::AtLeast, false).compare32(0xffff_fff0));
        assert!(wait(6, Condition::And, true).compare64(2));
        assert!(!wait(6, Condition::And, true).compare64(9));
        assert!(!wait(u64::MAX, Condition::Nor, true).compare64(0));
        assert!(wait(1, Condition::Nor, false).compare32(2));
    }
}
