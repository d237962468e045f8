//! The version of the driver that programs are shown: what it says, which names it has, which PTX
//! it takes.

mod common;

use common::{context, is_inside, run_again};
use cudarc::driver::sys;
use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;

/// Runs a test's body in its own process, with this version.
fn with_driver(test: &str, machine: &str, version: Option<&str>) {
    let variables: Vec<_> = version.map(|version| ("HWSIM_DRIVER", version)).into_iter().collect();
    let output = run_again(test, machine, &variables);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{version:?}:\n{out}\n{err}");
}

fn chosen() -> Option<String> {
    std::env::var("HWSIM_DRIVER").ok()
}

/// The address of a name for a version; null where there is none.
fn find(name: &CStr, version: i32) -> *mut c_void {
    use sys::CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS;
    let (mut pointer, mut status) = (null_mut(), CU_GET_PROC_ADDRESS_SUCCESS);
    // SAFETY: room for both results.
    let code =
        unsafe { sys::cuGetProcAddress_v2(name.as_ptr(), &mut pointer, version, 0, &mut status) };
    assert_eq!(code as u32, if pointer.is_null() { 500 } else { 0 }, "{name:?} {version}");
    assert_eq!(status as u32, u32::from(pointer.is_null()));
    pointer
}

#[test]
fn a_driver_has_the_names_of_its_version() {
    let test = "a_driver_has_the_names_of_its_version";
    if !is_inside(test) {
        for version in [None, Some("12.4"), Some("12.8"), Some("13.0")] {
            with_driver(test, "one-gpu", version);
        }
        return;
    }
    context(0);
    let mut shown = 0;
    ok!(cuDriverGetVersion(&mut shown));
    let expected = match chosen().as_deref() {
        Some("12.8") => 12080,
        Some("13.0") => 13000,
        _ => 12040,
    };
    assert_eq!(shown, expected);
    let newest = 13000;
    for (name, since) in [
        (c"cuMemAlloc", 2000),
        (c"cuStreamGetDevice", 12080),
        (c"cuMemcpyBatchAsync", 12080),
        (c"cuKernelGetLibrary", 12050),
        (c"cuLogsCurrent", 12090),
        (c"cuMemGetMemPool", 13000),
    ] {
        assert_eq!(!find(name, newest).is_null(), since <= shown, "{name:?}");
    }
    // The form of a name follows the version that is asked for, as far as the driver goes.
    assert_ne!(find(c"cuGraphAddNode", 12020), find(c"cuGraphAddNode", 12030));
    assert_ne!(find(c"cuStreamGetCaptureInfo", 11030), find(c"cuStreamGetCaptureInfo", 12040));
    let (old, new) = (find(c"cuEventElapsedTime", 12040), find(c"cuEventElapsedTime", newest));
    assert_eq!(old != new, shown >= 12080, "cuEventElapsedTime");
    let (old, new) = (find(c"cuCtxCreate", 12040), find(c"cuCtxCreate", newest));
    assert_eq!(old != new, shown >= 12080, "cuCtxCreate");
    let (old, new) = (find(c"cuCtxSynchronize", 12080), find(c"cuCtxSynchronize", newest));
    assert_eq!(old != new, shown >= 13000, "cuCtxSynchronize");
    if shown >= 13000 {
        type Synchronize = unsafe extern "C" fn(sys::CUcontext) -> u32;
        // SAFETY: the newest form of the call takes a context, null for the current one.
        let code = unsafe { std::mem::transmute::<*mut c_void, Synchronize>(new)(null_mut()) };
        assert_eq!(code, 0);
    }
}

fn load(text: &str) -> u32 {
    let (text, mut module) = (CString::new(text).unwrap(), null_mut());
    // SAFETY: room for the module; the text ends with NUL.
    unsafe { sys::cuModuleLoadData(&mut module, text.as_ptr().cast()) as u32 }
}

#[test]
fn ptx_that_is_too_new_for_the_driver_or_the_gpu_is_refused() {
    let test = "ptx_that_is_too_new_for_the_driver_or_the_gpu_is_refused";
    if !is_inside(test) {
        for version in [None, Some("12.4"), Some("12.8"), Some("13.0")] {
            with_driver(test, "dgx-a100", version);
        }
        return;
    }
    context(0);
    let newest = match chosen().as_deref() {
        None => (99, 9),
        Some("12.4") => (8, 4),
        Some("12.8") => (8, 7),
        _ => (9, 0),
    };
    let text = |version: &str, target: &str| {
        format!(".version {version}\n.target {target}\n.address_size 64\n.entry k() {{ ret; }}")
    };
    for (name, number) in [("8.0", (8, 0)), ("8.4", (8, 4)), ("8.5", (8, 5)), ("9.0", (9, 0))] {
        let expected = if number <= newest { 0 } else { 222 };
        assert_eq!(load(&text(name, "sm_70")), expected, "PTX {name}");
    }
    // Before anything is said about what it holds.
    let unknown = format!("{}\n.frobnicate", text("9.9", "sm_70"));
    assert_eq!(load(&unknown), if chosen().is_some() { 222 } else { 218 });
    for (target, runs) in [
        ("sm_80", true),
        ("sm_80, debug", true),
        ("sm_86", false),
        ("sm_90a", false),
        ("sm_75", true),
        ("sm_80a", true),
        ("sm_70a", false),
        ("sm_90f", false),
    ] {
        let expected = if runs { 0 } else { 209 };
        assert_eq!(load(&text("8.0", target)), expected, "{target}");
    }
    // The linker refuses them, too.
    let (mut link, data) = (null_mut(), text("8.0", "sm_90"));
    let (data, length) = (data.as_ptr().cast_mut().cast(), data.len());
    ok!(cuLinkCreate_v2(0, null_mut(), null_mut(), &mut link));
    let kind = sys::CUjitInputType::CU_JIT_INPUT_PTX;
    let (options, values) = (null_mut(), null_mut());
    // SAFETY: the data are as long as said, and there are no options.
    let code = unsafe {
        sys::cuLinkAddData_v2(link, kind, data, length, c"x".as_ptr(), 0, options, values)
    };
    assert_eq!(code as u32, 209);
}
