//! Lines of 64 bytes, copied by the processor's vector instructions.
//!
//! A loop over atomic words moves one of them at a time, since the compiler does not join atomic
//! accesses; through caches that is half of what the processor can do. These instructions are
//! written out, so the language sees accesses that it knows nothing of, and the processor keeps
//! words whole: aligned vectors of 16 bytes are stored at once by every x86-64 processor with AVX,
//! and an aligned word never lies in two lines.

use super::WORD;

/// Bytes of a line.
pub(super) const LINE: u64 = 64;

/// Copies lines in ascending order.
///
/// # Safety
/// As [`super::copy_up`], for as many lines; the target is aligned to a line, the source to a word.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn copy(to: u64, from: u64, lines: u64) {
    if lines == 0 {
        return;
    }
    // SAFETY: the caller's contract. The loop reads and writes `lines` lines and nothing else; each
    // is read before it is written.
    unsafe {
        std::arch::asm!(
            "2:",
            "movdqu {a}, [{from}]",
            "movdqu {b}, [{from} + 16]",
            "movdqu {c}, [{from} + 32]",
            "movdqu {d}, [{from} + 48]",
            "movdqa [{to}], {a}",
            "movdqa [{to} + 16], {b}",
            "movdqa [{to} + 32], {c}",
            "movdqa [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "sub {lines}, 1",
            "jnz 2b",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            lines = inout(reg) lines => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// The same past the caches: for what is too large to stay in them. It neither loads the target
/// first nor drives out what others use.
///
/// # Safety
/// As [`copy`].
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn stream(to: u64, from: u64, lines: u64) {
    use std::arch::x86_64::{_mm_sfence, _mm_stream_si64};
    for line in 0..lines {
        let at = |word: usize| line * LINE + word as u64 * WORD;
        // SAFETY: the caller's contract. Each store is one of an aligned word.
        unsafe {
            let words: [u64; 8] = std::array::from_fn(|word| super::load(from + at(word)));
            for (word, value) in words.into_iter().enumerate() {
                _mm_stream_si64((to + at(word)) as *mut i64, value as i64);
            }
        }
    }
    // These stores keep no order with later ones by themselves.
    // SAFETY: every x86-64 processor has it.
    unsafe { _mm_sfence() };
}

/// Copies lines in ascending order.
///
/// # Safety
/// As [`super::copy_up`], for as many lines; both are aligned to a word.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn copy(to: u64, from: u64, lines: u64) {
    // SAFETY: the caller's contract.
    unsafe { super::copy_words(to, from, lines * LINE / WORD) }
}

/// The same.
///
/// # Safety
/// As [`copy`].
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn stream(to: u64, from: u64, lines: u64) {
    // SAFETY: the caller's contract.
    unsafe { copy(to, from, lines) }
}
