//! Signals in this rank's own memory: those that say that a source may be overwritten, and, where
//! adapters keep no order, those of peers.

use crate::error::{Error, TransportCause};
use crate::gpu::StreamWriter;
use crate::shared::{Region, publish};
use crate::transport::SignalWrite;

/// Raises signals in this rank's own memory. An adapter says in host memory that a transfer has
/// ended; somebody on the host must write it for the device.
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

/// Signals in host memory.
pub struct HostSignals(
    /// All of them.
    pub Region,
);

impl SignalWriter for HostSignals {
    fn raise(&mut self, signals: &[SignalWrite]) -> Result<(), TransportCause> {
        for signal in signals {
            let offset = signal.address.wrapping_sub(self.0.base_address());
            let word = self.0.word64(usize::try_from(offset).unwrap_or(usize::MAX));
            let word = word.map_err(|error| TransportCause::Other(error.to_string()))?;
            // What the adapter reported comes before. Pairs with wait.cuh: the acquire load of a
            // signal, R9.
            publish(&word, signal.value);
        }
        Ok(())
    }
}
