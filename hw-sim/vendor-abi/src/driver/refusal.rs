//! Refusals on stderr: one line for each function and reason, with what to do.
//!
//! Printed is what virtual hardware lacks, and code that it does not run. An error that a program
//! makes by itself (`CUDA_ERROR_INVALID_VALUE`) is not: programs try what a driver takes, and
//! `hwsim run --trace` shows all of them.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// Different lines that are printed; a program that makes up more of them says nothing new.
const LINES_MAX: usize = 1000;

thread_local! {
    /// The call that the thread is in.
    static CURRENT: Cell<&'static str> = const { Cell::new("") };
}

/// The thread enters a call.
#[inline]
pub(super) fn enter(name: &'static str) {
    CURRENT.set(name);
}

/// Prints that the thread's call is refused, the first time that it is with these words.
#[cold]
pub(super) fn say(words: &str) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let line = format!("hwsim: {}: {words}\n", CURRENT.get());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.len() < LINES_MAX && !said.contains(&line) {
        // A closed stderr is no reason to fail where the real library would not.
        let _ = std::io::stderr().write_all(line.as_bytes());
        said.insert(line);
    }
}

/// What the machine, the driver profile or the simulator lacks.
#[cold]
pub(super) fn say_unsupported(words: &str) {
    say(&format!("{words}: not supported; hw-sim/README.md says what is"));
}
