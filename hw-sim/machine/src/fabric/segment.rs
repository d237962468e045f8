//! Memory that two processes of the fabric share: a mapped file of fixed size.

use super::error::{FabricError, Result};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// A mapping of a file, shared with other processes.
#[derive(Debug)]
pub(crate) struct Segment {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping stays where it is while the segment lives; it is reached through atomics, and
// through copies that the rings' positions order.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Maps the first `bytes` of a file that is at least as long.
    pub fn map(file: &File, bytes: usize) -> Result<Self> {
        Self::map_at(file, 0, bytes)
    }

    /// Maps `bytes` of a file from a multiple of the page size on.
    pub fn map_at(file: &File, offset: u64, bytes: usize) -> Result<Self> {
        let length = file.metadata().map_err(FabricError::system("examining a fabric file"))?.len();
        let end = offset.saturating_add(bytes as u64);
        if length < end {
            let text = format!("a shared file has {length} bytes, expected at least {end}");
            return Err(FabricError::Invalid(text));
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a shared mapping at an address of the kernel's choice touches no other.
        let base = unsafe {
            let null = std::ptr::null_mut();
            libc::mmap(
                null,
                bytes,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if base == libc::MAP_FAILED {
            let cause = std::io::Error::last_os_error();
            return Err(FabricError::system("mapping a shared file")(cause));
        }
        Ok(Self { base: base.cast(), bytes })
    }

    /// Zero bytes that no other process sees.
    pub fn anonymous(bytes: usize) -> Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a mapping at an address of the kernel's choice touches no other.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            let cause = std::io::Error::last_os_error();
            return Err(FabricError::system("mapping memory")(cause));
        }
        Ok(Self { base: base.cast(), bytes })
    }

    /// The word of 32 bits at an offset.
    pub fn word32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.bytes);
        // SAFETY: inside the mapping and aligned; every process uses this word as an atomic.
        unsafe { AtomicU32::from_ptr(self.base.add(offset).cast()) }
    }

    /// The word of 64 bits at an offset.
    pub fn word64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.bytes);
        // SAFETY: inside the mapping and aligned; every process uses this word as an atomic.
        unsafe { AtomicU64::from_ptr(self.base.add(offset).cast()) }
    }

    /// The address of a range, which lies inside the mapping.
    pub fn address(&self, offset: usize, length: usize) -> u64 {
        assert!(offset <= self.bytes && length <= self.bytes - offset);
        self.base as u64 + offset as u64
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody holds a reference into it any more.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}
