//! Selection: which algorithm and which sizes, for a request. A pure function of its arguments, so
//! that every rank chooses alike.
//!
//! | data          | blocks                | slices of a chunk | threads |
//! |---------------|-----------------------|-------------------|---------|
//! | up to 32 KiB  | 1                     | 1                 | 128     |
//! | up to 256 KiB | 1                     | 2                 | 256     |
//! | up to 4 MiB   | 2                     | 2                 | 256     |
//! | more          | 4                     | 2                 | 256     |
//!
//! Up to 8 ranks of one node and up to a size that depends on the collective, at most
//! `Limits::low_latency_bytes`, all-pairs comes before both tables: LL messages, one block, and a
//! thread for 64 bytes (`selection/low_latency.rs` has the sizes). For all-reduces the size is that
//! of the setting, by default 16 KiB, measured against the ring on virtual GPUs
//! (benches/README.md): with 2 and with 4 of them the ring is as quick from 16 to 32 KiB on. On
//! real ones, one hop should win for longer: at 32 KiB, four ranks on PCIe send 192 KiB each, which
//! takes about as long as two of the ring's six hops.
//!
//! Where there are lanes of stores with slots (`Limits::store_blocks`), all-reduces among ranks
//! that reach each other's memory come next, in two hops: of any size where NVLink joins all of
//! them, else of up to 1 MiB (`selection/stores.rs`). From 8 KiB on, where `Limits::symmetric`
//! says that threads reach the registered buffers of all ranks, data goes from these into these
//! (`selection/symmetric.rs`). On several nodes of 2 to 8 ranks each, those hops are on each node,
//! and engines move data along the rails (`selection/stores_on_nodes.rs`).
//!
//! Before the rings come recursive doubling up to 128 KiB, two-shot up to 512 KiB and 16 ranks, and
//! recursive halving where its messages are fewer (`selection/few_hops.rs` has the rules and their
//! numbers); on one node, rings between registered buffers come before these from 128 KiB for each
//! rank on.
//!
//! The other collectives, by NCCL's `count` (of each rank's part, where there are parts). Rows of
//! the table above apply to what one lane carries: to all parts where they go around a ring, to one
//! part where they go straight.
//!
//! | collective      | up to 32 KiB, 16 ranks | few bytes, more ranks | else          |
//! |-----------------|------------------------|-----------------------|---------------|
//! | all-gather      | exchange               | Bruck's               | ring          |
//! | reduce-scatter  | exchange               | Bruck's               | ring          |
//! | broadcast       | star                   | tree                  | chain         |
//! | reduce          | star                   | tree                  | chain         |
//! | all-to-all      | exchange               | Bruck's               | exchange      |
//! | gather, scatter | star                   | tree                  | star          |
//! | barrier         | dissemination          | dissemination         | dissemination |
//!
//! All-gathers and broadcasts of registered buffers take ring and chain between the outputs: in
//! several blocks where all ranks are on one node, or each on a node of its own, since there are
//! direct lanes for each block between neighbours of a ring, and where nodes have several ranks,
//! along the rails. Up to 64 ranks have a direct lane between each two: there, ring and chain of
//! one block take those between other ranks, too.
//!
//! Exchange and star take one hop; Bruck's, tree and dissemination `log2(n)`; in ring and chain
//! each rank sends as much as it receives. Between nodes the same plans serve.
//!
//! Reductions that have to be reproducible go other ways: `selection/reproducible.rs` names them.
//!
//! Blocks are bounded by `Limits::blocks_max`, slices by half of the slots. These rows, and the
//! sizes below, come from reasoning (a message wants the fewest hops and barriers when it is small,
//! and at least two slices in flight when it is large), not from a measurement on hardware.

mod candidates;
mod direct;
mod error;
mod few_hops;
mod kind;
mod limits;
mod low_latency;
mod names;
mod packed;
mod reproducible;
mod stores;
mod stores_on_nodes;
mod symmetric;

pub use candidates::candidates;
pub(crate) use direct::DIRECT_PAIRS_RANKS_MAX;
use direct::goes_directly;
pub use error::PlanError;
pub(super) use error::require;
pub use kind::choose_of;
pub use limits::Limits;
pub(crate) use low_latency::ALL_PAIRS_RANKS_MAX;
use low_latency::goes_all_pairs;
pub(crate) use packed::TREES_PER_LANE;
pub use packed::select_packed;
use stores::goes_by_stores;
use stores_on_nodes::goes_by_stores_on_nodes;
use symmetric::{SYMMETRIC_SLICE_BYTES_MAX, goes_symmetric};

use super::{
    Collective, CollectiveRequest, Forest, GRANULE_BYTES, Modifiers, Range, RingOrder, SlotShape,
};
use ringdove_kernels::descriptor::LENGTH_BYTES_MAX;
use ringdove_kernels::op::BLOCK_PORTS_MAX;
use std::sync::Arc;

/// Data up to `bytes` uses these.
struct Row {
    bytes: u64,
    blocks: u32,
    slices: u32,
    thread_count: u32,
}

const TABLE: [Row; 4] = [
    Row { bytes: 32 << 10, blocks: 1, slices: 1, thread_count: 128 },
    Row { bytes: 256 << 10, blocks: 1, slices: 2, thread_count: 256 },
    Row { bytes: 4 << 20, blocks: 2, slices: 2, thread_count: 256 },
    Row { bytes: u64::MAX, blocks: 4, slices: 2, thread_count: 256 },
];

/// Slots of lanes between ranks that are no neighbours are smaller: every pair of ranks has one.
const PAIR_SLOT_BYTES_MAX: u32 = 128 << 10;
/// Up to this, of each rank's part, one hop to every rank beats a way through all of them.
const ONE_HOP_BYTES_MAX: u64 = 32 << 10;
/// The most ranks that take this hop. A reduction needs a port for each of the others in one block.
const ONE_HOP_RANKS_MAX: u32 = 16;
/// Pairs of steps of one block of an exchange: each has two send and two receive ports.
const EXCHANGE_PAIRS_MAX: u32 = BLOCK_PORTS_MAX as u32 / 4;
/// Below this, the grant handshake of a direct plan costs more than the copies it saves.
const DIRECT_BYTES_MIN: u64 = 64 << 10;
/// From this, for each rank, a ring between registered buffers beats few hops on one node. By the
/// timing model, two ranks of `dgx-a100` are even at 220 KiB, four at 570 KiB, four of `pcie4` at
/// 300 KiB, and eight of `ark` at 550 KiB.
const DIRECT_RANK_BYTES_MIN: u64 = 128 << 10;
/// Threads of the one block that does so, at most.
const ALL_PAIRS_THREADS_MAX: u32 = 512;
/// What one of them handles.
const ALL_PAIRS_BYTES_PER_THREAD: u64 = 64;
/// Slots of an LL lane.
pub(crate) const LOW_LATENCY_SLOTS: u32 = 2;
/// An LL message has to fit one put, with its flags, also where it fills its slot.
const LOW_LATENCY_BYTES_MAX: u64 = 1 << 20;
/// One put of a direct plan: long enough to hide its doorbell, short enough to pipeline.
const DIRECT_SLICE_BYTES_MAX: u64 = 1 << 20;
/// One copy where there is nobody to talk to.
const ALONE_SLICE_BYTES_MAX: u64 = 1 << 20;
/// Messages of a transfer are not cut below this.
const MESSAGE_BYTES_MIN: u64 = 64 << 10;
/// A transfer is cut into about this many messages, as far as the sizes allow.
const MESSAGES_WANTED: u64 = 8;

/// How a request is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// One rank alone: a local copy.
    Copy,
    /// Ring through slots.
    RingStaged,
    /// Ring between registered buffers; of an all-reduce, distinct ones.
    RingDirect,
    /// Ring in place or between nodes: reduce-scatter through slots, all-gather between registered
    /// buffers.
    RingHybrid,
    /// Every rank sends every other rank what that one gets, in LL messages.
    AllPairs,
    /// Rings on each node, and rings over the nodes on every rail, through slots.
    Hierarchical,
    /// The same, with finished pieces between registered buffers.
    HierarchicalHybrid,
    /// Along a chain of all ranks, through slots.
    Chain,
    /// A broadcast along a chain of all ranks, between registered outputs.
    ChainDirect,
    /// Every rank sends every other rank what that one gets, through slots.
    Exchange,
    /// The same of an all-to-all out of place, or an all-gather, between registered buffers.
    ExchangeDirect,
    /// Between the root and every other rank, through slots.
    Star,
    /// Empty messages at distances that double.
    Dissemination,
    /// Pairs at distances that double swap all that they have, through slots.
    Doubling,
    /// Pairs at distances that double swap halves of what they have, and then the finished halves,
    /// through slots. Of a power of two of ranks.
    Halving,
    /// Every rank reduces its chunk of the data and sends the result to all, through slots. Of at
    /// most 17 ranks.
    TwoShot,
    /// The same on each node over lanes of stores, and between nodes along the rails.
    TwoShotNodes,
    /// Every rank reduces its chunk of the data in all ranks' registered inputs, and writes the
    /// result into all registered outputs: its threads reach them. Of at most 17 ranks of a node.
    Symmetric,
    /// Ring whose threads reach the registered outputs of their neighbours.
    RingSymmetric,
    /// Along a binomial tree, through slots.
    Tree,
    /// Parts of many ranks in each message, to distances that double, through slots.
    Bruck,
    /// Reductions whose terms are added one by one, in the order of ranks, through slots: within
    /// groups of ranks directly, and from group to group. The result has the same bits as that of
    /// [`Algorithm::AllPairs`].
    InRankOrder,
    /// Along trees that span all ranks, which were packed for the machine: see [`Forest`].
    Packed,
}

/// Everything that [`build`](super::build) needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// What is asked for.
    pub request: CollectiveRequest,
    /// How.
    pub algorithm: Algorithm,
    /// Blocks of the launch; block `b` uses the lanes with index `b`.
    pub blocks: u32,
    /// Messages of one chunk.
    pub slices: u32,
    /// Bytes of one message, a multiple of [`GRANULE_BYTES`].
    pub slice_bytes: u32,
    /// How often each block walks its ring; 0 when there is nothing to do.
    pub rounds: u32,
    /// Threads of each block.
    pub thread_count: u32,
    /// Slots of each slotted lane.
    pub slots: SlotShape,
    /// Messages on a node go over lanes of stores: [`Algorithm::Symmetric`] and
    /// [`Algorithm::RingSymmetric`] always, and
    /// [`Algorithm::TwoShot`], [`Algorithm::TwoShotNodes`] and [`Algorithm::Halving`] alone.
    pub stores: bool,
    /// Ranks of each node.
    pub ranks_per_node: u32,
    /// Ranks that exchange directly, of [`Algorithm::InRankOrder`]: they follow one another, and
    /// their number divides that of all ranks.
    pub group_ranks: u32,
    /// The order in which rings and chains pass the ranks of a node, where it is not that of their
    /// numbers.
    pub order: Option<RingOrder>,
    /// The trees of [`Algorithm::Packed`].
    pub forest: Option<Arc<Forest>>,
}

impl Choice {
    /// Bytes that all blocks handle in one round.
    pub fn round_bytes(&self) -> u64 {
        let slices = match (self.algorithm, self.request.collective) {
            (Algorithm::AllPairs, _) => return u64::from(self.slice_bytes),
            (Algorithm::Packed, _) => u64::from(self.parts_of_data()) * u64::from(self.slices),
            _ if self.is_in_whole_parts() => return self.request.bytes.max(1),
            // Blocks divide peers among them, and no data; or there is one block.
            (
                Algorithm::Exchange
                | Algorithm::ExchangeDirect
                | Algorithm::Star
                | Algorithm::Tree
                | Algorithm::Doubling,
                _,
            ) => u64::from(self.slices),
            (Algorithm::TwoShotNodes, _) => {
                u64::from(self.blocks) * u64::from(self.ranks_per_node) * u64::from(self.slices)
            }
            (Algorithm::InRankOrder, Collective::AllReduce | Collective::Reduce { .. }) => {
                u64::from(self.blocks) * u64::from(self.group_ranks) * u64::from(self.slices)
            }
            (Algorithm::Copy | Algorithm::Dissemination, _) | (_, Collective::AllReduce) => {
                u64::from(self.blocks) * u64::from(self.request.rank_count) * u64::from(self.slices)
            }
            _ => u64::from(self.blocks) * u64::from(self.slices),
        };
        slices * u64::from(self.slice_bytes)
    }

    /// Slice `slice` of what block `block` handles in a round, where blocks divide one piece of
    /// data among them.
    pub(super) fn slice(&self, block: u32, slice: u32) -> Range {
        let before = u64::from(block) * u64::from(self.slices) + u64::from(slice);
        Range { extent: before * u64::from(self.slice_bytes), length: self.slice_bytes }
    }

    /// Do ranks put parts of their registered inputs into slots as they lie? They say so alike,
    /// and may do otherwise one by one: the messages are the same ([`CollectiveRequest::staged`]).
    pub(super) fn sends_from_input(&self) -> bool {
        let goes = matches!(
            (self.algorithm, self.request.collective),
            (Algorithm::RingStaged, Collective::ReduceScatter)
                | (Algorithm::Chain, Collective::Reduce { .. })
        );
        goes && self.request.registered
            && !self.request.scales()
            && u64::from(self.slice_bytes) >= MESSAGE_BYTES_MIN
    }

    /// What a rank does to its own input when it copies it into a slot.
    pub(super) fn contribution(&self) -> Modifiers {
        Modifiers { scale: self.request.collective.reduces(), finish: false }
    }

    /// Makes this the choice of all-pairs, but for the size of messages: one block, LL slots,
    /// and a thread for 64 bytes, which it handles in four turns. More threads would hide more of
    /// each other's latency; but on virtual GPUs each warp costs some 20 µs.
    pub(super) fn all_pairs(&mut self, limits: &Limits) {
        self.algorithm = Algorithm::AllPairs;
        (self.blocks, self.slices, self.slots) = (1, 1, limits.low_latency_slots());
        let wanted = self.request.bytes.div_ceil(ALL_PAIRS_BYTES_PER_THREAD);
        let threads = wanted.clamp(32, u64::from(ALL_PAIRS_THREADS_MAX)).next_multiple_of(32);
        self.thread_count = threads as u32;
    }

    /// Sets the blocks that the algorithm needs, and the slots of the lanes that it uses: those
    /// between neighbours of a ring are many and large; every other pair of ranks has one lane.
    pub(super) fn set_blocks(&mut self, limits: &Limits) {
        let ranks = self.request.rank_count;
        let peers = ranks - 1;
        let on_ring = match self.algorithm {
            // Where rings go in another order, ranks that follow one another are a pair as others.
            Algorithm::InRankOrder => self.group_ranks == 1 && limits.order.is_none(),
            algorithm => matches!(
                algorithm,
                Algorithm::RingStaged
                    | Algorithm::RingDirect
                    | Algorithm::Chain
                    | Algorithm::ChainDirect
            ),
        };
        let rows_blocks = self.blocks;
        if matches!(self.algorithm, Algorithm::Halving | Algorithm::TwoShot) {
            self.slices = 1;
        }
        self.blocks = match (self.algorithm, self.request.collective) {
            (Algorithm::Copy, _) => rows_blocks,
            // Where nodes have several ranks, the ring's way to the next node is a pair's lane.
            _ if on_ring && (self.ranks_per_node == ranks || self.ranks_per_node == 1) => {
                return;
            }
            _ if on_ring => 1,
            (Algorithm::Exchange, Collective::ReduceScatter) => 1,
            (Algorithm::ExchangeDirect, Collective::AllGather) => 1,
            (Algorithm::Exchange | Algorithm::ExchangeDirect, _) => {
                let pairs = ranks / 2;
                rows_blocks.max(pairs.div_ceil(EXCHANGE_PAIRS_MAX)).min(pairs)
            }
            (Algorithm::Star, Collective::Reduce { .. }) => 1,
            (Algorithm::Star, _) => {
                rows_blocks.max(peers.div_ceil(BLOCK_PORTS_MAX as u32)).min(peers)
            }
            _ => 1,
        };
        self.slots = SlotShape { bytes: limits.pair_slot_bytes, count: limits.slot_count };
    }

    /// Sets the size of messages (for tuning and tests) and the rounds that follow from it.
    pub fn set_slice_bytes(&mut self, slice_bytes: u32) {
        self.slice_bytes = slice_bytes;
        let rounds = self.request.bytes.div_ceil(self.round_bytes());
        // More rounds than fit are refused by the verifier, which bounds the ops of all rounds.
        self.rounds = u32::try_from(rounds).unwrap_or(u32::MAX);
    }
}

/// Chooses algorithm and sizes for a request.
///
/// # Errors
/// A number in `request` or `limits` that no plan can be built for.
pub fn select(request: &CollectiveRequest, limits: &Limits) -> Result<Choice, PlanError> {
    limits.check()?;
    request.check()?;
    let per_node = match limits.ranks_per_node {
        0 => request.rank_count,
        ranks => ranks,
    };
    let divides = request.rank_count.is_multiple_of(per_node);
    require(divides, "ranks of a node", "a divisor of the number of ranks", per_node.into())?;
    Ok(match request.collective {
        _ if goes_all_pairs(request, limits, per_node) => all_pairs(request, limits, per_node),
        collective if limits.reproducible && collective.reduces() && request.rank_count > 1 => {
            reproducible::choose(request, limits, per_node)
        }
        Collective::AllReduce => all_reduce(request, limits, per_node),
        _ => other(request, limits, per_node),
    })
}

/// The row of the table for so much data.
fn row(bytes: u64) -> &'static Row {
    TABLE.iter().find(|row| bytes <= row.bytes).expect("the last row has no end")
}

fn choice(
    request: &CollectiveRequest,
    limits: &Limits,
    per_node: u32,
    algorithm: Algorithm,
    row: &Row,
) -> Choice {
    Choice {
        request: *request,
        algorithm,
        blocks: row.blocks.min(limits.blocks_max),
        slices: row.slices.min(limits.slot_count / 2),
        slice_bytes: GRANULE_BYTES as u32,
        rounds: 0,
        thread_count: row.thread_count,
        slots: limits.slots(),
        stores: false,
        ranks_per_node: per_node,
        group_ranks: request.rank_count,
        order: limits.order.filter(|order| follows(algorithm, order, per_node)),
        forest: None,
    }
}

/// Does this algorithm go around rings or along chains, on nodes of as many ranks as are ordered?
fn follows(algorithm: Algorithm, order: &RingOrder, per_node: u32) -> bool {
    let on_rings = matches!(
        algorithm,
        Algorithm::RingStaged
            | Algorithm::RingDirect
            | Algorithm::RingHybrid
            | Algorithm::RingSymmetric
            | Algorithm::Hierarchical
            | Algorithm::HierarchicalHybrid
            | Algorithm::Chain
            | Algorithm::ChainDirect
    );
    on_rings && order.rank_count() == per_node
}

fn all_reduce(request: &CollectiveRequest, limits: &Limits, per_node: u32) -> Choice {
    let direct = request.registered && request.bytes >= DIRECT_BYTES_MIN;
    let is_large = request.bytes >= DIRECT_RANK_BYTES_MIN * u64::from(request.rank_count);
    let spread = per_node < request.rank_count;
    let rings = || match direct {
        true if spread && per_node > 1 => Algorithm::HierarchicalHybrid,
        // A grant costs a way between nodes.
        true if spread || request.in_place => Algorithm::RingHybrid,
        true => Algorithm::RingDirect,
        false if spread && per_node > 1 => Algorithm::Hierarchical,
        false => Algorithm::RingStaged,
    };
    let stores = goes_by_stores(request, limits, per_node);
    let algorithm = match request.rank_count {
        1 => Algorithm::Copy,
        _ if stores && goes_symmetric(request, limits, per_node) => Algorithm::Symmetric,
        _ if stores => Algorithm::TwoShot,
        _ if goes_by_stores_on_nodes(request, limits, per_node) => Algorithm::TwoShotNodes,
        // Registered buffers need no copy into slots. Between nodes, hops cost more than copies.
        _ if direct && is_large && !spread => rings(),
        _ => few_hops::all_reduce(request, limits).unwrap_or_else(rings),
    };
    all_reduce_by(request, limits, per_node, (algorithm, stores))
}

/// An all-reduce by this algorithm, over lanes of stores or not.
fn all_reduce_by(
    request: &CollectiveRequest,
    limits: &Limits,
    per_node: u32,
    (algorithm, stores): (Algorithm, bool),
) -> Choice {
    let mut choice = choice(request, limits, per_node, algorithm, row(request.bytes));
    if stores {
        choice.set_stores(limits);
    } else if matches!(algorithm, Algorithm::Doubling | Algorithm::Halving | Algorithm::TwoShot) {
        choice.set_blocks(limits);
    }
    let slice_bytes_max = match algorithm {
        Algorithm::Copy => ALONE_SLICE_BYTES_MAX,
        Algorithm::RingDirect => DIRECT_SLICE_BYTES_MAX,
        Algorithm::Symmetric | Algorithm::RingSymmetric => SYMMETRIC_SLICE_BYTES_MAX,
        Algorithm::TwoShotNodes => choice.set_stores_on_nodes(limits),
        // One message has the pieces of half of the ranks.
        Algorithm::Halving => u64::from(choice.slots.bytes / (request.rank_count / 2)),
        _ => u64::from(choice.slots.bytes),
    };
    let mut choice = finish(choice, slice_bytes_max);
    if stores || algorithm == Algorithm::TwoShotNodes {
        choice.set_threads_of_stores();
    }
    choice
}

/// By LL messages, where that is possible.
fn all_pairs(request: &CollectiveRequest, limits: &Limits, per_node: u32) -> Choice {
    let mut choice = choice(request, limits, per_node, Algorithm::AllPairs, row(request.bytes));
    choice.all_pairs(limits);
    finish(choice, limits.low_latency_bytes.into())
}

/// A collective other than all-reduce, by the second table.
fn other(request: &CollectiveRequest, limits: &Limits, per_node: u32) -> Choice {
    let ranks = request.rank_count;
    let is_small = request.bytes <= ONE_HOP_BYTES_MAX && ranks <= ONE_HOP_RANKS_MAX;
    // Neighbours on a ring of all ranks have direct lanes for each block.
    let direct = request.registered && (per_node == ranks || per_node == 1);
    // Other pairs of ranks have one each, where ranks are few: enough for a ring of one block.
    let in_one_block = request.registered && ranks <= DIRECT_PAIRS_RANKS_MAX;
    let all_pairs = request.registered && goes_directly(request);
    let (algorithm, data) = match (request.collective, few_hops::other(request, limits)) {
        _ if ranks == 1 => (Algorithm::Copy, request.bytes),
        (_, Some(algorithm)) => (algorithm, request.bytes),
        (Collective::Barrier, _) => (Algorithm::Dissemination, 0),
        (Collective::AllToAll, _) if all_pairs => (Algorithm::ExchangeDirect, request.bytes),
        (Collective::AllToAll, _) => (Algorithm::Exchange, request.bytes),
        (Collective::Gather { .. } | Collective::Scatter { .. }, _) => {
            (Algorithm::Star, request.bytes)
        }
        (Collective::AllGather | Collective::ReduceScatter, _) if is_small => {
            (Algorithm::Exchange, request.bytes)
        }
        (Collective::AllGather, _) if direct => {
            (Algorithm::RingDirect, request.bytes.saturating_mul(ranks.into()))
        }
        (Collective::AllGather, _) if all_pairs => (Algorithm::ExchangeDirect, request.bytes),
        (Collective::AllGather, _) if in_one_block => {
            (Algorithm::RingDirect, request.bytes.saturating_mul(ranks.into()))
        }
        (Collective::AllGather | Collective::ReduceScatter, _) => {
            (Algorithm::RingStaged, request.bytes.saturating_mul(ranks.into()))
        }
        _ if is_small => (Algorithm::Star, request.bytes),
        (Collective::Broadcast { .. }, _) if direct || in_one_block => {
            (Algorithm::ChainDirect, request.bytes)
        }
        _ => (Algorithm::Chain, request.bytes),
    };
    other_by(request, limits, per_node, (algorithm, data, direct))
}

/// Such a collective by this algorithm, whose lanes carry so much data.
fn other_by(
    request: &CollectiveRequest,
    limits: &Limits,
    per_node: u32,
    (algorithm, data, direct): (Algorithm, u64, bool),
) -> Choice {
    let mut choice = choice(request, limits, per_node, algorithm, row(data));
    choice.set_blocks(limits);
    let slice_bytes_max = match algorithm {
        Algorithm::Copy => ALONE_SLICE_BYTES_MAX,
        Algorithm::ExchangeDirect => DIRECT_SLICE_BYTES_MAX,
        Algorithm::RingDirect | Algorithm::ChainDirect if direct => DIRECT_SLICE_BYTES_MAX,
        // One block alone fills the chain with what it cuts.
        _ => u64::from(choice.slots.bytes),
    };
    finish(choice, slice_bytes_max)
}

/// Sets slices and rounds.
fn finish(mut choice: Choice, slice_bytes_max: u64) -> Choice {
    let slice_bytes_max = slice_bytes_max.min(LENGTH_BYTES_MAX) / GRANULE_BYTES * GRANULE_BYTES;
    choice.set_slice_bytes(match choice.is_in_whole_parts() {
        true => slice_bytes_max as u32,
        false => even_slice(&choice, slice_bytes_max),
    });
    let request = &choice.request;
    if choice.algorithm == Algorithm::Copy && request.in_place && !request.scales() {
        choice.rounds = 0;
    }
    choice
}

/// The message size which spreads the data evenly over the fewest rounds that `maximum` allows.
fn even_slice(choice: &Choice, maximum: u64) -> u32 {
    // One slice per byte of slice size: `round_bytes` of a choice whose slice is one granule.
    let slices_in_round = choice.round_bytes() / u64::from(choice.slice_bytes);
    let rounds = choice.request.bytes.div_ceil(slices_in_round * maximum).max(1);
    let slice = choice.request.bytes.div_ceil(slices_in_round * rounds);
    slice.next_multiple_of(GRANULE_BYTES).clamp(GRANULE_BYTES, maximum) as u32
}

/// Bytes of one message of a transfer of `bytes` between two ranks. Depends on what both ends know
/// alike, and on nothing else.
pub(super) fn message_bytes(bytes: u64, limits: &Limits) -> u64 {
    let wanted = bytes.div_ceil(MESSAGES_WANTED).next_multiple_of(GRANULE_BYTES);
    wanted.max(MESSAGE_BYTES_MIN).min(u64::from(limits.slot_bytes)).min(LENGTH_BYTES_MAX)
}

/// Does a transfer of `bytes` between two ranks begin with the receiver's grant? As above.
pub(crate) fn is_granted(bytes: u64, limits: &Limits) -> bool {
    let messages = || bytes.div_ceil(message_bytes(bytes, limits));
    limits.granted_bytes.is_some_and(|least| bytes >= least.max(1))
        && messages() > u64::from(limits.slot_count)
}

/// Is registered memory of so many bytes put straight into slots? For less, the wait until the
/// engine has read it costs more than a copy.
pub(crate) fn goes_in_place(bytes: u64, limits: &Limits) -> bool {
    bytes >= MESSAGE_BYTES_MIN.min(limits.slot_bytes.into())
}

/// Threads of a group's blocks: by its largest transfer.
pub(super) fn group_thread_count(bytes_max: u64) -> u32 {
    TABLE.iter().find(|row| bytes_max <= row.bytes).expect("the last row has no end").thread_count
}
