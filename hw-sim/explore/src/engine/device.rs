//! Device engines: the model that virtual hardware has of them, with rings and data in the weak
//! memory, and the library's code that claims channels, fills their tables and reads their records.
//!
//! Each rank has an engine of its own. Its decoder and its fetch unit take turns apart. What a
//! write unit writes is written by the engine of the rank whose memory it is: data in any order,
//! the count behind it (R9), and no more is promised.

use hwsim_machine::description::Description;
use hwsim_machine::engine::{EngineMemory, EngineModel, identity, make_bar};
use hwsim_ptx::memory::Strength;
use hwsim_ptx::weak::{AgentId, Place, WeakMemory};
use ringdove::engine::device::{Candidate, Channel, Need, Registers, claim};
use ringdove::id::{LaneId, Rank as RankId, RouteId};
use ringdove_kernels::bar;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{ANY_BYTES, Engine, HostMutant, Manner, Route, strength};
use crate::rank::Rank;

/// The machine that has the engines, beside them.
const MACHINE: &str = "one-gpu";
/// Entries of each table.
const ENTRIES: u64 = 512;
/// The largest rings have two to this power slots.
const RING_LOG2_MAX: u32 = 6;

/// What device engines are like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Sources are read in pieces of so many bytes.
    pub sub_request_bytes: u32,
    /// Requests of a channel that are under way.
    pub in_flight_max: u32,
    /// Requests that a lane holds.
    pub lane_depth: u32,
}

impl Shape {
    /// Draws one.
    pub fn draw(random: &mut fastrand::Rng) -> Self {
        Self {
            sub_request_bytes: [64, 128, 4096][random.usize(..3)],
            in_flight_max: [1, 2, 64][random.usize(..3)],
            lane_depth: [64, 128][random.usize(..2)],
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sub_request_bytes, in_flight_max, lane_depth } = self;
        write!(
            f,
            ", device engines: pieces of {sub_request_bytes} bytes, {in_flight_max} requests under \
             way, {lane_depth} of a lane"
        )
    }
}

/// All engines of a run.
struct Devices {
    memory: Rc<WeakMemory>,
    model: RefCell<EngineModel>,
    /// Of each rank's engine.
    agents: Vec<AgentId>,
    rings: Vec<u64>,
    manner: Manner,
    began: Instant,
    /// Holds the files that are their BARs.
    _folder: tempfile::TempDir,
}

/// The memory, as the engine of one rank reaches it.
struct Reach<'a> {
    devices: &'a Devices,
    rank: usize,
}

impl Reach<'_> {
    /// The agent that writes to an address: that of the engine whose rank's memory it is. What the
    /// engine that sends has seen comes before.
    fn writer(&self, address: u64) -> AgentId {
        let Devices { memory, agents, .. } = self.devices;
        let name = memory.name_of(address).map(|(name, _)| name).unwrap_or_default();
        let rank = name.rsplit_once("of rank ").and_then(|(_, rank)| rank.parse().ok());
        let owner = rank.unwrap_or(self.rank);
        if owner != self.rank {
            memory.hand_over(agents[self.rank], agents[owner]);
        }
        agents[owner]
    }

    fn agent(&self) -> AgentId {
        self.devices.agents[self.rank]
    }
}

const HELD: &str = "the engine has asked";

impl EngineMemory for Reach<'_> {
    fn holds(&self, address: u64, length: u64) -> bool {
        let Some((name, offset)) = self.devices.memory.name_of(address) else { return false };
        let Some(last) = address.checked_add(length.saturating_sub(1)) else { return false };
        let end = self.devices.memory.name_of(last);
        end.is_some_and(|it| it == (name, offset + (last - address)))
    }

    fn copy(&self, target: u64, source: u64, length: u64) {
        let memory = &self.devices.memory;
        let mut data = vec![0; length as usize];
        memory.read(self.agent(), source, 8, Strength::WEAK, &mut data).expect(HELD);
        let how = match self.devices.manner.whole_words {
            true => strength(Ordering::Relaxed),
            false => Strength::WEAK,
        };
        memory.write(self.writer(target), target, 8, how, &data).expect(HELD);
    }

    fn write_count(&self, address: u64, count: u64) {
        let order = match self.devices.manner.mutant {
            Some(HostMutant::Signal) => Ordering::Relaxed,
            _ => Ordering::Release,
        };
        let writer = self.writer(address);
        let bytes = count.to_le_bytes();
        self.devices.memory.write(writer, address, 8, strength(order), &bytes).expect(HELD);
    }

    fn raise(&self, address: u64) {
        let one = 1_u32.to_le_bytes();
        let release = strength(Ordering::Release);
        self.devices.memory.write(self.agent(), address, 4, release, &one).expect(HELD);
    }

    fn slot(&self, slot: u64) -> [u64; 2] {
        let at = self.devices.rings[self.rank] + 16 * slot;
        [0, 1].map(|word| {
            let is_weak = self.devices.manner.mutant.is_some_and(|it| it.weakens(word));
            let order = if is_weak { Ordering::Relaxed } else { Ordering::Acquire };
            let (mut bytes, place) = ([0; 8], at + 8 * word as u64);
            let read =
                self.devices.memory.read(self.agent(), place, 8, strength(order), &mut bytes);
            read.expect("the ring was allocated");
            u64::from_le_bytes(bytes)
        })
    }
}

/// A channel of a device engine.
pub struct DeviceEngine {
    devices: Rc<Devices>,
    rank: usize,
    abort: u64,
    channel: Channel,
    taken: u64,
    steps: u64,
}

impl DeviceEngine {
    /// Its agent.
    pub fn agent(&self) -> AgentId {
        self.devices.agents[self.rank]
    }

    fn step(&mut self, work: fn(&mut EngineModel, usize, &dyn EngineMemory, Instant) -> bool) {
        self.steps += 1;
        let now = self.devices.began + Duration::from_micros(self.steps);
        let reach = Reach { devices: &self.devices, rank: self.rank };
        work(&mut self.devices.model.borrow_mut(), self.rank, &reach, now);
    }

    /// The decoder's turn. A host that sees the abort word halts the channel, as the watch does.
    pub fn look(&mut self) -> usize {
        let mut word = [0; 4];
        let relaxed = strength(Ordering::Relaxed);
        let read = self.devices.memory.read(self.agent(), self.abort, 4, relaxed, &mut word);
        read.expect("the word was allocated");
        if self.devices.manner.watches_abort && word != [0; 4] {
            self.channel.halt();
        }
        self.step(EngineModel::look);
        let taken = self.channel.status().position;
        let count = taken - std::mem::replace(&mut self.taken, taken);
        count as usize
    }

    /// The fetch unit's turn.
    pub fn fetch(&mut self) {
        self.step(EngineModel::fetch);
    }

    /// Has the fetch unit work?
    pub fn is_busy(&self) -> bool {
        self.devices.model.borrow().is_busy(self.rank)
    }

    /// Its error record, as the library reads it.
    pub fn failure(&self) -> Option<String> {
        self.channel.error(RankId(self.rank as u32)).map(|error| error.to_string())
    }
}

/// The engines of all ranks, with these routes of each.
///
/// # Errors
///
/// What the library or the model says against it.
pub fn device_engines(
    memory: &Rc<WeakMemory>,
    ranks: &[Rank],
    routes: &[Vec<Route>],
    (shape, manner, faults): (&Shape, Manner, &str),
) -> Result<Vec<Engine>, String> {
    let count = ranks.len();
    let machine = machine(count, shape)?;
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut model = EngineModel::new(&machine, faults).map_err(|error| error.to_string())?;
    let mut channels = Vec::new();
    for (number, engine) in machine.engines.iter().enumerate() {
        let resource = folder.path().join(&engine.name);
        let made = make_bar(&resource, &identity(engine, 0, number));
        made.map_err(|error| error.to_string())?;
        let bar = File::options().read(true).write(true).open(&resource);
        let candidate = Candidate { name: engine.name.clone(), resource };
        let need =
            Need { peers: count as u64, lanes: 1, signals: 1, windows: 1, ..Need::default() };
        let channel = claim(&[candidate], &need).map_err(|error| error.to_string())?;
        let served = model.serve(number, 0, bar.map_err(|error| error.to_string())?);
        served.map_err(|error| error.to_string())?;
        channel.reset(Duration::ZERO).map_err(|error| error.to_string())?;
        channels.push(channel);
    }
    fill_tables(&channels, routes).map_err(|error| error.to_string())?;
    let devices = Rc::new(Devices {
        memory: Rc::clone(memory),
        model: RefCell::new(model),
        agents: ranks.iter().map(|_| memory.agent(Place::Outside)).collect(),
        rings: ranks.iter().map(|rank| rank.communicator.ring_slots).collect(),
        manner,
        began: Instant::now(),
        _folder: folder,
    });
    let mut engines = Vec::new();
    for (channel, rank) in channels.into_iter().zip(ranks) {
        let mut engine = DeviceEngine {
            devices: Rc::clone(&devices),
            rank: rank.number as usize,
            abort: rank.communicator.abort,
            channel,
            taken: 0,
            steps: 0,
        };
        engine.run(rank)?;
        engines.push(Engine::Device(Box::new(engine)));
    }
    Ok(engines)
}

impl DeviceEngine {
    fn run(&mut self, rank: &Rank) -> Result<(), String> {
        let registers = Registers {
            ring_log2: rank.communicator.ring_log2,
            tail_address: rank.communicator.ring_tail,
            abort_address: rank.communicator.abort,
            rank: RankId(rank.number),
        };
        // It does not run before its turn, and nobody else takes turns while the host waits.
        let early = self.channel.run(&registers, Duration::ZERO);
        self.step(EngineModel::look);
        let status = self.channel.status();
        if early.is_ok() || status.state != bar::State::Running as u64 {
            return Err(format!("{}: {early:?}, {status:?}", self.channel.describe()));
        }
        match self.failure() {
            None => Ok(()),
            Some(failure) => Err(failure),
        }
    }
}

fn machine(engines: usize, shape: &Shape) -> Result<Description, String> {
    let plain = Description::builtin(MACHINE).map_err(|error| error.to_string())?;
    let Shape { sub_request_bytes, in_flight_max, lane_depth } = shape;
    let mut text = plain.source().to_owned();
    for number in 0..engines {
        let _ = write!(
            text,
            "\n[[engines]]\nname = \"engine{number}\"\nunder = \"cpu0\"\nbus_id = \
             \"0000:4{number}:00.0\"\npcie = {{ generation = 3, lanes = 16 }}\ngb_per_s = 12.5\n\
             channels = 1\nring_log2_max = {RING_LOG2_MAX}\npeers = {ENTRIES}\nlanes = \
             {ENTRIES}\nsignals = {ENTRIES}\nwindows = {ENTRIES}\nroutes = {ENTRIES}\n\
             lane_depth = {lane_depth}\nsub_request_bytes = {sub_request_bytes}\n\
             in_flight_max = {in_flight_max}\n"
        );
    }
    Description::parse(&text, "explore").map_err(|error| error.to_string())
}

/// Enters peers, lanes, routes, and what they need at their far ends.
fn fill_tables(channels: &[Channel], routes: &[Vec<Route>]) -> ringdove::error::Result<()> {
    let mut windows = vec![0; channels.len()];
    let mut signals = vec![HashMap::new(); channels.len()];
    for (rank, channel) in (0..).zip(channels) {
        for (peer, other) in (0..).zip(channels).filter(|(peer, _)| *peer != rank) {
            channel.enter_peer(RankId(peer), &other.address())?;
        }
        let mut lanes = Vec::new();
        for (number, route) in (0..).zip(&routes[rank as usize]) {
            let Route { peer, lane, .. } = *route;
            if !lanes.contains(&lane) {
                lanes.push(lane);
                let next = signals[peer].len() as u64;
                let arrival = *signals[peer].entry((rank, route.arrival)).or_insert(next);
                if arrival == next {
                    channels[peer].enter_signal(arrival, route.arrival, RankId(rank))?;
                }
                let entry = bar::Lane {
                    peer: peer as u64,
                    arrival_signal: arrival,
                    completion_address: route.completion,
                    valid: 1,
                };
                channel.enter_lane(LaneId(lane as u32), entry)?;
            }
            let length = if route.bytes == 0 { ANY_BYTES } else { route.bytes };
            let window = windows[peer];
            windows[peer] += 1;
            channels[peer].enter_window(window, route.destination, length)?;
            let entry = bar::Route {
                lane: lane as u64,
                source_base: route.source,
                source_length: length,
                window,
                window_offset: 0,
                destination_length: length,
                reserved: 0,
                valid: 1,
            };
            channel.enter_route(RouteId(number), entry)?;
        }
    }
    Ok(())
}
