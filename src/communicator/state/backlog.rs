//! Launches ahead of their end are bounded.
//!
//! A driver takes about a thousand commands of a context; the call that finds no room blocks, and
//! with it every call on that context, those of the rank's engine too. The kernels that would make
//! room wait for this engine. So a caller that runs ahead is held back here, where engines go on.

use crate::error::{Error, Result};
use crate::gpu::{keeping_errors, outside_captures};
use cudarc::driver::{CudaEvent, CudaStream};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// One launch of so many is followed by an event.
const STRIDE: u32 = 32;
/// The most events whose end is not known: launches ahead are at most this many strides, and the
/// one that has begun. Each launch brings a few commands more, of cudarc and of copies, so that one
/// rank stays below a thousand; ranks that share a context share the number.
const MARKS_MAX: usize = 4;
/// Between two looks at the oldest event.
const PAUSE: Duration = Duration::from_micros(20);

/// The launches of a rank that are not known to have ended.
#[derive(Debug)]
pub(super) struct Backlog {
    is_bounded: bool,
    marks_max: usize,
    /// Launches since the last mark.
    unmarked: u32,
    marks: VecDeque<CudaEvent>,
    /// Marks that have come, to be used again.
    spare: Vec<CudaEvent>,
}

impl Backlog {
    /// No launch yet.
    pub fn new(is_bounded: bool) -> Self {
        let (marks, spare) = (VecDeque::new(), Vec::new());
        Self { is_bounded, marks_max: MARKS_MAX, unmarked: 0, marks, spare }
    }

    /// So many ranks share the context.
    pub fn share(&mut self, ranks: usize) {
        self.marks_max = (MARKS_MAX / ranks.max(1)).max(1);
    }

    /// Waits until one more may be launched. `check` says whether the communicator is well.
    ///
    /// # Errors
    /// That of `check`; [`Error::HostWaitExpired`] after `limit`.
    pub fn make_room(&mut self, limit: Duration, check: impl Fn() -> Result<()>) -> Result<()> {
        let Some(oldest) = self.marks.front().filter(|_| self.marks.len() >= self.marks_max) else {
            return Ok(());
        };
        let began = Instant::now();
        // An event of a context that has failed counts as come: the launch will say what it is.
        while !outside_captures(|| oldest.try_is_complete()).unwrap_or(true) {
            check()?;
            if began.elapsed() > limit {
                return Err(Error::HostWaitExpired {
                    what: "earlier launches, of which a rank may be only so many ahead".into(),
                    expected: format!("at most {} that have not ended", self.ahead_max()),
                    seen: "more; where one thread drives several ranks, it must enqueue each \
                           collective on all of them before the next"
                        .into(),
                    waited: began.elapsed(),
                });
            }
            std::thread::sleep(PAUSE);
        }
        self.spare.extend(self.marks.pop_front());
        Ok(())
    }

    /// A launch was enqueued on `stream`.
    pub fn launched(&mut self, stream: &CudaStream) -> Result<()> {
        self.unmarked += 1;
        if !self.is_bounded || self.unmarked < STRIDE {
            return Ok(());
        }
        self.unmarked = 0;
        let failed = Error::from_driver("cuEventRecord");
        let mark = keeping_errors(stream.context(), || match self.spare.pop() {
            Some(event) => event.record(stream).map(|()| event),
            None => stream.record_event(None),
        });
        self.marks.push_back(mark.map_err(failed)?);
        Ok(())
    }

    /// The most launches that have not ended.
    fn ahead_max(&self) -> u32 {
        STRIDE * (self.marks_max as u32 + 1)
    }
}
