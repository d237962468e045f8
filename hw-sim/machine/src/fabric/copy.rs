//! Copies between memory of the process and rings, in an order that pollers can rely on.

use crate::bytes;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// Copies into memory that others may poll. The last word lands after the rest: a program, or a
/// kernel, that waits for the end of a message finds the message complete.
///
/// # Safety
/// `source` can be read and `target` be written for `length` bytes; they do not overlap, and nobody
/// holds a Rust reference into either.
pub(crate) unsafe fn land(target: u64, source: u64, length: usize) {
    let word = last_word(target, length);
    let bulk = (length - word) as u64;
    // SAFETY: the caller's contract; `bulk` and `word` add up to `length`. The word is aligned, as
    // `last_word` says.
    unsafe {
        bytes::copy_up(target, source, bulk);
        let to = target + bulk;
        let mut last = [0u8; 8];
        bytes::copy_up(last.as_mut_ptr() as u64, source + bulk, word as u64);
        let last = u64::from_le_bytes(last);
        // Release: pairs with the acquire of whoever polls the word (a kernel's wait, a host
        // thread, a consumer of the completion).
        match word {
            8 => AtomicU64::from_ptr(to as *mut u64).store(last, Ordering::Release),
            4 => AtomicU32::from_ptr(to as *mut u32).store(last as u32, Ordering::Release),
            2 => AtomicU16::from_ptr(to as *mut u16).store(last as u16, Ordering::Release),
            1 => AtomicU8::from_ptr(to as *mut u8).store(last as u8, Ordering::Release),
            _ => {}
        }
    }
    // What is stored later, in whatever order, is seen later. Pairs with the acquire of whoever
    // sees that: the next write, a completion, the acknowledged count.
    fence(Ordering::SeqCst);
}

/// Copies as [`land`] does, but aligned words of 8 bytes come 4 by 4: all first halves, then, after
/// others had a chance to look, all second ones. A lone word is whole.
///
/// # Safety
/// As [`land`].
pub(crate) unsafe fn land_in_halves(target: u64, source: u64, length: usize) {
    const WORD: u64 = 8;
    let length = length as u64;
    // SAFETY: the caller's contract, for all of it or parts.
    let copy = |from: u64, to: u64| unsafe {
        land(target + from, source + from, (to - from) as usize);
    };
    if length <= WORD {
        return copy(0, length);
    }
    let head = target.next_multiple_of(WORD) - target;
    let tail = length - (length - head) % WORD;
    let copy_half = |at: u64| {
        let mut half = [0u8; 4];
        // SAFETY: the caller's contract, for these bytes, which are aligned at the target.
        unsafe {
            bytes::copy_up(half.as_mut_ptr() as u64, source + at, half.len() as u64);
            let to = AtomicU32::from_ptr((target + at) as *mut u32);
            to.store(u32::from_le_bytes(half), Ordering::Relaxed);
        }
    };
    copy(0, head);
    for half in [0, WORD / 2] {
        (head..tail).step_by(WORD as usize).for_each(|at| copy_half(at + half));
        std::thread::yield_now();
    }
    // Orders what was stored, too, before what comes later: it ends in a fence.
    copy(tail, length);
}

/// The widest word that ends where the range ends and is aligned.
fn last_word(target: u64, length: usize) -> usize {
    let end = target.wrapping_add(length as u64);
    [8, 4, 2, 1]
        .into_iter()
        .find(|&word| word <= length && end.is_multiple_of(word as u64))
        .unwrap_or(0)
}

/// Copies out of memory that others may write meanwhile.
///
/// # Safety
/// As [`land`].
pub(crate) unsafe fn fetch(target: u64, source: u64, length: usize) {
    if length == 8 && source.is_multiple_of(8) {
        // SAFETY: the caller's contract; aligned. One load, so that a signal is never torn. Acquire
        // pairs with the release of whoever stored it.
        unsafe {
            let word = AtomicU64::from_ptr(source as *mut u64).load(Ordering::Acquire);
            (target as *mut u64).write_unaligned(word);
        }
        return;
    }
    // SAFETY: the caller's contract.
    unsafe { bytes::copy_up(target, source, length as u64) };
}

/// An atomic of an adapter: adds, or swaps where `compare` is found. Gives the old value.
///
/// # Safety
/// `address` is aligned to 8, can be read and written, and no Rust reference to it exists.
pub(crate) unsafe fn atomic(address: u64, operand: u64, compare: Option<u64>) -> u64 {
    // SAFETY: the caller's contract.
    let word = unsafe { AtomicU64::from_ptr(address as *mut u64) };
    // The host's own atomics: atomic against CPUs, virtual GPUs and every adapter.
    match compare {
        None => word.fetch_add(operand, Ordering::SeqCst),
        Some(compare) => word
            .compare_exchange(compare, operand, Ordering::SeqCst, Ordering::SeqCst)
            .unwrap_or_else(|seen| seen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_lands_whole() {
        let source: Vec<u8> = (0..64).map(|byte| byte as u8 + 1).collect();
        for start in 0..9 {
            for length in 0..40 {
                let mut target = [0u8; 64];
                let (to, from) = (target.as_mut_ptr() as u64 + start, source.as_ptr() as u64 + 3);
                // SAFETY: both ranges lie in locals of 64 bytes.
                unsafe { land(to, from, length) };
                let start = start as usize;
                assert_eq!(target[start..start + length], source[3..3 + length]);
                assert!(target[start + length..].iter().all(|byte| *byte == 0));
                let mut in_halves = [0u8; 64];
                let to = in_halves.as_mut_ptr() as u64 + start as u64;
                // SAFETY: as above.
                unsafe { land_in_halves(to, from, length) };
                assert_eq!(in_halves, target, "{length} bytes at {start}, in halves");
            }
        }
    }
}
