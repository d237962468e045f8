//! The system calls behind virtual memory: reservations, giving pages back, shared files.

use crate::error::{Error, Result};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;

/// Pages of the host.
pub(crate) const PAGE: u64 = 4096;
/// What the host's transparent huge pages want.
pub(crate) const HUGE_PAGE: u64 = 2 << 20;

/// A readable and writable anonymous reservation; nothing is used before it is touched.
pub(crate) fn reserve(bytes: u64) -> Result<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no other.
    let address = unsafe {
        libc::mmap(null_mut(), bytes as usize, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    if address == libc::MAP_FAILED {
        return Err(no_room(bytes));
    }
    // SAFETY: the range was mapped just now; both are hints whose failure changes nothing.
    unsafe {
        libc::madvise(address, bytes as usize, libc::MADV_HUGEPAGE);
        libc::madvise(address, bytes as usize, libc::MADV_DONTDUMP);
    }
    Ok(address as u64)
}

/// Why address space was refused, with the limit that a user can raise.
fn no_room(bytes: u64) -> Error {
    let cause = std::io::Error::last_os_error();
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives the call.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) } == 0;
    let advice = match limit.rlim_cur {
        soft if known && soft != libc::RLIM_INFINITY => format!(
            "; the limit of this process is {} MiB: raise it (`ulimit -v`). A virtual GPU reserves \
             twice the size of its memory, and uses only touched pages",
            soft >> 20
        ),
        _ => String::new(),
    };
    let what = format!("reserving {} MiB of address space", bytes >> 20);
    Error::System { what, cause: format!("{cause}{advice}") }
}

/// Gives the pages of a private anonymous range back, when the host needs them: a range that is
/// used again before finds its pages, which saves faults and zeroing. It reads as it was, or as
/// zero.
pub(crate) fn give_back(address: u64, bytes: u64) {
    let (start, length) = (address as *mut libc::c_void, bytes as usize);
    // SAFETY: callers pass ranges of an arena in which no allocation lives.
    let later = unsafe { libc::madvise(start, length, libc::MADV_FREE) };
    if later != 0 {
        // SAFETY: as above. Kernels before 4.5 and some sandboxes know this alone.
        unsafe { libc::madvise(start, length, libc::MADV_DONTNEED) };
    }
}

/// Unmaps a range of [`reserve`] or [`map_shared`].
pub(crate) fn unmap(address: u64, bytes: u64) {
    // SAFETY: callers own the mapping and hold the memory's gate, so that no kernel or copy is
    // inside it; the allocation table no longer names it.
    unsafe { libc::munmap(address as *mut libc::c_void, bytes as usize) };
}

/// Replaces a range by fresh private zero pages.
pub(crate) fn replace_private(address: u64, bytes: u64) -> Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the range belongs to an arena of ours, and is replaced in one step.
    let mapped = unsafe {
        libc::mmap(
            address as *mut libc::c_void,
            bytes as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        )
    };
    if mapped == libc::MAP_FAILED {
        return Err(Error::system("mapping private pages"));
    }
    Ok(())
}

/// A memory file of `bytes`: it has no name in any file system, and ends with its last user.
/// `name` is for who looks into `/proc`.
pub(crate) fn memory_file(name: &CStr, bytes: u64) -> Result<File> {
    // SAFETY: the name is NUL-terminated.
    let fd = unsafe {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        libc::memfd_create(name.as_ptr(), flags)
    };
    if fd < 0 {
        return Err(Error::system("making a memory file"));
    }
    // SAFETY: `fd` was opened just now and has no other owner.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len(bytes).map_err(|cause| Error::System {
        what: format!("growing a memory file to {bytes} bytes"),
        cause: cause.to_string(),
    })?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(SIZE_SEALS | SealFlag::F_SEAL_SEAL)).map_err(|errno| {
        Error::System { what: "sealing a memory file".into(), cause: errno.to_string() }
    })?;
    Ok(file)
}

/// What keeps a memory file's size: whoever maps it would end by SIGBUS if it shrank.
const SIZE_SEALS: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW);

/// Refuses a file of another process whose size that process could still change.
pub(crate) fn check_sealed(file: &File) -> Result<()> {
    let seals = fcntl(file, FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_truncate);
    match seals.is_ok_and(|seals| seals.contains(SIZE_SEALS)) {
        true => Ok(()),
        false => Err(Error::InvalidValue("the exporter's memory is not a memory file".into())),
    }
}

/// Maps a file, over `at` (which must be ours to replace) or wherever there is room.
pub(crate) fn map_shared(file: &File, bytes: u64, at: Option<u64>) -> Result<u64> {
    let flags = libc::MAP_SHARED | if at.is_some() { libc::MAP_FIXED } else { 0 };
    // SAFETY: without `at` the kernel finds free space; with it the caller owns the range.
    let address = unsafe {
        libc::mmap(
            at.unwrap_or(0) as *mut libc::c_void,
            bytes as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            file.as_raw_fd(),
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(Error::system(format!("mapping {bytes} bytes of shared device memory")));
    }
    Ok(address as u64)
}
