//! Launches ahead of their end are bounded.
//!
//! A driver takes about a thousand commands of a context; the call that finds no room blocks, and
//! with it every call on that context, those of the rank's engine too. The kernels that would make
//! room wait for this engine. So a caller that runs ahead is held back here, where engines go on.

use crate::error::{Error, Result};
use crate::gpu::{COMMANDS_USUAL, keeping_errors, outside_captures};
use crate::lived::Lived;
use cudarc::driver::{CudaEvent, CudaStream};
use std::collections::VecDeque;
use std::time::Duration;

/// What a call brings at most: its launch, a copy of its plan, marks of ours and of cudarc, which
/// records and waits for the uses of buffers.
const LAUNCH_COMMANDS: u32 = 6;
/// The most events whose end is not known: launches ahead are at most this many strides, and the
/// one that has begun.
const MARKS_MAX: u32 = 4;
/// A rank that may not be so many launches ahead cannot make its calls beside those of others.
const AHEAD_MIN: u32 = 2;
/// Between two looks at the oldest event.
const PAUSE: Duration = Duration::from_micros(20);

/// The launches of a rank that are not known to have ended.
#[derive(Debug)]
pub(super) struct Backlog {
    is_bounded: bool,
    /// Behind so many launches an event is recorded.
    stride: u32,
    marks_max: u32,
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
        let (stride, marks_max) = steps(COMMANDS_USUAL / LAUNCH_COMMANDS);
        Self { is_bounded, stride, marks_max, unmarked: 0, marks, spare }
    }

    /// Of the commands that the driver takes, this rank may have so many.
    pub fn share(&mut self, commands: u32) {
        (self.stride, self.marks_max) = steps(commands / LAUNCH_COMMANDS);
    }

    /// Waits until one more may be launched. `check` says whether the communicator is well.
    ///
    /// # Errors
    /// That of `check`; [`Error::HostWaitExpired`] after `limit`.
    pub fn make_room(&mut self, limit: Duration, check: impl Fn() -> Result<()>) -> Result<()> {
        let Some(oldest) =
            self.marks.front().filter(|_| self.marks.len() >= self.marks_max as usize)
        else {
            return Ok(());
        };
        let mut lived = Lived::new();
        // An event of a context that has failed counts as come: the launch will say what it is.
        while !outside_captures(|| oldest.try_is_complete()).unwrap_or(true) {
            check()?;
            if lived.look() > limit {
                return Err(Error::HostWaitExpired {
                    what: "earlier launches, of which a rank may be only so many ahead".into(),
                    expected: format!("at most {} that have not ended", self.ahead_max()),
                    seen: "more; where one thread drives several ranks, it must enqueue each \
                           collective on all of them before the next"
                        .into(),
                    waited: lived.time(),
                });
            }
            std::thread::sleep(PAUSE);
        }
        self.spare.extend(self.marks.pop_front());
        Ok(())
    }

    /// A launch of so many calls will be enqueued on `stream`, behind those before.
    ///
    /// They are marked here and not after the last of them: a call on the context of a launch may
    /// block until that launch has ended (another thread loads code), and the same thread may
    /// still have to launch what it waits for, on another rank.
    pub fn launching(&mut self, calls: u32, stream: &CudaStream) -> Result<()> {
        if self.is_bounded && self.unmarked >= self.stride {
            self.mark(stream)?;
        }
        self.unmarked += calls;
        Ok(())
    }

    fn mark(&mut self, stream: &CudaStream) -> Result<()> {
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
        self.stride * (self.marks_max + 1)
    }
}

/// The commands without which a rank cannot work.
pub(crate) const COMMANDS_MIN: u32 = AHEAD_MIN * LAUNCH_COMMANDS;

/// How to bound launches to so many ahead: a mark every so many, and so many marks.
fn steps(ahead: u32) -> (u32, u32) {
    let ahead = ahead.max(AHEAD_MIN);
    let marks = MARKS_MAX.min(ahead - 1);
    (ahead / (marks + 1), marks)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, callers that run ahead block inside of the driver, or are held back for no
    /// reason.
    #[test]
    fn launches_ahead_stay_within_the_commands_of_a_rank() {
        assert_eq!(steps(COMMANDS_USUAL / LAUNCH_COMMANDS), (32, 4));
        for commands in COMMANDS_MIN..2 * COMMANDS_USUAL {
            let (stride, marks) = steps(commands / LAUNCH_COMMANDS);
            let ahead = stride * (marks + 1);
            assert!((AHEAD_MIN..=commands / LAUNCH_COMMANDS).contains(&ahead), "{commands}");
            assert!(2 * ahead * LAUNCH_COMMANDS > commands - LAUNCH_COMMANDS, "{commands}");
        }
    }
}
