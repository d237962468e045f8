//! What the tests of driver profiles share: processes with a profile, calls that block.

#![allow(dead_code, reason = "each test program uses a part of this")]

use crate::common::{context, is_inside, kernel, launch, pinned, run_again, stream};
use crate::ptx;
use cudarc::driver::sys;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Long enough for a call that does not block, on a busy machine; a call that blocks is seen to
/// for as long.
const BLOCKED: Duration = Duration::from_millis(250);
/// Far above what any call takes that does not block.
const SOON: Duration = Duration::from_secs(30);

/// Keys of a profile that is lenient but for them, and further variables of the environment.
pub type Case<'a> = (&'a str, &'a [(&'a str, &'a str)]);

/// Runs `body` on `machine` once for each case, in its own process; gives what each wrote to
/// stderr. Inside of such a process there are no cases to look at any more.
pub fn with_keys(test: &str, machine: &str, cases: &[Case], body: fn()) -> Vec<String> {
    if is_inside(test) {
        body();
        return Vec::new();
    }
    let play = |(keys, extra): &Case| {
        let profile = [("HWSIM_DRIVER_PROFILE", "lenient"), ("HWSIM_DRIVER_KEYS", *keys)];
        let output = run_again(test, machine, &[&profile, *extra].concat());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && out.contains("1 passed"), "with {keys}:\n{out}\n{err}");
        err
    };
    cases.iter().map(play).collect()
}

/// Is this key on in this process? Tests run with and without it.
pub fn has_key(key: &str) -> bool {
    std::env::var("HWSIM_DRIVER_KEYS").is_ok_and(|keys| keys.contains(key))
}

/// A pinned word that kernels and the test share.
pub fn word() -> &'static AtomicU64 {
    // SAFETY: pinned memory of eight bytes, aligned to a page, zero, and never freed in this test.
    unsafe { AtomicU64::from_ptr(pinned(8).cast()) }
}

/// The address of a word.
pub fn address(word: &AtomicU64) -> u64 {
    word.as_ptr() as u64
}

/// A kernel that waits for the test.
pub struct Waiting {
    step: &'static AtomicU64,
    gate: &'static AtomicU64,
    function: sys::CUfunction,
    pub stream: sys::CUstream,
}

impl Waiting {
    /// A kernel of the current context, loaded, not launched.
    pub fn new() -> Self {
        let this = Self {
            step: word(),
            gate: word(),
            function: kernel(ptx::MEET, "meet"),
            stream: stream(),
        };
        // Once for nothing, so that a later launch loads nothing.
        this.gate.store(1, Ordering::Release);
        this.launch(1, 32);
        crate::ok!(cuStreamSynchronize(this.stream));
        this.step.store(0, Ordering::Release);
        this.gate.store(0, Ordering::Release);
        this
    }

    /// Launches it on its stream, and returns.
    pub fn launch(&self, grid: u32, block: u32) {
        let arguments = [address(self.step), address(self.gate), 1];
        assert_eq!(launch(self.function, grid, block, self.stream, &arguments) as u32, 0);
    }

    /// Launches it, and waits until it runs.
    pub fn start(&self) {
        self.step.store(0, Ordering::Release);
        self.gate.store(0, Ordering::Release);
        self.launch(1, 32);
        crate::common::eventually("the kernel", || self.runs());
    }

    /// Has it begun?
    pub fn runs(&self) -> bool {
        // Pairs with the kernel's release store.
        self.step.load(Ordering::Acquire) == 1
    }

    /// Lets it end.
    pub fn release(&self) {
        // Pairs with the kernel's acquire load.
        self.gate.store(1, Ordering::Release);
    }
}

/// Its own call in a thread.
pub struct Call {
    done: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Call {
    /// Starts it, with a device's primary context current.
    pub fn start(device: i32, body: impl FnOnce() + Send + 'static) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let tell = Arc::clone(&done);
        let run = move || {
            context(device);
            body();
            tell.store(true, Ordering::Release);
        };
        Self { done, thread: std::thread::spawn(run) }
    }

    /// Has it returned?
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Must not return before something else happens.
    pub fn must_block(&self, what: &str) {
        let started = Instant::now();
        while started.elapsed() < BLOCKED {
            assert!(!self.is_done(), "{what} returned, and should wait");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Must return, or the test fails in time.
    pub fn must_return(self, what: &str) {
        let started = Instant::now();
        while !self.is_done() && !self.thread.is_finished() {
            assert!(started.elapsed() < SOON, "{what} did not return");
            std::thread::sleep(Duration::from_millis(1));
        }
        self.thread.join().unwrap_or_else(|_| panic!("{what} failed"));
    }
}

/// A machine file of two small multiprocessors, in a folder that lives as long as it.
pub fn small_machine() -> (tempfile::TempDir, String) {
    let source = include_str!("../../../machine/machines/one-gpu.toml");
    let small = source.replace("multiprocessors = 108", "multiprocessors = 2");
    assert_ne!(source, small, "the built-in machine has changed");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.toml");
    std::fs::write(&path, small).unwrap();
    (folder, path.display().to_string())
}
