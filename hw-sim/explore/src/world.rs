//! Whose turn it is: warps, engines, lanes and hosts, one at a time, until all is over.

mod report;

use hwsim_ptx::memory::{Order, Scope, Strength};
use hwsim_ptx::weak::{AgentId, BlockView, Place, WeakMemory};
use hwsim_ptx::{Block, Clock, Kernel, Launch};
use ringdove_kernels::descriptor::DESCRIPTOR_BYTES;
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use crate::engine::{Engine, HostMutant, Manner, Route};
use crate::fault::{Fault, STRAY};
use crate::host::Host;
use crate::rank::Rank;

/// Instructions of one turn, as a power of two, at most.
const TURN_LOG2_MAX: u32 = 7;
/// How much likelier some actors' turns are than others', at most.
const WEIGHT_MAX: u32 = 6;

/// The block of a thread that belongs to no launch of ours.
const INTRUDER: u32 = u32::MAX - 1;

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Turns of all actors.
    pub turns: u64,
    /// Warp instructions.
    pub instructions: u64,
    /// Descriptors that engines took.
    pub descriptors: u64,
    /// Engines that have refused what they found in their rings.
    pub refused: u64,
    /// Of communicators: ranks whose kernels an abort has ended.
    pub aborted: u64,
    /// Of communicators: connections of adapters, counted at both ends.
    pub connections: u64,
}

/// The first look: clocks may step back from here.
const FIRST_LOOK_NS: u64 = 1 << 60;

/// The clock of one GPU: so much ahead of all looks, or behind. Time stands still between looks, so
/// that it never ends a wait by itself, and moves with each: a nanosecond is one look of one warp.
struct GpuClock<'a> {
    looks: &'a Cell<u64>,
    ahead_ns: i64,
}

impl Clock for GpuClock<'_> {
    fn now_ns(&self) -> u64 {
        self.looks.set(self.looks.get() + 1);
        self.looks.get().saturating_add_signed(self.ahead_ns)
    }
}

/// Who may take a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Actor {
    Warp { block: usize, warp: usize },
    Engine(usize),
    Lane { engine: usize, lane: usize },
    Host(usize),
}

struct Running {
    gpu: u32,
    block: Block,
    view: BlockView,
    threads: u32,
}

/// What waits on a GPU's stream for what is before it.
enum Queued {
    /// A kernel, and what it says of itself when it ends.
    Kernel { launch: Arc<Launch>, blocks: u32, threads: u32, ends: u64 },
    /// A copy.
    Copy { from: u64, to: u64, bytes: u64 },
    /// Nothing, for so many turns.
    Pause { turns: u64 },
}

/// A GPU with one stream; or one of several streams of it.
struct Gpu {
    /// Which GPU.
    place: u32,
    /// The rank whose second stream it is; none of a rank's own one.
    beside: Option<usize>,
    /// What the stream's work hands on.
    stream: AgentId,
    queue: VecDeque<Queued>,
    /// Blocks of the kernel that runs, by number.
    running: Vec<usize>,
    is_stopped: bool,
    /// Kernels that were queued.
    launched: u64,
    /// What the kernel that was started last says when it ends.
    ends: u64,
    /// Nothing starts before this turn.
    resumes: u64,
    /// A thread of another kernel, which overwrites what is not its own.
    intruder: AgentId,
    /// How far its clock is ahead.
    ahead_ns: i64,
}

/// A launch in which reads of a word may see what is new there, and in others hardly ever do.
pub struct Shown {
    /// The stream.
    pub stream: u32,
    /// Which of its launches, from 0 on.
    pub launch: u64,
    /// The word.
    pub address: u64,
    /// One in so many reads sees it.
    pub one_in: u32,
}

/// One in how many reads sees a word outside of the launch in which it is shown.
const HARDLY: usize = 1 << 20;

/// All actors of a run.
pub struct World {
    memory: Rc<WeakMemory>,
    random: fastrand::Rng,
    looks: Cell<u64>,
    gpus: Vec<Gpu>,
    blocks: Vec<Running>,
    /// One for each rank.
    pub engines: Vec<Engine>,
    /// One for each rank.
    pub hosts: Vec<Host>,
    /// Kernels tell hosts of their end, as the executor does.
    pub reports_ends: bool,
    stopped_engines: Vec<usize>,
    stopped_hosts: Vec<usize>,
    /// Of each rank.
    claim_words: Vec<u64>,
    /// The rings of all ranks, and how many slots they have.
    rings: Vec<(u64, u64)>,
    faults: Vec<Fault>,
    shown: Option<Shown>,
    actors: Vec<(Actor, u32)>,
    /// Those of a turn that can have it, as often as they weigh.
    ready: Vec<Actor>,
    stats: Stats,
}

impl World {
    /// An empty one. `seed` decides whose turn it is.
    pub fn new(memory: &Rc<WeakMemory>, seed: u64) -> Self {
        Self {
            memory: Rc::clone(memory),
            random: fastrand::Rng::with_seed(seed),
            looks: Cell::new(FIRST_LOOK_NS),
            gpus: Vec::new(),
            blocks: Vec::new(),
            engines: Vec::new(),
            hosts: Vec::new(),
            reports_ends: true,
            stopped_engines: Vec::new(),
            stopped_hosts: Vec::new(),
            claim_words: Vec::new(),
            rings: Vec::new(),
            faults: Vec::new(),
            shown: None,
            actors: Vec::new(),
            ready: Vec::new(),
            stats: Stats::default(),
        }
    }

    /// Adds a rank: its device engine, else a proxy with these routes, its host, which looks at the
    /// abort words, and a GPU.
    pub fn add_rank(
        &mut self,
        own: &Rank,
        device: Option<Engine>,
        routes: &[Route],
        manner: Manner,
        abort_words: &[u64],
    ) {
        let engine = device.unwrap_or_else(|| Engine::proxy(&self.memory, own, routes, manner));
        let place = self.engines.len() as u32;
        self.add(own, engine, place, (manner.mutant, abort_words));
    }

    /// Adds a rank on GPU `place` with this engine. Gives its number in this world.
    pub fn add(
        &mut self,
        own: &Rank,
        engine: Engine,
        place: u32,
        (mutant, abort_words): (Option<HostMutant>, &[u64]),
    ) -> usize {
        let host = Host::new(own, mutant, abort_words.to_vec());
        let rank = self.engines.len();
        self.add_actor(Actor::Engine(rank));
        for lane in 0..engine.lanes() {
            self.add_actor(Actor::Lane { engine: rank, lane });
        }
        self.add_actor(Actor::Host(rank));
        self.engines.push(engine);
        self.hosts.push(host);
        self.claim_words.push(own.communicator.record_claim);
        self.rings.push((own.communicator.ring_slots, 1 << own.communicator.ring_log2));
        self.add_gpu(place, None);
        rank
    }

    fn add_gpu(&mut self, place: u32, beside: Option<usize>) {
        self.gpus.push(Gpu {
            place,
            beside,
            stream: self.memory.agent(Place::Outside),
            queue: VecDeque::new(),
            running: Vec::new(),
            is_stopped: false,
            launched: 0,
            ends: crate::rank::LAUNCH,
            resumes: 0,
            intruder: self.memory.agent(Place::Block { gpu: place, block: INTRUDER }),
            ahead_ns: 0,
        });
    }

    /// Adds another stream of a rank's GPU, once all ranks are there. Gives its number, by which
    /// kernels are queued.
    pub fn add_stream(&mut self, rank: usize) -> u32 {
        self.add_gpu(self.gpus[rank].place, Some(rank));
        self.gpus.len() as u32 - 1
    }

    /// All streams of a rank's GPU come to a stop.
    fn stop_gpu(&mut self, rank: usize) {
        let own = |(number, gpu): &(usize, &mut Gpu)| *number == rank || gpu.beside == Some(rank);
        let streams = self.gpus.iter_mut().enumerate().filter(own);
        streams.for_each(|(_, gpu)| gpu.is_stopped = true);
    }

    /// A rank comes to a stop: its GPU, its engine and its host.
    pub fn kill(&mut self, rank: usize) {
        self.stop_gpu(rank);
        self.stopped_engines.push(rank);
        self.stopped_hosts.push(rank);
    }

    /// So much time passes that no deadline of a wait lies ahead.
    pub fn pass_deadlines(&mut self) {
        self.gpus.iter_mut().for_each(|gpu| gpu.ahead_ns += 2 * crate::rank::NEVER_NS as i64);
    }

    /// A rank whose kernels and engine have ended takes no turns any more.
    pub fn remove(&mut self, rank: usize) {
        self.actors.retain(|(actor, _)| match actor {
            Actor::Engine(engine) | Actor::Lane { engine, .. } => *engine != rank,
            Actor::Host(host) => *host != rank,
            Actor::Warp { .. } => true,
        });
    }

    /// What will go wrong.
    pub fn add_fault(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// A word of which reads see what is new in one launch alone.
    pub fn show_in(&mut self, shown: Shown) {
        self.memory.show_seldom(shown.address, HARDLY);
        self.shown = Some(shown);
    }

    fn add_actor(&mut self, actor: Actor) {
        let weight = self.random.u32(1..=WEIGHT_MAX);
        self.actors.push((actor, weight));
    }

    /// Queues a kernel on a GPU's stream. It starts when those before it have ended.
    pub fn launch(&mut self, gpu: u32, kernel: &Arc<Kernel>, shape: (u32, u32), params: Vec<u8>) {
        let number = self.gpus[gpu as usize].launched;
        self.replay(gpu, kernel, shape, params, number);
    }

    /// The same of a launch with this number, which may have been queued before, as in graphs.
    pub fn replay(
        &mut self,
        gpu: u32,
        kernel: &Arc<Kernel>,
        (blocks, threads): (u32, u32),
        params: Vec<u8>,
        number: u64,
    ) {
        let launch = Launch {
            kernel: Arc::clone(kernel),
            grid: [blocks, 1, 1],
            cluster: None,
            block: [threads, 1, 1],
            dynamic_shared_bytes: 0,
            params,
            grid_id: u64::from(gpu) + 1,
            grid_workspace: 0,
            sm_count: blocks,
        };
        self.queue(gpu, launch, number);
    }

    /// The same of a launch of whatever shape.
    pub fn queue(&mut self, gpu: u32, launch: Launch, number: u64) {
        let (blocks, threads, launch) = (launch.grid[0], launch.block_threads(), Arc::new(launch));
        let ends = crate::rank::LAUNCH + number + 1;
        let it = &mut self.gpus[gpu as usize];
        it.launched += 1;
        it.queue.push_back(Queued::Kernel { launch, blocks, threads, ends });
    }

    /// Queues a copy on a GPU's stream.
    pub fn copy(&mut self, gpu: u32, from: u64, to: u64, bytes: u64) {
        self.gpus[gpu as usize].queue.push_back(Queued::Copy { from, to, bytes });
    }

    /// Has what is queued next on a GPU's stream come so many turns late.
    pub fn wait(&mut self, gpu: u32, turns: u64) {
        self.gpus[gpu as usize].queue.push_back(Queued::Pause { turns });
    }

    /// What the run has come to so far.
    pub fn stats(&self) -> Stats {
        let refused = self.engines.iter().filter(|engine| engine.failure().is_some()).count();
        Stats { refused: refused as u64, ..self.stats }
    }

    /// Has this GPU come to a stop, by a fault?
    pub fn is_stopped(&self, gpu: usize) -> bool {
        self.gpus[gpu].is_stopped
    }

    /// Starts what is next on a GPU's stream, when what was before it has ended.
    fn start_next(&mut self, gpu: usize) -> Result<(), String> {
        let it = &self.gpus[gpu];
        let has_ended = it.running.iter().all(|block| self.has_ended(*block));
        let is_early = self.stats.turns < it.resumes;
        if it.is_stopped || !has_ended || it.queue.is_empty() || is_early {
            return Ok(());
        }
        let ended = std::mem::take(&mut self.gpus[gpu].running);
        let stream = self.gpus[gpu].stream;
        for block in ended {
            let Running { view, threads, .. } = &self.blocks[block];
            for thread in 0..*threads {
                self.memory.hand_over(view.agent_of(thread), stream);
            }
            self.actors.retain(
                |(actor, _)| !matches!(actor, Actor::Warp { block: it, .. } if *it == block),
            );
        }
        match self.gpus[gpu].queue.pop_front() {
            Some(Queued::Kernel { launch, blocks, threads, ends }) => {
                self.gpus[gpu].ends = ends;
                let shown = self.shown.as_ref().filter(|shown| shown.stream as usize == gpu);
                if let Some(Shown { launch, address, one_in, .. }) = shown {
                    let is_it = ends == crate::rank::LAUNCH + launch + 1;
                    self.memory
                        .show_seldom(*address, if is_it { *one_in as usize } else { HARDLY });
                }
                (0..blocks).for_each(|index| self.start_block(gpu, &launch, index, threads));
            }
            Some(Queued::Copy { from, to, bytes }) => {
                let mut data = vec![0; bytes as usize];
                let weak = Strength::WEAK;
                let outside = |_| format!("a copy on GPU {gpu} leaves allocated memory");
                self.memory.read(stream, from, 8, weak, &mut data).map_err(outside)?;
                self.memory.write(stream, to, 8, weak, &data).map_err(outside)?;
            }
            Some(Queued::Pause { turns }) => self.gpus[gpu].resumes = self.stats.turns + turns,
            None => {}
        }
        Ok(())
    }

    fn start_block(&mut self, gpu: usize, launch: &Arc<Launch>, index: u32, threads: u32) {
        let number = self.blocks.len();
        let place = Place::Block { gpu: self.gpus[gpu].place, block: number as u32 };
        let dynamic = u64::from(launch.dynamic_shared_bytes);
        let shared = dynamic + u64::from(launch.kernel.static_shared_bytes);
        let block = Block::new(Arc::clone(launch), [index, 0, 0], index);
        let view = BlockView::new(&self.memory, place, threads, shared);
        for thread in 0..threads {
            self.memory.hand_over(self.gpus[gpu].stream, view.agent_of(thread));
        }
        for warp in 0..block.warps() {
            self.add_actor(Actor::Warp { block: number, warp });
        }
        self.gpus[gpu].running.push(number);
        self.blocks.push(Running { gpu: gpu as u32, block, view, threads });
    }

    fn has_ended(&self, block: usize) -> bool {
        let block = &self.blocks[block].block;
        (0..block.warps()).all(|warp| !block.is_live(warp))
    }

    /// Runs until all kernels have ended and hosts have seen it, for at most so many turns.
    ///
    /// # Errors
    ///
    /// What went wrong: a fault of a kernel, a bad descriptor, or that nothing ended in time.
    pub fn run(&mut self, turns_max: u64) -> Result<Stats, String> {
        while self.stats.turns < turns_max {
            self.begin_turn()?;
            if self.is_over() {
                return Ok(self.stats());
            }
            self.take_turn()?;
        }
        Err(format!("{} within {turns_max} turns", self.unfinished()))
    }

    /// One turn.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), but for the end.
    pub fn turn(&mut self) -> Result<(), String> {
        self.begin_turn()?;
        self.take_turn()
    }

    fn begin_turn(&mut self) -> Result<(), String> {
        self.strike();
        (0..self.gpus.len()).try_for_each(|gpu| self.start_next(gpu))
    }

    fn take_turn(&mut self) -> Result<(), String> {
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        for (actor, weight) in &self.actors {
            if self.can_run(*actor) {
                ready.extend(std::iter::repeat_n(*actor, *weight as usize));
            }
        }
        self.stats.turns += 1;
        let drawn = (!ready.is_empty()).then(|| ready[self.random.usize(..ready.len())]);
        self.ready = ready;
        drawn.map_or(Ok(()), |actor| self.step(actor))
    }

    /// What still goes on.
    fn unfinished(&self) -> String {
        let mut live = Vec::new();
        for (number, running) in self.blocks.iter().enumerate() {
            if !self.gpus[running.gpu as usize].is_stopped && !self.has_ended(number) {
                live.push(format!("block {number} of GPU {} does not end", running.gpu));
            }
        }
        if live.is_empty() { "hosts see no end".to_owned() } else { live.join(", ") }
    }

    /// Does what faults do at this turn.
    fn strike(&mut self) {
        let turn = self.stats.turns;
        for fault in std::mem::take(&mut self.faults) {
            if fault.turn() > turn {
                self.faults.push(fault);
                continue;
            }
            let rank = fault.rank() as usize;
            match fault {
                Fault::BadOp { .. }
                | Fault::BadPort { .. }
                | Fault::LinkDown { .. }
                | Fault::FetchFault { .. } => {}
                // Runs of jobs see to these.
                Fault::Partition { .. }
                | Fault::ConnectionReset { .. }
                | Fault::AdapterReset { .. }
                | Fault::NoQueuePairs { .. }
                | Fault::NoAnswer { .. }
                | Fault::Loss { .. }
                | Fault::PortFlap { .. }
                | Fault::Delay { .. }
                | Fault::Late { .. }
                | Fault::Disagrees { .. }
                | Fault::NoCall { .. } => {}
                Fault::NoAlarm { .. } => self.hosts[rank].is_mute = true,
                Fault::Abort { .. } => self.hosts[rank].alarm(),
                Fault::EngineStops { .. } => self.stopped_engines.push(rank),
                Fault::GpuStops { .. } => self.stop_gpu(rank),
                Fault::Killed { .. } => self.kill(rank),
                Fault::RingGarbage { .. } => {
                    let how = Strength { order: Order::Relaxed, scope: Scope::System };
                    let (ring, slots) = self.rings[rank];
                    let slot = ring + DESCRIPTOR_BYTES as u64 * self.random.u64(..slots);
                    let garbage = [0xff; DESCRIPTOR_BYTES];
                    let written =
                        self.memory.write(self.gpus[rank].intruder, slot, 8, how, &garbage);
                    written.expect("the ring was allocated");
                    self.engines[rank].may_fail();
                }
                Fault::ClockLeaps { by_us, .. } => self.gpus[rank].ahead_ns += 1000 * by_us,
                Fault::StrayClaim { .. } => {
                    let how = Strength { order: Order::Relaxed, scope: Scope::Gpu };
                    let (place, stray) = (self.claim_words[rank], STRAY.to_le_bytes());
                    let written =
                        self.memory.write(self.gpus[rank].intruder, place, 4, how, &stray);
                    written.expect("the word was allocated");
                }
            }
        }
    }

    /// Have all kernels ended, and do hosts know? A host of a GPU that stopped hears nothing.
    fn is_over(&self) -> bool {
        let is_at_rest = |(number, gpu): (usize, &Gpu)| match gpu.beside {
            None => self.is_at_rest(number),
            Some(_) => self.is_idle(gpu),
        };
        self.gpus.iter().enumerate().all(|it| it.1.is_stopped || is_at_rest(it))
    }

    /// Have all kernels of a rank ended, and does its host know?
    pub fn is_at_rest(&self, rank: usize) -> bool {
        let (gpu, host) = (&self.gpus[rank], &self.hosts[rank]);
        let mut claim = [0; 4];
        self.memory.get(self.claim_words[rank], &mut claim).expect("it was allocated");
        let is_claimed = u32::from_le_bytes(claim) == ringdove_kernels::launch::RECORD_CLAIMED;
        let failed = self.engines[rank].failure().is_some();
        let has_told = !failed || host.is_mute || host.has_alarmed();
        let has_heard = gpu.launched == 0 || host.launches_seen() == gpu.ends;
        let knows = (has_heard || !self.reports_ends) && (!is_claimed || host.record().is_some());
        self.is_idle(gpu) && knows && (has_told || self.stopped_hosts.contains(&rank))
    }

    /// Have all kernels of a stream ended?
    fn is_idle(&self, gpu: &Gpu) -> bool {
        gpu.queue.is_empty() && gpu.running.iter().all(|block| self.has_ended(*block))
    }

    fn can_run(&self, actor: Actor) -> bool {
        match actor {
            Actor::Warp { block, warp } => {
                let running = &self.blocks[block];
                !self.gpus[running.gpu as usize].is_stopped && running.block.is_live(warp)
            }
            Actor::Engine(engine) => {
                !self.stopped_engines.contains(&engine) && !self.engines[engine].has_left()
            }
            Actor::Lane { engine, lane } => {
                !self.stopped_engines.contains(&engine) && self.engines[engine].is_busy(lane)
            }
            Actor::Host(host) => !self.stopped_hosts.contains(&host),
        }
    }

    fn step(&mut self, actor: Actor) -> Result<(), String> {
        match actor {
            Actor::Warp { block, warp } => {
                let budget = 1 << self.random.u32(0..=TURN_LOG2_MAX);
                let Running { gpu, block, view, .. } = &mut self.blocks[block];
                let ahead_ns = self.gpus[*gpu as usize].ahead_ns;
                let clock = GpuClock { looks: &self.looks, ahead_ns };
                let turn = block.run_warp(view, &clock, warp, budget);
                self.stats.instructions += block.take_spent();
                turn.map_err(|fault| fault.to_string())?;
            }
            Actor::Engine(engine) => {
                self.stats.descriptors += self.engines[engine].poll()? as u64;
            }
            Actor::Lane { engine, lane } => self.engines[engine].work(lane)?,
            Actor::Host(host) => {
                self.hosts[host].step();
                if self.engines[host].failure().is_some() && !self.hosts[host].is_mute {
                    self.hosts[host].alarm();
                }
            }
        }
        Ok(())
    }
}
