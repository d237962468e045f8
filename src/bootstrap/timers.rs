//! One deadline for each of many keys, and the earliest of them at hand: with a thousand ranks on
//! one I/O thread, looking at all deadlines after every event would be most of the work.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::Instant;

/// See the module's documentation.
pub(super) struct Timers<K> {
    by_key: HashMap<K, Instant>,
    in_order: BTreeSet<(Instant, K)>,
}

impl<K: Copy + Eq + Ord + Hash> Timers<K> {
    pub fn new() -> Self {
        Self { by_key: HashMap::new(), in_order: BTreeSet::new() }
    }

    /// The deadline of `key` is this one now, or there is none.
    pub fn set(&mut self, key: K, deadline: Option<Instant>) {
        let before = match deadline {
            Some(deadline) => self.by_key.insert(key, deadline),
            None => self.by_key.remove(&key),
        };
        if before == deadline {
            return;
        }
        before.map(|before| self.in_order.remove(&(before, key)));
        deadline.map(|deadline| self.in_order.insert((deadline, key)));
    }

    /// The earliest deadline.
    pub fn first(&self) -> Option<Instant> {
        self.in_order.first().map(|(deadline, _)| *deadline)
    }

    /// The keys whose deadline has come; their deadlines are forgotten.
    pub fn expired(&mut self, now: Instant) -> Vec<K> {
        let mut keys = Vec::new();
        while let Some(&(deadline, key)) = self.in_order.first().filter(|(at, _)| *at <= now) {
            self.in_order.remove(&(deadline, key));
            self.by_key.remove(&key);
            keys.push(key);
        }
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_deadline_that_moved_expires_once_and_at_its_new_time() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut timers = Timers::new();
        timers.set(1, Some(at(1)));
        timers.set(2, Some(at(2)));
        timers.set(1, Some(at(3)));
        assert_eq!(timers.first(), Some(at(2)));
        assert_eq!(timers.expired(at(2)), [2]);
        assert!(timers.expired(at(2)).is_empty());
        timers.set(3, Some(at(3)));
        timers.set(3, None);
        assert_eq!(timers.expired(at(9)), [1]);
        assert_eq!(timers.first(), None);
    }
}
