//! Addresses on the virtual fabric. All follow from the node and the adapter's place on it, so that
//! they are the same on every run and need no subnet manager.

use crate::description::{ADAPTERS_MAX, LinkLayer};
use std::net::{IpAddr, Ipv4Addr};

/// The most nodes that have addresses.
pub const NODES_MAX: u32 = 1024;
/// The upper half of a port's own GUID: locally administered, so that it belongs to no vendor.
const GUID_PREFIX: u64 = 0x0268_73ff_fe00_0000;
/// The upper half of a link-local GID.
const LINK_LOCAL: u64 = 0xfe80_0000_0000_0000;

/// The one port of an adapter, as the fabric sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The node's index.
    pub node: u32,
    /// The adapter's index on its node.
    pub adapter: u32,
}

/// The protocol of a GID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE version 1.
    RoceV1,
    /// RoCE version 2.
    RoceV2,
}

/// An entry of a port's GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gid {
    /// The address, in network order.
    pub raw: [u8; 16],
    /// Its protocol.
    pub kind: GidKind,
}

/// The way to a peer's port, as a program gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Route {
    /// The peer's GID, where the route is global.
    pub gid: Option<[u8; 16]>,
    /// The index of our own GID.
    pub own_gid: u8,
    /// The peer's LID.
    pub lid: u16,
}

/// The LIDs of multicast groups; the last LID of all stands for any port.
const MULTICAST_LIDS: std::ops::Range<u16> = 0xc000..0xffff;

impl Route {
    /// Does it lead to a multicast group, and not to a port?
    pub fn is_multicast(&self) -> bool {
        self.gid.map_or(MULTICAST_LIDS.contains(&self.lid), |gid| gid[0] == 0xff)
    }
}

impl Endpoint {
    /// The port's local identifier.
    pub fn lid(self) -> u16 {
        (1 + self.node * ADAPTERS_MAX as u32 + self.adapter) as u16
    }

    /// The port with this local identifier.
    pub fn from_lid(lid: u16) -> Option<Self> {
        let index = u32::from(lid).checked_sub(1)?;
        let adapters = ADAPTERS_MAX as u32;
        let found = Self { node: index / adapters, adapter: index % adapters };
        (found.node < NODES_MAX).then_some(found)
    }

    /// The globally unique identifier of adapter and port.
    pub fn guid(self) -> u64 {
        GUID_PREFIX | u64::from(self.node) << 8 | u64::from(self.adapter)
    }

    /// The GID table of the port: link-local first, then (on Ethernet) the IPv4-mapped address,
    /// each for RoCE version 1 and 2.
    pub fn gids(self, link_layer: LinkLayer) -> Vec<Gid> {
        let mut local = [0; 16];
        local[..8].copy_from_slice(&LINK_LOCAL.to_be_bytes());
        local[8..].copy_from_slice(&self.guid().to_be_bytes());
        match link_layer {
            LinkLayer::InfiniBand => vec![Gid { raw: local, kind: GidKind::InfiniBand }],
            LinkLayer::Ethernet => [local, self.ipv4_mapped()]
                .into_iter()
                .flat_map(|raw| [GidKind::RoceV1, GidKind::RoceV2].map(|kind| Gid { raw, kind }))
                .collect(),
        }
    }

    fn ipv4_mapped(self) -> [u8; 16] {
        self.ip().to_ipv6_mapped().octets()
    }

    /// The port's IP address, over InfiniBand as over Ethernet: `10.N.N.A`.
    pub fn ip(self) -> Ipv4Addr {
        let [high, low] = (self.node as u16).to_be_bytes();
        Ipv4Addr::new(10, high, low, self.adapter as u8 + 1)
    }

    /// The address of its network interface: its GUID without the middle, locally administered.
    pub fn mac(self) -> [u8; 6] {
        let guid = self.guid().to_be_bytes();
        [guid[0], guid[1], guid[2], guid[5], guid[6], guid[7]]
    }

    /// The port with this IP address: its own, or the link-local one of its GID.
    pub fn from_ip(ip: IpAddr) -> Option<Self> {
        let raw = match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        Self::from_gid(&raw)
    }

    /// The port with this GID, of either form.
    pub fn from_gid(raw: &[u8; 16]) -> Option<Self> {
        let mut word = [0; 8];
        word.copy_from_slice(&raw[8..]);
        let guid = u64::from_be_bytes(word);
        let found = Self { node: (guid >> 8) as u32 & 0xffff, adapter: guid as u32 & 0xff };
        if found.is_valid() && found.guid() == guid && raw[..8] == LINK_LOCAL.to_be_bytes() {
            return Some(found);
        }
        let node = u32::from(u16::from_be_bytes([raw[13], raw[14]]));
        let found = Self { node, adapter: u32::from(raw[15]).checked_sub(1)? };
        (found.is_valid() && found.ipv4_mapped() == *raw).then_some(found)
    }

    fn is_valid(self) -> bool {
        self.node < NODES_MAX && (self.adapter as usize) < ADAPTERS_MAX
    }

    /// The local identifier as completions name it: ports of Ethernet have none.
    pub(super) fn lid_on(self, link_layer: LinkLayer) -> u16 {
        if link_layer == LinkLayer::InfiniBand { self.lid() } else { 0 }
    }

    /// What [`Endpoint::pack`] has made; None for anything else.
    pub(super) fn unpack(word: u64) -> Option<(Self, u32)> {
        let found =
            Self { node: (word >> 32) as u32 & !(1 << 31), adapter: (word >> 24) as u32 & 0xff };
        let number = word as u32 & 0xff_ffff;
        (found.is_valid() && found.pack(number) == word).then_some((found, number))
    }

    /// Endpoint and queue pair number in one word that is never zero.
    pub(super) fn pack(self, number: u32) -> u64 {
        1 << 63 | u64::from(self.node) << 32 | u64::from(self.adapter) << 24 | u64::from(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lead_back_to_the_port() {
        for (node, adapter) in [(0, 0), (1, 0), (0, 31), (1023, 31), (300, 7)] {
            let port = Endpoint { node, adapter };
            assert_eq!(Endpoint::from_lid(port.lid()), Some(port));
            for link_layer in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
                for gid in port.gids(link_layer) {
                    assert_eq!(Endpoint::from_gid(&gid.raw), Some(port), "{gid:?}");
                }
            }
            assert_eq!(Endpoint::unpack(port.pack(0xff_fe00)), Some((port, 0xff_fe00)));
        }
        assert_eq!(Endpoint::from_lid(0), None);
        assert_eq!(Endpoint::from_gid(&[0; 16]), None);
        assert_eq!(Endpoint::from_gid(&[0xff; 16]), None);
        assert_eq!(Endpoint::unpack(0), None);
        assert_eq!(Endpoint::unpack(u64::MAX), None);
    }

    /// If this fails, a port's own address is refused as that of a group, or a group's is lost
    /// without a word.
    #[test]
    fn groups_are_told_from_ports() {
        let last = Endpoint { node: NODES_MAX - 1, adapter: ADAPTERS_MAX as u32 - 1 };
        let by_lid = |lid| Route { lid, ..Route::default() }.is_multicast();
        let by_gid = |gid| Route { gid: Some(gid), ..Route::default() }.is_multicast();
        assert_eq!([1, last.lid(), 0xbfff, 0xffff].map(by_lid), [false; 4]);
        assert_eq!([0xc000, 0xc001, 0xfffe].map(by_lid), [true; 3]);
        let mut group = [0; 16];
        (group[0], group[1]) = (0xff, 0x12);
        assert!(by_gid(group));
        for layer in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
            assert!(last.gids(layer).iter().all(|gid| !by_gid(gid.raw)));
        }
    }
}
