//! Calls without the interpreter's lock, some of them ended by Ctrl-C.

use crate::errors;
use crossbeam_channel::{RecvTimeoutError, bounded};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use ringdove::gpu::CallersContext;
use std::thread;
use std::time::Duration;

/// How often a blocked call looks for signals.
const SIGNALS_LOOKED_FOR: Duration = Duration::from_millis(20);

/// Runs `call` on this thread, on which the program's current GPU stays what it was.
pub fn detached<T: Send>(py: Python<'_>, call: impl FnOnce() -> T + Send) -> T {
    py.detach(|| {
        let _current = CallersContext::keep();
        call()
    })
}

/// Runs `call` on a thread of its own, and waits for it. A signal whose handler raises ends the
/// wait: `interrupted` then ends what the call waits for, and its result is dropped when it comes.
///
/// # Errors
/// The call's, as an exception, and that of a signal's handler.
pub fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    call: impl FnOnce() -> ringdove::Result<T> + Send + 'static,
    interrupted: impl FnOnce(),
) -> PyResult<T> {
    let (sender, receiver) = bounded(1);
    let run = move || {
        // Nobody waits any more where the wait was interrupted.
        let _ = sender.send(call());
    };
    let thread = thread::Builder::new().name("ringdove-python".into()).spawn(run);
    thread.map_err(|error| PyRuntimeError::new_err(format!("cannot start a thread: {error}")))?;
    loop {
        match py.detach(|| receiver.recv_timeout(SIGNALS_LOOKED_FOR)) {
            Ok(result) => return result.map_err(|error| errors::exception(py, &error)),
            Err(RecvTimeoutError::Timeout) => {
                if let Err(signal) = py.check_signals() {
                    interrupted();
                    return Err(signal);
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("a call of ringdove panicked; see stderr"));
            }
        }
    }
}
