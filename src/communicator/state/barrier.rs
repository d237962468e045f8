//! Where the ranks of a process wait for one another.

use super::sync::lock;
use crate::error::{Error, Result};
use crate::lived::wait_while;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// A barrier of threads, with a limit. It can be passed any number of times.
#[derive(Debug, Default)]
pub(crate) struct ProcessBarrier {
    /// Ranks that wait, and how often all had come.
    state: Mutex<(usize, u64)>,
    changed: Condvar,
}

impl ProcessBarrier {
    /// Waits until `count` ranks of this process have come, at most `limit`.
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`] where they have not. `what` they do stands in the message.
    pub fn wait(&self, what: &str, count: usize, limit: Duration) -> Result<()> {
        let mut state = lock(&self.state);
        state.0 += 1;
        if state.0 == count {
            *state = (0, state.1 + 1);
            self.changed.notify_all();
            return Ok(());
        }
        let turn = state.1;
        let (mut state, waited) = wait_while(&self.changed, state, limit, |state| state.1 == turn);
        if state.1 != turn {
            return Ok(());
        }
        let came = state.0;
        state.0 -= 1;
        Err(Error::HostWaitExpired {
            what: format!("{what}, which every rank calls at the same time"),
            expected: format!("{count} ranks of this process"),
            seen: format!("{came}: a thread that drives several ranks cannot call it in turn"),
            waited,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_pass_or_each_is_told_who_is_missing() {
        let barrier = ProcessBarrier::default();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        barrier.wait("a test", 3, Duration::from_secs(60)).unwrap();
                    }
                });
            }
        });
        let error = barrier.wait("a test", 2, Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("2 ranks of this process"), "{error}");
        barrier.wait("a test", 1, Duration::ZERO).unwrap();
    }
}
