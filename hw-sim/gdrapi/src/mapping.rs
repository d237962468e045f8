//! Pinned device memory, and its mapping into the process.
//!
//! Programs see the pages of real GPUs, of 64 KiB: what is pinned is said to fill whole ones, and
//! only what begins with one can be mapped. The mapping itself ends with the allocation.

use crate::{Outcome, driver};
use std::ffi::c_void;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{Ordering, fence};

/// Bytes of a page of the host.
const PAGE: usize = 4096;
/// Bytes of a page of a GPU.
pub const GPU_PAGE: usize = 64 << 10;
/// Copies of at most this many bytes go word by word.
const WORDWISE_MAX: usize = 64;

/// Device memory that was pinned.
pub struct Mapping {
    /// The first byte of its first page.
    pub address: u64,
    /// Bytes of its pages.
    pub size: usize,
    /// Was it pinned from the first byte of a page on?
    begins_with_page: bool,
    /// The allocation as a dma-buf, where in it the first byte is, and how many follow.
    buffer: OwnedFd,
    offset: usize,
    room: usize,
    /// Where it is mapped: address and bytes.
    mapped: Option<(usize, usize)>,
}

impl Mapping {
    /// Pins a range of one allocation.
    pub fn pin(address: u64, size: usize) -> Outcome<Self> {
        if size == 0 {
            return Err(libc::EINVAL);
        }
        let (base, bytes) = driver::allocation(address)?;
        let inside = usize::try_from(address - base).map_err(|_| libc::EINVAL)?;
        let end = inside.checked_add(size).ok_or(libc::EINVAL)?;
        if end > bytes.next_multiple_of(GPU_PAGE) {
            return Err(libc::EINVAL);
        }
        let room = bytes.next_multiple_of(PAGE);
        // From its base: then the beginning of the dma-buf is that of the allocation.
        let buffer = driver::export(base, room)?;
        let first = address / GPU_PAGE as u64 * GPU_PAGE as u64;
        let last = (base + end as u64).next_multiple_of(GPU_PAGE as u64);
        Ok(Self {
            address: first,
            size: (last - first) as usize,
            begins_with_page: first == address,
            buffer,
            offset: inside,
            room: room - inside,
            mapped: None,
        })
    }

    /// Is it mapped?
    pub fn is_mapped(&self) -> bool {
        self.mapped.is_some()
    }

    /// Maps the first `size` bytes; gives the address.
    pub fn map(&mut self, size: usize) -> Outcome<usize> {
        if size == 0 || size > self.size || !self.begins_with_page {
            return Err(libc::EINVAL);
        }
        if self.is_mapped() {
            return Err(libc::EAGAIN);
        }
        let bytes = size.next_multiple_of(PAGE).min(self.room);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, wherever the system wants it.
        let address = unsafe {
            let (file, offset) = (self.buffer.as_raw_fd(), self.offset as libc::off_t);
            libc::mmap(null_mut(), bytes, protection, libc::MAP_SHARED, file, offset)
        };
        if address == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
        }
        self.mapped = Some((address as usize, bytes));
        Ok(address as usize)
    }

    /// Takes the mapping at `address` away.
    pub fn unmap(&mut self, address: usize) -> Outcome {
        match self.mapped {
            Some((mapped, bytes)) if mapped == address => {
                self.mapped = None;
                // SAFETY: `map` has made it, and gave it to nobody who would not know.
                unsafe { libc::munmap(mapped as *mut _, bytes) };
                Ok(())
            }
            _ => Err(libc::EINVAL),
        }
    }

    /// Does the range lie in the mapping?
    fn check(&self, address: usize, size: usize) -> Outcome {
        let (mapped, bytes) = self.mapped.ok_or(libc::EINVAL)?;
        let inside = address.checked_sub(mapped).ok_or(libc::EINVAL)?;
        let fits = inside.checked_add(size).is_some_and(|end| end <= bytes);
        fits.then_some(()).ok_or(libc::EINVAL)
    }

    /// Copies to the mapping.
    pub fn write(&self, address: usize, from: *const c_void, size: usize) -> Outcome {
        self.check(address, size)?;
        if size > 0 && from.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the range lies in the mapping, which stays while the caller holds the table; the
        // program passes as many bytes, by the contract of the interface.
        unsafe { copy(address, from as usize, size) };
        // Before whatever the caller stores next.
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// Copies from the mapping.
    pub fn read(&self, address: usize, to: *mut c_void, size: usize) -> Outcome {
        self.check(address, size)?;
        if size > 0 && to.is_null() {
            return Err(libc::EINVAL);
        }
        fence(Ordering::SeqCst);
        // SAFETY: as in `write`, the other way.
        unsafe { copy(to as usize, address, size) };
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Some((address, _)) = self.mapped {
            let _ = self.unmap(address);
        }
    }
}

/// Copies bytes; a few that are aligned go as words, so that none of them is seen in part.
///
/// # Safety
/// Both ranges are there, and do not overlap.
unsafe fn copy(to: usize, from: usize, size: usize) {
    let aligned = |bytes: usize| (to | from | size).is_multiple_of(bytes);
    // SAFETY: by the caller's word; alignment is checked.
    unsafe {
        match size {
            ..=WORDWISE_MAX if aligned(8) => words::<u64>(to, from, size / 8),
            ..=WORDWISE_MAX if aligned(4) => words::<u32>(to, from, size / 4),
            ..=WORDWISE_MAX if aligned(2) => words::<u16>(to, from, size / 2),
            _ => std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, size),
        }
    }
}

/// # Safety
/// Both lead to so many aligned words.
unsafe fn words<T: Copy>(to: usize, from: usize, count: usize) {
    for index in 0..count {
        // SAFETY: by the caller's word.
        unsafe {
            let word = (from as *const T).add(index).read_volatile();
            (to as *mut T).add(index).write_volatile(word);
        }
    }
}
