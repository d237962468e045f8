//! Handles: where the tokens of a dispatch went, for its combine and for the same routing again.

use super::config::{Mode, OnLoss};
use super::sizes::Sizes;
use crate::error::Result;
use crate::gpu::DeviceMemory;
use cudarc::driver::CudaContext;
use ringdove_kernels::experts::{ExpertsFault, ExpertsRouting};
use std::sync::Arc;

/// Tables begin at multiples of this.
const TABLE_BYTES: u64 = 128;

/// The routing of one dispatch, in device memory. A combine needs it, and another dispatch with the
/// same routing can use it again. A group can have any number of handles.
#[derive(Debug)]
pub struct Handle {
    pub(super) number: u64,
    /// The number of its group.
    pub(super) group: u64,
    /// The group keeps it, too, for as long as kernels may use it.
    pub(super) memory: Arc<DeviceMemory>,
    pub(super) routing: ExpertsRouting,
    /// Tokens of the dispatch that routed it last.
    pub(super) tokens: Option<u32>,
    /// Rows of a dispatch have arrived under this routing.
    pub(super) has_rows: bool,
    /// Tokens that the dispatch left out.
    pub(super) dropped: u32,
}

impl Handle {
    /// How many tokens the last dispatch left out, with
    /// [`Surplus::Drop`](super::Surplus::Drop): the last ones of the call. A combine with this
    /// handle writes nothing for them.
    pub fn dropped(&self) -> u32 {
        self.dropped
    }
}

/// Bytes of the tables, one after the other; their order is that of [`ExpertsRouting`]'s fields.
fn table_bytes(sizes: &Sizes) -> [u64; 21] {
    let [ranks, experts, local, nodes] =
        [sizes.ranks, sizes.config.experts, sizes.local_experts, sizes.nodes()].map(u64::from);
    let tokens = u64::from(sizes.config.tokens_max);
    let choices = tokens * u64::from(sizes.config.top_k);
    let relayed = u64::from(nodes > 0);
    // Starts of what comes, and choices whose row in a message has a place of its own.
    let (starts, shared) = match sizes.config.mode {
        Mode::LowLatency => (ranks * local, choices),
        Mode::Throughput => (ranks, relayed * choices),
    };
    let fault = (size_of::<ExpertsFault>() + size_of::<u64>()) as u64;
    let returns = ranks * u64::from(sizes.return_rows_max);
    let words = |count: u64| 4 * count;
    [
        words(choices),
        words(choices),
        words(choices),
        words(choices),
        words(experts + ranks + nodes),
        words(experts),
        words(ranks + nodes),
        words(ranks + nodes),
        words(ranks + nodes),
        fault,
        words(ranks),
        words(ranks),
        words(ranks),
        words(ranks * local),
        words(starts),
        words(returns),
        words(shared),
        words(nodes),
        words(nodes),
        words(nodes * choices),
        words(u64::from(sizes.config.on_loss != OnLoss::End) * tokens),
    ]
}

/// Bytes of a handle's memory.
pub(super) fn handle_bytes(sizes: &Sizes) -> u64 {
    table_bytes(sizes).iter().map(|bytes| bytes.next_multiple_of(TABLE_BYTES)).sum()
}

/// Memory of a handle, and where its tables lie in it.
pub(super) fn allocate(
    context: &Arc<CudaContext>,
    sizes: &Sizes,
) -> Result<(Arc<DeviceMemory>, ExpertsRouting)> {
    let memory = Arc::new(DeviceMemory::zeroed(context, handle_bytes(sizes) as usize)?);
    let routing = routing_at(sizes, memory.address());
    Ok((memory, routing))
}

/// Where the tables of a handle lie in its memory.
pub(super) fn routing_at(sizes: &Sizes, memory: u64) -> ExpertsRouting {
    let mut next = memory;
    let addresses = table_bytes(sizes).map(|bytes| {
        let address = next;
        next += bytes.next_multiple_of(TABLE_BYTES);
        address
    });
    bytemuck::cast(addresses)
}
