//! Looking for somebody who listens at one of several addresses and may not be up yet.

use crate::bootstrap::connection::Identity;
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
}

impl Seeker {
    pub fn new(addresses: Vec<SocketAddr>, own: Identity, now: Instant) -> Self {
        let places = addresses.into_iter().map(|address| (address, None)).collect();
        Self { places, next: 0, own, attempt: None, not_before: now, backoff: BACKOFF_MIN }
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
        place.1 = Some(cause);
        self.next += 1;
        if self.next == self.places.len() {
            self.next = 0;
            self.not_before = now + self.backoff;
            self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
        }
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
