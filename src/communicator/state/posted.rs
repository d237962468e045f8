//! A value of each rank of one process, for all of them.

use super::sync::{lock, missing};
use crate::error::{Error, Result};
use crate::id::Rank;
use crate::lived::wait_while;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Values that ranks of one process post, each once.
#[derive(Debug)]
pub(crate) struct Posted<T> {
    /// What they are, for messages.
    what: &'static str,
    values: Mutex<Vec<Option<T>>>,
    changed: Condvar,
}

impl<T: Clone> Posted<T> {
    /// Of so many ranks, none of which has posted.
    pub fn new(what: &'static str, ranks: u32) -> Self {
        let values = Mutex::new((0..ranks).map(|_| None).collect());
        Self { what, values, changed: Condvar::new() }
    }

    /// Posts the value of `rank`.
    pub fn post(&self, rank: Rank, value: T) {
        lock(&self.values)[rank.index()] = Some(value);
        self.changed.notify_all();
    }

    /// What has been posted so far, by rank.
    pub fn lock(&self) -> MutexGuard<'_, Vec<Option<T>>> {
        lock(&self.values)
    }

    /// Makes those who wait look again: at the values, and at the communicator's failure.
    pub fn wake(&self) {
        // Locked in between, or one that is about to wait would miss it.
        drop(lock(&self.values));
        self.changed.notify_all();
    }

    /// The values of all ranks, by rank.
    ///
    /// # Errors
    /// That of `failure`, once there is one; [`Error::HostWaitExpired`] names the ranks that have
    /// not posted.
    pub fn wait(&self, limit: Duration, failure: impl Fn() -> Option<Error>) -> Result<Vec<T>> {
        let waiting =
            |values: &mut Vec<Option<T>>| values.iter().any(Option::is_none) && failure().is_none();
        let (values, waited) = wait_while(&self.changed, lock(&self.values), limit, waiting);
        match missing(&values) {
            None => Ok(values.iter().flatten().cloned().collect()),
            Some(missing) => Err(failure().unwrap_or_else(|| Error::HostWaitExpired {
                what: self.what.to_owned(),
                expected: format!("{} ranks", values.len()),
                seen: format!("no sign of {missing}"),
                waited,
            })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, a thread waits for the full limit for one that has failed, or nobody says for
    /// whom it has waited.
    #[test]
    fn waiters_see_failures_and_missing_ranks() {
        let posted = Posted::new("rows", 2);
        posted.post(Rank(1), 7);
        let error = posted.wait(Duration::from_millis(1), || None).unwrap_err();
        assert!(error.to_string().contains("rank 0"), "{error}");
        let failed = || Some(Error::Aborted { by: None, why: "because".into() });
        let error = posted.wait(Duration::from_secs(60), failed).unwrap_err();
        assert!(matches!(error, Error::Aborted { .. }), "{error}");
        posted.post(Rank(0), 5);
        assert_eq!(posted.wait(Duration::ZERO, failed).unwrap(), [5, 7]);
    }
}
