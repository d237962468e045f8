//! How a thread that simulates hardware sleeps, and how other threads, in any process, wake it.

use super::segment::Segment;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// A word in shared memory that says whether one thread sleeps.
#[derive(Debug, Clone)]
pub(crate) struct WakeWord {
    segment: Arc<Segment>,
    offset: usize,
}

impl WakeWord {
    /// The word at an offset of a segment; zero while no thread sleeps.
    pub fn new(segment: Arc<Segment>, offset: usize) -> Self {
        Self { segment, offset }
    }

    fn word(&self) -> &AtomicU32 {
        self.segment.word32(self.offset)
    }

    /// Lets the thread look around, if it sleeps.
    pub fn wake(&self) {
        // Pairs with the fence in `sleep`: either we see that it sleeps, or it sees what we did.
        fence(Ordering::SeqCst);
        let asleep = self.word();
        if asleep.load(Ordering::Relaxed) == 1 && asleep.swap(0, Ordering::SeqCst) == 1 {
            // SAFETY: the word is in the mapping; the call looks at nothing else.
            unsafe {
                libc::syscall(libc::SYS_futex, asleep.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
            }
        }
    }

    /// Sleeps until woken or until the time is over, unless `busy` finds something to do.
    pub fn sleep(&self, time: Duration, busy: impl FnOnce() -> bool) {
        let asleep = self.word();
        asleep.store(1, Ordering::SeqCst);
        // Pairs with the fence in `wake`.
        fence(Ordering::SeqCst);
        if !busy() {
            let time = time.min(Duration::from_secs(3600));
            let time = libc::timespec {
                tv_sec: time.as_secs() as libc::time_t,
                tv_nsec: time.subsec_nanos().into(),
            };
            // SAFETY: word and time outlive the call. It returns on a wake, on a signal, at once
            // if the word has changed, or when the time is over: all of them are fine.
            unsafe {
                let (word, wait) = (asleep.as_ptr(), libc::FUTEX_WAIT);
                libc::syscall(libc::SYS_futex, word, wait, 1, &raw const time);
            }
        }
        asleep.store(0, Ordering::SeqCst);
    }
}
