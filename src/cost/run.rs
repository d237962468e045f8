//! One run of a plan in the model: blocks walk their programs, engines serve doorbells in turn,
//! links carry one message of an engine after the other, and are shared by blocks that store.
//!
//! A block walks ahead of what others do until it has to wait or stores. Times are µs, rates bytes
//! a µs. What happens first is played first, so the order in which messages come to an engine or a
//! link is that of their times; of equal times, that in which they were made.

mod passes;
mod shares;
mod stores;

use super::profile::Profile;
use super::ways::{LinkId, Ways};
use crate::plan::{Lane, LaneEnd, LaneKind, Op, Operand, Plan, PortIndex, Range, Segment, Side};
use ringdove_kernels::op::ll_bytes;
use shares::{Shares, TIME_MIN};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use stores::{Storing, Then};

/// How messages are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// A device engine drains the rings, and no proxy.
    pub by_device: bool,
    /// LL messages of a node go by stores.
    pub stores: bool,
}

/// What a run took, and who was busy how long.
#[derive(Clone, Debug)]
pub(super) struct Run {
    /// When the last block has ended, or the run was stopped. µs.
    pub end: f64,
    /// The busiest block, and how long it did something else than wait.
    pub block: f64,
    /// The busiest engine.
    pub engine: f64,
    /// By link.
    pub links: Vec<f64>,
    /// Stretches of time in which links carry messages, if somebody asked.
    pub spans: Vec<Span>,
}

/// A message on its way.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// From.
    pub from: u32,
    /// To.
    pub to: u32,
    /// The block of the sender.
    pub block: u32,
    /// When it begins and when it has arrived. µs.
    pub time: (f64, f64),
    /// Its bytes.
    pub bytes: u64,
}

/// A signal of a lane.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Signal {
    Arrival,
    Credit,
    Completion,
}

struct LaneState {
    lane: Lane,
    /// Times of each kind of signal, in the order in which they are raised.
    raised: [Vec<f64>; 3],
    /// Blocks that wait.
    waiting: Vec<usize>,
    /// When the last copy of the lane has ended.
    free: f64,
}

struct Block<'a> {
    rank: u32,
    number: u32,
    segments: &'a [Segment],
    ends: &'a [LaneEnd],
    /// The lane and end of each port.
    ports: Vec<(usize, Side)>,
    /// How far signals and completions of each port have been counted.
    positions: Vec<(i64, i64)>,
    at: f64,
    busy: f64,
    /// Segment, round, op.
    place: (usize, u32, usize),
    storing: Option<Storing>,
}

/// A doorbell that was rung.
#[derive(Clone, Copy)]
struct Request {
    lane: usize,
    rank: u32,
    block: u32,
    bytes: u64,
    raises: [u32; 3],
    low_latency: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Block(usize),
    /// A block begins to store.
    Store(usize),
    /// An engine sees the doorbell.
    Rung(usize),
    /// A copy engine, an adapter or a unit may begin.
    Begin(usize),
}

/// When, the how manieth, and what; the earliest is on top.
type Due = Reverse<(u64, u64, Event)>;

struct World<'a> {
    profile: &'a Profile,
    ways: &'a Ways,
    moved: Moved,
    blocks: Vec<Block<'a>>,
    blocks_of_rank: Vec<u32>,
    lanes: Vec<LaneState>,
    requests: Vec<Request>,
    shares: Shares<'a>,
    due: BinaryHeap<Due>,
    number: u64,
    link_free: Vec<f64>,
    engine_free: Vec<f64>,
    copies_free: Vec<Vec<f64>>,
    run: Run,
    engine_busy: Vec<f64>,
    wants_spans: bool,
}

/// What is wanted of a run.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    /// The messages of links, too.
    pub spans: bool,
    /// Not what comes after this time: there the run stops. µs.
    pub until: f64,
}

impl Asked {
    /// All of it, but no messages.
    pub const END: Self = Self { spans: false, until: f64::MAX };
}

/// Plays a plan. Ways are those of its ranks.
pub(super) fn run(plan: &Plan, profile: &Profile, ways: &Ways, moved: Moved, asked: Asked) -> Run {
    let ranks = plan.ranks.len();
    let mut lane_numbers = HashMap::new();
    let mut world = World {
        profile,
        ways,
        moved,
        blocks: Vec::new(),
        blocks_of_rank: Vec::new(),
        lanes: Vec::new(),
        requests: Vec::new(),
        shares: Shares::new(ways.link_count()),
        due: BinaryHeap::new(),
        number: 0,
        link_free: vec![0.0; ways.link_count()],
        engine_free: vec![0.0; ranks],
        copies_free: vec![vec![0.0; (profile.copy_engines as usize).max(1)]; ranks],
        run: Run {
            end: 0.0,
            block: 0.0,
            engine: 0.0,
            links: vec![0.0; ways.link_count()],
            spans: Vec::new(),
        },
        engine_busy: vec![0.0; ranks],
        wants_spans: asked.spans,
    };
    for (rank, program) in (0..).zip(&plan.ranks) {
        world.blocks_of_rank.push(program.blocks.len() as u32);
        for (number, block) in (0..).zip(&program.blocks) {
            let mut port = |lane: Lane| {
                *lane_numbers.entry(lane).or_insert_with(|| {
                    let raised = [Vec::new(), Vec::new(), Vec::new()];
                    world.lanes.push(LaneState { lane, raised, waiting: Vec::new(), free: 0.0 });
                    world.lanes.len() - 1
                })
            };
            let ports = block.ports.iter().map(|end| (port(end.lane), end.side)).collect();
            world.blocks.push(Block {
                rank,
                number,
                segments: &block.segments,
                ends: &block.ports,
                ports,
                positions: vec![(0, 0); block.ports.len()],
                at: profile.launch + f64::from(number) * profile.stagger,
                busy: 0.0,
                place: (0, 0, 0),
                storing: None,
            });
        }
    }
    for block in 0..world.blocks.len() {
        let at = world.blocks[block].at;
        world.push(at, Event::Block(block));
    }
    loop {
        let next = world.due.peek().map(|Reverse((at, _, _))| f64::from_bits(*at));
        // Of one moment, all that begins comes before rates are known.
        if next.is_none_or(|next| next > world.shares.now() + TIME_MIN) {
            let end = world.shares.next_end(|link| ways.rate(link));
            if let Some(end) = end.filter(|end| next.is_none_or(|next| *end <= next)) {
                for block in world.shares.end(end) {
                    world.stored(block, end);
                }
                continue;
            }
        }
        let Some(Reverse((at, number, event))) = world.due.pop() else { break };
        let at = f64::from_bits(at);
        if at > asked.until {
            world.run.end = world.run.end.max(at);
            break;
        }
        match event {
            Event::Block(block) => world.walk(block),
            Event::Store(block) => world.store(block),
            Event::Rung(request) => world.rung(request, at),
            Event::Begin(request) => world.begin(request, at, number),
        }
    }
    let busiest = |of: &mut dyn Iterator<Item = f64>| of.fold(0.0, f64::max);
    world.run.block = busiest(&mut world.blocks.iter().map(|block| block.busy));
    world.run.engine = busiest(&mut world.engine_busy.iter().copied());
    world.run
}

impl<'a> World<'a> {
    fn push(&mut self, at: f64, event: Event) {
        self.number += 1;
        self.push_as(at, event, self.number);
    }

    fn push_as(&mut self, at: f64, event: Event, number: u64) {
        // The bits of positive numbers are in their order.
        self.due.push(Reverse((at.max(0.0).to_bits(), number, event)));
    }

    /// A block goes on until it has to wait, stores or ends.
    fn walk(&mut self, number: usize) {
        while let Some((op, bytes)) = self.next_op(number) {
            if !self.step(number, op, bytes) {
                return;
            }
            let block = &mut self.blocks[number];
            block.place.2 += 1;
            let at = block.at;
            if block.storing.is_some() {
                self.push(at, Event::Store(number));
                return;
            }
        }
        self.run.end = self.run.end.max(self.blocks[number].at);
    }

    /// The op that a block has come to, and its bytes; `None`: it has ended.
    fn next_op(&mut self, number: usize) -> Option<(Op, u64)> {
        let block = &mut self.blocks[number];
        loop {
            let (segment, round, op) = block.place;
            let of = block.segments.get(segment)?;
            if round >= of.rounds || of.ops.is_empty() {
                block.place = (segment + 1, 0, 0);
            } else if op == of.ops.len() {
                block.place = (segment, round + 1, 0);
            } else {
                let op = of.ops[op];
                let clipped = |range: Range| of.clip(round, range);
                return Some((op, op.range().map_or(0, clipped)));
            }
        }
    }

    fn spend(&mut self, block: usize, time: f64) {
        let block = &mut self.blocks[block];
        (block.at, block.busy) = (block.at + time, block.busy + time);
    }

    /// The rate of a pass in a GPU's own memory, which its blocks share.
    fn local(&self, block: usize, rate: f64) -> f64 {
        let sharers = self.blocks_of_rank[self.blocks[block].rank as usize];
        rate.min(self.profile.memory / f64::from(sharers))
    }

    fn lane_at(&self, block: usize, port: PortIndex) -> (usize, Lane) {
        let number = self.blocks[block].ports[usize::from(port)].0;
        (number, self.lanes[number].lane)
    }

    fn is_stored(&self, lane: Lane) -> bool {
        match lane.kind {
            LaneKind::Stores => true,
            LaneKind::LowLatency => self.moved.stores && self.ways.is_near(lane.from, lane.to),
            _ => false,
        }
    }

    /// Does an op; `false`: it has to wait.
    fn step(&mut self, block: usize, op: Op, bytes: u64) -> bool {
        let profile = self.profile;
        match op {
            Op::Copy { .. } | Op::Reduce { .. } if bytes > 0 => self.pass(block, bytes),
            Op::Pack { port, .. } if bytes > 0 => {
                let stored = self.is_stored(self.lane_at(block, port).1);
                let words = ll_bytes(bytes) as f64;
                let rate = self.local(block, profile.copy);
                self.spend(block, profile.op + if stored { 0.0 } else { words / rate });
            }
            Op::Collect { first, count, message, .. } if bytes > 0 => {
                for port in first..first + count {
                    let position = self.blocks[block].positions[usize::from(port)].0;
                    let wanted = position + i64::from(message) + 1;
                    if !self.wait(block, port, Signal::Arrival, wanted) {
                        return false;
                    }
                }
                let rate = self.local(block, profile.reduce);
                self.spend(block, profile.op + f64::from(count) * bytes as f64 / rate);
            }
            Op::Put { port, source, arrival, completion, .. } => {
                let raises = [u32::from(arrival), 0, u32::from(completion)];
                self.put(block, port, (source, bytes), raises);
            }
            Op::Credit { port, messages } => {
                self.ring(block, port, 0, [0, u32::from(messages), 0]);
            }
            Op::Grant { port, .. } => self.ring(block, port, 0, [0, 1, 0]),
            Op::WaitSignal { port, value } => {
                let position = self.blocks[block].positions[usize::from(port)].0;
                let signal = match self.blocks[block].ports[usize::from(port)].1 {
                    Side::Send => Signal::Credit,
                    Side::Receive => Signal::Arrival,
                };
                return self.wait_step(block, port, signal, position + value);
            }
            Op::WaitCompletion { port, value } => {
                let position = self.blocks[block].positions[usize::from(port)].1;
                return self.wait_step(block, port, Signal::Completion, position + value);
            }
            Op::Advance { port, signals, completions } => {
                let position = &mut self.blocks[block].positions[usize::from(port)];
                position.0 += i64::from(signals);
                position.1 += i64::from(completions);
            }
            Op::Copy { .. } | Op::Reduce { .. } | Op::Pack { .. } | Op::Collect { .. } => {}
            // No plan that is proved has any: see `Model::in_switch`.
            Op::InSwitch(_) => {}
        }
        true
    }

    fn wait_step(&mut self, block: usize, port: PortIndex, signal: Signal, wanted: i64) -> bool {
        let goes_on = self.wait(block, port, signal, wanted);
        if goes_on {
            self.spend(block, self.profile.step);
        }
        goes_on
    }

    fn wait(&mut self, block: usize, port: PortIndex, signal: Signal, wanted: i64) -> bool {
        let lane = self.lane_at(block, port).0;
        if wanted <= 0 {
            return true;
        }
        match self.lanes[lane].raised[signal as usize].get(wanted as usize - 1) {
            Some(&since) => {
                self.blocks[block].at = self.blocks[block].at.max(since);
                true
            }
            None => {
                self.lanes[lane].waiting.push(block);
                false
            }
        }
    }

    fn raise(&mut self, lane: usize, signal: Signal, at: f64) {
        self.lanes[lane].raised[signal as usize].push(at);
        for block in std::mem::take(&mut self.lanes[lane].waiting) {
            let at = self.blocks[block].at;
            self.push(at, Event::Block(block));
        }
    }

    /// Takes a message over the links of its way, and gives the time at which it is over them.
    fn carry(&mut self, lane: Lane, block: u32, bytes: u64, at: f64) -> f64 {
        let way = self.ways.between(lane.from, lane.to, self.moved.by_device);
        let free = |link: &LinkId| self.link_free[link.0 as usize];
        let start = way.links.iter().map(free).fold(at, f64::max);
        let rate = |link: &LinkId| self.ways.rate(*link);
        let narrowest = way.links.iter().map(rate).fold(f64::MAX, f64::min);
        let end = start + bytes as f64 / narrowest;
        for link in &way.links {
            let time = bytes as f64 / self.ways.rate(*link);
            self.link_free[link.0 as usize] = start + time;
            self.run.links[link.0 as usize] += time;
        }
        if self.wants_spans {
            let (from, to) = (lane.from, lane.to);
            self.run.spans.push(Span { from, to, block, time: (start, end), bytes });
        }
        end
    }

    fn put(
        &mut self,
        block: usize,
        port: PortIndex,
        (source, bytes): (Operand, u64),
        raises: [u32; 3],
    ) {
        let (number, lane) = self.lane_at(block, port);
        if lane.kind == LaneKind::LowLatency {
            if bytes == 0 {
                return;
            }
            if self.is_stored(lane) {
                let words = (ll_bytes(bytes), self.profile.copy);
                self.will_store(block, 1 << port, words, Then::Arrives(number));
                return;
            }
            self.ring(block, port, ll_bytes(bytes), [1, 0, 0]);
            return;
        }
        let is_there = matches!(source, Operand::Slot { port: own, .. } if own == port);
        if lane.kind == LaneKind::Stores && !is_there && bytes > 0 {
            let data = (bytes, self.profile.copy);
            self.will_store(block, 1 << port, data, Then::Rings(port, raises));
            return;
        }
        if bytes > 0 || raises != [0; 3] {
            self.ring(block, port, bytes, raises);
        }
    }

    fn latency(&self, lane: Lane) -> f64 {
        self.ways.between(lane.from, lane.to, self.moved.by_device).latency
    }

    /// Asks an engine for a transfer or a signal; over lanes of stores the block raises it itself.
    fn ring(&mut self, block: usize, port: PortIndex, bytes: u64, raises: [u32; 3]) {
        let (number, lane) = self.lane_at(block, port);
        if lane.kind == LaneKind::Stores {
            self.spend(block, self.profile.step);
            let now = self.blocks[block].at;
            let there = now + self.latency(lane) + self.profile.store_latency;
            self.raise_all(number, raises, there, now);
            return;
        }
        self.spend(block, self.profile.doorbell);
        let Block { rank, number: of_block, at, .. } = self.blocks[block];
        let low_latency = lane.kind == LaneKind::LowLatency;
        let request = Request { lane: number, rank, block: of_block, bytes, raises, low_latency };
        self.requests.push(request);
        let seen = at + self.profile.doorbell_latency(self.moved.by_device);
        self.push(seen, Event::Rung(self.requests.len() - 1));
    }

    fn raise_all(&mut self, lane: usize, raises: [u32; 3], there: f64, here: f64) {
        for (signal, at) in
            [(Signal::Arrival, there), (Signal::Credit, there), (Signal::Completion, here)]
        {
            for _ in 0..raises[signal as usize] {
                self.raise(lane, signal, at);
            }
        }
    }

    /// An engine serves its doorbells one after the other.
    fn rung(&mut self, number: usize, now: f64) {
        let Request { lane, rank, .. } = self.requests[number];
        let Lane { from, to, .. } = self.lanes[lane].lane;
        let cost = match (self.moved.by_device, self.ways.is_near(from, to)) {
            (true, _) => self.profile.decode,
            (false, true) => self.profile.descriptor + self.profile.submit,
            (false, false) => self.profile.descriptor + self.profile.post,
        };
        let free = &mut self.engine_free[rank as usize];
        *free = free.max(now) + cost;
        let ready = *free;
        self.engine_busy[rank as usize] += cost;
        self.push(ready, Event::Begin(number));
    }

    fn begin(&mut self, number: usize, now: f64, event: u64) {
        let request = self.requests[number];
        let lane = self.lanes[request.lane].lane;
        let near = self.ways.is_near(lane.from, lane.to);
        let latency = self.latency(lane);
        let (signal_near, signal_far) = self.profile.signal_latency(self.moved.by_device);
        if request.bytes == 0 {
            let here = now + if near { signal_near } else { signal_far };
            self.raise_all(request.lane, request.raises, here + latency, here);
            return;
        }
        let mut slot = None;
        if self.lanes[request.lane].free > now {
            self.push_as(self.lanes[request.lane].free, Event::Begin(number), event);
            return;
        }
        let mut start = now;
        match (self.moved.by_device, near) {
            (true, _) => {}
            (false, true) => {
                let engines = &self.copies_free[request.rank as usize];
                let first = (0..engines.len()).min_by(|a, b| engines[*a].total_cmp(&engines[*b]));
                let first = first.expect("at least one");
                if engines[first] > now {
                    self.push_as(engines[first], Event::Begin(number), event);
                    return;
                }
                slot = Some(first);
                start += self.profile.copy_setup;
            }
            (false, false) => start += self.profile.message + self.profile.fetch,
        }
        let end = self.carry(lane, request.block, request.bytes, start);
        if let Some(slot) = slot {
            self.copies_free[request.rank as usize][slot] = end;
        }
        // An adapter fetches the next message beside this one; its links hold it up.
        self.lanes[request.lane].free = if near { end } else { now };
        let here = match near {
            true => end + signal_near,
            false => end + latency + signal_far + latency,
        };
        let there = match (near, request.low_latency) {
            (true, true) => end + latency,
            (true, false) => here + latency,
            (false, _) => end + latency + signal_far,
        };
        self.raise_all(request.lane, request.raises, there, here);
    }
}
