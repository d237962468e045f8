//! The boundary: how a C call becomes a Rust one and back.

use super::code::{self, Code, INVALID_VALUE, NOT_PERMITTED, NOT_SUPPORTED, Outcome, UNKNOWN};
use super::{doom, gate, refusal, report, spent, trace};
use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of a driver call. Nothing unwinds into C.
pub(crate) fn call(name: &'static str, body: impl FnOnce() -> Outcome) -> Code {
    let begin = spent::begin();
    doom::count();
    refusal::enter(name);
    let guarded = || {
        if IN_HOST_FUNCTION.get() && gate::uses_context(name) {
            return code::refuse(NOT_PERMITTED, "a call of the driver in a host function");
        }
        if gate::is_on() { gate::guarded(name, body) } else { body() }
    };
    let outcome = catch_unwind(AssertUnwindSafe(guarded));
    let (code, words) = match &outcome {
        Ok(Ok(())) => (code::SUCCESS, ""),
        Ok(Err(failure)) => (failure.code, failure.words.as_str()),
        Err(_) => (UNKNOWN, "a defect of the simulator"),
    };
    if code == NOT_SUPPORTED && !words.is_empty() {
        refusal::say_unsupported(words);
    }
    if trace::is_on() {
        trace::line(name, code, words);
    }
    if report::is_on() {
        report::call(name, code, words);
    }
    spent::end(begin);
    code
}

thread_local! {
    /// This thread is in a host function, which may not call the driver.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
    /// This call came through a `_ptsz` or `_ptds` symbol: stream 0 is the thread's own.
    static PER_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Runs a function of the program's that a stream calls.
pub(crate) fn host_function(body: impl FnOnce()) {
    let before = IN_HOST_FUNCTION.replace(true);
    body();
    IN_HOST_FUNCTION.set(before);
}

/// Does stream 0 mean the thread's own stream in this call?
pub(crate) fn null_is_per_thread() -> bool {
    PER_THREAD.get()
}

/// Runs a call with stream 0 meaning the thread's own stream.
pub(crate) fn per_thread(body: impl FnOnce() -> Code) -> Code {
    let before = PER_THREAD.replace(true);
    let code = body();
    PER_THREAD.set(before);
    code
}

/// Defines driver calls: the exported symbols, and `CALLS`, the list of them.
///
/// `#[per_thread(twin)]` also defines the twin for per-thread default streams.
macro_rules! driver_calls {
    (@call $name:ident ($($arg:ident: $ty:ty),* $(,)?) $body:block) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the name is the vendor's")]
        #[allow(clippy::too_many_arguments, reason = "the list is the vendor's")]
        extern "C" fn $name($($arg: $ty),*) -> $crate::driver::code::Code {
            $crate::driver::call::call(stringify!($name), || $body)
        }
    };
    (@twin $name:ident $twin:ident ($($arg:ident: $ty:ty),* $(,)?)) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the name is the vendor's")]
        #[allow(clippy::too_many_arguments, reason = "the list is the vendor's")]
        extern "C" fn $twin($($arg: $ty),*) -> $crate::driver::code::Code {
            $crate::driver::call::per_thread(|| $name($($arg),*))
        }
    };
    ($($(#[per_thread($twin:ident)])? fn $name:ident $args:tt $body:block)*) => {
        $(
            $crate::driver::call::driver_calls! { @call $name $args $body }
            $($crate::driver::call::driver_calls! { @twin $name $twin $args })?
        )*
        /// The calls of this module: name and address.
        pub(crate) const CALLS: &[(&str, *const ())] = &[
            $((stringify!($name), $name as *const ()),
              $((stringify!($twin), $twin as *const ()),)?)*
        ];
    };
}
pub(crate) use driver_calls;

/// A pointer argument that the call writes through. As with the real driver, null is refused or
/// ignored, and anything else is the caller's word that it can be written.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes; null is an invalid argument.
    pub fn set(self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(INVALID_VALUE.into());
        }
        self.set_if(value);
        Ok(())
    }

    /// Writes unless null.
    pub fn set_if(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the C caller passes a pointer to room for a `T`, by the API's contract;
            // unaligned writes take nothing for granted beyond that.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// What the caller left there; null is an invalid argument.
    pub fn get(self) -> Outcome<T>
    where
        T: Copy,
    {
        In(self.0.cast_const()).get()
    }

    /// Refuses null before anything is done.
    pub fn require(self) -> Outcome<Self> {
        if self.0.is_null() { Err(INVALID_VALUE.into()) } else { Ok(self) }
    }

    /// The element at an index of a C array.
    pub fn at(self, index: usize) -> Self {
        Self(self.0.wrapping_add(index))
    }

    /// The address.
    pub fn address(self) -> u64 {
        self.0 as u64
    }

    /// The room at an address that the caller passed as another type.
    pub fn from_address(address: u64) -> Self {
        Self(address as *mut T)
    }
}

/// A pointer argument that the call reads through; see [`Out`].
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// Reads; null is an invalid argument.
    pub fn get(self) -> Outcome<T> {
        if self.0.is_null() {
            return Err(INVALID_VALUE.into());
        }
        // SAFETY: the C caller passes a pointer to a `T`, by the API's contract.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// The element at an index of a C array.
    pub fn at(self, index: usize) -> Self {
        Self(self.0.wrapping_add(index))
    }

    /// What is at an address that the caller passed as another type.
    pub fn from_address(address: u64) -> Self {
        Self(address as *const T)
    }

    /// Is it null?
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The address.
    pub fn address(self) -> u64 {
        self.0 as u64
    }
}

/// A NUL-terminated string argument.
pub(crate) fn string(pointer: In<c_char>) -> Outcome<&'static str> {
    if pointer.is_null() {
        return Err(INVALID_VALUE.into());
    }
    // SAFETY: the C caller passes a NUL-terminated string that lives through the call, and no
    // callee of ours keeps it longer.
    let text = unsafe { CStr::from_ptr(pointer.0) };
    text.to_str().map_err(|_| INVALID_VALUE.into())
}

/// Copies text into a C buffer, cut to fit, with its NUL.
pub(crate) fn put_text(buffer: Out<c_char>, size: usize, text: &str) -> Outcome {
    if size == 0 {
        return Err(INVALID_VALUE.into());
    }
    buffer.require()?;
    let length = text.len().min(size - 1);
    for (index, byte) in text.as_bytes()[..length].iter().enumerate() {
        buffer.at(index).set(*byte as c_char)?;
    }
    buffer.at(length).set(0)
}
