//! One virtual GPU for tests: bounded memory, a clock that moves when it is read, and blocks that
//! run in turn.

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

/// Memory that is reached by address, each access inside of one allocation.
#[derive(Default)]
pub struct Arena {
    bytes: RefCell<Vec<u8>>,
    /// Start and end of each allocation, as offsets into `bytes`, ascending.
    allocations: RefCell<Vec<(usize, usize)>>,
}

impl Arena {
    /// A zeroed allocation whose address is `misalignment` past a multiple of 256.
    pub fn allocate(&self, length: usize, misalignment: usize) -> u64 {
        let mut bytes = self.bytes.borrow_mut();
        let start = (bytes.len() + RED_ZONE_BYTES as usize).next_multiple_of(256) + misalignment;
        bytes.resize(start + length, 0);
        self.allocations.borrow_mut().push((start, start + length));
        BASE + start as u64
    }

    fn range(&self, address: u64, length: usize) -> Result<std::ops::Range<usize>, MemoryFault> {
        let start = address.checked_sub(BASE).ok_or(MemoryFault::OutOfBounds)? as usize;
        let end = start.checked_add(length).ok_or(MemoryFault::OutOfBounds)?;
        let allocations = self.allocations.borrow();
        let at = allocations.partition_point(|allocation| allocation.0 <= start);
        match at.checked_sub(1).map(|i| allocations[i]) {
            Some((_, limit)) if end <= limit => Ok(start..end),
            _ => Err(MemoryFault::OutOfBounds),
        }
    }

    /// A copy of `length` bytes.
    pub fn get(&self, address: u64, length: usize) -> Vec<u8> {
        self.bytes.borrow()[self.range(address, length).unwrap()].to_vec()
    }

    /// Writes `bytes`.
    pub fn put(&self, address: u64, bytes: &[u8]) {
        let range = self.range(address, bytes.len()).unwrap();
        self.bytes.borrow_mut()[range].copy_from_slice(bytes);
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
        _cursor: &mut (),
        address: u64,
        _word: usize,
        _strength: Strength,
        bytes: &mut [u8],
    ) -> Result<(), MemoryFault> {
        let range = self.range(address, bytes.len())?;
        bytes.copy_from_slice(&self.bytes.borrow()[range]);
        Ok(())
    }

    fn write(
        &self,
        _cursor: &mut (),
        address: u64,
        _word: usize,
        _strength: Strength,
        bytes: &[u8],
    ) -> Result<(), MemoryFault> {
        let range = self.range(address, bytes.len())?;
        self.bytes.borrow_mut()[range].copy_from_slice(bytes);
        Ok(())
    }

    fn atomic(
        &self,
        _cursor: &mut (),
        address: u64,
        op: AtomicOp,
        ty: AtomicType,
        _strength: Strength,
        operand: u64,
        compare: u64,
    ) -> Result<u64, MemoryFault> {
        let length = ty.size_bytes();
        let range = self.range(address, length)?;
        let mut word = [0; 8];
        word[..length].copy_from_slice(&self.bytes.borrow()[range.clone()]);
        let old = u64::from_le_bytes(word);
        let new = match op {
            AtomicOp::Add => old.wrapping_add(operand),
            AtomicOp::Cas if old == compare => operand,
            AtomicOp::Cas => old,
            other => panic!("the device code was not known to use atomic {other:?}"),
        };
        self.bytes.borrow_mut()[range].copy_from_slice(&new.to_le_bytes()[..length]);
        Ok(old)
    }

    fn fence(&self, _cursor: &mut (), _strength: Strength) {}
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
            dynamic_shared_bytes: 0,
            params,
            grid_id: 1,
            sm_count: 1,
        });
        let blocks = (0..blocks).map(|index| Block::new(launch.clone(), [index, 0, 0], 0));
        Self { blocks: blocks.collect() }
    }

    /// Lets each block run for a while. True when all have finished.
    pub fn step(&mut self, arena: &Arena, clock: &TickingClock) -> bool {
        self.blocks.retain_mut(|block| {
            let progress = block.run(arena, clock, 20_000).unwrap_or_else(|fault| {
                panic!("{fault:?}");
            });
            !matches!(progress, Progress::Finished)
        });
        self.blocks.is_empty()
    }
}

/// More steps than any test needs; past them a launch counts as stuck.
pub const STEPS_MAX: usize = 100_000;
