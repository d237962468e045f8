//! What communicators do on the GPUs of processes: the ranks of a job lay their memory out, tell
//! each other where it lies, get ports, lanes and routes, run collectives by the plans that the
//! library chooses, leave their engines, and are gone. Layout, checks, ports, routes and plans are
//! the library's (`ringdove::communicator::stage`); kernels, proxies and hosts are those of all
//! scenarios. What is told goes by the job's own control plane, and an error of it is what raises
//! the abort words.

use hwsim_ptx::Kernel;
use hwsim_ptx::weak::WeakMemory;
use ringdove::communicator::stage::StagedRank;
use ringdove::id::Rank as RankId;
use ringdove::plan::{Collective, CollectiveRequest};
use ringdove::{Settings, Stores};
use ringdove_kernels::launch::CallArguments;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use super::Job;
use crate::engine::{Engine, HostMutant, Manner};
use crate::rank::{LAUNCH, NEVER_NS, Rank};
use crate::world::{Stats, World};

/// Words of an input that differ from those of every other call.
const WORDS: u32 = 4096;
/// What a record says of a wait that has expired, and of one that was aborted.
const EXPIRED: u32 = 1;
const ABORTED: u32 = 2;

/// What is drawn of the GPUs of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks of a launch, at most.
    pub blocks: u32,
    /// Threads of a block, at most.
    pub threads: u32,
    /// Bytes of a slot.
    pub slot_bytes: u32,
    /// Bytes of a low-latency message; 0: there are none.
    pub low_latency_bytes: u32,
    /// Lanes of stores of a pair.
    pub store_blocks: u32,
    /// When messages go by stores.
    pub stores: Stores,
    /// Slots of a ring, as a power of two.
    pub ring_log2: u32,
    /// Bytes of a call, at most.
    pub bytes: u32,
    /// How engines work.
    pub manner: Manner,
    /// What goes wrong does so at this turn of GPUs, and not at a time.
    pub strikes_at: Option<u64>,
}

impl Shape {
    /// Draws one.
    pub fn draw(random: &mut fastrand::Rng) -> Self {
        let low_latency_bytes = [0, 64, 256][random.usize(..3)];
        let stores = [Stores::Auto, Stores::Never, Stores::Always][random.usize(..3)];
        let mut shape = Self {
            blocks: random.u32(1..=2),
            threads: [32, 64][random.usize(..2)],
            slot_bytes: [512, 1024][random.usize(..2)],
            low_latency_bytes,
            store_blocks: random.u32(0..=2),
            stores,
            ring_log2: random.u32(1..=4),
            bytes: [64, 256, 1024][random.usize(..3)],
            manner: Manner::draw(random, true),
            // While kernels wait, mostly.
            strikes_at: (random.u32(..4) > 0).then(|| 1 << random.u32(3..=12)),
        };
        if let Some(turn) = &mut shape.strikes_at {
            *turn += random.u64(..*turn);
        }
        shape
    }

    fn settings(&self) -> Settings {
        Settings {
            blocks_max: self.blocks,
            slot_bytes: self.slot_bytes,
            slot_count: 2,
            low_latency_bytes: self.low_latency_bytes,
            store_blocks: self.store_blocks,
            stores: self.stores,
            ..Settings::default()
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { blocks, threads, slot_bytes, low_latency_bytes, .. } = self;
        let Manner { batch, coalesce_bytes, room, splits, .. } = self.manner;
        write!(
            f,
            ", {blocks} blocks of {threads} threads at most, slots of {slot_bytes} bytes, \
             low-latency messages of {low_latency_bytes}, {} lanes of stores ({:?}), rings of {}, \
             calls of {} bytes at most, batches of {batch}, merged to {coalesce_bytes} bytes, room \
             for {room} transfers",
            self.store_blocks,
            self.stores,
            1 << self.ring_log2,
            self.bytes
        )?;
        if splits { write!(f, ", piece by piece") } else { Ok(()) }
    }
}

/// A call that a rank has made.
struct Made {
    call: u32,
    request: CollectiveRequest,
    output: u64,
}

/// A rank of a job on the GPU of its process.
struct Member {
    staged: StagedRank,
    rank: Rank,
    /// Its number in the world, once all have met.
    at: Option<usize>,
    calls: Vec<Made>,
    is_aborted: bool,
    is_closing: bool,
    has_closed: bool,
}

/// All GPUs of a run.
pub struct Gpus<'a> {
    shape: &'a Shape,
    memory: Rc<WeakMemory>,
    kernel: Arc<Kernel>,
    /// Whose turn it is.
    pub world: World,
    members: BTreeMap<(usize, Job), Member>,
    seed: u64,
    mutant: Option<HostMutant>,
    /// Deadlines of waits have passed.
    have_expired: bool,
}

impl<'a> Gpus<'a> {
    /// Without ranks.
    pub fn new(
        shape: &'a Shape,
        memory: &Rc<WeakMemory>,
        kernel: &Arc<Kernel>,
        (seed, mutant): (u64, Option<HostMutant>),
    ) -> Self {
        Self {
            shape,
            memory: Rc::clone(memory),
            kernel: Arc::clone(kernel),
            world: World::new(memory, seed.rotate_left(32) ^ 0x6770_7573),
            members: BTreeMap::new(),
            seed,
            mutant,
            have_expired: false,
        }
    }

    /// What ranks of a job agree on.
    pub fn terms(&self, rank_count: u32) -> Result<Vec<(String, String)>, String> {
        let settings = self.shape.settings();
        let staged = StagedRank::new(RankId(0), rank_count, &settings);
        staged.map(|staged| staged.terms(&settings)).map_err(|error| error.to_string())
    }

    /// A process lays out its rank of a job. Gives what the others have to know.
    pub fn enter(
        &mut self,
        process: usize,
        job: Job,
        (number, rank_count): (u32, u32),
    ) -> Result<Vec<u8>, String> {
        let settings = self.shape.settings();
        let staged = StagedRank::new(RankId(number), rank_count, &settings);
        let mut staged = staged.map_err(|error| error.to_string())?;
        let mut rank = Rank::new(&self.memory, number, rank_count, self.shape.ring_log2, NEVER_NS);
        let [signals, staging] = staged.memory_bytes();
        let signals = rank.allocate("signals", signals.max(8));
        let staging = rank.allocate("staging", staging.max(8));
        rank.communicator.staging = staging;
        let told = staged.place(signals, staging);
        let member = Member {
            staged,
            rank,
            at: None,
            calls: Vec::new(),
            is_aborted: false,
            is_closing: false,
            has_closed: false,
        };
        self.members.insert((process, job), member);
        Ok(told)
    }

    /// A rank knows where all others are: it gets its ports, and an engine.
    pub fn meet(&mut self, process: usize, job: Job, told: &[Vec<u8>]) -> Result<(), String> {
        let member = self.members.get_mut(&(process, job)).expect("it has entered");
        member.staged.meet(told).map_err(|error| error.to_string())?;
        for port in member.staged.ports() {
            member.rank.add_port(port);
        }
        member.rank.publish();
        let manner = Manner { mutant: self.mutant, ..self.shape.manner };
        let lanes = member.rank.ports.len();
        let (rank, staged) = (&member.rank, &member.staged);
        let tell = |handle: &_| staged.register(handle);
        let engine = Engine::told(&self.memory, rank, (lanes, manner), tell)?;
        let abort = [rank.communicator.abort];
        member.at = Some(self.world.add(rank, engine, process as u32, (self.mutant, &abort)));
        Ok(())
    }

    /// What all ranks of a job do in a call.
    fn request(&self, job: Job, call: u32, rank_count: u32) -> CollectiveRequest {
        let mut random = fastrand::Rng::with_seed(self.seed ^ u64::from(job.number() << 8 | call));
        let root = random.u32(..rank_count);
        let collective = [
            Collective::AllReduce,
            Collective::AllReduce,
            Collective::AllGather,
            Collective::ReduceScatter,
            Collective::Broadcast { root },
            Collective::Reduce { root },
            Collective::AllToAll,
            Collective::Gather { root },
            Collective::Scatter { root },
            Collective::Barrier,
        ][random.usize(..10)];
        let bytes = 4 * u64::from(random.u32(1..=self.shape.bytes / 4));
        CollectiveRequest::new(
            collective,
            rank_count,
            if collective == Collective::Barrier { 0 } else { bytes },
        )
    }

    /// The number at a place of a rank's input.
    fn word(job: Job, call: u32, rank: u32, index: u64) -> u32 {
        // Never zero, and no two alike.
        (((job.number() * 8 + call) * WORDS + index as u32) + 1) * 8 + rank
    }

    /// A rank calls: its kernel is launched.
    pub fn call(&mut self, process: usize, job: Job, call: u32) -> Result<String, String> {
        let rank_count = self.members[&(process, job)].rank.communicator.rank_count;
        let request = self.request(job, call, rank_count);
        let member = self.members.get_mut(&(process, job)).expect("it has entered");
        let at = member.at.expect("all have met");
        let number = member.rank.number;
        let plan = member.staged.collective(&request, self.shape.threads);
        let plan = plan.map_err(|error| error.to_string())?;
        let [input, output] = [request.input_bytes(number), request.output_bytes(number)];
        let words = input / 4;
        let input = member.rank.allocate(&format!("input {call}"), input.max(16));
        let output = member.rank.allocate(&format!("output {call}"), output.max(16));
        let data: Vec<_> = (0..words).map(|index| Self::word(job, call, number, index)).collect();
        member.rank.set(input, bytemuck::cast_slice(&data));
        let arguments = CallArguments { buffers: [input, output, 0, 0], ..Default::default() };
        let launch = member.calls.len() as u64;
        let params = member.rank.launch(launch, &plan.bytes, &[arguments]);
        self.world.launch(at as u32, &self.kernel, (plan.blocks, plan.threads), params);
        member.calls.push(Made { call, request, output });
        Ok(format!(
            "{} of {} bytes by {}",
            request.collective.name(),
            request.bytes,
            plan.algorithm
        ))
    }

    /// Waits expire that nobody ends. False: they have already.
    pub fn expire(&mut self) -> bool {
        if std::mem::replace(&mut self.have_expired, true) {
            return false;
        }
        self.world.pass_deadlines();
        true
    }

    /// Has a wait of a rank's kernel expired, and does its host know?
    pub fn has_expired(&self, process: usize, job: Job) -> bool {
        let member = self.members.get(&(process, job));
        let is_expired = member.is_some_and(|member| member.rank.record().state == EXPIRED);
        is_expired && self.has_ended(process, job)
    }

    /// Have all kernels of a rank ended?
    pub fn has_ended(&self, process: usize, job: Job) -> bool {
        let at = self.members.get(&(process, job)).and_then(|member| member.at);
        at.is_none_or(|at| self.world.is_at_rest(at))
    }

    /// The control plane of a rank has failed: its kernels shall end.
    pub fn abort(&mut self, process: usize, job: Job) {
        let Some(member) = self.members.get_mut(&(process, job)) else { return };
        member.is_aborted = true;
        if let Some(at) = member.at {
            self.world.hosts[at].alarm();
        }
    }

    /// Jobs of which a process has a rank that is not gone.
    pub fn jobs_of(&self, process: usize) -> Vec<Job> {
        let own = self.members.iter().filter(|((of, _), it)| *of == process && !it.has_closed);
        own.map(|((_, job), _)| *job).collect()
    }

    /// A rank is dropped: once its kernels have ended it leaves its engine. True when it is gone.
    pub fn close(&mut self, process: usize, job: Job) -> Result<bool, String> {
        if !self.has_ended(process, job) {
            return Ok(false);
        }
        let Some(member) = self.members.get_mut(&(process, job)) else { return Ok(true) };
        let Some(at) = member.at.filter(|_| !member.has_closed) else {
            member.has_closed = true;
            return Ok(true);
        };
        let engine = &mut self.world.engines[at];
        if !std::mem::replace(&mut member.is_closing, true) {
            engine.leave();
        }
        let Some(unfinished) = engine.left() else { return Ok(false) };
        if let Some(unfinished) = unfinished {
            return Err(format!("process {process} leaves the engine of {job:?}: {unfinished}"));
        }
        member.has_closed = true;
        self.world.remove(at);
        Ok(true)
    }

    /// A process dies.
    pub fn kill(&mut self, process: usize) {
        for ((of, _), member) in &self.members {
            if let Some(at) = member.at.filter(|_| *of == process && !member.has_closed) {
                self.world.kill(at);
            }
        }
        self.members.retain(|(of, _), _| *of != process);
    }

    /// Does a kernel run, or an engine leave?
    pub fn are_busy(&self) -> bool {
        self.members.values().any(|member| {
            let open = member.at.filter(|_| !member.has_closed);
            open.is_some_and(|at| member.is_closing || !self.world.is_at_rest(at))
        })
    }

    /// What they have come to.
    pub fn stats(&self) -> Stats {
        let is_aborted = |member: &&Member| member.rank.record().state == ABORTED;
        let aborted = self.members.values().filter(is_aborted).count() as u64;
        Stats { aborted, ..self.world.stats() }
    }

    /// What ranks have is right, and what ended early was aborted.
    pub fn check(&self, is_left: impl Fn(usize) -> bool) -> Result<(), String> {
        for ((process, job), member) in self.members.iter().filter(|((of, _), _)| is_left(*of)) {
            let record = member.rank.record();
            let failed = record.state != 0;
            let may_be = record.state == ABORTED || self.have_expired && record.state == EXPIRED;
            if failed && !(member.is_aborted && may_be) {
                return Err(format!("{job:?} of process {process} was not aborted: {record:?}"));
            }
            // Those before the one that was aborted.
            let whole = if failed { record.sequence.saturating_sub(LAUNCH) } else { u64::MAX };
            for (_, made) in (0..whole).zip(&member.calls) {
                self.check_call(*job, member, made)
                    .map_err(|why| format!("{job:?} of process {process}: {why}"))?;
            }
        }
        Ok(())
    }

    fn check_call(&self, job: Job, member: &Member, made: &Made) -> Result<(), String> {
        let Made { call, request, output } = made;
        let count = request.bytes / 4;
        for delivery in request.deliveries(member.rank.number) {
            let mut found = vec![0; 4 * count as usize];
            self.memory.get(output + delivery.offset, &mut found).expect("it was allocated");
            for (index, found) in (0..count).zip(found.as_chunks::<4>().0) {
                let place = delivery.source / 4 + index;
                let expected: u32 = match delivery.from {
                    Some(peer) => Self::word(job, *call, peer, place),
                    None => (0..request.rank_count)
                        .map(|rank| Self::word(job, *call, rank, place))
                        .fold(0, u32::wrapping_add),
                };
                let found = u32::from_le_bytes(*found);
                if found != expected {
                    let name = request.collective.name();
                    return Err(format!(
                        "call {call}, {name}: {found:#x} at word {index}, not {expected:#x}"
                    ));
                }
            }
        }
        Ok(())
    }
}
