//! The scheduler: streams, copies and blocks share a fixed pool of worker threads.
//!
//! Everything that waits is polled in turn, and nothing that waits holds a worker; kernels that
//! wait for each other, on any streams and GPUs, therefore always progress. When nothing but
//! waiting is left, one worker polls, ever more slowly, and the others sleep, so that host threads
//! (an engine's proxy, the program itself) get the cores.

use crate::copy::{Bulk, BulkJob};
use crate::driver::Profile;
use crate::driver::slice::Slices;
use crate::engine::KernelWatch;
use crate::gpu::{Footprint, Occupancy};
use crate::kernel::{Active, KernelRun, Resident};
use crate::stream::Stream;
use crate::wait_value::WaitValue;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A task of a worker.
pub(crate) enum Task {
    /// The stream's head ended: go on.
    Resume(Arc<Stream>),
    /// Go on with the stream's queue.
    Drive(Arc<Stream>),
    /// A piece of a copy, at this offset.
    Piece(Arc<BulkJob>, u64),
    /// A block of a kernel.
    Block(Arc<KernelRun>, Box<Resident>),
    /// Words that streams wait for.
    Polls(Vec<Poll>),
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
    pub stream: Arc<Stream>,
}

/// Shared by all workers and by every thread that submits.
pub struct Scheduler {
    state: Mutex<SchedulerState>,
    work: Condvar,
    /// Tasks handed out, for tests and curiosity.
    tasks: AtomicU64,
    /// Device engines look at their rings more often while kernels run.
    pub(crate) kernels: Arc<KernelWatch>,
}

struct SchedulerState {
    streams: VecDeque<Task>,
    copies: VecDeque<Arc<BulkJob>>,
    kernels: Vec<Active>,
    polls: Vec<Poll>,
    occupancy: Vec<Occupancy>,
    /// Whose turn it is: an index into `kernels`, one past for the polls.
    turn: usize,
    /// Alternates between copies and kernels.
    copy_turn: bool,
    order: BlockOrder,
    /// Turns of processes on GPUs, if they take turns.
    slices: Option<Slices>,
    parked: usize,
    /// A worker is polling what waits.
    poller: bool,
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
    ) -> Self {
        let state = SchedulerState {
            order,
            slices,
            streams: VecDeque::new(),
            copies: VecDeque::new(),
            kernels: Vec::new(),
            polls: Vec::new(),
            occupancy,
            turn: 0,
            copy_turn: false,
            parked: 0,
            poller: false,
            stopping: false,
        };
        let tasks = AtomicU64::new(0);
        Self { state: Mutex::new(state), work: Condvar::new(), tasks, kernels: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, SchedulerState> {
        self.state.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Changes the state by new work, and wakes somebody for it.
    fn add(&self, change: impl FnOnce(&mut SchedulerState)) {
        let mut state = self.lock();
        change(&mut state);
        let wake = state.parked > 0;
        drop(state);
        if wake {
            self.work.notify_one();
        }
    }

    /// The asynchronous head of a stream ended.
    pub(crate) fn resume_stream(&self, stream: Arc<Stream>) {
        self.add(|state| state.streams.push_back(Task::Resume(stream)));
    }

    /// A stream has a queue and is not driven by any thread.
    pub(crate) fn drive_stream(&self, stream: Arc<Stream>) {
        self.add(|state| state.streams.push_back(Task::Drive(stream)));
    }

    /// A copy that workers do; one that is `local` to a GPU first waits for room on it.
    pub(crate) fn bulk(&self, bulk: Bulk, stream: Arc<Stream>, local: Option<usize>) {
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
        let context = Arc::clone(&run.stream.context);
        self.kernels.started();
        self.add(|state| {
            state.order.arrivals += 1;
            let arrival = state.order.arrivals;
            state.kernels.push(Active::new(run, arrival));
        });
        if context.has_failed() {
            // It failed after the stream looked.
            self.end_context(context.id);
        }
    }

    /// A stream waits for a word or a time.
    pub(crate) fn poll(&self, wait: WaitFor, stream: Arc<Stream>) {
        self.add(|state| state.polls.push(Poll { wait, stream }));
    }

    /// Words that did not change yet.
    pub(crate) fn poll_again(&self, unmet: Vec<Poll>) {
        self.lock().polls.extend(unmet);
    }

    /// Drops the blocks of a failed context. Blocks in the hands of workers end as these return.
    pub(crate) fn end_context(&self, context: u64) {
        let finished: Vec<_> = {
            let state = &mut *self.lock();
            for active in &mut state.kernels {
                if active.run.stream.context.id == context {
                    active.doom(&mut state.occupancy[active.run.stream.context.gpu]);
                }
            }
            let finished = state.kernels.extract_if(.., |active| active.is_finished()).collect();
            state.leave_idle_gpus();
            finished
        };
        for active in finished {
            self.kernels.ended();
            active.run.stream.head_done();
        }
    }

    /// A block's slice is over. True if the kernel is finished with it: the caller goes on with
    /// the stream.
    pub(crate) fn put_back(
        &self,
        run: &Arc<KernelRun>,
        resident: Option<Box<Resident>>,
        at: u32,
    ) -> bool {
        let state = &mut *self.lock();
        let found = state.kernels.iter().position(|active| Arc::ptr_eq(&active.run, run));
        let index = found.expect("a kernel stays while a worker holds a block of it");
        let active = &mut state.kernels[index];
        let occupancy = &mut state.occupancy[run.stream.context.gpu];
        match resident {
            Some(resident) => active.put_back(resident, occupancy),
            None => active.block_ended(at, occupancy),
        }
        if !active.is_finished() {
            return false;
        }
        state.kernels.swap_remove(index);
        state.leave_idle_gpus();
        self.kernels.ended();
        true
    }

    /// The next task for a worker; sleeps while there is none. None: the machine stops.
    pub(crate) fn next(&self, idle: &mut Idle) -> Option<Task> {
        let mut state = self.lock();
        if idle.polling && idle.fruitless == 0 {
            // What we watched has moved: run it, and let another worker watch the rest.
            idle.leave(&mut state);
            if state.parked > 0 {
                self.work.notify_one();
            }
        }
        loop {
            if state.stopping {
                return None;
            }
            if idle.fruitless > state.round() {
                if !idle.polling && state.poller {
                    state = self.park(state, None);
                    idle.fruitless = 0;
                } else {
                    state = self.back_off(state, idle);
                    idle.fruitless = 1;
                }
            }
            if let Some(task) = state.take() {
                let wake = state.parked > 0 && state.has_ready();
                drop(state);
                if wake {
                    self.work.notify_one();
                }
                self.tasks.fetch_add(1, Ordering::Relaxed);
                return Some(task);
            }
            idle.leave(&mut state);
            idle.fruitless = 0;
            // Nobody tells us when another process's turn on a GPU is over.
            let look_again = state.slices.as_ref().is_some_and(Slices::waits).then_some(SLEEP);
            state = self.park(state, look_again);
        }
    }

    /// What the kernels of a stream do, for people.
    pub(crate) fn describe(&self, stream: u64) -> String {
        let state = self.lock();
        let mut text = String::new();
        for active in state.kernels.iter().filter(|active| active.run.stream.id == stream) {
            text += &format!(": {}", active.describe());
        }
        for Poll { wait, stream: polling } in &state.polls {
            if polling.id == stream
                && let WaitFor::Word(wait) = wait
            {
                text += &format!(": {wait:x?}");
            }
        }
        text
    }

    /// One step of the worker that watches all that waits: spins, yields, then sleeps a little.
    fn back_off<'a>(
        &'a self,
        mut state: MutexGuard<'a, SchedulerState>,
        idle: &mut Idle,
    ) -> MutexGuard<'a, SchedulerState> {
        if !idle.polling {
            idle.polling = true;
            idle.since = Some(Instant::now());
            state.poller = true;
        }
        let waited = idle.since.map(|since| since.elapsed()).unwrap_or_default();
        if waited > YIELD_TIME_MAX {
            return self.park(state, Some(SLEEP));
        }
        drop(state);
        if waited < SPIN_TIME_MAX {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
        self.lock()
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

/// How long the watching worker spins before it yields to others.
const SPIN_TIME_MAX: Duration = Duration::from_micros(5);
/// How long it yields before it sleeps.
const YIELD_TIME_MAX: Duration = Duration::from_micros(60);
/// How long it sleeps at a time: what a kernel notices late of a flag that the host wrote.
const SLEEP: Duration = Duration::from_micros(40);

/// A worker's memory of how much it found to do.
#[derive(Default)]
pub(crate) struct Idle {
    /// Tasks in a row that only found that they still wait.
    pub fruitless: usize,
    /// This worker watches what waits.
    polling: bool,
    since: Option<Instant>,
}

impl Idle {
    fn leave(&mut self, state: &mut SchedulerState) {
        if self.polling {
            self.polling = false;
            state.poller = false;
        }
    }
}

impl SchedulerState {
    /// Tasks after which a worker has looked at everything that waits, and would have met anything
    /// that does not.
    fn round(&self) -> usize {
        let waiting: usize = self.kernels.iter().map(Active::waiting_count).sum();
        waiting + 2 * (self.kernels.len() + 1)
    }

    /// Is there work that does not wait?
    fn has_ready(&self) -> bool {
        !self.streams.is_empty()
            || !self.copies.is_empty()
            || !self.order.local.is_empty()
            || self.kernels.iter().any(Active::has_ready)
    }

    /// Streams first, as they bring new work; then copies and kernels in turn.
    fn take(&mut self) -> Option<Task> {
        if let Some(task) = self.streams.pop_front() {
            return Some(task);
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

    /// A block of the next kernel in turn that has one; the polls take their turn like a kernel.
    fn take_block(&mut self) -> Option<Task> {
        let hostile = self.order.in_order || self.slices.is_some();
        let turns = self.kernels.len() + 1;
        for _ in 0..turns {
            self.turn = (self.turn + 1) % turns;
            let mut may_start = true;
            if hostile && let Some(active) = self.kernels.get(self.turn) {
                let (gpu, arrival) = (active.gpu(), active.arrival);
                if !self.has_gpu(gpu) {
                    continue;
                }
                may_start = !self.order.in_order || self.first_in_order(gpu) == arrival;
            }
            let Some(active) = self.kernels.get_mut(self.turn) else {
                if self.polls.is_empty() {
                    continue;
                }
                return Some(Task::Polls(std::mem::take(&mut self.polls)));
            };
            let occupancy = &mut self.occupancy[active.run.stream.context.gpu];
            if let Some(resident) = active.take(occupancy, may_start) {
                return Some(Task::Block(Arc::clone(&active.run), resident));
            }
        }
        None
    }
}
