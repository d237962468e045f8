//! Refusals are logged once a second at most: a log that an attacker can fill hides what matters,
//! and fills the disk.

use std::time::{Duration, Instant};

/// At most one line in this time.
const INTERVAL: Duration = Duration::from_secs(1);

/// The limit of one task.
#[derive(Default)]
pub(super) struct LogLimit {
    not_before: Option<Instant>,
    left_out: u64,
}

impl LogLimit {
    /// Whether a line may go out now, and then how many were left out since the last.
    pub fn may_log(&mut self, now: Instant) -> Option<u64> {
        if self.not_before.is_some_and(|not_before| now < not_before) {
            self.left_out += 1;
            return None;
        }
        self.not_before = Some(now + INTERVAL);
        Some(std::mem::take(&mut self.left_out))
    }

    /// When what was left out must be summed up at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        self.not_before.filter(|_| self.left_out > 0)
    }

    /// How many were left out, if it is time to say so.
    pub fn overdue(&mut self, now: Instant) -> Option<u64> {
        self.deadline().filter(|&deadline| deadline <= now)?;
        self.may_log(now)
    }

    /// How many were left out, at the end.
    pub fn end(self) -> Option<u64> {
        (self.left_out > 0).then_some(self.left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_becomes_a_line_a_second_and_nothing_is_lost_from_the_count() {
        let start = Instant::now();
        let mut limit = LogLimit::default();
        let (mut lines, mut counted) = (0, 0);
        for event in 0..20_000u32 {
            let now = start + Duration::from_millis(500) * event / 2000;
            if let Some(left_out) = limit.may_log(now) {
                lines += 1;
                counted += 1 + left_out;
            }
        }
        assert_eq!(lines, 5, "in less than 5 s");
        let late = limit.deadline().unwrap();
        assert_eq!(limit.overdue(late - Duration::from_millis(1)), None);
        counted += limit.overdue(late).unwrap();
        assert_eq!(counted, 20_000);
        assert_eq!((limit.deadline(), limit.end()), (None, None));
    }
}
