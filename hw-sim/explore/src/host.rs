//! The host of one rank: it watches the record of a failed wait (R10), spreads the error (R12), and
//! sees launches end.

use hwsim_ptx::memory::{Order, Scope, Strength};
use hwsim_ptx::weak::{AgentId, Place, WeakMemory};
use ringdove_kernels::launch::{DeviceCommunicator, WaitRecord};
use std::mem::offset_of;
use std::rc::Rc;

/// A host's loads and stores of words that it shares with GPUs.
const fn strength(order: Order) -> Strength {
    Strength { order, scope: Scope::System }
}

/// A host.
pub struct Host {
    memory: Rc<WeakMemory>,
    /// Its thread.
    pub agent: AgentId,
    record: u64,
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
    /// The host of a rank; `abort_words` are those of all ranks that it reaches.
    pub fn new(
        memory: &Rc<WeakMemory>,
        communicator: &DeviceCommunicator,
        abort_words: Vec<u64>,
    ) -> Self {
        Self {
            memory: Rc::clone(memory),
            agent: memory.agent(Place::Outside),
            record: communicator.record,
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

    /// As far as the word of ended launches has been seen to come.
    pub fn launches_seen(&self) -> u64 {
        self.launches_seen
    }

    /// Has it raised the abort words?
    pub fn has_alarmed(&self) -> bool {
        self.has_alarmed
    }

    /// Looks at the record as `engine::Watch::poll` does, and at the count of launches as an
    /// engine that would rest.
    pub fn step(&mut self) {
        let mut count = [0; 8];
        let relaxed = strength(Order::Relaxed);
        self.read(self.launches_ended, 8, relaxed, &mut count);
        self.launches_seen = u64::from_le_bytes(count);
        if self.seen.is_some() {
            return;
        }
        let mut state = [0; 4];
        let place = self.record + offset_of!(WaitRecord, state) as u64;
        // Pairs with wait.cuh: leave_record, R10.
        self.read(place, 4, strength(Order::Acquire), &mut state);
        if u32::from_le_bytes(state) == 0 {
            return;
        }
        let mut bytes = [0; size_of::<WaitRecord>()];
        self.read(self.record, 4, Strength::WEAK, &mut bytes);
        self.seen = Some(bytemuck::pod_read_unaligned(&bytes));
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
