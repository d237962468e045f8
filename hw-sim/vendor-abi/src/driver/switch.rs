//! The function by which a program turns faults of its own devices on and off while it runs.

use hwsim_machine::fault::switch_faults;
use std::ffi::{CStr, c_char};

/// Switches on these faults of the process's GPUs and adapters, a list as `HWSIM_FAULTS` has it,
/// instead of those before; an empty list switches them off. 0: done. 1: not, and `why` has the
/// reason, with a zero at its end, as far as its `bytes` reach. No function of CUDA's: a program
/// finds it by its name.
#[unsafe(no_mangle)]
extern "C" fn hwsim_switch_faults(list: *const c_char, why: *mut c_char, bytes: usize) -> i32 {
    let text = if list.is_null() {
        Err("expected a list of faults, found a null pointer".to_owned())
    } else {
        // SAFETY: the caller's word that it is text with a zero at its end, which nobody changes.
        let text = unsafe { CStr::from_ptr(list) }.to_str();
        text.map_err(|_| "expected a list of faults in UTF-8".to_owned())
    };
    let Err(reason) = text.and_then(switch_faults) else { return 0 };
    if !why.is_null() && bytes > 0 {
        let length = reason.len().min(bytes - 1);
        // SAFETY: the caller's word that `bytes` can be written there; the text and a zero are no
        // more than that, and no other object of ours.
        unsafe {
            std::ptr::copy_nonoverlapping(reason.as_ptr().cast(), why, length);
            why.add(length).write(0);
        }
    }
    1
}
