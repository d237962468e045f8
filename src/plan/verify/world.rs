//! Memory and lanes of all ranks, and what each op does to them.

use super::super::{
    Buffer, Lane, LaneEnd, Modifiers, Op, Operand, Range, Segment, Side, SlotShape,
};
use super::agents::{Block, LaneState, Port, Step};
use super::clock::Epoch;
use super::error::{Access, Reason};
use super::low_latency::{Collect, Pack, PortMessage, Ports};
use super::memory::{Accessor, Fault, Memory, Piece, Sum, rebase, zip};
use super::scope::{Agent, Agents};
use std::ops;
use std::rc::Rc;

/// What the promise says about values and memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) scales: bool,
    pub(super) finishes: bool,
    pub(super) element_bytes: u64,
}

/// Where a rank's input and output are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Binding {
    /// They are in one memory.
    pub(super) shared: bool,
    /// Where the input starts in its memory.
    pub(super) input: u64,
    /// Where the output starts in its memory.
    pub(super) output: u64,
}

/// A resolved operand: which memory, and where in it.
#[derive(Clone, Copy)]
pub(super) struct Spot {
    pub(super) memory: usize,
    pub(super) start: u64,
}

/// An op that moves data: where it goes, and where it comes from.
#[derive(Clone, Copy)]
pub(super) struct Move {
    pub(super) destination: Operand,
    pub(super) source: Operand,
    pub(super) range: Range,
}

/// Which signals a put raises.
#[derive(Clone, Copy)]
pub(super) struct Raises {
    pub(super) arrival: bool,
    pub(super) completion: bool,
}

/// An op that reduces `a` and `b`.
struct Reduce {
    destination: Operand,
    a: Operand,
    b: Operand,
    range: Range,
}

impl Spot {
    /// So many bytes from there.
    pub(super) fn bytes(self, length: u64) -> ops::Range<u64> {
        self.start..self.start + length
    }
}

/// Memory 0 to 3 of each rank: input, output, addresses, scratch.
const USER_MEMORIES: usize = 4;

/// Memory and lanes of all ranks.
pub(super) struct World {
    pub(super) rules: Rules,
    pub(super) rank_count: usize,
    pub(super) bindings: Vec<Binding>,
    pub(super) slots: SlotShape,
    pub(super) memories: Vec<Memory>,
    pub(super) lanes: Vec<LaneState>,
    /// Blocks, by rank and number.
    blocks: Vec<(u32, u32)>,
    pub(super) agents: Agents,
    pub(super) scratch: [Vec<Piece>; 2],
}

impl World {
    pub(super) fn new(
        rules: Rules,
        bindings: Vec<Binding>,
        slots: SlotShape,
        lanes: &[Lane],
        (blocks, agents): (Vec<(u32, u32)>, Agents),
    ) -> Self {
        let rank_count = bindings.len();
        let mut memories = vec![Memory::default(); USER_MEMORIES * rank_count + 2 * lanes.len()];
        for memory in &mut memories[USER_MEMORIES * rank_count..] {
            let end = u64::from(slots.bytes) * u64::from(slots.count);
            memory.map(0, end, None, Epoch::BEFORE_ALL);
        }
        let lanes = lanes.iter().zip(&agents.lanes);
        let lanes = lanes.map(|(&id, agent)| LaneState::new(id, agent)).collect();
        let scratch = Default::default();
        Self { rules, rank_count, bindings, slots, memories, lanes, blocks, agents, scratch }
    }

    /// The moment before a rank's launch: what its stream did earlier.
    pub(super) fn before(rank: u32) -> Epoch {
        Epoch { agent: rank, tick: 1 }
    }

    /// Lets a block try its next op.
    pub(super) fn step(&mut self, block: &mut Block<'_>) -> Result<Step, Reason> {
        let Some((segment, op)) = block.current() else { return Ok(Step::Ended) };
        match *op {
            Op::Copy { destination, source, range, modifiers } => {
                self.copy(block, segment, Move { destination, source, range }, modifiers)?;
            }
            Op::Reduce { destination, a, b, range, modifiers } => {
                self.reduce(block, segment, Reduce { destination, a, b, range }, modifiers)?;
            }
            Op::Pack { port, message, source, range } => {
                self.pack(block, segment, &Pack { port, message, source, range })?;
            }
            Op::Collect { destination, own, before, first, count, message, range, finish } => {
                let ports = Ports { first, count, message };
                let collect = Collect { destination, own, before, ports, range, finish };
                if let Some(waiting) = self.collect(block, segment, &collect)? {
                    return Ok(waiting);
                }
            }
            Op::Put { port, destination, source, range, arrival, completion } => {
                let raises = Raises { arrival, completion };
                self.put(block, segment, port, Move { destination, source, range }, raises)?;
            }
            Op::Credit { port, messages } => {
                let number = block.ports[usize::from(port)].lane;
                for _ in 0..messages {
                    self.slot_left(block, number)?;
                    self.lanes[number].credits.raise(&block.clock);
                }
            }
            Op::Grant { port, place } => self.grant(block, usize::from(port), place)?,
            Op::WaitSignal { .. } | Op::WaitCompletion { .. } => {
                if let Some(waiting) = self.wait(block, op) {
                    return Ok(waiting);
                }
            }
            Op::Advance { port, signals, completions } => {
                let port = &mut block.ports[usize::from(port)];
                port.position += i64::from(signals);
                port.completion_position += i64::from(completions);
            }
            Op::InSwitch(work) => return Err(Reason::Planned { what: work.name() }),
        }
        block.op += 1;
        Ok(Step::Taken)
    }

    fn wait(&mut self, block: &mut Block<'_>, op: &Op) -> Option<Step> {
        let (port, value, for_completion) = match *op {
            Op::WaitSignal { port, value } => (port, value, false),
            Op::WaitCompletion { port, value } => (port, value, true),
            _ => return None,
        };
        let port = &mut block.ports[usize::from(port)];
        let lane = &mut self.lanes[port.lane];
        let (signal, base) = match (for_completion, port.side) {
            (true, _) => (&mut lane.completions, port.completion_position),
            (false, Side::Send) => (&mut lane.credits, port.position),
            (false, Side::Receive) => (&mut lane.arrivals, port.position),
        };
        let expected = base + value;
        // What earlier launches are owed always arrives: each of them was balanced.
        if expected > signal.raised && expected > 0 {
            return Some(Step::Waiting { expected, seen: signal.raised });
        }
        if let Some(known) = signal.known_at(expected) {
            block.clock.join(&known);
        }
        if !for_completion {
            port.observed = port.observed.max(expected);
        }
        None
    }

    fn copy(
        &mut self,
        block: &mut Block<'_>,
        segment: &Segment,
        moved: Move,
        modifiers: Modifiers,
    ) -> Result<(), Reason> {
        let length = segment.clip(block.round, moved.range);
        let to = self.place(block, segment, moved.destination, Access::Write)?;
        let from = self.place(block, segment, moved.source, Access::Read)?;
        if modifiers != Modifiers::NONE {
            self.whole_elements(&[from.start, to.start, length])?;
        }
        if length == 0 {
            return Ok(());
        }
        let mut pieces = self.read(block, from, to.start, length, 0)?;
        for piece in &mut pieces {
            self.modify(block.rank, &mut piece.value, modifiers)?;
        }
        self.write(block, to, length, pieces.drain(..))?;
        self.scratch[0] = pieces;
        Ok(())
    }

    fn reduce(
        &mut self,
        block: &mut Block<'_>,
        segment: &Segment,
        Reduce { destination, a, b, range }: Reduce,
        modifiers: Modifiers,
    ) -> Result<(), Reason> {
        let length = segment.clip(block.round, range);
        let to = self.place(block, segment, destination, Access::Write)?;
        let a = self.place(block, segment, a, Access::Read)?;
        let b = self.place(block, segment, b, Access::Read)?;
        self.whole_elements(&[to.start, a.start, b.start, length])?;
        if length == 0 {
            return Ok(());
        }
        let first = self.read(block, a, to.start, length, 0)?;
        let mut second = self.read(block, b, to.start, length, 1)?;
        let finish = Modifiers { scale: false, ..modifiers };
        for piece in &mut second {
            self.modify(block.rank, &mut piece.value, Modifiers { finish: false, ..modifiers })?;
        }
        let mut pieces = self.combine(&first, &second)?;
        for piece in &mut pieces {
            self.modify(block.rank, &mut piece.value, finish)?;
        }
        (self.scratch[0], self.scratch[1]) = (first, second);
        self.write(block, to, length, pieces)
    }

    /// The reduction of two values each.
    pub(super) fn combine(&self, a: &[Piece], b: &[Piece]) -> Result<Vec<Piece>, Reason> {
        zip(a, b, |a, b| {
            if self.rules.finishes && a.finished + b.finished > 0 {
                return Err(Reason::AfterFinish);
            }
            let (seen, ranks) = (a.terms.len() + b.terms.len(), self.rank_count);
            if seen > ranks {
                return Err(Reason::TooManyTerms { seen, ranks });
            }
            let mut terms = Vec::with_capacity(seen);
            terms.extend_from_slice(&a.terms);
            terms.extend_from_slice(&b.terms);
            terms.sort_unstable();
            Ok(Sum { terms, finished: 0 })
        })
    }

    /// The engine's work happens at once. It could happen at any time from here to the arrival
    /// wait, and the clocks say so: only waits on the lane's signals know of it.
    fn put(
        &mut self,
        block: &mut Block<'_>,
        segment: &Segment,
        port: u16,
        Move { destination, source, range }: Move,
        raises: Raises,
    ) -> Result<(), Reason> {
        let length = segment.clip(block.round, range);
        let end = block.ports[usize::from(port)];
        let from = self.place(block, segment, source, Access::Read)?;
        let to = match (source, destination) {
            (_, Operand::Slot { message, offset, .. }) => {
                let message = end.position + i64::from(message);
                match self.lanes[end.lane].is_low_latency() {
                    true => {
                        self.message_packed(block, PortMessage { end, message }, source, length)?
                    }
                    false => self.message_to_put(&end, message, range)?,
                }
                let memory = self.slots_of(end.lane, Side::Receive);
                Spot { memory, start: self.slot_start(message) + offset }
            }
            (_, Operand::Buffer { buffer, offset }) => {
                let peer = self.lanes[end.lane].id.to;
                let moved = u64::from(block.round) * segment.round_stride;
                let Spot { memory, start } = self.buffer(peer, buffer);
                Spot { memory, start: start + offset + moved }
            }
            (_, Operand::Granted { message, offset, .. }) => {
                let message = end.position + i64::from(message);
                let moved = u64::from(block.round) * segment.round_stride;
                self.message_to_put(&end, message, range)?;
                match self.granted(&end, message)? {
                    Some(Spot { memory, start }) => Spot { memory, start: start + offset + moved },
                    None => Spot {
                        memory: self.slots_of(end.lane, Side::Receive),
                        start: self.slot_start(message),
                    },
                }
            }
            _ => return Err(Reason::Operands { rule: "a put ends in a slot or a buffer" }),
        };
        if self.lanes[end.lane].stores() {
            // The block has written it; what is not there was not.
            self.read(block, from, from.start, length, 0)?;
            let lane = &mut self.lanes[end.lane];
            lane.puts += 1;
            lane.arrivals.raise(&block.clock);
            return Ok(());
        }
        let (read_epoch, write_epoch) = self.lanes[end.lane].ring(&block.clock);
        if length > 0 {
            let lane = &self.lanes[end.lane];
            let by = Accessor { epoch: read_epoch, clock: &lane.read_clock };
            let mut pieces = std::mem::take(&mut self.scratch[0]);
            let read = self.memories[from.memory].read(from.bytes(length), by, &mut pieces);
            read.map_err(|fault| self.explain(fault, from.memory, Access::Read))?;
            rebase(&mut pieces, from.start, to.start);
            let by = Accessor { epoch: write_epoch, clock: &lane.write_clock };
            let written = self.memories[to.memory].write(to.bytes(length), by, pieces.drain(..));
            written.map_err(|fault| self.explain(fault, to.memory, Access::Write))?;
            self.scratch[0] = pieces;
        }
        let lane = &mut self.lanes[end.lane];
        lane.puts += 1;
        if raises.arrival || lane.is_low_latency() {
            lane.arrivals.raise(&lane.write_clock);
        }
        if raises.completion {
            lane.completions.raise(&lane.read_clock);
        }
        Ok(())
    }

    /// Messages go in order, into slots that are free at both ends. One without data on a lane of
    /// stores is a signal, and touches no slot.
    fn message_to_put(&self, end: &Port, message: i64, range: Range) -> Result<(), Reason> {
        let lane = &self.lanes[end.lane];
        if message != lane.puts {
            return Err(Reason::MessageOrder { expected: lane.puts, seen: message });
        }
        match lane.stores() && range.length == 0 {
            true => Ok(()),
            false => self.slot_free(end, message),
        }
    }

    fn slot_free(&self, end: &Port, message: i64) -> Result<(), Reason> {
        let needed = message + 1 - i64::from(self.slots.count);
        let observed = self.lanes[end.lane].freed(end.observed);
        if observed < needed {
            return Err(Reason::SlotNotFree { message, needed, observed });
        }
        Ok(())
    }

    /// Where an operand of `block` stands now, and whether the block may use it like this.
    pub(super) fn place(
        &self,
        block: &Block<'_>,
        segment: &Segment,
        place: Operand,
        access: Access,
    ) -> Result<Spot, Reason> {
        let moved = u64::from(block.round) * segment.round_stride;
        match place {
            Operand::Buffer { buffer, offset } => {
                let Spot { memory, start } = self.buffer(block.rank, buffer);
                if access == Access::Write {
                    self.writable(memory)?;
                }
                Ok(Spot { memory, start: start + offset + moved })
            }
            Operand::Granted { .. } => {
                Err(Reason::Operands { rule: "what a peer has granted is put into, and no more" })
            }
            Operand::Peer { port, buffer, offset } => {
                let port = &block.ports[usize::from(port)];
                let lane = self.lanes[port.lane].id;
                let Spot { memory, start } =
                    self.buffer(LaneEnd { lane, side: port.side }.peer(), buffer);
                if access == Access::Write {
                    self.writable(memory)?;
                }
                Ok(Spot { memory, start: start + offset + moved })
            }
            Operand::Address(address) => {
                Ok(Spot { memory: self.addresses(block.rank), start: address + moved })
            }
            Operand::Slot { port, message, offset } => {
                let end = &block.ports[usize::from(port)];
                let message = end.position + i64::from(message);
                self.slot_access(end, message, access)?;
                let memory = self.slots_of(end.lane, end.side);
                Ok(Spot { memory, start: self.slot_start(message) + offset })
            }
        }
    }

    fn slot_access(&self, end: &Port, message: i64, access: Access) -> Result<(), Reason> {
        let lane = &self.lanes[end.lane];
        match (end.side, access) {
            // What a block has stored is the receiver's from the put on, who may write there.
            (Side::Send, _)
                if message < lane.puts && (access == Access::Write || lane.stores()) =>
            {
                Err(Reason::MessageGone { message })
            }
            (Side::Send, Access::Write) => self.slot_free(end, message),
            (Side::Send, Access::Read) => Ok(()), // By an engine: `put` knows what it may read.
            (Side::Receive, _) if end.observed <= message => {
                Err(Reason::NotArrived { message, observed: end.observed })
            }
            (Side::Receive, _) if lane.freed(lane.credits.raised) > message => {
                Err(Reason::SlotReturned { message, credits: lane.credits.raised })
            }
            (Side::Receive, _) => Ok(()),
        }
    }

    /// The slot that the next credit on a lane returns has been read to its end, by engines too:
    /// the sender may write it at once, maybe in a launch of which this one knows nothing.
    fn slot_left(&self, block: &Block<'_>, lane: usize) -> Result<(), Reason> {
        if !self.lanes[lane].slotted() {
            return Ok(());
        }
        let last = self.lanes[lane].credits.raised;
        let first = self.lanes[lane].freed(last);
        (first..=last).try_for_each(|message| {
            let start = self.slot_start(message);
            let slot = start..start + u64::from(self.slots.bytes);
            let left = self.memories[self.slots_of(lane, Side::Receive)].left(slot, &block.clock);
            left.map_err(|other| Reason::SlotInUse { message, other: self.agent_name(other.agent) })
        })
    }

    pub(super) fn slot_start(&self, message: i64) -> u64 {
        message.rem_euclid(i64::from(self.slots.count)) as u64 * u64::from(self.slots.bytes)
    }

    pub(super) fn read(
        &mut self,
        block: &mut Block<'_>,
        from: Spot,
        to: u64,
        length: u64,
        scratch: usize,
    ) -> Result<Vec<Piece>, Reason> {
        let mut pieces = std::mem::take(&mut self.scratch[scratch]);
        let epoch = block.clock.tick(block.agent);
        let by = Accessor { epoch, clock: &block.clock };
        let result = self.memories[from.memory].read(from.bytes(length), by, &mut pieces);
        result.map_err(|fault| self.explain(fault, from.memory, Access::Read))?;
        rebase(&mut pieces, from.start, to);
        Ok(pieces)
    }

    pub(super) fn write(
        &mut self,
        block: &mut Block<'_>,
        to: Spot,
        length: u64,
        pieces: impl IntoIterator<Item = Piece>,
    ) -> Result<(), Reason> {
        let epoch = block.clock.tick(block.agent);
        let by = Accessor { epoch, clock: &block.clock };
        let result = self.memories[to.memory].write(to.bytes(length), by, pieces);
        result.map_err(|fault| self.explain(fault, to.memory, Access::Write))
    }

    /// Applies what the flags say to a value, where the promised reduction cares.
    pub(super) fn modify(
        &self,
        rank: u32,
        value: &mut Rc<Sum>,
        modifiers: Modifiers,
    ) -> Result<(), Reason> {
        if modifiers.scale && self.rules.scales {
            if let Some(term) = value.terms.iter().find(|term| term.rank != rank) {
                return Err(Reason::ForeignScale { rank: term.rank });
            }
            for term in &mut Rc::make_mut(value).terms {
                term.scaled = term.scaled.saturating_add(1);
            }
        }
        if modifiers.finish && self.rules.finishes {
            if value.finished > 0 {
                return Err(Reason::AfterFinish);
            }
            Rc::make_mut(value).finished += 1;
        }
        Ok(())
    }

    pub(super) fn whole_elements(&self, values: &[u64]) -> Result<(), Reason> {
        let alignment = self.rules.element_bytes;
        match values.iter().find(|value| !value.is_multiple_of(alignment)) {
            Some(&value) => Err(Reason::Misaligned { value, alignment }),
            None => Ok(()),
        }
    }

    fn writable(&self, memory: usize) -> Result<(), Reason> {
        let input =
            memory < USER_MEMORIES * self.rank_count && memory.is_multiple_of(USER_MEMORIES);
        if input && !self.bindings[memory / USER_MEMORIES].shared {
            return Err(Reason::InputModified { memory: self.memory_name(memory) });
        }
        Ok(())
    }

    /// The memory of a rank's buffer, and where it starts there.
    pub(super) fn buffer(&self, rank: u32, buffer: Buffer) -> Spot {
        let first = USER_MEMORIES * rank as usize;
        let Binding { shared, input, output } = self.bindings[rank as usize];
        match buffer {
            Buffer::Input => Spot { memory: first, start: input },
            Buffer::Output => Spot { memory: first + usize::from(!shared), start: output },
            Buffer::Scratch => Spot { memory: first + 3, start: 0 },
        }
    }

    /// The memory that a rank's addresses lead to.
    pub(super) fn addresses(&self, rank: u32) -> usize {
        USER_MEMORIES * rank as usize + 2
    }

    /// Input, output, addresses and scratch memory of a rank.
    pub(super) fn user_memories(&self, rank: u32) -> ops::Range<usize> {
        let first = USER_MEMORIES * rank as usize;
        first..first + USER_MEMORIES
    }

    pub(super) fn slots_of(&self, lane: usize, side: Side) -> usize {
        // On a lane of stores both ends name the receiver's.
        let at_receiver = side == Side::Receive || self.lanes[lane].stores();
        USER_MEMORIES * self.rank_count + 2 * lane + usize::from(at_receiver)
    }

    pub(super) fn memory_name(&self, memory: usize) -> String {
        if memory < USER_MEMORIES * self.rank_count {
            let names = ["input", "output", "memory", "scratch memory"];
            return format!("rank {}'s {}", memory / USER_MEMORIES, names[memory % USER_MEMORIES]);
        }
        let number = memory - USER_MEMORIES * self.rank_count;
        let end = if number.is_multiple_of(2) { "send" } else { "receive" };
        format!("the {end} slots of {}", self.lanes[number / 2].id)
    }

    pub(super) fn agent_name(&self, agent: u32) -> String {
        match self.agents.get(agent) {
            Agent::Before { rank } => format!("what ran on rank {rank} before"),
            Agent::Block(place) => {
                let (rank, block) = self.blocks[place];
                format!("rank {rank} block {block}")
            }
            Agent::Engine { lane } => format!("the engine on {}", self.lanes[lane].id),
        }
    }

    fn explain(&self, fault: Fault, memory: usize, access: Access) -> Reason {
        let name = self.memory_name(memory);
        match fault {
            Fault::Unmapped { at } => Reason::Unmapped { memory: name, at },
            Fault::Undefined { start, end } => Reason::Undefined { memory: name, start, end },
            Fault::Race { start, end, other, other_wrote } => Reason::Race {
                access,
                memory: name,
                start,
                end,
                other_access: if other_wrote { Access::Write } else { Access::Read },
                other: self.agent_name(other.agent),
            },
        }
    }
}
