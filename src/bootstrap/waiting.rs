//! The waiting room: connections that were accepted and do not belong to the job yet. It decides
//! who must go when it is full.

use super::net::ConnectionId;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};

/// Where a connection comes from, as far as one owner of addresses can be told from another: an
/// IPv4 address, or the 64 bits of IPv6 that networks hand out as a whole.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Origin(IpAddr);

impl Origin {
    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(v6) => {
                let network = v6.to_bits() & !u128::from(u64::MAX);
                // ::1 shares its network with nobody.
                let kept = if v6.is_loopback() { v6 } else { Ipv6Addr::from_bits(network) };
                Self(kept.into())
            }
            v4 => Self(v4),
        }
    }
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Waiting {
    origins: HashMap<ConnectionId, Origin>,
    crowds: HashMap<Origin, BTreeSet<ConnectionId>>,
    by_size: BTreeSet<(usize, Origin)>,
}

impl Waiting {
    pub fn count(&self) -> usize {
        self.origins.len()
    }

    pub fn enter(&mut self, connection: ConnectionId, address: IpAddr) {
        let origin = Origin::of(address);
        if self.origins.insert(connection, origin).is_none() {
            self.resize(origin, |crowd| crowd.insert(connection));
        }
    }

    /// The connection belongs to the job now, or is gone.
    pub fn leave(&mut self, connection: ConnectionId) {
        if let Some(origin) = self.origins.remove(&connection) {
            self.resize(origin, |crowd| crowd.remove(&connection));
        }
    }

    /// Who must go first: the oldest of the largest crowd. A rank's handshake takes milliseconds, a
    /// stranger's silence lasts; and strangers at one address push nobody out but one another.
    pub fn first_to_go(&self) -> Option<ConnectionId> {
        let (_, origin) = self.by_size.last()?;
        self.crowds[origin].first().copied()
    }

    /// Everybody, in no order.
    pub fn all(&self) -> Vec<ConnectionId> {
        self.origins.keys().copied().collect()
    }

    fn resize(
        &mut self,
        origin: Origin,
        change: impl FnOnce(&mut BTreeSet<ConnectionId>) -> bool,
    ) {
        let crowd = self.crowds.entry(origin).or_default();
        self.by_size.remove(&(crowd.len(), origin));
        change(crowd);
        match crowd.len() {
            0 => drop(self.crowds.remove(&origin)),
            size => drop(self.by_size.insert((size, origin))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mio::Token;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_oldest_of_the_largest_crowd_goes_first() {
        let mut waiting = Waiting::default();
        waiting.enter(Token(1), ip("10.0.0.1"));
        for token in 2..5 {
            waiting.enter(Token(token), ip("10.6.6.6"));
        }
        // Another address of the same network: one attacker may hold all of them.
        for token in 5..10 {
            waiting.enter(Token(token), ip(&format!("2001:db8::{token}")));
        }
        let mut gone = Vec::new();
        while waiting.count() > 2 {
            let first = waiting.first_to_go().unwrap();
            waiting.leave(first);
            gone.push(first.0);
        }
        // Of five and of four; then the two crowds take turns; a lone rank is pushed out by nobody.
        assert_eq!(gone, [5, 6, 7, 2, 8, 3, 9]);
        assert_eq!(waiting.all().len(), 2);
    }

    #[test]
    fn nothing_is_left_of_those_who_left() {
        let mut waiting = Waiting::default();
        for token in 1..100 {
            waiting.enter(Token(token), ip(&format!("10.0.0.{token}")));
            waiting.leave(Token(token));
            waiting.leave(Token(token));
        }
        assert_eq!((waiting.count(), waiting.first_to_go()), (0, None));
        assert!(waiting.crowds.is_empty() && waiting.by_size.is_empty());
    }
}
