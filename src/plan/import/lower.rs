//! Steps as ops: which lanes messages take, which thread blocks become one block, and where chunks
//! lie.
//!
//! A chunk moves in pieces; each round of the plan handles one piece of every chunk, as the
//! formats' own interpreters do, and a segment of one round the rest. A slot holds a piece of each
//! chunk of a message. Messages of a lane are counted by the order of all steps.

use super::order::{self, Taken, Way};
use super::{
    GROUP_MAX, ImportError, ImportedPlan, PROGRAM_BYTES_MAX, Place, SCRATCH_BYTES_MAX, Space, Step,
};
use crate::plan::encode::encoded_bytes;
use crate::plan::{
    BlockProgram, Buffer, CollectiveRequest, GRANULE_BYTES, Lane, LaneEnd, LaneKind, Limits,
    Modifiers, Op, Operand, Plan, PortIndex, Range, RankProgram, Segment, Side, SlotShape,
};
use ringdove_kernels::op::BLOCK_PORTS_MAX;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Threads of each block, as of the library's own plans for data of some size.
const THREADS: u32 = 256;
/// Rounds of a plan that is proved in the place of a long one.
const ROUNDS_PROVED: u64 = 3;
/// Ops of all rounds and ranks up to which the whole is proved.
const OPS_PROVED: u64 = 1 << 17;

/// Lanes of one kind.
#[derive(Clone, Copy)]
struct Lanes {
    kind: LaneKind,
    slots: SlotShape,
    /// Lanes between two ranks, at most.
    pair: u32,
    /// The same from a rank to the next one of the ring.
    next: u32,
    /// Blocks of a rank, at most.
    blocks: u32,
}

impl Lanes {
    /// Those that a machine has, the best first.
    fn of(limits: &Limits) -> Vec<Self> {
        let by_engine = Self {
            kind: LaneKind::Slots,
            slots: SlotShape { bytes: limits.pair_slot_bytes, count: limits.slot_count },
            pair: 1,
            next: limits.blocks_max,
            blocks: limits.blocks_max,
        };
        let stores = limits.stores && limits.store_blocks > 0 && limits.ranks_per_node == 0;
        let blocks = limits.store_blocks_max();
        let by_stores = Self {
            kind: LaneKind::Stores,
            slots: Limits::store_slots(),
            pair: blocks,
            next: blocks,
            blocks,
        };
        match stores {
            true => vec![by_stores, by_engine],
            false => vec![by_engine],
        }
    }
}

/// The pieces of a chunk: `rounds` of so many bytes, and the rest.
#[derive(Clone, Copy)]
struct Cut {
    chunk: u64,
    piece: u64,
    rounds: u64,
    rest: u64,
}

impl Cut {
    /// For messages of up to `group` chunks.
    fn of(plan: &ImportedPlan, request: &CollectiveRequest, slot_bytes: u32, group: u32) -> Self {
        let chunk = request.bytes * request.parts() / u64::from(plan.chunks);
        let room = u64::from(slot_bytes / group);
        let piece = if chunk <= room { chunk } else { room - room % GRANULE_BYTES };
        Self { chunk, piece, rounds: chunk / piece.max(1), rest: chunk % piece.max(1) }
    }
}

/// Bytes of a chunk with which a plan is proved in the place of `plan`, whose chunks have so many;
/// `None`: it is short itself.
pub(super) fn short(plan: &Plan, chunk: u64) -> Option<u64> {
    let blocks = || plan.ranks.iter().flat_map(|rank| &rank.blocks);
    let segments = || blocks().flat_map(|block| &block.segments);
    // The first segment of each block has the same rounds; of the rest there is one round.
    let first = segments().next()?;
    let (rounds, piece) = (u64::from(first.rounds), first.round_stride);
    let ops: usize = segments().map(|segment| segment.ops.len()).sum();
    if rounds <= ROUNDS_PROVED || rounds * ops as u64 <= OPS_PROVED {
        return None;
    }
    Some(ROUNDS_PROVED * piece + (chunk - rounds * piece))
}

/// The plan for a request, on the first kind of lanes that it fits.
pub(super) fn lower(
    plan: &ImportedPlan,
    request: &CollectiveRequest,
    limits: &Limits,
) -> Result<Plan, ImportError> {
    let mut refused = None;
    for lanes in Lanes::of(limits) {
        match on(plan, request, limits, &lanes) {
            Ok(plan) => return Ok(plan),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    Err(refused.unwrap_or_else(|| ImportError::whole("no lanes")))
}

/// The same on lanes of one kind: with as many between two ranks as leave each block's ports few
/// enough.
fn on(
    plan: &ImportedPlan,
    request: &CollectiveRequest,
    limits: &Limits,
    lanes: &Lanes,
) -> Result<Plan, ImportError> {
    let mut lanes = *lanes;
    loop {
        let made = Lowering { plan, request, limits, lanes }.made()?;
        let ports = |rank: &RankProgram| rank.blocks.iter().map(|it| it.ports.len()).max();
        let ports = made.ranks.iter().filter_map(ports).max().unwrap_or(0);
        if ports <= BLOCK_PORTS_MAX {
            return Ok(made);
        }
        let most = lanes.pair.max(lanes.next);
        if most == 1 {
            return Err(ImportError::whole(format!(
                "thread blocks that wait for one another use {ports} lanes; a block here has at \
                 most {BLOCK_PORTS_MAX}"
            )));
        }
        lanes.pair = lanes.pair.min(most / 2).max(1);
        lanes.next = lanes.next.min(most / 2).max(1);
    }
}

struct Lowering<'a> {
    plan: &'a ImportedPlan,
    request: &'a CollectiveRequest,
    limits: &'a Limits,
    lanes: Lanes,
}

impl Lowering<'_> {
    fn made(&self) -> Result<Plan, ImportError> {
        let steps = self.plan.programs.iter().flatten().flat_map(|block| &block.steps);
        let group = steps.map(|step| step.count).max().unwrap_or(1);
        let cut = Cut::of(self.plan, self.request, self.lanes.slots.bytes, group);
        if cut.piece == 0 {
            return Err(ImportError::whole("slots too small for a message of several chunks"));
        }
        let Ok(rounds) = u32::try_from(cut.rounds) else {
            return Err(ImportError::whole(format!("{} rounds are too many", cut.rounds)));
        };
        let way = |from, to, channel| self.way(from, to, channel);
        let order = order::order(&self.plan.programs, self.lanes.slots.count, way)?;
        let mut ranks = Vec::new();
        for rank in 0..self.plan.rank_count {
            let own: Vec<_> = order.iter().filter(|taken| taken.rank == rank as usize).collect();
            let blocks = self.blocks_of(rank, &own);
            let mut made = Rank::new(self, rank, cut, blocks.clone()).program(&own, rounds)?;
            if cut.rest > 0 {
                let rest = Cut { piece: cut.rest, ..cut };
                let start = cut.rounds * cut.piece;
                let rest = Rank { start, ..Rank::new(self, rank, rest, blocks) };
                let rest = rest.program(&own, 1)?;
                for (block, rest) in made.blocks.iter_mut().zip(rest.blocks) {
                    block.segments.extend(rest.segments);
                }
            }
            ranks.push(made);
        }
        let plan = Plan { ranks, thread_count: THREADS, slots: self.lanes.slots };
        let longest = plan.ranks.iter().map(encoded_bytes).max().unwrap_or(0);
        if longest > PROGRAM_BYTES_MAX {
            let reason = format!("a program of {longest} bytes; at most {PROGRAM_BYTES_MAX}");
            return Err(ImportError::whole(reason));
        }
        let scratch = (0..).zip(&plan.ranks).map(|(rank, _)| plan.scratch_bytes(rank)).max();
        let scratch = scratch.unwrap_or(0);
        if scratch > SCRATCH_BYTES_MAX {
            let most = SCRATCH_BYTES_MAX;
            let reason = format!("{scratch} bytes of scratch memory for this size; at most {most}");
            return Err(ImportError::whole(reason));
        }
        Ok(plan)
    }

    /// The lane of a channel: channels share lanes where there are not enough.
    fn way(&self, from: u32, to: u32, channel: u32) -> Way {
        let place = |rank| self.limits.order.map_or(rank, |order| order.place_of(rank));
        let is_next = self.limits.ranks_per_node == 0
            && (place(from) + 1) % self.plan.rank_count == place(to);
        let count = if is_next { self.lanes.next } else { self.lanes.pair };
        Way { from, to, index: (channel % count.max(1)) as u16 }
    }

    /// The block of each thread block of a rank: one for all that wait for one another or share a
    /// lane, and no more than there may be.
    fn blocks_of(&self, rank: u32, own: &[&Taken<'_>]) -> Vec<usize> {
        let count = self.plan.programs[rank as usize].len();
        let mut groups = Groups((0..count).collect());
        let mut users: HashMap<(Way, Side), usize> = HashMap::new();
        for taken in own {
            for &(other, _) in &taken.step.after {
                groups.join(taken.thread_block, other);
            }
            let received = taken.received.map(|(way, ..)| (way, Side::Receive));
            let sent = taken.sent.map(|(way, _)| (way, Side::Send));
            for end in [received, sent].into_iter().flatten() {
                let first = *users.entry(end).or_insert(taken.thread_block);
                groups.join(taken.thread_block, first);
            }
        }
        let mut numbers = BTreeMap::new();
        let mut blocks = Vec::new();
        for thread_block in 0..count {
            let next = numbers.len();
            let number = *numbers.entry(groups.first(thread_block)).or_insert(next);
            blocks.push(number % self.lanes.blocks.max(1) as usize);
        }
        blocks
    }
}

/// Which thread blocks belong together: each names one of its group, in the end the first.
struct Groups(Vec<usize>);

impl Groups {
    fn first(&mut self, mut one: usize) -> usize {
        while self.0[one] != one {
            self.0[one] = self.0[self.0[one]];
            one = self.0[one];
        }
        one
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.first(one), self.first(other));
        self.0[one.max(other)] = one.min(other);
    }
}

/// The programs of one rank.
struct Rank<'a> {
    lowering: &'a Lowering<'a>,
    cut: Cut,
    /// Bytes of each chunk before the first piece.
    start: u64,
    /// Chunks at which input and output begin, where the plan takes them to be one memory.
    offsets: (u64, u64),
    /// They are one memory to the plan, and not to the request.
    virtually: bool,
    /// Chunks of input and output.
    sizes: (u64, u64),
    /// Chunks of the one memory that the rank has written.
    written: HashSet<u64>,
    /// The block of each thread block.
    block_of: Vec<usize>,
    blocks: Vec<BlockProgram>,
    ops: Vec<Vec<Op>>,
    /// Messages of each port.
    counts: Vec<Vec<u32>>,
}

impl<'a> Rank<'a> {
    fn new(lowering: &'a Lowering<'a>, rank: u32, cut: Cut, block_of: Vec<usize>) -> Self {
        let Lowering { plan, request, .. } = lowering;
        let count = block_of.iter().max().map_or(1, |last| last + 1);
        let (input, output) = request.in_place_offsets(rank);
        Self {
            lowering,
            cut,
            start: 0,
            offsets: (input / cut.chunk, output / cut.chunk),
            virtually: plan.in_place && !plan.out_of_place && !request.in_place_on(rank),
            sizes: (request.input_bytes(rank) / cut.chunk, request.output_bytes(rank) / cut.chunk),
            written: HashSet::new(),
            block_of,
            blocks: vec![BlockProgram::default(); count],
            ops: vec![Vec::new(); count],
            counts: vec![Vec::new(); count],
        }
    }

    fn program(mut self, own: &[&Taken<'_>], rounds: u32) -> Result<RankProgram, ImportError> {
        for taken in own {
            self.step(taken)?;
        }
        self.keep();
        let mut blocks = self.blocks;
        for ((block, mut ops), counts) in blocks.iter_mut().zip(self.ops).zip(self.counts) {
            for (port, signals) in (0..).zip(counts) {
                ops.push(Op::Advance { port, signals, completions: 0 });
            }
            if !ops.is_empty() {
                // Pieces are whole: nothing is clipped.
                let limit = (u64::from(rounds) + u64::from(GROUP_MAX)) * self.cut.piece;
                let round_stride = self.cut.piece;
                block.segments.push(Segment { rounds, round_stride, limit, ops });
            }
        }
        Ok(RankProgram { blocks })
    }

    /// The range of so many pieces.
    fn range(&self, count: u32) -> Range {
        Range { extent: 0, length: count * self.cut.piece as u32 }
    }

    /// One step: what it waits for, the value of each chunk, where it goes.
    fn step(&mut self, taken: &Taken<'_>) -> Result<(), ImportError> {
        let step = taken.step;
        let block = self.block_of[taken.thread_block];
        let received = taken.received.map(|(way, message, freed)| {
            let port = self.port(block, way, Side::Receive);
            self.ops[block].push(Op::WaitSignal { port, value: i64::from(message) + 1 });
            (port, message, freed)
        });
        let sent = taken.sent.map(|(way, message)| {
            let port = self.port(block, way, Side::Send);
            let slots = i64::from(self.lowering.lanes.slots.count);
            self.ops[block].push(Op::WaitSignal { port, value: i64::from(message) + 1 - slots });
            (port, message)
        });
        for number in 0..step.count {
            let offset = u64::from(number) * self.cut.piece;
            let slot = |port, message| Operand::Slot { port, message, offset };
            let arrived = received.map(|(port, message, _)| slot(port, message));
            let goes = sent.map(|(port, message)| slot(port, message));
            self.chunk(block, step, number, [arrived, goes])?;
        }
        if let Some((port, message)) = sent {
            let slot = Operand::Slot { port, message, offset: 0 };
            let (arrival, completion, range) = (true, false, self.range(step.count));
            let (destination, source) = (slot, slot);
            self.ops[block].push(Op::Put { port, destination, source, range, arrival, completion });
        }
        if let Some((port, _, freed)) = received {
            self.ops[block].extend((0..freed).map(|_| Op::Credit { port, messages: 1 }));
        }
        Ok(())
    }

    /// One chunk of a step: from where it arrived, and to where it goes.
    fn chunk(
        &mut self,
        block: usize,
        step: &Step,
        number: u32,
        [arrived, goes]: [Option<Operand>; 2],
    ) -> Result<(), ImportError> {
        let at = |place: Place| Place { chunk: place.chunk + number, ..place };
        let mut terms: Vec<Operand> = arrived.into_iter().collect();
        for &place in &step.terms {
            terms.push(self.place(at(place), false, step.line)?);
        }
        let store = step.store.map(|place| self.place(at(place), true, step.line)).transpose()?;
        let (range, modifiers) = (self.range(1), Modifiers::NONE);
        let mut places = store.into_iter().chain(goes);
        let Some(destination) = places.next() else { return Ok(()) };
        self.ops[block].push(match terms[..] {
            [source] => Op::Copy { destination, source, range, modifiers },
            [a, b] => Op::Reduce { destination, a, b, range, modifiers },
            _ => {
                let reason = format!("a step of {} terms", terms.len());
                return Err(ImportError::new(step.line, reason));
            }
        });
        if let Some(second) = places.next() {
            // What arrived is still there, and what was combined is stored.
            let source = if terms.len() == 1 { terms[0] } else { destination };
            self.ops[block].push(Op::Copy { destination: second, source, range, modifiers });
        }
        Ok(())
    }

    /// The port of a lane's end. One more message goes there.
    fn port(&mut self, block: usize, way: Way, side: Side) -> PortIndex {
        let Way { from, to, index } = way;
        let lane = Lane { from, to, index, kind: self.lowering.lanes.kind };
        let ports = &mut self.blocks[block].ports;
        let end = LaneEnd { lane, side };
        let place = ports.iter().position(|port| *port == end).unwrap_or_else(|| {
            ports.push(end);
            self.counts[block].push(0);
            ports.len() - 1
        });
        self.counts[block][place] += 1;
        place as PortIndex
    }

    /// Where a chunk lies in the first round.
    fn place(&mut self, place: Place, writes: bool, line: u32) -> Result<Operand, ImportError> {
        let chunk = u64::from(place.chunk);
        let (buffer, chunk) = match place.space {
            Space::Scratch => (Buffer::Scratch, chunk),
            Space::Input if !self.virtually => (Buffer::Input, chunk),
            Space::Output if !self.virtually => (Buffer::Output, chunk),
            Space::Input => self.of_one_memory(chunk + self.offsets.0, writes),
            Space::Output => self.of_one_memory(chunk + self.offsets.1, writes),
        };
        let chunks = match buffer {
            Buffer::Input => self.sizes.0,
            Buffer::Output => self.sizes.1,
            Buffer::Scratch => u64::MAX,
        };
        if chunk >= chunks {
            let reason = format!("chunk {chunk} of the {buffer}, which has {chunks} on this rank");
            return Err(ImportError::new(line, reason));
        }
        Ok(Operand::Buffer { buffer, offset: chunk * self.cut.chunk + self.start })
    }

    /// Where a chunk lies that the plan takes to be in the one memory of input and output, and
    /// the request does not: before it is written in the input, then in the output, and in scratch
    /// memory where the output has no such place.
    fn of_one_memory(&mut self, chunk: u64, writes: bool) -> (Buffer, u64) {
        let (input, output) = self.offsets;
        let is_written = match writes {
            true => {
                self.written.insert(chunk);
                true
            }
            false => self.written.contains(&chunk),
        };
        if !is_written && (input..input + self.sizes.0).contains(&chunk) {
            return (Buffer::Input, chunk - input);
        }
        if (output..output + self.sizes.1).contains(&chunk) {
            return (Buffer::Output, chunk - output);
        }
        (Buffer::Scratch, u64::from(self.lowering.plan.scratch_chunks) + chunk)
    }

    /// What the plan leaves where it is, and the request wants in the output: copies at the start
    /// of the first block. Nobody else writes there, and whoever reads it reads the input.
    fn keep(&mut self) {
        if !self.virtually {
            return;
        }
        let ((input, output), (has, wants)) = (self.offsets, self.sizes);
        let kept = (input.max(output)..(input + has).min(output + wants))
            .filter(|chunk| !self.written.contains(chunk));
        let offset = |chunk: u64| chunk * self.cut.chunk + self.start;
        let at = |buffer, chunk: u64| Operand::Buffer { buffer, offset: offset(chunk) };
        let copies = kept.map(|chunk| Op::Copy {
            destination: at(Buffer::Output, chunk - output),
            source: at(Buffer::Input, chunk - input),
            range: self.range(1),
            modifiers: Modifiers::NONE,
        });
        let copies: Vec<_> = copies.collect();
        self.ops[0].splice(0..0, copies);
    }
}
