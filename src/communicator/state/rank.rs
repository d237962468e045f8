//! One rank, as the other ranks of its process see it.

use super::memory::RankMemory;
use crate::error::{Error, Result};
use crate::flight::RankRecorder;
use crate::gpu::keeping_errors;
use crate::id::Rank;
use cudarc::driver::CudaContext;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

/// State of one rank.
#[derive(Debug)]
pub(crate) struct RankState {
    pub rank: Rank,
    pub context: Arc<CudaContext>,
    pub memory: RankMemory,
    failure: OnceLock<Error>,
    /// Its flight recorder, once it is connected.
    flight: OnceLock<Arc<RankRecorder>>,
}

impl RankState {
    /// A rank with its memory, before it joins.
    pub fn new(rank: Rank, context: Arc<CudaContext>, memory: RankMemory) -> Self {
        Self { rank, context, memory, failure: OnceLock::new(), flight: OnceLock::new() }
    }

    /// The error that ended the communicator, if any.
    pub fn check(&self) -> Result<()> {
        self.failure.get().cloned().map_or(Ok(()), Err)
    }

    /// Sets where failures are recorded.
    pub fn record_in(&self, flight: Arc<RankRecorder>) {
        // Made once, by whoever connects the rank.
        let _ = self.flight.set(flight);
    }

    /// Waits until the rank's GPU is idle. What comes after may then drain it without harm: a call
    /// that waits for it with a lock of the driver waits for nothing that needs this lock.
    ///
    /// # Errors
    /// [`Error::Cuda`] with the driver's answer.
    pub fn wait_for_gpu(&self) -> Result<()> {
        keeping_errors(&self.context, || self.context.synchronize())
            .map_err(Error::from_driver("cuCtxSynchronize"))
    }

    /// Keeps the first error and stops the rank's kernels.
    pub fn fail(&self, error: &Error) {
        // Only the first error counts: later ones are mostly its consequences.
        let _ = self.failure.set(error.clone());
        match self.memory.abort() {
            // Pairs with wait.cuh: the waits' load of the abort word, R10.
            Ok(word) => word.store(1, Ordering::Release),
            Err(error) => tracing::error!(%error, rank = self.rank.0, "no abort word"),
        }
        if let Some(flight) = self.flight.get() {
            flight.failed(error);
        }
    }
}
