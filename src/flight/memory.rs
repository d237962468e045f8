//! The recorder's memory of this process: made with the first rank, and kept as long as the process
//! lives.

use super::layout::{self, BLOCKS, WORDS, block, block_start, header};
use super::view::ProcessView;
use crate::error::{Error, Result};
use crate::shared::{HostRow64, HostWord64, WordArray, map_file, map_zeros};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

/// The memory; a simulation's has words of another kind.
pub struct Memory<R = WordArray, T = AtomicU64> {
    pub(super) words: R,
    /// By block: claimed by a recorder of this process?
    taken: Box<[T]>,
    /// Keeps the name under which other processes find the memory.
    _file: Option<File>,
}

static OWN: OnceLock<Arc<Memory>> = OnceLock::new();

/// The memory of this process, if a rank was ever made.
pub(super) fn own() -> Option<&'static Arc<Memory>> {
    OWN.get()
}

/// The memory of this process, made where there is none. Without a named one, other processes do
/// not see this one; all else works.
pub(super) fn made() -> Result<&'static Arc<Memory>> {
    if let Some(memory) = OWN.get() {
        return Ok(memory);
    }
    let made = Memory::named().or_else(|error| {
        tracing::warn!(%error, "`ringdove inspect` will not see this process");
        Memory::unnamed()
    })?;
    Ok(OWN.get_or_init(|| Arc::new(made)))
}

impl Memory {
    fn named() -> Result<Self> {
        let failed =
            |cause: String| Error::System { what: "memory of the flight recorder".into(), cause };
        let file = memfd_create(layout::NAME, MFdFlags::MFD_CLOEXEC);
        let file = File::from(file.map_err(|errno| failed(errno.desc().to_owned()))?);
        file.set_len((WORDS * 8) as u64).map_err(|error| failed(error.to_string()))?;
        let region = map_file(&file, Path::new(layout::NAME))?;
        Ok(Self::over(region.words64(0, WORDS)?, Some(file)))
    }

    /// Memory that this process alone sees.
    pub fn unnamed() -> Result<Self> {
        Ok(Self::over(map_zeros(WORDS * 8)?.words64(0, WORDS)?, None))
    }

    fn over(words: WordArray, file: Option<File>) -> Self {
        let taken = (0..BLOCKS).map(|_| AtomicU64::new(0)).collect();
        Self { _file: file, ..Memory::in_words(words, taken) }
    }
}

impl<R: HostRow64, T: HostWord64> Memory<R, T> {
    /// How many words it takes to record so many ranks.
    pub const fn words_of(ranks: usize) -> usize {
        block_start(ranks)
    }

    /// One in these words, with a word for each rank; all are 0.
    pub fn in_words(words: R, taken: Box<[T]>) -> Self {
        // Relaxed: a reader of another process finds these values or zeros, and takes neither of
        // them for what it is not.
        words.store(header::VERSION, layout::VERSION, Ordering::Relaxed);
        words.store(header::PID, std::process::id().into(), Ordering::Relaxed);
        words.store(header::MAGIC, layout::MAGIC, Ordering::Relaxed);
        Self { words, taken, _file: None }
    }

    /// A block that nobody has; its words are zeros but for the first. `None` if all are taken.
    pub fn claim(&self) -> Option<usize> {
        // Acquire: after the last writes of who had it before. Pairs with `release`.
        let free = |taken: &T| taken.replace(0, 1, Ordering::Acquire);
        let Some(index) = self.taken.iter().position(free) else {
            // Relaxed: it is a count.
            self.words.fetch_add(header::UNRECORDED, 1, Ordering::Relaxed);
            return None;
        };
        let start = block_start(index);
        // Relaxed, as in `release`: readers take a block whose first word is 0 for free, and look
        // at it again after they have read the rest.
        (1..block::WORDS).for_each(|word| self.words.store(start + word, 0, Ordering::Relaxed));
        self.words.raise(header::USED, index as u64 + 1, Ordering::Relaxed);
        Some(index)
    }

    /// Gives a block back.
    pub fn release(&self, index: usize) {
        self.words.store(block_start(index) + block::STATE, 0, Ordering::Relaxed);
        // Release: pairs with `claim`.
        self.taken[index].store(0, Ordering::Release);
    }

    /// What it says now.
    pub fn view(&self) -> ProcessView {
        let used = self.words.load(header::USED, Ordering::Relaxed) as usize;
        // Acquire: pairs with the release of a block's first word and of entries' stamps, and keeps
        // the words in their order.
        let load = |word| self.words.load(word, Ordering::Acquire);
        let words = || Some((0..block_start(used.min(self.taken.len()))).map(load).collect());
        ProcessView::load(words).unwrap_or_default()
    }
}

/// Now, in nanoseconds since 1970.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64
}
