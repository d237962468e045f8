//! When an all-reduce goes over lanes of stores (R14): in two hops, among up to 8 ranks of one node
//! that reach each other's memory, behind LL messages and before everything else.
//!
//! The limits come from the timing model. Modelled times in µs of out-of-place all-reduces: LL
//! messages by stores, two hops over lanes of stores, the best plan through slots by the proxy, and
//! rings between registered buffers by the proxy:
//!
//! | machine  | ranks | bytes   | LL   | two hops | slots | registered |
//! |----------|-------|---------|------|----------|-------|------------|
//! | dgx-a100 | 8     | 2 KiB   | 5.9  | 6.3      | 29.7  | 29.7       |
//! | dgx-a100 | 8     | 8 KiB   | 11.1 | 6.8      | 30.8  | 30.8       |
//! | dgx-a100 | 8     | 256 KiB | 224  | 14.6     | 64.4  | 114        |
//! | dgx-a100 | 8     | 1 MiB   |      | 42.2     | 268   | 155        |
//! | dgx1v    | 8     | 8 KiB   | 19.1 | 17.0     | 45.2  | 45.2       |
//! | dgx1v    | 8     | 1 MiB   |      | 287      | 341   | 234        |
//! | pcie4    | 4     | 512 KiB |      | 106      | 174   | 118        |
//! | pcie4    | 4     | 1 MiB   |      | 213      | 180   | 166        |
//! | pcie4    | 2     | 1 MiB   |      | 123      | 128   | 104        |
//!
//! Up to 512 KiB two hops win everywhere. At 1 MiB they lose up to 34 % on PCIe and save up to 73 %
//! where NVLink joins all GPUs; selection knows no machine, and takes the smaller loss. Beyond, the
//! engines have the data: with four blocks for each GPU, its threads no longer keep up with links.

use super::{ALL_PAIRS_RANKS_MAX, Choice, Limits, SlotShape};
use crate::plan::{Collective, CollectiveRequest};

/// Up to this, two hops over lanes of stores are taken: see above.
const BYTES_MAX: u64 = 1 << 20;
/// What a block handles before there is another one. On eight A100 two blocks take 7.2 µs for
/// 24 KiB where one takes 8.6 (modelled); on virtual GPUs each block that waits costs time.
const BYTES_PER_BLOCK: u64 = 16 << 10;
/// Slots of a lane, and their bytes: 128 KiB for each lane, at the receiver alone.
const SLOTS: SlotShape = SlotShape { bytes: 32 << 10, count: 4 };

impl Limits {
    /// The slots of each lane of stores that is no LL lane.
    pub fn store_slots() -> SlotShape {
        SLOTS
    }
}

impl Choice {
    /// Makes this a choice over lanes of stores.
    pub(super) fn set_stores(&mut self, limits: &Limits) {
        (self.stores, self.slices, self.slots) = (true, 1, SLOTS);
        let wanted = self.request.bytes.div_ceil(BYTES_PER_BLOCK).max(1);
        self.blocks = wanted.min(u64::from(limits.blocks_max)) as u32;
    }
}

/// Does a request go in two hops over lanes of stores?
pub(super) fn goes_by_stores(request: &CollectiveRequest, limits: &Limits, per_node: u32) -> bool {
    limits.store_lanes
        && request.collective == Collective::AllReduce
        && per_node == request.rank_count
        && (2..=ALL_PAIRS_RANKS_MAX).contains(&request.rank_count)
        && request.bytes <= BYTES_MAX
}
