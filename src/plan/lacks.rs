//! What a plan uses and a communicator lacks. Plans that selection builds use what there is; those
//! of files may use anything.

use super::encode::encoded_bytes;
use super::import::PROGRAM_BYTES_MAX;
use super::selection::{DIRECT_PAIRS_RANKS_MAX, TREES_PER_LANE};
use super::{Lane, LaneKind, Limits, Plan, SCRATCH_BYTES_MAX, SlotShape};

/// What `plan` uses that a communicator with `limits` lacks; `None`: it has everything. All ranks
/// answer alike. Between two ranks there are `Limits::store_blocks` lanes of stores where one's
/// threads reach the other's memory (`is_stored`), whether or not selection would use so many.
/// Blocks must run at the same time, as they wait for one another; a plan over lanes of stores has
/// as many at most as one along packed trees.
pub fn lacks(plan: &Plan, limits: &Limits, is_stored: &dyn Fn(u32, u32) -> bool) -> Option<String> {
    let blocks = || plan.ranks.iter().flat_map(|rank| &rank.blocks);
    let lanes = || blocks().flat_map(|block| &block.ports).map(|port| port.lane);
    let of = |kind| lanes().any(|lane| lane.kind == kind);
    let most = match of(LaneKind::Stores) {
        true => limits.store_blocks.saturating_mul(TREES_PER_LANE),
        false => limits.blocks_max,
    };
    let used = plan.ranks.iter().map(|rank| rank.blocks.len()).max().unwrap_or(0);
    if used > most as usize {
        return Some(format!("it uses {used} blocks, of {most}"));
    }
    let rank_count = plan.ranks.len() as u32;
    if let Some(lane) = lanes().find(|lane| !has(limits, is_stored, rank_count, *lane)) {
        return Some(format!("there is no {lane}"));
    }
    if plan.reaches_peers() && !limits.symmetric {
        return Some("its threads reach registered buffers of other ranks".into());
    }
    let slots = plan.slots;
    let next = |lane: Lane| is_next(limits, rank_count, lane);
    let most = match lanes().filter(|lane| lane.kind == LaneKind::Slots).all(next) {
        true => limits.slot_bytes,
        false => limits.pair_slot_bytes,
    };
    let there = [
        (LaneKind::Slots, SlotShape { bytes: most, count: limits.slot_count }),
        (LaneKind::Stores, Limits::store_slots()),
        (LaneKind::LowLatency, limits.low_latency_slots()),
    ];
    for (kind, there) in there {
        let fits = slots.count == there.count && slots.bytes <= there.bytes;
        if of(kind) && !fits {
            let (count, bytes) = (there.count, there.bytes);
            return Some(format!(
                "it uses {} slots of {} bytes; there are {count} of {bytes}",
                slots.count, slots.bytes
            ));
        }
    }
    let longest = plan.ranks.iter().map(encoded_bytes).max().unwrap_or(0);
    if longest > PROGRAM_BYTES_MAX {
        return Some(format!("a rank's program has {longest} bytes, of {PROGRAM_BYTES_MAX}"));
    }
    let scratch = (0..rank_count).map(|rank| plan.scratch_bytes(rank)).max().unwrap_or(0);
    (scratch > SCRATCH_BYTES_MAX).then(|| format!("it uses {scratch} bytes of scratch memory"))
}

/// Does the lane lead to the next rank of the ring?
fn is_next(limits: &Limits, rank_count: u32, lane: Lane) -> bool {
    let place = |rank| limits.order.map_or(rank, |order| order.place_of(rank));
    limits.ranks_per_node == 0 && (place(lane.from) + 1) % rank_count == place(lane.to)
}

fn has(limits: &Limits, is_stored: &dyn Fn(u32, u32) -> bool, rank_count: u32, lane: Lane) -> bool {
    let index = u32::from(lane.index);
    let between = match is_next(limits, rank_count, lane) {
        true => limits.blocks_max,
        false => 1,
    };
    match lane.kind {
        LaneKind::Slots => index < between,
        LaneKind::Direct => {
            let pairs = u32::from(rank_count <= DIRECT_PAIRS_RANKS_MAX);
            index < if between > 1 { between } else { pairs }
        }
        LaneKind::Stores => {
            is_stored(lane.from, lane.to)
                && limits.ranks_per_node == 0
                && index < limits.store_blocks
        }
        LaneKind::LowLatency => limits.low_latency_bytes > 0 && index == 0,
        // Plans of files are for one node.
        LaneKind::Rail | LaneKind::User => false,
    }
}
