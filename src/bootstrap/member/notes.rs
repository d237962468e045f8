//! Notes: bytes that a rank tells the one above it, without anybody waiting for an answer.

use super::{Above, Member};
use crate::bootstrap::message::{Message, encode_with};
use crate::bootstrap::net::Net;
use crate::bootstrap::reactor::Notes;
use std::time::Instant;

/// Notes that are due later.
#[derive(Default)]
pub(super) struct Later(Vec<(Instant, Notes)>);

impl Later {
    pub fn add(&mut self, due: Instant, notes: Notes) {
        self.0.push((due, notes));
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.0.iter().map(|(due, _)| *due).min()
    }

    /// Takes what is due at `now`; all without a time.
    fn take(&mut self, now: Option<Instant>) -> Vec<Notes> {
        let is_due = |due: Instant| now.is_none_or(|now| due <= now);
        self.0.extract_if(.., |(due, _)| is_due(*due)).map(|(_, notes)| notes).collect()
    }
}

impl Member {
    /// Tells the rank above what is due at `now`; all that there is without a time.
    pub(super) fn tell_above(&mut self, net: &mut Net, now: Option<Instant>) {
        for notes in self.later.take(now) {
            let bytes = notes();
            // A rank above that has left has nothing to compare with any more.
            if let Above::Linked(_, above) = self.above
                && !bytes.is_empty()
            {
                net.send_bytes(above, &encode_with(&Message::Notes, &[&bytes]));
            }
        }
    }
}
