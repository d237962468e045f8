//! The lock that every call on a context takes, where the profile has one.

use super::watch::{call_name, thread_name};
use crate::context::Context;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
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

/// A context whose lock this thread holds, until this is dropped.
pub struct Locked {
    /// The context.
    pub context: Arc<Context>,
}

impl Context {
    /// Takes the context's lock. One that is held by this thread already is never free again: the
    /// driver's calls take it once each.
    pub fn lock(self: &Arc<Self>) -> Locked {
        let watchdog = self.machine.watchdog;
        let describe = || format!("the lock of {self}, {}", self.lock.describe());
        let blocked = |holder: &mut Option<Holder>| holder.is_some();
        let mut holder = watchdog.wait_while(&self.lock.holder, &self.lock.free, blocked, describe);
        *holder = Some(Holder { thread: thread_name(), call: call_name(), since: Instant::now() });
        drop(holder);
        Locked { context: Arc::clone(self) }
    }

    /// The contexts that peer access joins with this one, in whatever direction and over whatever
    /// others, with this one: in the order of their numbers, in which their locks are taken.
    pub fn joined(self: &Arc<Self>) -> Vec<Arc<Self>> {
        let all = self.machine.contexts();
        let mut joined = vec![Arc::clone(self)];
        let mut looked_at = 0;
        while let Some(here) = joined.get(looked_at).cloned() {
            looked_at += 1;
            for other in &all {
                let known = joined.iter().any(|context| context.id == other.id);
                let linked = here.reaches(other.gpu) || other.reaches(here.gpu);
                if !known && linked && other.gpu != here.gpu {
                    joined.push(Arc::clone(other));
                }
            }
        }
        joined.sort_by_key(|context| context.id);
        joined
    }
}

impl ContextLock {
    fn describe(&self) -> String {
        match &*self.holder.lock().unwrap_or_else(PoisonError::into_inner) {
            None => "which is free".into(),
            Some(Holder { thread, call, since }) => {
                format!("held for {:.1} s by {thread} in {call}", since.elapsed().as_secs_f64())
            }
        }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let lock = &self.context.lock;
        *lock.holder.lock().unwrap_or_else(PoisonError::into_inner) = None;
        lock.free.notify_one();
    }
}
