//! Bytes that others may read and write meanwhile: copied and filled word by word.
//!
//! The memory is the guest program's, or a ring that two processes share. Its other users do atomic
//! accesses (kernels' signals, completions, positions of rings), and a plain copy that meets one of
//! them would be a data race, which the language leaves undefined. So each byte is moved by a
//! relaxed atomic access: as the processor sees it an ordinary load and store, of words where the
//! addresses allow it, and of whole lines where there are some ([`lines`]). Aligned words of 8
//! bytes of the target are stored whole, which pollers rely on (R13) and `memcpy` promises to
//! nobody.
//!
//! One question stays open in the language, and not on any host that this runs on: accesses of
//! different sizes to the same bytes at the same time. Such a word comes in parts of some order,
//! as it does on a GPU.

mod lines;

use lines::LINE;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Bytes of a word.
const WORD: u64 = 8;

/// Copies as many lines as its last argument says, from the second address to the first.
type CopyLines = unsafe fn(u64, u64, u64);

/// Copies in ascending order.
///
/// # Safety
/// Both ranges can be accessed for `length` bytes, and no Rust reference to them exists. The
/// target may overlap what was read before, not what is still to be read.
pub(crate) unsafe fn copy_up(target: u64, source: u64, length: u64) {
    // SAFETY: the caller's contract.
    unsafe { copy_up_by(lines::copy, target, source, length) }
}

/// Copies with this function for whole lines.
///
/// # Safety
/// As [`copy_up`]; the function copies lines.
unsafe fn copy_up_by(copy_lines: CopyLines, target: u64, source: u64, length: u64) {
    let (head, words) = cut(target, length);
    // SAFETY: the caller's contract; the target is aligned from `head` on.
    unsafe {
        copy_bytes(target, source, 0..head);
        let (to, from) = (target + head, source + head);
        match from % WORD {
            0 => copy_aligned(copy_lines, to, from, words),
            shift => copy_shifted(to, from, words, shift),
        }
        copy_bytes(target, source, head + WORD * words..length);
    }
}

/// Copies words that are aligned on both sides.
///
/// # Safety
/// As [`copy_up_by`], for these words.
unsafe fn copy_aligned(copy_lines: CopyLines, to: u64, from: u64, words: u64) {
    let before = (to.wrapping_neg() % LINE / WORD).min(words);
    let lines = (words - before) * WORD / LINE;
    let behind = before + lines * (LINE / WORD);
    // SAFETY: the caller's contract; the target is aligned to a line from `before` on.
    unsafe {
        copy_words(to, from, before);
        copy_lines(to + before * WORD, from + before * WORD, lines);
        copy_words(to + behind * WORD, from + behind * WORD, words - behind);
    }
}

/// # Safety
/// As [`copy_aligned`].
unsafe fn copy_words(to: u64, from: u64, words: u64) {
    for at in 0..words {
        // SAFETY: the caller's contract.
        unsafe { store(to + WORD * at, load(from + WORD * at)) }
    }
}

/// Copies words whose source begins `shift` bytes into an aligned word. Aligned words of the source
/// are loaded once each; those at its ends, which hold bytes of others, too, byte by byte.
///
/// # Safety
/// As [`copy_up`], for these words; the target is aligned, and the shift is not 0.
unsafe fn copy_shifted(to: u64, from: u64, words: u64, shift: u64) {
    let Some(last) = words.checked_sub(1) else { return };
    let bits = 8 * shift;
    // SAFETY: the caller's contract. The words that are loaded whole begin 8 - `shift` bytes behind
    // the start and end `shift` bytes before the end at the latest.
    unsafe {
        store(to, load_bytes(from));
        if last == 0 {
            return;
        }
        let mut low = load(from + WORD - shift);
        for at in 1..last {
            let high = load(from + WORD * (at + 1) - shift);
            store(to + WORD * at, low >> bits | high << (64 - bits));
            low = high;
        }
        store(to + WORD * last, load_bytes(from + WORD * last));
    }
}

/// Copies in descending order.
///
/// # Safety
/// As [`copy_up`].
unsafe fn copy_down(target: u64, source: u64, length: u64) {
    let (head, words) = cut(target, length);
    // SAFETY: as in `copy_up`.
    unsafe {
        copy_bytes(target, source, (head + WORD * words..length).rev());
        for at in (0..words).rev() {
            let (to, from) = (target + head + WORD * at, source + head + WORD * at);
            store(to, load_bytes(from));
        }
        copy_bytes(target, source, (0..head).rev());
    }
}

/// Copies; the ranges may overlap. `past_caches`: they would not stay in the processor's caches.
///
/// # Safety
/// Both ranges can be accessed for `length` bytes, and no Rust reference to them exists.
pub(crate) unsafe fn copy(target: u64, source: u64, length: u64, past_caches: bool) {
    let into_rest = target > source && target - source < length;
    // SAFETY: the caller's contract; the order is such that nothing is written before it is read.
    unsafe {
        match (into_rest, past_caches) {
            (true, _) => copy_down(target, source, length),
            (false, true) => copy_up_by(lines::stream, target, source, length),
            (false, false) => copy_up(target, source, length),
        }
    }
}

/// Repeats an element of `width` bytes: 1, 2 or 4.
///
/// # Safety
/// `length` bytes at `target` can be written, and no Rust reference to them exists; both are
/// multiples of `width`.
pub(crate) unsafe fn fill(target: u64, element: u32, width: u32, length: u64) {
    let pattern: [u8; 8] = std::array::from_fn(|at| element.to_le_bytes()[at % width as usize]);
    let (head, words) = cut(target, length);
    let bytes = |at: u64| pattern[(at % u64::from(width)) as usize];
    let word = u64::from_le_bytes(std::array::from_fn(|at| bytes(head + at as u64)));
    // SAFETY: the caller's contract; the target is aligned from `head` on. An element is stored
    // whole where it is aligned, as those of a head and a tail are.
    unsafe {
        fill_elements(target, element, width, 0..head);
        (0..words).for_each(|at| store(target + head + WORD * at, word));
        fill_elements(target, element, width, head + WORD * words..length);
    }
}

/// Bytes before the first aligned word of the target, and how many words there are.
fn cut(target: u64, length: u64) -> (u64, u64) {
    let head = (target.wrapping_neg() % WORD).min(length);
    (head, (length - head) / WORD)
}

/// # Safety
/// As [`copy_up`], for these bytes.
unsafe fn copy_bytes(target: u64, source: u64, range: impl Iterator<Item = u64>) {
    for at in range {
        // SAFETY: the caller's contract.
        unsafe {
            let byte = AtomicU8::from_ptr((source + at) as *mut u8).load(Relaxed);
            AtomicU8::from_ptr((target + at) as *mut u8).store(byte, Relaxed);
        }
    }
}

/// # Safety
/// As [`fill`], for these bytes.
unsafe fn fill_elements(target: u64, element: u32, width: u32, range: std::ops::Range<u64>) {
    for at in range.step_by(width as usize) {
        let to = target + at;
        // SAFETY: the caller's contract; aligned, since target and head are multiples of `width`.
        unsafe {
            match width {
                1 => AtomicU8::from_ptr(to as *mut u8).store(element as u8, Relaxed),
                2 => AtomicU16::from_ptr(to as *mut u16).store(element as u16, Relaxed),
                _ => AtomicU32::from_ptr(to as *mut u32).store(element, Relaxed),
            }
        }
    }
}

/// # Safety
/// The word can be written and is aligned; no reference to it exists.
unsafe fn store(to: u64, word: u64) {
    // SAFETY: the caller's contract.
    unsafe { AtomicU64::from_ptr(to as *mut u64) }.store(word, Relaxed);
}

/// # Safety
/// The word can be read and is aligned; no reference to it exists.
unsafe fn load(from: u64) -> u64 {
    // SAFETY: the caller's contract.
    unsafe { AtomicU64::from_ptr(from as *mut u64) }.load(Relaxed)
}

/// # Safety
/// As [`load`], of any alignment.
unsafe fn load_bytes(from: u64) -> u64 {
    // SAFETY: the caller's contract.
    let byte = |at: usize| unsafe { AtomicU8::from_ptr((from + at as u64) as *mut u8) };
    u64::from_le_bytes(std::array::from_fn(|at| byte(at).load(Relaxed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words, for their alignment.
    fn room() -> [u64; 40] {
        std::array::from_fn(|at| u64::from_le_bytes(std::array::from_fn(|b| (8 * at + b) as u8)))
    }

    fn bytes(room: &[u64]) -> Vec<u8> {
        room.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn every_length_and_alignment_is_copied_whole() {
        // Places of words in lines, and of bytes in words.
        for (to, from) in (0..9).chain([16, 56]).flat_map(|to| (0..9).map(move |from| (to, from))) {
            for (length, past) in (0..240).map(|length| (length, length % 2 == 0)) {
                let (source, mut target) = (room(), [0u64; 40]);
                let (at, of) = (target.as_mut_ptr() as u64, source.as_ptr() as u64);
                let copy_lines = if past { lines::stream } else { lines::copy };
                // SAFETY: both ranges lie in locals that are longer.
                unsafe { copy_up_by(copy_lines, at + to as u64, of + from as u64, length as u64) };
                let mut expected = vec![0; 320];
                expected[to..to + length].copy_from_slice(&bytes(&source)[from..from + length]);
                assert_eq!(bytes(&target), expected, "{length} bytes from {from} to {to}");
            }
        }
    }

    #[test]
    fn ranges_may_overlap() {
        for (to, from) in (0..40).flat_map(|to| (0..40).map(move |from| (to, from))) {
            for (length, past) in [0, 1, 7, 8, 9, 31, 80, 200, 272].map(|n| (n, n % 3 == 2)) {
                let mut words = room();
                let mut expected = bytes(&words);
                expected.copy_within(from..from + length, to);
                let base = words.as_mut_ptr() as u64;
                // SAFETY: both ranges lie in the local.
                unsafe { copy(base + to as u64, base + from as u64, length as u64, past) };
                assert_eq!(bytes(&words), expected, "{length} bytes from {from} to {to}");
            }
        }
    }

    #[test]
    fn elements_repeat_from_every_place() {
        let element = 0x0403_0201u32;
        for width in [1usize, 2, 4] {
            for (start, count) in (0..10).flat_map(|start| (0..12).map(move |n| (start, n))) {
                let mut target = [0u64; 16];
                let (at, length) = (start * width, count * width);
                let base = target.as_mut_ptr() as u64;
                // SAFETY: the range lies in the local, at a multiple of `width`.
                unsafe { fill(base + at as u64, element, width as u32, length as u64) };
                let mut expected = vec![0; 128];
                for byte in 0..length {
                    expected[at + byte] = element.to_le_bytes()[byte % width];
                }
                assert_eq!(bytes(&target), expected, "{count} of {width} bytes at {at}");
            }
        }
    }

    /// If this fails, a kernel that polls the target of a copy may see a part of a word (R13).
    #[test]
    fn a_poller_sees_whole_words() {
        const WORDS: usize = 512;
        let shared: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        let done = std::sync::atomic::AtomicBool::new(false);
        let base = shared.as_ptr() as u64;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..2000u64 {
                    let value = [0, u64::MAX][round as usize % 2];
                    let source = vec![value; WORDS + 1];
                    let from = source.as_ptr() as u64 + round % 8;
                    // SAFETY: the target lies in atomics, and the source is longer.
                    unsafe { copy(base, from, 8 * WORDS as u64, round % 3 == 0) };
                }
                done.store(true, Relaxed);
            });
            while !done.load(Relaxed) {
                for word in &shared {
                    let seen = word.load(Relaxed);
                    assert!(seen == 0 || seen == u64::MAX, "a torn word: {seen:#x}");
                }
            }
        });
    }
}
