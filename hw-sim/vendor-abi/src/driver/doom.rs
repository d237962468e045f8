//! The process that is killed or stopped at one of its driver calls, because a fault says so.

use hwsim_machine::description::cluster::node_from_environment;
use hwsim_machine::fault::ProcessFaults;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The process's faults, where one strikes at a call. A list that is wrong is reported elsewhere.
static FAULTS: LazyLock<Option<ProcessFaults>> = LazyLock::new(|| {
    let node = node_from_environment().ok()?.unwrap_or(0);
    ProcessFaults::from_environment(node).ok().filter(ProcessFaults::strikes_calls)
});

/// Driver calls so far.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// Counts a driver call; does not return from the one at which the process is killed.
pub(crate) fn count() {
    let Some(faults) = &*FAULTS else { return };
    // Relaxed: the number of a call is one of the order in which they came, whoever made them.
    let number = CALLS.fetch_add(1, Ordering::Relaxed);
    if faults.kills_at(number) {
        strike(libc::SIGKILL);
    }
    if faults.freezes_at(number) {
        strike(libc::SIGSTOP);
    }
}

/// Sends this process a signal that cannot be caught.
fn strike(signal: libc::c_int) {
    // SAFETY: both calls take integers only.
    unsafe { libc::kill(libc::getpid(), signal) };
}
