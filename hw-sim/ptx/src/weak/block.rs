//! The weak memory as the threads of one block see it.

use std::cell::Cell;
use std::rc::Rc;

use super::{AgentId, Place, WeakMemory};
use crate::exec::windows;
use crate::memory::{AtomicOp, AtomicType, Memory, MemoryFault, Strength};

/// A block's threads, which are agents, and its shared memory.
pub struct BlockView {
    memory: Rc<WeakMemory>,
    first: AgentId,
    shared: u64,
    shared_bytes: u64,
    turn: Cell<AgentId>,
}

impl BlockView {
    /// `threads` new agents at `place`, with so much shared memory.
    pub fn new(memory: &Rc<WeakMemory>, place: Place, threads: u32, shared_bytes: u64) -> Self {
        let first = memory.agent(place);
        for _ in 1..threads {
            memory.agent(place);
        }
        let shared = memory.allocate("shared", shared_bytes.max(8));
        let memory = Rc::clone(memory);
        Self { memory, first, shared, shared_bytes, turn: Cell::new(first) }
    }

    /// The agent of a thread, by its number in the block.
    pub fn agent_of(&self, thread: u32) -> AgentId {
        self.first + thread
    }

    /// Where shared memory really is.
    fn place(&self, address: u64, length: usize) -> Result<u64, MemoryFault> {
        if address & !windows::OFFSET != windows::SHARED {
            return Ok(address);
        }
        let offset = address & windows::OFFSET;
        let end = offset.checked_add(length as u64).ok_or(MemoryFault::OutOfBounds)?;
        if end > self.shared_bytes {
            return Err(MemoryFault::OutOfBounds);
        }
        Ok(self.shared + offset)
    }
}

impl Memory for BlockView {
    const BY_THREAD: bool = true;

    type Cursor = ();

    fn turn(&self, thread: u32) {
        self.turn.set(self.first + thread);
    }

    fn read(
        &self,
        (): &mut (),
        address: u64,
        word: usize,
        strength: Strength,
        bytes: &mut [u8],
    ) -> Result<(), MemoryFault> {
        let address = self.place(address, bytes.len())?;
        self.memory.read(self.turn.get(), address, word, strength, bytes)
    }

    fn write(
        &self,
        (): &mut (),
        address: u64,
        word: usize,
        strength: Strength,
        bytes: &[u8],
    ) -> Result<(), MemoryFault> {
        let address = self.place(address, bytes.len())?;
        self.memory.write(self.turn.get(), address, word, strength, bytes)
    }

    fn atomic(
        &self,
        (): &mut (),
        address: u64,
        op: AtomicOp,
        ty: AtomicType,
        strength: Strength,
        operand: u64,
        compare: u64,
    ) -> Result<u64, MemoryFault> {
        let address = self.place(address, ty.size_bytes())?;
        self.memory.atomic(self.turn.get(), address, op, ty, strength, operand, compare)
    }

    fn fence(&self, (): &mut (), strength: Strength) {
        self.memory.fence(self.turn.get(), strength);
    }

    fn arrive(&self, id: u8, generation: u64) {
        self.memory.arrive(self.turn.get(), id, generation);
    }

    fn leave(&self, id: u8, generation: u64) {
        self.memory.leave(self.turn.get(), id, generation);
    }

    fn meet(&self, threads: impl Iterator<Item = u32> + Clone) {
        self.memory.meet(threads.map(|thread| self.first + thread));
    }
}
