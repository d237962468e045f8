//! The scheduler: streams, copies and blocks share a fixed pool of worker threads.
//!
//! Nothing that waits holds a worker; kernels that wait for each other, on any streams and GPUs,
//! therefore always progress. Blocks and streams that wait for memory sleep until somebody writes
//! it (`memory::watches`). When nothing but waiting is left the workers sleep, too. One of them
//! wakes up now and then, ever more rarely, if somebody waits for memory that host threads or
//! other processes write, or for a time.

use crate::client::Client;
use crate::clock::WallClock;
use crate::copy::{Bulk, BulkJob};
use crate::driver::slice::Slices;
use crate::engine::KernelWatch;
use crate::footprint::Footprint;
use crate::gpu::{Occupancy, Room};
use crate::kernel::{Active, KernelRun, Resident};
use crate::memory::{GlobalMemory, Sleepers};
use crate::profile::Profile;
use crate::sleeping::{STREAMS, Sleeping};
use crate::tally;
use crate::vigil::Rest;
use crate::wait_value::WaitValue;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// A task of a worker.
pub(crate) enum Task {
    /// The stream's head ended: go on.
    Resume(Arc<dyn Client>),
    /// Go on with the stream's queue.
    Drive(Arc<dyn Client>),
    /// A piece of a copy, at this offset.
    Piece(Arc<BulkJob>, u64),
    /// A block of a kernel.
    Block(Arc<KernelRun>, Box<Resident>),
    /// Words that streams wait for.
    Polls(Vec<Poll>),
}

impl Task {
    /// It looks whether a wait is over. If looks counted as something that happens, the next one
    /// would always be due at once. What a look finds brings tasks of its own.
    fn is_look(&self) -> bool {
        match self {
            Self::Polls(_) => true,
            Self::Block(_, block) => block.waiting && block.vigil.by_time,
            Self::Resume(_) | Self::Drive(_) | Self::Piece(..) => false,
        }
    }
}

/// What a stream waits for that it must poll for.
pub(crate) enum WaitFor {
    /// A word in memory.
    Word(WaitValue),
    /// A time of the machine's clock, ns.
    Time(u64),
}

/// A stream that waits for a word or a time.
pub(crate) struct Poll {
    pub wait: WaitFor,
    pub stream: Arc<dyn Client>,
}

/// Shared by all workers and by every thread that submits.
pub struct Scheduler {
    state: Mutex<SchedulerState>,
    work: Condvar,
    /// Tasks handed out, for tests and curiosity.
    tasks: AtomicU64,
    /// Changes whenever there may be something to do, for a worker that spins.
    stirs: AtomicU64,
    memory: Arc<GlobalMemory>,
    clock: WallClock,
    /// Device engines look at their rings more often while kernels run.
    pub(crate) kernels: Arc<KernelWatch>,
    /// Who starts a block must ask first: blocks start in order, or processes take turns.
    pub(crate) is_strict: bool,
}

struct SchedulerState {
    streams: VecDeque<Task>,
    copies: VecDeque<Arc<BulkJob>>,
    kernels: Vec<Active>,
    polls: Vec<Poll>,
    /// It is time to look at what streams wait for.
    polls_due: bool,
    sleeping: Sleeping,
    occupancy: Vec<Occupancy>,
    /// Whose turn it is: an index into `kernels`.
    turn: usize,
    /// Alternates between copies and kernels.
    copy_turn: bool,
    order: BlockOrder,
    /// Turns of processes on GPUs, if they take turns.
    slices: Option<Slices>,
    parked: usize,
    /// A worker looks after what waits for a time, or for memory that changes untold.
    watched: bool,
    /// A worker with nothing to do looks whether there is something, and needs no call.
    spins: bool,
    stopping: bool,
}

/// The order in which blocks become resident, and what of copies is among them.
#[derive(Default)]
pub(crate) struct BlockOrder {
    /// Blocks start in the order of their kernels' arrival.
    in_order: bool,
    /// Kernels that have come so far.
    arrivals: u64,
    /// Copies that wait for room on a GPU.
    local: VecDeque<(usize, Arc<BulkJob>)>,
}

impl BlockOrder {
    /// As a driver profile has it.
    pub fn of(profile: &Profile) -> Self {
        Self { in_order: profile.resident_blocks, ..Self::default() }
    }
}

/// What a copy that runs on multiprocessors takes of one.
const LOCAL_COPY: Footprint = Footprint { threads: 512, shared_bytes: 0, registers: 512 * 32 };

impl Scheduler {
    pub(crate) fn new(
        occupancy: Vec<Occupancy>,
        order: BlockOrder,
        slices: Option<Slices>,
        memory: Arc<GlobalMemory>,
        clock: WallClock,
    ) -> Self {
        let is_strict = order.in_order || slices.is_some();
        let state = SchedulerState {
            order,
            slices,
            streams: VecDeque::new(),
            copies: VecDeque::new(),
            kernels: Vec::new(),
            polls: Vec::new(),
            polls_due: false,
            sleeping: Sleeping::default(),
            occupancy,
            turn: 0,
            copy_turn: false,
            parked: 0,
            watched: false,
            spins: false,
            stopping: false,
        };
        let (tasks, stirs) = (AtomicU64::new(0), AtomicU64::new(0));
        let (state, work) = (Mutex::new(state), Condvar::new());
        let kernels = Arc::default();
        Self { state, work, tasks, stirs, memory, clock, kernels, is_strict }
    }

    fn lock(&self) -> MutexGuard<'_, SchedulerState> {
        self.state.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Changes the state by new work, and wakes somebody for it.
    fn add(&self, change: impl FnOnce(&mut SchedulerState)) {
        let mut state = self.lock();
        change(&mut state);
        self.stir(state);
    }

    /// There is something to do: somebody who has nothing to do is to know.
    fn stir(&self, state: MutexGuard<'_, SchedulerState>) {
        self.stirs.fetch_add(1, Ordering::Relaxed);
        let wake = state.parked > 0 && !state.spins;
        drop(state);
        if wake {
            self.work.notify_one();
        }
    }

    /// The asynchronous head of a stream ended.
    pub(crate) fn resume_stream(&self, stream: Arc<dyn Client>) {
        self.add(|state| state.streams.push_back(Task::Resume(stream)));
    }

    /// A stream has a queue and is not driven by any thread.
    pub(crate) fn drive_stream(&self, stream: Arc<dyn Client>) {
        self.add(|state| state.streams.push_back(Task::Drive(stream)));
    }

    /// A copy that workers do; one that is `local` to a GPU first waits for room on it.
    pub(crate) fn bulk(&self, bulk: Bulk, stream: Arc<dyn Client>, local: Option<usize>) {
        let job = Arc::new(BulkJob::new(bulk, stream));
        self.add(|state| match local {
            None => state.copies.push_back(job),
            Some(gpu) => state.order.local.push_back((gpu, job)),
        });
    }

    /// A copy is done: it leaves the room that it had, if it had any.
    pub(crate) fn end_copy(&self, job: &BulkJob) {
        if let Some((gpu, unit)) = job.room() {
            self.lock().occupancy[gpu].release(unit, &LOCAL_COPY);
        }
    }

    /// A kernel whose turn in its stream has come.
    pub(crate) fn start(&self, run: Arc<KernelRun>) {
        let (client, context) = (Arc::clone(&run.client), run.origin.context);
        if self.memory.faults().stops_launch(run.origin.gpu) {
            // Its stream waits for it, for ever.
            return;
        }
        self.kernels.started();
        if tally::is_on() {
            tally::launched(&run.launch.kernel.name, run.block_count());
        }
        self.add(|state| {
            state.order.arrivals += 1;
            let arrival = state.order.arrivals;
            state.kernels.push(Active::new(run, arrival));
        });
        if client.has_failed() {
            // It failed after the stream looked.
            self.end_context(context);
        }
    }

    /// A stream waits for a word or a time.
    pub(crate) fn poll(&self, wait: WaitFor, stream: Arc<dyn Client>) {
        if let WaitFor::Word(word) = &wait {
            self.memory.watches.enter(STREAMS, word.places());
        }
        self.add(|state| {
            state.polls.push(Poll { wait, stream });
            // Only now would a write be noticed.
            state.polls_due = true;
        });
    }

    /// What became of streams' waits: some are over, others are not.
    pub(crate) fn polled(&self, met: &[Poll], unmet: Vec<Poll>) {
        for poll in met {
            if let WaitFor::Word(word) = &poll.wait {
                self.memory.watches.leave(STREAMS, word.places());
            }
        }
        let now = self.clock.now();
        let state = &mut *self.lock();
        for Poll { wait, .. } in &unmet {
            let (untold, until) = match wait {
                WaitFor::Word(word) => (!self.memory.is_told(word.address), u64::MAX),
                WaitFor::Time(time) => (false, *time),
            };
            state.sleeping.streams_wait(untold, until, now);
        }
        state.polls.extend(unmet);
    }

    /// Drops the blocks of a failed context. Blocks in the hands of workers end as these return.
    pub(crate) fn end_context(&self, context: u64) {
        let finished: Vec<_> = {
            let state = &mut *self.lock();
            for active in &mut state.kernels {
                if active.run.origin.context == context {
                    active.doom(&mut state.occupancy[active.run.origin.gpu]);
                }
            }
            for number in state.sleeping.of_context(context) {
                state.wake(&self.memory, number, false);
            }
            state.polls_due = true;
            let finished = state.kernels.extract_if(.., |active| active.is_finished()).collect();
            state.leave_idle_gpus();
            finished
        };
        for active in finished {
            self.kernels.ended();
            self.resume_stream(Arc::clone(&active.run.client));
        }
    }

    /// A block's slice is over. True if the kernel is finished with it: the caller goes on with
    /// the stream.
    pub(crate) fn put_back(&self, run: &Arc<KernelRun>, outcome: Outcome) -> bool {
        let mut guard = self.lock();
        let state = &mut *guard;
        let found = state.kernels.iter().position(|active| Arc::ptr_eq(&active.run, run));
        let index = found.expect("a kernel stays while a worker holds a block of it");
        let active = &mut state.kernels[index];
        let occupancy = &mut state.occupancy[run.origin.gpu];
        match outcome.block {
            Err(room) => active.block_ended(&room, occupancy),
            Ok((resident, rest)) if rest == Rest::Again || run.is_doomed() => {
                active.put_back(resident, occupancy);
            }
            Ok((resident, rest)) => {
                let (memory, run) = (&self.memory, Arc::clone(run));
                match state.sleeping.add(memory, run, resident, rest, self.clock.now()) {
                    Some(resident) => active.put_back(resident, occupancy),
                    None => active.falls_asleep(),
                }
            }
        }
        let finished = active.is_finished();
        if finished {
            state.kernels.swap_remove(index);
            state.leave_idle_gpus();
            self.kernels.ended();
        }
        // The lock was a full fence: what the slice stored is seen by who falls asleep from now on.
        if self.memory.watches.epoch() != outcome.epoch {
            for number in state.sleeping.missed_since(&self.memory, outcome.epoch) {
                state.wake(&self.memory, number, false);
            }
        }
        finished
    }

    /// The next task for a worker; sleeps while there is none. None: the machine stops.
    pub(crate) fn next(&self, idle: &mut Idle) -> Option<Task> {
        let mut state = self.lock();
        loop {
            if state.stopping {
                return None;
            }
            let now = self.clock.now();
            if now >= state.sleeping.look_at {
                for (number, by_time) in state.sleeping.look_around(&self.memory, now) {
                    state.wake(&self.memory, number, by_time);
                }
            }
            if let Some(task) = state.take() {
                if !task.is_look() {
                    state.sleeping.stirred = now;
                }
                idle.leave(&mut state);
                // The look of a block that waited is over sooner than another worker is awake.
                let short = matches!(&task, Task::Block(_, block) if block.waiting);
                let wake = state.parked > 0 && state.has_work(usize::from(short));
                drop(state);
                if wake {
                    self.work.notify_one();
                }
                self.tasks.fetch_add(1, Ordering::Relaxed);
                return Some(task);
            }
            state = self.rest(state, idle, now);
        }
    }

    /// A worker has nothing to do. One spins for a little while, since most waits are short; then
    /// it looks after those whom nobody else wakes. All others sleep.
    fn rest<'a>(
        &'a self,
        mut state: MutexGuard<'a, SchedulerState>,
        idle: &mut Idle,
        now: u64,
    ) -> MutexGuard<'a, SchedulerState> {
        // Nobody tells us when another process's turn on a GPU is over.
        let slices = state.slices.as_ref().is_some_and(Slices::waits);
        let look_at = if slices { now + SLICE_NS } else { state.sleeping.look_at };
        if !idle.watching {
            if state.watched {
                // The watcher may be busy with what it has found.
                let time = Duration::from_nanos(look_at.saturating_sub(now)) + RELIEF;
                return self.park(state, (look_at != u64::MAX).then_some(time));
            }
            (idle.watching, state.watched) = (true, true);
        }
        let since = *idle.since.get_or_insert(now);
        if now >= since + YIELD_NS_MAX {
            let time = Duration::from_nanos(look_at.saturating_sub(now));
            return self.park(state, (look_at != u64::MAX).then_some(time));
        }
        let stirs = self.stirs.load(Ordering::Relaxed);
        state.spins = true;
        drop(state);
        let until = look_at.min(since + YIELD_NS_MAX);
        let mut now = now;
        while now < until && self.stirs.load(Ordering::Relaxed) == stirs {
            if now < since + SPIN_NS_MAX {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
            now = self.clock.now();
        }
        let mut state = self.lock();
        state.spins = false;
        state
    }

    /// What the kernels of a stream do, for people.
    pub(crate) fn describe(&self, stream: u64) -> String {
        let state = self.lock();
        let mut text = String::new();
        for active in state.kernels.iter().filter(|active| active.run.origin.stream == stream) {
            text += &format!(": {}", active.describe());
        }
        for Poll { wait, stream: polling } in &state.polls {
            if polling.origin().stream == stream
                && let WaitFor::Word(wait) = wait
            {
                text += &format!(": {wait:x?}");
            }
        }
        text
    }

    fn park<'a>(
        &'a self,
        mut state: MutexGuard<'a, SchedulerState>,
        time: Option<Duration>,
    ) -> MutexGuard<'a, SchedulerState> {
        state.parked += 1;
        let mut state = match time {
            None => self.work.wait(state).unwrap_or_else(|poison| poison.into_inner()),
            Some(time) => match self.work.wait_timeout(state, time) {
                Ok((state, _)) => state,
                Err(poison) => poison.into_inner().0,
            },
        };
        state.parked -= 1;
        state
    }

    /// Blocks so far that nobody woke although what they waited for had been written.
    pub fn rescued_count(&self) -> u64 {
        self.lock().sleeping.rescued
    }

    /// Tasks handed out so far.
    pub fn task_count(&self) -> u64 {
        self.tasks.load(Ordering::Relaxed)
    }

    /// Lets the workers end; what is queued stays undone.
    pub(crate) fn stop(&self) {
        self.lock().stopping = true;
        self.work.notify_all();
    }
}

/// How long a worker with nothing to do spins before it yields to others.
const SPIN_NS_MAX: u64 = 5_000;
/// How long it spins and yields before it sleeps.
const YIELD_NS_MAX: u64 = 60_000;
/// How much later than due a worker looks after sleepers in the place of another.
const RELIEF: Duration = Duration::from_millis(1);
/// From one look at another process's turn on a GPU to the next.
const SLICE_NS: u64 = 40_000;

/// What a worker brings back of a block.
pub(crate) struct Outcome {
    /// The block and what becomes of it; where it had room, if it has ended.
    pub block: Result<(Box<Resident>, Rest), Room>,
    /// The table of watches before the slice.
    pub epoch: u64,
}

/// A worker's memory of its having nothing to do.
#[derive(Default)]
pub(crate) struct Idle {
    /// This worker looks after what nobody else wakes.
    watching: bool,
    since: Option<u64>,
}

impl Idle {
    fn leave(&mut self, state: &mut SchedulerState) {
        self.since = None;
        if std::mem::take(&mut self.watching) {
            state.watched = false;
        }
    }
}

impl Sleepers for Scheduler {
    fn wake(&self, numbers: &[u64]) {
        let mut state = self.lock();
        for &number in numbers {
            state.wake(&self.memory, number, false);
        }
        self.stir(state);
    }
}

impl SchedulerState {
    /// Somebody who sleeps is to look again: because of the time, or of something written.
    fn wake(&mut self, memory: &GlobalMemory, number: u64, by_time: bool) {
        if number == STREAMS {
            // A worker may be looking at them now, and have looked too early.
            self.polls_due = true;
            return;
        }
        // It may have been woken by another meanwhile.
        let Some(mut sleeper) = self.sleeping.take(memory, number) else { return };
        sleeper.resident.vigil.by_time = by_time;
        let found = self.kernels.iter_mut().find(|active| Arc::ptr_eq(&active.run, &sleeper.run));
        let active = found.expect("a kernel stays while a block of it sleeps");
        active.wake(sleeper.resident, &mut self.occupancy[active.run.origin.gpu]);
    }

    /// Is there work for one more worker? So many blocks that look again are left to this one.
    fn has_work(&self, looks: usize) -> bool {
        !self.streams.is_empty()
            || (self.polls_due && !self.polls.is_empty())
            || !self.copies.is_empty()
            || !self.order.local.is_empty()
            || self.kernels.iter().any(Active::has_ready)
            || self.kernels.iter().map(Active::waiting_count).sum::<usize>() > looks
    }

    /// Streams first, as they bring new work; then copies and kernels in turn.
    fn take(&mut self) -> Option<Task> {
        if let Some(task) = self.streams.pop_front() {
            return Some(task);
        }
        if self.polls_due && !self.polls.is_empty() {
            self.polls_due = false;
            return Some(Task::Polls(std::mem::take(&mut self.polls)));
        }
        if !self.order.local.is_empty() {
            self.place_local_copies();
        }
        self.copy_turn = !self.copy_turn;
        let first = if self.copy_turn { self.take_piece() } else { None };
        first.or_else(|| self.take_block()).or_else(|| self.take_piece())
    }

    fn take_piece(&mut self) -> Option<Task> {
        let job = self.copies.front()?;
        let job = Arc::clone(job);
        let (offset, more) = job.take();
        if !more {
            self.copies.pop_front();
        }
        Some(Task::Piece(job, offset))
    }

    /// Gives room to local copies whose turn has come.
    fn place_local_copies(&mut self) {
        let SchedulerState { order, kernels, occupancy, copies, .. } = self;
        let in_order = order.in_order;
        order.local.retain(|(gpu, job)| {
            let held = in_order && kernels.iter().any(|active| active.waits_for_room(*gpu));
            let unit = if held { None } else { occupancy[*gpu].place(&LOCAL_COPY) };
            if let Some(unit) = unit {
                job.give_room(*gpu, unit);
                copies.push_back(Arc::clone(job));
            }
            unit.is_none()
        });
    }

    /// Ends this process's turn on GPUs on which it has no kernel.
    fn leave_idle_gpus(&mut self) {
        if let Some(slices) = &mut self.slices {
            let kernels = &self.kernels;
            slices.leave(|gpu| kernels.iter().all(|active| active.gpu() != gpu));
        }
    }

    /// May this process run blocks on a GPU now?
    fn has_gpu(&mut self, gpu: usize) -> bool {
        let Some(slices) = &mut self.slices else { return true };
        let busy = self.kernels.iter().any(|active| active.gpu() == gpu && active.is_out());
        slices.hold(gpu, busy)
    }

    /// Which kernel may start blocks on each GPU where only one may.
    fn first_in_order(&self, gpu: usize) -> u64 {
        let waiting = self.kernels.iter().filter(|active| active.waits_for_room(gpu));
        waiting.min_by_key(|active| active.rank()).map_or(0, |active| active.arrival)
    }

    /// A block of the next kernel in turn that has one.
    fn take_block(&mut self) -> Option<Task> {
        let hostile = self.order.in_order || self.slices.is_some();
        let turns = self.kernels.len();
        for _ in 0..turns {
            self.turn = (self.turn + 1) % turns;
            let active = &self.kernels[self.turn];
            let (gpu, arrival) = (active.gpu(), active.arrival);
            if hostile && !self.has_gpu(gpu) {
                continue;
            }
            let may_start = !self.order.in_order || self.first_in_order(gpu) == arrival;
            let active = &mut self.kernels[self.turn];
            let occupancy = &mut self.occupancy[active.gpu()];
            if let Some(resident) = active.take(occupancy, may_start) {
                return Some(Task::Block(Arc::clone(&active.run), resident));
            }
        }
        None
    }
}
