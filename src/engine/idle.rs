//! What a proxy thread does when a step found nothing: spin, then park for a moment, then for
//! longer and longer, so that four ranks on two cores do not starve one another.
//!
//! It never yields: on a busy core the scheduler takes a yield for the offer of a whole time slice,
//! and a doorbell would go unseen for milliseconds. A thread whose short sleep ends is run at once.

use super::EngineSettings;
use super::proxy::Progress;
use std::thread;
use std::time::Duration;

/// One pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    None,
    Spin,
    Park(Duration),
}

/// Spin, then park shortly, then for longer and longer.
pub(super) struct IdlePolicy {
    spin_steps: u32,
    nap_steps: u32,
    park_min: Duration,
    park_max: Duration,
    idle_steps: u32,
    park: Duration,
}

impl IdlePolicy {
    pub(super) fn new(settings: &EngineSettings) -> Self {
        Self {
            spin_steps: settings.spin_steps,
            nap_steps: settings.nap_steps,
            park_min: settings.park_min,
            park_max: settings.park_max,
            idle_steps: 0,
            park: settings.park_min,
        }
    }

    pub(super) fn reset(&mut self) {
        self.idle_steps = 0;
        self.park = self.park_min;
    }

    /// Pauses as [`choose`](Self::choose) says. True if time has passed that the caller has not
    /// counted.
    pub(super) fn pause(&mut self, progress: &Progress, leaving: bool) -> bool {
        match self.choose(progress, leaving) {
            Pause::None => return false,
            Pause::Spin => {
                std::hint::spin_loop();
                return false;
            }
            Pause::Park(limit) => thread::park_timeout(limit),
        }
        true
    }

    /// What to do after a step with this progress. `leaving`: somebody waits to detach.
    fn choose(&mut self, progress: &Progress, leaving: bool) -> Pause {
        if !progress.is_idle() {
            self.reset();
            return Pause::None;
        }
        self.idle_steps = self.idle_steps.saturating_add(1);
        if self.idle_steps <= self.spin_steps {
            return Pause::Spin;
        }
        // Transfers in flight end without a doorbell, and somebody waits for them.
        let awaited = progress.is_waiting() || leaving;
        if awaited || self.idle_steps - self.spin_steps <= self.nap_steps {
            return Pause::Park(self.park_min);
        }
        let park = self.park;
        self.park = (park * 2).min(self.park_max);
        Pause::Park(park)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Progress = Progress {
        descriptors: 0,
        submitted: 0,
        completed: 0,
        in_flight: 0,
        pending: 0,
        listens: false,
    };
    const BUSY: Progress = Progress { descriptors: 1, ..IDLE };
    const WAITING: Progress = Progress { in_flight: 1, ..IDLE };

    fn policy() -> IdlePolicy {
        let micros = Duration::from_micros;
        let (park_min, park_max) = (micros(20), micros(70));
        let settings = EngineSettings {
            spin_steps: 1,
            nap_steps: 2,
            park_min,
            park_max,
            ..EngineSettings::default()
        };
        IdlePolicy::new(&settings)
    }

    // If this fails, idle ranks burn the cores that others need, or doorbells wait too long.
    #[test]
    fn an_idle_thread_backs_off_step_by_step() {
        let mut policy = policy();
        let seen: Vec<_> = (0..7).map(|_| policy.choose(&IDLE, false)).collect();
        let park = |us| Pause::Park(Duration::from_micros(us));
        let expected = [Pause::Spin, park(20), park(20), park(20), park(40), park(70), park(70)];
        assert_eq!(seen, expected);
        assert_eq!(policy.choose(&BUSY, false), Pause::None);
        assert_eq!(policy.choose(&IDLE, false), Pause::Spin, "work starts the ladder anew");
    }

    // If this fails, the end of a transfer is noticed one long park late, each time.
    #[test]
    fn parks_stay_short_while_somebody_waits() {
        let mut policy = policy();
        let shortest = Pause::Park(Duration::from_micros(20));
        policy.choose(&WAITING, false);
        for _ in 0..100 {
            assert_eq!(policy.choose(&WAITING, false), shortest);
            assert_eq!(policy.choose(&IDLE, true), shortest);
        }
        assert_eq!(policy.choose(&IDLE, false), shortest, "the ladder starts at its foot");
    }
}
