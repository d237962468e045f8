//! The streams on which a rank's unfinished launches are, of which ranks that share a GPU may have
//! only so many at a time.
//!
//! Launches of a rank are in order, so those on its second stream wait for those on its first. A
//! command that waits stops its hardware queue, and all that stands behind it there. Where ranks
//! share a GPU they share its queues: with as many waiting streams as there are queues, the launch
//! of another rank, for which the first one waits, stands behind one that waits for it. So a caller
//! is held back before its rank has launches on more streams than is its part.

use super::streams::StreamName;
use crate::error::{Error, Result};
use crate::gpu::{keeping_errors, outside_captures};
use crate::lived::Lived;
use cudarc::driver::{CudaEvent, CudaStream};
use std::collections::VecDeque;
use std::time::Duration;

/// Between two looks at the oldest event.
const PAUSE: Duration = Duration::from_micros(20);

/// The streams that are not known to have ended a rank's launches.
#[derive(Debug, Default)]
pub(super) struct BusyStreams {
    /// At most so many; None: any number.
    most: Option<usize>,
    /// Each with the end of its last launch; the one that was used longest ago first.
    busy: VecDeque<(StreamName, CudaEvent)>,
}

impl BusyStreams {
    /// From now on, at most so many.
    pub fn bound(&mut self, most: u32) {
        self.most = Some(most.max(1) as usize);
    }

    /// Waits until a launch may be made on `stream`. `check` says whether the communicator is well.
    ///
    /// # Errors
    /// That of `check`; [`Error::HostWaitExpired`] after `limit`.
    pub fn make_room(
        &mut self,
        stream: &CudaStream,
        limit: Duration,
        check: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let Some(most) = self.most else { return Ok(()) };
        let name = StreamName::of(stream);
        let mut lived = Lived::new();
        loop {
            let is_new = self.busy.iter().all(|(busy, _)| *busy != name);
            if !is_new || self.busy.len() < most {
                return Ok(());
            }
            // An event of a context that has failed counts as come: the launch will say what it is.
            let has_ended = |end: &CudaEvent| end.try_is_complete().unwrap_or(true);
            outside_captures(|| self.busy.retain(|(_, end)| !has_ended(end)));
            if self.busy.len() < most {
                return Ok(());
            }
            check()?;
            if lived.look() > limit {
                return Err(Error::HostWaitExpired {
                    what: "earlier launches on other streams: ranks that share a GPU share its \
                           hardware queues (CUDA_DEVICE_MAX_CONNECTIONS)"
                        .into(),
                    expected: format!("launches that have not ended on at most {most} streams"),
                    seen: "more; where one thread drives several ranks, it must enqueue each \
                           collective on all of them before the next"
                        .into(),
                    waited: lived.time(),
                });
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// A launch was enqueued on `stream`.
    ///
    /// # Errors
    /// [`Error::Cuda`] with the driver's answer.
    pub fn launched(&mut self, stream: &CudaStream) -> Result<()> {
        if self.most.is_none() {
            return Ok(());
        }
        let name = StreamName::of(stream);
        let known = self.busy.iter().position(|(busy, _)| *busy == name);
        let event = known.and_then(|index| self.busy.remove(index)).map(|(_, event)| event);
        let recorded = keeping_errors(stream.context(), || match event {
            Some(event) => event.record(stream).map(|()| event),
            None => stream.record_event(None),
        });
        self.busy.push_back((name, recorded.map_err(Error::from_driver("cuEventRecord"))?));
        Ok(())
    }
}
