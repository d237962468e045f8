//! The state of a context that its streams share: identity, lock, and whether it has failed.

use crate::driver::lock::ContextLock;
use crate::error::{Error, Result, Sticky};
use crate::machine::Machine;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Commands that a failed context still takes before a call that only queues work tells of the
/// error. A real driver takes about as many before the caller has to wait for the GPU, and then
/// sees it.
const TAKEN_MAX: u32 = 1024;

/// What of a context is not its streams.
pub struct ContextState {
    /// Never used twice.
    pub id: u64,
    /// Its GPU.
    pub gpu: usize,
    /// Its machine.
    pub machine: Arc<Machine>,
    /// 0, or the code of a [`Sticky`].
    failed: AtomicU32,
    /// Has the program seen the error, or could it have?
    told: AtomicBool,
    /// Commands that were taken since the context failed, while it had not.
    taken: AtomicU32,
    lock: ContextLock,
}

/// A context whose lock this thread holds, until this is dropped.
pub struct Locked {
    /// The context.
    pub context: Arc<ContextState>,
}

impl fmt::Display for ContextState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "context {} (GPU {})", self.id, self.gpu)
    }
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl ContextState {
    /// Of a new context.
    pub(crate) fn new(machine: Arc<Machine>, gpu: usize) -> Arc<Self> {
        Arc::new(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            gpu,
            machine,
            failed: AtomicU32::new(0),
            told: AtomicBool::new(false),
            taken: AtomicU32::new(0),
            lock: ContextLock::default(),
        })
    }

    /// The error that made the context fail, if any: for calls that wait for work, or ask whether
    /// it is done. From now on every call tells.
    pub fn check(&self) -> Result<()> {
        match Sticky::from_code(self.failed.load(Ordering::Acquire)) {
            None => Ok(()),
            Some(sticky) => {
                // Relaxed: it guards nothing; the error itself is acquired above.
                self.told.store(true, Ordering::Relaxed);
                Err(Error::Sticky(sticky))
            }
        }
    }

    /// As [`ContextState::check`], but only if a call has told of the error before: for calls that
    /// neither wait nor ask. Otherwise it would be a matter of luck which call of a program fails,
    /// as a virtual GPU on a busy host may end a kernel before its launch returns.
    pub fn check_told(&self) -> Result<()> {
        if self.has_failed() && self.told.load(Ordering::Relaxed) { self.check() } else { Ok(()) }
    }

    /// As [`ContextState::check_told`], for calls that queue a command. A program that does nothing
    /// else is told in the end.
    pub fn admit(&self) -> Result<()> {
        if self.has_failed() && self.taken.fetch_add(1, Ordering::Relaxed) >= TAKEN_MAX {
            return self.check();
        }
        self.check_told()
    }

    /// Has the context failed?
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed) != 0
    }

    /// Makes the context fail; the first reason is kept. Its kernels end, and its queued work is
    /// dropped.
    pub fn fail(&self, reason: Sticky) {
        let code = reason as u32;
        if reason == Sticky::Destroyed {
            // The program's own doing.
            self.told.store(true, Ordering::Relaxed);
        }
        // Release pairs with `check`: who sees the error sees what led to it.
        let first = self.failed.compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire);
        if first.is_ok() {
            self.machine.scheduler.end_context(self.id);
        }
    }

    /// Takes the context's lock. One that is held by this thread already is never free again: the
    /// driver's calls take it once each.
    pub fn lock(self: &Arc<Self>) -> Locked {
        self.lock.take(self.machine.watchdog, self);
        Locked { context: Arc::clone(self) }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        self.context.lock.release();
    }
}
