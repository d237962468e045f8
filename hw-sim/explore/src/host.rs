//! The host of one rank: it watches the record of a failed wait (R10), spreads the error (R12), and
//! sees launches end.

use hwsim_ptx::memory::{Order, Scope, Strength};
use hwsim_ptx::weak::{AgentId, Place, WeakMemory};
use ringdove::engine::{RecordWords, Watch};
use ringdove::error::Error;
use ringdove::id::Rank as RankId;
use ringdove_kernels::launch::WaitRecord;
use std::mem::offset_of;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use crate::engine::HostMutant;
use crate::rank::Rank;

/// A host's loads and stores of words that it shares with GPUs.
const fn strength(order: Order) -> Strength {
    Strength { order, scope: Scope::System }
}

/// A record, as a host's thread reaches it.
struct Record {
    memory: Rc<WeakMemory>,
    agent: AgentId,
    address: u64,
    /// Its loads are relaxed.
    is_weak: bool,
}

impl RecordWords for Record {
    fn state(&self, ordering: Ordering) -> u32 {
        let order = match ordering {
            Ordering::Acquire if !self.is_weak => Order::Acquire,
            _ => Order::Relaxed,
        };
        let mut word = [0; 4];
        let place = self.address + offset_of!(WaitRecord, state) as u64;
        let read = self.memory.read(self.agent, place, 4, strength(order), &mut word);
        read.expect("the record was allocated");
        u32::from_le_bytes(word)
    }

    fn copy_out(&self, bytes: &mut [u8]) -> Result<(), Error> {
        let read = self.memory.read(self.agent, self.address, 4, Strength::WEAK, bytes);
        read.expect("the record was allocated");
        Ok(())
    }
}

/// A host.
pub struct Host {
    memory: Rc<WeakMemory>,
    /// Its thread.
    pub agent: AgentId,
    watch: Watch<Record>,
    launches_ended: u64,
    /// Of all ranks.
    abort_words: Vec<u64>,
    seen: Option<WaitRecord>,
    launches_seen: u64,
    /// It has raised the abort words.
    has_alarmed: bool,
    /// It tells nobody of what it finds.
    pub is_mute: bool,
}

impl Host {
    /// The host of `rank`; `abort_words` are those of all ranks that it reaches.
    pub fn new(rank: &Rank, mutant: Option<HostMutant>, abort_words: Vec<u64>) -> Self {
        let Rank { memory, communicator, .. } = rank;
        let agent = memory.agent(Place::Outside);
        let is_weak = mutant == Some(HostMutant::Record);
        let record = communicator.record;
        let record = Record { memory: Rc::clone(memory), agent, address: record, is_weak };
        Self {
            memory: Rc::clone(memory),
            agent,
            watch: Watch::over(RankId(rank.number), record),
            launches_ended: communicator.launches_ended,
            abort_words,
            seen: None,
            launches_seen: 0,
            has_alarmed: false,
            is_mute: false,
        }
    }

    /// The record, once it has been seen complete.
    pub fn record(&self) -> Option<&WaitRecord> {
        self.seen.as_ref()
    }

    /// If it has seen a record, is it this one of rank `number`?
    ///
    /// # Errors
    ///
    /// What it saw, where that is another one.
    pub fn must_have_seen(&self, number: usize, record: &WaitRecord) -> Result<(), String> {
        match &self.seen {
            Some(seen) if seen != record => {
                Err(format!("host {number} saw {seen:?} in the place of {record:?}"))
            }
            _ => Ok(()),
        }
    }

    /// As far as the word of ended launches has been seen to come.
    pub fn launches_seen(&self) -> u64 {
        self.launches_seen
    }

    /// Has it raised the abort words?
    pub fn has_alarmed(&self) -> bool {
        self.has_alarmed
    }

    /// Looks at the record, and at the count of launches as an
    /// engine that would rest.
    pub fn step(&mut self) {
        let mut count = [0; 8];
        let relaxed = strength(Order::Relaxed);
        self.read(self.launches_ended, 8, relaxed, &mut count);
        self.launches_seen = u64::from_le_bytes(count);
        if self.seen.is_some() {
            return;
        }
        let Some(record) = self.watch.record() else { return };
        self.seen = Some(record.expect("the record was allocated"));
        if !self.is_mute {
            self.alarm();
        }
    }

    /// Raises the abort word of every rank (R12).
    pub fn alarm(&mut self) {
        if self.has_alarmed {
            return;
        }
        self.has_alarmed = true;
        for word in &self.abort_words {
            let one = 1_u32.to_le_bytes();
            let written = self.memory.write(self.agent, *word, 4, strength(Order::Release), &one);
            written.expect("the word was allocated");
        }
    }

    fn read(&self, address: u64, word: usize, strength: Strength, bytes: &mut [u8]) {
        let read = self.memory.read(self.agent, address, word, strength, bytes);
        read.expect("the host's words were allocated");
    }
}
