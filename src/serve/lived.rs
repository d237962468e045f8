//! Time as this process has lived through it. Whoever decides by time that another member is dead
//! must have looked at it all the while. Where the process itself was stopped (a signal, a
//! debugger, a virtual machine that stood still), the others stood still with it, or their answers
//! lie here unread: the gap says nothing of them.

use std::time::{Duration, Instant};

/// The most that counts of the time between two looks of a wait: more than a busy machine holds a
/// thread up, or one access takes that is repeated until its connection fails, and a small part of
/// [`wait_timeout`](crate::Settings::wait_timeout).
const STEP_MAX: Duration = Duration::from_secs(1);

/// Time that has passed for somebody who looks again and again.
#[derive(Debug)]
pub(super) struct Lived {
    step_max: Duration,
    looked: Instant,
    time: Duration,
}

impl Lived {
    /// Begins a wait.
    pub(super) fn new() -> Self {
        Self::in_steps(STEP_MAX)
    }

    /// Of each time between two looks, at most `step_max` counts.
    pub(super) fn in_steps(step_max: Duration) -> Self {
        Self { step_max, looked: Instant::now(), time: Duration::ZERO }
    }

    /// Looks: how long it has been since the beginning.
    pub(super) fn look(&mut self) -> Duration {
        self.look_at(Instant::now())
    }

    fn look_at(&mut self, now: Instant) -> Duration {
        self.time += now.saturating_duration_since(self.looked).min(self.step_max);
        self.looked = now;
        self.time
    }

    /// The time at the last look.
    pub(super) fn time(&self) -> Duration {
        self.time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// If this fails, a member that was stopped for a minute believes that it has waited for one.
    #[test]
    fn a_gap_between_two_looks_counts_as_one_step() {
        let mut lived = Lived::in_steps(100 * MS);
        let start = lived.looked;
        assert_eq!(lived.look_at(start + 30 * MS), 30 * MS);
        assert_eq!(lived.look_at(start + 60_000 * MS), 130 * MS);
        assert_eq!(lived.look_at(start + 60_020 * MS), 150 * MS);
        assert_eq!(lived.time(), 150 * MS);
    }

    /// If this fails, a wait for a dead member takes longer than its limit, or for ever.
    #[test]
    fn who_looks_often_enough_counts_all_of_it() {
        let mut lived = Lived::in_steps(100 * MS);
        let start = lived.looked;
        for step in 1..=600 {
            assert_eq!(lived.look_at(start + step * 100 * MS), step * 100 * MS);
        }
    }
}
