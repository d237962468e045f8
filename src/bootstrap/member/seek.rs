//! Looking for somebody who listens at one of several addresses and may not be up yet.

use crate::bootstrap::connection::{Identity, REFUSED};
use crate::bootstrap::net::{ConnectionId, TaskId, Wire};
use std::fmt::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const BACKOFF_MIN: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Tries the addresses in turn until one answers with the secret. When all have failed, it waits a
/// little longer each time and begins again; its owner decides when to give up.
pub(super) struct Seeker {
    /// Address, and how the last attempt there ended.
    places: Vec<(SocketAddr, Option<String>)>,
    next: usize,
    own: Identity,
    attempt: Option<ConnectionId>,
    not_before: Instant,
    backoff: Duration,
    /// Since when nobody listens anywhere.
    refused_since: Option<Instant>,
}

impl Seeker {
    pub fn new(addresses: Vec<SocketAddr>, own: Identity, now: Instant) -> Self {
        let places = addresses.into_iter().map(|address| (address, None)).collect();
        let (not_before, backoff) = (now, BACKOFF_MIN);
        Self { places, next: 0, own, attempt: None, not_before, backoff, refused_since: None }
    }

    /// No attempt before this moment.
    pub fn begin_at(&mut self, now: Instant) {
        self.not_before = now;
    }

    /// Begins the next attempt if it is time for one.
    pub fn tick(&mut self, net: &mut dyn Wire, owner: TaskId) {
        if self.attempt.is_none() && self.not_before <= net.now() && !self.places.is_empty() {
            let (address, _) = self.places[self.next];
            self.attempt = Some(net.connect(owner, address, self.own));
        }
    }

    /// When the next attempt begins; `None` while one is under way.
    pub fn deadline(&self) -> Option<Instant> {
        self.attempt.is_none().then_some(self.not_before)
    }

    /// The attempt that is under way.
    pub fn attempt(&self) -> Option<ConnectionId> {
        self.attempt
    }

    /// The attempt failed.
    pub fn failed(&mut self, cause: String, now: Instant) {
        self.attempt = None;
        let Some(place) = self.places.get_mut(self.next) else { return };
        self.refused_since = (cause == REFUSED).then(|| self.refused_since.unwrap_or(now));
        place.1 = Some(cause);
        self.next += 1;
        if self.next == self.places.len() {
            self.next = 0;
            self.not_before = now + self.backoff;
            self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// Since when each attempt has found that nobody listens; `None` while a place has not been
    /// tried, or was found otherwise the last time.
    pub fn refused_since(&self) -> Option<Instant> {
        let is_refused = |(_, cause): &(_, Option<String>)| cause.as_deref() == Some(REFUSED);
        self.refused_since.filter(|_| self.places.iter().all(is_refused))
    }

    /// Where it looked, and what it found there.
    pub fn tried(&self) -> String {
        let mut tried = String::new();
        for (address, cause) in &self.places {
            let comma = if tried.is_empty() { "" } else { "; " };
            let cause = cause.as_deref().unwrap_or("no answer yet");
            let _ = write!(tried, "{comma}{address}: {cause}");
        }
        if tried.is_empty() { "no address".into() } else { tried }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::handshake::{Hello, Role};
    use crate::bootstrap::unique_id::Secret;
    use crate::id::Rank;

    /// If this fails, a rank gives up on a root that one of its addresses may still lead to.
    #[test]
    fn all_places_must_refuse() {
        let own = Identity {
            secret: Secret([0; 32]),
            hello: Hello::new(Role::Join, Rank(1)),
            limit: Duration::from_secs(1),
            early_bytes_max: 64,
        };
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        let places = [1, 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port))).to_vec();
        let mut seeker = Seeker::new(places, own, now);
        seeker.failed(REFUSED.into(), after(1));
        assert_eq!(seeker.refused_since(), None, "one was not tried");
        seeker.failed("no answer".into(), after(2));
        seeker.failed(REFUSED.into(), after(3));
        assert_eq!(seeker.refused_since(), None, "the other did not refuse");
        seeker.failed(REFUSED.into(), after(4));
        seeker.failed(REFUSED.into(), after(5));
        assert_eq!(seeker.refused_since(), Some(after(3)));
    }
}
