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
//! Up to 512 KiB two hops win everywhere. Over PCIe they lose up to 41 % at 1 MiB, and more beyond:
//! there, engines have the data. Where NVLink joins all GPUs of the node, two hops win at every
//! size, with as many blocks as it takes to keep up with the links. Modelled times, and bandwidths
//! in GB/s, on eight GPUs of `dgx-a100`:
//!
//! | blocks | 48 KiB, µs | 1 MiB, µs | 16 MiB | 1 GiB | registered buffers, by the proxy, 1 GiB |
//! |--------|------------|-----------|--------|-------|-----------------------------------------|
//! | 4      | 7.7        | 42.2      | 27     | 27    | 87                                      |
//! | 16     | 7.7        | 16.8      | 86     | 97    | 87                                      |
//! | 32     | 7.7        | 13.6      | 111    | 129   | 87                                      |
//!
//! On two or three V100s, which one or two links join, rings between registered buffers are up to
//! 13 % quicker from 8 MiB on; selection does not know how many links there are.
//!
//! A block has a thread for each 64 bytes of a message, up to what the table says: the four vectors
//! that a thread has under way. On virtual GPUs that saves a third of the instructions.
//!
//! The price is that the blocks occupy the GPU's threads, which engines leave to a computation.

use super::{ALL_PAIRS_RANKS_MAX, Choice, Limits, SlotShape};
use crate::plan::{Collective, CollectiveRequest};

/// Up to this, two hops over lanes of stores are taken without NVLink: see above.
pub(super) const BYTES_MAX: u64 = 1 << 20;
/// And in so many blocks at most: they are no faster than the bus.
const BLOCKS_MAX: u32 = 4;
/// What a block handles before there is another one. On eight A100 two blocks take 7.2 µs for
/// 24 KiB where one takes 8.6 (modelled); on virtual GPUs each block that waits costs time.
const BYTES_PER_BLOCK: u64 = 16 << 10;
/// Bytes of a message for each thread, at least: the four vectors that it has under way at a time.
/// More threads than that would move nothing sooner, and each warp takes part in every op.
const BYTES_PER_THREAD: u32 = 64;
/// Slots of a lane, and their bytes: 64 KiB for each lane, at the receiver alone.
pub(super) const STORE_SLOTS: SlotShape = SlotShape { bytes: 32 << 10, count: 2 };

impl Limits {
    /// The slots of each lane of stores that is no LL lane.
    pub fn store_slots() -> SlotShape {
        STORE_SLOTS
    }

    /// The most blocks of an all-reduce over lanes of stores; 0 without such lanes.
    pub(crate) fn store_blocks_max(&self) -> u32 {
        match self.nvlink {
            true => self.store_blocks,
            false => self.store_blocks.min(BLOCKS_MAX),
        }
    }
}

impl Choice {
    /// Makes this a choice over lanes of stores.
    pub(super) fn set_stores(&mut self, limits: &Limits) {
        (self.stores, self.slices, self.slots) = (true, 1, STORE_SLOTS);
        let wanted = self.request.bytes.div_ceil(BYTES_PER_BLOCK).max(1);
        self.blocks = wanted.min(limits.store_blocks_max().into()) as u32;
    }

    /// No more threads than messages of this size keep busy.
    pub(super) fn set_threads_of_stores(&mut self) {
        let busy = self.slice_bytes.div_ceil(BYTES_PER_THREAD).next_multiple_of(32);
        self.thread_count = self.thread_count.min(busy);
    }
}

/// Does a request go in two hops over lanes of stores?
pub(super) fn goes_by_stores(request: &CollectiveRequest, limits: &Limits, per_node: u32) -> bool {
    limits.store_blocks > 0
        && request.collective == Collective::AllReduce
        && per_node == request.rank_count
        && (2..=ALL_PAIRS_RANKS_MAX).contains(&request.rank_count)
        && (limits.nvlink || request.bytes <= BYTES_MAX)
}
