//! Looks at the record that an expired device wait leaves (R10), so that it becomes an error on
//! the host at once and not when somebody next asks the stream.

use crate::error::{Error, Result};
use crate::id::Rank;
use crate::shared::{AtomicWord32, Region};
use bytemuck::Zeroable;
use ringdove_kernels::launch::WaitRecord;
use std::sync::atomic::Ordering;

/// A view of one rank's [`WaitRecord`] in pinned host memory.
pub struct Watch {
    rank: Rank,
    record: Region,
    state: AtomicWord32,
}

impl Watch {
    /// Watches the record at the start of `record`, which the device of `rank` writes.
    ///
    /// # Errors
    /// [`Error::Argument`] if the region is too small or misaligned.
    pub fn new(rank: Rank, record: Region) -> Result<Self> {
        let record = record.part(0, size_of::<WaitRecord>())?;
        let state = record.word32(std::mem::offset_of!(WaitRecord, state))?;
        Ok(Self { rank, record, state })
    }

    /// The record as an error, once it is complete.
    pub fn poll(&self) -> Option<Error> {
        // Acquire: the fields were written before the state. Pairs with wait.cuh: leave_record,
        // R10.
        if self.state.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut record = WaitRecord::zeroed();
        // Nobody writes the record again after its state: one thread claims it, once.
        if let Err(error) = self.record.copy_out(0, bytemuck::bytes_of_mut(&mut record)) {
            return Some(error);
        }
        Error::from_record(self.rank, &record)
    }
}
