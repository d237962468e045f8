//! A block walks its program.

use super::state::Request;
use super::{Event, Owner, Signal, World};
use crate::profile::Block;
use crate::program::{
    AT_PEER, Code, FORWARDS, FROM_SLOT, INTO_SLOT, Op, READS_BACK, ScriptSegment,
};
use crate::report::Note;
use crate::time::{Rate, Time};
use crate::trace::Track;
use ringdove_kernels::op::{OpCode, flags, ll_bytes};
use ringdove_kernels::pass::SharedPass;

/// Where a block is, and what it runs.
#[repr(align(64))]
pub(super) struct BlockState {
    pub rank: u32,
    /// Its first port, segment and op, in the lists of all.
    ports: u32,
    segments: u32,
    ops: u32,
    segment_count: u32,
    segment: u32,
    op: u32,
    round: u32,
    /// The block's own clock: what it has done up to here.
    at: Time,
    /// Time that it spent on anything but waiting.
    pub busy: Time,
}

/// What a block stores into peers' memory.
#[derive(Clone, Copy, Default)]
pub(super) struct Storing {
    /// The set of the ports in the block's list whose peers get it.
    ports: u64,
    /// Of each.
    bytes: u64,
    /// Of all together.
    limit: Rate,
    raises: [u32; 3],
    /// Peers that have not got all of it yet.
    left: u32,
}

impl Storing {
    fn places(self) -> impl Iterator<Item = u16> {
        (0..u64::BITS as u16).filter(move |place| self.ports >> place & 1 != 0)
    }
}

/// What a pass over memory reaches.
#[derive(Clone, Copy, Default)]
struct Reached {
    /// The set of the ports in the block's list whose peers' memory it reads or writes.
    ports: u64,
    /// It reads some of these, after a round trip.
    is_loaded: bool,
    trip: Time,
    /// It writes memory of its own.
    is_local: bool,
}

/// Whether a block can go on.
enum Step {
    Taken,
    Suspended,
}

impl BlockState {
    /// All blocks, before they start. Those of a GPU start one after another.
    pub(super) fn all(code: &Code, costs: Block) -> Vec<Self> {
        let mut number = 0;
        let mut rank = None;
        let start = |block: &crate::program::BlockCode| {
            number = if rank == Some(block.rank) { number + 1 } else { 0 };
            rank = Some(block.rank);
            let script = code.scripts[block.script as usize];
            Self {
                rank: block.rank,
                ports: block.ports,
                segments: script.segments,
                ops: script.ops,
                segment_count: script.segment_count,
                segment: 0,
                op: 0,
                round: 0,
                at: costs.launch + costs.stagger.times(number),
                busy: Time::ZERO,
            }
        };
        code.blocks.iter().map(start).collect()
    }
}

impl World<'_> {
    /// Runs a block until it waits or ends.
    pub(super) fn run_block(&mut self, block: u32) {
        let now = self.now();
        let state = &mut self.blocks[block as usize];
        if now > state.at {
            let since = state.at;
            state.at = now;
            self.span(Track::Block(block), "wait", 0, since, now);
        }
        while let Some((segment, op, round)) = self.next_op(block) {
            self.ops += 1;
            if self.is_overdue() {
                return;
            }
            self.blocks[block as usize].op += 1;
            if let Step::Suspended = self.step(block, &segment, &op, round) {
                return;
            }
        }
        self.running -= 1;
        self.end = self.end.max(self.blocks[block as usize].at);
    }

    /// The op that comes next, with its segment and round.
    fn next_op(&mut self, block: u32) -> Option<(ScriptSegment, Op, u32)> {
        let state = &mut self.blocks[block as usize];
        loop {
            if state.segment == state.segment_count {
                return None;
            }
            let segment = self.code.segments[(state.segments + state.segment) as usize];
            if state.round < segment.rounds && state.op < segment.op_count {
                let op = self.code.ops[(state.ops + segment.ops + state.op) as usize];
                return Some((segment, op, state.round));
            }
            state.op = 0;
            state.round += 1;
            // A segment without ops has no rounds worth walking.
            if state.round >= segment.rounds || segment.op_count == 0 {
                (state.round, state.segment) = (0, state.segment + 1);
            }
        }
    }

    /// The block spends `cost`.
    fn spend(&mut self, block: u32, name: &'static str, bytes: u64, cost: Time) {
        let state = &mut self.blocks[block as usize];
        let start = state.at;
        state.at += cost;
        state.busy += cost;
        self.span(Track::Block(block), name, bytes, start, start + cost);
    }

    fn step(&mut self, block: u32, segment: &ScriptSegment, op: &Op, round: u32) -> Step {
        let moved = u64::from(round) * segment.stride;
        let left = segment.limit.saturating_sub(op.extent + moved);
        let bytes = left.min(u64::from(op.length));
        let costs = self.setup.profile.block;
        match op.code {
            OpCode::Copy | OpCode::Reduce => return self.pass(block, segment, op, bytes),
            OpCode::Pack if bytes > 0 => return self.pack(block, op, ll_bytes(bytes)),
            OpCode::Collect if bytes > 0 => return self.collect(block, op, bytes),
            OpCode::Pack | OpCode::Collect => {}
            OpCode::Put => return self.put(block, op, bytes, moved),
            // A grant is one credit with eight bytes, which nothing waits for longer.
            OpCode::Credit | OpCode::Grant => {
                let lane = self.port(block, op.port).lane;
                return self.ring(block, Request::signal(lane, [0, op.value as u32, 0]));
            }
            OpCode::WaitSignal | OpCode::WaitCompletion => {
                let port = self.port(block, op.port);
                let (signal, position) = match (op.code, port.sends) {
                    (OpCode::WaitCompletion, _) => (Signal::Completion, port.completion_position),
                    (_, true) => (Signal::Credit, port.position),
                    (_, false) => (Signal::Arrival, port.position),
                };
                let expected = position + op.value;
                self.spend(block, "step", 0, costs.step);
                if !self.lanes[port.lane as usize].wait(signal, expected) {
                    return Step::Suspended;
                }
            }
            OpCode::Advance => {
                let first = self.blocks[block as usize].ports;
                let port = &mut self.code.ports[first as usize + usize::from(op.port)];
                port.position += op.value;
                port.completion_position += op.other as i64;
            }
        }
        Step::Taken
    }

    fn port(&self, block: u32, port: u16) -> crate::program::BlockPort {
        self.code.ports[self.blocks[block as usize].ports as usize + usize::from(port)]
    }

    fn stores_on(&self, lane: u32) -> bool {
        self.lanes[lane as usize].stores
    }

    /// The words of an LL message: into the slots of all peers that it is stored to, at once, and
    /// into the block's own for those to which an engine takes it.
    fn pack(&mut self, block: u32, op: &Op, bytes: u64) -> Step {
        let costs = self.setup.profile.block;
        let mut ports = 0;
        for place in op.places() {
            let lane = self.port(block, place as u16).lane;
            if self.stores_on(lane) {
                ports |= 1 << place;
                self.lanes[lane as usize].is_ll = true;
                self.note_put(lane, bytes, [0; 3]);
            }
        }
        if ports == 0 {
            let rate = self.local_rate(block, costs.copy);
            self.spend(block, "pack", bytes, costs.op + rate.time(bytes));
            return Step::Taken;
        }
        self.spend(block, "pack", 0, costs.op);
        // The words are their own arrival.
        self.begin_store(
            block,
            Storing { ports, bytes, limit: costs.copy, raises: [1, 0, 0], left: 0 },
        )
    }

    /// A copy or reduction, with those behind it that share its pass over memory.
    fn pass(&mut self, block: u32, segment: &ScriptSegment, op: &Op, bytes: u64) -> Step {
        if bytes == 0 {
            return Step::Taken;
        }
        let is_reduce = op.code == OpCode::Reduce;
        let mut pass = SharedPass::of(is_reduce);
        let mut behind = 0;
        // The executor takes whole vectors of 16 bytes.
        if bytes.is_multiple_of(16) {
            while i64::from(behind) < op.value
                && let Some(next) = self.op_at(block, segment, behind)
                && pass.take(next.code == OpCode::Reduce)
            {
                behind += 1;
            }
            behind -= pass.left_out();
        }
        let mut reached = Reached::default();
        self.reach(block, op, &mut reached);
        // Behind the first op of a pass, what grows in a slot is in registers.
        if op.flags & READS_BACK != 0 && reached.ports != 0 {
            reached.trip = self.latency(self.port(block, op.port).lane).times(2);
        }
        for nth in 0..behind {
            let next = self.op_at(block, segment, nth).expect("it was looked at");
            self.reach(block, &next, &mut reached);
        }
        self.blocks[block as usize].op += behind;
        let costs = self.setup.profile.block;
        let rate = costs.pass(pass.sources(), pass.written());
        let rate = match reached.is_local {
            true => self.local_rate(block, rate),
            false => rate,
        };
        if reached.ports == 0 {
            let name = if is_reduce { "reduce" } else { "copy" };
            self.spend(block, name, bytes, costs.op + rate.time(bytes));
            return Step::Taken;
        }
        let name = if reached.is_loaded { "load" } else { "store" };
        self.spend(block, name, 0, costs.op + reached.trip);
        // All ports get the same share of what the block does for one of them alone.
        let limit = rate.times(reached.ports.count_ones().into());
        let (ports, raises) = (reached.ports, [0; 3]);
        self.begin_store(block, Storing { ports, bytes, limit, raises, left: 0 })
    }

    /// The op so many behind the one that was taken last, of this segment.
    fn op_at(&self, block: u32, segment: &ScriptSegment, nth: u32) -> Option<Op> {
        let state = &self.blocks[block as usize];
        let place = state.op + nth;
        (place < segment.op_count)
            .then(|| self.code.ops[(state.ops + segment.ops + place) as usize])
    }

    /// Which memory of peers a copy or reduction reads or writes, and whether it writes its own.
    fn reach(&self, block: u32, op: &Op, reached: &mut Reached) {
        let port = || self.port(block, op.port);
        if op.flags & AT_PEER != 0 {
            reached.ports |= 1 << op.port;
            if !port().sends {
                // What is read comes after a round trip, over the lane that leads here.
                reached.is_loaded = true;
                reached.trip = reached.trip.max(self.latency(port().lane).times(2));
            }
        } else if op.flags & INTO_SLOT != 0 && port().sends && self.stores_on(port().lane) {
            // The pass writes the peer's slot itself; the put behind it has only its signal.
            reached.ports |= 1 << op.port;
        } else {
            reached.is_local = true;
        }
    }

    /// The rate of a pass in a GPU's own memory, which its blocks share.
    fn local_rate(&self, block: u32, rate: Rate) -> Rate {
        let rank = self.blocks[block as usize].rank;
        let sharers = u64::from(self.code.blocks_of[rank as usize]);
        rate.min(Rate(self.setup.profile.block.memory.0 / sharers))
    }

    /// LL messages of several ports are reduced once all of them are here: as long as it takes
    /// to reduce one after another, but in one pass.
    fn collect(&mut self, block: u32, op: &Op, bytes: u64) -> Step {
        for place in op.port..op.port + op.value as u16 {
            let port = self.port(block, place);
            let expected = port.position + op.other as i64 + 1;
            if !self.lanes[port.lane as usize].wait(Signal::Arrival, expected) {
                // From the start again: what is there stays there.
                self.blocks[block as usize].op -= 1;
                return Step::Suspended;
            }
        }
        let costs = self.setup.profile.block;
        let rate = self.local_rate(block, costs.reduce);
        let cost = costs.op + rate.time(bytes).times(op.value as u64);
        self.spend(block, "collect", bytes, cost);
        Step::Taken
    }

    fn begin_store(&mut self, block: u32, storing: Storing) -> Step {
        let limit = storing.limit.min(self.stores().block);
        // Known only once a block stores: other engines have no use for it.
        self.storing.resize(self.blocks.len(), Storing::default());
        let left = storing.ports.count_ones();
        self.storing[block as usize] = Storing { limit, left, ..storing };
        let at = self.blocks[block as usize].at;
        self.push(at, Event::Store, block, 0);
        Step::Suspended
    }

    fn stores(&self) -> crate::profile::Stores {
        self.setup.profile.stores.expect("checked before the run")
    }

    pub(super) fn store(&mut self, block: u32) {
        let storing = self.storing[block as usize];
        // Each unit of data goes to one peer after the other: all get the same share.
        let limit = Rate(storing.limit.0 / u64::from(storing.left));
        for place in storing.places() {
            let path = self.path(self.port(block, place).lane);
            self.start_flow(path, storing.bytes, limit, Owner::Store, block);
        }
    }

    pub(super) fn store_ended(&mut self, block: u32) {
        let storing = &mut self.storing[block as usize];
        storing.left -= 1;
        if storing.left > 0 {
            return;
        }
        let storing = *storing;
        let now = self.now();
        let state = &mut self.blocks[block as usize];
        let since = state.at;
        state.at = now;
        state.busy += now - since;
        self.span(Track::Block(block), "store", storing.bytes, since, now);
        for place in storing.places() {
            let lane = self.port(block, place).lane;
            self.span_links(lane, storing.bytes, since);
            self.raise_stored(lane, storing.raises, now);
        }
        self.run_block(block);
    }

    fn raise_stored(&mut self, lane: u32, raises: [u32; 3], at: Time) {
        let remote = at + self.latency(lane) + self.stores().latency;
        self.raise_all(&Request::signal(lane, raises), remote, at);
    }

    fn put(&mut self, block: u32, op: &Op, bytes: u64, moved: u64) -> Step {
        let lane = self.port(block, op.port).lane;
        let raised = |flag| u32::from(op.flags & flag != 0);
        let is_ll = op.flags & flags::LOW_LATENCY != 0;
        if is_ll && self.stores_on(lane) {
            // It went as it was packed.
            return Step::Taken;
        }
        let bytes = if is_ll { ll_bytes(bytes) } else { bytes };
        // The words of an LL message are its arrival (R13), which is counted like one.
        let raises = [raised(flags::ARRIVAL | flags::LOW_LATENCY), 0, raised(flags::COMPLETION)];
        if bytes == 0 && (is_ll || raises == [0; 3]) {
            return Step::Taken;
        }
        self.lanes[lane as usize].is_ll = is_ll;
        let is_slot = op.flags & FROM_SLOT != 0;
        // Offsets into slots do not move with the round.
        let moved = if is_slot { 0 } else { moved };
        let (source, destination) = (op.value as u64 + moved, op.other + moved);
        let left = bytes as u32;
        let request =
            Request { bytes, source, destination, is_slot, left, ..Request::signal(lane, raises) };
        let is_unmoved = !is_slot || op.flags & FORWARDS != 0;
        if self.stores_on(lane) && is_unmoved && bytes > 0 {
            self.note_put(lane, bytes, raises);
            let (ports, limit) = (1 << op.port, self.setup.profile.block.copy);
            return self.begin_store(block, Storing { ports, bytes, limit, raises, left: 0 });
        }
        self.ring(block, request)
    }

    /// Rings a doorbell, or waits for room in the ring.
    fn ring(&mut self, block: u32, request: Request) -> Step {
        let lane = request.lane;
        let rank = self.blocks[block as usize].rank;
        if self.stores_on(lane) {
            self.spend(block, "signal", 0, self.setup.profile.block.step);
            self.note(&request);
            self.raise_stored(lane, request.raises, self.blocks[block as usize].at);
            return Step::Taken;
        }
        if self.is_ring_full(rank) {
            self.proxies[rank as usize].waiters.push(block);
            self.blocks[block as usize].op -= 1;
            return Step::Suspended;
        }
        self.spend(block, "ring", request.bytes, self.setup.profile.block.doorbell);
        self.note(&request);
        let at = self.blocks[block as usize].at;
        self.proxies[rank as usize].rung += 1;
        let id = self.new_request(Request { rank, since: at, ..request });
        self.push(at + self.doorbell_latency(), Event::Rung, id, 0);
        Step::Taken
    }

    fn note(&mut self, request: &Request) {
        match request.raises[Signal::Credit as usize] {
            0 => self.note_put(request.lane, request.bytes, request.raises),
            credits if self.setup.notes => {
                let notes = (0..credits).map(|_| Note::Credit { lane: request.lane });
                self.notes.extend(notes);
            }
            _ => {}
        }
    }

    fn note_put(&mut self, lane: u32, bytes: u64, raises: [u32; 3]) {
        if self.setup.notes {
            let is_ll = self.lanes[lane as usize].is_ll;
            let (arrival, completion) = (raises[0] > 0 && !is_ll, raises[2] > 0);
            self.notes.push(Note::Put { lane, bytes, arrival, completion });
        }
    }
}
