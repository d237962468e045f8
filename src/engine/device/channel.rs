//! A channel: one rank's engine. Its life is that of `kernels/BAR.md`: claimed, reset, filled,
//! running, halted. Every wait ends (R10).

use super::function::Function;
use super::{record, registers};
use crate::error::{Error, Result};
use crate::id::Rank;
use crate::lived::Lived;
use crate::shared::{Region, WordArray};
use ringdove_kernels::bar::{Command, RING_OFFSET, State, Status};
use ringdove_kernels::descriptor::DESCRIPTOR_BYTES;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::time::Duration;

/// Looks at a register before the thread sleeps between two of them.
const EAGER_LOOKS: u32 = 64;
/// How long it sleeps then.
const NAP: Duration = Duration::from_micros(50);

/// A channel, as peers name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelAddress {
    /// Where its engine is on the link.
    pub link_address: u64,
    /// The channel's number there.
    pub channel: u64,
    /// This use of it.
    pub generation: u64,
}

/// Settings of a channel, written before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// The ring has two to this power slots.
    pub ring_log2: u32,
    /// Device address of the tail word.
    pub tail_address: u64,
    /// Device address of the abort word.
    pub abort_address: u64,
    /// The rank, for records of peers.
    pub rank: Rank,
}

/// A channel that this process holds. Dropping it lets it go; whoever started it resets it before.
pub struct Channel {
    function: Function,
    index: u64,
    generation: u64,
    /// Registers and tables; the ring lies between them and is never touched through these.
    words: WordArray,
    region: Region,
    /// Its lock is what holds the channel.
    _lock: File,
}

impl Channel {
    pub(super) fn new(function: Function, index: u64, lock: File) -> Result<Self> {
        let region = function.channel_region(index)?;
        let words = region.words64(0, region.length_bytes() / 8)?;
        Ok(Self { function, index, generation: new_generation()?, words, region, _lock: lock })
    }

    /// The engine that it is one of.
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// Its number.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// How peers name it.
    pub fn address(&self) -> ChannelAddress {
        ChannelAddress {
            link_address: self.function.identity().link_address,
            channel: self.index,
            generation: self.generation,
        }
    }

    /// The first `1 << ring_log2` slots of the ring.
    ///
    /// # Errors
    /// [`Error::Argument`] if the channel has no room for as many.
    pub fn ring(&self, ring_log2: u32) -> Result<Region> {
        self.region.part(RING_OFFSET as usize, DESCRIPTOR_BYTES << ring_log2)
    }

    /// Stops whatever the channel did, and zeroes its ring, tables, status and error record.
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`] if it is not ready within `limit`.
    pub fn reset(&self, limit: Duration) -> Result<()> {
        self.command(Command::Reset);
        self.wait_for(State::Ready, "to reset", limit)
    }

    /// Starts serving the ring. The tables that peers and descriptors need are filled by now.
    ///
    /// # Errors
    /// [`Error::Engine`] where the engine does not like a register, [`Error::HostWaitExpired`] if
    /// it does not run within `limit`.
    pub fn run(&self, registers: &Registers, limit: Duration) -> Result<()> {
        registers::set_up(&self.words, registers, self.generation);
        self.command(Command::Run);
        let started = self.wait_for(State::Running, "to run", limit);
        // A refused register says more than a state that did not come.
        self.error(registers.rank).map_or(started, Err)
    }

    /// Takes no more descriptors, and drops what has not begun.
    pub fn halt(&self) {
        self.command(Command::Halt);
    }

    /// Waits until nothing is under way any more, after [`halt`](Self::halt) or an error.
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`] if it has not stopped within `limit`.
    pub fn stopped(&self, limit: Duration) -> Result<()> {
        self.wait_for(State::Stopped, "to halt", limit)
    }

    /// Waits until the channel has taken `head` descriptors and ended them all.
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`] with what is left after `limit`.
    pub fn wait_idle(&self, head: u64, limit: Duration) -> Result<()> {
        let what = format!("{} to finish", self.describe());
        let expected = format!("{head} descriptors taken, 0 in flight");
        self.wait(what, expected, limit, || {
            let Status { state, position, in_flight, .. } = self.status();
            let done = state != State::Running as u64 || (position >= head && in_flight == 0);
            let seen = format!("{position} taken, {in_flight} in flight, {}", name_of(state));
            if done { Ok(()) } else { Err(seen) }
        })
    }

    /// The counters as they are now. Each is exact; together they may be a moment apart.
    pub fn status(&self) -> Status {
        registers::status(&self.words)
    }

    /// The error that stopped the channel of `rank`, if any.
    pub fn error(&self, rank: Rank) -> Option<Error> {
        let seen = registers::error_record(&self.words)?;
        Some(record::error(rank, self.function.name(), self.index, &seen))
    }

    /// For messages.
    pub fn describe(&self) -> String {
        format!("channel {} of device engine {}", self.index, self.function.name())
    }

    pub(super) fn words(&self) -> &WordArray {
        &self.words
    }

    fn command(&self, command: Command) {
        registers::command(&self.words, command);
    }

    fn wait_for(&self, state: State, what: &str, limit: Duration) -> Result<()> {
        let what = format!("{} {what}", self.describe());
        self.wait(what, format!("state {}", name_of(state as u64)), limit, || {
            let seen = self.status().state;
            let refused = state == State::Running && registers::has_error(&self.words);
            if seen == state as u64 || refused { Ok(()) } else { Err(name_of(seen)) }
        })
    }

    /// Asks `done` until it says yes, or the time is up. What it shows instead is for the error.
    fn wait(
        &self,
        what: String,
        expected: String,
        limit: Duration,
        done: impl Fn() -> Result<(), String>,
    ) -> Result<()> {
        let mut lived = Lived::new();
        let mut looks = 0;
        while let Err(seen) = done() {
            let waited = lived.look();
            if waited >= limit {
                return Err(Error::HostWaitExpired { what, expected, seen, waited });
            }
            looks += 1;
            if looks > EAGER_LOOKS {
                std::thread::sleep(NAP);
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.describe())
    }
}

fn name_of(state: u64) -> String {
    State::from_code(state).map_or_else(|| format!("unknown ({state})"), |s| format!("{s:?}"))
}

/// A number that was never used before, by its length and not by memory: a channel's earlier owner
/// may have died without a trace.
fn new_generation() -> Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|cause| Error::System {
        what: "random bytes for the generation of a channel".into(),
        cause: cause.to_string(),
    })?;
    Ok(u64::from_le_bytes(bytes).max(1))
}
