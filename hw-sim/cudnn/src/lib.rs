//! A stand-in for `libcudnn.so.9`. cuDNN's kernels are machine code, which virtual GPUs do not run.
//! Yet some programs make a handle before anything else and then compute without it: XLA refuses to
//! compile a sum where there is none.
//!
//! So handles can be made here, versions asked for, and nothing else. Functions that compute are
//! missing: a program that needs one finds that out when it looks it up.

use std::ffi::{CStr, c_char, c_int};

/// The version that is reported: programs refuse an older one than that of their build.
const VERSION: [c_int; 3] = [9, 20, 0];
/// The runtime that a cuDNN of this version belongs to.
const RUNTIME: usize = 13000;

const SUCCESS: c_int = 0;
const BAD_PARAM: c_int = 2000;

/// `cudnnCreate`: a handle, which is as good as any other.
///
/// # Safety
/// `handle` is null, or leads to room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnCreate(handle: *mut usize) -> c_int {
    // SAFETY: by the caller's word.
    unsafe { set(handle, 1) }
}

/// `cudnnDestroy`
#[unsafe(no_mangle)]
pub extern "C" fn cudnnDestroy(_handle: usize) -> c_int {
    SUCCESS
}

/// `cudnnSetStream`: nothing runs on it.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetStream(_handle: usize, _stream: usize) -> c_int {
    SUCCESS
}

/// `cudnnGetVersion`
#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetVersion() -> usize {
    let [major, minor, patch] = VERSION.map(|number| number as usize);
    major * 10000 + minor * 100 + patch
}

/// `cudnnGetCudartVersion`
#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetCudartVersion() -> usize {
    RUNTIME
}

/// `cudnnGetProperty`: major, minor, or patch level.
///
/// # Safety
/// `value` is null, or leads to room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetProperty(property: c_int, value: *mut c_int) -> c_int {
    let number = usize::try_from(property).ok().and_then(|place| VERSION.get(place));
    match number {
        // SAFETY: by the caller's word.
        Some(&number) => unsafe { set(value, number) },
        None => BAD_PARAM,
    }
}

/// `cudnnGetErrorString`
#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetErrorString(status: c_int) -> *const c_char {
    let text: &'static CStr = match status {
        SUCCESS => c"CUDNN_STATUS_SUCCESS",
        BAD_PARAM => c"CUDNN_STATUS_BAD_PARAM",
        _ => c"a status that hwsim's stand-in for cuDNN does not return",
    };
    text.as_ptr()
}

/// Writes, unless there is nowhere to.
///
/// # Safety
/// `room` is null, or leads to room for a value.
unsafe fn set<T>(room: *mut T, value: T) -> c_int {
    if room.is_null() {
        return BAD_PARAM;
    }
    // SAFETY: by the caller's word.
    unsafe { room.write_unaligned(value) };
    SUCCESS
}
