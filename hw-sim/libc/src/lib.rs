//! Faults of a process's operating system: `hwsim run` loads this library (`LD_PRELOAD`) into its
//! processes where a fault of theirs needs it. `hwsim_machine::fault::ProcessFault` names them.
//!
//! The C library's functions for files, sockets and the time of day go through here, for whoever
//! calls them through the dynamic linker: Rust's standard library does, and Python. What the C
//! library calls inside of itself (`fopen`, say) does not.
//!
//! ```text
//! program ──write──▶ calls: is it a socket, a file? ──▶ wire, disk: what becomes of it ──▶ system
//! ```
//!
//! * `calls`: the functions, under the C library's names
//! * `system`: the same calls, as the kernel does them
//! * `wire`: bytes over TCP; `disk`: bytes to files, and names of files; `clock`: the time of day

mod calls;
mod clock;
mod disk;
mod system;
mod wire;

use hwsim_machine::description::cluster::node_from_environment;
use hwsim_machine::fault::ProcessFaults;
use std::sync::LazyLock;

/// The faults of this process. A list that is wrong was refused by `hwsim run`.
static FAULTS: LazyLock<ProcessFaults> = LazyLock::new(|| {
    let node = node_from_environment().ok().flatten().unwrap_or(0);
    ProcessFaults::from_environment(node).unwrap_or_default()
});

/// The least number that a fault has, if there is such a fault.
fn least(of: impl Fn(&hwsim_machine::fault::ProcessFault) -> Option<u64>) -> Option<u64> {
    FAULTS.faults().iter().filter_map(of).min()
}
