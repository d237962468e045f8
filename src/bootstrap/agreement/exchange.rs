//! The call matcher of one process, and the way of its records to the parent process.

use super::matcher::CallMatcher;
use super::position::ProcessTreePosition;
use super::record::decode;
use crate::bootstrap::ControlPlane;
use crate::error::{Error, Result};
use crate::id::Rank;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long records are gathered before they are sent: far below any timeout, far above the cost of
/// sending.
const INTERVAL: Duration = Duration::from_millis(5);

/// Compares the calls of all ranks that this process knows of.
#[derive(Debug)]
pub(crate) struct CallExchange {
    matcher: Mutex<CallMatcher>,
}

impl CallExchange {
    /// For `rank_count` ranks, all of this process until [`set_position`](Self::set_position).
    pub fn new(rank_count: u32) -> Self {
        Self { matcher: Mutex::new(CallMatcher::new(rank_count)) }
    }

    /// Locks, also after a panic of another thread: the matcher then refuses calls that do not fit.
    fn matcher(&self) -> MutexGuard<'_, CallMatcher> {
        self.matcher.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the position of this process among others.
    pub fn set_position(&self, position: ProcessTreePosition) {
        self.matcher().set_position(position);
    }

    /// Ranks that have called fewer collectives than others, as far as this process knows.
    pub fn behind(&self) -> Vec<Rank> {
        self.matcher().behind()
    }

    /// Compares calls. `parent` gives the control plane that leads to the parent process; it is
    /// asked where records must be sent.
    ///
    /// # Errors
    /// Those of `compare`.
    pub fn compare(
        self: &Arc<Self>,
        parent: impl FnOnce() -> Option<Arc<ControlPlane>>,
        compare: impl FnOnce(&mut CallMatcher) -> Result<()>,
    ) -> Result<()> {
        let mut matcher = self.matcher();
        let result = compare(&mut matcher);
        let must_schedule = matcher.take_must_schedule();
        drop(matcher);
        if must_schedule && let Some(plane) = parent() {
            let exchange = Arc::downgrade(self);
            plane.send_to_parent(INTERVAL, move || {
                exchange.upgrade().map(|own| own.matcher().take_outbox()).unwrap_or_default()
            });
        }
        result
    }

    /// Compares the calls that a child process has sent as `bytes` over `from`.
    ///
    /// # Errors
    /// [`Error::Disagreement`] where they differ; [`Error::Argument`] where `bytes` are not the
    /// records of calls.
    pub fn receive(
        self: &Arc<Self>,
        parent: impl FnOnce() -> Option<Arc<ControlPlane>>,
        from: Rank,
        bytes: &[u8],
    ) -> Result<()> {
        let Some(records) = decode(bytes) else {
            let seen = format_args!("{} bytes that are not", bytes.len()).to_string();
            let expected = "records of calls that this version can decode";
            return Err(Error::argument(
                &format!("message of {from} on its calls"),
                expected,
                seen,
            ));
        };
        let mut records = records.into_iter();
        self.compare(parent, |matcher| {
            records.try_for_each(|(record, signature)| matcher.receive(record, signature))
        })
    }
}
