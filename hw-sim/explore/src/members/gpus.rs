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
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::Job;
use super::connections::{Asks, Connector, Outgoing, Shared, lock};
use super::strike::Strike;
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
    /// Ranks reach each other by adapters, whose connections are made when a lane needs them.
    pub connects: bool,
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
            connects: false,
        };
        if let Some(turn) = &mut shape.strikes_at {
            *turn += random.u64(..*turn);
        }
        shape
    }

    /// Ranks are on nodes of their own: no lane is one of stores.
    pub fn connect(&mut self) {
        self.connects = true;
        (self.low_latency_bytes, self.store_blocks, self.stores) = (0, 0, Stores::Never);
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
        if splits {
            write!(f, ", piece by piece")?;
        }
        if self.connects { write!(f, ", by adapters") } else { Ok(()) }
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
    /// Deadlines of its waits have passed. Those of a job that is formed later have not.
    has_expired: bool,
    /// Its connections, where it has a way by an adapter.
    connector: Option<Arc<Mutex<Connector>>>,
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
    /// How often deadlines of waits have passed.
    expirations: usize,
    shared: Shared,
    /// Processes that take no notes of connections.
    silent: Vec<usize>,
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
            expirations: 0,
            shared: Shared::new(seed),
            silent: Vec::new(),
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
            has_expired: false,
            connector: None,
        };
        self.members.insert((process, job), member);
        Ok(told)
    }

    /// A rank knows where all others are: it gets its ports, and an engine.
    ///
    /// Where they have adapters, gives what takes the notes of its peers.
    pub(super) fn meet(
        &mut self,
        process: usize,
        job: Job,
        (told, now): (&[Vec<u8>], Instant),
    ) -> Result<Option<Arc<Mutex<Connector>>>, String> {
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
        let mut engine = Engine::told(&self.memory, rank, (lanes, manner), tell)?;
        member.connector = self.shape.connects.then(|| {
            let peers = rank.ports.iter().map(|port| RankId(port.peer)).collect();
            let of = (process, job, RankId(rank.number));
            Arc::new(Mutex::new(Connector::new(&self.shared, of, peers, now)))
        });
        if let Some(connector) = &member.connector {
            engine.go_by(Box::new(Asks(Arc::clone(connector))));
        }
        let abort = [rank.communicator.abort];
        member.at = Some(self.world.add(rank, engine, process as u32, (self.mutant, &abort)));
        Ok(member.connector.clone())
    }

    /// It is now so late.
    pub fn set_now(&self, now: Instant) {
        self.connectors().for_each(|(_, connector)| lock(connector).now = now);
    }

    fn connectors(&self) -> impl Iterator<Item = (usize, &Arc<Mutex<Connector>>)> {
        self.members
            .iter()
            .filter_map(|((process, _), member)| Some((*process, member.connector.as_ref()?)))
    }

    /// Ranks take the notes that have come for them.
    pub fn take_notes(&self) {
        let hears = |(process, _): &(usize, _)| !self.silent.contains(process);
        self.connectors().filter(hears).for_each(|(_, connector)| lock(connector).receive());
    }

    /// Does a rank want a note to be sent?
    pub fn has_notes(&self) -> bool {
        !lock(&self.shared.outgoing).is_empty()
    }

    /// What ranks want to be sent.
    pub(super) fn notes(&self) -> Vec<Outgoing> {
        std::mem::take(&mut lock(&self.shared.outgoing))
    }

    /// All queue pairs of a process fail.
    pub fn reset_adapter(&self, process: usize) {
        lock(&self.shared.fabric).reset(process);
    }

    /// An adapter loses or delays messages.
    pub fn disturb_adapter(&self, strike: Strike) {
        lock(&self.shared.fabric).disturb_by(strike);
    }

    /// The adapter of a process makes no queue pairs any more.
    pub fn refuse_pairs(&self, process: usize) {
        lock(&self.shared.fabric).refuse(process);
    }

    /// A process takes no notes of connections any more.
    pub fn silence(&mut self, process: usize) {
        self.silent.push(process);
    }

    /// Adapters and processes do what they should.
    pub fn heal(&mut self) {
        self.silent.clear();
        lock(&self.shared.fabric).heal();
    }

    /// Ranks whose engines have failed, and whose hosts have not ended the job yet; why.
    pub fn failed_engines(&self) -> Vec<(usize, Job, String)> {
        let failed = |((process, job), member): (&(usize, Job), &Member)| {
            let at = member.at.filter(|_| !member.has_closed && !member.is_aborted)?;
            Some((*process, *job, self.world.engines[at].failure()?))
        };
        self.members.iter().filter_map(failed).collect()
    }

    /// May a rank not leave yet, because its peers would return credits to nobody?
    pub fn awaits_credits(&self, process: usize, job: Job) -> bool {
        self.members.get(&(process, job)).is_some_and(|member| self.has_unread(member))
    }

    /// Has this rank, which goes by an adapter, sent what its peers have not read?
    fn has_unread(&self, member: &Member) -> bool {
        let rank = &member.rank;
        // The wait for credits has a limit, too.
        let is_over = member.has_expired || member.is_aborted || member.has_closed;
        if member.connector.is_none() || is_over {
            return false;
        }
        let mut ports = rank.ports.clone();
        let read = self.memory.get(rank.communicator.ports, bytemuck::cast_slice_mut(&mut ports));
        read.expect("they were published");
        let returned = |address: u64| {
            let mut word = [0; 8];
            self.memory.get(address, &mut word).expect("it was allocated");
            u64::from_le_bytes(word)
        };
        let sends = ports.iter().filter(|port| port.completion != 0);
        sends.into_iter().any(|port| returned(port.signal) < port.position)
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

    /// Waits expire that nobody ends. False: they have already so often.
    pub fn expire(&mut self, times_max: usize) -> bool {
        if self.expirations >= times_max {
            return false;
        }
        self.expirations += 1;
        self.members.values_mut().for_each(|member| member.has_expired = true);
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
        if let Some(connector) = &member.connector {
            lock(connector).end();
        }
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
        if !self.has_ended(process, job) || self.awaits_credits(process, job) {
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
        if let Some(connector) = &member.connector {
            lock(connector).close();
        }
        self.world.remove(at);
        Ok(true)
    }

    /// A process dies.
    pub fn kill(&mut self, process: usize) {
        for ((of, _), member) in &self.members {
            if let Some(at) = member.at.filter(|_| *of == process && !member.has_closed) {
                self.world.kill(at);
            }
            if let Some(connector) = member.connector.as_ref().filter(|_| *of == process) {
                lock(connector).close();
            }
        }
        self.members.retain(|(of, _), _| *of != process);
    }

    /// Does a kernel run, or an engine leave?
    pub fn are_busy(&self) -> bool {
        self.members.values().any(|member| {
            let open = member.at.filter(|_| !member.has_closed);
            // Whoever waits for credits waits for an engine, too.
            let waits = member.connector.is_some() && !member.is_aborted;
            open.is_some_and(|at| {
                member.is_closing || !self.world.is_at_rest(at) || waits && self.has_unread(member)
            })
        })
    }

    /// What they have come to.
    pub fn stats(&self) -> Stats {
        let is_aborted = |member: &&Member| member.rank.record().state == ABORTED;
        let aborted = self.members.values().filter(is_aborted).count() as u64;
        let connections = lock(&self.shared.fabric).made;
        Stats { aborted, connections, ..self.world.stats() }
    }

    /// What ranks have is right, what ended early was aborted, and queue pairs are gone with their
    /// ranks.
    pub fn check(&self, is_left: impl Fn(usize) -> bool) -> Result<(), String> {
        for process in self.members.keys().map(|(process, _)| *process) {
            let pairs = lock(&self.shared.fabric).pairs_of(process);
            if pairs > 0 {
                return Err(format!("process {process} has left {pairs} queue pairs"));
            }
        }
        for ((process, job), member) in self.members.iter().filter(|((of, _), _)| is_left(*of)) {
            let record = member.rank.record();
            let failed = record.state != 0;
            let may_be = record.state == ABORTED || member.has_expired && record.state == EXPIRED;
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
