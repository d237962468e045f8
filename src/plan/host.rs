//! Runs encoded plans on host memory, with real data, for tests. Written from the comments of
//! [`ringdove_kernels::op`] and [`ringdove_kernels::port`] alone: it shares nothing with the
//! verifier, and reads the bytes that the executor kernel would read.
//!
//! Every step is drawn from a seed: which block or engine moves, and how far an engine has come
//! with a transfer (it moves half now, half later). A plan with a race gives wrong data for some
//! seed.

use ringdove_kernels::element::ReduceOp;
use ringdove_kernels::op::{
    ADDRESS_NUMBER_SHIFT, BlockProgram, Op, OpCode, Operand, PLAN_MAGIC, PlanHeader, Segment,
    Space, flag_of, flags, ll_bytes,
};
use std::collections::VecDeque;

#[path = "host_expression.rs"]
mod expression;

pub(super) use expression::{kinds, node};

/// What elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algebra {
    /// Unsigned integers, which wrap.
    Integers,
    /// Fingerprints of the expression by which an element was computed, of 8 bytes each: what is
    /// rounded once is one node of it. Operands of a sum are not exchanged, nor terms regrouped.
    Expressions,
}

/// How elements combine.
#[derive(Clone, Copy)]
pub(super) struct Element {
    pub(super) bytes: usize,
    pub(super) reduce_op: ReduceOp,
    pub(super) scalar: u64,
    pub(super) rank_count: u64,
    pub(super) algebra: Algebra,
}

impl Element {
    pub(super) fn load(&self, bytes: &[u8]) -> u64 {
        let mut word = [0; 8];
        word[..self.bytes].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    }

    pub(super) fn cut(&self, value: u64) -> u64 {
        if self.bytes == 8 { value } else { value & ((1 << (8 * self.bytes)) - 1) }
    }

    pub(super) fn scale(&self, value: u64) -> u64 {
        match (self.reduce_op, self.algebra) {
            (ReduceOp::PreMulSum, Algebra::Integers) => self.cut(value.wrapping_mul(self.scalar)),
            (ReduceOp::PreMulSum, Algebra::Expressions) => node(kinds::SCALE, value, 0),
            _ => value,
        }
    }

    pub(super) fn finish(&self, value: u64) -> u64 {
        match (self.reduce_op, self.algebra) {
            (ReduceOp::Avg, Algebra::Integers) => value / self.rank_count,
            (ReduceOp::Avg, Algebra::Expressions) => node(kinds::FINISH, value, 0),
            _ => value,
        }
    }

    /// What one op makes of `a` and `b`.
    fn reduce(&self, a: u64, b: u64, scale: bool, finish: bool) -> u64 {
        if self.algebra == Algebra::Expressions {
            let scaled = u64::from(scale && self.reduce_op == ReduceOp::PreMulSum);
            let finished = u64::from(finish && self.reduce_op == ReduceOp::Avg);
            let kind = kinds::REDUCE + kinds::SCALED * scaled + kinds::FINISHED * finished;
            return node(kind, a, b);
        }
        let sum = self.combine(a, if scale { self.scale(b) } else { b });
        if finish { self.finish(sum) } else { sum }
    }

    pub(super) fn combine(&self, a: u64, b: u64) -> u64 {
        self.cut(match self.reduce_op {
            ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum => a.wrapping_add(b),
            ReduceOp::Prod => a.wrapping_mul(b),
            ReduceOp::Max => a.max(b),
            ReduceOp::Min => a.min(b),
        })
    }

    fn map(&self, data: &mut [u8], apply: impl Fn(usize, u64) -> u64) {
        for (place, element) in data.chunks_exact_mut(self.bytes).enumerate() {
            let value = apply(place, self.load(element));
            element.copy_from_slice(&value.to_le_bytes()[..self.bytes]);
        }
    }
}

/// A lane, as both ends and the engine see it.
#[derive(Clone, Default)]
pub(super) struct HostLane {
    pub(super) to: usize,
    pub(super) slot_bytes: usize,
    pub(super) slot_count: u64,
    /// LL messages go as they are packed, not as they are put.
    pub(super) stores: bool,
    send_slots: Vec<u8>,
    receive_slots: Vec<u8>,
    /// What was granted last: `None`, the slots.
    granted: Option<Where>,
    arrivals: u64,
    credits: u64,
    completions: u64,
    queue: VecDeque<Doorbell>,
}

impl HostLane {
    /// A lane; without slots if `slot_count` is 0. Its signals begin at `position`.
    pub(super) fn new(to: usize, slot_bytes: usize, slot_count: u64, position: u64) -> Self {
        let slots = vec![0xee; slot_bytes * slot_count as usize];
        Self {
            to,
            slot_bytes,
            slot_count,
            stores: false,
            send_slots: slots.clone(),
            receive_slots: slots,
            granted: None,
            arrivals: position,
            credits: position,
            completions: position,
            queue: VecDeque::new(),
        }
    }
}

impl HostLane {
    /// Slots of LL messages start as zeros.
    pub(super) fn zero(&mut self) {
        self.send_slots.fill(0);
        self.receive_slots.fill(0);
    }
}

/// A port of a rank's table; the positions stay from launch to launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostPort {
    pub(super) lane: usize,
    pub(super) sends: bool,
    pub(super) position: u64,
    pub(super) completion_position: u64,
}

/// A transfer that an engine has been asked for.
#[derive(Clone)]
struct Doorbell {
    source: Where,
    destination: Where,
    length: usize,
    moved: usize,
    arrival: bool,
    completion: bool,
}

/// Memory of a rank, or slots of a lane.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    Buffer { rank: usize, number: usize, offset: usize },
    SendSlots { lane: usize, offset: usize },
    ReceiveSlots { lane: usize, offset: usize },
}

impl Where {
    fn plus(self, more: usize) -> Self {
        match self {
            Self::Buffer { rank, number, offset } => {
                Self::Buffer { rank, number, offset: offset + more }
            }
            Self::SendSlots { lane, offset } => Self::SendSlots { lane, offset: offset + more },
            Self::ReceiveSlots { lane, offset } => {
                Self::ReceiveSlots { lane, offset: offset + more }
            }
        }
    }
}

/// One rank: its memory, its port table, the program of its launch.
#[derive(Clone, Default)]
pub(super) struct HostRank {
    /// Input, output, and the memory that addresses point into (from 0).
    pub(super) memory: [Vec<u8>; 3],
    /// Input and output are both in the first memory, and start at these bytes of it.
    pub(super) in_place: Option<[usize; 2]>,
    pub(super) ports: Vec<HostPort>,
    pub(super) program: Vec<u8>,
}

impl HostRank {
    /// Which memory buffer `number` is in, and where it starts.
    fn bound(&self, number: usize) -> (usize, usize) {
        match self.in_place {
            Some(starts) if number < 2 => (0, starts[number]),
            _ => (number, 0),
        }
    }
}

struct Cursor {
    rank: usize,
    block: BlockProgram,
    segment: usize,
    round: u32,
    op: usize,
}

/// What a run did on a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Put { bytes: u64, arrival: bool, completion: bool },
    Credit,
    Raised { signal: &'static str, value: u64 },
}

/// All ranks and lanes.
pub(super) struct Host {
    /// Each lane's events in the order of the run.
    pub(super) events: Vec<(usize, Event)>,
    pub(super) element: Element,
    pub(super) ranks: Vec<HostRank>,
    pub(super) lanes: Vec<HostLane>,
}

fn record<T: bytemuck::Pod>(bytes: &[u8], offset: usize, number: usize) -> T {
    let start = offset + number * size_of::<T>();
    bytemuck::pod_read_unaligned(&bytes[start..start + size_of::<T>()])
}

impl Host {
    /// Runs one launch of every rank to its end. `Err` says that nothing could move.
    pub(super) fn launch(&mut self, random: &mut fastrand::Rng) -> Result<(), String> {
        let mut blocks = Vec::new();
        for (rank, state) in self.ranks.iter().enumerate() {
            let header: PlanHeader = record(&state.program, 0, 0);
            assert_eq!(header.magic, PLAN_MAGIC);
            assert_eq!(header.size_bytes as usize, state.program.len());
            for number in 0..header.block_count as usize {
                let block = record(&state.program, size_of::<PlanHeader>(), number);
                blocks.push(Cursor { rank, block, segment: 0, round: 0, op: 0 });
            }
        }
        let agents = blocks.len() + self.lanes.len();
        let mut idle = vec![false; agents];
        loop {
            let runnable: Vec<usize> = (0..agents).filter(|agent| !idle[*agent]).collect();
            if runnable.is_empty() {
                break;
            }
            let agent = runnable[random.usize(..runnable.len())];
            let moved = match blocks.get_mut(agent) {
                Some(block) => self.step(block),
                None => self.transfer(agent - blocks.len(), random),
            };
            if moved {
                idle.fill(false);
            } else {
                idle[agent] = true;
            }
        }
        let waits = |block: &&Cursor| block.segment < block.block.segment_count as usize;
        let line = |block: &Cursor| {
            format!("rank {} segment {} op {}", block.rank, block.segment, block.op)
        };
        let stuck: Vec<String> = blocks.iter().filter(waits).map(line).collect();
        if stuck.is_empty() { Ok(()) } else { Err(stuck.join(", ")) }
    }

    /// One op of one block; false if it waits or has ended.
    fn step(&mut self, at: &mut Cursor) -> bool {
        let program = &self.ranks[at.rank].program;
        if at.segment == at.block.segment_count as usize {
            return false;
        }
        let segment: Segment = record(program, at.block.segments as usize, at.segment);
        let op: Op = record(program, segment.ops as usize, at.op);
        if !self.run(at, &segment, &op) {
            return false;
        }
        at.op += 1;
        if at.op == segment.op_count as usize {
            (at.op, at.round) = (0, at.round + 1);
        }
        if at.round == segment.rounds {
            (at.round, at.segment) = (0, at.segment + 1);
        }
        true
    }

    fn run(&mut self, at: &Cursor, segment: &Segment, op: &Op) -> bool {
        let moved = u64::from(at.round) * segment.round_stride;
        let left = segment.limit.saturating_sub(op.extent + moved);
        let length = left.min(u64::from(op.length)) as usize;
        let place = |operand: &Operand| self.resolve(at, operand, moved as usize);
        let has = |operand: &Operand| operand.space != Space::None as u8;
        match OpCode::from_code(op.code).expect("a known op") {
            OpCode::Copy => {
                let mut data = self.load(place(&op.a), length);
                let element = self.element;
                if op.flags & flags::SCALE != 0 {
                    element.map(&mut data, |_, value| element.scale(value));
                }
                if op.flags & flags::FINISH != 0 {
                    element.map(&mut data, |_, value| element.finish(value));
                }
                let to = place(&op.destination);
                self.store(to, &data);
            }
            OpCode::Reduce => {
                let (mut data, other) =
                    (self.load(place(&op.a), length), self.load(place(&op.b), length));
                let element = self.element;
                let (scale, finish) = (op.flags & flags::SCALE != 0, op.flags & flags::FINISH != 0);
                element.map(&mut data, |number, value| {
                    let start = number * element.bytes;
                    let b = element.load(&other[start..start + element.bytes]);
                    element.reduce(value, b, scale, finish)
                });
                let to = place(&op.destination);
                self.store(to, &data);
            }
            OpCode::Pack => {
                let mut data = match has(&op.a) {
                    true => self.load(place(&op.a), length),
                    false => vec![0; length],
                };
                data.resize(data.len().next_multiple_of(8), 0);
                let message = self.port(at, op.port).position + u64::from(op.destination.number);
                let flag = flag_of(message).to_le_bytes();
                let words: Vec<u8> =
                    data.chunks_exact(4).flat_map(|word| [word, &flag].concat()).collect();
                self.pack(at, op, &words);
            }
            OpCode::Collect => {
                let own = has(&op.a).then(|| place(&op.a));
                let Some(sum) = self.collect(at, op, own, length) else { return false };
                if has(&op.destination) {
                    let to = place(&op.destination);
                    self.store(to, &sum);
                }
            }
            OpCode::Put if self.lanes[self.port(at, op.port).lane].stores => {}
            OpCode::Put => {
                let low_latency = op.flags & flags::LOW_LATENCY != 0;
                let length = if low_latency { ll_bytes(length as u64) as usize } else { length };
                let doorbell = Doorbell {
                    source: place(&op.a),
                    destination: self.resolve_peer(at, op, moved as usize),
                    length,
                    moved: 0,
                    arrival: op.flags & flags::ARRIVAL != 0,
                    completion: op.flags & flags::COMPLETION != 0,
                };
                self.ring(self.port(at, op.port).lane, doorbell);
            }
            OpCode::Credit => {
                let lane = self.port(at, op.port).lane;
                (0..op.value).for_each(|_| self.credit(lane));
            }
            OpCode::Grant => {
                let granted = has(&op.a).then(|| self.resolve(at, &op.a, 0));
                let lane = self.port(at, op.port).lane;
                self.lanes[lane].granted = granted;
                self.credit(lane);
            }
            OpCode::WaitSignal => {
                let port = self.port(at, op.port);
                let lane = &self.lanes[port.lane];
                let seen = if port.sends { lane.credits } else { lane.arrivals };
                return seen as i64 >= port.position as i64 + op.value;
            }
            OpCode::WaitCompletion => {
                let port = self.port(at, op.port);
                let seen = self.lanes[port.lane].completions;
                return seen as i64 >= port.completion_position as i64 + op.value;
            }
            OpCode::Advance => {
                let index = self.port_index(at, op.port);
                let port = &mut self.ranks[at.rank].ports[index];
                port.position = port.position.wrapping_add_signed(op.value);
                port.completion_position += op.destination.offset;
            }
        }
        true
    }

    fn ring(&mut self, lane: usize, doorbell: Doorbell) {
        let (arrival, completion) = (doorbell.arrival, doorbell.completion);
        let event = Event::Put { bytes: doorbell.length as u64, arrival, completion };
        self.events.push((lane, event));
        self.lanes[lane].queue.push_back(doorbell);
    }

    /// A message goes into its slot at this end if an engine takes it from there; on lanes of
    /// stores it begins to arrive, sooner or later: the slot at this end is on the way.
    fn pack(&mut self, at: &Cursor, op: &Op, words: &[u8]) {
        let ports = 0..u64::BITS as u16;
        let puts = ports.filter(|place| op.value >> place & 1 != 0);
        let mut is_rung = false;
        for port in puts.map(|place| self.port(at, place)).collect::<Vec<_>>() {
            let lane = port.lane;
            if !self.lanes[lane].stores {
                is_rung = true;
                continue;
            }
            let offset = self.slot_start(&port, op.destination.number);
            let (source, destination) =
                (Where::SendSlots { lane, offset }, Where::ReceiveSlots { lane, offset });
            self.store(source, words);
            let (length, moved) = (words.len(), 0);
            let doorbell =
                Doorbell { source, destination, length, moved, arrival: false, completion: false };
            self.ring(lane, doorbell);
        }
        if is_rung {
            let own = self.resolve(at, &op.destination, 0);
            self.store(own, words);
        }
    }

    /// The ports of a collect: their places in the block's list, and themselves.
    fn ports_of(&self, at: &Cursor, op: &Op) -> Vec<(u16, HostPort)> {
        let places = op.port..op.port + op.value as u16;
        places.map(|place| (place, self.port(at, place))).collect()
    }

    /// `None`: some word of some message has not come.
    fn collect(&self, at: &Cursor, op: &Op, own: Option<Where>, length: usize) -> Option<Vec<u8>> {
        let mut terms = Vec::new();
        for (number, port) in self.ports_of(at, op) {
            let message = port.position + u64::from(op.b.number);
            let slot = Operand { port: number, ..op.b };
            let words = self.load(self.resolve(at, &slot, 0), ll_bytes(length as u64) as usize);
            let mut data = Vec::new();
            for word in words.chunks_exact(8) {
                if word[4..] != flag_of(message).to_le_bytes() {
                    return None;
                }
                data.extend_from_slice(&word[..4]);
            }
            data.truncate(length);
            terms.push(data);
        }
        if let Some(own) = own {
            terms.insert(op.before as usize, self.load(own, length));
        }
        let element = self.element;
        let finish = op.flags & flags::FINISH != 0;
        let mut sum = terms[0].clone();
        let last = terms.len() - 1;
        for (place, term) in terms.iter().enumerate().skip(1) {
            element.map(&mut sum, |number, value| {
                let start = number * element.bytes;
                let b = element.load(&term[start..start + element.bytes]);
                element.reduce(value, b, false, finish && place == last)
            });
        }
        Some(sum)
    }

    /// An engine goes on with the oldest transfer of its lane.
    fn transfer(&mut self, number: usize, random: &mut fastrand::Rng) -> bool {
        let Some(doorbell) = self.lanes[number].queue.front().cloned() else { return false };
        let left = doorbell.length - doorbell.moved;
        // Words of 8 bytes are not torn (R13).
        let half = left.div_ceil(2).next_multiple_of(8).min(left);
        let piece = if random.bool() { left } else { half };
        let data = self.load(doorbell.source.plus(doorbell.moved), piece);
        self.store(doorbell.destination.plus(doorbell.moved), &data);
        let lane = &mut self.lanes[number];
        if piece < left {
            lane.queue[0].moved += piece;
        } else {
            lane.queue.pop_front();
            lane.arrivals += u64::from(doorbell.arrival);
            lane.completions += u64::from(doorbell.completion);
            let (arrivals, completions) = (lane.arrivals, lane.completions);
            if doorbell.arrival {
                self.raised(number, "arrival", arrivals);
            }
            if doorbell.completion {
                self.raised(number, "completion", completions);
            }
        }
        true
    }

    fn credit(&mut self, lane: usize) {
        self.events.push((lane, Event::Credit));
        self.lanes[lane].credits += 1;
        self.raised(lane, "credit", self.lanes[lane].credits);
    }

    fn raised(&mut self, lane: usize, signal: &'static str, value: u64) {
        self.events.push((lane, Event::Raised { signal, value }));
    }

    fn port_index(&self, at: &Cursor, port: u16) -> usize {
        let program = &self.ranks[at.rank].program;
        record::<u32>(program, at.block.ports as usize, usize::from(port)) as usize
    }

    fn port(&self, at: &Cursor, port: u16) -> HostPort {
        self.ranks[at.rank].ports[self.port_index(at, port)]
    }

    fn resolve(&self, at: &Cursor, operand: &Operand, moved: usize) -> Where {
        let (rank, offset) = (at.rank, operand.offset as usize);
        if operand.space == Space::Buffer as u8 {
            Where::Buffer { rank, number: operand.number as usize, offset: offset + moved }
        } else if operand.space == Space::Address as u8 {
            let start = (operand.number as usize) << ADDRESS_NUMBER_SHIFT;
            Where::Buffer { rank, number: 2, offset: start + offset + moved }
        } else if operand.space == Space::Peer as u8 {
            // The table has all inputs, then all outputs.
            let (entry, ranks) = (operand.number as usize - 1, self.ranks.len());
            let (rank, number) = (entry % ranks, entry / ranks);
            Where::Buffer { rank, number, offset: offset + moved }
        } else {
            assert_eq!(operand.space, Space::Slot as u8);
            let port = self.port(at, operand.port);
            let offset = offset + self.slot_start(&port, operand.number);
            let lane = port.lane;
            match port.sends {
                true => Where::SendSlots { lane, offset },
                false => Where::ReceiveSlots { lane, offset },
            }
        }
    }

    fn resolve_peer(&self, at: &Cursor, op: &Op, moved: usize) -> Where {
        let (port, to) = (self.port(at, op.port), &op.destination);
        let granted = to.space == Space::Granted as u8;
        if granted && let Some(place) = self.lanes[port.lane].granted {
            return place.plus(to.offset as usize + moved);
        }
        if granted || to.space == Space::Slot as u8 {
            let offset = if granted { 0 } else { to.offset as usize };
            let offset = offset + self.slot_start(&port, to.number);
            return Where::ReceiveSlots { lane: port.lane, offset };
        }
        let (number, offset) = (to.number as usize, to.offset as usize + moved);
        Where::Buffer { rank: self.lanes[port.lane].to, number, offset }
    }

    fn slot_start(&self, port: &HostPort, message: u32) -> usize {
        let lane = &self.lanes[port.lane];
        let slot = (port.position + u64::from(message)) & (lane.slot_count - 1);
        slot as usize * lane.slot_bytes
    }

    fn bytes(&mut self, at: Where, length: usize) -> &mut [u8] {
        let (memory, offset) = match at {
            Where::Buffer { rank, number, offset } => {
                let rank = &mut self.ranks[rank];
                let (number, start) = rank.bound(number);
                (&mut rank.memory[number], start + offset)
            }
            Where::SendSlots { lane, offset } => (&mut self.lanes[lane].send_slots, offset),
            Where::ReceiveSlots { lane, offset } => (&mut self.lanes[lane].receive_slots, offset),
        };
        &mut memory[offset..offset + length]
    }

    /// Nothing is resolved for an empty range: it may stand behind the end.
    fn load(&self, at: Where, length: usize) -> Vec<u8> {
        if length == 0 {
            return Vec::new();
        }
        let (memory, offset) = match at {
            Where::Buffer { rank, number, offset } => {
                let rank = &self.ranks[rank];
                let (number, start) = rank.bound(number);
                (&rank.memory[number], start + offset)
            }
            Where::SendSlots { lane, offset } => (&self.lanes[lane].send_slots, offset),
            Where::ReceiveSlots { lane, offset } => (&self.lanes[lane].receive_slots, offset),
        };
        memory[offset..offset + length].to_vec()
    }

    fn store(&mut self, at: Where, data: &[u8]) {
        if !data.is_empty() {
            self.bytes(at, data.len()).copy_from_slice(data);
        }
    }
}
