//! The state of a context that its streams share: identity, lock, and whether it has failed.

use crate::driver::lock::ContextLock;
use crate::error::{Error, Result, Sticky};
use crate::machine::Machine;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

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
        let (failed, lock) = (AtomicU32::new(0), ContextLock::default());
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { id, gpu, machine, failed, lock })
    }

    /// The error that made the context fail, if any.
    pub fn check(&self) -> Result<()> {
        match Sticky::from_code(self.failed.load(Ordering::Acquire)) {
            None => Ok(()),
            Some(sticky) => Err(Error::Sticky(sticky)),
        }
    }

    /// Has the context failed?
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed) != 0
    }

    /// Makes the context fail; the first reason is kept. Its kernels end, and its queued work is
    /// dropped.
    pub fn fail(&self, reason: Sticky) {
        let code = reason as u32;
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
