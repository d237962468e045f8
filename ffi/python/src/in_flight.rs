//! What keeps the arrays of calls that a GPU has not ended yet.

use cudarc::driver::{CudaContext, CudaEvent, CudaStream};
use pyo3::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;

/// Objects whose memory is in use. Calls end in the order in which they were made: all of them are
/// on one stream.
#[derive(Default)]
pub struct InFlight {
    calls: VecDeque<(CudaEvent, Vec<Py<PyAny>>)>,
    /// Events of calls that have ended, to be recorded again.
    free: Vec<CudaEvent>,
    /// What graphs use, which may be launched at any time.
    captured: Vec<Py<PyAny>>,
}

impl InFlight {
    /// Keeps `objects` until `stream` has passed this point; for ever if it is being captured.
    ///
    /// # Errors
    /// As [`CudaContext::new_event`]; the objects are then kept for ever.
    pub fn keep(
        &mut self,
        context: &Arc<CudaContext>,
        stream: &CudaStream,
        is_captured: bool,
        objects: Vec<Py<PyAny>>,
    ) -> Result<(), cudarc::driver::DriverError> {
        if is_captured {
            self.captured.extend(objects);
            return Ok(());
        }
        let recorded = match self.free.pop() {
            Some(event) => Ok(event),
            None => context.new_event(None),
        }
        .and_then(|event| event.record(stream).map(|()| event));
        match recorded {
            Ok(event) => {
                self.calls.push_back((event, objects));
                Ok(())
            }
            Err(error) => {
                self.captured.extend(objects);
                Err(error)
            }
        }
    }

    /// The objects of calls that have ended, which whoever holds no lock may drop: that may run
    /// code of the program.
    pub fn ended(&mut self) -> Vec<Py<PyAny>> {
        let mut ended = Vec::new();
        while self.calls.front().is_some_and(|(event, _)| event.is_complete()) {
            if let Some((event, objects)) = self.calls.pop_front() {
                self.free.push(event);
                ended.extend(objects);
            }
        }
        ended
    }
}
