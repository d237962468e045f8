//! Faults: what goes wrong in a run, drawn from its seed. A run may have several.

use std::fmt;

/// What goes wrong, and when: turns are those of all actors together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// One op of a block's program has a code that no op has, so that the kernel refuses the plan.
    BadOp {
        /// The rank.
        rank: u32,
        /// The block.
        block: u32,
        /// Which op, counted from the first one; modulo their number.
        op: u32,
    },
    /// A block's program names a port that the communicator does not have.
    BadPort {
        /// The rank.
        rank: u32,
        /// The block.
        block: u32,
    },
    /// The host of a rank aborts the communicator.
    Abort {
        /// The rank.
        rank: u32,
        /// When.
        turn: u64,
    },
    /// A rank's engine takes no descriptor any more, and its lanes stop.
    EngineStops {
        /// The rank.
        rank: u32,
        /// When.
        turn: u64,
    },
    /// A rank's GPU stops in the middle of its kernel.
    GpuStops {
        /// The rank.
        rank: u32,
        /// When.
        turn: u64,
    },
    /// The host of a rank tells nobody of an error that it finds: it is slow.
    NoAlarm {
        /// The rank.
        rank: u32,
    },
    /// A thread of a rank's GPU overwrites the claim word of its record.
    StrayClaim {
        /// The rank.
        rank: u32,
        /// When.
        turn: u64,
    },
}

/// What a stray write leaves in the claim word.
pub const STRAY: u32 = 0x0bad_c1a1;

impl Fault {
    /// The rank that it strikes.
    pub fn rank(self) -> u32 {
        match self {
            Self::BadOp { rank, .. }
            | Self::BadPort { rank, .. }
            | Self::Abort { rank, .. }
            | Self::EngineStops { rank, .. }
            | Self::GpuStops { rank, .. }
            | Self::NoAlarm { rank }
            | Self::StrayClaim { rank, .. } => rank,
        }
    }

    /// Moves it to a block that there is.
    pub(crate) fn move_into(&mut self, blocks: u32) {
        if let Self::BadOp { block, .. } | Self::BadPort { block, .. } = self {
            *block %= blocks;
        }
    }

    /// The turn at which it strikes; some are there from the beginning on.
    pub fn turn(self) -> u64 {
        match self {
            Self::BadOp { .. } | Self::BadPort { .. } | Self::NoAlarm { .. } => 0,
            Self::Abort { turn, .. }
            | Self::EngineStops { turn, .. }
            | Self::GpuStops { turn, .. }
            | Self::StrayClaim { turn, .. } => turn,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadOp { rank, block, op } => {
                write!(f, "op {op} of block {block} of rank {rank} is bad")
            }
            Self::BadPort { rank, block } => {
                write!(f, "block {block} of rank {rank} names a port that is not there")
            }
            Self::Abort { rank, turn } => write!(f, "rank {rank} aborts at turn {turn}"),
            Self::EngineStops { rank, turn } => {
                write!(f, "the engine of rank {rank} stops at turn {turn}")
            }
            Self::GpuStops { rank, turn } => {
                write!(f, "the GPU of rank {rank} stops at turn {turn}")
            }
            Self::NoAlarm { rank } => write!(f, "the host of rank {rank} raises no alarm"),
            Self::StrayClaim { rank, turn } => {
                write!(f, "the claim word of rank {rank} is overwritten at turn {turn}")
            }
        }
    }
}
