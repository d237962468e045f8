//! What two ranks do, and what must come of it.

mod collectives;
mod experts;
mod experts_launches;
mod experts_shape;
mod experts_verdict;
mod grants;
mod kernels;
mod lanes;
mod mesh;
mod messages;
mod options;
mod plan_shape;
mod shrink;
mod traffic;
mod user;
mod user_verdict;
mod verdict;
mod words;

use hwsim_ptx::weak::{Drawn, Options as MemoryOptions, WeakMemory};
use ringdove_kernels::launch::CallArguments;
use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::rc::Rc;

use crate::engine::{ANY_BYTES, Engine, Manner, Route, device_engines};
use crate::fault::Fault;
use crate::members;
use crate::rank::{NEVER_NS, Program, Rank, encode};
use crate::world::{Stats, World};

pub use experts_shape::Shape;
pub use kernels::Kernels;
pub use messages::Shape as GroupShape;
pub use options::{Change, Options};
pub use plan_shape::Shape as PlanShape;
pub use shrink::shrink;
pub use traffic::Traffic;

/// Turns of a run. The longest of hundreds that ended well needed 149,479, for waits of many lanes
/// that expired one after the other. Of experts, whose waits do not expire, 150 seeds of each
/// scenario needed up to 48,239.
const TURNS_MAX: u64 = 400_000;
/// The same of a run of many blocks. A seed whose waits expired one after the other did not end in
/// half of it.
const TURNS_MAX_OF_MANY: u64 = 4_000_000;
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
    /// Transfers from and into registered memory, which begin with grants (R15).
    Grants,
    /// As `Ring`, with up to 64 blocks.
    Many,
    /// A block refuses its plan.
    Refusal,
    /// A host aborts in the middle.
    Abort,
    /// A GPU or an engine stops, and waits expire.
    Expiry,
    /// The claim word of a record is overwritten.
    Stray,
    /// Slots of a ring are overwritten.
    Garbage,
    /// Users' kernels put, signal and wait by themselves (`ringdove.cuh`).
    User,
    /// The same, and something goes wrong, as in one of the four before.
    UserFaults,
    /// As `User`: a block writes what it has put again, each time that a flush says that it may.
    /// Engines' reads may see what is stored later (load buffering).
    Reuse,
    /// Dispatch and combine of expert parallelism, several steps (R16).
    Experts,
    /// The same on two nodes of two ranks, in throughput mode: rows are relayed.
    Relays,
    /// As `Experts`, and a GPU or an engine stops, or a host aborts.
    ExpertsFaults,
    /// Two groups of experts of one communicator, each on a stream of its own.
    Batches,
    /// The same, and something goes wrong, as in `ExpertsFaults`, `Refusal`, `Stray` and `Expiry`.
    BatchesFaults,
    /// As `Experts`: the claim word of a rank is overwritten, and hardly any thread sees it; the
    /// caller ends behind one of the first launches.
    Claims,
    /// As `ExpertsFaults`: all ranks but one stop, and its waits have to end by the abort word or
    /// by the claim.
    Waits,
    /// As `Experts` or `Relays`, by engines, and steps overlap; ranks receive late at times. A rank
    /// writes what an engine has read for it again, and knows of that by the engine's completion
    /// alone. Engines' reads may see what is stored later, as in `Reuse`.
    Rewrites,
    /// What other scenarios hardly come to, as `Grants`, `User` or `Experts`: two blocks fail at
    /// once, a block waits alone, a message arrives whose sender's engine stops behind it, results
    /// are combined late, or some threads of a block see a failure and others do not.
    Corners,
    /// The library's plans of all collectives, two to four ranks.
    Collectives,
    /// The same, and a GPU or an engine stops, or a host aborts.
    CollectivesFaults,
    /// Collectives along trees that are packed into the links of a machine that is drawn, three to
    /// five ranks, most of them with other links than the others.
    Packed,
    /// The same, and a GPU or an engine stops, or a host aborts.
    PackedFaults,
    /// Clocks of GPUs leap, forward and back, while threads wait; perhaps a rank is killed too.
    Clock,
    /// Groups of sends and receives, two to five ranks, which come late.
    Groups,
    /// The same, and a GPU or an engine stops, a rank is killed, or a host aborts.
    GroupsFaults,
    /// As `Groups`; all are launched several times, as graphs are replayed.
    Graphs,
    /// Device engines in the place of proxies.
    Device,
    /// The same, and a GPU, an engine or a link stops, a source cannot be read, or a host aborts.
    DeviceFaults,
    /// Jobs that are created, split and dropped: the control plane of communicators.
    Members,
    /// The same; a process dies, is cut off, late or of another opinion, aborts, or a connection
    /// breaks, and those that are left form another job.
    MembersFaults,
    /// The same; some leave long before others, or one does not make a call: farewells, and calls
    /// that expire.
    Absences,
    /// As `Members`, with GPUs: communicators are laid out, run collectives, and are dropped.
    Communicators,
    /// The same, with what goes wrong in `MembersFaults`: kernels end with their jobs.
    CommunicatorsFaults,
    /// As `Communicators`, with ranks that reach each other by adapters: connections are made when
    /// a lane first needs them, and go with their communicators.
    Connections,
    /// The same, and an adapter is reset under traffic, makes no queue pairs, a rank does not
    /// answer, or what goes wrong in `MembersFaults`; those that are left connect anew.
    ConnectionsFaults,
    /// As `Connections`, and an adapter loses messages, for a while or for good, or delays them.
    Lossy,
    /// Two or three things go wrong in a run of jobs.
    SeveralFaults,
    /// Words by which hosts, engines and peers hand memory over, by the library's code.
    Words,
    /// One of these, drawn.
    Random,
}

impl Scenario {
    /// All, with the names by which they are called.
    pub const ALL: [(&'static str, Self); 43] = [
        ("ring", Self::Ring),
        ("stores", Self::Stores),
        ("low-latency", Self::LowLatency),
        ("grants", Self::Grants),
        ("many", Self::Many),
        ("refusal", Self::Refusal),
        ("abort", Self::Abort),
        ("expiry", Self::Expiry),
        ("stray", Self::Stray),
        ("garbage", Self::Garbage),
        ("user", Self::User),
        ("user-faults", Self::UserFaults),
        ("reuse", Self::Reuse),
        ("experts", Self::Experts),
        ("relays", Self::Relays),
        ("experts-faults", Self::ExpertsFaults),
        ("batches", Self::Batches),
        ("batches-faults", Self::BatchesFaults),
        ("claims", Self::Claims),
        ("waits", Self::Waits),
        ("rewrites", Self::Rewrites),
        ("corners", Self::Corners),
        ("collectives", Self::Collectives),
        ("collectives-faults", Self::CollectivesFaults),
        ("packed", Self::Packed),
        ("packed-faults", Self::PackedFaults),
        ("clock", Self::Clock),
        ("groups", Self::Groups),
        ("groups-faults", Self::GroupsFaults),
        ("graphs", Self::Graphs),
        ("device", Self::Device),
        ("device-faults", Self::DeviceFaults),
        ("members", Self::Members),
        ("members-faults", Self::MembersFaults),
        ("absences", Self::Absences),
        ("communicators", Self::Communicators),
        ("communicators-faults", Self::CommunicatorsFaults),
        ("connections", Self::Connections),
        ("connections-faults", Self::ConnectionsFaults),
        ("lossy", Self::Lossy),
        ("several-faults", Self::SeveralFaults),
        ("words", Self::Words),
        ("random", Self::Random),
    ];

    /// Those that `Random` draws from: all but `Many`, whose runs are long, and those that
    /// joined later (packed trees, `Rewrites`, `Corners`): seeds of `Random` are what they were.
    pub const DRAWN: [Self; 37] = [
        Self::Ring,
        Self::Stores,
        Self::LowLatency,
        Self::Grants,
        Self::Refusal,
        Self::Abort,
        Self::Expiry,
        Self::Stray,
        Self::User,
        Self::UserFaults,
        Self::Experts,
        Self::ExpertsFaults,
        Self::Collectives,
        Self::CollectivesFaults,
        Self::Relays,
        Self::Clock,
        Self::Groups,
        Self::GroupsFaults,
        Self::Graphs,
        Self::Device,
        Self::DeviceFaults,
        Self::Members,
        Self::MembersFaults,
        Self::Communicators,
        Self::CommunicatorsFaults,
        Self::Garbage,
        Self::Connections,
        Self::ConnectionsFaults,
        Self::Absences,
        Self::Lossy,
        Self::Words,
        Self::SeveralFaults,
        Self::Batches,
        Self::BatchesFaults,
        Self::Claims,
        Self::Reuse,
        Self::Waits,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, it)| *it == self).map_or("?", |(name, _)| name)
    }

    /// By name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(it, _)| *it == name).map(|(_, scenario)| *scenario)
    }

    /// What its ranks do, if that is not drawn.
    fn traffic(self) -> Option<Traffic> {
        match self {
            Self::Ring | Self::Many => Some(Traffic::Ring),
            Self::Stores => Some(Traffic::Stores),
            Self::LowLatency => Some(Traffic::LowLatency),
            Self::Grants => Some(Traffic::Grants),
            Self::User | Self::UserFaults | Self::Reuse => Some(Traffic::User),
            Self::Experts
            | Self::Relays
            | Self::ExpertsFaults
            | Self::Batches
            | Self::BatchesFaults
            | Self::Claims
            | Self::Waits
            | Self::Rewrites => Some(Traffic::Experts),
            Self::Collectives | Self::CollectivesFaults | Self::Packed | Self::PackedFaults => {
                Some(Traffic::Collectives)
            }
            Self::Groups | Self::GroupsFaults | Self::Graphs => Some(Traffic::Groups),
            Self::Words => Some(Traffic::Words),
            Self::Members
            | Self::MembersFaults
            | Self::Absences
            | Self::Communicators
            | Self::CommunicatorsFaults
            | Self::Connections
            | Self::ConnectionsFaults
            | Self::Lossy
            | Self::SeveralFaults => Some(Traffic::Members),
            _ => None,
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
    /// How far the run came.
    pub stats: Stats,
}

impl Failure {
    /// The arguments of `hwsim explore` that replay it; a changed PTX text needs its own.
    pub fn replay(&self) -> String {
        let Options { seed, scenario, named_faults, changes, .. } = &self.options;
        let mut text = format!("--seed {seed} --runs 1");
        for fault in named_faults {
            let _ = write!(text, " --fault {fault}");
        }
        for change in changes {
            let _ = write!(text, " --with {change}");
        }
        format!("{text} {}", scenario.name())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {} fails: {}", self.options.seed, self.reason)?;
        writeln!(f, "drawn: {}", self.options)?;
        write!(f, "{} turns; last events of each agent:\n{}", self.stats.turns, self.events)
    }
}

/// One run.
///
/// # Errors
///
/// Whatever is not as the protocol promises.
pub fn run(kernels: &Kernels, options: &Options) -> Result<Stats, Box<Failure>> {
    perform(kernels, options, 0).0
}

/// One run, of which more events are kept; gives them too, as Perfetto reads them.
///
/// # Errors
///
/// As [`run`].
pub fn run_traced(
    kernels: &Kernels,
    options: &Options,
) -> (Result<Stats, Box<Failure>>, serde_json::Value) {
    let (outcome, world) = perform(kernels, options, crate::trace::EVENTS_MAX);
    (outcome, crate::trace::of(&world))
}

fn perform(
    kernels: &Kernels,
    options: &Options,
    events_kept: usize,
) -> (Result<Stats, Box<Failure>>, World) {
    if options.traffic == Traffic::Members {
        return perform_members(kernels, options, events_kept);
    }
    let memory = memory_of(options, events_kept);
    if options.traffic == Traffic::Words {
        let mut run = words::Run::new(&memory, options.seed);
        let outcome = run.run().map_err(|reason| {
            let (options, stats) = (options.clone(), run.stats());
            Box::new(Failure { options, reason, events: String::new(), stats })
        });
        return (outcome, World::new(&memory, options.seed));
    }
    let turns_max = match (options.scenario, options.traffic) {
        (_, Traffic::Experts) if options.timeout_ns == NEVER_NS => TURNS_MAX,
        (Scenario::Many, _) | (_, Traffic::Experts | Traffic::Collectives | Traffic::Groups) => {
            TURNS_MAX_OF_MANY
        }
        _ => TURNS_MAX,
    };
    let (outcome, world) = match options.traffic {
        Traffic::Experts => {
            let mut run = experts::Run::new(&memory, options);
            run.start(kernels);
            let outcome = run.world.run(turns_max);
            (outcome.and_then(|stats| run.check().map(|()| stats)), run.world)
        }
        Traffic::Collectives => {
            let mut run = collectives::Run::new(&memory, options);
            let outcome = run.start(kernels).and_then(|()| run.world.run(turns_max));
            (outcome.and_then(|stats| run.check().map(|()| stats)), run.world)
        }
        Traffic::Groups => {
            let mut run = messages::Run::new(&memory, options);
            let outcome = run.start(kernels).and_then(|()| run.world.run(turns_max));
            (outcome.and_then(|stats| run.check().map(|()| stats)), run.world)
        }
        _ => {
            let mut setup = Setup::new(&memory, options);
            setup.lay_out();
            setup.break_programs();
            let outcome = setup.start(kernels).and_then(|()| setup.world.run(turns_max));
            (outcome.and_then(|stats| setup.check().map(|()| stats)), setup.world)
        }
    };
    let outcome = outcome.map_err(|reason| {
        let (options, stats) = (options.clone(), world.stats());
        Box::new(Failure { options, reason, events: world.last_events(), stats })
    });
    (outcome, world)
}

/// The device engines of all ranks; none where proxies serve.
fn devices(
    memory: &Rc<WeakMemory>,
    options: &Options,
    ranks: &[Rank],
    routes: &[Vec<Route>],
    manner: Manner,
) -> Result<VecDeque<Engine>, String> {
    let Some(shape) = &options.device else { return Ok(VecDeque::new()) };
    let of_device = options.faults.iter().filter(|fault| fault.is_of_device());
    let faults = of_device.map(ToString::to_string).collect::<Vec<_>>().join(",");
    device_engines(memory, ranks, routes, (shape, manner, &faults)).map(VecDeque::from)
}

fn memory_of(options: &Options, events_kept: usize) -> Rc<WeakMemory> {
    let drawn = Drawn::new(options.seed, options.plain_percent);
    let memory_options =
        MemoryOptions { tears: options.tears, stalls: options.stalls, events_kept };
    Rc::new(WeakMemory::new(Box::new(drawn), memory_options))
}

/// A run of jobs. Without GPUs its world stays empty.
fn perform_members(
    kernels: &Kernels,
    options: &Options,
    events_kept: usize,
) -> (Result<Stats, Box<Failure>>, World) {
    let memory = memory_of(options, events_kept);
    let with = (options.seed, options.host);
    let gpus = options.members.gpus.as_ref();
    let gpus = gpus.map(|shape| members::Gpus::new(shape, &memory, kernels.executor(), with));
    let mut run = members::Run::new(&options.members, options.seed, gpus);
    let outcome = run.run().map_err(|reason| {
        let (events, stats) = (run.last_events(), run.stats());
        Box::new(Failure { options: options.clone(), reason, events, stats })
    });
    (outcome, run.into_world().unwrap_or_else(|| World::new(&memory, options.seed)))
}

struct Setup<'a> {
    memory: Rc<WeakMemory>,
    options: &'a Options,
    world: World,
    ranks: [Rank; 2],
    routes: [Vec<Route>; 2],
    programs: [Vec<Program>; 2],
    inputs: [u64; 2],
    outputs: [u64; 2],
    /// Of all calls of a rank.
    arguments: [CallArguments; 2],
    /// Of users' kernels.
    handles: [u64; 2],
}

impl<'a> Setup<'a> {
    fn new(memory: &Rc<WeakMemory>, options: &'a Options) -> Self {
        let world = World::new(memory, options.seed.rotate_left(32) ^ 0x7075_7473);
        let (ring_log2, timeout_ns) = (options.ring_log2, options.timeout_ns);
        let ranks = [0, 1].map(|number| Rank::new(memory, number, 2, ring_log2, timeout_ns));
        let bytes = u64::from(options.rounds()) * buffer_bytes(options);
        let inputs = [0, 1].map(|rank: usize| ranks[rank].allocate("input", bytes));
        let outputs = [0, 1].map(|rank: usize| ranks[rank].allocate("output", bytes));
        let memory = Rc::clone(memory);
        let (routes, programs, arguments, handles) = Default::default();
        Self {
            memory,
            options,
            world,
            ranks,
            routes,
            programs,
            inputs,
            outputs,
            arguments,
            handles,
        }
    }

    fn lay_out(&mut self) {
        match self.options.traffic {
            Traffic::Ring => self.send_and_receive(false),
            Traffic::Stores => self.send_and_receive(true),
            Traffic::LowLatency => self.exchange(),
            Traffic::Grants => self.grant(),
            Traffic::User => self.use_handles(),
            Traffic::Experts
            | Traffic::Collectives
            | Traffic::Groups
            | Traffic::Members
            | Traffic::Words => {
                unreachable!("these runs have a setup of their own")
            }
        }
    }

    /// Where a message's data lies in the buffers of its block.
    fn offset(&self, block: u32, message: u32) -> u64 {
        let Options { messages, transfers, bytes, .. } = *self.options;
        u64::from((block * messages * transfers + message) * bytes)
    }

    /// The number at a place of a rank's input.
    fn word(rank: usize, index: u64) -> u32 {
        // Never zero, and no two alike within a rank.
        (index as u32 + 1) * 8 + rank as u32
    }

    /// Does to plans what faults do to them; users' calls are broken as they are made.
    fn break_programs(&mut self) {
        for fault in &self.options.faults {
            self.world.add_fault(*fault);
            match *fault {
                _ if self.options.traffic == Traffic::User => {}
                Fault::BadOp { rank, block, op } => {
                    let ops = &mut self.programs[rank as usize][block as usize].ops;
                    let count = ops.len();
                    ops[op as usize % count].code = NO_OP;
                }
                Fault::BadPort { rank, block } => {
                    self.programs[rank as usize][block as usize].ports.push(NO_SUCH_PORT);
                }
                _ => {}
            }
        }
    }

    fn start(&mut self, kernels: &Kernels) -> Result<(), String> {
        let Options { blocks, threads, launches, calls, traffic, .. } = *self.options;
        let words = u64::from(self.options.rounds()) * buffer_bytes(self.options) / 4;
        self.world.reports_ends = traffic != Traffic::User;
        let abort_words = self.ranks.each_ref().map(|rank| rank.communicator.abort);
        let watches_abort = self.options.device.is_some();
        let reads_late = (self.options.scenario == Scenario::Reuse).then_some(ANY_BYTES);
        let mutant = self.options.host;
        let manner = Manner { mutant, watches_abort, reads_late, ..Manner::default() };
        let mut engines = devices(&self.memory, self.options, &self.ranks, &self.routes, manner)?;
        for rank in 0..2 {
            let data: Vec<u32> = (0..words).map(|index| Self::word(rank, index)).collect();
            self.ranks[rank].set(self.inputs[rank], bytemuck::cast_slice(&data));
            self.ranks[rank].publish();
            let routes = std::mem::take(&mut self.routes[rank]);
            let device = engines.pop_front();
            self.world.add_rank(&self.ranks[rank], device, &routes, manner, &abort_words);
            if traffic == Traffic::User {
                for launch in 0..launches {
                    let params = self.user_params(rank, launch);
                    self.world.launch(rank as u32, &kernels.user, (blocks, threads), params);
                }
                continue;
            }
            let plan = encode(threads, &self.programs[rank]);
            for launch in 0..launches {
                let rounds = (launch * calls..).take(calls as usize);
                let arguments = rounds.map(|round| self.arguments(rank, round)).collect::<Vec<_>>();
                let params = self.ranks[rank].launch(launch.into(), &plan, &arguments);
                self.world.launch(rank as u32, kernels.executor(), (blocks, threads), params);
            }
        }
        Ok(())
    }

    /// What one call works on.
    fn arguments(&self, rank: usize, round: u32) -> CallArguments {
        let at = u64::from(round) * buffer_bytes(self.options);
        let mut arguments = self.arguments[rank];
        arguments.buffers = [self.inputs[rank] + at, self.outputs[rank] + at, 0, 0];
        arguments.region_offsets = [at, at, 0, 0];
        arguments.addresses += 8 * u64::from(round * arguments.address_count);
        arguments
    }
}

/// Bytes of the input, and of the output, of one call of a rank.
fn buffer_bytes(options: &Options) -> u64 {
    let Options { blocks, messages, transfers, bytes, .. } = *options;
    u64::from(blocks * messages * transfers * bytes)
}

/// A code that no op has.
const NO_OP: u8 = 0xee;
/// A port that no communicator has.
const NO_SUCH_PORT: u32 = 0xffff;
