//! Copies of long rows, past the host's caches.
//!
//! A kernel that copies whole rows moves more than the caches hold, and a row's reader comes when
//! all rows are there. A plain store would first load the line that it overwrites.

/// The shortest row that is copied past the caches.
pub(super) const ROW_BYTES_MIN: usize = 8192;

/// Copies `bytes` bytes. Later stores of this thread come after them.
///
/// # Safety
///
/// As [`std::ptr::copy_nonoverlapping`]: both ranges are mapped, and they are apart.
#[cfg(all(target_arch = "x86_64", target_feature = "avx"))]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    use std::arch::x86_64::{_mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};
    const LINE: usize = 64;
    const HALF: usize = LINE / 2;
    let head = to.align_offset(LINE).min(bytes);
    let lines = (bytes - head) / LINE * LINE;
    // SAFETY: the parts are within the ranges, one behind the other; `to + head` is the start of a
    // line, and so is what follows it by whole lines.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        for at in (head..head + lines).step_by(LINE) {
            let low = _mm256_loadu_si256(from.add(at).cast());
            let high = _mm256_loadu_si256(from.add(at + HALF).cast());
            _mm256_stream_si256(to.add(at).cast(), low);
            _mm256_stream_si256(to.add(at + HALF).cast(), high);
        }
        let tail = head + lines;
        std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), bytes - tail);
        // Such stores are ordered by nothing else: not by the release that says the row is there.
        _mm_sfence();
    }
}

/// As above, through the caches.
///
/// # Safety
///
/// As [`std::ptr::copy_nonoverlapping`].
#[cfg(not(all(target_arch = "x86_64", target_feature = "avx")))]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: what the caller promises.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
}

#[cfg(test)]
mod tests {
    use super::copy;

    /// If this fails, a row loses bytes at its ends, or takes some of its neighbours.
    #[test]
    fn rows_of_any_length_are_copied_from_anywhere_to_anywhere() {
        let source: Vec<u8> = (0..1024_u32).map(|byte| (byte * 7 % 251) as u8).collect();
        for from in [0, 1, 16, 33] {
            for to in [0, 1, 16, 32, 63] {
                for bytes in [0, 1, 30, 64, 65, 127, 128, 513, 900] {
                    let mut target = vec![255_u8; 1024];
                    // SAFETY: both ranges are within their vectors, which are two.
                    unsafe {
                        copy(source.as_ptr().add(from), target.as_mut_ptr().add(to), bytes);
                    }
                    let mut wanted = vec![255_u8; 1024];
                    wanted[to..to + bytes].copy_from_slice(&source[from..from + bytes]);
                    assert_eq!(target, wanted, "{bytes} bytes from {from} to {to}");
                }
            }
        }
    }
}
