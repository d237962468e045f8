//! What two ranks do, and what must come of it.

use hwsim_ptx::weak::{Drawn, Options as MemoryOptions, WeakMemory};
use hwsim_ptx::{Kernel, Module};
use ringdove_kernels::op::{Op, OpCode, flags};
use ringdove_kernels::port::Port;
use ringdove_kernels::ptx;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use crate::engine::{Engine, Route};
use crate::rank::{LAUNCH, Program, Rank, buffer, encode, op, slot};
use crate::world::{Stats, World};

/// Turns of a run. The longest that ended well needed a third of them.
const TURNS_MAX: u64 = 60_000;
/// Slots of a lane.
const SLOTS: u32 = 2;

/// What is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scenario {
    /// Blocks of one rank share a small ring; messages go by the engine, credits come back by it.
    Ring,
    /// Messages and credits on lanes of stores, without an engine.
    Stores,
    /// Low-latency messages both ways, on lanes of stores.
    LowLatency,
    /// One of these, drawn.
    Random,
}

impl Scenario {
    /// All, with the names by which they are called.
    pub const ALL: [(&'static str, Self); 4] = [
        ("ring", Self::Ring),
        ("stores", Self::Stores),
        ("low-latency", Self::LowLatency),
        ("random", Self::Random),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, it)| *it == self).map_or("?", |(name, _)| name)
    }

    /// By name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(it, _)| *it == name).map(|(_, scenario)| *scenario)
    }
}

/// What a seed draws before a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The seed.
    pub seed: u64,
    /// Never [`Scenario::Random`].
    pub scenario: Scenario,
    /// Blocks, each with a lane of its own.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Messages of each lane.
    pub messages: u32,
    /// Bytes of a message.
    pub bytes: u32,
    /// Slots of the ring, as a power of two.
    pub ring_log2: u32,
    /// Ports of a block that it does not use, before the one that it does.
    pub spare_ports: u32,
    /// Loads in a hundred that return the newest value without a draw.
    pub plain_percent: u8,
    /// Loads that race may mix values.
    pub tears: bool,
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} blocks of {} threads, {} messages of {} bytes, ring of {}, \
             {} spare ports, {} % plain, tearing {}",
            self.scenario.name(),
            self.blocks,
            self.threads,
            self.messages,
            self.bytes,
            1 << self.ring_log2,
            self.spare_ports,
            self.plain_percent,
            if self.tears { "on" } else { "off" },
        )
    }
}

impl Options {
    /// Draws them.
    pub fn draw(scenario: Scenario, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed ^ 0x0971_0e5e);
        let one_of = [Scenario::Ring, Scenario::Stores, Scenario::LowLatency];
        let scenario = match scenario {
            Scenario::Random => one_of[random.usize(..one_of.len())],
            scenario => scenario,
        };
        // Short messages mostly, because they are quick; long ones give all warps a part.
        let words_max = [16, 160, 700][random.usize(..3)];
        Self {
            seed,
            scenario,
            blocks: random.u32(1..=3),
            threads: [32, 64, 96][random.usize(..3)],
            messages: random.u32(2..=5),
            bytes: 4 * random.u32(1..=words_max),
            ring_log2: random.u32(0..=2),
            spare_ports: random.u32(0..=7),
            plain_percent: [20, 50, 80][random.usize(..3)],
            tears: random.bool(),
        }
    }
}

/// A run that went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What was drawn.
    pub options: Options,
    /// What is wrong.
    pub reason: String,
    /// What the agents did last.
    pub events: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seed, name) = (self.options.seed, self.options.scenario.name());
        writeln!(f, "seed {seed} fails: {}", self.reason)?;
        writeln!(f, "drawn: {}", self.options)?;
        writeln!(f, "last events of each agent:\n{}", self.events)?;
        write!(f, "replay: hwsim explore --seed {seed} --runs 1 {name}")
    }
}

/// The executor's kernel, from its committed text or a changed one.
///
/// # Errors
///
/// The text is no PTX, or lacks the kernel.
pub fn load(text: &str) -> Result<Arc<Kernel>, String> {
    let module = Module::load(text).map_err(|error| error.to_string())?;
    let linked = module.link(&HashMap::new()).map_err(|error| error.to_string())?;
    let kernel = linked.kernel(ptx::EXECUTOR_ENTRY);
    kernel.ok_or_else(|| format!("no kernel {}", ptx::EXECUTOR_ENTRY))
}

/// The executor's committed text.
pub fn committed() -> &'static str {
    ptx::EXECUTOR
}

/// One run of the committed executor.
///
/// # Errors
///
/// Whatever is not as the protocol promises.
pub fn run(kernel: &Arc<Kernel>, options: Options) -> Result<Stats, Box<Failure>> {
    let drawn = Drawn::new(options.seed, options.plain_percent);
    let memory_options = MemoryOptions { tears: options.tears };
    let memory = Rc::new(WeakMemory::new(Box::new(drawn), memory_options));
    let mut setup = Setup::new(&memory, options);
    match options.scenario {
        Scenario::LowLatency => setup.exchange(),
        scenario => setup.send_and_receive(scenario == Scenario::Stores),
    }
    setup.start(kernel);
    let outcome = setup.world.run(TURNS_MAX).and_then(|stats| setup.check().map(|()| stats));
    outcome
        .map_err(|reason| Box::new(Failure { options, reason, events: setup.world.last_events() }))
}

struct Setup {
    memory: Rc<WeakMemory>,
    options: Options,
    world: World,
    ranks: [Rank; 2],
    routes: [Vec<Route>; 2],
    programs: [Vec<Program>; 2],
    inputs: [u64; 2],
    outputs: [u64; 2],
}

impl Setup {
    fn new(memory: &Rc<WeakMemory>, options: Options) -> Self {
        let world = World::new(memory, options.seed.rotate_left(32) ^ 0x7075_7473);
        let ranks = [0, 1].map(|number| Rank::new(memory, number, options.ring_log2));
        let bytes = u64::from(options.blocks * options.messages * options.bytes);
        let inputs = [0, 1].map(|rank: usize| ranks[rank].allocate("input", bytes));
        let outputs = [0, 1].map(|rank: usize| ranks[rank].allocate("output", bytes));
        let memory = Rc::clone(memory);
        let (routes, programs) = Default::default();
        Self { memory, options, world, ranks, routes, programs, inputs, outputs }
    }

    /// Where a message's data lies in the buffers of its block.
    fn offset(&self, block: u32, message: u32) -> u64 {
        u64::from((block * self.options.messages + message) * self.options.bytes)
    }

    /// Rank 0 sends, rank 1 receives and returns credits.
    fn send_and_receive(&mut self, by_stores: bool) {
        let Options { blocks, messages, bytes, spare_ports, .. } = self.options;
        // Loaded by other warps than the first if it stands far behind in the list.
        let port = spare_ports as u16;
        let slot_bytes = bytes.next_multiple_of(16);
        let slots_bytes = u64::from(SLOTS * slot_bytes);
        for block in 0..blocks {
            let [sender, receiver] = &mut self.ranks;
            let there = receiver.allocate(&format!("slots {block}"), slots_bytes);
            let here = sender.allocate(&format!("slots {block}"), slots_bytes);
            let arrivals = receiver.allocate(&format!("arrivals {block}"), 8);
            let credits = sender.allocate(&format!("credits {block}"), 8);
            let completion = sender.allocate(&format!("completions {block}"), 8);
            let shape =
                Port { slot_bytes: bytes, slot_mask: SLOTS - 1, route: block, ..Port::default() };
            let send = sender.add_port(Port {
                signal: credits,
                completion,
                slots: if by_stores { there } else { here },
                peer: 1,
                peer_signal: if by_stores { arrivals } else { 0 },
                ..shape
            });
            let receive = receiver.add_port(Port {
                signal: arrivals,
                slots: there,
                peer: 0,
                peer_signal: if by_stores { credits } else { 0 },
                ..shape
            });
            let lane = block as usize;
            let route = |destination, arrival| Route { lane, source: 0, destination, arrival };
            self.routes[0].push(route(there, arrivals));
            self.routes[1].push(route(0, credits));
            let (mut sends, mut receives) = (Vec::new(), Vec::new());
            for message in 0..messages {
                let at = self.offset(block, message);
                let credit = i64::from(message) + 1 - i64::from(SLOTS);
                sends.push(Op { value: credit, ..op(OpCode::WaitSignal, port) });
                sends.push(copy(slot(port, message), buffer(0, at), bytes));
                sends.push(Op {
                    length: bytes,
                    flags: flags::ARRIVAL,
                    destination: slot(port, message),
                    a: slot(port, message),
                    ..op(OpCode::Put, port)
                });
                let arrival = i64::from(message) + 1;
                receives.push(Op { value: arrival, ..op(OpCode::WaitSignal, port) });
                receives.push(copy(buffer(1, at), slot(port, message), bytes));
                receives.push(op(OpCode::Credit, port));
            }
            sends.push(advance(port, messages));
            receives.push(advance(port, messages));
            for (rank, used, ops) in [(0, send, sends), (1, receive, receives)] {
                let spare = (0..spare_ports).map(|_| self.ranks[rank].add_port(Port::default()));
                let ports = spare.chain([used]).collect::<Vec<_>>();
                self.programs[rank].push(Program { ports, ops });
            }
        }
    }

    /// Both ranks send each message to the other one, and sum.
    fn exchange(&mut self) {
        let Options { blocks, messages, bytes, .. } = self.options;
        let slot_bytes = 2 * bytes.next_multiple_of(8);
        for block in 0..blocks {
            let slots = [0, 1].map(|rank: usize| {
                let name = format!("slots {block}");
                self.ranks[rank].allocate(&name, u64::from(SLOTS * slot_bytes))
            });
            for rank in 0..2 {
                let own = self.ranks[rank].allocate("own slots", u64::from(SLOTS * slot_bytes));
                let signal = self.ranks[rank].allocate("unused signals", 16);
                let shape = Port {
                    slot_bytes,
                    slot_mask: SLOTS - 1,
                    peer: 1 - rank as u32,
                    signal,
                    ..Port::default()
                };
                let receive = self.ranks[rank].add_port(Port { slots: slots[rank], ..shape });
                let send = self.ranks[rank].add_port(Port {
                    slots: own,
                    completion: signal + 8,
                    peer_slots: slots[1 - rank],
                    ..shape
                });
                let mut ops = Vec::new();
                for message in 0..messages {
                    let at = self.offset(block, message);
                    ops.push(Op {
                        length: bytes,
                        value: 0b10,
                        destination: slot(1, message),
                        a: buffer(0, at),
                        ..op(OpCode::Pack, 0)
                    });
                    ops.push(Op {
                        length: bytes,
                        flags: flags::LOW_LATENCY,
                        destination: slot(1, message),
                        a: slot(1, message),
                        ..op(OpCode::Put, 1)
                    });
                    ops.push(Op {
                        length: bytes,
                        flags: flags::FINISH,
                        value: 1,
                        before: 1,
                        destination: buffer(1, at),
                        a: buffer(0, at),
                        b: slot(0, message),
                        ..op(OpCode::Collect, 0)
                    });
                }
                ops.extend([advance(0, messages), advance(1, messages)]);
                self.programs[rank].push(Program { ports: vec![receive, send], ops });
            }
        }
    }

    /// The number at a place of a rank's input.
    fn word(rank: usize, index: u64) -> u32 {
        // Never zero, and no two alike within a rank.
        (index as u32 + 1) * 8 + rank as u32
    }

    fn start(&mut self, kernel: &Arc<Kernel>) {
        let Options { blocks, threads, messages, bytes, .. } = self.options;
        let words = u64::from(blocks * messages * bytes / 4);
        for rank in 0..2 {
            let data: Vec<u32> = (0..words).map(|index| Self::word(rank, index)).collect();
            self.ranks[rank].set(self.inputs[rank], bytemuck::cast_slice(&data));
            self.ranks[rank].publish();
            let routes = std::mem::take(&mut self.routes[rank]);
            self.world.engines.push(Engine::new(&self.memory, &self.ranks[rank], routes));
            let plan = encode(threads, &self.programs[rank]);
            let buffers = [self.inputs[rank], self.outputs[rank], 0, 0];
            let params = self.ranks[rank].launch(&plan, buffers);
            self.world.launch(rank as u32, kernel, (blocks, threads), params);
        }
    }

    /// Every number is where it belongs, and no wait failed.
    fn check(&self) -> Result<(), String> {
        for rank in &self.ranks {
            let record = rank.record();
            if record.state != 0 {
                return Err(format!("rank {} failed: {record:?}", rank.number));
            }
            let mut ended = [0; 8];
            let place = rank.communicator.launches_ended;
            self.memory.get(place, &mut ended).expect("it was allocated");
            if u64::from_le_bytes(ended) != LAUNCH + 1 {
                return Err(format!("rank {} does not say that its launch ended", rank.number));
            }
        }
        let Options { blocks, messages, bytes, scenario, .. } = self.options;
        let words = u64::from(blocks * messages * bytes / 4);
        for rank in 0..2 {
            if rank == 0 && scenario != Scenario::LowLatency {
                continue;
            }
            let mut found = vec![0; 4 * words as usize];
            self.memory.get(self.outputs[rank], &mut found).expect("it was allocated");
            for (index, bytes) in (0..words).zip(found.chunks_exact(4)) {
                let found = u32::from_le_bytes(bytes.try_into().expect("four bytes"));
                let sent = Self::word(1 - rank, index);
                let expected = match scenario {
                    Scenario::LowLatency => sent + Self::word(rank, index),
                    _ => sent,
                };
                if found != expected {
                    return Err(format!(
                        "rank {rank} has {found:#x} at word {index} of its output, where \
                         {expected:#x} belongs"
                    ));
                }
            }
        }
        Ok(())
    }
}

fn copy(
    destination: ringdove_kernels::op::Operand,
    a: ringdove_kernels::op::Operand,
    length: u32,
) -> Op {
    Op { length, destination, a, ..op(OpCode::Copy, 0) }
}

fn advance(port: u16, messages: u32) -> Op {
    Op { value: messages.into(), ..op(OpCode::Advance, port) }
}
