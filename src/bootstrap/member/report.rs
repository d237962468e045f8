//! Reports: bytes that a rank sends its parent, without anybody waiting for an answer.

use super::{Member, Parent};
use crate::bootstrap::message::{Message, encode_with};
use crate::bootstrap::net::Wire;
use crate::bootstrap::reactor::Report;
use std::time::Instant;

/// Reports that are due later.
#[derive(Default)]
pub(super) struct Later(Vec<(Instant, Report)>);

impl Later {
    pub fn add(&mut self, due: Instant, report: Report) {
        self.0.push((due, report));
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.0.iter().map(|(due, _)| *due).min()
    }

    /// Takes what is due at `now`; everything where `now` is `None`.
    fn take(&mut self, now: Option<Instant>) -> Vec<Report> {
        let is_due = |due: Instant| now.is_none_or(|now| due <= now);
        self.0.extract_if(.., |(due, _)| is_due(*due)).map(|(_, report)| report).collect()
    }
}

impl Member {
    /// Sends the parent what is due at `now`; everything where `now` is `None`.
    pub(super) fn send_to_parent(&mut self, net: &mut dyn Wire, now: Option<Instant>) {
        for report in self.later.take(now) {
            let bytes = report();
            // A parent that has left has nothing to compare with any more.
            if let Parent::Linked(_, parent) = self.parent
                && !bytes.is_empty()
            {
                net.send_bytes(parent, &encode_with(&Message::Report, &[&bytes]));
            }
        }
    }
}
