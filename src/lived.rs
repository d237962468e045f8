//! Time as this process has lived through it. Whoever decides by time that another rank is dead
//! must have looked at it all the while. Where the process itself was stopped (a signal, a
//! debugger, a virtual machine that stood still), the others stood still with it, or their answers
//! lie here unread: the gap says nothing of them.
//!
//! This is for waits of hosts. A GPU has a clock of its own, which goes on while the process is
//! stopped, and so do the deadlines of kernels that wait.

use crossbeam_channel::{Receiver, RecvTimeoutError};
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The most that counts of the time between two looks of a wait: more than a busy machine holds a
/// thread up, or one access takes that is repeated until its connection fails, and a small part of
/// [`wait_timeout`](crate::Settings::wait_timeout).
const STEP_MAX: Duration = Duration::from_secs(1);
/// Who sleeps until something comes looks so often. The system's own time of a sleep goes on while
/// the process is stopped.
pub(crate) const SLEEP_MAX: Duration = Duration::from_millis(500);

/// Time that has passed for somebody who looks again and again.
#[derive(Debug)]
pub(crate) struct Lived {
    step_max: Duration,
    looked: Instant,
    time: Duration,
}

impl Lived {
    /// Begins a wait.
    pub(crate) fn new() -> Self {
        Self::in_steps(STEP_MAX)
    }

    /// Of each time between two looks, at most `step_max` counts.
    pub(crate) fn in_steps(step_max: Duration) -> Self {
        Self { step_max, looked: Instant::now(), time: Duration::ZERO }
    }

    /// Looks: how long it has been since the beginning.
    pub(crate) fn look(&mut self) -> Duration {
        self.look_at(Instant::now())
    }

    fn look_at(&mut self, now: Instant) -> Duration {
        self.time += now.saturating_duration_since(self.looked).min(self.step_max);
        self.looked = now;
        self.time
    }

    /// The time at the last look.
    pub(crate) fn time(&self) -> Duration {
        self.time
    }
}

/// A clock for deadlines of a thread that looks at it again and again, and sleeps
/// [`SLEEP_MAX`] at most while it has one. It stands still while the process is stopped, so its
/// times are compared with one another alone.
#[derive(Debug)]
pub(crate) struct Clock {
    start: Instant,
    lived: Lived,
}

impl Clock {
    /// Begins with the system's time.
    pub(crate) fn new() -> Self {
        let lived = Lived::new();
        Self { start: lived.looked, lived }
    }

    /// Looks.
    pub(crate) fn look(&mut self) -> Instant {
        self.start + self.lived.look()
    }
}

/// As [`Condvar::wait_timeout_while`]: waits while `condition` holds, at most `limit`. Gives how
/// long it has waited, too.
pub(crate) fn wait_while<'a, T>(
    changed: &Condvar,
    mut guard: MutexGuard<'a, T>,
    limit: Duration,
    mut condition: impl FnMut(&mut T) -> bool,
) -> (MutexGuard<'a, T>, Duration) {
    let mut lived = Lived::new();
    loop {
        let left = limit.saturating_sub(lived.time());
        let sleep = left.min(SLEEP_MAX);
        let (held, result) = changed
            .wait_timeout_while(guard, sleep, &mut condition)
            .unwrap_or_else(PoisonError::into_inner);
        let waited = lived.look();
        if !result.timed_out() || left.is_zero() {
            return (held, waited);
        }
        guard = held;
    }
}

/// As [`Receiver::recv_timeout`].
///
/// # Errors
/// Those of `recv_timeout`.
pub(crate) fn receive<T>(
    receiver: &Receiver<T>,
    limit: Duration,
) -> std::result::Result<T, RecvTimeoutError> {
    let mut lived = Lived::new();
    loop {
        let left = limit.saturating_sub(lived.time());
        match receiver.recv_timeout(left.min(SLEEP_MAX)) {
            Err(RecvTimeoutError::Timeout) if !left.is_zero() => lived.look(),
            received => return received,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

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

    /// If this fails, whoever sleeps until something comes misses it, waits for ever, or gives up
    /// before its time.
    #[test]
    fn sleeps_end_with_what_comes_or_at_their_limit() {
        let (lock, changed) = (Mutex::new(0), Condvar::new());
        let limit = 700 * MS;
        let (guard, waited) = wait_while(&changed, lock.lock().unwrap(), limit, |it| *it == 0);
        assert!(*guard == 0 && waited >= limit, "{waited:?}");
        let (guard, _) = wait_while(&changed, guard, Duration::ZERO, |it| *it != 0);
        drop(guard);
        let (sender, receiver) = crossbeam_channel::bounded(1);
        assert_eq!(receive(&receiver, limit), Err(RecvTimeoutError::Timeout));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                *lock.lock().unwrap() = 1;
                changed.notify_all();
                sender.send(7).unwrap();
            });
            let long = 600_000 * MS;
            let (guard, _) = wait_while(&changed, lock.lock().unwrap(), long, |it| *it == 0);
            assert_eq!((*guard, receive(&receiver, long)), (1, Ok(7)));
        });
        drop(sender);
        assert_eq!(receive(&receiver, limit), Err(RecvTimeoutError::Disconnected));
    }
}
