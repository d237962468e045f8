//! Queue pairs that take nothing in, though their state lets them receive: the port is down, or a
//! message has ended them. The file says so, since the peer's rings are there all the same: the
//! peer counts the times that nothing is acknowledged, and its retries end.

use super::link::{Link, Peer};
use std::sync::RwLock;

/// What a receiving side has shown of it.
#[derive(Debug, Default)]
pub(super) struct Silence {
    is_shown: bool,
    /// What lies in the ring is not sent again.
    is_given_up: bool,
}

impl Silence {
    /// Shows what is new. True if nothing is taken in now: because `is_silent`, or because of what
    /// came while it was. That gets here when it is sent again, and a peer that has failed
    /// meanwhile sends nothing.
    pub fn see(&mut self, link: &RwLock<Link>, is_silent: bool, peer: Option<&Peer>) -> bool {
        if self.is_shown && !is_silent {
            self.is_given_up |= peer.is_some_and(|peer| !peer.link.takes_requests());
        }
        let is_silent = is_silent || self.is_given_up;
        if is_silent != self.is_shown {
            self.is_shown = is_silent;
            link.read().unwrap().show_silence(is_silent);
        }
        is_silent
    }

    /// Begins where another process has stopped, which may have been silent.
    pub fn resume(&mut self, link: &Link) {
        *self = Self::default();
        link.show_silence(false);
    }
}
