//! Which lanes a communicator has: what follows from the number of ranks, how they are spread over
//! nodes, and a few settings, and so is the same on all ranks.

use crate::error::{Error, Result};
use crate::id::EngineKind;
use crate::plan::{
    ALL_PAIRS_RANKS_MAX, DIRECT_PAIRS_RANKS_MAX, GRANULE_BYTES, Limits, PROVED_RANKS_MAX,
    RingOrder, Side, SlotShape,
};
use crate::settings::{Algorithms, Settings, Stores};
use crate::topology::ranks::TREE_NODES_MAX;
use ringdove_kernels::descriptor::ROUTE_MAX;
use ringdove_kernels::port::GRANT_BYTES;
use std::collections::BTreeSet;
use std::ops::Range;

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
    /// The order in which rings pass the ranks of a node, where it is not that of their numbers.
    pub order: Option<RingOrder>,
    /// Bytes of data that one LL message holds; 0: no LL lanes.
    pub low_latency_bytes: u32,
    /// LL lanes are lanes of stores, where ranks reach each other's memory.
    pub stores: bool,
    /// Lanes of stores with slots, from each rank to each other of its node, and as many lanes
    /// between neighbours on a rail.
    pub store_blocks: u32,
    /// These are used without NVLink, too.
    pub stores_always: bool,
    /// Which plans are taken.
    pub algorithm: Algorithms,
    /// Lanes from each rank to each other that no collective uses.
    pub user_lanes: u32,
    /// Reductions are computed by one expression, whatever the plan.
    pub reproducible: bool,
    /// Transfers of so many bytes begin with the receiver's grant.
    pub granted_bytes: Option<u64>,
    /// What drains the rings, on every rank.
    pub engine: EngineKind,
    /// A digest of the files with plans, where there are any.
    pub plan_files: Option<u64>,
    /// The same of the cost model's constants, where a setting names them.
    pub profile: Option<u64>,
}

/// How the ranks of a communicator reach one another. All ranks say the same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    /// The ranks of each node reach each other's GPU memory.
    pub all: bool,
    /// NVLink joins all GPUs.
    pub nvlink: bool,
    /// Blocks of lanes of stores that the cost model uses.
    pub modelled_blocks: u32,
    /// Engines write into registered buffers of other ranks.
    pub writes_registered: bool,
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
    /// The most ranks of a communicator. Each pair takes two routes of each rank, or four through
    /// host memory, and a descriptor names one of 1,048,576; users' lanes and registered buffers
    /// need some, too.
    pub const RANKS_MAX: u32 = 1 << 16;

    /// Slots between ranks that are no neighbours do not shrink below this: a transfer of so few
    /// bytes costs as much as one of none.
    const PAIR_SLOT_BYTES_MIN: u32 = 512;
    /// What all of them take at most, where no setting says it and they need no more: those of 64
    /// ranks are not shrunk.
    const PAIRS_BYTES_USUAL: u64 = 64 << 20;

    /// The geometry that `settings` ask for. Slots between ranks that are no neighbours are as
    /// large as all of them fit into [`Settings::staging_bytes`].
    ///
    /// All of them are there from the beginning, in one allocation: drivers do not let memory be
    /// allocated beside collectives that run, and a rank may write into a peer's slots before the
    /// peer's thread has come to the call. What is computed needs nobody's answer.
    ///
    /// # Errors
    /// [`Error::Setting`] where they do not fit, or where there are more user lanes than routes.
    pub fn new(rank_count: u32, nodes: Nodes, settings: &Settings) -> Result<Self> {
        let mut geometry = Self::without_slots_of_pairs(rank_count, nodes, settings);
        let lanes_max = Self::user_lanes_max(rank_count);
        if settings.user_lanes > lanes_max {
            return Err(Error::Setting {
                name: "RINGDOVE_USER_LANES".into(),
                value: settings.user_lanes.to_string(),
                expected: format!(
                    "at most {lanes_max} between each two of {rank_count} ranks: a descriptor \
                     names one of 1,048,576 routes"
                ),
            });
        }
        // Every rank has as many neighbours as the first one.
        let neighbours = geometry.successors(0).count() + geometry.predecessors(0).count();
        let lanes = 2 * (u64::from(rank_count) - 1) - neighbours as u64;
        let bytes = |neighbours| {
            let between = Between { neighbours, apart: false, rail: false };
            geometry.lanes(Side::Send, between).staging
        };
        let of_users = 2 * u64::from(settings.user_lanes) * (u64::from(rank_count) - 1);
        let slots = (lanes + of_users) * u64::from(settings.slot_count);
        let least = slots * u64::from(Self::PAIR_SLOT_BYTES_MIN);
        // What is not shrunk: slots between neighbours, and those of LL lanes.
        let near = neighbours as u64 * bytes(true) + lanes * bytes(false);
        // Of lanes of stores there are fewer, where memory is bounded: half of what is left.
        let lane = geometry.store_block_bytes();
        if let Some(all) = settings.staging_bytes {
            let fits = (all.saturating_sub(near + least) / 2).checked_div(lane).unwrap_or(0);
            geometry.store_blocks = fits.min(geometry.store_blocks.into()) as u32;
        }
        let near = near + u64::from(geometry.store_blocks) * lane;
        let usual = near + Self::PAIRS_BYTES_USUAL.max(least);
        let all = settings.staging_bytes.unwrap_or(usual);
        let bytes_max = Limits::pair_slot_bytes_max(settings.slot_bytes);
        let fits = all.saturating_sub(near).checked_div(slots).unwrap_or(u64::MAX);
        let bytes = fits.min(bytes_max.into()) as u32;
        geometry.pair_slot_bytes = bytes - bytes % GRANULE_BYTES as u32;
        if near > all || bytes < Self::PAIR_SLOT_BYTES_MIN {
            return Err(Error::Setting {
                name: "RINGDOVE_STAGING_BYTES".into(),
                value: settings.staging_bytes.map_or("".into(), |bytes| bytes.to_string()),
                expected: format!(
                    "at least {} for {rank_count} ranks, or less of RINGDOVE_BLOCKS, \
                     RINGDOVE_SLOTS and RINGDOVE_SLOT_BYTES",
                    near + least
                ),
            });
        }
        Ok(geometry)
    }

    /// The same with this order of rings. Every rank has as many neighbours in each order.
    pub fn with_order(self, order: Option<RingOrder>) -> Self {
        Self { order, ..self }
    }

    /// The same with files of plans and constants of the cost model, of which these are digests.
    pub fn with_files(self, plan_files: Option<u64>, profile: Option<u64>) -> Self {
        Self { plan_files, profile, ..self }
    }

    /// May plans go along packed trees?
    pub fn may_take_trees(&self) -> bool {
        match self.algorithm {
            Algorithms::Trees => self.store_blocks > 0,
            Algorithms::Auto => self.store_blocks > 0 && !self.reproducible,
            Algorithms::Table | Algorithms::Only(_) => false,
        }
    }

    /// Does the cost model choose each all-reduce, where it knows the GPUs? They are of one node,
    /// and no setting says how it goes.
    pub fn asks_model(&self) -> bool {
        self.algorithm == Algorithms::Auto && self.may_store_over_pci()
    }

    /// May all-reduces go over lanes of stores where NVLink does not join the GPUs: do the model or
    /// a name choose the plan?
    pub fn may_store_over_pci(&self) -> bool {
        matches!(self.algorithm, Algorithms::Auto | Algorithms::Only(_))
            && self.nodes == Nodes::One
            && self.store_blocks > 0
            && !self.stores_always
            && !self.reproducible
    }

    /// Do ranks have to know the links of all GPUs, for packed trees or for the cost model?
    pub fn wants_links(&self) -> bool {
        self.may_take_trees() || self.may_store_over_pci()
    }

    /// The most user lanes. A lane takes two routes at each end, those of both directions four;
    /// half of all routes are left to collectives and registered buffers.
    fn user_lanes_max(rank_count: u32) -> u32 {
        (ROUTE_MAX / 2).checked_div(4 * (rank_count - 1)).unwrap_or(u32::MAX)
    }

    fn without_slots_of_pairs(rank_count: u32, nodes: Nodes, settings: &Settings) -> Self {
        // Ranks with device engines do not open each other's memory.
        let may_store = settings.engine == EngineKind::Proxy && nodes != Nodes::Uneven;
        let stores = may_store && settings.stores != Stores::Never;
        // Plans for more ranks on several nodes do not use them.
        let on_node = match nodes {
            Nodes::Even { ranks } if rank_count <= PROVED_RANKS_MAX => ranks,
            Nodes::Even { .. } => 0,
            Nodes::One | Nodes::Uneven => rank_count,
        };
        Self {
            rank_count,
            blocks: settings.blocks_max,
            slot_bytes: settings.slot_bytes,
            pair_slot_bytes: 0,
            slot_count: settings.slot_count,
            nodes,
            order: None,
            // A word of data and its flag are known to stay together within a node, and from one
            // device engine to another; of adapters, a setting says it (R13).
            low_latency_bytes: match (nodes, settings.engine) {
                _ if rank_count > ALL_PAIRS_RANKS_MAX => 0,
                (Nodes::One, _) | (_, EngineKind::Device) => settings.low_latency_bytes,
                (Nodes::Even { .. }, EngineKind::Proxy)
                    if stores && settings.low_latency_adapters =>
                {
                    settings.low_latency_bytes
                }
                (Nodes::Even { .. } | Nodes::Uneven, EngineKind::Proxy) => 0,
            },
            stores,
            store_blocks: match (2..=ALL_PAIRS_RANKS_MAX).contains(&on_node) {
                true if stores => settings.store_blocks,
                _ => 0,
            },
            algorithm: settings.algorithm,
            stores_always: settings.stores == Stores::Always,
            user_lanes: settings.user_lanes,
            reproducible: settings.reproducible,
            granted_bytes: settings.granted_bytes,
            engine: settings.engine,
            plan_files: None,
            profile: None,
        }
    }

    /// What a plan may use, with slots of `slot_bytes`, where all ranks reach each other, and not
    /// by NVLink.
    pub fn limits(&self, slot_bytes: u32) -> Limits {
        Limits {
            blocks_max: self.blocks,
            slot_bytes,
            pair_slot_bytes: self.pair_slot_bytes,
            slot_count: self.slot_count,
            low_latency_bytes: self.low_latency_bytes,
            stores: self.stores,
            store_blocks: self.store_blocks,
            nvlink: false,
            // As grants.
            symmetric: false,
            ranks_per_node: self.ranks_per_node(),
            order: self.order,
            reproducible: self.reproducible,
            // Where ranks write registered memory: see `ProcessState::limits`.
            granted_bytes: None,
        }
    }

    /// The same, where ranks reach each other so.
    pub fn limits_for(&self, slot_bytes: u32, reach: &Reach) -> Limits {
        let limits = self.limits(slot_bytes);
        let nvlink = reach.all && reach.nvlink;
        let store_blocks = match reach.all {
            true if nvlink || self.stores_always => limits.store_blocks,
            true => reach.modelled_blocks,
            false => 0,
        };
        let granted_bytes = if reach.writes_registered { self.granted_bytes } else { None };
        let stores = limits.stores && reach.all;
        let symmetric =
            stores && self.nodes == Nodes::One && reach.writes_registered && store_blocks > 0;
        Limits { stores, store_blocks, nvlink, symmetric, granted_bytes, ..limits }
    }

    /// Ranks of each node where plans distinguish nodes, else 0.
    pub fn ranks_per_node(&self) -> u32 {
        match self.nodes {
            Nodes::Even { ranks } => ranks,
            Nodes::One | Nodes::Uneven => 0,
        }
    }

    /// How two ranks are placed.
    pub(super) fn between(&self, from: u32, to: u32) -> Between {
        let neighbours = self.successors(from).any(|next| next == to);
        let apart = self.are_apart(from, to);
        let rail = apart && (neighbours || self.rails(from).any(|other| other == to));
        Between { neighbours, apart, rail }
    }

    /// The ranks in the same place of other nodes, where packed trees span so many nodes: between
    /// each two of them there are lanes of the rail, and not between neighbours alone.
    pub(super) fn rails(&self, rank: u32) -> impl Iterator<Item = u32> {
        let per_node = self.ranks_per_node();
        let nodes = self.rank_count.checked_div(per_node).unwrap_or(0);
        let place = rank.checked_rem(per_node).unwrap_or(0);
        let nodes = if nodes <= TREE_NODES_MAX { 0..nodes } else { 0..0 };
        nodes.map(move |node| node * per_node + place).filter(move |other| *other != rank)
    }

    /// Do the two run on different nodes, as far as layouts distinguish nodes?
    pub fn are_apart(&self, one: u32, other: u32) -> bool {
        matches!(self.nodes, Nodes::Even { ranks } if one / ranks != other / ranks)
    }

    /// The ranks to which a collective sends much from `rank`: around a ring, or, where a node has
    /// several ranks, around the node and along the rail.
    pub(super) fn successors(&self, rank: u32) -> impl Iterator<Item = u32> {
        self.at_distance(rank, |place, ring| (place + 1) % ring)
    }

    /// The ranks whose successor `rank` is.
    pub(super) fn predecessors(&self, rank: u32) -> impl Iterator<Item = u32> {
        self.at_distance(rank, |place, ring| (place + ring - 1) % ring)
    }

    /// One step from `rank` on each of its rings; `step` goes from a place of a ring to another.
    fn at_distance(&self, rank: u32, step: impl Fn(u32, u32) -> u32) -> impl Iterator<Item = u32> {
        let count = self.rank_count;
        // Orders are of nodes: those of places and of ranks are the same ones.
        let place = self.order.map_or(rank, |order| order.place_of(rank));
        let rank_at = |place| self.order.map_or(place, |order| order.rank_at(place));
        let both = match self.nodes {
            Nodes::Even { ranks } if ranks > 1 => {
                let first = rank / ranks * ranks;
                let on_rail = step(rank / ranks, count / ranks) * ranks + rank % ranks;
                [Some(rank_at(first + step(place - first, ranks))), Some(on_rail)]
            }
            _ => [Some(rank_at(step(place, count))), None],
        };
        both.into_iter().flatten().filter(move |&other| other != rank)
    }

    /// What one end of all lanes from one rank to another takes.
    pub(super) fn lanes(&self, side: Side, between: Between) -> Sizes {
        let of_users = self.user_lanes(side, self.user_lanes);
        self.lanes_of_plans(side, between).and(of_users)
    }

    /// The same without user lanes, which stand behind these.
    pub(super) fn lanes_of_plans(&self, side: Side, between: Between) -> Sizes {
        let low_latency = match self.low_latency_slots() {
            Some(slots) => Sizes { ports: 1, staging: bytes(slots), direct: 0 },
            None => Sizes::default(),
        };
        let slots = self.slots(between.neighbours);
        let slots = Sizes { ports: 1, staging: granted(slots), direct: 0 };
        let direct = Sizes { ports: 1, staging: 0, direct: u32::from(side == Side::Send) };
        let others = match between.neighbours {
            true => slots.and(direct).times(self.blocks),
            false if self.pairs_are_direct() => slots.and(direct),
            false => slots,
        };
        low_latency.and(others).and(self.block_lanes(side, between, self.store_blocks))
    }

    /// Is there a direct lane between each two ranks? Between neighbours there are more.
    pub(super) fn pairs_are_direct(&self) -> bool {
        self.rank_count <= DIRECT_PAIRS_RANKS_MAX
    }

    /// What one end takes of the lanes that so many blocks with lanes of stores have between two
    /// ranks, LL lanes apart. On a node there are slots at the receiver alone.
    pub(super) fn block_lanes(&self, side: Side, between: Between, count: u32) -> Sizes {
        let one = Sizes { ports: 1, staging: bytes(Limits::store_slots()), direct: 0 };
        let lane = match (between, side) {
            (Between { apart: false, .. }, Side::Send) => Sizes { staging: 0, ..one },
            (Between { apart: false, .. }, Side::Receive) => one,
            (Between { rail: true, .. }, _) => one,
            (Between { rail: false, .. }, _) => Sizes::default(),
        };
        lane.times(count)
    }

    /// Bytes of the slots of one such block, of all its lanes.
    fn store_block_bytes(&self) -> u64 {
        let of = |from, to, side| self.block_lanes(side, self.between(from, to), 1).staging;
        let both = |peer| of(0, peer, Side::Send) + of(peer, 0, Side::Receive);
        let beside = self.node_of(0).filter(|peer| *peer != 0);
        let near = self.successors(0).chain(self.predecessors(0)).chain(self.rails(0));
        let apart: BTreeSet<u32> = near.filter(|&peer| self.are_apart(0, peer)).collect();
        beside.chain(apart).map(both).sum()
    }

    /// What one end of so many user lanes takes.
    pub(super) fn user_lanes(&self, side: Side, count: u32) -> Sizes {
        let staging = bytes(self.slots(false));
        Sizes { ports: 1, staging, direct: u32::from(side == Side::Send) }.times(count)
    }

    /// Slots of a lane that has any and is no LL lane.
    pub(super) fn slots(&self, between_neighbours: bool) -> SlotShape {
        let bytes = if between_neighbours { self.slot_bytes } else { self.pair_slot_bytes };
        SlotShape { bytes, count: self.slot_count }
    }

    /// Slots of an LL lane, where there are such lanes.
    pub(super) fn low_latency_slots(&self) -> Option<SlotShape> {
        let has_any = self.low_latency_bytes > 0;
        has_any.then(|| self.limits(self.slot_bytes).low_latency_slots())
    }

    /// The ranks of `rank`'s node, as far as layouts distinguish nodes.
    pub(super) fn node_of(&self, rank: u32) -> Range<u32> {
        match self.nodes {
            Nodes::Even { ranks } => {
                let first = rank / ranks * ranks;
                first..first + ranks
            }
            Nodes::One | Nodes::Uneven => 0..self.rank_count,
        }
    }
}

/// How two ranks are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Between {
    /// A collective sends much from one to the other.
    pub neighbours: bool,
    /// They run on different nodes, as far as layouts distinguish nodes.
    pub apart: bool,
    /// There are lanes of a rail from one to the other.
    pub rail: bool,
}

/// What ports take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sizes {
    pub ports: u32,
    /// Bytes of slots.
    pub staging: u64,
    /// Lanes on which registered buffers move: direct ones, and those of users.
    pub direct: u32,
}

impl Sizes {
    pub fn and(self, other: Self) -> Self {
        Self {
            ports: self.ports + other.ports,
            staging: self.staging + other.staging,
            direct: self.direct + other.direct,
        }
    }

    /// What is left without `other`, which is a part of it.
    pub fn without(self, other: Self) -> Self {
        Self {
            ports: self.ports - other.ports,
            staging: self.staging - other.staging,
            direct: self.direct - other.direct,
        }
    }

    pub fn times(self, count: u32) -> Self {
        Self {
            ports: self.ports * count,
            staging: self.staging * u64::from(count),
            direct: self.direct * count,
        }
    }
}

/// Bytes of all slots of a lane whose receiver grants, and of the place of the grant.
pub(super) fn granted(slots: SlotShape) -> u64 {
    bytes(slots) + GRANT_BYTES
}

/// Bytes of all slots of a lane.
pub(super) fn bytes(slots: SlotShape) -> u64 {
    u64::from(slots.bytes) * u64::from(slots.count)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, a descriptor names another lane's route.
    #[test]
    fn user_lanes_are_no_more_than_descriptors_can_name() {
        let new = |ranks, user_lanes| {
            let settings = Settings { user_lanes, ..Settings::default() };
            Geometry::new(ranks, Nodes::One, &settings)
        };
        let largest = Geometry::RANKS_MAX;
        for (ranks, most) in [(8, 64), (2000, 64), (2049, 63), (16_000, 8), (largest, 2)] {
            new(ranks, most).unwrap();
            if most < 64 {
                let text = new(ranks, most + 1).unwrap_err().to_string();
                assert!(text.contains("RINGDOVE_USER_LANES"), "{text}");
            }
        }
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
