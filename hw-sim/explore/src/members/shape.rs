//! What a seed draws of a run of members.

use std::fmt;
use std::time::Duration;

use super::gpus::Shape as GpuShape;
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

    /// Has it strike one of so many ranks.
    fn strike_one_of(&mut self, ranks: u32) {
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
        *rank %= ranks;
        // It needs somebody to be late for, or to disagree with.
        if ranks == 1 && matches!(self, Self::Late { .. } | Self::Disagrees { .. }) {
            *self = Self::Aborts { rank: 0, at: Duration::from_millis(1) };
        }
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

/// What is drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Processes, each with a rank of the world.
    pub ranks: u32,
    /// Children of a rank in the tree, at most.
    pub fan_out: u32,
    /// Parts into which the world is split; 0: it is not.
    pub parts: u32,
    /// Calls of each job before it is split or dropped.
    pub calls: u32,
    /// Some leave the world long after others.
    pub stays: bool,
    /// What goes wrong.
    pub strike: Option<Strike>,
    /// Calls are collectives on GPUs.
    pub gpus: Option<GpuShape>,
}

impl Default for Shape {
    fn default() -> Self {
        Self { ranks: 2, fan_out: 2, parts: 0, calls: 1, stays: false, strike: None, gpus: None }
    }
}

impl Shape {
    /// Draws one; `fails`: with something that goes wrong.
    pub fn draw(random: &mut fastrand::Rng, fails: bool) -> Self {
        let ranks = random.u32(1..=9);
        let parts = [0, 0, 2, 3][random.usize(..4)].min(ranks);
        let mut shape = Self {
            ranks,
            fan_out: random.u32(1..=4),
            parts,
            calls: random.u32(1..=3),
            stays: false,
            strike: None,
            gpus: None,
        };
        if fails {
            let rank = random.u32(..ranks);
            let longest_log2 = random.u32(8..=22);
            let at = Duration::from_micros(random.u64(..1 << longest_log2));
            shape.strike = Some(match random.u32(..8) {
                0 | 1 => Strike::Dies { rank, at },
                2 | 3 => Strike::CutOff { rank, at },
                4 => Strike::Reset { rank, at },
                5 => Strike::Aborts { rank, at },
                6 if ranks > 1 => Strike::Late { rank },
                7 if ranks > 1 => Strike::Disagrees { rank },
                _ => Strike::Reset { rank, at },
            });
        }
        shape
    }

    /// Draws one whose processes leave long after one another, or of which one makes no call.
    pub fn draw_with_absences(random: &mut fastrand::Rng) -> Self {
        let mut shape = Self::draw(random, false);
        shape.ranks = shape.ranks.max(2);
        match random.bool() {
            true => shape.stays = true,
            // Whoever is at the top of the tree cannot see that its own call expires.
            false => {
                let rank = if random.bool() { 0 } else { random.u32(..shape.ranks) };
                (shape.parts, shape.strike) = (0, Some(Strike::Absent { rank }));
            }
        }
        shape
    }

    /// Draws one of few processes, each with a GPU.
    pub fn draw_with_gpus(random: &mut fastrand::Rng, fails: bool) -> Self {
        let mut shape = Self::draw(random, fails);
        let ranks = random.u32(1..=4);
        (shape.ranks, shape.parts) = (ranks, shape.parts.min(ranks).min(2));
        shape.calls = random.u32(1..=2);
        shape.gpus = Some(GpuShape::draw(random));
        if let Some(strike) = &mut shape.strike {
            strike.strike_one_of(ranks);
        }
        shape
    }

    /// Has the run what this strikes?
    pub fn has_connections(&self, strike: Strike) -> bool {
        !strike.is_of_connections() || self.gpus.as_ref().is_some_and(|gpus| gpus.connects)
    }

    /// What goes wrong is this, at its own time.
    pub fn strike_with(&mut self, strike: Strike) {
        self.strike = Some(strike);
        if let Some(gpus) = &mut self.gpus {
            gpus.strikes_at = None;
        }
    }

    /// The same, of ranks that reach each other by adapters.
    pub fn draw_with_connections(random: &mut fastrand::Rng, fails: bool) -> Self {
        let mut shape = Self::draw_with_gpus(random, fails);
        shape.ranks = shape.ranks.max(2);
        if let Some(gpus) = &mut shape.gpus {
            gpus.connect();
        }
        if fails && random.u32(..4) > 0 {
            let rank = random.u32(..shape.ranks);
            let longest_log2 = random.u32(8..=22);
            let at = Duration::from_micros(random.u64(..1 << longest_log2));
            shape.strike = Some(match random.u32(..4) {
                0 | 1 => Strike::Breaks { rank, at },
                2 => Strike::Refuses { rank, at },
                _ => Strike::Silent { rank, at },
            });
            // Connections are made early.
            let turn = shape.gpus.as_mut().and_then(|gpus| gpus.strikes_at.as_mut());
            if let (Some(turn), 0) = (turn, random.u32(..2)) {
                *turn = 0;
            }
        }
        shape
    }
}

impl Shape {
    /// The same, with an adapter that loses messages, for a while or for good, or delays them.
    pub fn draw_with_losses(random: &mut fastrand::Rng) -> Self {
        let mut shape = Self::draw_with_connections(random, false);
        let rank = random.u32(..shape.ranks);
        let most_log2 = random.u32(..=6);
        let message = random.u64(..1 << most_log2);
        shape.strike = Some(match random.u32(..4) {
            0 => Strike::Loses { rank, message },
            1 => Strike::Delays { rank, turns: random.u32(1..=20) },
            _ => Strike::Flaps { rank, message, attempts: random.u32(1..=3 * RETRIES) },
        });
        shape
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ranks, fan_out, parts, calls, stays, strike, gpus } = self;
        write!(
            f,
            "{ranks} processes, trees of {fan_out} children, {parts} parts, {calls} calls of a job"
        )?;
        if *stays {
            write!(f, ", some stay long")?;
        }
        gpus.as_ref().map_or(Ok(()), |gpus| write!(f, "{gpus}"))?;
        strike.as_ref().map_or(Ok(()), |strike| write!(f, "; {strike}"))
    }
}
