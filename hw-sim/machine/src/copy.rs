//! The copy engine's work: copies and fills, whole or in pieces.

use crate::bytes;
use crate::client::Client;
use crate::error::Result;
use crate::memory::GlobalMemory;
use crate::tally;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Up to here a copy is done by the thread that submits it: handing it over costs more.
pub(crate) const INLINE_BYTES_MAX: u64 = 64 << 10;
/// Large copies are cut into pieces, so that several workers share one and others get their turn.
const PIECE_BYTES: u64 = 512 << 10;
/// From here on a copy goes past the processor's caches: source and target would fill them.
const PAST_CACHES_BYTES: u64 = 256 << 10;

/// Where the bytes come from.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// From memory.
    Memory {
        /// First byte.
        address: u64,
        /// Is it memory that the machine knows, and has to check?
        known: bool,
    },
    /// A repeated element of 1, 2 or 4 bytes.
    Pattern {
        /// The element.
        value: u32,
        /// Its bytes.
        width: u32,
    },
}

/// A copy or a fill of contiguous bytes.
#[derive(Clone, Copy, Debug)]
pub struct Bulk {
    /// Where to.
    pub destination: u64,
    /// Is the destination memory that the machine knows, and has to check?
    pub destination_known: bool,
    /// Where from.
    pub source: Source,
    /// How much.
    pub bytes: u64,
}

impl Bulk {
    /// Does a part of the work.
    pub(crate) fn run(&self, memory: &GlobalMemory, offset: u64, length: u64) -> Result<()> {
        let _access = memory.access();
        let target = self.destination + offset;
        if self.destination_known {
            memory.check(target, length)?;
        }
        match self.source {
            Source::Memory { address, known } => {
                if known {
                    memory.check(address + offset, length)?;
                }
                let past_caches = self.bytes >= PAST_CACHES_BYTES;
                // SAFETY: what the machine knows was checked just now and stays mapped while
                // `_access` lives; for the program's own memory the caller of the driver API
                // vouches, as on real hardware. A stream orders copies by itself.
                unsafe { bytes::copy(target, address + offset, length, past_caches) };
            }
            // SAFETY: the target was checked just now; see above.
            Source::Pattern { value, width } => unsafe {
                bytes::fill(target, value, width, length);
            },
        }
        memory.watches.written_unfenced(target, length);
        if tally::is_on() {
            tally::moved(length, matches!(self.source, Source::Pattern { .. }));
        }
        Ok(())
    }
}

/// Writes bytes that were taken from pageable memory earlier.
pub(crate) fn staged(memory: &GlobalMemory, destination: u64, bytes: &[u8]) -> Result<()> {
    let source = Source::Memory { address: bytes.as_ptr() as u64, known: false };
    let bytes = bytes.len() as u64;
    Bulk { destination, destination_known: true, source, bytes }.run(memory, 0, bytes)
}

/// A copy or a fill of rows.
#[derive(Clone, Copy, Debug)]
pub struct Transfer2d {
    /// The first row.
    pub row: Bulk,
    /// Bytes from one source row to the next.
    pub source_pitch: u64,
    /// Bytes from one destination row to the next.
    pub destination_pitch: u64,
    /// Number of rows.
    pub rows: u64,
}

/// Does all rows.
pub(crate) fn rows(memory: &GlobalMemory, transfer: &Transfer2d) -> Result<()> {
    let mut row = transfer.row;
    for _ in 0..transfer.rows {
        row.run(memory, 0, row.bytes)?;
        row.destination += transfer.destination_pitch;
        if let Source::Memory { address, .. } = &mut row.source {
            *address += transfer.source_pitch;
        }
    }
    Ok(())
}

/// A large copy that workers share.
pub(crate) struct BulkJob {
    bulk: Bulk,
    client: Arc<dyn Client>,
    taken: AtomicU64,
    done: AtomicU64,
    /// Where it runs, if it runs on a multiprocessor.
    room: OnceLock<(usize, u32)>,
}

impl BulkJob {
    pub fn new(bulk: Bulk, client: Arc<dyn Client>) -> Self {
        let (taken, done) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { bulk, client, taken, done, room: OnceLock::new() }
    }

    /// It has room on a multiprocessor of a GPU.
    pub fn give_room(&self, gpu: usize, unit: u32) {
        // Once for each copy, by the scheduler.
        let _ = self.room.set((gpu, unit));
    }

    /// The GPU and the multiprocessor on which it runs, if it does.
    pub fn room(&self) -> Option<(usize, u32)> {
        self.room.get().copied()
    }

    /// Takes the next piece: its offset, and whether pieces are left after it. The scheduler calls
    /// it under its lock, and drops the job from its list when none is left.
    pub fn take(&self) -> (u64, bool) {
        let offset = self.taken.fetch_add(PIECE_BYTES, Ordering::Relaxed);
        (offset, offset + PIECE_BYTES < self.bulk.bytes)
    }

    /// Does a piece; true when it was the last to be done, and the stream goes on.
    pub fn run(&self, memory: &GlobalMemory, offset: u64) -> bool {
        let bytes = PIECE_BYTES.min(self.bulk.bytes - offset);
        if !self.client.has_failed()
            && let Err(error) = self.bulk.run(memory, offset, bytes)
        {
            self.client.fail_copy(&error);
        }
        // AcqRel: the last piece's worker sees what the others wrote before the stream goes on.
        self.done.fetch_add(bytes, Ordering::AcqRel) + bytes == self.bulk.bytes
    }

    /// Whose copy it is.
    pub fn client(&self) -> &Arc<dyn Client> {
        &self.client
    }
}
