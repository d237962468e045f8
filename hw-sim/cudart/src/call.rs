//! The boundary: how a C call becomes a Rust one and back.

use crate::error::{Code, INVALID_VALUE, Outcome, UNKNOWN, set_last};
use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of a call, and remembers its error. Nothing unwinds into C.
pub(crate) fn call(body: impl FnOnce() -> Outcome) -> Code {
    let code = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(code)) => code,
        Err(_) => UNKNOWN,
    };
    set_last(code);
    code
}

/// As [`call`], with a context that is current to the thread.
pub(crate) fn device_call(body: impl FnOnce() -> Outcome) -> Code {
    call(|| {
        crate::state::ready()?;
        body()
    })
}

thread_local! {
    /// This call came through a `_ptsz` or `_ptds` symbol: stream 0 is the thread's own.
    static PER_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call with stream 0 meaning the thread's own stream.
pub(crate) fn per_thread(body: impl FnOnce() -> Code) -> Code {
    let before = PER_THREAD.replace(true);
    let code = body();
    PER_THREAD.set(before);
    code
}

/// Does stream 0 mean the thread's own stream in this call?
pub(crate) fn is_per_thread() -> bool {
    PER_THREAD.get()
}

/// `cudaStream_t`, which is the driver's.
pub(crate) type Stream = u64;
/// `CU_STREAM_PER_THREAD`
const OWN_STREAM: Stream = 2;

/// The stream that a handle means in this call.
pub(crate) fn stream(handle: Stream) -> Stream {
    if handle == 0 && is_per_thread() { OWN_STREAM } else { handle }
}

/// Defines calls of the runtime: the exported symbols. `with` names the function that runs the
/// bodies; `#[twin(name)]` also defines the twin for per-thread default streams.
macro_rules! runtime_calls {
    (@call $with:ident $name:ident ($($arg:ident: $ty:ty),* $(,)?) $body:block) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the name is the vendor's")]
        #[allow(clippy::too_many_arguments, reason = "the list is the vendor's")]
        extern "C" fn $name($($arg: $ty),*) -> $crate::error::Code {
            $crate::call::$with(|| $body)
        }
    };
    (@twin $name:ident $twin:ident ($($arg:ident: $ty:ty),* $(,)?)) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the name is the vendor's")]
        #[allow(clippy::too_many_arguments, reason = "the list is the vendor's")]
        extern "C" fn $twin($($arg: $ty),*) -> $crate::error::Code {
            $crate::call::per_thread(|| $name($($arg),*))
        }
    };
    (with $with:ident; $($(#[twin($twin:ident)])? fn $name:ident $args:tt $body:block)*) => {$(
        $crate::call::runtime_calls! { @call $with $name $args $body }
        $($crate::call::runtime_calls! { @twin $name $twin $args })?
    )*};
}
pub(crate) use runtime_calls;

/// A pointer argument that the call writes through. Null is refused or ignored; anything else is
/// the caller's word that it can be written.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// Writes; null is an invalid argument.
    pub fn set(self, value: T) -> Outcome {
        self.require()?.set_if(value);
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

    /// Refuses null before anything is done.
    pub fn require(self) -> Outcome<Self> {
        if self.0.is_null() { Err(INVALID_VALUE) } else { Ok(self) }
    }

    /// What is there; null is an invalid argument.
    pub fn get(self) -> Outcome<T>
    where
        T: Copy,
    {
        In(self.0.cast_const()).get()
    }

    /// The element at an index of a C array.
    pub fn at(self, index: usize) -> Self {
        Self(self.0.wrapping_add(index))
    }

    /// The address, for the driver to write to.
    pub fn address(self) -> u64 {
        self.0 as u64
    }

    /// The room at an address that the caller passed as another type.
    pub fn from_address(address: u64) -> Self {
        Self(address as *mut T)
    }

    /// A variable of ours, for the driver to write to.
    pub fn to(variable: &mut T) -> Self {
        Self(variable)
    }

    /// Nothing, where the driver is to write nothing.
    pub fn null() -> Self {
        Self(std::ptr::null_mut())
    }
}

/// A pointer argument that the call reads through; see [`Out`].
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// Reads; null is an invalid argument.
    pub fn get(self) -> Outcome<T> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the C caller passes a pointer to a `T`, by the API's contract.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// What is at an address that the caller passed as another type.
    pub fn from_address(address: u64) -> Self {
        Self(address as *const T)
    }

    /// A value of ours, for the driver to read.
    pub fn of(value: &T) -> Self {
        Self(value)
    }
}

/// A NUL-terminated string argument.
pub(crate) fn string(pointer: In<c_char>) -> Outcome<&'static CStr> {
    if pointer.0.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the C caller passes a NUL-terminated string that lives through the call, and no
    // callee of ours keeps it longer.
    Ok(unsafe { CStr::from_ptr(pointer.0) })
}
