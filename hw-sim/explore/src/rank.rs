//! A rank in the weak memory: its communicator, ports, and the plan that its blocks run.

use hwsim_ptx::weak::WeakMemory;
use ringdove_kernels::descriptor::DESCRIPTOR_BYTES;
use ringdove_kernels::element::{DataType, ReduceOp};
use ringdove_kernels::launch::{
    CallArguments, DeviceCommunicator, LaunchArguments, RECORD_CLAIMED, WaitRecord, place,
};
use ringdove_kernels::op::{
    BlockProgram, Op, OpCode, Operand, PLAN_MAGIC, PlanHeader, Segment, Space,
};
use ringdove_kernels::port::Port;
use ringdove_kernels::user::LanePorts;
use std::rc::Rc;

use crate::fault::STRAY;

/// A time that no run lasts: waits never expire.
pub const NEVER_NS: u64 = 1 << 50;

/// The number of the first launch.
pub const LAUNCH: u64 = 9;

/// A rank.
pub struct Rank {
    /// In which it lies.
    pub memory: Rc<WeakMemory>,
    /// Its number.
    pub number: u32,
    /// As it lies in device memory.
    pub communicator: DeviceCommunicator,
    /// Its address.
    pub address: u64,
    /// All of its ports.
    pub ports: Vec<Port>,
}

impl Rank {
    /// A rank of `count`, with a ring of `1 << ring_log2` slots, whose waits expire after so long.
    pub fn new(
        memory: &Rc<WeakMemory>,
        number: u32,
        count: u32,
        ring_log2: u32,
        timeout_ns: u64,
    ) -> Self {
        let name = |part: &str| format!("{part} of rank {number}");
        let allocate = |part: &str, bytes: usize| memory.allocate(&name(part), bytes as u64);
        let communicator = DeviceCommunicator {
            ring_slots: allocate("ring", DESCRIPTOR_BYTES << ring_log2),
            ring_head: allocate("head", 8),
            ring_tail: allocate("tail", 8),
            ring_tail_cache: allocate("tail cache", 8),
            ring_log2,
            rank: number,
            rank_count: count,
            abort: allocate("abort", 4),
            record_claim: allocate("claim", 4),
            record: allocate("record", size_of::<WaitRecord>()),
            timeout_ns,
            blocks_ended: allocate("blocks ended", 8),
            launches_ended: allocate("launches ended", 8),
            sources: allocate("sources", place::TABLE_BYTES),
            ..Default::default()
        };
        let address = allocate("communicator", size_of::<DeviceCommunicator>());
        Self { memory: Rc::clone(memory), number, communicator, address, ports: Vec::new() }
    }

    /// Zeros with a name.
    pub fn allocate(&self, part: &str, bytes: u64) -> u64 {
        self.memory.allocate(&format!("{part} of rank {}", self.number), bytes)
    }

    /// Adds a port and gives its number.
    pub fn add_port(&mut self, port: Port) -> u32 {
        self.ports.push(port);
        self.ports.len() as u32 - 1
    }

    /// Adds both ports of lane `lane` to and from a peer, each with signals of its own. The route
    /// is the number of such pairs before.
    pub fn add_lane(&mut self, peer: usize, lane: u32) -> LanePorts {
        let name = |what: &str| format!("{what} of lane {lane} to {peer}");
        let route = self.ports.len() as u32 / 2;
        let shape = Port { peer: peer as u32, ..Port::default() };
        let signal = self.allocate(&name("credits"), 8);
        let completion = self.allocate(&name("completions"), 8);
        let arrivals = self.allocate(&name("arrivals"), 8);
        let send = self.add_port(Port { signal, completion, route, route_index: route, ..shape });
        let receive = self.add_port(Port { signal: arrivals, ..shape });
        LanePorts { send, receive }
    }

    /// Writes communicator and ports to memory, once all ports are there.
    pub fn publish(&mut self) {
        let bytes: &[u8] = bytemuck::cast_slice(&self.ports);
        self.communicator.ports = self.allocate("ports", bytes.len() as u64);
        self.communicator.port_count = self.ports.len() as u32;
        self.set(self.communicator.ports, bytes);
        self.set(self.address, bytemuck::bytes_of(&self.communicator));
    }

    /// Sets what all agents know when the run begins.
    pub fn set(&self, address: u64, bytes: &[u8]) {
        self.memory.set(address, bytes).expect("it was allocated with this length");
    }

    /// The parameters of launch `number`, from 0 on: calls of one plan, sums of words, with these
    /// arguments.
    pub fn launch(&self, number: u64, plan: &[u8], calls: &[CallArguments]) -> Vec<u8> {
        let words = |it: &CallArguments| CallArguments { data_type: DataType::U32 as u32, ..*it };
        self.launch_as(number, plan, &calls.iter().map(words).collect::<Vec<_>>())
    }

    /// The same, of whatever type the arguments say.
    pub fn launch_as(&self, number: u64, plan: &[u8], calls: &[CallArguments]) -> Vec<u8> {
        let address = self.allocate("plan", plan.len() as u64);
        self.set(address, plan);
        let mut launch = LaunchArguments {
            communicator: self.address,
            sequence: LAUNCH + number,
            call_count: calls.len() as u32,
            ..Default::default()
        };
        for (place, arguments) in launch.calls.iter_mut().zip(calls) {
            *place = CallArguments { plan: address, reduce_op: ReduceOp::Sum as u32, ..*arguments };
        }
        bytemuck::bytes_of(&launch).to_vec()
    }

    /// A table of words for operands in `Space::Address`.
    pub fn table(&self, words: &[u64]) -> u64 {
        let address = self.allocate("addresses", size_of_val(words).max(8) as u64);
        self.set(address, bytemuck::cast_slice(words));
        address
    }

    /// Adds an entry to the table of sources.
    pub fn add_source(&self, source: u32, grant: u32, entry: u32) {
        let index = u64::from(place::source_entry(source, grant));
        self.set(self.communicator.sources + 4 * index, &entry.to_le_bytes());
    }

    /// The record of a failed wait, when all is over.
    pub fn record(&self) -> WaitRecord {
        let mut bytes = [0; size_of::<WaitRecord>()];
        self.memory.get(self.communicator.record, &mut bytes).expect("it was allocated");
        bytemuck::pod_read_unaligned(&bytes)
    }

    /// Was the right to the record lost to a stray write, and won a second time? Two threads have
    /// written it then, as is allowed.
    pub fn is_claimed_twice(&self) -> bool {
        let words = self.memory.values(self.communicator.record_claim);
        let words: Vec<u32> = words.into_iter().map(|word| word as u32).collect();
        words.windows(3).any(|three| three == [RECORD_CLAIMED, STRAY, RECORD_CLAIMED])
    }

    /// Has anything been written to the record's first words once it was complete? One thread
    /// leaves it, and completes it last; a second one may leave the same.
    fn is_left_twice(&self) -> bool {
        let words = self.memory.values(self.communicator.record);
        words.into_iter().filter(|word| *word as u32 != 0).count() > 1
    }

    /// The record of rank `number`, which this is. If it tells of something, and one thread has
    /// written it, `check` says what is wrong with that.
    pub fn checked_record(
        &self,
        number: usize,
        check: impl FnOnce(&WaitRecord) -> Result<(), &'static str>,
    ) -> Result<WaitRecord, String> {
        let record = self.record();
        if record.state != 0 && !self.is_claimed_twice() {
            if self.is_left_twice() {
                return Err(format!("the record of rank {number} was left twice"));
            }
            check(&record).map_err(|reason| {
                format!("the record of rank {number} is wrong: {reason}: {record:?}")
            })?;
        }
        Ok(record)
    }
}

/// Ports and ops of one block, run once.
pub struct Program {
    /// Ports that its ops name by index.
    pub ports: Vec<u32>,
    /// What it does.
    pub ops: Vec<Op>,
}

/// A plan for blocks of so many threads, encoded as `op.rs` says.
pub fn encode(threads: u32, blocks: &[Program]) -> Vec<u8> {
    let table = size_of::<PlanHeader>()
        + size_of_val(blocks) / size_of::<Program>() * size_of::<BlockProgram>();
    let mut tail: Vec<u8> = Vec::new();
    let mut programs = Vec::new();
    for block in blocks {
        let mut append = |bytes: &[u8]| {
            tail.resize(tail.len().next_multiple_of(16), 0);
            tail.extend_from_slice(bytes);
            (table + tail.len() - bytes.len()) as u32
        };
        let ports = append(bytemuck::cast_slice(&block.ports));
        let ops = append(bytemuck::cast_slice(&block.ops));
        let op_count = block.ops.len() as u32;
        let segment = Segment { ops, op_count, rounds: 1, limit: u64::MAX, ..Segment::default() };
        let segments = append(bytemuck::bytes_of(&segment));
        let port_count = block.ports.len() as u32;
        programs.push(BlockProgram { segments, segment_count: 1, ports, port_count });
    }
    let header = PlanHeader {
        magic: PLAN_MAGIC,
        size_bytes: (table + tail.len()) as u32,
        block_count: blocks.len() as u32,
        thread_count: threads,
        reserved: [0; 3],
    };
    let mut plan = bytemuck::bytes_of(&header).to_vec();
    plan.extend_from_slice(bytemuck::cast_slice(&programs));
    plan.extend_from_slice(&tail);
    plan
}

/// A place in a buffer.
pub fn buffer(number: u32, offset: u64) -> Operand {
    Operand { offset, number, space: Space::Buffer as u8, ..Default::default() }
}

/// A place in the slot of a message, counted from the launch's first one.
pub fn slot(port: u16, message: u32) -> Operand {
    Operand { number: message, port, space: Space::Slot as u8, ..Default::default() }
}

/// A place of the table of addresses, whose first entry has number 1.
pub fn address(number: u32, offset: u64) -> Operand {
    Operand { offset, number, space: Space::Address as u8, ..Default::default() }
}

/// What the peer has granted last, for a message counted from the launch's first one.
pub fn granted(port: u16, message: u32, offset: u64) -> Operand {
    Operand { offset, number: message, port, space: Space::Granted as u8, ..Default::default() }
}

/// An op without operands.
pub fn op(code: OpCode, port: u16) -> Op {
    Op { code: code as u8, port, ..Default::default() }
}
