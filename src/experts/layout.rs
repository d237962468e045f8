//! A group as it lies in memory. [`Group`](super::Group) writes it to a GPU; a simulation of the
//! kernels writes it elsewhere.

use super::config::{Config, Mode, Scales};
use super::handle;
use super::placement::Placement;
use super::sizes::{Sizes, Spread};
use crate::error::Result;
use ringdove_kernels::experts::{EXPERTS_NO_FAULT, ExpertsGroup, ExpertsRouting, ExpertsState};

/// Where the state lies behind the group in its memory.
pub(super) const STATE: usize = 256;

/// Where the tables lie behind the state, in the memory of a group.
pub(super) struct Tables {
    pub histogram: usize,
    pub owners: usize,
    pub first_experts: usize,
    pub gone: usize,
    pub end: usize,
}

impl Tables {
    pub fn of(sizes: &Sizes) -> Self {
        let [blocks, ranks] = [sizes.blocks, sizes.ranks].map(|count| 4 * count as usize);
        let histogram = STATE + size_of::<ExpertsState>();
        let counted = match sizes.config.mode {
            Mode::LowLatency => 0,
            Mode::Throughput => sizes.config.experts as usize,
        };
        let owners = histogram + 8 * counted;
        let first_experts = owners + blocks;
        let gone = first_experts + ranks;
        Self { histogram, owners, first_experts, gone, end: gone + ranks }
    }
}

/// The memory of a group at the address `memory`, when it begins: [`ExpertsGroup`],
/// [`ExpertsState`], and the tables of choices that are counted, owners, first experts and ranks
/// that are given up.
pub(super) fn group_image(
    sizes: &Sizes,
    placement: &Placement,
    handle: u64,
    memory: u64,
) -> Vec<u8> {
    let tables = Tables::of(sizes);
    let mut image = vec![0; tables.end];
    let mut put = |at: usize, bytes: &[u8]| image[at..][..bytes.len()].copy_from_slice(bytes);
    put(0, bytemuck::bytes_of(&described(sizes, handle, memory)));
    let state = ExpertsState { first_fault: EXPERTS_NO_FAULT, ..ExpertsState::default() };
    put(STATE, bytemuck::bytes_of(&state));
    let owners = placement.owners().iter().map(|owner| owner.unwrap_or(u32::MAX));
    let firsts = (0..sizes.ranks).map(|rank| placement.block(rank) * sizes.local_experts);
    let words: Vec<u32> = owners.chain(firsts).collect();
    put(tables.owners, bytemuck::cast_slice(&words));
    image
}

/// The group as its kernels know it.
fn described(sizes: &Sizes, handle: u64, memory: u64) -> ExpertsGroup {
    let Sizes { config, .. } = *sizes;
    let (tables, grace_ns) = (Tables::of(sizes), config.on_loss.grace_ns());
    ExpertsGroup {
        handle,
        state: memory + STATE as u64,
        arrivals: sizes.arrivals,
        received: sizes.received,
        message_bytes: sizes.message_bytes,
        returned: sizes.returned,
        returned_bytes: sizes.returned_bytes,
        outgoing: sizes.outgoing,
        returning: sizes.returning,
        relayed: sizes.relayed,
        relayed_bytes: sizes.relayed_bytes,
        gathered: sizes.gathered,
        gathered_bytes: sizes.gathered_bytes,
        owners: memory + tables.owners as u64,
        first_experts: memory + tables.first_experts as u64,
        gone: memory + tables.gone as u64,
        grace_ns: grace_ns.unwrap_or(0),
        histogram: memory + tables.histogram as u64,
        experts: config.experts,
        local_experts: sizes.local_experts,
        top_k: config.top_k,
        tokens_max: config.tokens_max,
        rows_max: sizes.rows_max,
        home_rows_max: sizes.home_rows_max,
        header_bytes: sizes.header_bytes as u32,
        data_bytes: sizes.data_bytes as u32,
        scale_bytes: sizes.scale_bytes as u32,
        row_bytes: sizes.row_bytes as u32,
        return_data_bytes: sizes.return_data_bytes as u32,
        return_row_bytes: sizes.return_row_bytes as u32,
        mode: config.mode.code(),
        data_type: config.data_type as u32,
        lane: config.lane,
        alignment: config.alignment,
        scales: Scales::code(config.fp8),
        hidden: config.hidden,
        node_ranks: sizes.node_ranks,
        relayed_header_bytes: sizes.relayed_header_bytes as u32,
        relayed_row_bytes: sizes.relayed_row_bytes as u32,
        goes_on: grace_ns.is_some().into(),
        return_rows_max: sizes.return_rows_max,
        choices_bytes: sizes.choices_bytes as u32,
    }
}

/// The layout of one rank's part of a group, the same on every rank.
#[derive(Clone, Debug)]
pub struct Layout {
    sizes: Sizes,
}

impl Layout {
    /// Of a group whose ranks are spread like this.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) names what is out of range.
    pub fn new(config: &Config, spread: Spread) -> Result<Self> {
        Ok(Self { sizes: Sizes::new(config, spread)? })
    }

    /// Bytes of the window, which begins as zeros.
    pub fn window_bytes(&self) -> u64 {
        self.sizes.window_bytes
    }

    /// Ranks of a node, where rows to other nodes are relayed; else 0.
    pub fn node_ranks(&self) -> u32 {
        self.sizes.node_ranks
    }

    /// Bytes of [`Self::group`].
    pub fn group_bytes(&self) -> u64 {
        Tables::of(&self.sizes).end as u64
    }

    /// The group's memory at the address `memory` when it begins; `handle` is the address of the
    /// [`DeviceHandle`](ringdove_kernels::user::DeviceHandle).
    pub fn group(&self, placement: &Placement, handle: u64, memory: u64) -> Vec<u8> {
        group_image(&self.sizes, placement, handle, memory)
    }

    /// Where the [`ExpertsState`] lies in the group's memory.
    pub fn state_offset(&self) -> u64 {
        STATE as u64
    }

    /// Where the group's memory says which ranks are given up: u32 for each.
    pub fn gone_offset(&self) -> u64 {
        Tables::of(&self.sizes).gone as u64
    }

    /// Bytes of a handle's memory, which begins as zeros.
    pub fn handle_bytes(&self) -> u64 {
        handle::handle_bytes(&self.sizes)
    }

    /// The tables of a handle whose memory is at this address.
    pub fn routing(&self, memory: u64) -> ExpertsRouting {
        handle::routing_at(&self.sizes, memory)
    }

    /// Rows of a dispatch's output.
    pub fn output_rows(&self) -> u64 {
        self.sizes.output_rows()
    }

    /// Entries of a dispatch's counts.
    pub fn output_counts(&self) -> u64 {
        self.sizes.output_counts()
    }
}

const _: () = assert!(size_of::<ExpertsGroup>() <= STATE);
