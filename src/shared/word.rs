//! Atomic words in shared memory.

use super::region::Owner;
use std::ptr::NonNull;
use std::sync::atomic::{self, AtomicU32, AtomicU64, Ordering};

/// A 32-bit word that others, devices too, may write at any moment.
#[derive(Clone)]
pub struct AtomicWord32 {
    pointer: NonNull<u32>,
    _owner: Owner,
}

/// A 64-bit word that others, devices too, may write at any moment.
#[derive(Clone)]
pub struct AtomicWord64 {
    pointer: NonNull<u64>,
    _owner: Owner,
}

/// A row of 64-bit words that others, devices too, may write at any moment.
#[derive(Clone)]
pub struct WordArray {
    pointer: NonNull<u64>,
    count: usize,
    _owner: Owner,
}

// SAFETY: the constructors promise a word that is valid from any thread while the owner lives, and
// all accesses are atomic.
unsafe impl Send for AtomicWord32 {}
// SAFETY: as above.
unsafe impl Sync for AtomicWord32 {}
// SAFETY: as above.
unsafe impl Send for AtomicWord64 {}
// SAFETY: as above.
unsafe impl Sync for AtomicWord64 {}
// SAFETY: as above, for each word of the row.
unsafe impl Send for WordArray {}
// SAFETY: as above, for each word of the row.
unsafe impl Sync for WordArray {}

/// A word of 64 bits that another agent accesses, too: what the code of a protocol asks of it. It
/// is an [`AtomicWord64`], or a word of a simulated memory.
pub trait Word64 {
    /// Loads the word.
    fn load(&self, ordering: Ordering) -> u64;
    /// Stores the word.
    fn store(&self, value: u64, ordering: Ordering);
}

/// A row of such words.
pub trait Row64 {
    /// Loads word `index`.
    ///
    /// # Panics
    /// If there is no such word.
    fn load(&self, index: usize, ordering: Ordering) -> u64;

    /// Stores word `index`.
    ///
    /// # Panics
    /// If there is no such word.
    fn store(&self, index: usize, value: u64, ordering: Ordering);
}

/// A word in host memory: a processor can do atomic arithmetic on it.
pub trait HostWord64: Word64 {
    /// Adds, wrapping; gives the value before.
    fn fetch_add(&self, value: u64, ordering: Ordering) -> u64;

    /// Replaces `current` by `new`, and says whether it did. Relaxed where it did not.
    fn replace(&self, current: u64, new: u64, ordering: Ordering) -> bool;

    /// A fence of the thread that accesses the word.
    fn fence(&self, ordering: Ordering);
}

/// A row of such words.
pub trait HostRow64: Row64 {
    /// Adds to word `index`, wrapping; gives the value before.
    ///
    /// # Panics
    /// If there is no such word.
    fn fetch_add(&self, index: usize, value: u64, ordering: Ordering) -> u64;

    /// Raises word `index` to `value` where it is less.
    ///
    /// # Panics
    /// If there is no such word.
    fn raise(&self, index: usize, value: u64, ordering: Ordering);

    /// A fence of the thread that accesses the row.
    fn fence(&self, ordering: Ordering);
}

impl Word64 for AtomicWord64 {
    fn load(&self, ordering: Ordering) -> u64 {
        self.word().load(ordering)
    }

    fn store(&self, value: u64, ordering: Ordering) {
        self.word().store(value, ordering);
    }
}

impl HostWord64 for AtomicWord64 {
    fn fetch_add(&self, value: u64, ordering: Ordering) -> u64 {
        self.word().fetch_add(value, ordering)
    }

    fn replace(&self, current: u64, new: u64, ordering: Ordering) -> bool {
        HostWord64::replace(self.word(), current, new, ordering)
    }

    fn fence(&self, ordering: Ordering) {
        atomic::fence(ordering);
    }
}

/// A word that threads of this process share.
impl Word64 for AtomicU64 {
    fn load(&self, ordering: Ordering) -> u64 {
        self.load(ordering)
    }

    fn store(&self, value: u64, ordering: Ordering) {
        self.store(value, ordering);
    }
}

impl HostWord64 for AtomicU64 {
    fn fetch_add(&self, value: u64, ordering: Ordering) -> u64 {
        self.fetch_add(value, ordering)
    }

    fn replace(&self, current: u64, new: u64, ordering: Ordering) -> bool {
        self.compare_exchange(current, new, ordering, Ordering::Relaxed).is_ok()
    }

    fn fence(&self, ordering: Ordering) {
        atomic::fence(ordering);
    }
}

impl Row64 for WordArray {
    fn load(&self, index: usize, ordering: Ordering) -> u64 {
        self.word(index).load(ordering)
    }

    fn store(&self, index: usize, value: u64, ordering: Ordering) {
        self.word(index).store(value, ordering);
    }
}

impl HostRow64 for WordArray {
    fn fetch_add(&self, index: usize, value: u64, ordering: Ordering) -> u64 {
        self.word(index).fetch_add(value, ordering)
    }

    fn raise(&self, index: usize, value: u64, ordering: Ordering) {
        self.word(index).fetch_max(value, ordering);
    }

    fn fence(&self, ordering: Ordering) {
        atomic::fence(ordering);
    }
}

impl AtomicWord32 {
    /// # Safety
    /// `pointer` is aligned and obeys the contract of [`Region::new`](super::Region::new) for as
    /// long as `owner` lives.
    pub(super) unsafe fn new(pointer: NonNull<u32>, owner: Owner) -> Self {
        Self { pointer, _owner: owner }
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: `new` promises an aligned, valid word that all of this process treats as atomic
        // while the owner lives; the reference cannot outlive `self`, which holds the owner.
        unsafe { AtomicU32::from_ptr(self.pointer.as_ptr()) }
    }

    /// Loads the word.
    pub fn load(&self, ordering: Ordering) -> u32 {
        self.word().load(ordering)
    }

    /// Stores the word.
    pub fn store(&self, value: u32, ordering: Ordering) {
        self.word().store(value, ordering);
    }
}

impl AtomicWord64 {
    /// # Safety
    /// As for [`AtomicWord32::new`].
    pub(super) unsafe fn new(pointer: NonNull<u64>, owner: Owner) -> Self {
        Self { pointer, _owner: owner }
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: as in `AtomicWord32::word`.
        unsafe { AtomicU64::from_ptr(self.pointer.as_ptr()) }
    }

    /// Loads the word.
    pub fn load(&self, ordering: Ordering) -> u64 {
        self.word().load(ordering)
    }

    /// Stores the word.
    pub fn store(&self, value: u64, ordering: Ordering) {
        self.word().store(value, ordering);
    }

    /// Adds, wrapping, and returns what was there before. Host memory only: a CPU cannot do atomic
    /// arithmetic on memory behind a PCI BAR.
    pub fn fetch_add(&self, value: u64, ordering: Ordering) -> u64 {
        self.word().fetch_add(value, ordering)
    }

    /// Raises the word to `value` unless it is higher already. Host memory only.
    pub fn fetch_max(&self, value: u64, ordering: Ordering) -> u64 {
        self.word().fetch_max(value, ordering)
    }

    /// Replaces `current` by `new`, or says what was there instead. Host memory only.
    ///
    /// # Errors
    /// The value that was found, when it is not `current`.
    pub fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.word().compare_exchange(current, new, success, failure)
    }
}

impl WordArray {
    /// # Safety
    /// As for [`AtomicWord32::new`], for `count` words.
    pub(super) unsafe fn new(pointer: NonNull<u64>, count: usize, owner: Owner) -> Self {
        Self { pointer, count, _owner: owner }
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count, "word {index} of a row of {}", self.count);
        // SAFETY: `index` is inside of the row; the rest as in `AtomicWord32::word`.
        unsafe { AtomicU64::from_ptr(self.pointer.as_ptr().add(index)) }
    }

    /// Number of words.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Loads word `index`.
    ///
    /// # Panics
    /// If there is no such word.
    pub fn load(&self, index: usize, ordering: Ordering) -> u64 {
        self.word(index).load(ordering)
    }

    /// Stores word `index`.
    ///
    /// # Panics
    /// If there is no such word.
    pub fn store(&self, index: usize, value: u64, ordering: Ordering) {
        self.word(index).store(value, ordering);
    }

    /// Loads as many words as `into` has, from word `index` on, each by itself and relaxed.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn load_all(&self, index: usize, into: &mut [u64]) {
        self.row(index, into.len()).zip(into).for_each(|(word, into)| {
            *into = word.load(Ordering::Relaxed);
        });
    }

    /// Stores `values` from word `index` on, each by itself and relaxed.
    ///
    /// # Panics
    /// If there are not so many words.
    pub fn store_all(&self, index: usize, values: &[u64]) {
        self.row(index, values.len()).zip(values).for_each(|(word, value)| {
            word.store(*value, Ordering::Relaxed);
        });
    }

    /// `count` words from `index` on; the bounds are looked at once.
    fn row(&self, index: usize, count: usize) -> impl Iterator<Item = &AtomicU64> {
        let inside = index.checked_add(count).is_some_and(|end| end <= self.count);
        assert!(inside, "{count} words from {index} of a row of {}", self.count);
        // SAFETY: `index + count` is inside of the row; the rest as in `AtomicWord32::word`.
        let word = |at| unsafe { AtomicU64::from_ptr(self.pointer.as_ptr().add(at)) };
        (index..index + count).map(word)
    }

    /// Adds to word `index`, with wrap-around; gives the value before.
    ///
    /// # Panics
    /// If there is no such word.
    pub fn fetch_add(&self, index: usize, value: u64, ordering: Ordering) -> u64 {
        self.word(index).fetch_add(value, ordering)
    }

    /// Raises word `index` to `value` where it is less; gives the value before.
    ///
    /// # Panics
    /// If there is no such word.
    pub fn fetch_max(&self, index: usize, value: u64, ordering: Ordering) -> u64 {
        self.word(index).fetch_max(value, ordering)
    }
}
