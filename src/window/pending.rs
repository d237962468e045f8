//! Transfers that the host has started.

use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::lived::Lived;
use cudarc::driver::CudaEvent;
use std::time::Duration;

/// Between two looks at the event.
const PAUSE: Duration = Duration::from_micros(20);

/// A transfer, or a wait for signals, on its way. Dropped, it goes on.
#[must_use = "the transfer has not ended yet"]
pub struct Pending<'c> {
    pub(super) communicator: &'c Communicator,
    pub(super) event: CudaEvent,
    pub(super) what: &'static str,
}

impl Pending<'_> {
    /// Has it ended?
    ///
    /// # Errors
    /// The error that ended the communicator.
    pub fn is_finished(&self) -> Result<bool> {
        let ended = self.event.try_is_complete();
        let ended = ended.map_err(Error::from_driver("cuEventQuery"))?;
        if ended {
            self.communicator.check()?;
        }
        Ok(ended)
    }

    /// Waits for its end: what was read is there then, and the source may be overwritten.
    ///
    /// # Errors
    /// The error that ended the communicator; [`Error::HostWaitExpired`] where what was enqueued
    /// before has not ended after twice [`Settings::wait_timeout`](crate::Settings::wait_timeout).
    pub fn finish(self) -> Result<()> {
        let (mut lived, limit) = (Lived::new(), 2 * self.communicator.wait_timeout());
        while !self.is_finished()? {
            if lived.look() > limit {
                return Err(Error::HostWaitExpired {
                    what: self.what.into(),
                    expected: "its end".into(),
                    seen: "a stream that has not come so far".into(),
                    waited: lived.time(),
                });
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}
