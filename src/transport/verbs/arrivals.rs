//! Signals of peers that this side's engine raises: from immediate data to the device, with a flush
//! between where one is needed.

use super::flush::Flush;
use super::immediate::Arrivals;
use super::region::MemoryRegion;
use super::signals::SignalWriter;
use crate::error::{Result, TransportCause};
use crate::transport::SignalWrite;

/// Signals that one turn has room for without asking for memory.
const SIGNALS_EXPECTED: usize = 256;

/// Reads of device memory, one at a time, that end behind all writes that came before them.
pub(super) trait Flushes {
    /// Is one under way?
    fn is_in_flight(&self) -> bool;

    /// Begins one.
    ///
    /// # Errors
    /// What the adapter says.
    fn begin(&mut self) -> std::result::Result<(), TransportCause>;

    /// Has the one that is under way ended?
    ///
    /// # Errors
    /// What the adapter says.
    fn poll(&mut self) -> std::result::Result<bool, TransportCause>;
}

/// See the module's documentation.
pub(super) struct Inbound<F = Flush> {
    arrivals: Arrivals,
    writer: Box<dyn SignalWriter>,
    flush: Option<F>,
    /// Received, and not to be raised before a flush that begins later. Bounded by the receive
    /// requests of all peers.
    received: Vec<SignalWrite>,
    /// Behind the flush that is in flight.
    flushing: Vec<SignalWrite>,
}

impl Inbound {
    /// Signals in `region`.
    ///
    /// # Errors
    /// As [`Flush::new`].
    pub(super) fn new(
        region: &MemoryRegion,
        writer: Box<dyn SignalWriter>,
        flush: bool,
    ) -> Result<Self> {
        let memory = region.remote();
        let flush = flush.then(|| Flush::new(region)).transpose()?;
        Ok(Self::over(Arrivals::new(memory.base, memory.length_bytes), writer, flush))
    }
}

impl<F: Flushes> Inbound<F> {
    fn over(arrivals: Arrivals, writer: Box<dyn SignalWriter>, flush: Option<F>) -> Self {
        Self {
            arrivals,
            writer,
            flush,
            received: Vec::with_capacity(SIGNALS_EXPECTED),
            flushing: Vec::with_capacity(SIGNALS_EXPECTED),
        }
    }

    /// Immediate data has come in.
    ///
    /// # Errors
    /// [`TransportCause::Contract`] if it names no word here.
    pub(super) fn receive(&mut self, immediate: u32) -> std::result::Result<(), TransportCause> {
        let signal = self.arrivals.decode(immediate).ok_or_else(|| {
            TransportCause::Contract(format!("a peer raised {immediate:#x}, which is not a signal"))
        })?;
        self.received.push(signal);
        Ok(())
    }

    /// Raises what has been received, as far as that is allowed now.
    ///
    /// # Errors
    /// What the writer or the adapter says.
    pub(super) fn raise(&mut self) -> std::result::Result<(), TransportCause> {
        let Some(flush) = &mut self.flush else {
            if !self.received.is_empty() {
                self.writer.raise(&self.received)?;
                self.received.clear();
            }
            return Ok(());
        };
        if flush.is_in_flight() {
            if !flush.poll()? {
                return Ok(());
            }
            self.writer.raise(&self.flushing)?;
            self.flushing.clear();
        }
        if !self.received.is_empty() {
            std::mem::swap(&mut self.received, &mut self.flushing);
            flush.begin()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::immediate;
    use super::*;
    use std::sync::{Arc, Mutex};

    /// Flushes that end when the test says so.
    #[derive(Default)]
    struct Reads {
        in_flight: bool,
        has_ended: bool,
    }

    impl Flushes for Reads {
        fn is_in_flight(&self) -> bool {
            self.in_flight
        }

        fn begin(&mut self) -> std::result::Result<(), TransportCause> {
            (self.in_flight, self.has_ended) = (true, false);
            Ok(())
        }

        fn poll(&mut self) -> std::result::Result<bool, TransportCause> {
            self.in_flight &= !self.has_ended;
            Ok(self.has_ended)
        }
    }

    #[derive(Clone, Default)]
    struct Raised(Arc<Mutex<Vec<u64>>>);

    impl SignalWriter for Raised {
        fn raise(&mut self, signals: &[SignalWrite]) -> std::result::Result<(), TransportCause> {
            self.0.lock().unwrap().extend(signals.iter().map(|signal| signal.value));
            Ok(())
        }
    }

    /// If this fails, a kernel reads data of which the adapter has reported the message, and which
    /// the device does not show yet (R9).
    #[test]
    fn signals_wait_for_a_flush_that_began_behind_their_message() {
        let raised = Raised::default();
        let (arrivals, reads) = (Arrivals::new(0, 64), Some(Reads::default()));
        let mut inbound = Inbound::over(arrivals, Box::new(raised.clone()), reads);
        let seen = || raised.0.lock().unwrap().clone();
        inbound.receive(immediate::encode(8, 1).unwrap()).unwrap();
        assert!(seen().is_empty(), "nothing was flushed");
        inbound.raise().unwrap();
        // This one comes while the read is under way, which may not be behind its data.
        inbound.receive(immediate::encode(8, 2).unwrap()).unwrap();
        inbound.raise().unwrap();
        assert!(seen().is_empty(), "the flush has not ended");
        inbound.flush.as_mut().unwrap().has_ended = true;
        inbound.raise().unwrap();
        assert_eq!(seen(), [1]);
        inbound.raise().unwrap();
        assert_eq!(seen(), [1], "the second flush has not ended");
        inbound.flush.as_mut().unwrap().has_ended = true;
        inbound.raise().unwrap();
        assert_eq!(seen(), [1, 2]);
    }
}
