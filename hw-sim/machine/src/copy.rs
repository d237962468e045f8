//! The copy engine's work: copies and fills, whole or in pieces.

use crate::error::Result;
use crate::memory::GlobalMemory;
use crate::stream::Stream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Up to here a copy is done by the thread that submits it: handing it over costs more.
pub(crate) const INLINE_BYTES_MAX: u64 = 64 << 10;
/// Large copies are cut into pieces, so that several workers share one and others get their turn.
const PIECE_BYTES: u64 = 512 << 10;

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
    pub(crate) fn run(&self, memory: &GlobalMemory, offset: u64, bytes: u64) -> Result<()> {
        let _access = memory.access();
        let target = self.destination + offset;
        if self.destination_known {
            memory.check(target, bytes)?;
        }
        match self.source {
            Source::Memory { address, known } => {
                if known {
                    memory.check(address + offset, bytes)?;
                }
                let (from, to) = ((address + offset) as *const u8, target as *mut u8);
                // SAFETY: what the machine knows was checked just now and stays mapped while
                // `_access` lives; for the program's own memory the caller of the driver API
                // vouches, as on real hardware. `copy` allows overlap; words do not overlap.
                unsafe {
                    if in_words(from as u64, target, bytes) {
                        copy_words(from.cast(), to.cast(), bytes as usize / 8);
                    } else {
                        std::ptr::copy(from, to, bytes as usize);
                    }
                }
            }
            // SAFETY: the target was checked just now; see above.
            Source::Pattern { value, width } => unsafe { fill(target, value, width, bytes) },
        }
        Ok(())
    }
}

/// Small aligned copies go word by word, so that a kernel which polls the target never sees a part
/// of a word: `memmove` promises nothing of the kind.
fn in_words(from: u64, to: u64, bytes: u64) -> bool {
    let aligned = (from | to | bytes).is_multiple_of(8);
    aligned && bytes <= INLINE_BYTES_MAX && (from + bytes <= to || to + bytes <= from)
}

/// # Safety
/// `count` words at `from` can be read and at `to` be written; both are aligned to 8 bytes.
unsafe fn copy_words(from: *const u64, to: *const AtomicU64, count: usize) {
    for index in 0..count {
        // SAFETY: the caller's contract. The source is the guest program's, who may race with us:
        // its words are copied once and not looked at. Relaxed: a stream orders copies by itself.
        unsafe { (*to.add(index)).store(from.add(index).read_volatile(), Ordering::Relaxed) };
    }
}

/// # Safety
/// `bytes` at `target` are mapped and writable, `target` is aligned to `width`.
unsafe fn fill(target: u64, value: u32, width: u32, bytes: u64) {
    let bytes_of = value.to_le_bytes();
    let uniform = bytes_of[..width as usize].iter().all(|byte| *byte == bytes_of[0]);
    // SAFETY: the caller's contract.
    unsafe {
        if uniform {
            std::ptr::write_bytes(target as *mut u8, bytes_of[0], bytes as usize);
            return;
        }
        for index in 0..bytes / u64::from(width) {
            let at = target + index * u64::from(width);
            if width == 2 {
                (at as *mut u16).write(value as u16);
            } else {
                (at as *mut u32).write(value);
            }
        }
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
    stream: Arc<Stream>,
    taken: AtomicU64,
    done: AtomicU64,
    /// Where it runs, if it runs on a multiprocessor.
    room: OnceLock<(usize, u32)>,
}

impl BulkJob {
    pub fn new(bulk: Bulk, stream: Arc<Stream>) -> Self {
        let (taken, done) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { bulk, stream, taken, done, room: OnceLock::new() }
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
    pub fn run(&self, offset: u64) -> bool {
        let bytes = PIECE_BYTES.min(self.bulk.bytes - offset);
        let context = &self.stream.context;
        if !context.is_condemned()
            && let Err(error) = self.bulk.run(&context.machine.memory, offset, bytes)
        {
            context.fail_copy(&error);
        }
        // AcqRel: the last piece's worker sees what the others wrote before the stream goes on.
        self.done.fetch_add(bytes, Ordering::AcqRel) + bytes == self.bulk.bytes
    }

    /// The stream whose head this is.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }
}
