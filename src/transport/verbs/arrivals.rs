//! Signals of peers that this side's engine raises: from immediate data to the device, with a flush
//! between where one is needed.

use super::adapter::Adapter;
use super::fault;
use super::flush::{Failure, Flush};
use super::immediate::Arrivals;
use super::region::MemoryRegion;
use super::signals::SignalWriter;
use crate::error::{Result, TransportCause};
use crate::transport::SignalWrite;

/// Signals that one turn has room for without asking for memory.
const SIGNALS_EXPECTED: usize = 256;

/// See the module's documentation.
pub(super) struct Inbound {
    arrivals: Arrivals,
    writer: Box<dyn SignalWriter>,
    flush: Option<Flush>,
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
        Ok(Self {
            arrivals: Arrivals::new(memory.base, memory.length_bytes),
            writer,
            flush: flush.then(|| Flush::new(region)).transpose()?,
            received: Vec::with_capacity(SIGNALS_EXPECTED),
            flushing: Vec::with_capacity(SIGNALS_EXPECTED),
        })
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
    pub(super) fn raise(&mut self, adapter: &Adapter) -> std::result::Result<(), TransportCause> {
        let Some(flush) = &mut self.flush else {
            if !self.received.is_empty() {
                self.writer.raise(&self.received)?;
                self.received.clear();
            }
            return Ok(());
        };
        let queue = flush.queue();
        let numbers = queue.numbers();
        let failed = |code| fault::call(adapter, numbers, "the flushing read", code);
        if flush.is_in_flight() {
            match flush.poll() {
                Ok(false) => return Ok(()),
                Ok(true) => {}
                Err(Failure::Call(code)) => return Err(failed(code)),
                Err(Failure::Completion(status, vendor_code)) => {
                    return Err(fault::completion(adapter, flush.queue(), status, vendor_code));
                }
            }
            self.writer.raise(&self.flushing)?;
            self.flushing.clear();
        }
        if !self.received.is_empty() {
            std::mem::swap(&mut self.received, &mut self.flushing);
            flush.begin().map_err(failed)?;
        }
        Ok(())
    }
}
