//! Jobs that are created, split, shrunk and dropped: the library's root and ranks of the bootstrap,
//! with their control planes, on a simulated network. One process holds one rank of each job.
//!
//! All processes form the world and make calls; perhaps it is split into parts, which make calls of
//! their own and are dropped; then the world is. If a fault ends it, those that are left form
//! another job, make calls, and leave. With GPUs, calls are collectives of kernels and engines, and
//! whatever ends a job on the network must end its kernels.

mod act;
mod connections;
mod gpus;
mod shape;
mod strike;
mod strikes;
mod verdict;
mod wires;

use ringdove::bootstrap::stage::{Joining, Staged};
use ringdove::error::Error;
use ringdove::id::Rank;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use act::Act;
pub(crate) use act::Job;
use connections::lock;
pub use gpus::Gpus;
pub use shape::Shape;
pub use strike::Strike;
use wires::{Item, Port, Wires};

use crate::world::{Stats, World};

/// How long ranks wait for one another.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Events within such a time may come in one batch.
const BATCH: Duration = Duration::from_millis(1);
/// By then all is over, the minute included for which a rank serves others that are late.
const END: Duration = Duration::from_secs(400);
/// So long somebody stays whom others have left: longer than they serve him.
const STAY_SECONDS_MAX: u64 = 90;
/// Steps of a run, at most; thousands are usual.
const STEPS_MAX: u64 = 400_000;
/// So long lasts a batch of turns of GPUs at first: it grows by a part while nothing else happens.
const PACE: Duration = Duration::from_millis(10);
/// Once nothing has happened on the network for so long that a batch lasts this, waits expire.
const PATIENCE: Duration = Duration::from_secs(25);
/// Turns of a batch.
const BATCH_TURNS: u32 = 500;
/// Turns of GPUs, at most.
const TURNS_MAX: u64 = 4_000_000;
/// Lines of the log that a report shows.
const LINES_SHOWN: usize = 60;

/// A rank of a job, or its root.
struct Node {
    process: usize,
    job: Job,
    staged: Staged,
    is_root: bool,
    /// It has something to look at.
    is_touched: bool,
}

/// A process.
#[derive(Default)]
struct Process {
    acts: VecDeque<Act>,
    /// It has begun the first act, and waits.
    is_waiting: bool,
    /// It does nothing before.
    idle_until: Duration,
    /// It stays until then, if it waits for that.
    stays_until: Option<Duration>,
    failures: Vec<(Job, Error)>,
    is_dead: bool,
}

/// A run.
pub struct Run<'a> {
    shape: &'a Shape,
    random: fastrand::Rng,
    wires: Wires,
    nodes: BTreeMap<usize, Node>,
    next_node: usize,
    processes: Vec<Process>,
    members: BTreeMap<Job, Vec<usize>>,
    /// What has not struck yet.
    pending: Vec<Strike>,
    has_recovered: bool,
    /// When a process left a job last.
    left_at: Duration,
    gpus: Option<Gpus<'a>>,
    /// So long lasts a batch of turns of GPUs, where nothing else happens.
    pace: Duration,
    log: Vec<String>,
    stats: Stats,
}

impl<'a> Run<'a> {
    /// One that follows from the seed, perhaps with GPUs.
    pub fn new(shape: &'a Shape, seed: u64, gpus: Option<Gpus<'a>>) -> Self {
        let limit = Staged::connecting_limit(TIMEOUT);
        let mut run = Self {
            shape,
            random: fastrand::Rng::with_seed(seed ^ 0x6d65_6d62),
            wires: Wires::new(seed ^ 0x7769_7265, limit),
            nodes: BTreeMap::new(),
            next_node: 0,
            processes: (0..shape.ranks).map(|_| Process::default()).collect(),
            members: BTreeMap::new(),
            pending: shape.strikes.clone(),
            has_recovered: false,
            left_at: Duration::ZERO,
            gpus,
            pace: PACE,
            log: Vec::new(),
            stats: Stats::default(),
        };
        run.plan();
        run
    }

    /// Gives each process its acts.
    fn plan(&mut self) {
        let Shape { ranks, parts, calls, .. } = *self.shape;
        self.members.insert(Job::World, (0..ranks as usize).collect());
        for part in 0..parts {
            let of_part = (0..ranks).filter(|rank| rank % parts == part).map(|rank| rank as usize);
            self.members.insert(Job::Part(part), of_part.collect());
        }
        for process in 0..ranks {
            let mut acts = self.acts(Job::World, 0..calls);
            if parts > 0 {
                let part = Job::Part(process % parts);
                acts.extend(self.acts(part, 0..calls));
                acts.push(self.one_call(Job::World, calls));
                acts.extend(self.end_of(part));
            }
            if self.shape.stays {
                let seconds = [0, 0, 10, STAY_SECONDS_MAX][self.random.usize(..4)];
                let time = Duration::from_millis(self.random.u64(..=1000 * seconds));
                acts.push(Act::Stay(Job::World, Some(time)));
            }
            acts.extend(self.end_of(Job::World));
            if self.has(Strike::Absent { rank: process }) {
                acts = vec![Act::Join(Job::World), Act::Stay(Job::World, None)];
            }
            let longest_ms = [0, 10, 1000][self.random.usize(..3)];
            let mut idle_until = Duration::from_millis(self.random.u64(..=longest_ms));
            if self.has(Strike::Late { rank: process }) {
                idle_until = 3 * TIMEOUT;
            }
            let it = &mut self.processes[process as usize];
            (it.acts, it.idle_until) = (acts.into(), idle_until);
        }
    }

    /// A process joins a job and makes calls of it.
    fn acts(&self, job: Job, calls: Range<u32>) -> Vec<Act> {
        let mut acts = vec![Act::Join(job)];
        acts.extend(self.gpus.iter().map(|_| Act::Meet(job)));
        acts.extend(calls.map(|call| self.one_call(job, call)));
        acts
    }

    fn one_call(&self, job: Job, call: u32) -> Act {
        if self.gpus.is_some() { Act::Call(job, call) } else { Act::Gather(job, call) }
    }

    fn end_of(&self, job: Job) -> impl Iterator<Item = Act> + use<> {
        let close = self.gpus.as_ref().map(|_| Act::Close(job));
        close.into_iter().chain([Act::Leave(job)])
    }

    /// Runs until all is over.
    ///
    /// # Errors
    /// What is wrong.
    pub fn run(&mut self) -> Result<Stats, String> {
        loop {
            self.stats.turns += 1;
            if self.stats.turns > STEPS_MAX || self.wires.elapsed > END {
                return Err(self.unfinished());
            }
            self.strike();
            self.pass_notes();
            self.see_engines();
            self.act()?;
            if self.tick() {
                continue;
            }
            if self.is_over() && !self.recover() {
                return self.check().map(|()| self.stats());
            }
            let events = self.wires.next_at();
            let deadlines = self.nodes.values().filter_map(|node| node.staged.deadline());
            let deadline = deadlines.map(|at| self.wires.since_begin(at)).min();
            let idle = self.processes.iter().filter(|it| !it.is_waiting && !it.acts.is_empty());
            let idle = idle.map(|it| it.idle_until);
            let stays = self.processes.iter().filter_map(|it| it.stays_until);
            let idle = idle.chain(stays).min();
            let strike = self.next_strike_at();
            let next = [events, deadline, idle, strike].into_iter().flatten().min();
            if self.turn_gpus(next)? {
                continue;
            }
            let Some(next) = next else { return Err(self.unfinished()) };
            if events == Some(next) {
                self.pace = PACE;
                self.deliver();
            } else {
                self.wires.elapsed = self.wires.elapsed.max(next);
                self.nodes.values_mut().for_each(|node| node.is_touched = true);
            }
        }
    }

    /// Kernels, engines and hosts have turns until the next thing on the network: the longer
    /// nothing happens there, the longer they last. False where nobody has anything to do.
    fn turn_gpus(&mut self, next: Option<Duration>) -> Result<bool, String> {
        let elapsed = self.wires.elapsed;
        let strike = self.pending_turn();
        let Some(gpus) = self.gpus.as_mut().filter(|gpus| gpus.are_busy()) else {
            return Ok(false);
        };
        if next.is_some_and(|next| next <= elapsed) {
            return Ok(false);
        }
        if gpus.world.stats().turns > TURNS_MAX {
            return Err(self.unfinished());
        }
        // Those that could say that a rank is gone may have left before.
        let strikes = self.shape.strikes.len();
        if next.is_none() && self.pace > PATIENCE && gpus.expire(strikes) {
            self.pace = PACE;
            self.note("waits expire".to_owned());
            return Ok(true);
        }
        for _ in 0..BATCH_TURNS {
            gpus.world.turn()?;
            if gpus.has_notes() || strike == Some(gpus.world.stats().turns) {
                break;
            }
        }
        let end = elapsed + self.pace;
        self.pace = self.pace * 23 / 20;
        self.wires.elapsed = next.map_or(end, |next| next.min(end));
        Ok(true)
    }

    /// What the run has come to.
    pub fn stats(&self) -> Stats {
        let of_gpus = self.gpus.as_ref().map(Gpus::stats).unwrap_or_default();
        Stats { turns: self.stats.turns + of_gpus.turns, ..of_gpus }
    }

    /// What GPUs did, for a trace.
    pub fn into_world(self) -> Option<World> {
        self.gpus.map(|gpus| gpus.world)
    }

    fn note(&mut self, line: String) {
        self.log.push(format!("{:>12.6} {line}", self.wires.elapsed.as_secs_f64()));
    }

    /// What happened last.
    pub fn last_events(&self) -> String {
        let skipped = self.log.len().saturating_sub(LINES_SHOWN);
        self.log[skipped..].iter().fold(String::new(), |mut text, line| {
            let _ = writeln!(text, "  {line}");
            text
        })
    }

    fn unfinished(&self) -> String {
        let waits = |(number, it): (usize, &Process)| {
            it.acts.front().map(|act| format!("process {number} waits: {act:?}"))
        };
        let waiting: Vec<_> = self.processes.iter().enumerate().filter_map(waits).collect();
        let nodes = self.nodes.values().map(|it| format!("{:?} of {}", it.job, it.process));
        let nodes: Vec<_> = nodes.collect();
        format!("no end: {}; left: {}", waiting.join(", "), nodes.join(", "))
    }

    /// Where a rank of a job, or its root, listens.
    fn address(job: Job, process: Option<usize>) -> SocketAddr {
        let third = match job {
            Job::World => 0,
            Job::Part(part) => 1 + part as u8,
            Job::Rest => 99,
        };
        let last = process.map_or(1, |process| 10 + process as u8);
        SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, third, last)), 7000)
    }

    fn start(&mut self, process: usize, job: Job) {
        let members = &self.members[&job];
        let rank = members.iter().position(|it| *it == process).expect("it is a member") as u32;
        let rank_count = members.len() as u32;
        let now = self.wires.now();
        let root = Self::address(job, None);
        if rank == 0 {
            let staged = Staged::root(root, self.shape.fan_out, now);
            let node = Node { process, job, staged, is_root: true, is_touched: true };
            self.add(root, None, node);
        }
        let odd = self.has(Strike::Disagrees { rank: process as u32 });
        let value = if odd && job == Job::World { "another" } else { "equal" };
        let mut terms = vec![("a term".to_owned(), value.to_owned())];
        if let Some(gpus) = &self.gpus {
            terms.extend(
                gpus.terms(rank_count).expect("settings are drawn that communicators have"),
            );
        }
        let joining = Joining {
            rank: Rank(rank),
            rank_count,
            terms,
            timeout: TIMEOUT,
            root,
            listens_at: Self::address(job, Some(process)),
        };
        let (at, staged) = (joining.listens_at, Staged::rank(joining, now));
        let node = Node { process, job, staged, is_root: false, is_touched: true };
        self.add(at, Some(Rank(rank)), node);
    }

    fn add(&mut self, at: SocketAddr, rank: Option<Rank>, node: Node) {
        self.wires.listen(self.next_node, at, rank);
        self.nodes.insert(self.next_node, node);
        self.next_node += 1;
    }

    /// The node of a process's rank in a job, unless it is over.
    fn rank_node(&self, process: usize, job: Job) -> Option<usize> {
        let is_it = |node: &Node| node.process == process && node.job == job && !node.is_root;
        self.nodes.iter().find(|(_, node)| is_it(node)).map(|(number, _)| *number)
    }

    /// The bytes of a process in a call.
    fn bytes(job: Job, process: usize, call: u32) -> Vec<u8> {
        format!("{job:?} {process} {call}").repeat(1 + process % 3).into_bytes()
    }

    /// Lets processes begin acts, and sees which have ended.
    fn act(&mut self) -> Result<(), String> {
        for process in 0..self.processes.len() {
            let it = &self.processes[process];
            let Some(act) = it.acts.front().copied().filter(|_| !it.is_dead) else { continue };
            if !it.is_waiting && it.idle_until <= self.wires.elapsed {
                self.note(format!("process {process} begins {act:?}"));
                self.processes[process].is_waiting = true;
                self.begin(process, act)?;
            }
            if self.processes[process].is_waiting {
                self.look(process, act)?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, process: usize, act: Act) -> Result<(), String> {
        let told = match (act, &mut self.gpus) {
            (Act::Join(job), _) => {
                self.start(process, job);
                return Ok(());
            }
            (Act::Call(job, call), Some(gpus)) => {
                let what = gpus.call(process, job, call)?;
                self.note(format!("process {process} launches {what}"));
                return Ok(());
            }
            (Act::Close(_), _) => return Ok(()),
            (Act::Stay(_, time), _) => {
                let until = time.map(|time| self.wires.elapsed + time);
                self.processes[process].stays_until = until;
                return Ok(());
            }
            (Act::Meet(job), Some(gpus)) => {
                let members = &self.members[&job];
                let rank = members.iter().position(|it| *it == process);
                let rank = rank.expect("it is a member") as u32;
                gpus.enter(process, job, (rank, members.len() as u32))?
            }
            _ => Vec::new(),
        };
        let Some(number) = self.rank_node(process, act.job()) else { return Ok(()) };
        let node = self.nodes.get_mut(&number).expect("it was found");
        node.is_touched = true;
        let mut port = Port { wires: &mut self.wires, node: number };
        match act {
            Act::Gather(job, call) => {
                node.staged.gather(&mut port, Self::bytes(job, process, call), TIMEOUT);
            }
            Act::Meet(_) => node.staged.gather(&mut port, told, TIMEOUT),
            _ => {
                self.left_at = port.wires.elapsed;
                node.staged.leave(&mut port);
            }
        }
        Ok(())
    }

    /// Has a process's act ended?
    fn look(&mut self, process: usize, act: Act) -> Result<(), String> {
        let job = act.job();
        if let (Act::Close(job), Some(gpus)) = (act, &mut self.gpus) {
            if gpus.close(process, job)? {
                self.end(process, act);
                return Ok(());
            }
            // Whoever waits for credits looks whether the job goes on.
            let waits = gpus.awaits_credits(process, job);
            let number = self.rank_node(process, job).filter(|_| waits);
            if let Some(error) = number.and_then(|it| self.nodes[&it].staged.failure()) {
                self.fail(process, job, error);
            }
            return Ok(());
        }
        let Some(number) = self.rank_node(process, job) else {
            return Err(format!("process {process} has lost its rank of {job:?}"));
        };
        let has_expired = |gpus: &Gpus<'_>| gpus.has_expired(process, job);
        if matches!(act, Act::Call(..)) && self.gpus.as_ref().is_some_and(has_expired) {
            self.expire(process, job, number);
            return Ok(());
        }
        let staged = &mut self.nodes.get_mut(&number).expect("it was found").staged;
        if let Some(error) = staged.failure() {
            // Whoever leaves does not ask.
            if !matches!(act, Act::Leave(_)) {
                self.fail(process, job, error);
                return Ok(());
            }
        }
        let has_ended = match act {
            Act::Join(_) => staged.is_live(),
            Act::Stay(..) => {
                let until = self.processes[process].stays_until;
                until.is_some_and(|until| until <= self.wires.elapsed)
            }
            Act::Leave(_) | Act::Close(_) => true,
            Act::Call(..) => self.gpus.as_ref().is_none_or(|it| it.has_ended(process, job)),
            Act::Meet(_) => match (staged.take_result(), &mut self.gpus) {
                (Some(told), Some(gpus)) => {
                    let connector = gpus.meet(process, job, (&told, self.wires.now()))?;
                    if let Some(connector) = connector {
                        staged.on_note(move |from, bytes| {
                            lock(&connector).inbox.push_back((from, bytes.to_vec()));
                        });
                    }
                    true
                }
                _ => false,
            },
            Act::Gather(_, call) => match staged.take_result() {
                None => false,
                Some(result) => {
                    let members = &self.members[&job];
                    let expected = members.iter().map(|it| Self::bytes(job, *it, call));
                    if !expected.eq(result.iter().cloned()) {
                        return Err(format!("process {process} got other bytes by {act:?}"));
                    }
                    true
                }
            },
        };
        if has_ended {
            self.end(process, act);
        }
        Ok(())
    }

    /// A process has done an act, and may begin the next one after a while.
    fn end(&mut self, process: usize, act: Act) {
        self.note(format!("process {process} has done {act:?}"));
        let longest_us = [0, 100, 10_000, 500_000][self.random.usize(..4)];
        let pause = Duration::from_micros(self.random.u64(..=longest_us));
        let it = &mut self.processes[process];
        it.acts.pop_front();
        it.stays_until = None;
        (it.is_waiting, it.idle_until) = (false, self.wires.elapsed + pause);
        self.pace = PACE;
    }

    /// A process learns that a job has ended: it drops all that it has, but for roots, which serve
    /// until all know.
    fn fail(&mut self, process: usize, job: Job, error: Error) {
        self.note(format!("process {process} sees that {job:?} failed: {error}"));
        let it = &mut self.processes[process];
        it.acts.clear();
        (it.is_waiting, it.stays_until) = (false, None);
        it.failures.push((job, error));
        if let Some(gpus) = &mut self.gpus {
            for job in gpus.jobs_of(process) {
                gpus.abort(process, job);
                it.acts.push_back(Act::Close(job));
            }
            self.pace = PACE;
        }
        for number in self.nodes_of(process) {
            let node = self.nodes.get_mut(&number).expect("it was found");
            node.is_touched = true;
            if !node.is_root && !node.staged.is_finished() {
                node.staged.leave(&mut Port { wires: &mut self.wires, node: number });
            }
        }
    }

    fn nodes_of(&self, process: usize) -> Vec<usize> {
        let own = self.nodes.iter().filter(|(_, node)| node.process == process);
        own.map(|(number, _)| *number).collect()
    }

    /// Lets all that were touched look at what came, and forgets those that are over.
    ///
    /// True if anybody did.
    fn tick(&mut self) -> bool {
        let mut has_ticked = false;
        let touched = self.nodes.iter().filter(|(_, node)| node.is_touched);
        let touched: Vec<_> = touched.map(|(number, _)| *number).collect();
        for number in touched {
            // Others have their turn first, now and then: events come in batches.
            let soon = self.wires.elapsed + BATCH;
            if self.wires.next_at().is_some_and(|at| at <= soon) && self.random.u32(..8) == 0 {
                continue;
            }
            has_ticked = true;
            let node = self.nodes.get_mut(&number).expect("it was found");
            node.is_touched = false;
            if !node.staged.is_finished() {
                node.staged.tick(&mut Port { wires: &mut self.wires, node: number });
            }
            let is_awaited = self.is_awaited(number);
            let node = &self.nodes[&number];
            if node.staged.is_finished() {
                self.wires.end_all(number);
                if is_awaited {
                    continue;
                }
                self.nodes.remove(&number);
            }
        }
        has_ticked
    }

    /// Will its process still ask what became of it?
    fn is_awaited(&self, number: usize) -> bool {
        let node = &self.nodes[&number];
        let acts = &self.processes[node.process].acts;
        self.rank_node(node.process, node.job) == Some(number)
            && acts.iter().any(|act| act.job() == node.job && !matches!(act, Act::Close(_)))
    }

    /// The next thing on the network reaches somebody.
    fn deliver(&mut self) {
        let Some((number, connection, item)) = self.wires.take() else { return };
        let Some(node) = self.nodes.get_mut(&number).filter(|it| !it.staged.is_finished()) else {
            return;
        };
        node.is_touched = true;
        let mut port = Port { wires: &mut self.wires, node: number };
        match item {
            Item::Opened { peer, address, accepted } => {
                node.staged.opened(&mut port, (connection, peer), address, accepted);
            }
            Item::Message(bytes) => node.staged.message(&mut port, connection, bytes),
            Item::Closed(cause) => node.staged.closed(&mut port, connection, cause),
        }
    }
}
