//! Jobs that are created, split, shrunk and dropped: the library's root and ranks of the bootstrap,
//! with their control planes, on a simulated network. One process holds one rank of each job.
//!
//! All processes form the world and make calls; perhaps it is split into parts, which make calls of
//! their own and are dropped; then the world is. If a fault ends it, those that are left form
//! another job, make calls, and leave.

mod shape;
mod wires;

use ringdove::bootstrap::stage::{Joining, Staged};
use ringdove::error::{BootstrapError, Error};
use ringdove::id::Rank;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

pub use shape::{Shape, Strike};
use wires::{Item, Port, Wires};

use crate::world::Stats;

/// How long ranks wait for one another.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Events within such a time may come in one batch.
const BATCH: Duration = Duration::from_millis(1);
/// By then all is over, the minute included for which a rank serves others that are late.
const END: Duration = Duration::from_secs(400);
/// Steps of a run, at most; thousands are usual.
const STEPS_MAX: u64 = 400_000;
/// Lines of the log that a report shows.
const LINES_SHOWN: usize = 60;

/// Which job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Job {
    World,
    Part(u32),
    /// Of those that are left.
    Rest,
}

/// What a process does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Join(Job),
    Gather(Job, u32),
    Leave(Job),
}

impl Act {
    fn job(self) -> Job {
        match self {
            Self::Join(job) | Self::Gather(job, _) | Self::Leave(job) => job,
        }
    }
}

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
    strike: Option<Strike>,
    has_recovered: bool,
    log: Vec<String>,
    stats: Stats,
}

impl<'a> Run<'a> {
    /// One that follows from the seed.
    pub fn new(shape: &'a Shape, seed: u64) -> Self {
        let limit = Staged::connecting_limit(TIMEOUT);
        let mut run = Self {
            shape,
            random: fastrand::Rng::with_seed(seed ^ 0x6d65_6d62),
            wires: Wires::new(seed ^ 0x7769_7265, limit),
            nodes: BTreeMap::new(),
            next_node: 0,
            processes: (0..shape.ranks).map(|_| Process::default()).collect(),
            members: BTreeMap::new(),
            strike: shape.strike,
            has_recovered: false,
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
            let mut acts = vec![Act::Join(Job::World)];
            acts.extend((0..calls).map(|call| Act::Gather(Job::World, call)));
            if parts > 0 {
                let part = Job::Part(process % parts);
                acts.push(Act::Join(part));
                acts.extend((0..calls).map(|call| Act::Gather(part, call)));
                acts.extend([Act::Gather(Job::World, calls), Act::Leave(part)]);
            }
            acts.push(Act::Leave(Job::World));
            let longest_ms = [0, 10, 1000][self.random.usize(..3)];
            let mut idle_until = Duration::from_millis(self.random.u64(..=longest_ms));
            if self.shape.strike == Some(Strike::Late { rank: process }) {
                idle_until = 3 * TIMEOUT;
            }
            let it = &mut self.processes[process as usize];
            (it.acts, it.idle_until) = (acts.into(), idle_until);
        }
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
            self.act()?;
            if self.tick() {
                continue;
            }
            if self.is_over() && !self.recover() {
                return self.check().map(|()| self.stats);
            }
            let events = self.wires.next_at();
            let deadlines = self.nodes.values().filter_map(|node| node.staged.deadline());
            let deadline = deadlines.map(|at| self.wires.since_begin(at)).min();
            let idle = self.processes.iter().filter(|it| !it.is_waiting && !it.acts.is_empty());
            let idle = idle.map(|it| it.idle_until).min();
            let strike = self.strike.and_then(Strike::at);
            let Some(next) = [events, deadline, idle, strike].into_iter().flatten().min() else {
                return Err(self.unfinished());
            };
            if events == Some(next) {
                self.deliver();
            } else {
                self.wires.elapsed = self.wires.elapsed.max(next);
                self.nodes.values_mut().for_each(|node| node.is_touched = true);
            }
        }
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
        let odd = self.shape.strike == Some(Strike::Disagrees { rank: process as u32 });
        let value = if odd && job == Job::World { "another" } else { "equal" };
        let joining = Joining {
            rank: Rank(rank),
            rank_count,
            terms: vec![("a term".to_owned(), value.to_owned())],
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
                self.begin(process, act);
            }
            if self.processes[process].is_waiting {
                self.look(process, act)?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, process: usize, act: Act) {
        if let Act::Join(job) = act {
            return self.start(process, job);
        }
        let Some(number) = self.rank_node(process, act.job()) else { return };
        let deadline = self.wires.now() + TIMEOUT;
        let node = self.nodes.get_mut(&number).expect("it was found");
        node.is_touched = true;
        let mut port = Port { wires: &mut self.wires, node: number };
        match act {
            Act::Gather(job, call) => {
                node.staged.gather(&mut port, Self::bytes(job, process, call), deadline);
            }
            _ => node.staged.leave(&mut port),
        }
    }

    /// Has a process's act ended?
    fn look(&mut self, process: usize, act: Act) -> Result<(), String> {
        let job = act.job();
        let Some(number) = self.rank_node(process, job) else {
            return Err(format!("process {process} has lost its rank of {job:?}"));
        };
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
            Act::Leave(_) => true,
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
            self.note(format!("process {process} has done {act:?}"));
            let longest_us = [0, 100, 10_000, 500_000][self.random.usize(..4)];
            let pause = Duration::from_micros(self.random.u64(..=longest_us));
            let it = &mut self.processes[process];
            it.acts.pop_front();
            (it.is_waiting, it.idle_until) = (false, self.wires.elapsed + pause);
        }
        Ok(())
    }

    /// A process learns that a job has ended: it drops all that it has, but for roots, which serve
    /// until all know.
    fn fail(&mut self, process: usize, job: Job, error: Error) {
        self.note(format!("process {process} sees that {job:?} failed: {error}"));
        let it = &mut self.processes[process];
        it.acts.clear();
        it.is_waiting = false;
        it.failures.push((job, error));
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
            && acts.iter().any(|act| act.job() == node.job)
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

    /// Does what the fault does, when its time has come.
    fn strike(&mut self) {
        let due = |strike: &Strike| strike.at().is_none_or(|at| at <= self.wires.elapsed);
        let Some(strike) = self.strike.filter(due) else { return };
        self.strike = None;
        self.note(format!("{strike}"));
        match strike {
            Strike::Dies { rank, .. } => {
                let process = rank as usize;
                for number in self.nodes_of(process) {
                    self.wires.kill(number);
                    self.nodes.remove(&number);
                }
                let it = &mut self.processes[process];
                it.acts.clear();
                (it.is_dead, it.is_waiting) = (true, false);
            }
            Strike::CutOff { rank, .. } => {
                for number in self.nodes_of(rank as usize) {
                    self.wires.cut_off(number);
                }
            }
            Strike::Reset { rank, .. } => {
                for number in self.nodes_of(rank as usize) {
                    let connections = self.wires.connections_of(number);
                    if !connections.is_empty() {
                        let chosen = connections[self.random.usize(..connections.len())];
                        return self.wires.reset(chosen);
                    }
                }
            }
            Strike::Aborts { rank, .. } => {
                let Some(number) = self.rank_node(rank as usize, Job::World) else { return };
                let node = self.nodes.get_mut(&number).expect("it was found");
                node.is_touched = true;
                let mut port = Port { wires: &mut self.wires, node: number };
                if !node.staged.is_finished() {
                    node.staged.abort(&mut port, Rank(rank), "explored");
                }
            }
            Strike::Late { .. } | Strike::Disagrees { .. } => {}
        }
    }

    /// Have all processes done, or given up, what they had to do, and all nodes ended?
    fn is_over(&self) -> bool {
        // A root to which nobody has come serves until its process ends.
        let is_over = |it: &Node| it.is_root && it.staged.deadline().is_none();
        self.processes.iter().all(|it| it.acts.is_empty()) && self.nodes.values().all(is_over)
    }

    /// Has those that are left form another job, where the fault ended all that they had. False if
    /// there is nothing of the kind to do.
    fn recover(&mut self) -> bool {
        let left: Vec<_> = (0..self.processes.len()).filter(|it| self.is_left(*it)).collect();
        let have_failed = left.iter().all(|it| !self.processes[*it].failures.is_empty());
        if std::mem::replace(&mut self.has_recovered, true) || !have_failed || left.is_empty() {
            return false;
        }
        self.note(format!("{left:?} form another job"));
        for process in &left {
            let pause = Duration::from_millis(self.random.u64(..1000));
            let it = &mut self.processes[*process];
            it.acts =
                [Act::Join(Job::Rest), Act::Gather(Job::Rest, 0), Act::Leave(Job::Rest)].into();
            it.idle_until = self.wires.elapsed + pause;
        }
        self.members.insert(Job::Rest, left);
        true
    }

    /// Is this process neither dead nor cut off?
    fn is_left(&self, process: usize) -> bool {
        let is_cut_off = match self.shape.strike {
            Some(Strike::CutOff { rank, .. }) => rank as usize == process,
            _ => false,
        };
        !self.processes[process].is_dead && !is_cut_off
    }

    /// Nothing fails without a fault, those that are left succeed, and errors tell of the fault.
    fn check(&self) -> Result<(), String> {
        for (process, it) in self.processes.iter().enumerate().filter(|(at, _)| self.is_left(*at)) {
            for (job, error) in &it.failures {
                let Some(strike) = self.shape.strike.filter(|_| *job != Job::Rest) else {
                    return Err(format!("process {process}: {job:?} failed: {error}"));
                };
                // Whoever comes too late finds that the others have gone.
                let is_late = strike == Strike::Late { rank: process as u32 };
                if !is_late && !self.tells(strike, *job, error) {
                    return Err(format!("process {process}: {job:?}: not of {strike}: {error}"));
                }
            }
        }
        self.check_disagreement()
    }

    /// A disagreement reaches everybody.
    fn check_disagreement(&self) -> Result<(), String> {
        let Some(Strike::Disagrees { .. }) = self.shape.strike else { return Ok(()) };
        let knows = |it: &Process| {
            it.failures.iter().any(|(_, error)| matches!(error, Error::Disagreement { .. }))
        };
        match self.processes.iter().position(|it| !knows(it)) {
            None => Ok(()),
            Some(process) => Err(format!(
                "process {process} does not learn of the disagreement: {:?}",
                self.processes[process].failures
            )),
        }
    }

    /// Does an error tell of a fault?
    fn tells(&self, strike: Strike, job: Job, error: &Error) -> bool {
        let number = |rank: u32| self.members[&job].iter().position(|it| *it == rank as usize);
        let fault = match error {
            Error::Disagreement { what, .. } => {
                return matches!(strike, Strike::Disagrees { .. }) && what == "a term";
            }
            Error::Aborted { .. } => return matches!(strike, Strike::Aborts { .. }),
            Error::Bootstrap(fault) => &**fault,
            _ => return false,
        };
        // Whoever has failed leaves its other jobs, in which others still call, and does not come
        // to its part any more.
        let is_consequence = match fault {
            BootstrapError::Left { .. } => self.shape.parts > 0,
            BootstrapError::Missing { .. }
            | BootstrapError::Unreachable { .. }
            | BootstrapError::RootLost { .. } => matches!(job, Job::Part(_)),
            _ => false,
        };
        // What ended a rank before it had joined, the others cannot know.
        let misses = |rank: u32| match fault {
            BootstrapError::Missing { missing, .. } => {
                missing.iter().any(|it| Some(it.0 as usize) == number(rank))
            }
            _ => false,
        };
        match strike {
            Strike::Dies { rank, .. } | Strike::CutOff { rank, .. } => {
                let place = number(rank);
                let was_root = place == Some(0);
                match fault {
                    BootstrapError::Lost { rank, .. } => Some(rank.0 as usize) == place,
                    BootstrapError::Missing { .. } => {
                        misses(rank) || is_consequence || strike.is_cut_off()
                    }
                    BootstrapError::RootLost { .. } => {
                        was_root || is_consequence || strike.is_cut_off()
                    }
                    BootstrapError::Unreachable { .. } => true,
                    _ => is_consequence,
                }
            }
            Strike::Reset { rank, .. } => match fault {
                BootstrapError::Lost { .. } | BootstrapError::RootLost { .. } => true,
                // The root's connection to anybody may be the one.
                BootstrapError::Missing { .. } => {
                    misses(rank) || is_consequence || number(rank) == Some(0)
                }
                _ => is_consequence,
            },
            Strike::Late { rank } => match fault {
                BootstrapError::Unreachable { .. } | BootstrapError::RootLost { .. } => true,
                _ => is_consequence || misses(rank),
            },
            Strike::Aborts { rank, .. } => is_consequence || misses(rank),
            Strike::Disagrees { .. } => {
                matches!(
                    fault,
                    BootstrapError::Unreachable { .. } | BootstrapError::RootLost { .. }
                )
            }
        }
    }
}
