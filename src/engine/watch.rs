//! Looks at the record that an expired device wait leaves (R10), so that it becomes an error on
//! the host at once and not when somebody next asks the stream.

use crate::error::{Error, Result};
use crate::id::Rank;
use crate::shared::{AtomicWord32, Region};
use bytemuck::Zeroable;
use ringdove_kernels::launch::WaitRecord;
use std::sync::atomic::Ordering;

/// The words of a [`WaitRecord`]: memory that a device writes, or a simulation's.
pub trait RecordWords {
    /// Loads `state`.
    fn state(&self, ordering: Ordering) -> u32;

    /// Copies the whole record out.
    ///
    /// # Errors
    /// The memory is not there.
    fn copy_out(&self, bytes: &mut [u8]) -> Result<()>;
}

/// A record in memory that the host maps.
pub struct RecordMemory {
    record: Region,
    state: AtomicWord32,
}

impl RecordWords for RecordMemory {
    fn state(&self, ordering: Ordering) -> u32 {
        self.state.load(ordering)
    }

    fn copy_out(&self, bytes: &mut [u8]) -> Result<()> {
        self.record.copy_out(0, bytes)
    }
}

/// A view of one rank's [`WaitRecord`], which lies in pinned host memory.
pub struct Watch<R = RecordMemory> {
    rank: Rank,
    words: R,
}

impl Watch {
    /// Watches the record at the start of `record`, which the device of `rank` writes.
    ///
    /// # Errors
    /// [`Error::Argument`] if the region is too small or misaligned.
    pub fn new(rank: Rank, record: Region) -> Result<Self> {
        let record = record.part(0, size_of::<WaitRecord>())?;
        let state = record.word32(std::mem::offset_of!(WaitRecord, state))?;
        Ok(Self::over(rank, RecordMemory { record, state }))
    }
}

impl<R: RecordWords> Watch<R> {
    /// As [`new`](Watch::new), over the words of the record.
    pub fn over(rank: Rank, words: R) -> Self {
        Self { rank, words }
    }

    /// The record as an error, once it is complete.
    pub fn poll(&self) -> Option<Error> {
        match self.record()? {
            Ok(record) => Error::from_record(self.rank, &record),
            Err(error) => Some(error),
        }
    }

    /// The record, once it is complete.
    pub fn record(&self) -> Option<Result<WaitRecord>> {
        // Acquire: the fields were written before the state. Pairs with wait.cuh: leave_record,
        // R10.
        if self.words.state(Ordering::Acquire) == 0 {
            return None;
        }
        let mut record = WaitRecord::zeroed();
        // Nobody writes the record again after its state: one thread claims it, once.
        Some(self.words.copy_out(bytemuck::bytes_of_mut(&mut record)).map(|()| record))
    }
}
