//! Errors: numbers, names, texts, and each thread's last one.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char};
use std::sync::LazyLock;

/// `cudaError_t`. The driver's results have the same numbers.
pub(crate) type Code = u32;
/// Result of the implementation of a call.
pub(crate) type Outcome<T = ()> = Result<T, Code>;

pub(crate) const INVALID_VALUE: Code = 1;
pub(crate) const INVALID_CONFIGURATION: Code = 9;
pub(crate) const INVALID_PITCH: Code = 12;
pub(crate) const INVALID_SYMBOL: Code = 13;
pub(crate) const INVALID_COPY_DIRECTION: Code = 21;
pub(crate) const INSUFFICIENT_DRIVER: Code = 35;
pub(crate) const MISSING_CONFIGURATION: Code = 52;
pub(crate) const INVALID_DEVICE_FUNCTION: Code = 98;
pub(crate) const NO_DEVICE: Code = 100;
pub(crate) const INVALID_DEVICE: Code = 101;
pub(crate) const SYMBOL_NOT_FOUND: Code = 500;
pub(crate) const NOT_SUPPORTED: Code = 801;
pub(crate) const UNKNOWN: Code = 999;

/// Every code, one a line: number, name, text.
const CODES: &str = include_str!("errors.txt");

/// Names and texts, NUL-terminated and for as long as the process lives, as callers expect.
static TABLE: LazyLock<HashMap<Code, (CString, CString)>> = LazyLock::new(|| {
    let entry = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let number = words.next()?.parse().ok()?;
        Some((number, (CString::new(words.next()?).ok()?, CString::new(words.next()?).ok()?)))
    };
    CODES.lines().filter_map(entry).collect()
});

thread_local! {
    static LAST: Cell<Code> = const { Cell::new(0) };
}

/// Remembers an error of this thread.
pub(crate) fn set_last(code: Code) {
    LAST.set(code);
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is the vendor's")]
extern "C" fn cudaGetLastError() -> Code {
    LAST.replace(0)
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is the vendor's")]
extern "C" fn cudaPeekAtLastError() -> Code {
    LAST.get()
}

const UNRECOGNIZED: &CStr = c"unrecognized error code";

#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is the vendor's")]
extern "C" fn cudaGetErrorName(code: Code) -> *const c_char {
    TABLE.get(&code).map_or(UNRECOGNIZED, |(name, _)| name).as_ptr()
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is the vendor's")]
extern "C" fn cudaGetErrorString(code: Code) -> *const c_char {
    TABLE.get(&code).map_or(UNRECOGNIZED, |(_, text)| text).as_ptr()
}
