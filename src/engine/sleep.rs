//! How a thread goes to rest, and how a launch ends its rest.

use crate::shared::HostWord64;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a proxy thread and those who wake it share.
#[derive(Default)]
pub struct Sleep<W = AtomicU64> {
    /// Wakes so far.
    nudges: W,
    /// 1: the thread is about to begin a park that a launch ends, or is in it.
    rests: W,
}

impl<W: HostWord64> Sleep<W> {
    /// Over these words, which are 0.
    pub fn over(nudges: W, rests: W) -> Self {
        Self { nudges, rests }
    }

    /// Nudges so far, before the thread looks for work: what was announced later is no reason to
    /// park.
    pub fn seen(&self) -> u64 {
        // Acquire: what was announced before is seen. Pairs with `nudge`.
        self.nudges.load(Ordering::Acquire)
    }

    /// Says that the thread rests. False: there are more nudges than it has seen.
    pub fn may_rest(&self, nudges_seen: u64) -> bool {
        // Sequentially consistent, as are nudge and look in `nudge`: one of the two sides sees what
        // the other one has written.
        self.rests.store(1, Ordering::SeqCst);
        self.nudges.load(Ordering::SeqCst) == nudges_seen
    }

    /// The thread rests no longer.
    pub fn end_rest(&self) {
        // Relaxed: whoever reads the old value wakes a thread that is awake.
        self.rests.store(0, Ordering::Relaxed);
    }

    /// Counts a launch. True: the thread rests, and must be woken.
    pub fn nudge(&self) -> bool {
        // Sequentially consistent: pairs with `may_rest`. What was announced before is seen by
        // whoever sees the nudge.
        self.nudges.fetch_add(1, Ordering::SeqCst);
        self.rests.load(Ordering::SeqCst) != 0
    }

    /// Counts a wake by other means.
    pub fn count(&self) {
        // Relaxed: the count only resets the idle policy; unpark orders what matters.
        self.nudges.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::spin_loop;
    use std::sync::Barrier;
    use std::thread;

    /// Launches that race with a thread which goes to rest.
    const RACES: u64 = 100_000;

    /// If this fails, a thread goes to rest and its launch does not wake it: each side has missed
    /// what the other one wrote (store buffering).
    #[test]
    fn a_launch_is_seen_or_wakes_the_thread() {
        let (sleep, start) = (Sleep::<AtomicU64>::default(), Barrier::new(2));
        // Both sides of a race begin when both have come.
        let (begun, missed) = (AtomicU64::new(0), AtomicU64::new(0));
        let meet = |race: u64| {
            begun.fetch_add(1, Ordering::AcqRel);
            let mut looks = 0_u32;
            while begun.load(Ordering::Acquire) < 2 * (race + 1) {
                looks += 1;
                // The other side may need this processor.
                if looks.is_multiple_of(1 << 10) { thread::yield_now() } else { spin_loop() }
            }
        };
        let launches = || {
            start.wait();
            let mut wakes = Vec::with_capacity(RACES as usize);
            for race in 0..RACES {
                meet(2 * race);
                wakes.push(sleep.nudge());
                meet(2 * race + 1);
            }
            wakes
        };
        thread::scope(|scope| {
            let launches = scope.spawn(launches);
            start.wait();
            let mut rests = Vec::with_capacity(RACES as usize);
            for race in 0..RACES {
                sleep.end_rest();
                meet(2 * race);
                rests.push(sleep.may_rest(race));
                meet(2 * race + 1);
            }
            for (rests, wakes) in rests.into_iter().zip(launches.join().unwrap()) {
                missed.fetch_add(u64::from(rests && !wakes), Ordering::Relaxed);
            }
        });
        assert_eq!(missed.into_inner(), 0, "of {RACES} launches");
    }
}
