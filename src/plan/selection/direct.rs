//! When data goes from registered buffers straight to those of all peers, in one hop.

use crate::plan::{Collective, CollectiveRequest};
use ringdove_kernels::op::BLOCK_PORTS_MAX;

/// The most ranks between each two of which there is a direct lane, and not between neighbours
/// alone: each takes a route for each pair of registered buffers.
pub(crate) const DIRECT_PAIRS_RANKS_MAX: u32 = 64;

/// Below this, for each peer, the grant handshake costs more than the copies that it saves.
const PART_BYTES_MIN: u64 = 16 << 10;

/// Does a request between registered buffers go this way?
pub(super) fn goes_directly(request: &CollectiveRequest) -> bool {
    let ranks_max = match request.collective {
        // Of one block, which has a port to and from each peer.
        Collective::AllGather => BLOCK_PORTS_MAX as u32 / 2 + 1,
        // What peers write is what others still send.
        _ if request.in_place => return false,
        _ => DIRECT_PAIRS_RANKS_MAX,
    };
    request.bytes >= PART_BYTES_MIN && request.rank_count <= ranks_max
}
