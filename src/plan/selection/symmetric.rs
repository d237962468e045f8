//! When an all-reduce goes from all registered inputs into all registered outputs at once.
//!
//! Limits say whether threads reach the buffers of all ranks. Communicators say so where NVLink
//! joins all GPUs of the node, and over PCI where the cost model compares all plans, or a setting
//! has messages stored. The model takes a load for a round trip on a way that others share; nobody
//! has measured loads over PCI here.

use super::{ALL_PAIRS_RANKS_MAX, Limits};
use crate::plan::{Collective, CollectiveRequest};

/// What a block sums up in one round. Where that takes several passes, the sum so far should still
/// be in the cache of a GPU, where 32 blocks have 16 MiB of it. On virtual GPUs 128 KiB took up to
/// twice as long (`benches/README.md`), and 2 MiB a tenth longer.
pub(super) const SYMMETRIC_SLICE_BYTES_MAX: u64 = 512 << 10;
/// Up to this, one hop of messages is faster than to lend buffers and to take them back.
const BYTES_MIN: u64 = 8 << 10;

/// May a request go this way? A scalar multiplies a rank's own input, which others read.
pub(super) fn goes_symmetric(request: &CollectiveRequest, limits: &Limits, per_node: u32) -> bool {
    goes_around_symmetric(request, limits, per_node) && !request.scales()
}

/// May it go around a ring whose threads reach their neighbours' buffers?
pub(super) fn goes_around_symmetric(
    request: &CollectiveRequest,
    limits: &Limits,
    per_node: u32,
) -> bool {
    limits.symmetric
        && limits.store_blocks > 0
        && request.registered
        && request.collective == Collective::AllReduce
        && per_node == request.rank_count
        && (2..=ALL_PAIRS_RANKS_MAX).contains(&request.rank_count)
        && request.bytes >= BYTES_MIN
}
