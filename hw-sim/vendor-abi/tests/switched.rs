//! Faults that a program turns on and off while it runs. If this fails, a fault does not strike in
//! the block that asked for it, or goes on striking behind it, and a user's test says nothing.

mod common;

use common::{context, on_machine, pinned};
use cudarc::driver::sys;
use libloading::Library;
use std::ffi::{CString, c_char};

type Switch = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> i32;

/// Switches on a list: the reason, if it is refused, as far as it fits.
fn switch(list: &str, bytes: usize) -> Option<String> {
    // SAFETY: the driver is loaded already.
    let driver = unsafe { Library::new("libcuda.so.1") }.unwrap();
    // SAFETY: the function has this type.
    let function = unsafe { driver.get::<Switch>(b"hwsim_switch_faults") }.unwrap();
    let (list, mut why) = (CString::new(list).unwrap(), vec![b'?'; bytes]);
    // SAFETY: a text, and a place of so many bytes.
    let code = unsafe { function(list.as_ptr(), why.as_mut_ptr().cast(), bytes) };
    let end = why.iter().position(|byte| *byte == 0);
    (code != 0).then(|| String::from_utf8(why[..end.unwrap()].to_vec()).unwrap())
}

/// An allocation of the GPU that is current.
fn allocated() -> sys::CUresult {
    let mut address = 0;
    // SAFETY: the call writes one address.
    unsafe { sys::cuMemAlloc_v2(&mut address, 64) }
}

#[test]
fn faults_strike_while_they_are_switched_on() {
    on_machine("faults_strike_while_they_are_switched_on", "pcie4", || {
        let refused = sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        let taken = sys::CUresult::CUDA_SUCCESS;
        context(1);
        assert_eq!([allocated(), allocated()], [taken; 2]);
        // Counted from here on, and of this GPU alone.
        assert_eq!(switch("seed=3,gpu1:out-of-memory-at=1", 512), None);
        assert_eq!([allocated(), allocated(), allocated()], [taken, refused, taken]);
        context(0);
        assert_eq!([allocated(), allocated()], [taken; 2]);
        context(1);
        assert_eq!(switch("*:out-of-memory-at=0,gpu1:slow=1", 512), None);
        assert_eq!([allocated(), allocated()], [refused, taken]);
        // What is refused changes nothing.
        let why = switch("gpu1:out-of-memory-at=0,rank0:kill-at=1", 512).unwrap();
        assert!(why.contains("`rank0:kill-at=1`"), "{why}");
        assert_eq!(switch("no list", 9).unwrap(), "expected");
        assert_eq!(allocated(), taken);
        assert_eq!(switch("gpu1:out-of-memory-at=0", 0), None);
        assert_eq!(switch("", 512), None);
        assert_eq!([allocated(), allocated()], [taken; 2]);
        assert!(!pinned(64).is_null());
    });
}
