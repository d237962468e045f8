//! Middleware that records what goes through it.

use super::{Polled, Transfer, Transport, TransportError};
use std::sync::{Arc, Mutex, PoisonError};

/// One call that went through a [`Traced`] transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A transfer was offered and taken.
    Accepted(Transfer),
    /// A transfer was offered first and not taken.
    Refused(Transfer),
    /// This many transfers ended.
    Completed(u64),
    /// The transport failed.
    Failed(TransportError),
}

/// What was recorded; clones read the same record.
#[derive(Clone, Default)]
pub struct Trace {
    events: Arc<Mutex<Vec<Event>>>,
    events_max: usize,
}

impl Trace {
    /// All events so far, oldest first.
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The transfers that were taken, in order.
    pub fn accepted(&self) -> Vec<Transfer> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = |event: &Event| match event {
            Event::Accepted(transfer) => Some(*transfer),
            _ => None,
        };
        events.iter().filter_map(taken).collect()
    }

    /// Keeps the first `events_max` events: the beginning of a run explains the rest of it.
    fn record(&self, event: Event) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() < self.events_max {
            events.push(event);
        }
    }
}

/// Records every call to the transport below.
pub struct Traced<T> {
    inner: T,
    trace: Trace,
}

impl<T: Transport> Traced<T> {
    /// Records up to `events_max` events of `inner`.
    pub fn new(inner: T, events_max: usize) -> (Self, Trace) {
        let trace = Trace { events: Arc::default(), events_max };
        (Self { inner, trace: trace.clone() }, trace)
    }
}

impl<T: Transport> Transport for Traced<T> {
    fn submit(&mut self, batch: &[Transfer]) -> Result<usize, TransportError> {
        let result = self.inner.submit(batch);
        match &result {
            Ok(accepted) => {
                let accepted = (*accepted).min(batch.len());
                for transfer in &batch[..accepted] {
                    self.trace.record(Event::Accepted(*transfer));
                }
                if let Some(refused) = batch.get(accepted) {
                    self.trace.record(Event::Refused(*refused));
                }
            }
            Err(error) => self.trace.record(Event::Failed(error.clone())),
        }
        result
    }

    fn listens(&self) -> bool {
        self.inner.listens()
    }

    fn poll(&mut self) -> Result<Polled, TransportError> {
        let result = self.inner.poll();
        match &result {
            Ok(polled) if polled.completed > 0 => {
                self.trace.record(Event::Completed(polled.completed));
            }
            Ok(_) => {}
            Err(error) => self.trace.record(Event::Failed(error.clone())),
        }
        result
    }
}
