//! Faults: what goes wrong in a run, drawn from its seed or named. A run may have several.
//!
//! Names and forms are those of `hwsim run --fault`, where that has the fault; there each process
//! counts launches, requests or looks, here the turns of all actors together are counted.
//!
//! | fault | what happens | also of `hwsim run` |
//! |---|---|---|
//! | `gpuN:stop-at=TURN` | the GPU of rank N stops in the middle of its kernel | yes |
//! | `gpuN:clock-leaps-at=TURN:US` | from then on its clock is so much ahead, or behind | yes |
//! | `engineN:stall-after=TURN` | the engine takes no descriptor any more | yes |
//! | `engineN:link-down-after=REQUEST` | the link of a device engine goes down, for good | yes |
//! | `engineN:fetch-fault-after=REQUEST` | a device engine cannot read a source | yes |
//! | `rankN:kill-at=TURN` | GPU, engine and host of rank N stop together | yes |
//! | `rankN:abort-at=TURN` | its host aborts the communicator | |
//! | `rankN:no-alarm` | its host tells nobody of errors that it finds | |
//! | `rankN:stray-claim-at=TURN` | a thread overwrites the claim word of its record | |
//! | `rankN:ring-garbage-at=TURN` | a thread overwrites a slot of its ring | |
//! | `rankN:bad-op=BLOCK:OP` | an op of a block has a code that no op has | |
//! | `rankN:bad-port=BLOCK` | a block names a port that there is none | |
//! | `rankN:partition-at=US` | nothing reaches the process any more, or comes from it | yes |
//! | `rankN:connections-reset-at=US` | one of its TCP connections breaks | yes |
//! | `hwsimN:reset-at=US` | the adapter of process N is reset: its queue pairs fail | yes |
//! | `hwsimN:no-queue-pairs-at=US` | it makes no queue pairs any more | |
//! | `rankN:no-answer-at=US` | the process answers no requests for connections | |
//!
//! Runs of jobs (`members`, `communicators`, `connections`) have the last five, `kill-at` and
//! `abort-at`, and one fault alone. N is a process there, and the argument microseconds.

use std::fmt;
use std::str::FromStr;

/// What goes wrong, and when: turns are those of all actors together. The module's table says more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// `bad-op`: the kernel refuses the plan.
    BadOp {
        /// The rank.
        rank: u32,
        /// The block.
        block: u32,
        /// Which op, counted from the first one; modulo their number.
        op: u32,
    },
    /// `bad-port`.
    BadPort {
        /// The rank.
        rank: u32,
        /// The block.
        block: u32,
    },
    /// `abort-at`.
    Abort {
        /// The rank.
        rank: u32,
        /// When.
        turn: u64,
    },
    /// `stall-after`.
    EngineStops {
        /// The rank.
        rank: u32,
        /// When.
        turn: u64,
    },
    /// `link-down-after`.
    LinkDown {
        /// The rank.
        rank: u32,
        /// How many requests its device engine has taken then.
        request: u64,
    },
    /// `fetch-fault-after`.
    FetchFault {
        /// The rank.
        rank: u32,
        /// How many requests its device engine took before.
        request: u64,
    },
    /// `stop-at`.
    GpuStops {
        /// The rank.
        rank: u32,
        /// When.
        turn: u64,
    },
    /// `kill-at`.
    Killed {
        /// The rank.
        rank: u32,
        /// When.
        turn: u64,
    },
    /// `partition-at`.
    Partition {
        /// The process.
        rank: u32,
        /// When, in microseconds.
        at_us: u64,
    },
    /// `connections-reset-at`.
    ConnectionReset {
        /// The process.
        rank: u32,
        /// When, in microseconds.
        at_us: u64,
    },
    /// `reset-at`.
    AdapterReset {
        /// The process.
        rank: u32,
        /// When, in microseconds.
        at_us: u64,
    },
    /// `no-queue-pairs-at`.
    NoQueuePairs {
        /// The process.
        rank: u32,
        /// When, in microseconds.
        at_us: u64,
    },
    /// `no-answer-at`.
    NoAnswer {
        /// The process.
        rank: u32,
        /// When, in microseconds.
        at_us: u64,
    },
    /// `no-alarm`.
    NoAlarm {
        /// The rank.
        rank: u32,
    },
    /// `stray-claim-at`.
    StrayClaim {
        /// The rank.
        rank: u32,
        /// When.
        turn: u64,
    },
    /// `ring-garbage-at`.
    RingGarbage {
        /// The rank.
        rank: u32,
        /// When.
        turn: u64,
    },
    /// `clock-leaps-at`.
    ClockLeaps {
        /// The rank.
        rank: u32,
        /// When.
        turn: u64,
        /// How far, forward or back.
        by_us: i64,
    },
}

/// What a stray write leaves in the claim word.
pub const STRAY: u32 = 0x0bad_c1a1;

/// The longest leap of a clock: a day, as for `hwsim run`.
const LEAP_US_MAX: i64 = 86_400_000_000;

impl Fault {
    /// The rank that it strikes.
    pub fn rank(self) -> u32 {
        match self {
            Self::BadOp { rank, .. }
            | Self::BadPort { rank, .. }
            | Self::Abort { rank, .. }
            | Self::EngineStops { rank, .. }
            | Self::LinkDown { rank, .. }
            | Self::FetchFault { rank, .. }
            | Self::GpuStops { rank, .. }
            | Self::Killed { rank, .. }
            | Self::Partition { rank, .. }
            | Self::ConnectionReset { rank, .. }
            | Self::AdapterReset { rank, .. }
            | Self::NoQueuePairs { rank, .. }
            | Self::NoAnswer { rank, .. }
            | Self::NoAlarm { rank }
            | Self::StrayClaim { rank, .. }
            | Self::RingGarbage { rank, .. }
            | Self::ClockLeaps { rank, .. } => rank,
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
            Self::BadOp { .. }
            | Self::BadPort { .. }
            | Self::LinkDown { .. }
            | Self::FetchFault { .. }
            | Self::Partition { .. }
            | Self::ConnectionReset { .. }
            | Self::AdapterReset { .. }
            | Self::NoQueuePairs { .. }
            | Self::NoAnswer { .. }
            | Self::NoAlarm { .. } => 0,
            Self::Abort { turn, .. }
            | Self::EngineStops { turn, .. }
            | Self::GpuStops { turn, .. }
            | Self::Killed { turn, .. }
            | Self::StrayClaim { turn, .. }
            | Self::RingGarbage { turn, .. }
            | Self::ClockLeaps { turn, .. } => turn,
        }
    }

    /// Is it one that only runs of jobs have?
    pub fn is_of_jobs(self) -> bool {
        matches!(
            self,
            Self::Partition { .. }
                | Self::ConnectionReset { .. }
                | Self::AdapterReset { .. }
                | Self::NoQueuePairs { .. }
                | Self::NoAnswer { .. }
        )
    }

    /// Is it one that only device engines have?
    pub fn is_of_device(self) -> bool {
        matches!(self, Self::LinkDown { .. } | Self::FetchFault { .. })
    }

    /// May a run with it end other than well? A clock that leaps ends nothing, unless waits expire.
    pub fn disturbs(self) -> bool {
        !matches!(self, Self::ClockLeaps { .. })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadOp { rank, block, op } => write!(f, "rank{rank}:bad-op={block}:{op}"),
            Self::BadPort { rank, block } => write!(f, "rank{rank}:bad-port={block}"),
            Self::Abort { rank, turn } => write!(f, "rank{rank}:abort-at={turn}"),
            Self::EngineStops { rank, turn } => write!(f, "engine{rank}:stall-after={turn}"),
            Self::LinkDown { rank, request } => {
                write!(f, "engine{rank}:link-down-after={request}")
            }
            Self::FetchFault { rank, request } => {
                write!(f, "engine{rank}:fetch-fault-after={request}")
            }
            Self::GpuStops { rank, turn } => write!(f, "gpu{rank}:stop-at={turn}"),
            Self::Killed { rank, turn } => write!(f, "rank{rank}:kill-at={turn}"),
            Self::Partition { rank, at_us } => write!(f, "rank{rank}:partition-at={at_us}"),
            Self::ConnectionReset { rank, at_us } => {
                write!(f, "rank{rank}:connections-reset-at={at_us}")
            }
            Self::AdapterReset { rank, at_us } => write!(f, "hwsim{rank}:reset-at={at_us}"),
            Self::NoQueuePairs { rank, at_us } => {
                write!(f, "hwsim{rank}:no-queue-pairs-at={at_us}")
            }
            Self::NoAnswer { rank, at_us } => write!(f, "rank{rank}:no-answer-at={at_us}"),
            Self::NoAlarm { rank } => write!(f, "rank{rank}:no-alarm"),
            Self::StrayClaim { rank, turn } => write!(f, "rank{rank}:stray-claim-at={turn}"),
            Self::RingGarbage { rank, turn } => write!(f, "rank{rank}:ring-garbage-at={turn}"),
            Self::ClockLeaps { rank, turn, by_us } => {
                write!(f, "gpu{rank}:clock-leaps-at={turn}:{by_us}")
            }
        }
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "expected gpuN:stop-at=TURN, gpuN:clock-leaps-at=TURN:[-]MICROSECONDS (up to a \
                 day), engineN:stall-after=TURN, engineN:link-down-after=REQUEST, \
                 engineN:fetch-fault-after=REQUEST, rankN:kill-at=TURN, rankN:abort-at=TURN, \
                 rankN:no-alarm, rankN:stray-claim-at=TURN, rankN:ring-garbage-at=TURN, \
                 rankN:bad-op=BLOCK:OP, rankN:bad-port=BLOCK, or, of jobs, rankN:partition-at=US, \
                 rankN:connections-reset-at=US, rankN:no-answer-at=US, hwsimN:reset-at=US or \
                 hwsimN:no-queue-pairs-at=US, found `{text}`"
            )
        };
        let (target, fault) = text.split_once(':').ok_or_else(wrong)?;
        let digits = target.trim_start_matches(|letter: char| letter.is_ascii_lowercase());
        let rank = digits.parse().map_err(|_| wrong())?;
        let kind = &target[..target.len() - digits.len()];
        let (name, argument) = fault.split_once('=').unwrap_or((fault, ""));
        let turn = || argument.parse().map_err(|_| wrong());
        let pair = || argument.split_once(':').ok_or_else(wrong);
        let block = |text: &str| text.parse().map_err(|_| wrong());
        Ok(match (kind, name) {
            ("gpu", "stop-at") => Self::GpuStops { rank, turn: turn()? },
            ("gpu", "clock-leaps-at") => {
                let (turn, by) = pair()?;
                let turn = turn.parse().map_err(|_| wrong())?;
                let by_us: i64 = by.parse().map_err(|_| wrong())?;
                if !(-LEAP_US_MAX..=LEAP_US_MAX).contains(&by_us) {
                    return Err(wrong());
                }
                Self::ClockLeaps { rank, turn, by_us }
            }
            ("engine", "stall-after") => Self::EngineStops { rank, turn: turn()? },
            ("engine", "link-down-after") => Self::LinkDown { rank, request: turn()? },
            ("engine", "fetch-fault-after") => Self::FetchFault { rank, request: turn()? },
            ("rank", "kill-at") => Self::Killed { rank, turn: turn()? },
            ("rank", "abort-at") => Self::Abort { rank, turn: turn()? },
            ("rank", "partition-at") => Self::Partition { rank, at_us: turn()? },
            ("rank", "connections-reset-at") => Self::ConnectionReset { rank, at_us: turn()? },
            ("rank", "no-answer-at") => Self::NoAnswer { rank, at_us: turn()? },
            ("hwsim", "reset-at") => Self::AdapterReset { rank, at_us: turn()? },
            ("hwsim", "no-queue-pairs-at") => Self::NoQueuePairs { rank, at_us: turn()? },
            ("rank", "no-alarm") if argument.is_empty() => Self::NoAlarm { rank },
            ("rank", "stray-claim-at") => Self::StrayClaim { rank, turn: turn()? },
            ("rank", "ring-garbage-at") => Self::RingGarbage { rank, turn: turn()? },
            ("rank", "bad-op") => {
                let (of, op) = pair()?;
                Self::BadOp { rank, block: block(of)?, op: block(op)? }
            }
            ("rank", "bad-port") => Self::BadPort { rank, block: block(argument)? },
            _ => return Err(wrong()),
        })
    }
}
