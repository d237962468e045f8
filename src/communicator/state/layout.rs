//! Where the ends of lanes lie in each rank's memory.
//!
//! Everything here follows from the number of ranks and a few settings, so a rank computes the
//! addresses in a peer's memory itself and needs only two base addresses from it. Nothing is kept
//! for a lane: the place of a port is computed when somebody asks for it, at a cost that does not
//! depend on the number of ranks.
//!
//! A rank's ports stand in the order of their peers: those of its node, then all others, each part
//! by rank. For each peer, lanes to it come before lanes from it. Only the lanes between neighbours
//! of a ring are more, or larger, than those of other pairs, and a rank has at most four of these
//! ([`Geometry::successors`]), and on few nodes those along a rail ([`Geometry::rails`]); so what
//! stands before a port is a multiplication and few comparisons.

use super::geometry::{Between, Geometry, Sizes, bytes, granted};
use crate::id::Rank;
use crate::plan::{Lane, LaneEnd, LaneKind, Limits, Side, SlotShape};
use std::ops::Range;

/// Bytes between signal words, so that two engines never write one 32-byte sector.
const SIGNAL_STRIDE: u64 = 32;

/// One port of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortPlace {
    /// Its number among the rank's ports.
    pub number: u32,
    /// The lane, and which end of it.
    pub end: LaneEnd,
    /// Offset of the credit or arrival word in the rank's signal memory. Bytes.
    pub signal: u64,
    /// Offset of the completion word, of send ports.
    pub completion: u64,
    /// Offset of slot 0 in the rank's staging memory. Bytes.
    pub slots: u64,
    /// Its slots, of 0 bytes for a lane without.
    pub shape: SlotShape,
    /// Place among the rank's send ports on which registered buffers move.
    pub route_index: u32,
    /// The other end is on another node. Signals and slots of these ports stand behind all others.
    pub is_inter_node: bool,
}

/// Where everything of one rank lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    geometry: Geometry,
    rank: Rank,
    /// Ports that lead to ranks of the same node.
    intra_node: Sizes,
    all: Sizes,
}

/// Places in signal and staging memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offsets {
    pub signals: u64,
    pub staging: u64,
}

impl PortPlace {
    /// Bytes of all its slots at this end.
    pub fn slots_bytes(&self) -> u64 {
        match (self.end.lane.kind, self.end.side) {
            (LaneKind::Stores, Side::Send) => 0,
            _ => bytes(self.shape),
        }
    }

    /// Offset of the word behind the slots in which a grant stands, of lanes whose receiver grants.
    pub fn grant(&self) -> u64 {
        self.slots + bytes(self.shape)
    }

    /// The rank at the other end.
    pub fn peer(&self) -> Rank {
        Rank(self.end.peer())
    }
}

impl Layout {
    /// The layout of `rank`.
    pub fn new(geometry: &Geometry, rank: Rank) -> Self {
        let none = Sizes::default();
        let mut layout = Self { geometry: *geometry, rank, intra_node: none, all: none };
        let node = geometry.node_of(rank.0);
        layout.intra_node = layout.with_peers(node.clone());
        let others = layout.with_peers(0..node.start);
        let others = others.and(layout.with_peers(node.end..geometry.rank_count));
        layout.all = layout.intra_node.and(others);
        layout
    }

    /// What all lanes to and from ranks of a range take.
    /// These are all of this rank's node, or all of others.
    fn with_peers(&self, peers: Range<u32>) -> Sizes {
        let (geometry, own) = (&self.geometry, self.rank.0);
        let apart = geometry.are_apart(own, peers.start);
        let count = peers.len() as u32 - u32::from(peers.contains(&own));
        let near = |ring: &mut dyn Iterator<Item = u32>| {
            let near: Vec<u32> = ring.filter(|rank| peers.contains(rank)).collect();
            let is_far = |rank: &u32| peers.contains(rank) && !near.contains(rank);
            (near.len() as u32, geometry.rails(own).filter(is_far).count() as u32)
        };
        let after = near(&mut geometry.successors(own));
        let before = near(&mut geometry.predecessors(own));
        [(Side::Send, after), (Side::Receive, before)]
            .into_iter()
            .map(|(side, (near, on_rail))| {
                let lanes = |neighbours, rail| {
                    geometry.lanes(side, Between { neighbours, apart, rail: apart && rail })
                };
                let others = lanes(false, false).times(count - near - on_rail);
                lanes(true, true).times(near).and(lanes(false, true).times(on_rail)).and(others)
            })
            .fold(Sizes::default(), Sizes::and)
    }

    /// What stands before the lanes to and from `peer`.
    fn before(&self, peer: u32) -> Sizes {
        let node = self.geometry.node_of(self.rank.0);
        if node.contains(&peer) {
            return self.with_peers(node.start..peer);
        }
        let lower = self.with_peers(0..node.start.min(peer));
        let upper = self.with_peers(node.end..peer.max(node.end));
        self.intra_node.and(lower).and(upper)
    }

    /// Offsets of the signal and the completion word of port `number`.
    fn words(&self, number: u32) -> (u64, u64) {
        let [number, near, all] = [number, self.intra_node.ports, self.all.ports].map(u64::from);
        let (signal, completion) = match number < near {
            true => (2 * number, 2 * number + 1),
            // Behind all words of the others stand the completions, then the signals.
            false => (all + number, near + number),
        };
        (signal * SIGNAL_STRIDE, completion * SIGNAL_STRIDE)
    }

    /// Ranks of the communicator.
    pub fn rank_count(&self) -> u32 {
        self.geometry.rank_count
    }

    /// Are there lanes of stores with slots?
    pub fn has_store_lanes(&self) -> bool {
        self.geometry.store_blocks > 0
    }

    /// Do ranks have to know the links of all GPUs, for packed trees or for the cost model?
    pub fn wants_links(&self) -> bool {
        self.geometry.wants_links()
    }

    /// The number of ports that lead to ranks of the same node; they come first.
    pub fn intra_node_ports(&self) -> u32 {
        self.intra_node.ports
    }

    /// The number of ports.
    pub fn port_count(&self) -> u32 {
        self.all.ports
    }

    /// Bytes of signal memory: a signal and a completion word for each port.
    pub fn signal_bytes(&self) -> u64 {
        2 * SIGNAL_STRIDE * u64::from(self.all.ports)
    }

    /// Bytes of staging memory.
    pub fn staging_bytes(&self) -> u64 {
        self.all.staging
    }

    /// The slots of LL lanes. They begin as zeros: any other word could pass for a message (R13).
    pub fn low_latency_slots(&self) -> impl Iterator<Item = Range<u64>> {
        let has_any = self.geometry.low_latency_bytes > 0;
        let ports = has_any.then(|| self.ports()).into_iter().flatten();
        let low_latency = ports.filter(|place| place.end.lane.kind == LaneKind::LowLatency);
        low_latency.map(|place| place.slots..place.slots + place.slots_bytes())
    }

    /// Where in signals and staging memory what ranks of other nodes write begins. Completion words
    /// stand before it, too: only this rank's engine writes them.
    pub fn inter_node(&self) -> Offsets {
        let words = u64::from(self.intra_node.ports + self.all.ports);
        Offsets { signals: words * SIGNAL_STRIDE, staging: self.intra_node.staging }
    }

    /// Number of send ports on which registered buffers move: routes that one pair of buffers
    /// takes.
    pub fn direct_lanes(&self) -> u32 {
        self.all.direct
    }

    /// All ports, in the order of their numbers.
    pub fn ports(&self) -> impl Iterator<Item = PortPlace> {
        let (layout, node) = (*self, self.geometry.node_of(self.rank.0));
        let others = (0..node.start).chain(node.end..self.geometry.rank_count);
        let peers = node.chain(others).map(Rank);
        peers.flat_map(move |peer| layout.ports_of(peer))
    }

    /// The ports of lanes to and from `peer`, in the order of their numbers; none to this rank.
    pub fn ports_of(&self, peer: Rank) -> impl Iterator<Item = PortPlace> + use<> {
        let (layout, own) = (*self, self.rank.0);
        let sides = [(Side::Send, own, peer.0), (Side::Receive, peer.0, own)];
        sides.into_iter().flat_map(move |(side, from, to)| {
            let with_index = |kind| move |index| (index, kind);
            let low_latency = std::iter::once(0).map(with_index(LaneKind::LowLatency));
            let others = (0..layout.geometry.blocks as u16)
                .flat_map(move |index| [(index, LaneKind::Slots), (index, LaneKind::Direct)]);
            let stored = (0..layout.geometry.store_blocks as u16).map(with_index(LaneKind::Stores));
            let on_rail = (0..layout.geometry.store_blocks as u16).map(with_index(LaneKind::Rail));
            let of_users = (0..layout.geometry.user_lanes as u16).map(with_index(LaneKind::User));
            let all = low_latency.chain(others).chain(stored).chain(on_rail).chain(of_users);
            let ends = all
                .map(move |(index, kind)| LaneEnd { lane: Lane { from, to, index, kind }, side });
            ends.filter_map(move |end| layout.port(end))
        })
    }

    /// The port at `end`, if it is one of this rank's.
    pub fn port(&self, end: LaneEnd) -> Option<PortPlace> {
        let LaneEnd { lane, side } = end;
        let (geometry, own) = (&self.geometry, self.rank.0);
        let peer = end.peer();
        if end.rank() != own || peer == own || peer >= geometry.rank_count {
            return None;
        }
        let (among_lanes, shape) = self.among_lanes(&end)?;
        let mut before = self.before(peer);
        if side == Side::Receive {
            let lanes_there = geometry.lanes(Side::Send, geometry.between(own, peer));
            before = before.and(lanes_there);
        }
        let before = before.and(among_lanes);
        let number = before.ports;
        let (signal, completion) = self.words(number);
        let has_routes = side == Side::Send && lane.kind.moves_buffers();
        Some(PortPlace {
            number,
            end,
            signal,
            completion,
            slots: before.staging,
            shape,
            route_index: if has_routes { before.direct } else { 0 },
            is_inter_node: geometry.are_apart(own, peer),
        })
    }

    /// What stands before a lane among those from one rank to another, and its slots; None where
    /// there is no such lane. The LL lane is the first; then comes, for each index, a lane with
    /// slots, and between neighbours, or all ranks where they are few, a direct one; then lanes of
    /// stores or of a rail, then user lanes.
    fn among_lanes(&self, end: &LaneEnd) -> Option<(Sizes, SlotShape)> {
        let (geometry, LaneEnd { lane, side }) = (&self.geometry, *end);
        let between = geometry.between(lane.from, lane.to);
        let between_neighbours = between.neighbours;
        let low_latency = geometry.low_latency_slots();
        let slots = geometry.slots(between_neighbours);
        let index = u32::from(lane.index);
        let count = if between_neighbours { geometry.blocks } else { 1 };
        let first = low_latency.map_or(Sizes::default(), |slots| Sizes {
            ports: 1,
            staging: bytes(slots),
            direct: 0,
        });
        // One with slots, and a direct one.
        let two = Sizes { ports: 2, staging: granted(slots), direct: 1 };
        let before = first.and(two.times(index));
        match lane.kind {
            LaneKind::LowLatency => Some((Sizes::default(), low_latency.filter(|_| index == 0)?)),
            LaneKind::Slots if index < count => Some((before, slots)),
            LaneKind::Direct
                if index < count && (between_neighbours || geometry.pairs_are_direct()) =>
            {
                let its_slots = Sizes { ports: 1, staging: granted(slots), direct: 0 };
                Some((before.and(its_slots), SlotShape { bytes: 0, ..slots }))
            }
            LaneKind::User if index < geometry.user_lanes => {
                let others = geometry.lanes_of_plans(side, between);
                // Places among the send ports on which buffers move are asked for at those alone.
                let before = others.and(geometry.user_lanes(side, index));
                Some((before, geometry.slots(false)))
            }
            LaneKind::Stores | LaneKind::Rail if index < geometry.store_blocks => {
                let is_rail = lane.kind == LaneKind::Rail;
                if is_rail != between.apart || is_rail && !between.rail {
                    return None;
                }
                let behind = geometry.block_lanes(side, between, geometry.store_blocks - index);
                let all = geometry.lanes_of_plans(side, between);
                Some((all.without(behind), Limits::store_slots()))
            }
            LaneKind::Slots
            | LaneKind::Direct
            | LaneKind::Stores
            | LaneKind::Rail
            | LaneKind::User => None,
        }
    }
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
