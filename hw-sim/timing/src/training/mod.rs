//! Training at scale: how long a step of synchronous stochastic gradient descent takes on many
//! workers, layer by layer.
//!
//! * [`files`]: models and clusters, as files with units and sources
//! * [`strategy`]: which layers are shared out how, and what each then computes and sends
//! * [`schedule`]: what a worker computes and what its network carries, in time
//!
//! All workers do the same at the same time, so one stands for all. Gradients travel while layers
//! before them are computed, and arrive before the next step needs their layer; what layers that
//! are shared out exchange of their activations keeps the worker waiting, and goes first. Layers
//! without parameters (pooling, activation) cost nothing.

pub mod files;
pub mod schedule;
pub mod strategy;
#[cfg(test)]
mod tests;

pub use files::{Cluster, FileError, Layer, Model};
pub use schedule::{Activity, Span, Step};
pub use strategy::{Exchange, Sharing, StrategyError};

/// What is predicted.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// The network.
    pub model: &'a Model,
    /// Where it is trained.
    pub cluster: &'a Cluster,
    /// Workers.
    pub workers: u32,
    /// Samples of all workers in one step.
    pub batch: u32,
    /// How dense layers are shared out.
    pub sharing: Sharing,
    /// How gradients are added.
    pub exchange: Exchange,
    /// Gradients travel together until they are so many bytes.
    pub bucket_bytes: f64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// One step, in the long run.
    pub step: Step,
    /// Workers that share each layer: 1 where each has all of it.
    pub groups: Vec<u32>,
    /// Samples a second, of all workers.
    pub rate: f64,
    /// Bytes that parameters, gradients and the optimiser's state take on each worker.
    pub memory_bytes: f64,
}

impl Job<'_> {
    /// One step, by the best groups where the sharing leaves a choice.
    ///
    /// # Errors
    /// [`StrategyError`] where workers, batch and cluster do not go together.
    pub fn predict(&self) -> Result<Prediction, StrategyError> {
        let candidates = strategy::candidates(self)?;
        let all = candidates.into_iter().map(|groups| {
            let parts = strategy::parts(self, &groups);
            let step = schedule::step(&parts, self.bucket_bytes);
            let memory_bytes = strategy::memory(self.model, &groups, self.workers);
            Prediction { rate: f64::from(self.batch) / step.period, step, groups, memory_bytes }
        });
        let best = all.min_by(|a, b| a.step.period.total_cmp(&b.step.period));
        Ok(best.expect("there is a candidate"))
    }

    /// How many times as fast as one worker with the same batch.
    ///
    /// # Errors
    /// As [`Job::predict`].
    pub fn speedup(&self) -> Result<f64, StrategyError> {
        let alone = Job { workers: 1, ..self.clone() }.predict()?;
        Ok(self.predict()?.rate / alone.rate)
    }
}
