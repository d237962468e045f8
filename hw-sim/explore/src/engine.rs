//! The engine of one rank: the real consumer of its ring, and lanes that move data.
//!
//! A lane is an agent of its own, as a copy engine's stream or a queue pair is. Its writes of data
//! become visible in any order; its signals come behind them (R9), and that is all it promises.

use hwsim_ptx::memory::{Order, Scope, Strength};
use hwsim_ptx::weak::{AgentId, Place, WeakMemory};
use ringdove::id::Position;
use ringdove::ring::{Committed, Consumer, RingSize};
use ringdove::shared::{Row64, Word64};
use ringdove_kernels::descriptor::Descriptor;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use crate::rank::Rank;

/// Descriptors that a poll takes at most.
const BATCH_MAX: usize = 4;

/// Words of the weak memory, as a host thread reaches them.
#[derive(Clone)]
pub struct HostWords {
    memory: Rc<WeakMemory>,
    agent: AgentId,
    address: u64,
}

/// What an ordering of Rust is on memory that a GPU shares.
fn strength(ordering: Ordering) -> Strength {
    let order = match ordering {
        Ordering::Relaxed => Order::Relaxed,
        Ordering::Acquire => Order::Acquire,
        Ordering::Release => Order::Release,
        Ordering::AcqRel => Order::AcquireRelease,
        _ => Order::SequentiallyConsistent,
    };
    Strength { order, scope: Scope::System }
}

impl Row64 for HostWords {
    fn load(&self, index: usize, ordering: Ordering) -> u64 {
        let mut bytes = [0; 8];
        let address = self.address + 8 * index as u64;
        let read = self.memory.read(self.agent, address, 8, strength(ordering), &mut bytes);
        read.expect("the row was allocated");
        u64::from_le_bytes(bytes)
    }
}

impl Word64 for HostWords {
    fn load(&self, ordering: Ordering) -> u64 {
        Row64::load(self, 0, ordering)
    }

    fn store(&self, value: u64, ordering: Ordering) {
        let bytes = value.to_le_bytes();
        let written = self.memory.write(self.agent, self.address, 8, strength(ordering), &bytes);
        written.expect("the word was allocated");
    }
}

/// Where a route leads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Route {
    /// The lane that carries it.
    pub lane: usize,
    /// What source offsets count from.
    pub source: u64,
    /// What destination offsets count from.
    pub destination: u64,
    /// The word that an arrival raises.
    pub arrival: u64,
    /// The word that a completion raises; 0 where there is none.
    pub completion: u64,
}

/// A step of a lane.
#[derive(Clone, Copy, Debug)]
enum Work {
    Copy { from: u64, to: u64, bytes: u64 },
    Raise { address: u64, count: u64 },
}

struct Lane {
    agent: AgentId,
    work: VecDeque<Work>,
    arrivals: u64,
    completions: u64,
}

/// An engine.
pub struct Engine {
    memory: Rc<WeakMemory>,
    /// Its host thread.
    pub agent: AgentId,
    consumer: Consumer<HostWords, HostWords>,
    routes: Vec<Route>,
    lanes: Vec<Lane>,
}

impl Engine {
    /// The engine of `rank`, with these routes.
    pub fn new(memory: &Rc<WeakMemory>, rank: &Rank, routes: Vec<Route>) -> Self {
        let agent = memory.agent(Place::Outside);
        let words = |address| HostWords { memory: Rc::clone(memory), agent, address };
        let size = RingSize::new(rank.communicator.ring_log2).expect("a small ring");
        let slots = words(rank.communicator.ring_slots);
        let tail = words(rank.communicator.ring_tail);
        let count = routes.iter().map(|route| route.lane + 1).max().unwrap_or(0);
        let lane = |_| Lane {
            agent: memory.agent(Place::Outside),
            work: VecDeque::new(),
            arrivals: 0,
            completions: 0,
        };
        Self {
            memory: Rc::clone(memory),
            agent,
            consumer: Consumer::over(slots, tail, size, Position(0)),
            routes,
            lanes: (0..count).map(lane).collect(),
        }
    }

    /// How many lanes it has.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// The agent of a lane.
    pub fn lane_agent(&self, lane: usize) -> AgentId {
        self.lanes[lane].agent
    }

    /// Has this lane work?
    pub fn is_busy(&self, lane: usize) -> bool {
        !self.lanes[lane].work.is_empty()
    }

    /// Takes what is committed, and queues it on lanes. Gives how many descriptors it took.
    pub fn poll(&mut self) -> Result<usize, String> {
        let mut batch = [Committed::default(); BATCH_MAX];
        let count = self.consumer.poll(&mut batch);
        for committed in &batch[..count] {
            let position = committed.position.0;
            let descriptor = Descriptor::decode(committed.words)
                .map_err(|error| format!("descriptor {position} is malformed: {error:?}"))?;
            let route = self.routes.get(descriptor.route as usize).copied();
            let route = route
                .ok_or_else(|| format!("descriptor {position} names route {}", descriptor.route))?;
            self.queue(route, &descriptor);
        }
        Ok(count)
    }

    fn queue(&mut self, route: Route, descriptor: &Descriptor) {
        let lane = &mut self.lanes[route.lane];
        // What the engine has acquired comes before what the lane does for it.
        self.memory.hand_over(self.agent, lane.agent);
        if descriptor.length > 0 {
            lane.work.push_back(Work::Copy {
                from: route.source.wrapping_add(descriptor.source_offset),
                to: route.destination.wrapping_add(descriptor.destination_offset),
                bytes: descriptor.length.into(),
            });
        }
        if descriptor.arrival {
            lane.arrivals += 1;
            let (address, count) = (route.arrival, lane.arrivals);
            lane.work.push_back(Work::Raise { address, count });
        }
        if descriptor.completion {
            lane.completions += 1;
            let (address, count) = (route.completion, lane.completions);
            lane.work.push_back(Work::Raise { address, count });
        }
    }

    /// Does the next step of a lane.
    pub fn work(&mut self, lane: usize) -> Result<(), String> {
        let lane = &mut self.lanes[lane];
        let Some(work) = lane.work.pop_front() else { return Ok(()) };
        let outside = |_| format!("{work:?} leaves registered memory");
        match work {
            Work::Copy { from, to, bytes } => {
                let mut data = vec![0; bytes as usize];
                self.memory
                    .read(lane.agent, from, 8, Strength::WEAK, &mut data)
                    .map_err(outside)?;
                self.memory.write(lane.agent, to, 8, Strength::WEAK, &data).map_err(outside)
            }
            Work::Raise { address, count } => {
                // Posted behind the data, on the same path: R9.
                let release = strength(Ordering::Release);
                let bytes = count.to_le_bytes();
                self.memory.write(lane.agent, address, 8, release, &bytes).map_err(outside)
            }
        }
    }
}
