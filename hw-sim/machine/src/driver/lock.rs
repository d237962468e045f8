//! The lock that every call on a context takes, where the profile has one.

use super::watch::{Watchdog, call_name, thread_name};
use std::fmt::Display;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

/// A context's lock.
#[derive(Default)]
pub(crate) struct ContextLock {
    holder: Mutex<Option<Holder>>,
    free: Condvar,
}

/// Who holds it.
struct Holder {
    thread: String,
    call: &'static str,
    since: Instant,
}

impl ContextLock {
    /// Takes the lock, which is `context`'s.
    pub fn take(&self, watchdog: Watchdog, context: &impl Display) {
        let describe = || format!("the lock of {context}, {}", self.describe());
        let blocked = |holder: &mut Option<Holder>| holder.is_some();
        let mut holder = watchdog.wait_while(&self.holder, &self.free, blocked, describe);
        *holder = Some(Holder { thread: thread_name(), call: call_name(), since: Instant::now() });
    }

    /// Lets go of it.
    pub fn release(&self) {
        *self.holder.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.free.notify_one();
    }

    fn describe(&self) -> String {
        match &*self.holder.lock().unwrap_or_else(PoisonError::into_inner) {
            None => "which is free".into(),
            Some(Holder { thread, call, since }) => {
                format!("held for {:.1} s by {thread} in {call}", since.elapsed().as_secs_f64())
            }
        }
    }
}
