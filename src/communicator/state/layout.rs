//! Which lanes a communicator has, and where their ends lie in each rank's memory.
//!
//! Everything here follows from the number of ranks and a few settings, so a rank computes the
//! addresses in a peer's memory itself and needs only two base addresses from it.

use crate::id::{EngineKind, Rank};
use crate::plan::{ALL_PAIRS_RANKS_MAX, Lane, LaneEnd, LaneKind, Limits, Side, SlotShape};
use crate::settings::Settings;
use std::collections::HashMap;

/// Bytes between signal words, so that two engines never write one 32-byte sector.
const SIGNAL_STRIDE: u64 = 32;

/// What must be equal on all ranks for their layouts to match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Number of ranks.
    pub rank_count: u32,
    /// The most blocks of one collective: lanes between neighbours of the ring.
    pub blocks: u32,
    /// Bytes of one slot between neighbours.
    pub slot_bytes: u32,
    /// Slots of one lane, of those that are not LL lanes.
    pub slot_count: u32,
    /// How ranks are spread over nodes.
    pub nodes: Nodes,
    /// Bytes of data that one LL message holds; 0: no LL lanes.
    pub low_latency_bytes: u32,
    /// What drains the rings, on every rank.
    pub engine: EngineKind,
}

/// How ranks are spread over nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nodes {
    /// All on one.
    One,
    /// So many ranks on each, one after the other.
    Even {
        /// Ranks of each node.
        ranks: u32,
    },
    /// In some other way.
    Uneven,
}

impl Nodes {
    /// Of ranks whose nodes have these names.
    pub fn of(hosts: &[String]) -> Self {
        let ranks = hosts.iter().take_while(|host| **host == hosts[0]).count();
        let mut first_hosts: Vec<&String> = hosts.iter().step_by(ranks.max(1)).collect();
        let same = |group: &[String]| group.len() == ranks && group.iter().all(|h| *h == group[0]);
        let even = ranks > 0 && hosts.chunks(ranks).all(same);
        let count = first_hosts.len();
        first_hosts.sort_unstable();
        first_hosts.dedup();
        match (even && first_hosts.len() == count, count) {
            (true, 1) => Self::One,
            (true, _) => Self::Even { ranks: ranks as u32 },
            (false, _) => Self::Uneven,
        }
    }
}

impl Geometry {
    /// The most ranks of a communicator: every pair of ranks has lanes of its own.
    pub const RANKS_MAX: u32 = 64;

    /// The geometry that `settings` ask for.
    pub fn new(rank_count: u32, nodes: Nodes, settings: &Settings) -> Self {
        Self {
            rank_count,
            blocks: settings.blocks_max,
            slot_bytes: settings.slot_bytes,
            slot_count: settings.slot_count,
            nodes,
            // A word of data and its flag are known to stay together within a node, and from one
            // device engine to another (R13).
            low_latency_bytes: match (nodes, settings.engine) {
                (Nodes::One, _) | (_, EngineKind::Device) if rank_count <= ALL_PAIRS_RANKS_MAX => {
                    settings.low_latency_bytes
                }
                _ => 0,
            },
            engine: settings.engine,
        }
    }

    /// What a plan may use, with slots of `slot_bytes`.
    pub fn limits(&self, slot_bytes: u32) -> Limits {
        Limits {
            blocks_max: self.blocks,
            slot_bytes,
            slot_count: self.slot_count,
            low_latency_bytes: self.low_latency_bytes,
            ranks_per_node: self.ranks_per_node(),
        }
    }

    /// Bytes of the slots that every pair of ranks has.
    pub fn pair_slot_bytes(&self) -> u32 {
        self.limits(self.slot_bytes).pair_slot_bytes()
    }

    /// Ranks of each node where plans distinguish nodes, else 0.
    pub fn ranks_per_node(&self) -> u32 {
        match self.nodes {
            Nodes::Even { ranks } => ranks,
            Nodes::One | Nodes::Uneven => 0,
        }
    }

    /// Do the two run on different nodes, as far as layouts distinguish nodes?
    pub fn are_apart(&self, one: u32, other: u32) -> bool {
        matches!(self.nodes, Nodes::Even { ranks } if one / ranks != other / ranks)
    }

    /// Does a collective send much from one to the other? Around a ring, or, where a node has
    /// several ranks, around the node and along the rail.
    fn are_neighbours(&self, from: u32, to: u32) -> bool {
        match self.nodes {
            Nodes::Even { ranks } if ranks > 1 => {
                let (node, place) = (from / ranks, from % ranks);
                let next_on_node = node * ranks + (place + 1) % ranks;
                to == next_on_node || to == (from + ranks) % self.rank_count
            }
            _ => to == (from + 1) % self.rank_count,
        }
    }

    /// All lanes, in the order that every rank agrees on, with their slots (none of 0 bytes for
    /// lanes without).
    fn lanes(&self) -> Vec<(Lane, SlotShape)> {
        let ranks = self.rank_count;
        let slots = |bytes| SlotShape { bytes, count: self.slot_count };
        let mut lanes = Vec::new();
        for (from, to) in (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))) {
            if from == to {
                continue;
            }
            let lane = |index, kind| Lane { from, to, index, kind };
            if self.low_latency_bytes > 0 {
                let slots = self.limits(self.slot_bytes).low_latency_slots();
                lanes.push((lane(0, LaneKind::LowLatency), slots));
            }
            if !self.are_neighbours(from, to) {
                lanes.push((lane(0, LaneKind::Slots), slots(self.pair_slot_bytes())));
                continue;
            }
            for index in 0..self.blocks as u16 {
                lanes.push((lane(index, LaneKind::Slots), slots(self.slot_bytes)));
                lanes.push((lane(index, LaneKind::Direct), slots(0)));
            }
        }
        lanes
    }
}

/// One port of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortPlace {
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
    /// Place among the rank's send ports without slots.
    pub route_index: u32,
    /// The other end is on another node. Signals and slots of these ports stand behind all others.
    pub is_inter_node: bool,
}

/// Where everything of one rank lies.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// The rank's ports; their place here is their number.
    pub ports: Vec<PortPlace>,
    /// Bytes of signal memory.
    pub signal_bytes: u64,
    /// Bytes of staging memory.
    pub staging_bytes: u64,
    /// Where in them what ranks of other nodes write begins. Completion words stand before it, too:
    /// only the own engine writes them.
    pub inter_node: Offsets,
    /// Number of send ports without slots: routes that one pair of buffers takes.
    pub direct_lanes: u32,
    numbers: HashMap<LaneEnd, u32>,
}

/// Places in signal and staging memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offsets {
    pub signals: u64,
    pub staging: u64,
}

impl PortPlace {
    /// Bytes of all its slots.
    pub fn slots_bytes(&self) -> u64 {
        u64::from(self.shape.bytes) * u64::from(self.shape.count)
    }

    /// The rank at the other end.
    pub fn peer(&self) -> Rank {
        let lane = self.end.lane;
        Rank(match self.end.side {
            Side::Send => lane.to,
            Side::Receive => lane.from,
        })
    }
}

impl Layout {
    /// The layout of `rank`.
    pub fn new(geometry: &Geometry, rank: Rank) -> Self {
        let mut layout = Self {
            ports: Vec::new(),
            signal_bytes: 0,
            staging_bytes: 0,
            inter_node: Offsets::default(),
            direct_lanes: 0,
            numbers: HashMap::new(),
        };
        let sides = [Side::Send, Side::Receive];
        let lanes = geometry.lanes();
        let ends = lanes.iter().flat_map(|lane| sides.map(|side| (lane, side)));
        let own = ends.filter(|((lane, _), side)| match side {
            Side::Send => lane.from == rank.0,
            Side::Receive => lane.to == rank.0,
        });
        let (inter_node, intra_node): (Vec<_>, Vec<_>) =
            own.partition(|((lane, _), _)| geometry.are_apart(lane.from, lane.to));
        for ((lane, shape), side) in intra_node {
            layout.push(LaneEnd { lane: *lane, side }, *shape, None);
        }
        let completions = layout.signal_bytes;
        layout.signal_bytes += inter_node.len() as u64 * SIGNAL_STRIDE;
        layout.inter_node = Offsets { signals: layout.signal_bytes, staging: layout.staging_bytes };
        for (number, ((lane, shape), side)) in (0..).zip(inter_node) {
            let completion = completions + number * SIGNAL_STRIDE;
            layout.push(LaneEnd { lane: *lane, side }, *shape, Some(completion));
        }
        layout
    }

    /// Appends a port; `completion` is where the completion word of one to another node stands.
    fn push(&mut self, end: LaneEnd, shape: SlotShape, completion: Option<u64>) {
        let signal = self.signal_bytes;
        self.signal_bytes += SIGNAL_STRIDE;
        let is_inter_node = completion.is_some();
        let completion = completion.unwrap_or_else(|| {
            self.signal_bytes += SIGNAL_STRIDE;
            signal + SIGNAL_STRIDE
        });
        let slots = self.staging_bytes;
        self.staging_bytes += u64::from(shape.bytes) * u64::from(shape.count);
        let direct = end.side == Side::Send && end.lane.kind == LaneKind::Direct;
        let route_index = if direct { self.direct_lanes } else { 0 };
        self.direct_lanes += u32::from(direct);
        self.numbers.insert(end, self.ports.len() as u32);
        self.ports.push(PortPlace {
            end,
            signal,
            completion,
            slots,
            shape,
            route_index,
            is_inter_node,
        });
    }

    /// The number of a port, if the rank has it.
    pub fn number(&self, end: LaneEnd) -> Option<u32> {
        self.numbers.get(&end).copied()
    }

    /// The port at `end`, which must be one of this rank's.
    pub fn port(&self, end: LaneEnd) -> &PortPlace {
        &self.ports[self.numbers[&end] as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_every_lane_exist_and_do_not_overlap() {
        for rank_count in 1..=8 {
            let geometry = Geometry {
                rank_count,
                blocks: 3,
                slot_bytes: 8192,
                slot_count: 4,
                nodes: Nodes::One,
                low_latency_bytes: 4096,
                engine: EngineKind::Proxy,
            };
            let layouts: Vec<_> =
                (0..rank_count).map(|rank| Layout::new(&geometry, Rank(rank))).collect();
            for (lane, _) in geometry.lanes() {
                let ends = [Side::Send, Side::Receive].map(|side| LaneEnd { lane, side });
                let [sender, receiver] =
                    ends.map(|end| layouts[end.rank() as usize].port(end).shape);
                assert_eq!(sender, receiver);
            }
            for layout in &layouts {
                for (before, after) in layout.ports.iter().zip(layout.ports.iter().skip(1)) {
                    assert!(before.completion < after.signal);
                    assert_eq!(before.slots + before.slots_bytes(), after.slots);
                }
            }
        }
    }

    /// If this fails, host memory that takes the place of the last part is too small, or a word of
    /// the own engine lies where only adapters write.
    #[test]
    fn what_other_nodes_write_stands_behind_all_else() {
        let nodes = Nodes::Even { ranks: 2 };
        let geometry = Geometry::new(6, nodes, &Settings::default());
        let layout = Layout::new(&geometry, Rank(3));
        let Offsets { signals, staging } = layout.inter_node;
        let mut words = Vec::new();
        for place in &layout.ports {
            let peer = place.end.lane.from + place.end.lane.to - 3;
            assert_eq!(place.is_inter_node, peer != 2);
            assert_eq!(place.signal >= signals, place.is_inter_node);
            let end = place.slots + place.slots_bytes();
            assert!(if place.is_inter_node { place.slots >= staging } else { end <= staging });
            assert!(place.completion < signals);
            words.extend([place.signal, place.completion]);
        }
        let count = words.len() as u64;
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len() as u64, count);
        assert_eq!(layout.signal_bytes, count * SIGNAL_STRIDE);
    }

    #[test]
    fn staging_of_eight_ranks_stays_small() {
        let geometry = Geometry::new(8, Nodes::One, &Settings::default());
        let bytes = Layout::new(&geometry, Rank(0)).staging_bytes;
        assert!(bytes < 40 << 20, "{bytes} bytes of staging for each rank");
    }

    #[test]
    fn nodes_are_even_only_where_blocks_of_one_size_follow_one_another() {
        let of = |names: &str| {
            Nodes::of(&names.chars().map(|name| name.to_string()).collect::<Vec<_>>())
        };
        assert_eq!(of("aaaa"), Nodes::One);
        assert_eq!(of("aabb"), Nodes::Even { ranks: 2 });
        assert_eq!(of("abc"), Nodes::Even { ranks: 1 });
        for uneven in ["aab", "abab", "abba", "aabbb"] {
            assert_eq!(of(uneven), Nodes::Uneven, "{uneven}");
        }
    }
}
