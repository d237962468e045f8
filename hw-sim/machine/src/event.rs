//! Events: points in streams.

use crate::command::Command;
use crate::context::Context;
use crate::driver::capture::Point;
use crate::error::{CaptureError, Error, Result};
use crate::graph::Work;
use crate::memory::{IpcHandle, SharedWords};
use crate::record::Records;
use crate::stream::Stream;
use std::sync::{Arc, Mutex};

/// A point in a stream that others wait for, look at, or measure time with. It is complete when its
/// latest record is.
pub struct Event {
    /// The context it belongs to.
    pub context: Arc<Context>,
    /// Does it keep time?
    pub timing: bool,
    records: Arc<Records>,
    /// Where in a capture it was recorded last, if it was. Locked while a record is added.
    captured: Mutex<Option<Point>>,
}

impl Event {
    /// An event that was never recorded counts as complete.
    pub fn new(context: Arc<Context>, timing: bool) -> Arc<Self> {
        Self::with(context, timing, Records::default())
    }

    fn with(context: Arc<Context>, timing: bool, records: Records) -> Arc<Self> {
        Arc::new(Self { context, timing, records: Arc::new(records), captured: Mutex::default() })
    }

    /// An event that other processes can open. It keeps no time.
    pub fn interprocess(context: Arc<Context>) -> Result<Arc<Self>> {
        let words = SharedWords::create(&context.machine.memory)?;
        Ok(Self::with(context, false, Records::shared(words)))
    }

    /// A handle of an interprocess event, for other processes.
    pub fn export(&self) -> Result<IpcHandle> {
        self.records.export()
    }

    /// The event that another process exported.
    pub fn open(context: Arc<Context>, handle: &IpcHandle) -> Result<Arc<Self>> {
        let words = SharedWords::open(&context.machine.memory, handle)?;
        Ok(Self::with(context, false, Records::shared(words)))
    }

    /// Records the event in a stream.
    pub fn record(&self, stream: &Arc<Stream>) -> Result<()> {
        if self.context.id != stream.context.id {
            return Err(Error::InvalidHandle("event and stream are of different contexts".into()));
        }
        stream.context.check_told()?;
        let point = stream.capture_point();
        let number = {
            let mut captured = self.captured.lock().unwrap();
            *captured = point;
            if captured.is_some() {
                return Ok(());
            }
            self.records.add()
        };
        stream.submit(Command::Record(Arc::clone(&self.records), number));
        Ok(())
    }

    /// Adds a record of the event to the graph that a captured stream makes.
    pub fn record_in_graph(&self, stream: &Stream) -> Result<()> {
        self.note_in_graph(stream, Work::Record)
    }

    /// Adds a wait for the event to the graph that a captured stream makes.
    pub fn wait_in_graph(&self, stream: &Stream) -> Result<()> {
        self.note_in_graph(stream, Work::Wait)
    }

    fn note_in_graph(&self, stream: &Stream, work: fn(Arc<Records>) -> Work) -> Result<()> {
        stream.context.check_told()?;
        if !stream.is_captured() {
            let text = "an external record or wait needs a stream that is captured";
            return Err(Error::InvalidValue(text.into()));
        }
        stream.note(work(self.records()));
        Ok(())
    }

    /// Its records, as nodes of graphs keep them.
    pub fn records(&self) -> Arc<Records> {
        Arc::clone(&self.records)
    }

    /// Makes a stream wait for the latest record.
    pub fn wait(&self, stream: &Arc<Stream>) -> Result<()> {
        stream.context.check_told()?;
        let is_outside = || self.captured.lock().unwrap().is_none() && self.records.latest() > 0;
        if stream.is_captured() && is_outside() {
            return stream.refuse_outside_wait();
        }
        if let Some(wait) = self.records.wait_in_memory().filter(|_| !stream.is_captured()) {
            stream.submit(Command::WaitValue(wait));
            return Ok(());
        }
        let (number, point) = {
            let captured = self.captured.lock().unwrap();
            (self.records.latest(), captured.clone())
        };
        match point {
            Some(point) => return stream.join_capture(&point),
            // Never recorded: there is nothing to wait for.
            None if number == 0 => {}
            None => stream.submit(Command::WaitEvent(Arc::clone(&self.records), number)),
        }
        Ok(())
    }

    /// Refuses what has no meaning for an event that was recorded in a capture.
    pub fn refuse_if_captured(&self) -> Result<()> {
        match *self.captured.lock().unwrap() {
            Some(_) => Err(CaptureError::CapturedEvent.into()),
            None => Ok(()),
        }
    }

    /// Is the latest record complete?
    pub fn is_complete(&self) -> bool {
        self.records.is_complete()
    }

    /// Blocks until the record that is the latest now is complete.
    pub fn synchronize(&self) {
        self.records.synchronize();
    }

    /// Milliseconds from `start` to this event.
    pub fn elapsed_ms(&self, start: &Self) -> Result<f32> {
        let time = |event: &Self| {
            if !event.timing {
                return Err(Error::InvalidHandle("an event without timing was queried".into()));
            }
            event.records.completed_ns()
        };
        let (from, to) = (time(start)?, time(self)?);
        Ok((to as f64 - from as f64) as f32 / 1e6)
    }
}
