//! `ringdove._ringdove`: what the Python package `ringdove` calls.
//!
//! The package (`python/ringdove`) holds the classes that users see, their types and documentation.
//! This crate translates: arrays and streams of any library into addresses and handles, errors into
//! exceptions, and blocking calls into ones that a signal interrupts.
//!
//! * `init`: how ranks are made; `rank`: a rank of a communicator, and its calls
//! * `device_handle`: what kernels of a program's own need to communicate
//! * `array`: arrays by `__cuda_array_interface__` and DLPack; `stream`: streams by their handles
//! * `in_flight`: what Python objects work that was enqueued still uses
//! * `memory`: a piece of GPU memory, for programs without an array library
//! * `errors`: exceptions; `wait`: calls that block; `guarded`: objects whose end uses a GPU

mod array;
mod device_handle;
mod dlpack;
mod errors;
mod experts;
mod guarded;
mod in_flight;
mod init;
mod memory;
mod rank;
mod raw;
mod stream;
mod wait;

use pyo3::prelude::*;

/// The compiled half of the package `ringdove`. Its names may change; use the package.
#[pymodule]
mod _ringdove {
    #[pymodule_export]
    use super::device_handle::DeviceHandle;
    #[pymodule_export]
    use super::experts::{Experts, ExpertsHandle};
    #[pymodule_export]
    use super::init::{device_count, init_all, init_launched, init_rank, set_device, unique_id};
    #[pymodule_export]
    use super::memory::Memory;
    #[pymodule_export]
    use super::rank::Rank;

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::start_log();
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("__build__", ringdove::BUILD)
    }
}

/// `RINGDOVE_LOG` says what is written to stderr, as in the other doors.
fn start_log() {
    use tracing_subscriber::EnvFilter;
    let filter = std::env::var("RINGDOVE_LOG").unwrap_or_else(|_| "warn".into());
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("warn"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A program that has Rust of its own may have set one.
    let _ = log.try_init();
}
