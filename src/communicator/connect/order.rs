//! The order in which rings pass the ranks of each node: over the widest links between their GPUs.
//! Lanes depend on it, so it is known before any memory is there. Ranks say which GPUs they have;
//! all hear the same, and compute the same order.

use super::registry::meeting_of;
use crate::bootstrap::UniqueId;
use crate::communicator::state::{Geometry, Nodes};
use crate::error::{Error, Result};
use crate::gpu::pci_address;
use crate::id::{EngineKind, Rank};
use crate::plan::{ORDERED_RANKS_MAX, RingOrder};
use crate::settings::{RingOrders, Settings};
use crate::topology::machine::Machine;
use crate::topology::ranks::{RankGpu, order_of_nodes};
use cudarc::driver::CudaContext;
use std::sync::{Arc, OnceLock};

/// Fewer ranks have one ring, whatever their order.
const RANKS_MIN: u32 = 4;

/// The GPU of `context` with its links; `None` where the management library does not know it.
pub(super) fn own_gpu(context: &CudaContext) -> Result<Option<RankGpu>> {
    /// What this node is made of, asked once: it takes milliseconds for each GPU.
    static NODE: OnceLock<Option<Machine>> = OnceLock::new();
    let node = NODE.get_or_init(|| {
        let unknown = |reason| tracing::info!(%reason, "the links of GPUs are not known");
        Machine::discover().map_err(unknown).ok()
    });
    let address = pci_address(context)?.parse().ok();
    Ok(node.as_ref().zip(address).and_then(|(node, address)| RankGpu::of(node, address)))
}

/// As [`own_gpu`], where rings may have another order than that of ranks.
pub(super) fn ordered_gpu(
    context: &CudaContext,
    rank_count: u32,
    settings: &Settings,
) -> Result<Option<RankGpu>> {
    match may_order(rank_count, settings) {
        true => own_gpu(context),
        false => Ok(None),
    }
}

fn may_order(rank_count: u32, settings: &Settings) -> bool {
    // Reductions in the order of ranks use the lanes of rings.
    rank_count >= RANKS_MIN && settings.ring_order == RingOrders::Links && !settings.reproducible
}

/// `geometry` with the order for the GPUs of all ranks. Where one is not known, or nodes differ,
/// rings keep the order of ranks.
pub(super) fn ordered(geometry: Geometry, gpus: Vec<Option<RankGpu>>) -> Geometry {
    let per_node = match geometry.nodes {
        Nodes::One => geometry.rank_count,
        Nodes::Even { ranks } => ranks,
        Nodes::Uneven => return geometry,
    };
    if !(RANKS_MIN..=ORDERED_RANKS_MAX as u32).contains(&per_node) {
        return geometry;
    }
    let Some(gpus): Option<Vec<RankGpu>> = gpus.into_iter().collect() else { return geometry };
    let over_nvlink = geometry.engine == EngineKind::Proxy;
    let ranks = order_of_nodes(&gpus, per_node, over_nvlink);
    let order = ranks.as_deref().and_then(RingOrder::new);
    if order.is_some() {
        tracing::info!(?ranks, "rings go over the widest links of each node");
    }
    geometry.with_order(order)
}

/// The same where all ranks are threads of this process: waits for what the others say.
///
/// # Errors
/// [`Error::Argument`] for a rank that there is not, or that another thread has;
/// [`Error::HostWaitExpired`] names ranks that have not come.
pub(super) fn ordered_in_process(
    geometry: Geometry,
    id: &UniqueId,
    own: &[(Rank, &Arc<CudaContext>)],
    settings: &Settings,
) -> Result<Geometry> {
    if !may_order(geometry.rank_count, settings) || geometry.rank_count > ORDERED_RANKS_MAX as u32 {
        return Ok(geometry);
    }
    let meeting = meeting_of(id, geometry.rank_count);
    for (rank, context) in own {
        let gpu = own_gpu(context)?;
        let mut known = meeting.lock();
        let count = known.len();
        match known.get_mut(rank.index()) {
            None => {
                return Err(Error::argument("rank", format_args!("less than {count}"), rank.0));
            }
            Some(Some(_)) => return Err(Error::argument("rank", "one that nobody has", rank.0)),
            Some(empty) => *empty = Some(gpu),
        }
    }
    meeting.wake();
    Ok(ordered(geometry, meeting.wait(settings.bootstrap_timeout, || None)?))
}
