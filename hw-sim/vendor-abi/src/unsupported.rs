//! Symbols that exist and do nothing: what the real libraries export and the virtual ones do not
//! answer. A program that looks a symbol up finds it; one that calls it gets "not supported", and
//! its user a line on stderr that names the function, once.

pub mod driver;
pub mod later;
pub mod nvml;

use crate::driver::{is_reported, report_call};
use std::sync::atomic::{AtomicBool, Ordering};

/// `CUDA_ERROR_NOT_SUPPORTED`, by which the report names what is missing.
const NOT_SUPPORTED: u32 = 801;

/// A stub as [`driver::STUBS`] and [`nvml::STUBS`] list it: the symbol's name and its address.
///
/// The function takes nothing, whatever its namesake takes: in the C calling conventions of Linux
/// the caller makes and clears the room for arguments, so a callee may leave them alone.
pub type Stub = (&'static str, extern "C" fn() -> i32);

/// Defines one stub for each name, and `STUBS`, the list of them.
macro_rules! stubs {
    (hidden $code:ident: $($name:ident)*) => {
        /// The stubs of this module, sorted by name.
        pub const STUBS: &[super::Stub] = &[$((stringify!($name), $name)),*];
        $(
            #[allow(non_snake_case, reason = "the name is the vendor's")]
            extern "C" fn $name() -> i32 {
                static NAMED: std::sync::atomic::AtomicBool =
                    std::sync::atomic::AtomicBool::new(false);
                super::name_once(stringify!($name), &NAMED);
                $code
            }
        )*
    };
    ($code:ident: $($name:ident)*) => {
        /// The stubs of this module, sorted by name.
        pub const STUBS: &[super::Stub] = &[$((stringify!($name), $name)),*];
        $(
            #[allow(non_snake_case, reason = "the name is the vendor's")]
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> i32 {
                static NAMED: std::sync::atomic::AtomicBool =
                    std::sync::atomic::AtomicBool::new(false);
                super::name_once(stringify!($name), &NAMED);
                $code
            }
        )*
    };
}
use stubs;

/// Says on stderr, the first time, which function is missing.
fn name_once(name: &'static str, named: &AtomicBool) {
    if is_reported() {
        report_call(name, NOT_SUPPORTED, "not supported by virtual hardware");
    }
    // Relaxed: the flag orders nothing but itself.
    if !named.swap(true, Ordering::Relaxed) {
        // A closed stderr is no reason to fail where the real library would not.
        use std::io::Write;
        let line = format!(
            "hwsim: {name} is not supported by virtual hardware; hw-sim/README.md lists what is\n"
        );
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}
