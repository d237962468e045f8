//! One virtual GPU for tests: bounded memory, a clock that moves when it is read, and blocks that
//! run in turn.

use hwsim_ptx::flat::FlatMemory;
use hwsim_ptx::memory::{AtomicOp, AtomicType, Memory, MemoryFault, Strength};
use hwsim_ptx::{Block, Clock, Launch, Module, Progress};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

/// Where the arena starts, so that small numbers are never valid addresses.
pub const BASE: u64 = 0x7000_0000;
/// Untouched bytes between allocations: an access that strays hits them, not a neighbour.
const RED_ZONE_BYTES: u64 = 256;
/// How far the clock moves at each look, in nanoseconds.
const TICK_NS: u64 = 1000;

/// Room for all allocations of a test; pages that nobody touches take no memory.
const ARENA_BYTES: usize = 256 << 20;

/// Memory that is reached by address, each access inside of one allocation.
pub struct Arena {
    memory: FlatMemory,
    /// Start and end address of each allocation, ascending.
    allocations: RefCell<Vec<(u64, u64)>>,
}

impl Default for Arena {
    fn default() -> Self {
        Self { memory: FlatMemory::new(BASE, ARENA_BYTES), allocations: RefCell::default() }
    }
}

impl Arena {
    /// A zeroed allocation whose address is `misalignment` past a multiple of 256.
    pub fn allocate(&self, length: usize, misalignment: usize) -> u64 {
        let mut allocations = self.allocations.borrow_mut();
        let free = allocations.last().map_or(BASE, |&(_, end)| end);
        let start = (free + RED_ZONE_BYTES).next_multiple_of(256) + misalignment as u64;
        let end = start + length as u64;
        assert!(end <= BASE + ARENA_BYTES as u64, "the arena is full");
        allocations.push((start, end));
        start
    }

    fn check(&self, address: u64, length: usize) -> Result<(), MemoryFault> {
        let end = address.checked_add(length as u64).ok_or(MemoryFault::OutOfBounds)?;
        let allocations = self.allocations.borrow();
        let at = allocations.partition_point(|&(start, _)| start <= address);
        match at.checked_sub(1).map(|index| allocations[index]) {
            Some((_, limit)) if end <= limit => Ok(()),
            _ => Err(MemoryFault::OutOfBounds),
        }
    }

    /// A copy of `length` bytes.
    pub fn get(&self, address: u64, length: usize) -> Vec<u8> {
        self.check(address, length).unwrap();
        self.memory.copy((address - BASE) as usize, length)
    }

    /// Writes `bytes`.
    pub fn put(&self, address: u64, bytes: &[u8]) {
        self.check(address, bytes.len()).unwrap();
        self.memory.fill((address - BASE) as usize, bytes);
    }

    /// Reads a value of a plain type.
    pub fn read_as<T: bytemuck::AnyBitPattern>(&self, address: u64) -> T {
        bytemuck::pod_read_unaligned(&self.get(address, size_of::<T>()))
    }

    /// Writes a value of a plain type.
    pub fn write_as<T: bytemuck::NoUninit>(&self, address: u64, value: T) {
        self.put(address, bytemuck::bytes_of(&value));
    }

    /// Raises a counter by one, as an engine does.
    pub fn raise(&self, address: u64) {
        self.write_as(address, self.read_as::<u64>(address) + 1);
    }
}

impl Memory for Arena {
    type Cursor = ();

    fn read(
        &self,
        cursor: &mut (),
        address: u64,
        word: usize,
        strength: Strength,
        bytes: &mut [u8],
    ) -> Result<(), MemoryFault> {
        self.check(address, bytes.len())?;
        self.memory.read(cursor, address, word, strength, bytes)
    }

    fn write(
        &self,
        cursor: &mut (),
        address: u64,
        word: usize,
        strength: Strength,
        bytes: &[u8],
    ) -> Result<(), MemoryFault> {
        self.check(address, bytes.len())?;
        self.memory.write(cursor, address, word, strength, bytes)
    }

    fn atomic(
        &self,
        cursor: &mut (),
        address: u64,
        op: AtomicOp,
        ty: AtomicType,
        strength: Strength,
        operand: u64,
        compare: u64,
    ) -> Result<u64, MemoryFault> {
        self.check(address, ty.size_bytes())?;
        self.memory.atomic(cursor, address, op, ty, strength, operand, compare)
    }

    fn fence(&self, cursor: &mut (), strength: Strength) {
        self.memory.fence(cursor, strength);
    }
}

/// A clock that moves on whenever somebody looks: waits expire without any test sleeping.
#[derive(Default)]
pub struct TickingClock(Cell<u64>);

impl Clock for TickingClock {
    fn now_ns(&self) -> u64 {
        self.0.set(self.0.get() + TICK_NS);
        self.0.get()
    }
}

/// A kernel in the middle of its launch.
pub struct Running {
    blocks: Vec<Block>,
    instructions: u64,
}

impl Running {
    /// Starts `entry` of `ptx` with the parameter bytes `params`.
    pub fn launch(ptx: &str, entry: &str, blocks: u32, threads: u32, params: Vec<u8>) -> Self {
        let module = Module::load(ptx).unwrap();
        assert!(module.globals().is_empty(), "the device code has no module variables");
        let kernel = module.link(&HashMap::new()).unwrap().kernel(entry).unwrap();
        let launch = Arc::new(Launch {
            kernel,
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            cluster: None,
            dynamic_shared_bytes: 0,
            params,
            grid_id: 1,
            grid_workspace: 0,
            sm_count: 1,
        });
        let blocks = (0..blocks).map(|index| Block::new(launch.clone(), [index, 0, 0], 0));
        Self { blocks: blocks.collect(), instructions: 0 }
    }

    /// Lets each block run for a while. True when all have finished.
    pub fn step(&mut self, arena: &Arena, clock: &TickingClock) -> bool {
        let instructions = &mut self.instructions;
        self.blocks.retain_mut(|block| {
            let progress = block.run(arena, clock, 20_000).unwrap_or_else(|fault| {
                panic!("{fault:?}");
            });
            *instructions += block.take_spent();
            !matches!(progress, Progress::Finished)
        });
        self.blocks.is_empty()
    }

    /// Warp instructions of all blocks so far.
    pub fn instructions(&self) -> u64 {
        self.instructions
    }
}

/// More steps than any test needs; past them a launch counts as stuck.
pub const STEPS_MAX: usize = 100_000;
