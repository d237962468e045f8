//! A rank as the executor sees it, an encoder for hand-written plans, and the engine's side of the
//! ring, written from the rules.

use crate::gpu::{Arena, BASE, Running, STEPS_MAX, TickingClock};
use ringdove_kernels::descriptor::{DESCRIPTOR_BYTES, Descriptor, LAP_BIT};
use ringdove_kernels::element::{DataType, ReduceOp};
use ringdove_kernels::launch::{
    CallArguments, DeviceCommunicator, LAUNCH_CALLS_MAX, LaunchArguments, WaitRecord, place,
};
use ringdove_kernels::op::{
    BlockProgram, Op, OpCode, Operand, PLAN_MAGIC, PlanHeader, Segment, Space,
};
use ringdove_kernels::port::{GRANT_BYTES, Port};
use ringdove_kernels::ptx;

/// Deadline of every wait, in nanoseconds of the test's clock.
pub const TIMEOUT_NS: u64 = 40_000;
/// How far before the arena host staging memory is said to begin; shared one, twice as far.
pub const HOST_STAGING_BEFORE: u64 = 1 << 20;

/// One rank: its communicator in device memory and the test's handles to it.
pub struct Rank {
    pub arena: Arena,
    pub clock: TickingClock,
    /// Device address of the `DeviceCommunicator`.
    pub address: u64,
    pub communicator: DeviceCommunicator,
    /// The engine's next position.
    pub next: u64,
}

impl Rank {
    /// A rank with a ring of `1 << ring_log2` slots and these ports.
    pub fn new(ring_log2: u32, rank_count: u32, ports: &[Port]) -> Self {
        let arena = Arena::default();
        let table = arena.allocate(size_of_val(ports), 0);
        arena.put(table, bytemuck::cast_slice(ports));
        let communicator = DeviceCommunicator {
            ring_slots: arena.allocate(DESCRIPTOR_BYTES << ring_log2, 0),
            ring_head: arena.allocate(8, 0),
            ring_tail: arena.allocate(8, 0),
            ring_tail_cache: arena.allocate(8, 0),
            ring_log2,
            rank: 0,
            rank_count,
            port_count: ports.len() as u32,
            ports: table,
            abort: arena.allocate(4, 0),
            record_claim: arena.allocate(4, 0),
            record: arena.allocate(size_of::<WaitRecord>(), 0),
            timeout_ns: TIMEOUT_NS,
            // All of the arena serves as staging memory.
            staging: BASE,
            host_staging: BASE - HOST_STAGING_BEFORE,
            shared_staging: BASE - 2 * HOST_STAGING_BEFORE,
            blocks_ended: arena.allocate(8, 0),
            launches_ended: arena.allocate(8, 0),
            sources: arena.allocate(place::TABLE_BYTES, 0),
        };
        let address = arena.allocate(size_of::<DeviceCommunicator>(), 0);
        arena.write_as(address, communicator);
        Self { arena, clock: TickingClock::default(), address, communicator, next: 0 }
    }

    /// Adds a port with fresh signal words, and slots where `slot_count` is not 0.
    pub fn add_port(&mut self, mut port: Port, slot_count: u32, is_send: bool) -> u32 {
        let number = self.communicator.port_count;
        let mut table = self.ports();
        port.signal = self.arena.allocate(8, 0);
        if is_send {
            port.completion = self.arena.allocate(8, 0);
        }
        if slot_count != 0 {
            port.slot_mask = slot_count - 1;
            let bytes = u64::from(slot_count * port.slot_bytes) + GRANT_BYTES;
            port.slots = self.arena.allocate(bytes as usize, 0);
        }
        table.push(port);
        self.communicator.ports = self.arena.allocate(size_of_val(table.as_slice()), 0);
        self.communicator.port_count = number + 1;
        self.arena.put(self.communicator.ports, bytemuck::cast_slice(&table));
        self.arena.write_as(self.address, self.communicator);
        number
    }

    /// The port table as it stands in device memory.
    pub fn ports(&self) -> Vec<Port> {
        let count = self.communicator.port_count as usize;
        let bytes = self.arena.get(self.communicator.ports, count * size_of::<Port>());
        bytes.chunks_exact(size_of::<Port>()).map(bytemuck::pod_read_unaligned).collect()
    }

    /// The record of a failed wait, as the host reads it.
    pub fn record(&self) -> WaitRecord {
        self.arena.read_as(self.communicator.record)
    }

    /// A call of this plan, with no buffers bound.
    pub fn arguments(&self, plan: &[u8]) -> CallArguments {
        let address = self.arena.allocate(plan.len(), 0);
        self.arena.put(address, plan);
        CallArguments {
            plan: address,
            data_type: DataType::F32 as u32,
            reduce_op: ReduceOp::Sum as u32,
            ..Default::default()
        }
    }

    /// Takes what is committed at the engine's position, and frees the slot (R3, R6, R7).
    pub fn poll(&mut self) -> Option<Descriptor> {
        let log2 = self.communicator.ring_log2;
        let slot = self.next & ((1 << log2) - 1);
        let lap = if self.next >> log2 & 1 == 0 { LAP_BIT } else { 0 };
        let words: [u64; 2] =
            self.arena.read_as(self.communicator.ring_slots + slot * DESCRIPTOR_BYTES as u64);
        if words.iter().any(|word| word & LAP_BIT != lap) {
            return None;
        }
        self.next += 1;
        self.arena.write_as(self.communicator.ring_tail, self.next);
        Some(Descriptor::decode(words).expect("a rung descriptor is well formed"))
    }

    /// Runs one call to its end. After each step `engine` acts. Gives the instructions it took.
    pub fn execute(
        &mut self,
        call: &CallArguments,
        shape: (u32, u32),
        engine: impl FnMut(&mut Self),
    ) -> u64 {
        let launch = self.launch(std::slice::from_ref(call));
        self.execute_launch(&launch, shape, engine)
    }

    /// A launch of these calls.
    pub fn launch(&self, calls: &[CallArguments]) -> LaunchArguments {
        let mut launch = LaunchArguments {
            communicator: self.address,
            sequence: 77,
            call_count: calls.len() as u32,
            ..Default::default()
        };
        assert!(calls.len() <= LAUNCH_CALLS_MAX);
        launch.calls[..calls.len()].copy_from_slice(calls);
        launch
    }

    /// Runs a launch of the executor to its end. After each step `engine` acts. Gives the
    /// instructions it took.
    pub fn execute_launch(
        &mut self,
        launch: &LaunchArguments,
        (blocks, threads): (u32, u32),
        mut engine: impl FnMut(&mut Self),
    ) -> u64 {
        let params = bytemuck::bytes_of(launch).to_vec();
        let mut running =
            Running::launch(ptx::EXECUTOR, ptx::EXECUTOR_ENTRY, blocks, threads, params);
        for _ in 0..STEPS_MAX {
            let is_done = running.step(&self.arena, &self.clock);
            engine(self);
            if is_done {
                return running.instructions();
            }
        }
        panic!("the launch does not end");
    }
}

/// A plan of segments for each block, encoded as `op.rs` says.
pub struct PlanText {
    pub threads: u32,
    pub blocks: Vec<BlockText>,
}

/// One block's part.
#[derive(Clone, Default)]
pub struct BlockText {
    pub ports: Vec<u32>,
    pub segments: Vec<(Segment, Vec<Op>)>,
}

impl BlockText {
    /// Ops that run once, clipped nowhere.
    pub fn once(ports: &[u32], ops: &[Op]) -> Self {
        let segment = Segment { rounds: 1, limit: u64::MAX, ..Default::default() };
        Self { ports: ports.to_vec(), segments: vec![(segment, ops.to_vec())] }
    }
}

impl PlanText {
    /// One block that runs `ops` once.
    pub fn single(threads: u32, ports: &[u32], ops: &[Op]) -> Vec<u8> {
        Self { threads, blocks: vec![BlockText::once(ports, ops)] }.encode()
    }

    pub fn encode(&self) -> Vec<u8> {
        let table = size_of::<PlanHeader>() + self.blocks.len() * size_of::<BlockProgram>();
        let mut tail = Vec::new();
        let mut programs = Vec::new();
        for block in &self.blocks {
            let mut append = |bytes: &[u8]| {
                tail.resize(tail.len().next_multiple_of(16), 0);
                tail.extend_from_slice(bytes);
                (table + tail.len() - bytes.len()) as u32
            };
            let ports = append(bytemuck::cast_slice(&block.ports));
            let mut segments = Vec::new();
            for (segment, ops) in &block.segments {
                let at = append(bytemuck::cast_slice(ops));
                segments.push(Segment { ops: at, op_count: ops.len() as u32, ..*segment });
            }
            programs.push(BlockProgram {
                segments: append(bytemuck::cast_slice(&segments)),
                segment_count: segments.len() as u32,
                ports,
                port_count: block.ports.len() as u32,
            });
        }
        let header = PlanHeader {
            magic: PLAN_MAGIC,
            size_bytes: (table + tail.len()) as u32,
            block_count: self.blocks.len() as u32,
            thread_count: self.threads,
            reserved: [0; 3],
        };
        let mut plan = bytemuck::bytes_of(&header).to_vec();
        plan.extend_from_slice(bytemuck::cast_slice(&programs));
        plan.extend_from_slice(&tail);
        plan
    }
}

pub fn buffer(number: u32, offset: u64) -> Operand {
    Operand { offset, number, space: Space::Buffer as u8, ..Default::default() }
}

pub fn slot(port: u16, number: u32, offset: u64) -> Operand {
    Operand { offset, number, port, space: Space::Slot as u8, ..Default::default() }
}

pub fn address(address: u64) -> Operand {
    Operand { offset: address, space: Space::Address as u8, ..Default::default() }
}

/// `offset` bytes behind entry `number` of the launch's table of addresses, counted from 1.
pub fn listed(number: u32, offset: u64) -> Operand {
    Operand { number, ..address(offset) }
}

pub fn op(code: OpCode, port: u16) -> Op {
    Op { code: code as u8, port, ..Default::default() }
}

pub fn copy(destination: Operand, a: Operand, length: u32) -> Op {
    Op { length, destination, a, ..op(OpCode::Copy, 0) }
}

pub fn reduce(destination: Operand, a: Operand, b: Operand, length: u32, flags: u8) -> Op {
    Op { length, flags, destination, a, b, ..op(OpCode::Reduce, 0) }
}

pub fn put(port: u16, destination: Operand, a: Operand, length: u32, flags: u8) -> Op {
    Op { length, flags, destination, a, ..op(OpCode::Put, port) }
}

pub fn wait_signal(port: u16, value: i64) -> Op {
    Op { value, ..op(OpCode::WaitSignal, port) }
}

pub fn wait_completion(port: u16, value: i64) -> Op {
    Op { value, ..op(OpCode::WaitCompletion, port) }
}

pub fn advance(port: u16, messages: i64, completions: u64) -> Op {
    let destination = Operand { offset: completions, ..Default::default() };
    Op { value: messages, destination, ..op(OpCode::Advance, port) }
}
