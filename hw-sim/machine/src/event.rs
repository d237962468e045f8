//! Events: points in streams.

use crate::context::Context;
use crate::driver::capture::Point;
use crate::error::{CaptureError, Error, Result};
use crate::memory::{IpcHandle, SharedWords};
use crate::stream::{Command, Stream};
use crate::wait_value::{Condition, WaitValue};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// A point in a stream that others wait for, look at, or measure time with.
pub struct Event {
    /// The context it belongs to.
    pub context: Arc<Context>,
    /// Does it keep time?
    pub timing: bool,
    state: Mutex<EventState>,
    done: Condvar,
    /// The numbers of an interprocess event, which replace those in `state`.
    shared: Option<SharedWords>,
}

/// Which of the shared words is the number of the latest record.
const RECORDED: usize = 0;
/// Which is that of the latest complete one.
const COMPLETED: usize = 1;
/// How long a thread that waits for another process's record sleeps between looks: short at first,
/// twice as long each time, up to the second number.
const NAPS: [Duration; 2] = [Duration::from_micros(10), Duration::from_millis(1)];

/// Each record of an event has a number; the event is complete when its latest record is.
#[derive(Default)]
struct EventState {
    recorded: u64,
    completed: u64,
    completed_ns: u64,
    /// Where in a capture it was recorded last, if it was.
    captured: Option<Point>,
    waiting: Vec<(u64, Arc<Stream>)>,
}

impl Event {
    /// An event that was never recorded counts as complete.
    pub fn new(context: Arc<Context>, timing: bool) -> Arc<Self> {
        Self::with(context, timing, None)
    }

    fn with(context: Arc<Context>, timing: bool, shared: Option<SharedWords>) -> Arc<Self> {
        let (state, done) = (Mutex::default(), Condvar::new());
        Arc::new(Self { context, timing, state, done, shared })
    }

    /// An event that other processes can open. It keeps no time.
    pub fn interprocess(context: Arc<Context>) -> Result<Arc<Self>> {
        let words = SharedWords::create(&context.machine.memory)?;
        Ok(Self::with(context, false, Some(words)))
    }

    /// A handle of an interprocess event, for other processes.
    pub fn export(&self) -> Result<IpcHandle> {
        match &self.shared {
            Some(words) => words.export(),
            None => Err(Error::InvalidHandle("not an interprocess event".into())),
        }
    }

    /// The event that another process exported.
    pub fn open(context: Arc<Context>, handle: &IpcHandle) -> Result<Arc<Self>> {
        let words = SharedWords::open(&context.machine.memory, handle)?;
        Ok(Self::with(context, false, Some(words)))
    }

    /// Records the event in a stream.
    pub fn record(self: &Arc<Self>, stream: &Arc<Stream>) -> Result<()> {
        if self.context.id != stream.context.id {
            return Err(Error::InvalidHandle("event and stream are of different contexts".into()));
        }
        stream.context.check()?;
        let point = if stream.is_captured() { stream.capture_point() } else { None };
        if point.is_some() {
            self.state.lock().unwrap().captured = point;
            return Ok(());
        }
        let number = match &self.shared {
            // Relaxed: numbers differ, whoever takes them; what is waited for is the other word.
            Some(words) => words.word(RECORDED).fetch_add(1, Ordering::Relaxed) + 1,
            None => {
                let mut state = self.state.lock().unwrap();
                state.recorded += 1;
                state.captured = None;
                state.recorded
            }
        };
        stream.submit(Command::Record(Arc::clone(self), number));
        Ok(())
    }

    /// Makes a stream wait for the latest record.
    pub fn wait(self: &Arc<Self>, stream: &Arc<Stream>) -> Result<()> {
        stream.context.check()?;
        if let Some(words) = &self.shared {
            let value = words.word(RECORDED).load(Ordering::Relaxed);
            let (address, condition) = (words.address(COMPLETED), Condition::AtLeast);
            let wait = WaitValue { address, value, condition, wide: true };
            stream.submit(Command::WaitValue(wait));
            return Ok(());
        }
        let (number, point) = {
            let state = self.state.lock().unwrap();
            (state.recorded, state.captured.clone())
        };
        match point {
            Some(point) => return stream.join_capture(&point),
            None if number > 0 && stream.is_captured() => return stream.refuse_outside_wait(),
            None => stream.submit(Command::WaitEvent(Arc::clone(self), number)),
        }
        Ok(())
    }

    /// Refuses what has no meaning for an event that was recorded in a capture.
    pub fn refuse_if_captured(&self) -> Result<()> {
        match self.state.lock().unwrap().captured {
            Some(_) => Err(CaptureError::CapturedEvent.into()),
            None => Ok(()),
        }
    }

    /// Is the latest record complete?
    pub fn is_complete(&self) -> bool {
        if let Some(words) = &self.shared {
            let recorded = words.word(RECORDED).load(Ordering::Relaxed);
            // Acquire pairs with `complete`, in whatever process.
            return words.word(COMPLETED).load(Ordering::Acquire) >= recorded;
        }
        let state = self.state.lock().unwrap();
        state.completed >= state.recorded
    }

    /// Blocks until the record that is the latest now is complete.
    pub fn synchronize(&self) {
        if let Some(words) = &self.shared {
            let number = words.word(RECORDED).load(Ordering::Relaxed);
            let mut nap = NAPS[0];
            // As for every event, it is the recorder's stream that ends the wait. Acquire pairs
            // with `complete`.
            while words.word(COMPLETED).load(Ordering::Acquire) < number {
                std::thread::sleep(nap);
                nap = (2 * nap).min(NAPS[1]);
            }
            return;
        }
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
                return Err(Error::InvalidHandle("an event without timing was queried".into()));
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
        if let Some(words) = &self.shared {
            // Release: who sees the number sees the stream's work before it. Pairs with
            // `is_complete`, `synchronize`, and `WaitValue::is_met`.
            words.word(COMPLETED).fetch_max(number, Ordering::Release);
            return;
        }
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

    /// True if the record is complete; otherwise `stream` is notified when it is.
    pub(crate) fn complete_or_notify(&self, number: u64, stream: &Arc<Stream>) -> bool {
        let mut state = self.state.lock().unwrap();
        let complete = state.completed >= number;
        if !complete {
            state.waiting.push((number, Arc::clone(stream)));
        }
        complete
    }
}
