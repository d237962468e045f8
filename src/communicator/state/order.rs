//! The order of launches across streams and threads.
//!
//! Launches of one rank share its ring, its slots and its signals, so each begins after the one
//! before has ended, on whatever stream it is enqueued. On one stream the stream sees to that;
//! between streams an event does.
//!
//! A stream of its own has a handle that means the same stream in every thread, and for as long as
//! it is held here the driver gives the handle to no other. The handles of default streams (NULL,
//! `CU_STREAM_LEGACY`, `CU_STREAM_PER_THREAD`) are names: which stream they mean depends on the
//! current context, and the last one also on the calling thread. They are never compared, and the
//! end of a launch on such a stream is recorded at once, by the thread that launched: another
//! thread could not name that stream.

use crate::error::{Error, Result};
use crate::gpu::keeping_errors;
use crate::lived::Lived;
use cudarc::driver::{CudaEvent, CudaStream};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The greatest handle that names a default stream: `CU_STREAM_PER_THREAD`.
const DEFAULT_STREAM_MAX: usize = 2;

/// The last launch of a rank, and where it ends.
#[derive(Debug, Default)]
pub(crate) struct LaunchOrder {
    /// The stream of the last launch.
    last: Option<Arc<CudaStream>>,
    /// Made when it is first needed.
    event: Option<CudaEvent>,
    /// True if `event` holds the end of the last launch.
    is_recorded: bool,
    /// Launches came on more than one stream: each is followed by its event.
    has_several: bool,
}

/// The launches of captures, one order for each: events of one mean nothing in another, and when a
/// capture ends nobody is told. Those used last are kept.
#[derive(Debug, Default)]
pub(crate) struct CapturedOrders(VecDeque<(u64, LaunchOrder)>);

/// Captures of one communicator that go on at the same time, at most. With more, branches of one
/// capture may lose their order, which then shows as data that does not arrive.
const CAPTURES_MAX: usize = 64;

impl CapturedOrders {
    /// Was there never one?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The launches of the capture with this number.
    pub fn of(&mut self, capture: u64) -> &mut LaunchOrder {
        let known = self.0.iter().position(|(number, _)| *number == capture);
        let index = known.unwrap_or_else(|| {
            if self.0.len() == CAPTURES_MAX {
                self.0.pop_front();
            }
            self.0.push_back((capture, LaunchOrder::default()));
            self.0.len() - 1
        });
        &mut self.0[index].1
    }
}

/// Does the handle name a default stream?
fn is_default(stream: &CudaStream) -> bool {
    stream.cu_stream() as usize <= DEFAULT_STREAM_MAX
}

/// Are both the same stream, so that what was enqueued first also ends first? False where that
/// cannot be known.
fn is_same(one: &CudaStream, other: &CudaStream) -> bool {
    !is_default(one) && one.cu_stream() == other.cu_stream()
}

impl LaunchOrder {
    /// Makes `stream` wait for the launches before. To be called before anything is enqueued for a
    /// launch.
    pub fn enter(&mut self, stream: &Arc<CudaStream>) -> Result<()> {
        let Some(last) = self.last.clone() else { return Ok(()) };
        if is_same(&last, stream) {
            return Ok(());
        }
        self.has_several = true;
        if !self.is_recorded {
            // Only a stream of its own is left unrecorded. The first change waits for all that it
            // holds at this moment.
            self.record(&last)?;
        }
        let event = self.event.as_ref().expect("recorded just now, or after the launch");
        keeping_errors(stream.context(), || stream.wait(event))
            .map_err(Error::from_driver("cuStreamWaitEvent"))
    }

    /// A launch was enqueued on `stream`.
    pub fn leave(&mut self, stream: &Arc<CudaStream>) -> Result<()> {
        self.last = Some(stream.clone());
        self.is_recorded = false;
        if self.has_several || is_default(stream) {
            self.record(stream)?;
        }
        Ok(())
    }

    fn record(&mut self, stream: &CudaStream) -> Result<()> {
        let recorded = keeping_errors(stream.context(), || match &self.event {
            Some(event) => event.record(stream).map(|()| None),
            None => stream.record_event(None).map(Some),
        });
        if let Some(made) = recorded.map_err(Error::from_driver("cuEventRecord"))? {
            self.event = Some(made);
        }
        self.is_recorded = true;
        Ok(())
    }

    /// Waits until all launches have ended, at most `limit`. False if they have not.
    pub fn wait(&self, limit: Duration) -> bool {
        let Some(last) = &self.last else { return true };
        let made;
        let event = match &self.event {
            Some(event) if self.is_recorded => event,
            _ => match keeping_errors(last.context(), || last.record_event(None)) {
                Ok(event) => {
                    made = event;
                    &made
                }
                // A failed context runs nothing any more.
                Err(_) => return true,
            },
        };
        let mut lived = Lived::new();
        loop {
            match event.try_is_complete() {
                Ok(true) | Err(_) => return true,
                Ok(false) if lived.look() >= limit => return false,
                Ok(false) => std::thread::sleep(Duration::from_micros(50)),
            }
        }
    }
}
