//! Engines: they drain doorbell rings and drive transports.
//!
//! * [`proxy`]: the software engine's pure [`step`](proxy::Proxy::step)
//! * [`thread`]: the threads that call it, and how they idle
//! * [`sleep`]: how they rest, and how launches wake them
//! * [`attachment`]: one rank of one communicator, as the proxy serves it
//! * [`control`]: the control plane's end of it: lanes, routes, statistics
//! * [`route`]: what descriptors may name (R8)
//! * [`statistics`]: counters, readable at any time
//! * [`watch`]: turns the device's record of an expired wait into an error (R10, R12)
//! * [`device`]: the device engine, a PCI function

pub mod attachment;
pub mod control;
mod crowd;
pub mod device;
mod idle;
pub mod proxy;
pub mod route;
pub mod sleep;
pub mod statistics;
pub mod thread;
pub mod watch;

pub use attachment::{Attachment, AttachmentParts};
pub use control::AttachmentHandle;
pub use proxy::{Expects, Progress, Proxy};
pub use route::{Lane, RegionDescriptor, Route};
pub use statistics::Snapshot;
pub use thread::{Attached, ProxyThreads, Waker};
pub use watch::{RecordMemory, RecordWords, Watch};

use crate::error::{Error, Result};
use std::time::Duration;

/// How an engine tells a communicator that it is over (R12).
pub trait Alarm: Send + Sync {
    /// Keeps `error` if it is the first, and raises the abort word of every rank of the
    /// communicator that can be reached. Called from an engine's thread; must not block.
    fn raise(&self, error: Error);

    /// True once anybody has raised it. The engine then starts no more transfers. Called at every
    /// step: one relaxed load.
    fn is_raised(&self) -> bool;
}

/// The numbers that shape an engine. Read from the environment by the communicator's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineSettings {
    /// Proxy threads of the process. One serves many communicators.
    pub threads: usize,
    /// Cores that the threads are pinned to, in turn; empty leaves them to the scheduler.
    pub cores: Vec<usize>,
    /// Descriptors taken from one ring at once, and transfers waiting for one transport.
    pub batch_max: usize,
    /// Contiguous transfers are merged up to this many bytes; 0 merges nothing. A merged transfer
    /// raises its signals once, at its end, so a large value trades latency for fewer calls.
    pub coalesce_bytes_max: u64,
    /// How often the record of expired waits is looked at.
    pub watch_interval: Duration,
    /// Idle steps without any pause, before the thread parks. While a launch has not ended it goes
    /// on spinning; the following says for how long.
    pub spin_steps: u32,
    /// For so long a thread spins while a launch has not ended and nothing happens: the launch may
    /// stand behind kernels of the user that take long.
    pub spin_max: Duration,
    /// A thread that was off its processor for so long while it spun leaves it to others for a
    /// while. It does so, too, as long as more threads are ready to run than there are processors.
    pub crowded_after: Duration,
    /// Idle steps with the shortest park after each, before parks grow.
    pub nap_steps: u32,
    /// The shortest park of an idle thread. After the naps each one lasts twice as long as the
    /// one before.
    pub park_min: Duration,
    /// The longest park while doorbells may come: how late one can be seen then.
    pub park_max: Duration,
    /// The longest park while none can come: the next launch ends it.
    pub rest_max: Duration,
    /// How long detaching waits for a ring to drain, by default.
    pub drain_timeout: Duration,
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            threads: 1,
            cores: Vec::new(),
            batch_max: 256,
            coalesce_bytes_max: 256 << 10,
            watch_interval: Duration::from_millis(1),
            spin_steps: 256,
            spin_max: Duration::from_secs(1),
            crowded_after: Duration::from_millis(1),
            nap_steps: 20,
            park_min: Duration::from_micros(50),
            park_max: Duration::from_micros(200),
            rest_max: Duration::from_millis(100),
            drain_timeout: Duration::from_secs(5),
        }
    }
}

impl EngineSettings {
    /// Largest number of proxy threads.
    pub const THREADS_MAX: usize = 64;
    /// Largest batch.
    pub const BATCH_MAX: usize = 4096;

    /// Checks the ranges.
    ///
    /// # Errors
    /// [`Error::Argument`] that names the field.
    pub fn validate(&self) -> Result<()> {
        if !(1..=Self::THREADS_MAX).contains(&self.threads) {
            let expected = format!("1 to {}", Self::THREADS_MAX);
            return Err(Error::argument("proxy threads", expected, self.threads));
        }
        if !(1..=Self::BATCH_MAX).contains(&self.batch_max) {
            let expected = format!("1 to {}", Self::BATCH_MAX);
            return Err(Error::argument("proxy batch", expected, self.batch_max));
        }
        let [min, max, rest] = [self.park_min, self.park_max, self.rest_max];
        if min.is_zero() || min > max || max > rest {
            return Err(Error::argument(
                "proxy park times",
                "0 < shortest <= longest <= longest rest",
                format!("shortest {min:?}, longest {max:?}, longest rest {rest:?}"),
            ));
        }
        Ok(())
    }
}
