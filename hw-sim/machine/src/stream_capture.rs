//! Streams in captures.

use crate::driver::capture::{CaptureStatus, Graph, Mode, Point};
use crate::error::{CaptureError, Result};
use crate::stream::{Stream, StreamKind};
use std::sync::Arc;

impl Stream {
    /// Is the stream captured?
    #[inline]
    pub fn is_captured(&self) -> bool {
        self.captured.is_captured()
    }

    /// The stream's state, and its capture's number.
    pub fn capture_status(&self) -> (CaptureStatus, u64) {
        self.captured.status()
    }

    /// Begins a capture.
    pub fn begin_capture(&self, mode: Mode) -> Result<()> {
        self.captured.begin(&self.context.machine.captures, mode)
    }

    /// Ends the capture that began in this stream.
    pub fn end_capture(&self) -> Result<Graph> {
        self.captured.end(&self.context.machine.captures)
    }

    /// The stream goes: a capture that began in it goes, too, and forbids nothing any more.
    pub fn abandon_capture(&self) {
        self.captured.abandon(&self.context.machine.captures);
    }

    /// Refuses, and invalidates the stream's capture if it has one: for calls that no capture
    /// survives, in whatever mode.
    pub fn refuse_if_captured(&self) -> Result<()> {
        self.captured.refuse()
    }

    /// The default stream would wait for blocking streams, and be waited for: not while one of
    /// them is captured.
    pub fn refuse_if_implicit(&self) -> Result<()> {
        if !self.context.machine.captures.any() || self.kind != StreamKind::Legacy {
            return Ok(());
        }
        let blocking =
            |stream: &Arc<Self>| stream.kind == StreamKind::Blocking && stream.is_captured();
        match self.siblings().into_iter().find(blocking) {
            Some(captured) => {
                let _ = captured.refuse_if_captured();
                Err(CaptureError::Implicit.into())
            }
            None => Ok(()),
        }
    }

    /// The point in its capture at which the stream is, if it has one.
    pub(crate) fn capture_point(&self) -> Option<Point> {
        self.captured.point()
    }

    /// The stream's next command comes after a point in a capture, which it joins.
    pub(crate) fn join_capture(&self, point: &Point) -> Result<()> {
        self.captured.join(point)
    }

    /// A captured stream cannot wait for what is outside of its capture.
    pub(crate) fn refuse_outside_wait(&self) -> Result<()> {
        self.captured.refuse_outside_wait()
    }
}
