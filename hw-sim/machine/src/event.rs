//! Events: points in streams.

use crate::context::Context;
use crate::error::{Error, Result};
use crate::stream::{Command, Stream};
use std::sync::{Arc, Condvar, Mutex};

/// A point in a stream that others wait for, look at, or measure time with.
pub struct Event {
    /// The context it belongs to.
    pub context: Arc<Context>,
    /// Does it keep time?
    pub timing: bool,
    state: Mutex<State>,
    done: Condvar,
}

/// Each record of an event has a number; the event is complete when its latest record is.
#[derive(Default)]
struct State {
    recorded: u64,
    completed: u64,
    completed_ns: u64,
    waiting: Vec<(u64, Arc<Stream>)>,
}

impl Event {
    /// An event that was never recorded counts as complete.
    pub fn new(context: Arc<Context>, timing: bool) -> Arc<Self> {
        let (state, done) = (Mutex::default(), Condvar::new());
        Arc::new(Self { context, timing, state, done })
    }

    /// Records the event in a stream.
    pub fn record(self: &Arc<Self>, stream: &Arc<Stream>) -> Result<()> {
        if self.context.id != stream.context.id {
            return Err(Error::InvalidHandle("event and stream are of different contexts".into()));
        }
        stream.context.check()?;
        let number = {
            let mut state = self.state.lock().unwrap();
            state.recorded += 1;
            state.recorded
        };
        stream.submit(Command::Record(Arc::clone(self), number));
        Ok(())
    }

    /// Makes a stream wait for the latest record.
    pub fn wait(self: &Arc<Self>, stream: &Arc<Stream>) -> Result<()> {
        stream.context.check()?;
        let number = self.state.lock().unwrap().recorded;
        stream.submit(Command::WaitEvent(Arc::clone(self), number));
        Ok(())
    }

    /// Is the latest record complete?
    pub fn is_complete(&self) -> bool {
        let state = self.state.lock().unwrap();
        state.completed >= state.recorded
    }

    /// Blocks until the record that is the latest now is complete.
    pub fn synchronize(&self) {
        let mut state = self.state.lock().unwrap();
        let number = state.recorded;
        while state.completed < number {
            state = self.done.wait(state).unwrap();
        }
    }

    /// Milliseconds from `start` to this event.
    pub fn elapsed_ms(&self, start: &Self) -> Result<f32> {
        let time = |event: &Self| {
            if !event.timing {
                return Err(Error::InvalidHandle("an event without timing was asked".into()));
            }
            let state = event.state.lock().unwrap();
            match state.recorded {
                0 => Err(Error::InvalidHandle("the event was never recorded".into())),
                latest if state.completed < latest => Err(Error::NotReady),
                _ => Ok(state.completed_ns),
            }
        };
        let (from, to) = (time(start)?, time(self)?);
        Ok((to as f64 - from as f64) as f32 / 1e6)
    }

    /// The stream reached the record with this number.
    pub(crate) fn complete(&self, number: u64, now_ns: u64) {
        let released: Vec<_> = {
            let mut state = self.state.lock().unwrap();
            if number > state.completed {
                state.completed = number;
                state.completed_ns = now_ns;
            }
            let completed = state.completed;
            self.done.notify_all();
            state.waiting.extract_if(.., |(wanted, _)| *wanted <= completed).collect()
        };
        for (_, stream) in released {
            stream.head_done();
        }
    }

    /// True if the record is complete; otherwise `stream` is told when it is.
    pub(crate) fn complete_or_tell(&self, number: u64, stream: &Arc<Stream>) -> bool {
        let mut state = self.state.lock().unwrap();
        let complete = state.completed >= number;
        if !complete {
            state.waiting.push((number, Arc::clone(stream)));
        }
        complete
    }
}
