//! GIDs: the addresses of a port, and which of them to use.

use std::cmp::Reverse;
use std::fmt;
use std::net::Ipv6Addr;

/// How packets that use a GID look on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GidType {
    /// InfiniBand's own addressing.
    InfiniBand,
    /// Ethernet frames of their own type; no router passes them on.
    RoceV1,
    /// UDP packets; routers pass them on.
    RoceV2,
}

/// One entry of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its place in the table.
    pub index: u8,
    /// The address, in network order.
    pub raw: [u8; 16],
    /// How it is used.
    pub kind: GidType,
}

impl Gid {
    /// True if only the local link knows the address.
    pub fn is_link_local(&self) -> bool {
        self.raw[0] == 0xfe && self.raw[1] & 0xc0 == 0x80
    }

    /// True for an empty entry: no address, or a prefix alone.
    pub fn is_empty(&self) -> bool {
        self.raw[8..] == [0; 8] && (self.raw[..8] == [0; 8] || self.is_link_local())
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            GidType::InfiniBand => "InfiniBand",
            GidType::RoceV1 => "RoCE v1",
            GidType::RoceV2 => "RoCE v2",
        };
        write!(f, "GID {} ({}, {kind})", self.index, Ipv6Addr::from(self.raw))
    }
}

/// The entry to use: RoCE v2 before v1, since routers drop v1; an address that other links know
/// before a link-local one; then the first. On InfiniBand the first that is filled in.
pub fn best(table: &[Gid]) -> Option<&Gid> {
    table
        .iter()
        .filter(|gid| !gid.is_empty())
        .max_by_key(|gid| (gid.kind == GidType::RoceV2, !gid.is_link_local(), Reverse(gid.index)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u8, address: &str, kind: GidType) -> Gid {
        Gid { index, raw: address.parse::<Ipv6Addr>().unwrap().octets(), kind }
    }

    #[test]
    fn roce_v2_beats_v1_and_global_beats_link_local() {
        let table = [
            gid(0, "fe80::1", GidType::RoceV1),
            gid(1, "fe80::1", GidType::RoceV2),
            gid(2, "::ffff:10.0.0.1", GidType::RoceV1),
            gid(3, "::ffff:10.0.0.1", GidType::RoceV2),
            gid(4, "::ffff:10.0.0.2", GidType::RoceV2),
        ];
        assert_eq!(best(&table).unwrap().index, 3);
        assert_eq!(best(&table[..3]).unwrap().index, 1);
        assert_eq!(best(&table[..1]).unwrap().index, 0);
    }

    #[test]
    fn entries_without_an_address_are_never_chosen() {
        let empty = [gid(0, "::", GidType::RoceV2), gid(1, "fe80::", GidType::InfiniBand)];
        assert_eq!(best(&empty), None);
        let filled = [empty[0], gid(7, "fe80::5", GidType::InfiniBand)];
        assert_eq!(best(&filled).unwrap().index, 7);
    }
}
