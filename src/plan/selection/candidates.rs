//! All plans that a communicator could run for a request, for whoever compares them.

use super::stores_on_nodes::goes_by_stores_on_nodes;
use super::symmetric::{goes_around_symmetric, goes_symmetric};
use super::{
    ALL_PAIRS_RANKS_MAX, Algorithm, Choice, LOW_LATENCY_BYTES_MAX, Limits, ONE_HOP_RANKS_MAX,
    PlanError, all_pairs, all_reduce_by, goes_directly, other_by, select,
};
use crate::plan::{Collective, CollectiveRequest};
use ringdove_kernels::op::BLOCK_PORTS_MAX;

/// The choice of [`select`], and every other plan that the lanes of `limits` carry, but for those
/// along packed trees ([`select_packed`](super::select_packed)). The choice comes first; none comes
/// twice. Of reductions that have to be reproducible the choice alone.
///
/// # Errors
/// As [`select`].
pub fn candidates(request: &CollectiveRequest, limits: &Limits) -> Result<Vec<Choice>, PlanError> {
    let mut all = vec![select(request, limits)?];
    let (ranks, reduces) = (request.rank_count, request.collective.reduces());
    if ranks == 1 || request.bytes == 0 || limits.reproducible && reduces {
        return Ok(all);
    }
    let per_node = if limits.ranks_per_node == 0 { ranks } else { limits.ranks_per_node };
    let fits = u64::from(limits.low_latency_bytes).min(LOW_LATENCY_BYTES_MAX);
    if ranks <= ALL_PAIRS_RANKS_MAX && request.bytes <= fits && !scales_elsewhere(request) {
        all.push(all_pairs(request, limits, per_node));
    }
    match request.collective {
        Collective::AllReduce => {
            let ways = all_reduces(request, limits, per_node);
            all.extend(ways.into_iter().map(|way| all_reduce_by(request, limits, per_node, way)));
        }
        _ => {
            let ways = others(request, limits, per_node);
            all.extend(ways.into_iter().map(|way| other_by(request, limits, per_node, way)));
        }
    }
    let mut each: Vec<Choice> = Vec::new();
    for choice in all {
        if !each.contains(&choice) {
            each.push(choice);
        }
    }
    Ok(each)
}

/// LL messages of other collectives are not scaled.
fn scales_elsewhere(request: &CollectiveRequest) -> bool {
    request.scales() && request.collective != Collective::AllReduce
}

/// Ways to all-reduce, and whether messages of a node go over lanes of stores.
fn all_reduces(
    request: &CollectiveRequest,
    limits: &Limits,
    per_node: u32,
) -> Vec<(Algorithm, bool)> {
    let (ranks, slot) = (request.rank_count, u64::from(limits.pair_slot_bytes));
    let spread = per_node < ranks;
    let mut ways = vec![(Algorithm::Doubling, false)];
    if (3..=ONE_HOP_RANKS_MAX).contains(&ranks) {
        ways.push((Algorithm::TwoShot, false));
    }
    if ranks.is_power_of_two() && ranks > 2 && slot >= 16 * u64::from(ranks / 2) {
        ways.push((Algorithm::Halving, false));
    }
    match spread && per_node > 1 {
        true => ways.push((Algorithm::Hierarchical, false)),
        false => ways.push((Algorithm::RingStaged, false)),
    }
    if request.registered {
        ways.push(match (spread, per_node > 1) {
            (true, true) => (Algorithm::HierarchicalHybrid, false),
            _ if spread || request.in_place => (Algorithm::RingHybrid, false),
            _ => (Algorithm::RingDirect, false),
        });
    }
    if limits.store_blocks > 0 && !spread && ranks <= ALL_PAIRS_RANKS_MAX {
        ways.push((Algorithm::TwoShot, true));
    }
    if goes_symmetric(request, limits, per_node) {
        ways.push((Algorithm::Symmetric, true));
    }
    if ranks > 2 && goes_around_symmetric(request, limits, per_node) {
        ways.push((Algorithm::RingSymmetric, true));
    }
    if goes_by_stores_on_nodes(request, limits, per_node) {
        ways.push((Algorithm::TwoShotNodes, false));
    }
    ways
}

/// Ways for the other collectives, the data that their lanes carry, and whether they have direct
/// lanes for each block.
fn others(
    request: &CollectiveRequest,
    limits: &Limits,
    per_node: u32,
) -> Vec<(Algorithm, u64, bool)> {
    let (ranks, bytes) = (request.rank_count, request.bytes);
    let all = bytes.saturating_mul(ranks.into());
    let direct = request.registered && (per_node == ranks || per_node == 1);
    let few = u64::from(ranks) * bytes <= u64::from(limits.pair_slot_bytes);
    let mut ways = Vec::new();
    match request.collective {
        Collective::AllGather => {
            ways.extend([(Algorithm::RingStaged, all, false), (Algorithm::Bruck, bytes, false)]);
            if ranks <= ONE_HOP_RANKS_MAX {
                ways.push((Algorithm::Exchange, bytes, false));
            }
            if direct {
                ways.push((Algorithm::RingDirect, all, true));
            }
            if request.registered && goes_directly(request) {
                ways.push((Algorithm::ExchangeDirect, bytes, false));
            }
        }
        Collective::ReduceScatter => {
            ways.push((Algorithm::RingStaged, all, false));
            if ranks <= BLOCK_PORTS_MAX as u32 / 2 {
                ways.push((Algorithm::Exchange, bytes, false));
            }
            if few {
                ways.push((Algorithm::Bruck, bytes, false));
            }
        }
        Collective::Broadcast { .. } | Collective::Reduce { .. } => {
            ways.extend([(Algorithm::Chain, bytes, false), (Algorithm::Tree, bytes, false)]);
            if ranks <= ONE_HOP_RANKS_MAX {
                ways.push((Algorithm::Star, bytes, false));
            }
            if direct && !request.collective.reduces() {
                ways.push((Algorithm::ChainDirect, bytes, true));
            }
        }
        Collective::AllToAll => {
            ways.push((Algorithm::Exchange, bytes, false));
            if few {
                ways.push((Algorithm::Bruck, bytes, false));
            }
            if request.registered && goes_directly(request) {
                ways.push((Algorithm::ExchangeDirect, bytes, false));
            }
        }
        Collective::Gather { .. } | Collective::Scatter { .. } => {
            ways.push((Algorithm::Star, bytes, false));
            if few {
                ways.push((Algorithm::Tree, bytes, false));
            }
        }
        Collective::AllReduce | Collective::Barrier => {}
    }
    ways
}
