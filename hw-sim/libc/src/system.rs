//! Calls as the kernel does them. All set `errno` as the C library does.

use std::ffi::{c_char, c_int, c_uint};

/// An answer of the kernel.
pub type Answer = isize;

/// Fails with this `errno`.
pub fn fail(code: c_int) -> Answer {
    // SAFETY: the place is the calling thread's own.
    unsafe { *libc::__errno_location() = code };
    -1
}

/// `readv`, or with flags what `recvmsg` does without an address.
///
/// # Safety
/// As `readv`: the pieces are writable.
pub unsafe fn receive(file: c_int, pieces: &[libc::iovec], flags: c_int) -> Answer {
    // SAFETY: by the caller's word; a message of zeros names no address.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = pieces.as_ptr().cast_mut();
        message.msg_iovlen = pieces.len();
        libc::syscall(libc::SYS_recvmsg, file, &mut message, flags) as Answer
    }
}

/// `writev`, or with flags what `sendmsg` does without an address.
///
/// # Safety
/// As `writev`: the pieces are readable.
pub unsafe fn send(file: c_int, pieces: &[libc::iovec], flags: c_int) -> Answer {
    // SAFETY: as in `receive`.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = pieces.as_ptr().cast_mut();
        message.msg_iovlen = pieces.len();
        libc::syscall(libc::SYS_sendmsg, file, &message, flags) as Answer
    }
}

/// `openat`
///
/// # Safety
/// `name` is a C string.
pub unsafe fn open(folder: c_int, name: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: by the caller's word.
    unsafe { libc::syscall(libc::SYS_openat, folder, name, flags, mode) as c_int }
}

/// Is it a stream socket of the internet?
pub fn is_tcp(file: c_int) -> bool {
    let option = |option: c_int| {
        let (mut value, mut bytes): (c_int, libc::socklen_t) = (0, 4);
        // SAFETY: both places outlive the call and have the size that it is told.
        let failed = unsafe {
            libc::getsockopt(
                file,
                libc::SOL_SOCKET,
                option,
                (&raw mut value).cast(),
                &raw mut bytes,
            )
        };
        (failed == 0).then_some(value)
    };
    let is_internet = |domain| domain == libc::AF_INET || domain == libc::AF_INET6;
    option(libc::SO_DOMAIN).is_some_and(is_internet)
        && option(libc::SO_TYPE) == Some(libc::SOCK_STREAM)
}

/// Is it a file on a disk? Not what a process was started with.
pub fn is_on_disk(file: c_int) -> bool {
    if file <= libc::STDERR_FILENO {
        return false;
    }
    // SAFETY: a `stat` of zeros is one, and the call fills it.
    unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        libc::fstat(file, &mut found) == 0 && found.st_mode & libc::S_IFMT == libc::S_IFREG
    }
}

/// Does a call on it with these flags return at once?
pub fn returns_at_once(file: c_int, flags: c_int) -> bool {
    // SAFETY: the call takes integers only.
    let modes = unsafe { libc::fcntl(file, libc::F_GETFL) };
    flags & libc::MSG_DONTWAIT != 0 || modes & libc::O_NONBLOCK != 0
}
