//! The machine's clock: what `%globaltimer` and event times show.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Nanoseconds since 1970 at the start of the machine, advanced by the host's monotonic clock, so
/// that it never steps back and differs little between processes.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    start: Instant,
    start_ns: u64,
}

impl WallClock {
    /// Starts now.
    pub fn start() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { start: Instant::now(), start_ns: since.as_nanos() as u64 }
    }

    /// Now, in nanoseconds.
    pub fn now(&self) -> u64 {
        self.start_ns + self.start.elapsed().as_nanos() as u64
    }
}

impl hwsim_ptx::Clock for WallClock {
    fn now_ns(&self) -> u64 {
        self.now()
    }
}
