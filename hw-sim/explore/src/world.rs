//! Whose turn it is: warps, engines and lanes, one at a time, until all kernels have ended.

use hwsim_ptx::weak::{AgentId, BlockView, Event, Place, WeakMemory};
use hwsim_ptx::{Block, Clock, Kernel, Launch};
use std::cell::Cell;
use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Arc;

use crate::engine::Engine;

/// Instructions of one turn, as a power of two, at most.
const TURN_LOG2_MAX: u32 = 7;
/// How much likelier some actors' turns are than others', at most.
const WEIGHT_MAX: u32 = 6;

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Turns of all actors.
    pub turns: u64,
    /// Warp instructions.
    pub instructions: u64,
    /// Descriptors that engines took.
    pub descriptors: u64,
}

/// Time stands still between looks, so that it never ends a wait, and moves with each.
#[derive(Default)]
struct Looks(Cell<u64>);

impl Clock for Looks {
    fn now_ns(&self) -> u64 {
        self.0.set(self.0.get() + 1);
        self.0.get()
    }
}

/// Who may take a turn.
#[derive(Clone, Copy, Debug)]
enum Actor {
    Warp { block: usize, warp: usize },
    Engine(usize),
    Lane { engine: usize, lane: usize },
}

struct Running {
    gpu: u32,
    block: Block,
    view: BlockView,
    threads: u32,
}

/// All actors of a run.
pub struct World {
    memory: Rc<WeakMemory>,
    random: fastrand::Rng,
    clock: Looks,
    blocks: Vec<Running>,
    /// One for each rank.
    pub engines: Vec<Engine>,
    stats: Stats,
}

impl World {
    /// An empty one. `seed` decides whose turn it is.
    pub fn new(memory: &Rc<WeakMemory>, seed: u64) -> Self {
        Self {
            memory: Rc::clone(memory),
            random: fastrand::Rng::with_seed(seed),
            clock: Looks::default(),
            blocks: Vec::new(),
            engines: Vec::new(),
            stats: Stats::default(),
        }
    }

    /// Starts a kernel on a GPU.
    pub fn launch(&mut self, gpu: u32, kernel: &Arc<Kernel>, shape: (u32, u32), params: Vec<u8>) {
        let (blocks, threads) = shape;
        let launch = Arc::new(Launch {
            kernel: Arc::clone(kernel),
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            dynamic_shared_bytes: 0,
            params,
            grid_id: u64::from(gpu) + 1,
            grid_workspace: 0,
            sm_count: blocks,
        });
        for index in 0..blocks {
            let number = self.blocks.len() as u32;
            let place = Place::Block { gpu, block: number };
            let shared = kernel.static_shared_bytes.into();
            self.blocks.push(Running {
                gpu,
                block: Block::new(Arc::clone(&launch), [index, 0, 0], index),
                view: BlockView::new(&self.memory, place, threads, shared),
                threads,
            });
        }
    }

    /// Runs until all kernels have ended, for at most so many turns.
    ///
    /// # Errors
    ///
    /// What went wrong: a fault of a kernel, a bad descriptor, or that nothing ended in time.
    pub fn run(&mut self, turns_max: u64) -> Result<Stats, String> {
        let mut actors = Vec::new();
        for (block, running) in self.blocks.iter().enumerate() {
            actors.extend((0..running.block.warps()).map(|warp| Actor::Warp { block, warp }));
        }
        for (engine, it) in self.engines.iter().enumerate() {
            actors.push(Actor::Engine(engine));
            actors.extend((0..it.lanes()).map(|lane| Actor::Lane { engine, lane }));
        }
        let weights: Vec<u32> = actors.iter().map(|_| self.random.u32(1..=WEIGHT_MAX)).collect();
        let mut ready = Vec::new();
        while self.stats.turns < turns_max {
            ready.clear();
            for (actor, weight) in actors.iter().zip(&weights) {
                if self.can_run(*actor) {
                    ready.extend(std::iter::repeat_n(*actor, *weight as usize));
                }
            }
            if !ready.iter().any(|actor| matches!(actor, Actor::Warp { .. })) {
                return Ok(self.stats);
            }
            self.stats.turns += 1;
            let actor = ready[self.random.usize(..ready.len())];
            self.step(actor)?;
        }
        Err(format!("nothing ended within {turns_max} turns"))
    }

    fn can_run(&self, actor: Actor) -> bool {
        match actor {
            Actor::Warp { block, warp } => self.blocks[block].block.is_live(warp),
            Actor::Engine(_) => true,
            Actor::Lane { engine, lane } => self.engines[engine].is_busy(lane),
        }
    }

    fn step(&mut self, actor: Actor) -> Result<(), String> {
        match actor {
            Actor::Warp { block, warp } => {
                let budget = 1 << self.random.u32(0..=TURN_LOG2_MAX);
                let Running { block, view, .. } = &mut self.blocks[block];
                let turn = block.run_warp(view, &self.clock, warp, budget);
                self.stats.instructions += block.take_spent();
                turn.map_err(|fault| fault.to_string())?;
            }
            Actor::Engine(engine) => {
                self.stats.descriptors += self.engines[engine].poll()? as u64;
            }
            Actor::Lane { engine, lane } => self.engines[engine].work(lane)?,
        }
        Ok(())
    }

    /// What the agents did last: of each block the threads that did anything, and the engines.
    pub fn last_events(&self) -> String {
        let mut text = String::new();
        for (number, running) in self.blocks.iter().enumerate() {
            for thread in 0..running.threads {
                let name = format!("gpu {} block {number} thread {thread}", running.gpu);
                self.events_of(&mut text, &name, running.view.agent_of(thread));
            }
        }
        for (number, engine) in self.engines.iter().enumerate() {
            self.events_of(&mut text, &format!("engine {number}"), engine.agent);
            for lane in 0..engine.lanes() {
                let name = format!("engine {number} lane {lane}");
                self.events_of(&mut text, &name, engine.lane_agent(lane));
            }
        }
        text
    }

    fn events_of(&self, text: &mut String, name: &str, agent: AgentId) {
        let events = self.memory.events(agent);
        if events.is_empty() {
            return;
        }
        let _ = writeln!(text, "  {name}");
        for (time, event) in events {
            let _ = writeln!(text, "    {time:>9} {}", self.describe(event));
        }
    }

    fn describe(&self, event: Event) -> String {
        let place = |address: u64| match self.memory.name_of(address) {
            Some((name, offset)) => format!("{name}+{offset:#x}"),
            None => format!("{address:#x}"),
        };
        let how = |strength: hwsim_ptx::memory::Strength| {
            format!("{:?}.{:?}", strength.order, strength.scope).to_lowercase()
        };
        match event {
            Event::Read { address, value, strength, age } => {
                let stale = if age == 0 { String::new() } else { format!(", {age} newer") };
                format!("read {value:#x} at {} ({}{stale})", place(address), how(strength))
            }
            Event::Write { address, value, strength } => {
                format!("wrote {value:#x} at {} ({})", place(address), how(strength))
            }
            Event::Atomic { address, old, new, strength } => {
                format!("{old:#x} -> {new:#x} at {} ({})", place(address), how(strength))
            }
            Event::Fence(strength) => format!("fence ({})", how(strength)),
            Event::Barrier(id) => format!("passed barrier {id}"),
        }
    }
}
