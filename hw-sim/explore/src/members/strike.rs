//! What may go wrong in a run of members.

use std::fmt;
use std::time::Duration;

use crate::engine::RETRIES;
use crate::fault::Fault;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strike {
    /// The process of a rank dies.
    Dies { rank: u32, at: Duration },
    /// Nothing reaches it any more, or comes from it.
    CutOff { rank: u32, at: Duration },
    /// One of its connections breaks.
    Reset { rank: u32, at: Duration },
    /// It aborts the world.
    Aborts { rank: u32, at: Duration },
    /// It comes when the others have given up.
    Late { rank: u32 },
    /// It brings another value than the others.
    Disagrees { rank: u32 },
    /// It joins, and makes none of the calls.
    Absent { rank: u32 },
    /// Its adapter is reset: all of its queue pairs fail.
    Breaks { rank: u32, at: Duration },
    /// Its adapter makes no queue pairs.
    Refuses { rank: u32, at: Duration },
    /// It takes no notes of connections, so it does not answer.
    Silent { rank: u32, at: Duration },
    /// Its adapter loses all messages from this one on.
    Loses { rank: u32, message: u64 },
    /// Once its adapter has sent so many messages, so many are lost that it sends or is sent.
    Flaps { rank: u32, message: u64, attempts: u32 },
    /// Its messages are on the way for so many turns of their lanes, at most.
    Delays { rank: u32, turns: u32 },
}

impl Strike {
    /// The one of this name, in a run of jobs.
    pub fn of_fault(fault: Fault) -> Option<Self> {
        let at = Duration::from_micros;
        Some(match fault {
            Fault::Killed { rank, turn } => Self::Dies { rank, at: at(turn) },
            Fault::Partition { rank, at_us } => Self::CutOff { rank, at: at(at_us) },
            Fault::ConnectionReset { rank, at_us } => Self::Reset { rank, at: at(at_us) },
            Fault::Abort { rank, turn } => Self::Aborts { rank, at: at(turn) },
            Fault::AdapterReset { rank, at_us } => Self::Breaks { rank, at: at(at_us) },
            Fault::NoQueuePairs { rank, at_us } => Self::Refuses { rank, at: at(at_us) },
            Fault::NoAnswer { rank, at_us } => Self::Silent { rank, at: at(at_us) },
            Fault::Loss { rank, message } => Self::Loses { rank, message },
            Fault::PortFlap { rank, message, attempts } => Self::Flaps { rank, message, attempts },
            Fault::Delay { rank, turns } => Self::Delays { rank, turns },
            Fault::Late { rank } => Self::Late { rank },
            Fault::Disagrees { rank } => Self::Disagrees { rank },
            Fault::NoCall { rank } => Self::Absent { rank },
            _ => return None,
        })
    }

    /// When it strikes; `None`: from the beginning on.
    pub fn at(self) -> Option<Duration> {
        match self {
            Self::Dies { at, .. }
            | Self::CutOff { at, .. }
            | Self::Reset { at, .. }
            | Self::Aborts { at, .. }
            | Self::Breaks { at, .. }
            | Self::Refuses { at, .. }
            | Self::Silent { at, .. } => Some(at),
            Self::Late { .. }
            | Self::Disagrees { .. }
            | Self::Absent { .. }
            | Self::Loses { .. }
            | Self::Flaps { .. }
            | Self::Delays { .. } => None,
        }
    }

    /// Draws one of a job without adapters.
    pub(super) fn draw(random: &mut fastrand::Rng, ranks: u32) -> Self {
        let (rank, at) = place_and_time(random, ranks);
        match random.u32(..8) {
            0 | 1 => Self::Dies { rank, at },
            2 | 3 => Self::CutOff { rank, at },
            4 => Self::Reset { rank, at },
            5 => Self::Aborts { rank, at },
            6 if ranks > 1 => Self::Late { rank },
            7 if ranks > 1 => Self::Disagrees { rank },
            _ => Self::Reset { rank, at },
        }
    }

    /// Draws one that strikes connections of adapters.
    pub(super) fn draw_of_connections(random: &mut fastrand::Rng, ranks: u32) -> Self {
        let (rank, at) = place_and_time(random, ranks);
        match random.u32(..4) {
            0 | 1 => Self::Breaks { rank, at },
            2 => Self::Refuses { rank, at },
            _ => Self::Silent { rank, at },
        }
    }

    /// Draws an adapter that loses messages, for a while or for good, or delays them.
    pub(super) fn draw_of_messages(random: &mut fastrand::Rng, ranks: u32) -> Self {
        let rank = random.u32(..ranks);
        let most_log2 = random.u32(..=6);
        let message = random.u64(..1 << most_log2);
        match random.u32(..4) {
            0 => Self::Loses { rank, message },
            1 => Self::Delays { rank, turns: random.u32(1..=20) },
            _ => Self::Flaps { rank, message, attempts: random.u32(1..=3 * RETRIES) },
        }
    }

    /// Whom it strikes.
    pub fn rank(mut self) -> u32 {
        *self.rank_mut()
    }

    fn rank_mut(&mut self) -> &mut u32 {
        let (Self::Dies { rank, .. }
        | Self::CutOff { rank, .. }
        | Self::Reset { rank, .. }
        | Self::Aborts { rank, .. }
        | Self::Late { rank }
        | Self::Disagrees { rank }
        | Self::Absent { rank }
        | Self::Breaks { rank, .. }
        | Self::Refuses { rank, .. }
        | Self::Silent { rank, .. }
        | Self::Loses { rank, .. }
        | Self::Flaps { rank, .. }
        | Self::Delays { rank, .. }) = self;
        rank
    }

    /// Has it strike one of so many ranks.
    pub(super) fn strike_one_of(&mut self, ranks: u32) {
        *self.rank_mut() %= ranks;
        if ranks == 1 && self.needs_others() {
            *self = Self::Aborts { rank: 0, at: Duration::from_millis(1) };
        }
    }

    /// Does it take somebody to be late for, to disagree with, or to miss a call?
    pub fn needs_others(self) -> bool {
        matches!(self, Self::Late { .. } | Self::Disagrees { .. } | Self::Absent { .. })
    }

    /// Does it strike adapters' connections?
    pub fn is_of_connections(self) -> bool {
        matches!(
            self,
            Self::Breaks { .. }
                | Self::Refuses { .. }
                | Self::Silent { .. }
                | Self::Loses { .. }
                | Self::Flaps { .. }
                | Self::Delays { .. }
        )
    }

    /// Do adapters hide it, so that nothing may fail?
    pub fn is_hidden(self) -> bool {
        match self {
            Self::Flaps { attempts, .. } => attempts <= RETRIES,
            Self::Delays { .. } => true,
            _ => false,
        }
    }

    /// Is a rank cut off, which the others cannot tell from one that is slow?
    pub fn is_cut_off(self) -> bool {
        matches!(self, Self::CutOff { .. })
    }
}

/// Whom it strikes, and when: early is as likely as late.
fn place_and_time(random: &mut fastrand::Rng, ranks: u32) -> (u32, Duration) {
    let rank = random.u32(..ranks);
    let longest_log2 = random.u32(8..=22);
    (rank, Duration::from_micros(random.u64(..1 << longest_log2)))
}

impl fmt::Display for Strike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dies { rank, at } => write!(f, "process {rank} dies after {at:?}"),
            Self::CutOff { rank, at } => write!(f, "process {rank} is cut off after {at:?}"),
            Self::Reset { rank, at } => {
                write!(f, "a connection of process {rank} breaks after {at:?}")
            }
            Self::Aborts { rank, at } => write!(f, "process {rank} aborts after {at:?}"),
            Self::Late { rank } => write!(f, "process {rank} comes too late"),
            Self::Disagrees { rank } => write!(f, "process {rank} brings another value"),
            Self::Absent { rank } => write!(f, "process {rank} makes no call"),
            Self::Breaks { rank, at } => {
                write!(f, "queue pairs of process {rank} fail after {at:?}")
            }
            Self::Refuses { rank, at } => {
                write!(f, "process {rank} gets no queue pairs after {at:?}")
            }
            Self::Silent { rank, at } => {
                write!(f, "process {rank} answers no requests after {at:?}")
            }
            Self::Loses { rank, message } => {
                write!(f, "the adapter of process {rank} loses message {message} and all behind it")
            }
            Self::Flaps { rank, message, attempts } => {
                write!(f, "the port of process {rank} loses {attempts} messages from {message} on")
            }
            Self::Delays { rank, turns } => {
                write!(f, "messages of process {rank} take up to {turns} turns")
            }
        }
    }
}
