//! Signals in this rank's own memory: those that say that a source may be overwritten.

use crate::error::{Error, TransportCause};
use crate::gpu::StreamWriter;
use crate::transport::SignalWrite;

/// Raises signals in this rank's own memory. An adapter says in host memory that a transfer has
/// ended; somebody on the host must tell the device.
pub trait SignalWriter: Send {
    /// Writes every signal, in order, such that waits of the device see it. Must not block.
    ///
    /// # Errors
    /// A failure is final.
    fn raise(&mut self, signals: &[SignalWrite]) -> Result<(), TransportCause>;
}

impl SignalWriter for StreamWriter {
    fn raise(&mut self, signals: &[SignalWrite]) -> Result<(), TransportCause> {
        let words = signals.iter().map(|signal| (signal.address, signal.value));
        self.write(words).map_err(|error| match error {
            Error::Cuda { call, code, name } => TransportCause::Cuda { call, code, name },
            other => TransportCause::Other(other.to_string()),
        })
    }
}
