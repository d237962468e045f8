//! NVML: `libnvidia-ml.so.1`, answered from the machine's description.
//!
//! It never starts the machine: a monitor may ask while nothing runs, and what it asks for is in
//! the description. What changes as work runs (power, temperature, memory in use by other
//! processes) is not modelled: such calls say "not supported", and memory reads as free.

mod device;
mod links;
mod system;

use hwsim_machine::description::{Description, Gpu};
use nvml_wrapper_sys::bindings as sys;
use std::ffi::{CStr, c_char, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE;
use sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT;
use sys::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED as UNINITIALIZED;
use sys::nvmlReturn_enum_NVML_ERROR_UNKNOWN as UNKNOWN;
use sys::nvmlReturn_enum_NVML_SUCCESS as SUCCESS;
use sys::{nvmlDevice_t, nvmlReturn_t};

/// The NVML functions that are answered, module by module.
pub const IMPLEMENTED: [&[&str]; 3] = [system::NAMES, device::NAMES, links::NAMES];

/// Result of a function: nothing, or NVML's error code.
type Answer = Result<(), nvmlReturn_t>;

/// Exports functions under their C names, and lists those names.
macro_rules! export {
    ($(
        $(#[$attribute:meta])*
        fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block
    )*) => {
        /// The functions of this module.
        pub(super) const NAMES: &[&str] = &[$(stringify!($name)),*];
        $(
            $(#[$attribute])*
            #[unsafe(no_mangle)]
            pub extern "C" fn $name($($argument: $type),*) -> nvmlReturn_t {
                answer(|| $body)
            }
        )*
    };
}
use export;

/// Runs a body; a panic becomes a code, for it must not unwind into C.
fn answer(body: impl FnOnce() -> Answer) -> nvmlReturn_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => UNKNOWN,
    }
}

/// Where a C caller wants a value: a valid, writable place, or null.
///
/// Nothing here makes one, so each comes from a caller who is bound by NVML's interface; that is
/// what makes its safe methods sound.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    fn check(&self) -> Answer {
        if self.0.is_null() || !self.0.is_aligned() { Err(INVALID_ARGUMENT) } else { Ok(()) }
    }

    /// Stores a value. Null is the caller's error.
    fn write(&self, value: T) -> Answer {
        self.check()?;
        // SAFETY: not null, aligned, and writable by the interface's contract (see the type).
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// The value that the caller put there, where the interface has it do so.
    fn read(&self) -> Result<T, nvmlReturn_t> {
        self.check()?;
        // SAFETY: not null and aligned; the interface has the caller fill it in (see the type), and
        // the types used here are plain C data.
        Ok(unsafe { self.0.read() })
    }

    /// The same for place number `index` of an array of `length` places.
    fn at(&self, index: usize, length: usize) -> Result<Self, nvmlReturn_t> {
        self.check()?;
        if index >= length {
            return Err(INSUFFICIENT_SIZE);
        }
        // SAFETY: the caller passed an array of `length` places, and the index is below that.
        Ok(Self(unsafe { self.0.add(index) }))
    }
}

impl Out<c_char> {
    /// Stores a text with its final NUL, if `length` bytes hold it.
    fn write_text(&self, length: c_uint, text: &str) -> Answer {
        self.check()?;
        let length = length as usize;
        if text.len() >= length {
            return Err(INSUFFICIENT_SIZE);
        }
        for (index, byte) in text.bytes().chain([0]).enumerate() {
            self.at(index, length)?.write(byte as c_char)?;
        }
        Ok(())
    }
}

/// A C string that a caller passes, or null. As with [`Out`], only callers make one.
#[repr(transparent)]
pub struct TextIn(*const c_char);

impl TextIn {
    fn get(&self) -> Result<&str, nvmlReturn_t> {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null; a NUL-terminated string by the interface's contract (see the type).
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map_err(|_| INVALID_ARGUMENT)
    }
}

/// The library's state: initialised as often as shut down, and one description meanwhile.
struct State {
    users: u32,
    machine: Option<Arc<Description>>,
}

static STATE: Mutex<State> = Mutex::new(State { users: 0, machine: None });

fn state() -> std::sync::MutexGuard<'static, State> {
    // A panic under the lock leaves a count and a pointer, both whole.
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The machine, if the library is initialised.
fn machine() -> Result<Arc<Description>, nvmlReturn_t> {
    state().machine.clone().ok_or(UNINITIALIZED)
}

/// A handle is the ordinal plus one, never an address: any value can be checked.
fn handle(ordinal: usize) -> nvmlDevice_t {
    std::ptr::without_provenance_mut(ordinal + 1)
}

/// Machine and ordinal of a handle.
fn device(handle: nvmlDevice_t) -> Result<(Arc<Description>, usize), nvmlReturn_t> {
    let machine = machine()?;
    match handle.addr().checked_sub(1) {
        Some(ordinal) if ordinal < machine.gpus.len() => Ok((machine, ordinal)),
        _ => Err(INVALID_ARGUMENT),
    }
}

/// Gives `read`'s view of a GPU to the caller.
fn fill<T: Copy>(handle: nvmlDevice_t, to: &Out<T>, read: impl FnOnce(&Gpu) -> T) -> Answer {
    let (machine, ordinal) = device(handle)?;
    to.write(read(&machine.gpus[ordinal]))
}
