//! The process that is killed at one of its driver calls, because a fault says so.

use hwsim_machine::fault::{ProcessFault, ProcessFaults};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The process's faults, where one of them kills it. A list that is wrong is reported elsewhere.
static FAULTS: LazyLock<Option<ProcessFaults>> = LazyLock::new(|| {
    let faults = ProcessFaults::from_environment().ok()?;
    let kills = faults.faults().iter().any(|fault| matches!(fault, ProcessFault::KillAt(_)));
    kills.then_some(faults)
});

/// Driver calls so far.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// Counts a driver call; does not return from the one at which the process is killed.
pub(crate) fn count() {
    let Some(faults) = &*FAULTS else { return };
    // Relaxed: the number of a call is one of the order in which they came, whoever made them.
    let number = CALLS.fetch_add(1, Ordering::Relaxed);
    if faults.kills_at(number) {
        // SAFETY: both calls take integers only. The signal cannot be caught.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}
