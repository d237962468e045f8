//! Errors of a measurement.

use super::pattern::RANKS_MAX;
use cudarc::driver::DriverError;
use ringdove_figures::plot::PlotError;
use std::path::PathBuf;
use std::time::Duration;

/// What to do where there is no GPU.
const WAY_OUT: &str = "without a GPU, run the same command on virtual hardware:\n  \
     hwsim run --machine pcie4 -- ringdove perf all-reduce -g 4";

/// Why a measurement did not start, or did not end.
#[derive(Debug, thiserror::Error)]
pub enum PerfError {
    /// Options that do not fit together.
    #[error("{option}: expected {expected}, but saw {seen}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// The accepted values.
        expected: String,
        /// The kind.
        seen: String,
    },
    /// A driver without GPUs.
    #[error("the CUDA driver shows no GPU (is CUDA_VISIBLE_DEVICES empty?)\n{WAY_OUT}")]
    NoDevice,
    /// More ranks than the checks are exact for.
    #[error("expected at most {RANKS_MAX} ranks (-t times -g), but saw {seen}")]
    TooManyRanks {
        /// The number asked for.
        seen: usize,
    },
    /// A driver call failed.
    #[error("could not {what}: the CUDA driver says {source}")]
    Gpu {
        /// The action that failed.
        what: &'static str,
        /// The driver's answer.
        source: DriverError,
    },
    /// The library reports an error.
    #[error(transparent)]
    Library(#[from] ringdove::Error),
    /// Nothing completed for too long, and the library has not said why.
    #[error(
        "rank {rank}: {in_flight} iterations are in flight, and none of them completed in \
         {waited:?} (-T sets this limit)"
    )]
    Stalled {
        /// The first rank that waits.
        rank: usize,
        /// Iterations that it has not completed.
        in_flight: usize,
        /// How long.
        waited: Duration,
    },
    /// Another thread of the measurement has failed; its error is the one to show.
    #[error("another thread of the measurement failed")]
    OtherThread,
    /// An output file.
    #[error("could not write {}: {source}", path.display())]
    Output {
        /// The file that was asked for.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// An input file.
    #[error("could not read {}: {source}", path.display())]
    Input {
        /// The file that was asked for.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The picture could not be drawn.
    #[error(transparent)]
    Plot(#[from] PlotError),
    /// The results could not be written as JSON.
    #[error("could not write the results as JSON: {0}")]
    Json(serde_json::Error),
    /// No handler for Ctrl-C.
    #[error("could not install the handler for Ctrl-C: {0}")]
    Signal(#[from] ctrlc::Error),
}

impl PerfError {
    /// The command line is at fault, not the machine.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Option { .. } | Self::TooManyRanks { .. })
    }
}
