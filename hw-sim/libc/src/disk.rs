//! Files: a disk that is full, names that cannot be read.

use crate::system::{self, Answer, fail};
use crate::{FAULTS, least};
use hwsim_machine::fault::ProcessFault;
use std::ffi::{CStr, c_char, c_int};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes written so far. Relaxed: a count that stands for itself.
static WRITTEN: AtomicU64 = AtomicU64::new(0);

static ROOM: LazyLock<Option<u64>> = LazyLock::new(|| {
    least(|fault| match *fault {
        ProcessFault::DiskFullAt(at) => Some(at),
        _ => None,
    })
});

/// Do faults concern what is written to this file?
pub fn concerns(file: c_int) -> bool {
    ROOM.is_some() && system::is_on_disk(file)
}

/// How many of `length` bytes there is room for; an error where there is none at all.
pub fn take_room(length: usize) -> Result<usize, Answer> {
    let Some(most) = *ROOM else { return Ok(length) };
    let left = most.saturating_sub(WRITTEN.fetch_add(length as u64, Ordering::Relaxed));
    match usize::try_from(left).unwrap_or(usize::MAX).min(length) {
        0 if length > 0 => Err(fail(libc::ENOSPC)),
        room => Ok(room),
    }
}

/// May a file not be opened like this?
///
/// # Safety
/// `name` is null or a C string.
pub unsafe fn refuses(name: *const c_char, flags: c_int) -> bool {
    if name.is_null() || flags & libc::O_ACCMODE == libc::O_WRONLY {
        return false;
    }
    FAULTS.faults().iter().any(|fault| match fault {
        // SAFETY: by the caller's word.
        ProcessFault::Unreadable(beginning) => unsafe {
            CStr::from_ptr(name).to_bytes().starts_with(beginning.as_bytes())
        },
        _ => false,
    })
}
