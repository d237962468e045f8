//! Do others want the processors? A thread that spins asks.
//!
//! Linux counts the threads that run or could run. Where they are more than the processors, one of
//! them waits for somebody who spins. Where the count cannot be read, or says nothing (a container
//! with a quota), the clock does: it jumps while the thread spins.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Do others want the processor on which a thread spins?
pub(super) struct Crowd {
    threads: Option<ReadyThreads>,
    /// When the threads were counted last, and whether they were too many.
    counted: (Duration, bool),
    /// A jump of the clock by so much says that others want the processor.
    gap: Duration,
    /// The time of the last spin, if the thread has done nothing else since.
    spun_at: Option<Duration>,
    /// Until when the processor is left to others.
    until: Duration,
    /// For how long it will be left to them the next time.
    patience: Duration,
}

impl Crowd {
    /// From one count of the threads to the next: it takes about 2 µs.
    const COUNT_INTERVAL: Duration = Duration::from_micros(40);
    /// After a jump the processor is left to others for so long at first: what was taken from them
    /// is a few percent of it.
    const PATIENCE_MIN: Duration = Duration::from_millis(100);
    /// And for so long where they are there each time.
    const PATIENCE_MAX: Duration = Duration::from_secs(2);

    /// `threads`: where they are counted.
    pub(super) fn new(gap: Duration, threads: Option<ReadyThreads>) -> Self {
        let (until, patience) = (Duration::ZERO, Self::PATIENCE_MIN);
        let counted = (Duration::ZERO, false);
        Self { threads, counted, gap, spun_at: None, until, patience }
    }

    /// The thread would spin: shall it leave the processor to others?
    pub(super) fn is_here(&mut self, now: Duration) -> bool {
        if now < self.until {
            return true;
        }
        if let Some(threads) = &mut self.threads
            && now >= self.counted.0 + Self::COUNT_INTERVAL
        {
            self.counted = (now, threads.are_too_many());
        }
        if self.counted.1 {
            return true;
        }
        if self.spun_at.is_some_and(|before| now.saturating_sub(before) >= self.gap) {
            self.until = now + self.patience;
            self.patience = (self.patience * 2).min(Self::PATIENCE_MAX);
            return true;
        }
        if now >= self.until + 2 * self.patience {
            self.patience = Self::PATIENCE_MIN;
        }
        self.spun_at = Some(now);
        false
    }

    pub(super) fn stops_spinning(&mut self) {
        self.spun_at = None;
    }
}

/// The threads of the machine that run or could run.
pub(super) struct ReadyThreads {
    load: File,
    processors: usize,
}

impl ReadyThreads {
    /// None where the kernel does not say.
    pub(super) fn open() -> Option<Self> {
        let processors = std::thread::available_parallelism().ok()?.get();
        let threads = Self { load: File::open("/proc/loadavg").ok()?, processors };
        threads.count().map(|_| threads)
    }

    fn count(&self) -> Option<usize> {
        let mut text = [0; 64];
        let length = self.load.read_at(&mut text, 0).ok()?;
        ready_threads(std::str::from_utf8(&text[..length]).ok()?)
    }

    /// More than the processors? The caller is one of them.
    fn are_too_many(&mut self) -> bool {
        self.count().is_some_and(|count| count > self.processors)
    }
}

/// The number of ready threads in `/proc/loadavg`: `0.20 0.18 0.12 1/80 11206`.
fn ready_threads(text: &str) -> Option<usize> {
    text.split_whitespace().nth(3)?.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    // If this fails, proxies spin on cores that others need.
    #[test]
    fn ready_threads_are_read_from_the_load() {
        assert_eq!(ready_threads("2.11 3.73 2.49 3/103 30271\n"), Some(3));
        assert_eq!(ready_threads("2.11 3.73"), None);
        let threads = ReadyThreads::open().expect("/proc/loadavg");
        assert!(threads.count().unwrap() >= 1, "this thread runs");
    }

    // If this fails, a proxy spins on although more threads than processors want to run.
    #[test]
    fn a_thread_too_many_is_a_crowd() {
        let crowded = ReadyThreads { processors: 0, ..ReadyThreads::open().unwrap() };
        let mut crowd = Crowd::new(Duration::from_millis(1), Some(crowded));
        assert!(crowd.is_here(Duration::from_secs(1)));
        let lonely = ReadyThreads { processors: 1 << 20, ..ReadyThreads::open().unwrap() };
        let mut crowd = Crowd::new(Duration::from_millis(1), Some(lonely));
        assert!(!crowd.is_here(Duration::from_secs(1)));
    }
}
