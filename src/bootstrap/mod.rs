//! How ranks in several processes and on several nodes find one another, and the control plane that
//! they keep: exchange of bytes, agreement, news of failures.
//!
//! ```text
//!                        ┌── root (any process that holds the id; mostly rank 0's) ──┐
//!   1. every rank joins ─┘   counts, compares, gives each rank its place             │
//!   2. every rank connects to the rank above it in a tree; the root goes away        │
//!   3. the tree carries calls up and down, and failures everywhere ◀─────────────────┘
//! ```
//!
//! * `unique_id`: the name of a job: addresses of its root, and a secret
//! * `environment`, `slurm`: what launchers tell a process
//! * `address`: which of our addresses to tell others; host names
//! * `handshake`, `frame`, `message`: what is on the wire, from the outside in
//! * `connection`, `net`, `reactor`: one I/O thread for all connections of the process
//! * `root`, `member`: the two kinds of tasks on it; `tree`: who is connected with whom
//! * `plane`: what the rest of the library calls
//!
//! Nobody without the job's secret can join or disturb it; every message is authenticated (see
//! `handshake`). Nothing is encrypted.

mod address;
mod connection;
mod environment;
#[cfg(test)]
mod environment_tests;
mod frame;
mod handshake;
mod member;
mod message;
mod net;
#[cfg(test)]
mod peer_tests;
mod plane;
mod reactor;
mod root;
mod shared;
mod slurm;
mod timers;
mod tree;
mod unique_id;

pub use address::{Choice as InterfaceChoice, HostPort, choose_from_system as choose_interface};
pub use environment::{Launch, Launcher};
pub use message::Term;
pub use plane::{ControlPlane, Entry, Gather};
pub use root::Root;
pub use unique_id::{Secret, UniqueId};

use std::time::Duration;

/// How long a connection may take to be made and authenticated, when the whole may take `timeout`:
/// short enough that a stranger's silence or an address that leads nowhere costs little of it.
fn handshake_limit(timeout: Duration) -> Duration {
    (timeout / 4).clamp(Duration::from_millis(100), Duration::from_secs(10))
}
