//! What a proxy thread does when a step found nothing. While a launch of a rank that it serves has
//! not ended it spins: a doorbell is seen at once. Else it parks for longer and longer, until it
//! costs next to nothing; the next launch wakes it.
//!
//! A thread that spins on a processor which others want takes it from them, four ranks on two
//! cores from one another. It notices ([`Crowd`]). Then it parks between two looks, also while
//! launches run: for the shorter the less time has passed since it had something to do, so that a
//! doorbell is late by a share of the time that has passed anyway.
//!
//! It never yields: on a busy core the scheduler takes a yield for the offer of a whole time slice,
//! and a doorbell would go unseen for milliseconds. A thread whose short sleep ends is run at once.

use super::EngineSettings;
use super::crowd::{Crowd, ReadyThreads};
use super::proxy::{Expects, Progress};
use std::time::Duration;

/// In a crowd a thread parks for this share of the time in which it has had nothing to do, ...
const IDLE_SHARE: u32 = 2;
/// ... and at least for so long: a park takes some microseconds of its processor itself.
const CROWDED_PARK_MIN: Duration = Duration::from_micros(5);

/// One pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    None,
    Spin,
    Park(Duration),
}

/// Spin, then park shortly, then for longer and longer.
pub(super) struct IdlePolicy {
    settings: EngineSettings,
    crowd: Crowd,
    idle_steps: u32,
    /// When the steps became idle.
    idle_since: Duration,
    park: Duration,
}

impl IdlePolicy {
    pub(super) fn new(settings: &EngineSettings) -> Self {
        Self {
            settings: settings.clone(),
            crowd: Crowd::new(settings.crowded_after, ReadyThreads::open()),
            idle_steps: 0,
            idle_since: Duration::ZERO,
            park: settings.park_min,
        }
    }

    pub(super) fn reset(&mut self) {
        self.idle_steps = 0;
        self.park = self.settings.park_min;
    }

    /// Pauses as [`choose`](Self::choose) says; `park` parks the thread. True if time has passed
    /// that the caller has not counted.
    pub(super) fn pause(
        &mut self,
        progress: &Progress,
        leaving: bool,
        now: Duration,
        park: impl FnOnce(Duration),
    ) -> bool {
        match self.choose(progress, leaving, now) {
            Pause::None => return false,
            Pause::Spin => {
                std::hint::spin_loop();
                return false;
            }
            Pause::Park(limit) => park(limit),
        }
        true
    }

    /// What to do after a step with this progress. `leaving`: somebody waits to detach. `now` is
    /// read once in a few steps.
    fn choose(&mut self, progress: &Progress, leaving: bool, now: Duration) -> Pause {
        if !progress.is_idle() {
            self.reset();
            self.crowd.stops_spinning();
            return Pause::None;
        }
        if self.idle_steps == 0 {
            self.idle_since = now;
        }
        self.idle_steps = self.idle_steps.saturating_add(1);
        let settings = &self.settings;
        let is_awaited = progress.expects == Expects::Launch
            && now.saturating_sub(self.idle_since) < settings.spin_max;
        if self.idle_steps <= settings.spin_steps {
            return Pause::Spin;
        }
        if is_awaited {
            if !self.crowd.is_here(now) {
                return Pause::Spin;
            }
            self.crowd.stops_spinning();
            let idle = now.saturating_sub(self.idle_since);
            return Pause::Park((idle / IDLE_SHARE).clamp(CROWDED_PARK_MIN, settings.park_max));
        }
        self.crowd.stops_spinning();
        // Transfers in flight end without a doorbell, and somebody waits for them.
        let awaited = progress.is_waiting() || leaving;
        if awaited || self.idle_steps - settings.spin_steps <= settings.nap_steps {
            return Pause::Park(settings.park_min);
        }
        let longest = match progress.expects {
            Expects::Nothing => settings.rest_max,
            Expects::Anything | Expects::Launch => settings.park_max,
        };
        let park = self.park.min(longest);
        self.park = (park * 2).min(longest);
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
        expects: Expects::Anything,
    };
    const BUSY: Progress = Progress { descriptors: 1, ..IDLE };
    const WAITING: Progress = Progress { in_flight: 1, ..IDLE };
    const RESTING: Progress = Progress { expects: Expects::Nothing, ..IDLE };
    const LAUNCHED: Progress = Progress { expects: Expects::Launch, ..IDLE };
    const START: Duration = Duration::from_secs(1);

    fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    fn park(us: u64) -> Pause {
        Pause::Park(micros(us))
    }

    fn policy() -> IdlePolicy {
        let settings = EngineSettings {
            spin_steps: 1,
            nap_steps: 2,
            park_min: micros(20),
            park_max: micros(70),
            rest_max: micros(500),
            spin_max: Duration::from_secs(1),
            crowded_after: Duration::from_millis(1),
            ..EngineSettings::default()
        };
        let crowd = Crowd::new(settings.crowded_after, None);
        IdlePolicy { crowd, ..IdlePolicy::new(&settings) }
    }

    /// What so many steps with this progress choose, all of them at `now`.
    fn choices<const N: usize>(policy: &mut IdlePolicy, progress: &Progress) -> [Pause; N] {
        std::array::from_fn(|_| policy.choose(progress, false, START))
    }

    // If this fails, idle ranks burn the cores that others need, or doorbells wait too long.
    #[test]
    fn an_idle_thread_backs_off_step_by_step() {
        let mut policy = policy();
        let expected = [Pause::Spin, park(20), park(20), park(20), park(40), park(70), park(70)];
        assert_eq!(choices(&mut policy, &IDLE), expected);
        assert_eq!(choices(&mut policy, &BUSY), [Pause::None]);
        assert_eq!(choices(&mut policy, &IDLE), [Pause::Spin], "work starts the ladder anew");
    }

    // If this fails, communicators that nobody uses cost processor time.
    #[test]
    fn without_a_launch_a_thread_rests() {
        let mut policy = policy();
        let listens = Progress { listens: true, ..RESTING };
        let expected = [park(20), park(40), park(80), park(160), park(320), park(500), park(500)];
        assert_eq!(choices(&mut policy, &listens), [Pause::Spin, park(20), park(20)]);
        assert_eq!(choices(&mut policy, &listens), expected, "peers' messages can lie");
        // One rank of several is enough to shorten the parks.
        assert_eq!(choices(&mut policy, &IDLE), [park(70)]);
    }

    // If this fails, the end of a transfer is noticed one long park late, each time.
    #[test]
    fn parks_stay_short_while_somebody_waits() {
        let mut policy = policy();
        choices::<1>(&mut policy, &WAITING);
        for _ in 0..100 {
            assert_eq!(choices(&mut policy, &WAITING), [park(20)]);
            assert_eq!(policy.choose(&RESTING, true, START), park(20));
        }
        assert_eq!(choices(&mut policy, &IDLE), [park(20)], "the ladder starts at its foot");
    }

    // If this fails, doorbells of a running launch are seen a park late.
    #[test]
    fn a_thread_spins_while_a_launch_runs() {
        let mut policy = policy();
        for step in 0..2000 {
            let now = START + micros(step / 32);
            assert_eq!(policy.choose(&LAUNCHED, false, now), Pause::Spin);
        }
        // It stands behind something that takes long.
        let later = START + Duration::from_secs(2);
        let seen = [(); 4].map(|()| policy.choose(&LAUNCHED, false, later));
        assert_eq!(seen, [park(20), park(40), park(70), park(70)]);
    }

    // If this fails, proxies take the cores from the threads that run the kernels, or from one
    // another.
    #[test]
    fn a_thread_leaves_its_processor_to_others_who_want_it() {
        let mut policy = policy();
        let mut at = |ms: u64| policy.choose(&LAUNCHED, false, Duration::from_millis(ms));
        assert_eq!([at(1000), at(1000)], [Pause::Spin; 2]);
        // Off its processor for 3 ms.
        assert_eq!([at(1003), at(1003)], [park(70), park(70)]);
        assert_eq!(at(1102), park(70), "others have it for 100 ms");
        assert_eq!(at(1104), Pause::Spin);
        assert_eq!(at(1107), park(70), "and for 200 ms if they are still there");
        assert_eq!(at(1306), park(70));
        assert_eq!(at(1308), Pause::Spin);
    }
}
