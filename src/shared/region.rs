//! A bounded piece of shared memory that keeps its owner alive.

use super::{AtomicWord32, AtomicWord64, WordArray};
use crate::error::{Error, Result};
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Something that is dropped when the last view of its memory is.
pub type Owner = Arc<dyn Any + Send + Sync>;

/// A bounded piece of memory that a device may also write. Clones share the memory.
#[derive(Clone)]
pub struct Region {
    base: NonNull<u8>,
    length_bytes: usize,
    owner: Owner,
}

// SAFETY: a region is a pointer that `Region::new` promises to be valid for as long as `owner`
// lives, from any thread; every access through it is atomic. `owner` itself is Send and Sync.
unsafe impl Send for Region {}
// SAFETY: as above; `&Region` allows atomic accesses only.
unsafe impl Sync for Region {}

impl Region {
    /// Describes `length_bytes` bytes from `base`. `owner` frees or unmaps them when it drops.
    ///
    /// # Safety
    /// For as long as `owner` (or a clone) lives:
    /// * the bytes are mapped, readable and writable from every thread of this process;
    /// * whoever else in this process accesses them uses atomics, of the same size where both
    ///   sides can meet at the same time; a device may access them as its own rules say;
    /// * no Rust reference to these bytes exists, except to atomics.
    pub unsafe fn new(base: NonNull<u8>, length_bytes: usize, owner: Owner) -> Self {
        Self { base, length_bytes, owner }
    }

    /// Zeroed host memory, 64-byte aligned, that no device knows. For host-side producers, tests
    /// and benches.
    pub fn host(length_bytes: usize) -> Self {
        #[repr(align(64))]
        struct Line {
            _words: [AtomicU64; 8],
        }
        let lines: Box<[Line]> = (0..length_bytes.div_ceil(64))
            .map(|_| Line { _words: std::array::from_fn(|_| AtomicU64::new(0)) })
            .collect();
        let owner = Arc::new(lines);
        // Taken after the last move of the box, which would end the pointer's validity.
        let base = NonNull::from(&**owner).cast::<u8>();
        // SAFETY: `owner` holds at least `length_bytes` zeroed bytes behind atomics (interior
        // mutability, so writes through the pointer are allowed), and they are never touched
        // except through views of this region, which are atomic, until `owner` frees them.
        unsafe { Self::new(base, length_bytes, owner) }
    }

    /// Bytes of the region.
    pub fn length_bytes(&self) -> usize {
        self.length_bytes
    }

    /// Address of the first byte in this process.
    pub fn base_address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// The part of `length_bytes` bytes that starts `offset` bytes into this region.
    ///
    /// # Errors
    /// [`Error::Argument`] if the part does not lie inside.
    pub fn part(&self, offset: usize, length_bytes: usize) -> Result<Self> {
        let base = self.checked(offset, length_bytes, 1)?;
        Ok(Self { base, length_bytes, owner: self.owner.clone() })
    }

    /// The 32-bit word at `offset`.
    ///
    /// # Errors
    /// [`Error::Argument`] if it is not inside, or not aligned.
    pub fn word32(&self, offset: usize) -> Result<AtomicWord32> {
        let pointer = self.checked(offset, 4, 4)?.cast();
        // SAFETY: `checked` found the word aligned and inside of the region, whose contract the
        // clone of `owner` extends to the view.
        Ok(unsafe { AtomicWord32::new(pointer, self.owner.clone()) })
    }

    /// The 64-bit word at `offset`.
    ///
    /// # Errors
    /// [`Error::Argument`] if it is not inside, or not aligned.
    pub fn word64(&self, offset: usize) -> Result<AtomicWord64> {
        let pointer = self.checked(offset, 8, 8)?.cast();
        // SAFETY: as in `word32`.
        Ok(unsafe { AtomicWord64::new(pointer, self.owner.clone()) })
    }

    /// `count` 64-bit words from `offset`.
    ///
    /// # Errors
    /// [`Error::Argument`] if they are not inside, or not aligned.
    pub fn words64(&self, offset: usize, count: usize) -> Result<WordArray> {
        let pointer = self.checked(offset, count.saturating_mul(8), 8)?.cast();
        // SAFETY: as in `word32`, for all `count` words.
        Ok(unsafe { WordArray::new(pointer, count, self.owner.clone()) })
    }

    /// Copies bytes out. They are consistent only if they are not written meanwhile: the
    /// caller has seen, with acquire, a word that was released after the last write.
    ///
    /// # Errors
    /// [`Error::Argument`] if the range does not lie inside.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let base = self.checked(offset, bytes.len(), 1)?;
        let (head, words) = words_of(base, bytes.len());
        let (first, rest) = bytes.split_at_mut(head);
        let (middle, last) = rest.split_at_mut(words * 8);
        let byte = |index: usize| {
            // SAFETY: `checked` found the whole range inside of the region; u8 needs no alignment.
            unsafe { AtomicU8::from_ptr(base.as_ptr().add(index)) }.load(Ordering::Relaxed)
        };
        (0..).zip(first).for_each(|(index, to)| *to = byte(index));
        for (index, to) in (head..).step_by(8).zip(middle.chunks_exact_mut(8)) {
            // SAFETY: as above, and `words_of` says that words behind `head` are aligned.
            let word = unsafe { AtomicU64::from_ptr(base.as_ptr().add(index).cast()) };
            to.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        (head + words * 8..).zip(last).for_each(|(index, to)| *to = byte(index));
        Ok(())
    }

    /// Copies bytes in. To publish them, release a word afterwards.
    ///
    /// # Errors
    /// [`Error::Argument`] if the range does not lie inside.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let base = self.checked(offset, bytes.len(), 1)?;
        let (head, words) = words_of(base, bytes.len());
        let (first, rest) = bytes.split_at(head);
        let (middle, last) = rest.split_at(words * 8);
        let set = |index: usize, value: u8| {
            // SAFETY: as in `copy_out`.
            unsafe { AtomicU8::from_ptr(base.as_ptr().add(index)) }.store(value, Ordering::Relaxed);
        };
        (0..).zip(first).for_each(|(index, from)| set(index, *from));
        for (index, from) in (head..).step_by(8).zip(middle.chunks_exact(8)) {
            let value = u64::from_ne_bytes(from.try_into().expect("a chunk has 8 bytes"));
            // SAFETY: as in `copy_out`.
            let word = unsafe { AtomicU64::from_ptr(base.as_ptr().add(index).cast()) };
            word.store(value, Ordering::Relaxed);
        }
        (head + words * 8..).zip(last).for_each(|(index, from)| set(index, *from));
        Ok(())
    }

    fn checked(&self, offset: usize, bytes: usize, align: usize) -> Result<NonNull<u8>> {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.length_bytes);
        if !inside {
            return Err(Error::argument(
                "range of a shared region",
                format_args!("at most {} bytes", self.length_bytes),
                format_args!("{bytes} bytes from offset {offset}"),
            ));
        }
        // SAFETY: `offset` is at most `length_bytes`, so the result stays in or one past the
        // region's memory.
        let pointer = unsafe { self.base.add(offset) };
        if !(pointer.as_ptr() as usize).is_multiple_of(align) {
            return Err(Error::argument(
                "address in a shared region",
                format_args!("a multiple of {align}"),
                format_args!("{pointer:p}"),
            ));
        }
        Ok(pointer)
    }
}

/// Bytes before the first aligned word of a range, and how many whole words follow.
fn words_of(base: NonNull<u8>, length_bytes: usize) -> (usize, usize) {
    let head = base.as_ptr().align_offset(8).min(length_bytes);
    (head, (length_bytes - head) / 8)
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({:p}, {} bytes)", self.base, self.length_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn views_outside_of_the_region_are_refused() {
        let region = Region::host(64);
        assert!(region.word64(56).is_ok());
        assert!(region.word64(57).is_err(), "misaligned");
        assert!(region.word64(64).is_err(), "one past the end");
        assert!(region.word32(usize::MAX).is_err(), "offset + size overflows");
        assert!(region.words64(0, 9).is_err());
        assert!(region.words64(8, usize::MAX / 4).is_err(), "size overflows");
        assert!(region.copy_in(60, &[0; 5]).is_err());
        assert!(region.copy_out(60, &mut [0; 4]).is_ok());
        let part = region.part(32, 16).unwrap();
        assert!(part.word64(8).is_ok());
        assert!(part.word64(16).is_err(), "inside the whole, outside the part");
    }

    /// Words are copied where there are whole ones, bytes before and behind them.
    #[test]
    fn any_range_is_copied_whole_and_nothing_beside_it() {
        for offset in 0..20 {
            for length in 0..40 {
                let region = Region::host(64);
                let bytes: Vec<u8> = (1..=length).collect();
                region.copy_in(offset, &bytes).unwrap();
                let mut all = [0; 64];
                region.copy_out(0, &mut all).unwrap();
                let end = offset + bytes.len();
                assert_eq!(all[offset..end], bytes);
                assert!(all[..offset].iter().chain(&all[end..]).all(|byte| *byte == 0));
                let mut part = vec![0; bytes.len()];
                region.copy_out(offset, &mut part).unwrap();
                assert_eq!(part, bytes);
            }
        }
    }

    #[test]
    fn a_view_keeps_the_owner_alive() {
        struct Flag(Arc<AtomicBool>, AtomicU64);
        impl Drop for Flag {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let dropped = Arc::new(AtomicBool::new(false));
        let owner = Arc::new(Flag(dropped.clone(), AtomicU64::new(7)));
        let base = NonNull::from(&owner.1).cast();
        // SAFETY: the word lives in `owner` and is only accessed as an atomic.
        let region = unsafe { Region::new(base, 8, owner) };
        let word = region.word64(0).unwrap();
        drop(region);
        assert!(!dropped.load(Ordering::Relaxed));
        assert_eq!(word.load(Ordering::Relaxed), 7);
        drop(word);
        assert!(dropped.load(Ordering::Relaxed));
    }
}
