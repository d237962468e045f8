//! The real proxy, and lanes that move data.
//!
//! A lane is an agent of its own, as a copy engine's stream or a queue pair is. Its writes of data
//! become visible in any order; its signals come behind them (R9), and that is all it promises.

use hwsim_ptx::memory::Strength;
use hwsim_ptx::weak::{AgentId, Place, WeakMemory};
use ringdove::engine::proxy::AttachmentKey;
use ringdove::engine::{
    Alarm, Attachment, AttachmentHandle, AttachmentParts, EngineSettings, Lane as ProxyLane, Proxy,
    RegionDescriptor, Route as ProxyRoute,
};
use ringdove::error::Error;
use ringdove::id::{LaneId, Position, Rank as RankId, RouteId};
use ringdove::ring::{Consumer, RingSize};
use ringdove::shared::{Row64, Word64};
use ringdove::transport::SignalWrite;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::transport::{Carried, Links, Queues, Submitted, UNANSWERED};
use super::{ANY_BYTES, HostMutant, Manner, Route, strength};
use crate::rank::Rank;

/// Pieces in which a lane moves data, where it moves it piece by piece.
const PIECE_BYTES: u64 = 64;

/// So often a message is sent once more that nobody has acknowledged.
pub const RETRIES: u32 = 7;

/// Words of the weak memory, as a host thread reaches them.
#[derive(Clone)]
pub struct HostWords {
    memory: Rc<WeakMemory>,
    agent: AgentId,
    address: u64,
    mutant: Option<HostMutant>,
}

impl Row64 for HostWords {
    fn load(&self, index: usize, ordering: Ordering) -> u64 {
        let mut bytes = [0; 8];
        let address = self.address + 8 * index as u64;
        let is_weak = self.mutant.is_some_and(|mutant| mutant.weakens(index));
        let ordering = if is_weak { Ordering::Relaxed } else { ordering };
        let read = self.memory.read(self.agent, address, 8, strength(ordering), &mut bytes);
        read.expect("the row was allocated");
        u64::from_le_bytes(bytes)
    }

    fn store(&self, index: usize, value: u64, ordering: Ordering) {
        let word = Self { address: self.address + 8 * index as u64, ..self.clone() };
        Word64::store(&word, value, ordering);
    }
}

impl Word64 for HostWords {
    fn load(&self, ordering: Ordering) -> u64 {
        Row64::load(self, 0, ordering)
    }

    fn store(&self, value: u64, ordering: Ordering) {
        let bytes = value.to_le_bytes();
        let is_weak = self.mutant == Some(HostMutant::Tail);
        let ordering = if is_weak { Ordering::Relaxed } else { ordering };
        let written = self.memory.write(self.agent, self.address, 8, strength(ordering), &bytes);
        written.expect("the word was allocated");
    }
}

/// A step of a lane.
#[derive(Clone, Copy, Debug)]
enum Work {
    Copy {
        from: u64,
        to: u64,
        bytes: u64,
    },
    /// `is_own`: the word is this rank's.
    Raise {
        address: u64,
        count: u64,
        is_own: bool,
    },
}

struct Lane {
    agent: AgentId,
    /// What is left of the transfer that it is at.
    work: VecDeque<Work>,
    /// Which transfer that is.
    position: Position,
    /// How often its next message has been sent, and was lost.
    lost: u32,
}

/// Where the proxy says that something failed.
#[derive(Default)]
struct Noticed {
    error: Mutex<Option<Error>>,
    is_raised: AtomicBool,
}

impl Alarm for Noticed {
    fn raise(&self, error: Error) {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    fn is_raised(&self) -> bool {
        // Relaxed: one thread runs all agents.
        self.is_raised.load(Ordering::Relaxed)
    }
}

/// A proxy with its lanes.
pub struct ProxyEngine {
    memory: Rc<WeakMemory>,
    /// Its host thread.
    pub agent: AgentId,
    proxy: Proxy<HostWords, HostWords>,
    key: AttachmentKey,
    /// Set once the rank has left: what was not done then.
    left: Option<Option<String>>,
    handle: AttachmentHandle,
    alarm: Arc<Noticed>,
    queues: Arc<Mutex<Queues>>,
    lanes: Vec<Lane>,
    manner: Manner,
    abort: u64,
    steps: u64,
    /// What is in its ring may be refused.
    pub may_fail: bool,
}

impl ProxyEngine {
    /// The engine of `rank`, with these routes.
    pub fn new(memory: &Rc<WeakMemory>, rank: &Rank, routes: &[Route], manner: Manner) -> Self {
        let lanes = routes.iter().map(|route| route.lane + 1).max().unwrap_or(0);
        let engine = Self::with_lanes(memory, rank, lanes, manner);
        register(&engine.handle, routes);
        engine
    }

    /// The same with so many lanes, of which it is told by its handle.
    pub fn with_lanes(memory: &Rc<WeakMemory>, rank: &Rank, count: usize, manner: Manner) -> Self {
        let agent = memory.agent(Place::Outside);
        let words = |address| HostWords {
            memory: Rc::clone(memory),
            agent,
            address,
            mutant: manner.mutant,
        };
        let size = RingSize::new(rank.communicator.ring_log2).expect("a small ring");
        let slots = words(rank.communicator.ring_slots);
        let tail = words(rank.communicator.ring_tail);
        let lane = |_| Lane {
            agent: memory.agent(Place::Outside),
            work: VecDeque::new(),
            position: Position(0),
            lost: 0,
        };
        let lanes: Vec<_> = (0..count).map(lane).collect();
        let settings = EngineSettings {
            batch_max: manner.batch,
            coalesce_bytes_max: manner.coalesce_bytes,
            ..EngineSettings::default()
        };
        let queues = Arc::new(Mutex::new(Queues::new(count, manner.room)));
        let alarm = Arc::<Noticed>::default();
        let parts = AttachmentParts {
            rank: RankId(rank.number),
            consumer: Consumer::over(slots, tail, size, Position(0)),
            transport: Box::new(Submitted(Arc::clone(&queues))),
            alarm: Arc::clone(&alarm) as Arc<dyn Alarm>,
            // The host of the rank looks at the record.
            watch: None,
            launches_ended: None,
        };
        let (attachment, handle) = Attachment::new(parts, &settings);
        let mut proxy = Proxy::new(&settings);
        let key = proxy.attach(Box::new(attachment));
        let (memory, abort) = (Rc::clone(memory), rank.communicator.abort);
        Self {
            memory,
            agent,
            proxy,
            key,
            left: None,
            handle,
            alarm,
            queues,
            lanes,
            manner,
            abort,
            steps: 0,
            may_fail: false,
        }
    }

    /// Has its lanes go by an adapter. It may fail from then on.
    pub fn go_by(&mut self, links: Box<dyn Links>) {
        self.queues().links = Some(links);
        self.may_fail = true;
    }

    /// How the control plane reaches it.
    pub fn handle(&self) -> &AttachmentHandle {
        &self.handle
    }

    /// The rank leaves its proxy, once what was rung has ended.
    pub fn leave(&mut self) {
        self.proxy.begin_detach(self.key, Duration::MAX);
    }

    /// What it left undone, once it has left.
    pub fn left(&self) -> Option<&Option<String>> {
        self.left.as_ref()
    }

    /// How many lanes it has.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// The agent of a lane.
    pub fn lane_agent(&self, lane: usize) -> AgentId {
        self.lanes[lane].agent
    }

    fn queues(&self) -> std::sync::MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has this lane work?
    pub fn is_busy(&self, lane: usize) -> bool {
        !self.lanes[lane].work.is_empty() || self.queues().is_busy(lane)
    }

    /// One step of the proxy. Gives how many descriptors it took.
    pub fn poll(&mut self) -> Result<usize, String> {
        if self.manner.watches_abort {
            let mut word = [0; 4];
            let relaxed = strength(Ordering::Relaxed);
            let read = self.memory.read(self.agent, self.abort, 4, relaxed, &mut word);
            read.expect("the word was allocated");
            // Relaxed: one thread runs all agents.
            self.alarm.is_raised.store(word != [0; 4], Ordering::Relaxed);
        }
        self.steps += 1;
        let now = Duration::from_nanos(self.steps);
        let progress = self.proxy.step(now);
        if let Some(detached) = self.proxy.take_detached(now) {
            self.left = Some(detached.unfinished);
        }
        let taken = std::mem::take(&mut self.queues().touched);
        for lane in taken {
            // What the engine has acquired comes before what the lane does for it.
            self.memory.hand_over(self.agent, self.lanes[lane].agent);
        }
        match self.handle.failure() {
            Some(error) if !self.may_fail => Err(format!("an engine fails: {error}")),
            _ => Ok(progress.descriptors as usize),
        }
    }

    /// Takes up the next transfer of a lane.
    fn take_up(&mut self, lane: usize) {
        let Some(transfer) = self.queues().take(lane) else { return };
        self.lanes[lane].position = transfer.position;
        let work = &mut self.lanes[lane].work;
        let (from, to) = (transfer.source, transfer.destination);
        match self.manner.splits {
            true => {
                let mut pieces: Vec<_> =
                    (0..transfer.length).step_by(PIECE_BYTES as usize).collect();
                // Any order: the memory draws it.
                while !pieces.is_empty() {
                    let at = pieces.swap_remove(self.memory.choose(pieces.len()));
                    let bytes = PIECE_BYTES.min(transfer.length - at);
                    work.push_back(Work::Copy { from: from + at, to: to + at, bytes });
                }
            }
            false if transfer.length > 0 => {
                work.push_back(Work::Copy { from, to, bytes: transfer.length });
            }
            false => {}
        }
        for (signal, is_own) in [(transfer.arrival, false), (transfer.completion, true)] {
            let raise =
                |it: SignalWrite| Work::Raise { address: it.address, count: it.value, is_own };
            work.extend(signal.map(raise));
        }
    }

    /// Gives an adapter the next message of a lane, where lanes go by one. False: it does not
    /// reach its peer.
    fn carry(&mut self, number: usize) -> Result<bool, String> {
        let lane = &mut self.lanes[number];
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let is_own = matches!(lane.work.front(), Some(Work::Raise { is_own: true, .. }));
        let Some(links) = queues.links.as_mut().filter(|_| !is_own) else { return Ok(true) };
        let why = match links.carry(number)? {
            Carried::Accepted => {
                lane.lost = 0;
                return Ok(true);
            }
            Carried::Lost if lane.lost < RETRIES => {
                lane.lost += 1;
                return Ok(false);
            }
            Carried::OnTheWay => return Ok(false),
            Carried::Lost => UNANSWERED.to_owned(),
            Carried::Failed(why) => why,
        };
        lane.work.clear();
        queues.fail(number, lane.position, why);
        Ok(false)
    }

    /// Does the next step of a lane.
    pub fn work(&mut self, number: usize) -> Result<(), String> {
        if self.lanes[number].work.is_empty() {
            self.take_up(number);
        }
        if !self.lanes[number].work.is_empty() && !self.carry(number)? {
            return Ok(());
        }
        let lane = &mut self.lanes[number];
        if let Some(work) = lane.work.pop_front() {
            let outside = |_| format!("{work:?} leaves registered memory");
            match work {
                Work::Copy { from, to, bytes } => {
                    let how = match self.manner.whole_words {
                        true => strength(Ordering::Relaxed),
                        false => Strength::WEAK,
                    };
                    if let Some(unit) = self.manner.reads_late {
                        for at in (0..bytes).step_by(unit as usize) {
                            let (from, to, bytes) = (from + at, to + at, unit.min(bytes - at));
                            let copied = self.memory.copy_late(lane.agent, from, to, bytes, how);
                            copied.map_err(outside)?;
                        }
                        return self.end_work(number);
                    }
                    let mut data = vec![0; bytes as usize];
                    self.memory
                        .read(lane.agent, from, 8, Strength::WEAK, &mut data)
                        .map_err(outside)?;
                    self.memory.write(lane.agent, to, 8, how, &data).map_err(outside)?;
                }
                Work::Raise { address, count, .. } => {
                    // Posted behind the data, on the same path: R9.
                    let release = match self.manner.mutant {
                        Some(HostMutant::Signal) => strength(Ordering::Relaxed),
                        _ => strength(Ordering::Release),
                    };
                    let bytes = count.to_le_bytes();
                    self.memory.write(lane.agent, address, 8, release, &bytes).map_err(outside)?;
                }
            }
        }
        self.end_work(number)
    }

    /// Behind a step of a lane.
    fn end_work(&mut self, number: usize) -> Result<(), String> {
        if self.lanes[number].work.is_empty() {
            self.queues().end(number);
        }
        Ok(())
    }
}

/// Tells the proxy of lanes and routes. Routes of one lane have the same signals.
fn register(handle: &AttachmentHandle, routes: &[Route]) {
    let word = |address: u64| (address != 0).then_some(address);
    let mut lanes = Vec::new();
    for (number, route) in (0..).zip(routes) {
        let lane = LaneId(route.lane as u32);
        if !lanes.contains(&lane) {
            lanes.push(lane);
            let (arrival, completion) = (word(route.arrival), word(route.completion));
            let added = handle.add_lane(lane, ProxyLane { peer: RankId(0), arrival, completion });
            added.expect("a new lane");
        }
        let length_bytes = if route.bytes == 0 { ANY_BYTES } else { route.bytes };
        let region = |base| RegionDescriptor { base, length_bytes };
        let (source, destination) = (region(route.source), region(route.destination));
        let added = handle
            .add_route(RouteId(number), ProxyRoute { lane, source, destination, pull: false });
        added.expect("a new route");
    }
}
