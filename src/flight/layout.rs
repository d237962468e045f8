//! Where what lies in the recorder's memory. All of it is words of 64 bits, in the byte order of
//! the machine: readers run on the same one.

/// The name of the memory, as `/proc/PID/fd` shows it behind `/memfd:`.
pub(super) const NAME: &str = "ringdove-flight";
/// "RDFLIGHT".
pub(super) const MAGIC: u64 = 0x5448_4749_4c46_4452;
/// Raised when the layout changes: `ringdove inspect` reads what its own version writes.
pub(super) const VERSION: u64 = 1;

/// Words of the header: the process.
pub(super) mod header {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 1;
    /// The process that writes; a child that has inherited the memory does not.
    pub const PID: usize = 2;
    /// When the watchdog looked last, in nanoseconds since 1970; 0 while there is none.
    pub const HEARTBEAT: usize = 3;
    /// Ranks that found no free block.
    pub const UNRECORDED: usize = 4;
    /// Blocks from the first one on that were ever in use.
    pub const USED: usize = 5;
    /// Words in all.
    pub const WORDS: usize = 16;
}

/// Ranks of this process that are recorded at a time.
pub(super) const BLOCKS: usize = 256;

/// Words of a block: one rank.
pub(super) mod block {
    use super::entry;

    /// 0: free. Else odd, and another value for each rank that has the block.
    pub const STATE: usize = 0;
    /// Names the communicator: the same on all of its ranks.
    pub const KEY: usize = 1;
    /// The rank; the number of ranks in the upper half.
    pub const RANK: usize = 2;
    /// Deadline of waits, in nanoseconds.
    pub const TIMEOUT: usize = 3;
    /// Collectives that this rank has called.
    pub const COLLECTIVES: usize = 4;
    /// Sends and receives that it has called.
    pub const MESSAGES: usize = 5;
    /// Launches that it has enqueued, those that were captured included.
    pub const LAUNCHES: usize = 6;
    /// Launches that have ended, as its kernels say.
    pub const ENDED: usize = 7;
    /// When it called last, in nanoseconds since 1970.
    pub const CALLED_AT: usize = 8;
    /// When a launch ended last, or the engine was seen to move something.
    pub const PROGRESS_AT: usize = 9;
    /// When all that follows was read last.
    pub const LOOKED_AT: usize = 10;
    /// Not 0: launches were captured into graphs, so how many run is not known.
    pub const CAPTURED: usize = 11;

    /// The engine's counters.
    pub const ENGINE: usize = 16;
    pub const ENGINE_WORDS: usize = 8;

    /// Position of the next entry.
    pub const NEXT: usize = 24;

    /// The rank's [`WaitRecord`](ringdove_kernels::launch::WaitRecord), once there is one.
    pub const RECORD: usize = 32;
    pub const RECORD_WORDS: usize = 12;

    /// What ended the communicator: kind, rank and peer of it, time, and its message.
    pub const FAILURE: usize = 48;
    pub const FAILURE_TEXT: usize = 52;
    pub const FAILURE_TEXT_WORDS: usize = 60;

    /// The ranks of the same node, a bit for each of the first so many.
    pub const NODE: usize = 112;
    pub const NODE_WORDS: usize = 16;

    pub const ENTRIES: usize = 128;
    pub const ENTRY_COUNT: usize = 128;
    pub const WORDS: usize = ENTRIES + ENTRY_COUNT * entry::WORDS;
}

/// Words of an entry.
pub(super) mod entry {
    /// Position plus one, once the rest is written; 0 before.
    pub const STAMP: usize = 0;
    pub const TIME: usize = 1;
    pub const KIND: usize = 2;
    /// Of a collective or a launch: its number.
    pub const NUMBER: usize = 3;
    /// Elements, transfers, or calls of a launch.
    pub const COUNT: usize = 4;
    /// Of what must be equal on all ranks.
    pub const DIGEST: usize = 5;
    /// 16 bytes.
    pub const NAME: usize = 6;
    pub const WORDS: usize = 8;
}

/// Words of the whole.
pub(super) const WORDS: usize = header::WORDS + BLOCKS * block::WORDS;

const _: () = {
    assert!(block::RECORD_WORDS * 8 == size_of::<ringdove_kernels::launch::WaitRecord>());
    assert!(block::RECORD + block::RECORD_WORDS <= block::FAILURE);
    assert!(block::FAILURE_TEXT + block::FAILURE_TEXT_WORDS <= block::NODE);
    assert!(block::NODE + block::NODE_WORDS <= block::ENTRIES);
    assert!(block::ENGINE + block::ENGINE_WORDS <= block::NEXT);
};

/// The word at which block `index` begins.
pub(super) const fn block_start(index: usize) -> usize {
    header::WORDS + index * block::WORDS
}
