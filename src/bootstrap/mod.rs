//! How ranks in several processes and on several nodes find one another, and the control plane that
//! they keep: exchange of bytes, agreement, news of failures.
//!
//! ```text
//!                        ┌── root (any process that holds the id; mostly rank 0's) ──┐
//!   1. every rank joins ─┘   counts, compares, gives each rank its place             │
//!   2. every rank connects to its parent in a tree; the root goes away        │
//!   3. the tree carries calls up and down, and failures everywhere ◀─────────────────┘
//! ```
//!
//! * `unique_id`: the name of a job: addresses of its root, and a secret
//! * `environment`, `slurm`: what launchers pass to a process
//! * `address`: which of our addresses to publish; host names
//! * `handshake`, `frame`, `message`: what is on the wire, from the outside in
//! * `connection`, `net`, `reactor`: one I/O thread for all connections of the process
//! * `listeners`, `origins`, `user`, `log_limit`: whom it lets in, and what it logs of others
//! * `root`, `member`: the two kinds of tasks on it; `tree`: who is connected with whom
//! * `plane`: the control plane of one rank, the interface for the rest of the library
//! * `stage`: the same tasks on a network that somebody else plays, for simulations
//! * `successors`: where ranks meet again when one of them has died
//! * `pairs`: control planes of two ranks, which outlive the job's
//! * `exchange`: an exchange of typed values over it; `agreement`: ranks make the same calls
//!
//! Nobody without the job's secret can join or disturb it; every message is authenticated (see
//! `handshake`). Nothing is encrypted.

mod address;
pub(crate) mod agreement;
mod connection;
mod environment;
#[cfg(test)]
mod environment_tests;
mod exchange;
mod frame;
#[cfg(test)]
mod fuzz_tests;
mod handshake;
#[cfg(test)]
mod hostile_tests;
mod listeners;
mod log_limit;
mod member;
mod message;
mod net;
mod origins;
#[cfg(feature = "verbs")]
mod pairs;
#[cfg(test)]
mod panic_tests;
#[cfg(test)]
mod peer_tests;
mod plane;
mod reactor;
mod root;
mod shared;
mod slurm;
pub mod stage;
mod successors;
mod timers;
mod tree;
mod unique_id;
mod user;

pub use address::{Choice as InterfaceChoice, HostPort, choose_from_system as choose_interface};
pub use environment::{Launch, Launcher};
pub(crate) use exchange::exchange;
pub use message::Term;
#[cfg(feature = "verbs")]
pub(crate) use pairs::PairPlace;
pub use plane::{ControlPlane, Gather, JoinRequest};
pub use root::Root;
pub(crate) use successors::{Succession, Successors};
pub(crate) use unique_id::random_bytes;
pub use unique_id::{Secret, UniqueId};

use std::time::{Duration, Instant};

/// More ranks than any machine has; a bound for tables, and for what others claim.
const RANKS_MAX: u32 = 1 << 20;

/// The longest time that anybody may ask us to wait: what settings allow too. A longer one would
/// overflow the clock.
const DURATION_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// A moment `duration` after `now`, where the duration may come from anywhere.
fn after(now: Instant, duration: Duration) -> Instant {
    now + duration.min(DURATION_MAX)
}

/// The most bytes of one message while a job of this many ranks is being assembled: some messages
/// name every rank.
fn early_bytes_max(rank_count: u32) -> usize {
    frame::EARLY_BYTES_MAX + 16 * rank_count as usize
}

/// How long a connection may take to be made and authenticated, when the whole may take `timeout`:
/// short enough that a stranger's silence or an address that leads nowhere costs little of it.
fn handshake_limit(timeout: Duration) -> Duration {
    (timeout / 4).clamp(Duration::from_millis(100), Duration::from_secs(10))
}
