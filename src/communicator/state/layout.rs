//! Which lanes a communicator has, and where their ends lie in each rank's memory.
//!
//! Everything here follows from the number of ranks and a few settings, so a rank computes the
//! addresses in a peer's memory itself and needs only two base addresses from it. Nothing is kept
//! for a lane: the place of a port is computed when somebody asks for it, at a cost that does not
//! depend on the number of ranks.
//!
//! A rank's ports stand in the order of their peers: those of its node, then all others, each part
//! by rank. For each peer, lanes to it come before lanes from it. Only the lanes between neighbours
//! of a ring are more, or larger, than those of other pairs, and a rank has at most four of these
//! ([`Geometry::successors`]); so what stands before a port is a multiplication and four
//! comparisons.

use crate::error::{Error, Result};
use crate::id::{EngineKind, Rank};
use crate::plan::{
    ALL_PAIRS_RANKS_MAX, GRANULE_BYTES, Lane, LaneEnd, LaneKind, Limits, Side, SlotShape,
};
use crate::settings::Settings;
use std::ops::Range;

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
    /// Bytes of one slot between other ranks.
    pub pair_slot_bytes: u32,
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
    /// The most ranks of a communicator: as many as were tried. Each pair takes two routes of each
    /// rank, or four where messages go through host memory, and a descriptor names one of 65,536.
    pub const RANKS_MAX: u32 = 1024;

    /// Slots between ranks that are no neighbours do not shrink below this: a transfer of so few
    /// bytes costs as much as one of none.
    const PAIR_SLOT_BYTES_MIN: u32 = 512;
    /// What all of them take at most, where no setting says it: those of 64 ranks are not shrunk.
    const PAIRS_BYTES_USUAL: u64 = 64 << 20;

    /// The geometry that `settings` ask for. Slots between ranks that are no neighbours are as large
    /// as all of them fit into [`Settings::staging_bytes`].
    ///
    /// All of them are there from the beginning, in one allocation: drivers do not let memory be
    /// allocated beside collectives that run, and a rank may write into a peer's slots before the
    /// peer's thread has come to the call. What is computed needs nobody's answer.
    ///
    /// # Errors
    /// [`Error::Setting`] where they do not fit.
    pub fn new(rank_count: u32, nodes: Nodes, settings: &Settings) -> Result<Self> {
        let mut geometry = Self::with_slots_of_pairs(rank_count, nodes, settings, 0);
        // Every rank has as many neighbours as the first one.
        let near = Layout::new(&geometry, Rank(0)).staging_bytes();
        let neighbours = geometry.successors(0).count() + geometry.predecessors(0).count();
        let lanes = 2 * (u64::from(rank_count) - 1) - neighbours as u64;
        let slots = lanes * u64::from(settings.slot_count);
        let all = settings.staging_bytes.unwrap_or(near + Self::PAIRS_BYTES_USUAL);
        let bytes_max = Limits::pair_slot_bytes_max(settings.slot_bytes);
        let fits = all.saturating_sub(near).checked_div(slots).unwrap_or(u64::MAX);
        let bytes = fits.min(bytes_max.into()) as u32;
        geometry.pair_slot_bytes = bytes - bytes % GRANULE_BYTES as u32;
        if near > all || bytes < Self::PAIR_SLOT_BYTES_MIN {
            let least = near + slots * u64::from(Self::PAIR_SLOT_BYTES_MIN);
            return Err(Error::Setting {
                name: "RINGDOVE_STAGING_BYTES".into(),
                value: settings.staging_bytes.map_or("".into(), |bytes| bytes.to_string()),
                expected: format!(
                    "at least {least} for {rank_count} ranks, or less of RINGDOVE_BLOCKS, \
                     RINGDOVE_SLOTS and RINGDOVE_SLOT_BYTES"
                ),
            });
        }
        Ok(geometry)
    }

    fn with_slots_of_pairs(
        rank_count: u32,
        nodes: Nodes,
        settings: &Settings,
        pair_slot_bytes: u32,
    ) -> Self {
        Self {
            rank_count,
            blocks: settings.blocks_max,
            slot_bytes: settings.slot_bytes,
            pair_slot_bytes,
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
            pair_slot_bytes: self.pair_slot_bytes,
            slot_count: self.slot_count,
            low_latency_bytes: self.low_latency_bytes,
            ranks_per_node: self.ranks_per_node(),
        }
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

    /// The ranks to which a collective sends much from `rank`: around a ring, or, where a node has
    /// several ranks, around the node and along the rail.
    fn successors(&self, rank: u32) -> impl Iterator<Item = u32> {
        self.at_distance(rank, |place, ring| (place + 1) % ring)
    }

    /// The ranks whose successor `rank` is.
    fn predecessors(&self, rank: u32) -> impl Iterator<Item = u32> {
        self.at_distance(rank, |place, ring| (place + ring - 1) % ring)
    }

    /// One step from `rank` on each of its rings; `step` goes from a place of a ring to another.
    fn at_distance(&self, rank: u32, step: impl Fn(u32, u32) -> u32) -> impl Iterator<Item = u32> {
        let count = self.rank_count;
        let both = match self.nodes {
            Nodes::Even { ranks } if ranks > 1 => {
                let (node, place) = (rank / ranks, rank % ranks);
                let on_rail = step(node, count / ranks) * ranks + place;
                [Some(node * ranks + step(place, ranks)), Some(on_rail)]
            }
            _ => [Some(step(rank, count)), None],
        };
        both.into_iter().flatten().filter(move |&other| other != rank)
    }

    /// Does a collective send much from one to the other?
    fn are_neighbours(&self, from: u32, to: u32) -> bool {
        self.successors(from).any(|next| next == to)
    }

    /// What one end of all lanes from one rank to another takes.
    fn lanes(&self, side: Side, between_neighbours: bool) -> Sizes {
        let low_latency = match self.low_latency_slots() {
            Some(slots) => Sizes { ports: 1, staging: bytes(slots), direct: 0 },
            None => Sizes::default(),
        };
        let slots = bytes(self.slots(between_neighbours));
        let others = match between_neighbours {
            true => Sizes {
                ports: 2 * self.blocks,
                staging: u64::from(self.blocks) * slots,
                direct: if side == Side::Send { self.blocks } else { 0 },
            },
            false => Sizes { ports: 1, staging: slots, direct: 0 },
        };
        low_latency.and(others)
    }

    /// Slots of a lane that has any and is no LL lane.
    fn slots(&self, between_neighbours: bool) -> SlotShape {
        let bytes = if between_neighbours { self.slot_bytes } else { self.pair_slot_bytes };
        SlotShape { bytes, count: self.slot_count }
    }

    /// Slots of an LL lane, where there are such lanes.
    fn low_latency_slots(&self) -> Option<SlotShape> {
        let has_any = self.low_latency_bytes > 0;
        has_any.then(|| self.limits(self.slot_bytes).low_latency_slots())
    }

    /// The ranks of `rank`'s node, as far as layouts distinguish nodes.
    fn node_of(&self, rank: u32) -> Range<u32> {
        match self.nodes {
            Nodes::Even { ranks } => {
                let first = rank / ranks * ranks;
                first..first + ranks
            }
            Nodes::One | Nodes::Uneven => 0..self.rank_count,
        }
    }
}

/// What ports take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sizes {
    ports: u32,
    /// Bytes of slots.
    staging: u64,
    /// Lanes without slots.
    direct: u32,
}

impl Sizes {
    fn and(self, other: Self) -> Self {
        Self {
            ports: self.ports + other.ports,
            staging: self.staging + other.staging,
            direct: self.direct + other.direct,
        }
    }

    fn times(self, count: u32) -> Self {
        Self {
            ports: self.ports * count,
            staging: self.staging * u64::from(count),
            direct: self.direct * count,
        }
    }
}

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
    /// Place among the rank's send ports without slots.
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
    /// Bytes of all its slots.
    pub fn slots_bytes(&self) -> u64 {
        bytes(self.shape)
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
    fn with_peers(&self, peers: Range<u32>) -> Sizes {
        let (geometry, own) = (&self.geometry, self.rank.0);
        let count = peers.len() as u32 - u32::from(peers.contains(&own));
        let among = |ranks: &mut dyn Iterator<Item = u32>| {
            ranks.filter(|rank| peers.contains(rank)).count() as u32
        };
        let after = among(&mut geometry.successors(own));
        let before = among(&mut geometry.predecessors(own));
        [(Side::Send, after), (Side::Receive, before)]
            .into_iter()
            .map(|(side, neighbours)| {
                let many = geometry.lanes(side, true).times(neighbours);
                many.and(geometry.lanes(side, false).times(count - neighbours))
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
        let [number, near, all] =
            [number, self.intra_node.ports, self.all.ports].map(|count| u64::from(count));
        let (signal, completion) = match number < near {
            true => (2 * number, 2 * number + 1),
            // Behind all words of the others stand the completions, then the signals.
            false => (all + number, near + number),
        };
        (signal * SIGNAL_STRIDE, completion * SIGNAL_STRIDE)
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

    /// Number of send ports without slots: routes that one pair of buffers takes.
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
            let ends = low_latency
                .chain(others)
                .map(move |(index, kind)| LaneEnd { lane: Lane { from, to, index, kind }, side });
            ends.filter_map(move |end| layout.port(end))
        })
    }

    /// The port at `end`, if it is one of this rank's.
    pub fn port(&self, end: LaneEnd) -> Option<PortPlace> {
        let LaneEnd { lane, side } = end;
        let (geometry, own) = (&self.geometry, self.rank.0);
        let peer = if side == Side::Send { lane.to } else { lane.from };
        if end.rank() != own || peer == own || peer >= geometry.rank_count {
            return None;
        }
        let (in_order, offset, shape) = self.among_lanes(&lane)?;
        let mut before = self.before(peer);
        if side == Side::Receive {
            let lanes_there = geometry.lanes(Side::Send, geometry.are_neighbours(own, peer));
            before = before.and(lanes_there);
        }
        let number = before.ports + in_order;
        let (signal, completion) = self.words(number);
        let is_direct = side == Side::Send && lane.kind == LaneKind::Direct;
        Some(PortPlace {
            number,
            end,
            signal,
            completion,
            slots: before.staging + offset,
            shape,
            route_index: if is_direct { before.direct + u32::from(lane.index) } else { 0 },
            is_inter_node: geometry.are_apart(own, peer),
        })
    }

    /// Place of a lane among those from one rank to another, where its slots lie among theirs, and
    /// what they are; None where there is no such lane. The LL lane is the first; then comes, for
    /// each index, a lane with slots, and between neighbours a direct one.
    fn among_lanes(&self, lane: &Lane) -> Option<(u32, u64, SlotShape)> {
        let geometry = &self.geometry;
        let between_neighbours = geometry.are_neighbours(lane.from, lane.to);
        let low_latency = geometry.low_latency_slots();
        let slots = geometry.slots(between_neighbours);
        let index = u32::from(lane.index);
        let count = if between_neighbours { geometry.blocks } else { 1 };
        let number = low_latency.map_or(0, |_| 1) + 2 * index;
        let offset = low_latency.map_or(0, bytes) + u64::from(index) * bytes(slots);
        match lane.kind {
            LaneKind::LowLatency => Some((0, 0, low_latency.filter(|_| index == 0)?)),
            LaneKind::Slots if index < count => Some((number, offset, slots)),
            LaneKind::Direct if index < count && between_neighbours => {
                Some((number + 1, offset + bytes(slots), SlotShape { bytes: 0, ..slots }))
            }
            LaneKind::Slots | LaneKind::Direct => None,
        }
    }
}

/// Bytes of all slots of a lane.
fn bytes(slots: SlotShape) -> u64 {
    u64::from(slots.bytes) * u64::from(slots.count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(rank_count: u32, nodes: Nodes, low_latency_bytes: u32) -> Geometry {
        Geometry {
            rank_count,
            blocks: 3,
            slot_bytes: 256 << 10,
            pair_slot_bytes: 4096,
            slot_count: 4,
            nodes,
            low_latency_bytes,
            engine: EngineKind::Proxy,
        }
    }

    /// Worlds of all kinds.
    fn geometries() -> impl Iterator<Item = Geometry> {
        let spreads = (1..=9).flat_map(|ranks| [(ranks, Nodes::One), (ranks, Nodes::Uneven)]);
        let even = [(2, 1), (4, 2), (6, 2), (6, 3), (12, 4), (5, 1), (9, 3)]
            .map(|(ranks, each)| (ranks, Nodes::Even { ranks: each }));
        let all = spreads.chain(even);
        all.flat_map(|(ranks, nodes)| [0, 4096].map(|bytes| geometry(ranks, nodes, bytes)))
    }

    /// Lanes that some plan uses: those of a ring, on each node, along rails, of pairs, LL lanes.
    /// Written from what plans ask for, and not from the layout.
    fn wanted(geometry: &Geometry) -> Vec<Lane> {
        let (ranks, blocks) = (geometry.rank_count, geometry.blocks as u16);
        let mut lanes = Vec::new();
        for (from, to) in (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))) {
            let next = match geometry.nodes {
                Nodes::Even { ranks: each } if each > 1 => {
                    let on_node = from / each * each + (from % each + 1) % each;
                    to == on_node || to == (from + each) % ranks
                }
                _ => to == (from + 1) % ranks,
            };
            let lane = |index, kind| Lane { from, to, index, kind };
            if from == to {
                continue;
            }
            lanes.push(lane(0, LaneKind::Slots));
            if geometry.low_latency_bytes > 0 {
                lanes.push(lane(0, LaneKind::LowLatency));
            }
            if next {
                lanes.extend((1..blocks).map(|index| lane(index, LaneKind::Slots)));
                lanes.extend((0..blocks).map(|index| lane(index, LaneKind::Direct)));
            }
        }
        lanes
    }

    /// If this fails, two engines write the same bytes, or beyond the end of a rank's memory.
    #[test]
    fn both_ends_of_every_lane_exist_and_fill_the_memory_without_overlap() {
        for geometry in geometries() {
            let layouts: Vec<_> =
                (0..geometry.rank_count).map(|rank| Layout::new(&geometry, Rank(rank))).collect();
            let mut found = 0;
            for lane in wanted(&geometry) {
                let ends = [Side::Send, Side::Receive].map(|side| LaneEnd { lane, side });
                let [sender, receiver] =
                    ends.map(|end| layouts[end.rank() as usize].port(end).expect("it exists"));
                assert_eq!(sender.shape, receiver.shape, "{geometry:?} {lane:?}");
                let slotted = lane.kind != LaneKind::Direct;
                assert_eq!(sender.slots_bytes() > 0, slotted);
                found += 2;
            }
            for layout in &layouts {
                let ports: Vec<_> = layout.ports().collect();
                assert_eq!(ports.len() as u32, layout.port_count());
                found -= ports.len();
                let (mut staging, mut direct, mut words) = (0, 0, Vec::new());
                for (number, place) in (0..).zip(&ports) {
                    assert_eq!((place.number, place.slots), (number, staging), "{geometry:?}");
                    assert_eq!(layout.port(place.end), Some(*place));
                    staging += place.slots_bytes();
                    if (place.end.side, place.end.lane.kind) == (Side::Send, LaneKind::Direct) {
                        assert_eq!(place.route_index, direct);
                        direct += 1;
                    }
                    words.extend([place.signal, place.completion]);
                }
                let sums = (layout.staging_bytes(), layout.direct_lanes());
                assert_eq!(sums, (staging, direct));
                words.sort_unstable();
                let all = (0..2 * u64::from(layout.port_count())).map(|n| n * SIGNAL_STRIDE);
                assert!(words.into_iter().eq(all), "{geometry:?}");
                assert_eq!(layout.signal_bytes(), 2 * ports.len() as u64 * SIGNAL_STRIDE);
            }
            assert_eq!(found, 0, "no other lanes: {geometry:?}");
        }
    }

    /// If this fails, a plan that asks for a lane which nobody has gets another one's port.
    #[test]
    fn lanes_that_do_not_exist_have_no_port() {
        let layout = Layout::new(&geometry(6, Nodes::One, 0), Rank(2));
        let port = |from, to, index, kind, side| {
            layout.port(LaneEnd { lane: Lane { from, to, index, kind }, side })
        };
        let (slots, direct) = (LaneKind::Slots, LaneKind::Direct);
        assert!(port(2, 3, 2, slots, Side::Send).is_some());
        for (from, to, index, kind, side) in [
            (2, 3, 3, slots, Side::Send),
            (2, 4, 1, slots, Side::Send),
            (2, 4, 0, direct, Side::Send),
            (2, 3, 0, LaneKind::LowLatency, Side::Send),
            (2, 2, 0, slots, Side::Send),
            (2, 6, 0, slots, Side::Send),
            (2, 3, 0, slots, Side::Receive),
            (3, 4, 0, slots, Side::Send),
        ] {
            assert_eq!(port(from, to, index, kind, side), None, "{from} to {to}, {kind:?}");
        }
    }

    /// If this fails, host memory that takes the place of the last part is too small, or a word of
    /// the own engine lies where only adapters write.
    #[test]
    fn what_other_nodes_write_stands_behind_all_else() {
        let nodes = Nodes::Even { ranks: 2 };
        let geometry = Geometry::new(6, nodes, &Settings::default()).unwrap();
        let layout = Layout::new(&geometry, Rank(3));
        let Offsets { signals, staging } = layout.inter_node();
        let mut inter_node = 0;
        for place in layout.ports() {
            let peer = place.end.lane.from + place.end.lane.to - 3;
            assert_eq!(place.is_inter_node, peer != 2);
            assert_eq!(place.signal >= signals, place.is_inter_node);
            let end = place.slots + place.slots_bytes();
            assert!(if place.is_inter_node { place.slots >= staging } else { end <= staging });
            assert!(place.completion < signals);
            inter_node += u64::from(place.is_inter_node);
        }
        assert_eq!(layout.signal_bytes() - signals, inter_node * SIGNAL_STRIDE);
    }

    /// If this fails, making a communicator of thousands of ranks takes minutes.
    #[test]
    fn a_port_of_the_largest_world_is_found_at_once() {
        let nodes = Nodes::Even { ranks: 8 };
        let settings = Settings { staging_bytes: Some(1 << 30), ..Settings::default() };
        let geometry = Geometry::new(1 << 16, nodes, &settings).unwrap();
        let layout = Layout::new(&geometry, Rank(40_000));
        assert_eq!(layout.ports().count() as u32, layout.port_count());
        let last = layout.ports_of(Rank((1 << 16) - 1)).last().unwrap();
        assert_eq!(last.number + 1, layout.port_count());
    }

    #[test]
    fn staging_of_eight_ranks_stays_small() {
        let geometry = Geometry::new(8, Nodes::One, &Settings::default()).unwrap();
        let bytes = Layout::new(&geometry, Rank(0)).staging_bytes();
        assert!(bytes < 40 << 20, "{bytes} bytes of staging for each rank");
    }

    /// If this fails, a communicator takes more memory than its user allows, or less than it could.
    #[test]
    fn staging_of_any_number_of_ranks_keeps_to_the_setting() {
        let most = 80 << 20;
        let settings = Settings { staging_bytes: Some(most), ..Settings::default() };
        let mut slots = Vec::new();
        for ranks in [1, 2, 8, 16, 64, 65, 256, 1024, 2048] {
            for nodes in [Nodes::One, Nodes::Even { ranks: 8 }, Nodes::Uneven] {
                if matches!(nodes, Nodes::Even { .. }) && (ranks % 8 != 0 || ranks == 8) {
                    continue;
                }
                let geometry = Geometry::new(ranks, nodes, &settings).unwrap();
                let bytes = Layout::new(&geometry, Rank(ranks / 2)).staging_bytes();
                assert!(bytes <= most, "{ranks} {nodes:?}: {bytes}");
                let is_full = most - bytes < u64::from(2 * ranks) * 4 * 16;
                assert!(geometry.pair_slot_bytes == 128 << 10 || is_full, "{ranks} {nodes:?}");
                slots.push(geometry.pair_slot_bytes);
            }
        }
        assert!(slots.iter().all(|bytes| bytes.is_multiple_of(16)) && slots.contains(&(128 << 10)));
        let small = Settings { staging_bytes: Some(40 << 20), ..settings };
        let error = Geometry::new(4096, Nodes::One, &small).unwrap_err().to_string();
        let least = (32 << 20) + (2 * 4095 - 2) * 4 * 512;
        for part in ["RINGDOVE_STAGING_BYTES", &least.to_string(), "4096 ranks"] {
            assert!(error.contains(part), "lacks {part}: {error}");
        }
        Geometry::new(4096, Nodes::One, &Settings { staging_bytes: Some(least), ..small }).unwrap();
    }

    /// If this fails, collectives of 64 ranks got slower when more ranks were allowed.
    #[test]
    fn slots_of_64_ranks_are_not_shrunk_by_default() {
        let of = |ranks| Geometry::new(ranks, Nodes::One, &Settings::default()).unwrap();
        assert_eq!((of(64).pair_slot_bytes, of(128).pair_slot_bytes), (128 << 10, 66_576));
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
