//! Pending connections by where they come from, so that one origin cannot push out the others.

use super::net::ConnectionId;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};

/// Where a connection comes from, as far as one owner of addresses can be distinguished from
/// another: an IPv4 address, or the 64 bits of IPv6 that networks hand out as a whole.
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
pub(super) struct ByOrigin {
    origins: HashMap<ConnectionId, Origin>,
    by_origin: HashMap<Origin, BTreeSet<ConnectionId>>,
    by_size: BTreeSet<(usize, Origin)>,
}

impl ByOrigin {
    pub fn count(&self) -> usize {
        self.origins.len()
    }

    pub fn insert(&mut self, connection: ConnectionId, address: IpAddr) {
        let origin = Origin::of(address);
        if self.origins.insert(connection, origin).is_none() {
            self.resize(origin, |connections| connections.insert(connection));
        }
    }

    pub fn remove(&mut self, connection: ConnectionId) {
        if let Some(origin) = self.origins.remove(&connection) {
            self.resize(origin, |connections| connections.remove(&connection));
        }
    }

    /// The one to close first where there are too many: the oldest of the origin that has most. A
    /// rank's handshake takes milliseconds, a stranger's silence lasts; and strangers at one
    /// address push out nobody but one another.
    pub fn first_to_close(&self) -> Option<ConnectionId> {
        let (_, origin) = self.by_size.last()?;
        self.by_origin[origin].first().copied()
    }

    /// Everybody, in no order.
    pub fn all(&self) -> Vec<ConnectionId> {
        self.origins.keys().copied().collect()
    }

    fn resize(&mut self, origin: Origin, change: impl FnOnce(&mut BTreeSet<ConnectionId>) -> bool) {
        let connections = self.by_origin.entry(origin).or_default();
        self.by_size.remove(&(connections.len(), origin));
        change(connections);
        match connections.len() {
            0 => drop(self.by_origin.remove(&origin)),
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
    fn the_oldest_of_the_origin_with_most_goes_first() {
        let mut connections = ByOrigin::default();
        connections.insert(Token(1), ip("10.0.0.1"));
        for token in 2..5 {
            connections.insert(Token(token), ip("10.6.6.6"));
        }
        // Another address of the same network: one attacker may hold all of them.
        for token in 5..10 {
            connections.insert(Token(token), ip(&format!("2001:db8::{token}")));
        }
        let mut gone = Vec::new();
        while connections.count() > 2 {
            let first = connections.first_to_close().unwrap();
            connections.remove(first);
            gone.push(first.0);
        }
        // Of five and of four; then both origins in turn; a single connection is never pushed out.
        assert_eq!(gone, [5, 6, 7, 2, 8, 3, 9]);
        assert_eq!(connections.all().len(), 2);
    }

    #[test]
    fn nothing_is_left_of_those_who_left() {
        let mut connections = ByOrigin::default();
        for token in 1..100 {
            connections.insert(Token(token), ip(&format!("10.0.0.{token}")));
            connections.remove(Token(token));
            connections.remove(Token(token));
        }
        assert_eq!((connections.count(), connections.first_to_close()), (0, None));
        assert!(connections.by_origin.is_empty() && connections.by_size.is_empty());
    }
}
