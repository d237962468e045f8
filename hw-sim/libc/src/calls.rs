//! The C library's functions, under its names.

use crate::{clock, disk, system, wire};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// The pieces of a call, or none where the number is no number of pieces.
///
/// # Safety
/// `pieces` leads to so many of them.
unsafe fn slice<'a>(pieces: *const libc::iovec, count: c_int) -> &'a [libc::iovec] {
    match usize::try_from(count) {
        // SAFETY: by the caller's word.
        Ok(count @ 1..) if !pieces.is_null() => unsafe {
            std::slice::from_raw_parts(pieces, count)
        },
        _ => &[],
    }
}

fn piece(bytes: *const c_void, length: usize) -> [libc::iovec; 1] {
    [libc::iovec { iov_base: bytes.cast_mut(), iov_len: length }]
}

/// `read`
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(file: c_int, bytes: *mut c_void, length: usize) -> isize {
    // SAFETY: by the caller's word.
    unsafe {
        match wire::concerns(file) {
            true => wire::receive(file, &piece(bytes, length), 0),
            false => libc::syscall(libc::SYS_read, file, bytes, length) as isize,
        }
    }
}

/// `readv`
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(file: c_int, pieces: *const libc::iovec, count: c_int) -> isize {
    // SAFETY: by the caller's word.
    unsafe {
        match wire::concerns(file) {
            true => wire::receive(file, slice(pieces, count), 0),
            false => libc::syscall(libc::SYS_readv, file, pieces, count) as isize,
        }
    }
}

/// `recv`
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(
    file: c_int,
    bytes: *mut c_void,
    length: usize,
    flags: c_int,
) -> isize {
    // SAFETY: by the caller's word.
    unsafe {
        match wire::concerns(file) {
            true => wire::receive(file, &piece(bytes, length), flags),
            false => {
                let nobody = std::ptr::null_mut::<c_void>();
                libc::syscall(libc::SYS_recvfrom, file, bytes, length, flags, nobody, nobody)
                    as isize
            }
        }
    }
}

/// `write`
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(file: c_int, bytes: *const c_void, length: usize) -> isize {
    // SAFETY: by the caller's word.
    unsafe {
        if wire::concerns(file) {
            return wire::send(file, &piece(bytes, length), 0);
        }
        match room(file, length) {
            Ok(length) => libc::syscall(libc::SYS_write, file, bytes, length) as isize,
            Err(answer) => answer,
        }
    }
}

/// How much of what is written to a file there is room for.
fn room(file: c_int, length: usize) -> Result<usize, isize> {
    if disk::concerns(file) { disk::take_room(length) } else { Ok(length) }
}

/// `pwrite64`
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite64(
    file: c_int,
    bytes: *const c_void,
    length: usize,
    offset: i64,
) -> isize {
    match room(file, length) {
        // SAFETY: by the caller's word.
        Ok(length) => unsafe {
            libc::syscall(libc::SYS_pwrite64, file, bytes, length, offset) as isize
        },
        Err(answer) => answer,
    }
}

/// `writev`
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(file: c_int, pieces: *const libc::iovec, count: c_int) -> isize {
    // SAFETY: by the caller's word.
    unsafe {
        let all = slice(pieces, count);
        if wire::concerns(file) {
            return wire::send(file, all, 0);
        }
        let length = all.iter().map(|piece| piece.iov_len).sum();
        match (room(file, length), all.iter().find(|piece| piece.iov_len > 0)) {
            (Err(answer), _) => answer,
            // A part of the first piece: whoever writes has to go on from there.
            (Ok(room), Some(first)) if room < length => write_some(file, first, room),
            _ => libc::syscall(libc::SYS_writev, file, pieces, count) as isize,
        }
    }
}

/// Writes as much of a piece as there is room for.
///
/// # Safety
/// The piece is readable.
unsafe fn write_some(file: c_int, piece: &libc::iovec, room: usize) -> isize {
    let length = piece.iov_len.min(room);
    // SAFETY: by the caller's word.
    unsafe { libc::syscall(libc::SYS_write, file, piece.iov_base, length) as isize }
}

/// `send`
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(
    file: c_int,
    bytes: *const c_void,
    length: usize,
    flags: c_int,
) -> isize {
    // SAFETY: by the caller's word.
    unsafe {
        match wire::concerns(file) {
            true => wire::send(file, &piece(bytes, length), flags),
            false => {
                let nobody = std::ptr::null::<c_void>();
                libc::syscall(libc::SYS_sendto, file, bytes, length, flags, nobody, 0) as isize
            }
        }
    }
}

/// `sendmsg`
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(file: c_int, message: *const libc::msghdr, flags: c_int) -> isize {
    // SAFETY: by the caller's word.
    unsafe {
        match wire::concerns(file) && is_plain(message) {
            true => {
                wire::send(file, slice((*message).msg_iov, (*message).msg_iovlen as c_int), flags)
            }
            false => libc::syscall(libc::SYS_sendmsg, file, message, flags) as isize,
        }
    }
}

/// `recvmsg`
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(file: c_int, message: *mut libc::msghdr, flags: c_int) -> isize {
    // SAFETY: by the caller's word.
    unsafe {
        if !wire::concerns(file) || !is_plain(message) {
            return libc::syscall(libc::SYS_recvmsg, file, message, flags) as isize;
        }
        let message = &mut *message;
        (message.msg_flags, message.msg_namelen) = (0, 0);
        wire::receive(file, slice(message.msg_iov, message.msg_iovlen as c_int), flags)
    }
}

/// Are there bytes and nothing else in a message?
///
/// # Safety
/// `message` is null or leads to one.
unsafe fn is_plain(message: *const libc::msghdr) -> bool {
    // SAFETY: by the caller's word.
    !message.is_null() && unsafe { (*message).msg_controllen == 0 }
}

/// `openat`, and what is made of it below. The mode is there if the flags ask for it; where the
/// caller passes none, nobody reads it.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat(
    folder: c_int,
    name: *const c_char,
    flags: c_int,
    mode: c_uint,
) -> c_int {
    // SAFETY: by the caller's word.
    unsafe {
        match disk::refuses(name, flags) {
            true => system::fail(libc::EACCES) as c_int,
            false => system::open(folder, name, flags, mode),
        }
    }
}

/// `openat64`
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat64(
    folder: c_int,
    name: *const c_char,
    flags: c_int,
    mode: c_uint,
) -> c_int {
    // SAFETY: by the caller's word.
    unsafe { openat(folder, name, flags, mode) }
}

/// `open`
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(name: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: by the caller's word.
    unsafe { openat(libc::AT_FDCWD, name, flags, mode) }
}

/// `open64`
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(name: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: by the caller's word.
    unsafe { openat(libc::AT_FDCWD, name, flags, mode) }
}

/// The C library's own `clock_gettime`: it asks no kernel for the clocks that are looked at all
/// the time.
type GetTime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> c_int;

/// `clock_gettime`
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(which: libc::clockid_t, time: *mut libc::timespec) -> c_int {
    use std::sync::atomic::{AtomicPtr, Ordering};
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    // SAFETY: the symbol that comes next is the C library's, of this type; by the caller's word,
    // `time` is writable, and was filled where the call says so.
    unsafe {
        let mut next = NEXT.load(Ordering::Relaxed);
        if next.is_null() {
            next = libc::dlsym(libc::RTLD_NEXT, c"clock_gettime".as_ptr());
            // Relaxed: whoever finds nothing yet looks the same symbol up.
            NEXT.store(next, Ordering::Relaxed);
        }
        let answer = match next.is_null() {
            true => libc::syscall(libc::SYS_clock_gettime, which, time) as c_int,
            false => std::mem::transmute::<*mut c_void, GetTime>(next)(which, time),
        };
        if answer == 0 && which == libc::CLOCK_REALTIME {
            let second = 1_000_000_000;
            let right = i128::from((*time).tv_sec) * second + i128::from((*time).tv_nsec);
            let shown = clock::shown(right);
            (*time).tv_sec = shown.div_euclid(second) as libc::time_t;
            (*time).tv_nsec = shown.rem_euclid(second) as libc::c_long;
        }
        answer
    }
}
