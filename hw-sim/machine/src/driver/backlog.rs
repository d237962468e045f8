//! The bound on a context's pending commands, where the profile has one.

use super::watch::Watchdog;
use std::sync::{Condvar, Mutex, PoisonError};

/// Counts a context's pending commands.
pub(crate) struct Backlog {
    limit: u64,
    pending: Mutex<u64>,
    room: Condvar,
}

impl Backlog {
    /// One that holds `limit` commands.
    pub fn new(limit: u32) -> Self {
        Self { limit: limit.into(), pending: Mutex::new(0), room: Condvar::new() }
    }

    /// Counts a command in; blocks while there are too many.
    pub fn enter(&self, watchdog: Watchdog, describe: impl Fn() -> String) {
        let full = |pending: &mut u64| *pending >= self.limit;
        *watchdog.wait_while(&self.pending, &self.room, full, describe) += 1;
    }

    /// A command is done.
    pub fn leave(&self) {
        *self.pending.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.room.notify_one();
    }

    /// Commands that it holds at most.
    pub fn limit(&self) -> u64 {
        self.limit
    }
}
