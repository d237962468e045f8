//! The world: blocks, engines, lanes and links, and the loop over their events.
//!
//! * `block`: walks a block's ops
//! * `proxy`: engines that a CPU thread drives: the proxy, and the CPU-driven path
//! * `copy`: what they drive: copy engines within a node, adapters between nodes
//! * `device`: the device engine
//! * `state`: lanes and requests
//!
//! A block runs ahead of the clock until it has to wait: its ops only cause events that lie later,
//! and no signal ever falls, so what it found satisfied stays so.

mod block;
mod copy;
mod device;
mod error;
mod proxy;
mod state;

pub use error::ModelError;

use crate::fold::fold;
use crate::machine::{Machine, MachineError, Path};
use crate::profile::Profile;
use crate::program::{Code, Lane, Programs};
use crate::queue::Queue;
use crate::report::{Busy, Note, Outcome};
use crate::share::{GENERATION_MASK, Shares};
use crate::time::{Rate, Time};
use crate::trace::{Span, Track};
use block::BlockState;
use state::{LaneState, Request};
use std::sync::atomic::{AtomicU64, Ordering};

/// Engines that move data between two GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Engine {
    /// A CPU that waits for events and issues copies and launches.
    CpuDriven,
    /// A CPU thread that polls the doorbell ring.
    Proxy,
    /// A device that GPU threads command.
    Device,
    /// The GPU threads themselves on every lane within a node, also where the library has its
    /// proxy; the proxy between nodes.
    Stores,
}

impl Engine {
    /// All of them, with the names that commands take.
    pub const ALL: [(&'static str, Self); 4] = [
        ("cpu-driven", Self::CpuDriven),
        ("proxy", Self::Proxy),
        ("device", Self::Device),
        ("stores", Self::Stores),
    ];

    /// The name that commands take.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, engine)| *engine == self).expect("every engine is listed").0
    }
}

/// Parameters of a run besides its programs.
#[derive(Clone, Copy)]
pub struct Setup<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// Its constants.
    pub profile: &'a Profile,
    /// The engine.
    pub engine: Engine,
    /// Proxies rested before the run, as after a pause between launches; else they poll already, as
    /// while launches follow one another.
    pub rested: bool,
    /// Keep spans for a trace, at most this many.
    pub spans_max: usize,
    /// Keep the sequence of puts and signals.
    pub notes: bool,
    /// Play one of several equivalent nodes for all of them (not with notes or spans).
    pub folds: bool,
    /// Ops and events of the run, at most: a plan with absurd rounds ends in an error.
    pub steps_max: u64,
    /// Bounds the ops of all runs that share it; each run is refused or started as a whole.
    pub ops: Option<&'a OpsBudget>,
}

/// How many ops several runs may play together.
#[derive(Debug)]
pub struct OpsBudget {
    most: u64,
    taken: AtomicU64,
}

impl OpsBudget {
    /// At most so many.
    pub const fn new(most: u64) -> Self {
        Self { most, taken: AtomicU64::new(0) }
    }

    fn take(&self, wanted: u64) -> Result<(), ModelError> {
        // Relaxed: a count, which orders nothing.
        let taken = self.taken.fetch_add(wanted, Ordering::Relaxed);
        match taken.saturating_add(wanted) <= self.most {
            true => Ok(()),
            false => Err(ModelError::TooManyOps { wanted, taken, most: self.most }),
        }
    }
}

/// About an hour of computing.
const STEPS_MAX: u64 = 1 << 34;

impl<'a> Setup<'a> {
    /// Without trace and notes.
    pub fn new(machine: &'a Machine, profile: &'a Profile, engine: Engine) -> Self {
        Self {
            machine,
            profile,
            engine,
            rested: false,
            spans_max: 0,
            notes: false,
            folds: true,
            steps_max: STEPS_MAX,
            ops: None,
        }
    }
}

impl Setup<'_> {
    /// The links that this setup's engine takes from one GPU to another.
    ///
    /// # Errors
    /// None today.
    pub fn path(&self, from: u32, to: u32) -> Result<Path, MachineError> {
        self.path_into(from, to, self.machine.node_of(to))
    }

    /// The same, with another node in place of the one of `to`.
    fn path_into(&self, from: u32, to: u32, arrival: usize) -> Result<Path, MachineError> {
        self.machine.path_into(from, to, self.engine == Engine::Device, arrival)
    }
}

/// Signals of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    Arrival = 0,
    Credit = 1,
    Completion = 2,
}

const SIGNALS: [(&str, Signal); 3] =
    [("arrival", Signal::Arrival), ("credit", Signal::Credit), ("completion", Signal::Completion)];

#[derive(Clone, Copy)]
enum Event {
    /// A block goes on.
    Run = 0,
    /// A descriptor is visible to its engine.
    Rung,
    /// The proxy is free for another batch.
    Free,
    /// A transfer reaches its copy engine or adapter.
    Submitted,
    /// A copy engine is set up: the flow starts.
    Copy,
    /// The adapter has fetched a message.
    Message,
    /// A flow may have ended (its generation in the low bits).
    FlowEnd,
    /// A signal becomes visible.
    Raise,
    /// A block begins to store.
    Store,
    /// The decoder is done with a request.
    Decoded,
    /// A sub-request reaches the link unit, or the write unit.
    AtLink,
    AtWrite,
    /// The peer's device engine has all of a request.
    Acknowledged,
}

const EVENTS: [Event; 13] = [
    Event::Run,
    Event::Rung,
    Event::Free,
    Event::Submitted,
    Event::Copy,
    Event::Message,
    Event::FlowEnd,
    Event::Raise,
    Event::Store,
    Event::Decoded,
    Event::AtLink,
    Event::AtWrite,
    Event::Acknowledged,
];

/// Receives the end of a flow.
#[derive(Clone, Copy)]
enum Owner {
    Copy = 0,
    Message,
    Store,
    Fetch,
    Link,
    Write,
}

const OWNERS: [Owner; 6] =
    [Owner::Copy, Owner::Message, Owner::Store, Owner::Fetch, Owner::Link, Owner::Write];

pub(crate) struct World<'a> {
    setup: Setup<'a>,
    queue: Queue,
    shares: Shares,
    code: Code,
    blocks: Vec<BlockState>,
    storing: Vec<block::Storing>,
    lanes: Vec<LaneState>,
    requests: Vec<Request>,
    free_requests: Vec<u32>,
    proxies: Vec<proxy::ProxyState>,
    copies: Vec<copy::CopyState>,
    /// The transfers of one batch; kept for its memory.
    transfers: Vec<u32>,
    devices: Vec<device::DeviceState>,
    subs: Vec<device::Sub>,
    free_subs: Vec<u32>,
    running: usize,
    /// Ops that blocks have run.
    ops: u64,
    busy: Busy,
    spans: Vec<Span>,
    notes: Vec<Note>,
    end: Time,
}

/// Plays the programs to their end.
///
/// # Errors
/// Programs that make no sense, do not fit the machine, or wait for ever; an engine without
/// constants.
pub fn simulate(setup: Setup<'_>, programs: &impl Programs) -> Result<Outcome, ModelError> {
    let (ranks, gpus) = (programs.rank_count(), setup.machine.gpu_count());
    if ranks as usize > gpus {
        return Err(ModelError::TooFewGpus { ranks, machine: setup.machine.name(), gpus });
    }
    let code = Code::load(programs)?;
    // Notes and traces are of every rank.
    let is_folded = setup.folds && !setup.notes && setup.spans_max == 0;
    let code = if is_folded { fold(code, setup.machine) } else { code };
    if let Some(budget) = setup.ops {
        budget.take(code.ops_to_play())?;
    }
    let mut world = World::new(setup, code)?;
    world.run();
    world.finish()
}

impl<'a> World<'a> {
    fn new(setup: Setup<'a>, code: Code) -> Result<Self, ModelError> {
        let missing = |section, what| ModelError::NoSection {
            profile: setup.profile.name.clone(),
            section,
            what,
        };
        if setup.engine == Engine::Stores && setup.profile.stores.is_none() {
            return Err(missing("stores", "the engine `stores`"));
        }
        let stores = |lane: &Lane, is_near| match setup.engine {
            Engine::Stores => is_near,
            Engine::Proxy => is_near && lane.stores,
            Engine::CpuDriven | Engine::Device => false,
        };
        let mut block_of = vec![0; code.ports.len()];
        for (number, block) in (0..).zip(&code.blocks) {
            block_of[block.ports as usize..][..block.port_count as usize].fill(number);
        }
        let mut lanes = Vec::with_capacity(code.lanes.len());
        for (lane, ends) in code.lanes.iter().zip(&code.ends) {
            let is_near = setup.machine.is_near(lane.from, lane.to);
            if !is_near && setup.profile.adapter.is_none() {
                return Err(missing("adapter", "a plan between nodes"));
            }
            setup.path(lane.from, lane.to)?;
            let (sender, receiver) =
                (block_of[ends.send as usize], block_of[ends.receive as usize]);
            let stores = stores(lane, is_near);
            if stores && setup.profile.stores.is_none() {
                return Err(missing("stores", "a lane of stores"));
            }
            let mut state = LaneState::new(lane, sender, receiver, is_near);
            state.stores = stores;
            lanes.push(state);
        }
        let ranks = code.blocks_of.len();
        let blocks: Vec<_> = BlockState::all(&code, setup.profile.block);
        let copies = (0..ranks).map(|_| copy::CopyState::new(setup.profile)).collect();
        let devices = match setup.engine {
            Engine::Device => (0..ranks).map(|_| device::DeviceState::default()).collect(),
            _ => Vec::new(),
        };
        Ok(Self {
            setup,
            queue: Queue::default(),
            shares: Shares::new(setup.machine.link_rates()),
            running: blocks.len(),
            ops: 0,
            blocks,
            storing: Vec::new(),
            lanes,
            requests: Vec::new(),
            free_requests: Vec::new(),
            proxies: (0..ranks).map(|_| proxy::ProxyState::default()).collect(),
            copies,
            transfers: Vec::new(),
            devices,
            subs: Vec::new(),
            free_subs: Vec::new(),
            busy: Busy::new(ranks),
            code,
            spans: Vec::new(),
            notes: Vec::new(),
            end: Time::ZERO,
        })
    }

    fn run(&mut self) {
        for block in 0..self.blocks.len() as u32 {
            self.push(Time::ZERO, Event::Run, block, 0);
        }
        loop {
            while let Some(event) = self.queue.pop() {
                self.handle(event);
            }
            if self.is_overdue() {
                break;
            }
            if self.shares.is_dirty() {
                let now = self.now();
                for deadline in self.shares.update_rates(now) {
                    let event = encode(Event::FlowEnd, deadline.flow, deadline.generation);
                    self.queue.push(deadline.at.0, event);
                }
            } else if !self.queue.advance() {
                break;
            }
        }
    }

    fn is_overdue(&self) -> bool {
        self.ops + self.queue.pushed() > self.setup.steps_max
    }

    fn handle(&mut self, event: u64) {
        let (a, b) = ((event >> 24) as u32, event as u32 & GENERATION_MASK);
        match EVENTS[(event >> 56) as usize] {
            Event::Run => self.run_block(a),
            Event::Rung => self.rung(a),
            Event::Free => self.proxy_free(a),
            Event::Submitted => self.submitted(a),
            Event::Copy => self.copy_ready(a),
            Event::Message => self.message_ready(a),
            Event::FlowEnd => {
                if let Some(owner) = self.shares.end(a, b) {
                    self.flow_ended(OWNERS[(owner >> 56) as usize], owner as u32);
                }
            }
            Event::Raise => self.raise(a, SIGNALS[(b & 3) as usize].1, b >> 2),
            Event::Store => self.store(a),
            Event::Decoded => self.decoded(a),
            Event::AtLink => self.at_link(a),
            Event::AtWrite => self.at_write(a),
            Event::Acknowledged => self.acknowledged(a),
        }
    }

    fn flow_ended(&mut self, owner: Owner, of: u32) {
        match owner {
            Owner::Copy => self.copy_ended(of),
            Owner::Message => self.message_ended(of),
            Owner::Store => self.store_ended(of),
            Owner::Fetch => self.fetch_ended(of),
            Owner::Link => self.link_ended(of),
            Owner::Write => self.write_ended(of),
        }
    }

    fn now(&self) -> Time {
        Time(self.queue.now())
    }

    fn push(&mut self, at: Time, event: Event, a: u32, b: u32) {
        self.queue.push(at.0, encode(event, a, b));
    }

    fn start_flow(&mut self, path: Path, bytes: u64, limit: Rate, owner: Owner, of: u32) {
        let now = self.now();
        let owner = (owner as u64) << 56 | u64::from(of);
        self.shares.start(now, path, bytes, limit, owner);
    }

    /// All signals of a request, at the times at which they are visible at either end.
    fn raise_all(&mut self, request: &Request, remote: Time, local: Time) {
        for (_, signal) in SIGNALS {
            let at = if signal == Signal::Completion { local } else { remote };
            self.raise_at(at, request.lane, signal, request.raises[signal as usize]);
        }
    }

    fn raise_at(&mut self, at: Time, lane: u32, signal: Signal, count: u32) {
        if count > 0 {
            self.push(at, Event::Raise, lane, count << 2 | signal as u32);
        }
    }

    fn raise(&mut self, lane: u32, signal: Signal, count: u32) {
        let Some((value, waiter)) = self.lanes[lane as usize].raise(signal, count) else {
            self.ops = self.setup.steps_max;
            return;
        };
        if let Some(block) = waiter {
            self.run_block(block);
        }
        if self.setup.notes && !self.lanes[lane as usize].is_ll {
            self.notes.push(Note::Signal {
                lane,
                signal: SIGNALS[signal as usize].0,
                value: value.into(),
            });
        }
    }

    fn span(&mut self, track: Track, name: &'static str, bytes: u64, start: Time, end: Time) {
        if self.spans.len() < self.setup.spans_max && end > start {
            self.spans.push(Span { track, name, bytes, start, end });
        }
    }

    /// Spans of a lane's flow on every link of its path.
    fn span_links(&mut self, lane: u32, bytes: u64, start: Time) {
        if self.setup.spans_max > 0 {
            self.span_path(self.path(lane), bytes, start);
        }
    }

    fn span_path(&mut self, path: Path, bytes: u64, start: Time) {
        if self.setup.spans_max > 0 {
            let now = self.now();
            for &link in path.links() {
                self.span(Track::Link(link), "transfer", bytes, start, now);
            }
        }
    }

    fn finish(mut self) -> Result<Outcome, ModelError> {
        if self.is_overdue() {
            return Err(ModelError::TooLong { steps: self.setup.steps_max, at: self.now() });
        }
        if self.running > 0 {
            return Err(self.stuck());
        }
        let links = self.setup.machine.link_rates().count() as u32;
        let arrival = |node| self.code.arrival(node);
        let played = |link| self.setup.machine.link_in_place_of(link, arrival);
        let link_bytes = |link| self.shares.link_bytes(played(link));
        let node_of = |rank: &u32| self.setup.machine.node_of(*rank);
        let ranks = 0..self.code.blocks_of.len() as u32;
        let ranks_played = ranks.filter(|rank| arrival(node_of(rank)) == node_of(rank)).count();
        self.busy.blocks = self.blocks.iter().map(|block| block.busy).collect();
        self.busy.lanes = self.lanes.iter().map(|lane| lane.busy).collect();
        Ok(Outcome {
            end: self.end,
            events: self.queue.pushed(),
            ratings: self.shares.ratings,
            ranks_played,
            link_bytes: (0..links).map(link_bytes).collect(),
            link_rates: (0..links).map(|link| self.shares.capacity(link)).collect(),
            busy: self.busy,
            copy_engines: self.setup.profile.proxy.copy_engines,
            lanes: self.code.lanes,
            spans: self.spans,
            notes: self.notes,
        })
    }

    fn stuck(&self) -> ModelError {
        let mut waits = self.lanes.iter().flat_map(|lane| {
            let (from, to) = (lane.from, lane.to);
            lane.waits().map(move |(block, signal, expected, seen)| ModelError::Stuck {
                at: self.now(),
                rank: self.blocks[block as usize].rank,
                block,
                signal,
                expected: expected.into(),
                from,
                to,
                seen: seen.into(),
                others: 0,
            })
        });
        let mut first = waits.next().expect("a block that has not ended waits for a signal");
        let count = waits.count();
        if let ModelError::Stuck { others, .. } = &mut first {
            *others = count;
        }
        first
    }
}

fn encode(event: Event, a: u32, b: u32) -> u64 {
    (event as u64) << 56 | u64::from(a) << 24 | u64::from(b & GENERATION_MASK)
}
