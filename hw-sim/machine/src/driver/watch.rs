//! Says who waits for what: a call of the driver that blocks for long names itself, what it waits
//! for, and who holds that.

use crate::profile::Profile;
use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The environment variable that says after how many seconds a call that blocks says so; 0: never.
pub const WATCHDOG_VARIABLE: &str = "HWSIM_WATCHDOG";
/// After how long where nobody says it, and the driver's profile lets calls block.
const PATIENCE: Duration = Duration::from_secs(10);

thread_local! {
    /// The call that this thread is in.
    static CALL: Cell<&'static str> = const { Cell::new("a call") };
}

/// This thread is now in `name`.
pub fn enter_call(name: &'static str) {
    CALL.set(name);
}

/// The call that this thread is in.
pub(crate) fn call_name() -> &'static str {
    CALL.get()
}

/// This thread, for people.
pub(crate) fn thread_name() -> String {
    // SAFETY: the call takes nothing and only returns this thread's number.
    let number = unsafe { libc::gettid() };
    match std::thread::current().name() {
        Some(name) => format!("thread {number} ({name})"),
        None => format!("thread {number}"),
    }
}

/// After how long a call that blocks says so.
#[derive(Clone, Copy, Debug)]
pub struct Watchdog(Option<Duration>);

impl Watchdog {
    /// As the environment says, or else as the profile suggests.
    pub fn from_environment(profile: &Profile) -> Result<Self, String> {
        let setting = std::env::var(WATCHDOG_VARIABLE).ok().filter(|text| !text.is_empty());
        match setting.as_deref().map(str::parse::<f64>) {
            None => Ok(Self(profile.blocks().then_some(PATIENCE))),
            Some(Ok(0.0)) => Ok(Self(None)),
            Some(Ok(seconds)) if (0.01..=86400.0).contains(&seconds) => {
                Ok(Self(Some(Duration::from_secs_f64(seconds))))
            }
            Some(_) => Err(format!(
                "{WATCHDOG_VARIABLE} is {:?}: expected seconds, 0 or 0.01 to 86400",
                setting.unwrap_or_default()
            )),
        }
    }

    /// Waits while `blocked`, and says what for when that takes long: at first after the time that
    /// was set, then after twice as long each time. `describe` runs without the lock.
    pub fn wait_while<'a, T>(
        self,
        mutex: &'a Mutex<T>,
        condition: &Condvar,
        mut blocked: impl FnMut(&mut T) -> bool,
        describe: impl Fn() -> String,
    ) -> MutexGuard<'a, T> {
        let lock = || mutex.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut patience) = self.0 else {
            let waited = condition.wait_while(lock(), blocked);
            return waited.unwrap_or_else(PoisonError::into_inner);
        };
        let started = Instant::now();
        loop {
            let left = patience.saturating_sub(started.elapsed());
            let waited = condition.wait_timeout_while(lock(), left, &mut blocked);
            let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if !blocked(&mut state) {
                return state;
            }
            drop(state);
            let (seconds, call) = (started.elapsed().as_secs_f64(), call_name());
            let (thread, what) = (thread_name(), describe());
            eprintln!("hwsim: {thread}: {call} has waited {seconds:.1} s for {what}");
            patience = 2 * started.elapsed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A watchdog that asks before its time floods the terminal; one that never does is none.
    #[test]
    fn a_long_wait_is_described_and_a_short_one_is_not() {
        let (mutex, condition) = (Mutex::new(0), Condvar::new());
        let described = AtomicU32::new(0);
        let describe = || {
            described.fetch_add(1, Ordering::Relaxed);
            *mutex.lock().unwrap() = 1;
            "a test".into()
        };
        let watchdog = Watchdog(Some(Duration::from_millis(20)));
        let value = watchdog.wait_while(&mutex, &condition, |value| *value == 0, describe);
        assert_eq!((*value, described.load(Ordering::Relaxed)), (1, 1));
        drop(value);
        drop(watchdog.wait_while(&mutex, &condition, |value| *value == 0, describe));
        assert_eq!(described.load(Ordering::Relaxed), 1);
    }
}
