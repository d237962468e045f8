//! Helpers for tests of the driver.
//!
//! A dynamic loader reads its search path when a process starts, and a driver has one machine a
//! process. Each test therefore runs its body in its own process: the test program again, for
//! that test alone, with the library under the driver's name on the search path.

#![allow(dead_code, reason = "each test program uses a part of this")]

use cudarc::driver::sys;
use std::env;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const INSIDE: &str = "HWSIM_TEST_INSIDE";

/// `libhwsim.so` as cargo built it for this test.
pub fn library() -> PathBuf {
    let program = env::current_exe().unwrap();
    let library = program.parent().unwrap().join("libhwsim.so");
    assert!(library.exists(), "{} has not been built", library.display());
    library
}

/// A folder in which the library is the driver.
pub fn driver_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["libcuda.so", "libcuda.so.1"] {
        symlink(library(), folder.path().join(name)).unwrap();
    }
    folder
}

/// Runs a test of this program again, with the virtual driver.
pub fn run_again(test: &str, machine: &str, extra: &[(&str, &str)]) -> Output {
    let folder = driver_folder();
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--include-ignored"]);
    command.env("LD_LIBRARY_PATH", folder.path()).env("HWSIM_MACHINE", machine).env(INSIDE, test);
    command.envs(extra.iter().copied());
    command.output().unwrap()
}

/// Is this the inner process of the test?
pub fn is_inside(test: &str) -> bool {
    env::var(INSIDE).is_ok_and(|inside| inside == test)
}

/// Runs `body` in its own process on a machine, and gives what that wrote to stderr.
pub fn on_machine(test: &str, machine: &str, body: fn()) -> String {
    if is_inside(test) {
        body();
        return String::new();
    }
    let output = run_again(test, machine, &[]);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let status = output.status;
    let passed = status.success() && out.contains("1 passed");
    assert!(passed, "on {machine}: {status}\n{out}\n{err}");
    err
}

/// Calls the driver and expects success.
#[macro_export]
macro_rules! ok {
    ($call:ident($($argument:expr),* $(,)?)) => {{
        #[allow(unused_unsafe, clippy::macro_metavars_in_unsafe, reason = "a test calls C")]
        // SAFETY: the test passes what the call wants.
        let code = unsafe { cudarc::driver::sys::$call($($argument),*) };
        assert_eq!(code as u32, 0, "{}: {code:?}", stringify!($call));
    }};
}

/// Calls the driver and expects a certain error.
#[macro_export]
macro_rules! refused {
    ($code:ident: $call:ident($($argument:expr),* $(,)?)) => {{
        #[allow(unused_unsafe, clippy::macro_metavars_in_unsafe, reason = "a test calls C")]
        // SAFETY: the test passes what the call wants, or what it must refuse unharmed.
        let code = unsafe { cudarc::driver::sys::$call($($argument),*) };
        assert_eq!(code, cudarc::driver::sys::CUresult::$code, "{}", stringify!($call));
    }};
}

/// Retains a device's primary context and makes it current.
pub fn context(device: i32) -> sys::CUcontext {
    let mut context = std::ptr::null_mut();
    ok!(cuInit(0));
    ok!(cuDevicePrimaryCtxRetain(&mut context, device));
    ok!(cuCtxSetCurrent(context));
    context
}

/// A stream that does not wait for the default stream.
pub fn stream() -> sys::CUstream {
    let mut stream = std::ptr::null_mut();
    ok!(cuStreamCreate(&mut stream, 1));
    stream
}

/// Device memory.
pub fn device_memory(bytes: usize) -> u64 {
    let mut address = 0;
    ok!(cuMemAlloc_v2(&mut address, bytes));
    address
}

/// Pinned host memory.
pub fn pinned(bytes: usize) -> *mut u8 {
    let mut pointer = std::ptr::null_mut();
    ok!(cuMemHostAlloc(&mut pointer, bytes, 2));
    pointer.cast()
}

/// A kernel of a PTX text.
pub fn kernel(ptx: &str, name: &str) -> sys::CUfunction {
    let (text, name) =
        (std::ffi::CString::new(ptx).unwrap(), std::ffi::CString::new(name).unwrap());
    let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
    ok!(cuModuleLoadData(&mut module, text.as_ptr().cast()));
    ok!(cuModuleGetFunction(&mut function, module, name.as_ptr()));
    function
}

/// Launches a kernel with 64-bit parameters.
pub fn launch(
    function: sys::CUfunction,
    grid: u32,
    block: u32,
    stream: sys::CUstream,
    parameters: &[u64],
) -> sys::CUresult {
    let mut pointers: Vec<*mut std::ffi::c_void> =
        parameters.iter().map(|word| std::ptr::from_ref(word).cast_mut().cast()).collect();
    let (params, extra) = (pointers.as_mut_ptr(), std::ptr::null_mut());
    // SAFETY: one pointer for each parameter, each to eight bytes.
    unsafe { sys::cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, params, extra) }
}

/// Waits for something that must come to pass.
pub fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < Duration::from_secs(20), "not within 20 s: {what}");
        std::thread::yield_now();
    }
}
