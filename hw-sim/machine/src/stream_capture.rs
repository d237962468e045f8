//! Streams in captures.

use crate::command::{Command, Place};
use crate::driver::capture::{CaptureInfo, CaptureStatus, Mode, Point};
use crate::error::{CaptureError, Error, Result};
use crate::graph::{Executable, Graph, NodeId, Work};
use crate::stream::{Stream, StreamKind};
use std::sync::Arc;

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`
const AUTO_FREE: u64 = 1;

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

    /// What programs ask about its capture, if it has one.
    pub fn capture_info(&self) -> Option<CaptureInfo> {
        self.captured.info()
    }

    /// The next command of its capture comes after these nodes, too, or after these alone.
    pub fn capture_after(&self, nodes: &[NodeId], alone: bool) -> Result<()> {
        self.captured.come_after(nodes, alone)
    }

    /// Notes work for the graph of its capture.
    pub fn note(&self, work: Work) {
        self.captured.note(Some(work));
    }

    /// Begins a capture: into a new graph, or into this one, after some of its nodes.
    pub fn begin_capture(&self, mode: Mode, into: Option<(Arc<Graph>, Vec<NodeId>)>) -> Result<()> {
        self.captured.begin(&self.context.machine.captures, mode, into)
    }

    /// Launches a graph in stream order, after all earlier launches of it. A captured stream's
    /// graph gets a copy of it as a node.
    pub fn launch_graph(self: &Arc<Self>, executable: &Executable) -> Result<()> {
        self.context.check_told()?;
        if self.is_captured() {
            if executable.has_memory() {
                let text = "a graph that allocates or frees memory cannot be a child";
                return Err(Error::InvalidValue(text.into()));
            }
            self.note(Work::Child(executable.to_graph()));
            return Ok(());
        }
        let ended = executable.take_memory(executable.flags & AUTO_FREE != 0)?;
        let launches = &executable.launches;
        let (before, number) = launches.add_after();
        if before > 0 && !launches.has_reached(before) {
            self.submit(Command::WaitEvent(Arc::clone(launches), before));
        }
        ended.into_iter().for_each(|memory| self.submit(Command::EndReserved(memory)));
        let place: Arc<dyn Place> = self.context.clone();
        self.submit(Command::Graph(executable.launch(place)));
        self.submit(Command::Record(Arc::clone(launches), number));
        Ok(())
    }

    /// Ends the capture that began in this stream.
    pub fn end_capture(&self) -> Result<Arc<Graph>> {
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
