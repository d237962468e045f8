//! The scheduler: streams, copies and blocks share a fixed pool of worker threads.
//!
//! Everything that waits is polled in turn, and nothing that waits holds a worker; kernels that
//! wait for each other, on any streams and GPUs, therefore always progress. When nothing but
//! waiting is left, one worker polls, ever more slowly, and the others sleep, so that host threads
//! (an engine's proxy, the program itself) get the cores.

use crate::copy::{Bulk, BulkJob};
use crate::engine::KernelWatch;
use crate::gpu::Occupancy;
use crate::kernel::{Active, KernelRun, Resident};
use crate::stream::Stream;
use crate::wait_value::WaitValue;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// What a worker is given.
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

/// A stream that waits for a word.
pub(crate) struct Poll {
    pub wait: WaitValue,
    pub stream: Arc<Stream>,
}

/// Shared by all workers and by every thread that submits.
pub struct Scheduler {
    state: Mutex<State>,
    work: Condvar,
    /// Tasks handed out, for tests and curiosity.
    tasks: AtomicU64,
    /// Device engines look at their rings more often while kernels run.
    pub(crate) kernels: Arc<KernelWatch>,
}

struct State {
    streams: VecDeque<Task>,
    copies: VecDeque<Arc<BulkJob>>,
    kernels: Vec<Active>,
    polls: Vec<Poll>,
    occupancy: Vec<Occupancy>,
    /// Whose turn it is: an index into `kernels`, one past for the polls.
    turn: usize,
    /// Alternates between copies and kernels.
    copy_turn: bool,
    parked: usize,
    /// A worker is polling what waits.
    poller: bool,
    stopping: bool,
}

impl Scheduler {
    pub(crate) fn new(occupancy: Vec<Occupancy>) -> Self {
        let state = State {
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Changes the state by new work, and wakes somebody for it.
    fn add(&self, change: impl FnOnce(&mut State)) {
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

    /// A stream has a queue and nobody who drives it.
    pub(crate) fn drive_stream(&self, stream: Arc<Stream>) {
        self.add(|state| state.streams.push_back(Task::Drive(stream)));
    }

    /// A large copy.
    pub(crate) fn bulk(&self, bulk: Bulk, stream: Arc<Stream>) {
        self.add(|state| state.copies.push_back(Arc::new(BulkJob::new(bulk, stream))));
    }

    /// A kernel whose turn in its stream has come.
    pub(crate) fn start(&self, run: Arc<KernelRun>) {
        let context = Arc::clone(&run.stream.context);
        self.kernels.started();
        self.add(|state| state.kernels.push(Active::new(run)));
        if context.is_condemned() {
            // It was condemned after the stream looked.
            self.end_context(context.id);
        }
    }

    /// A stream waits for a word.
    pub(crate) fn poll(&self, wait: WaitValue, stream: Arc<Stream>) {
        self.add(|state| state.polls.push(Poll { wait, stream }));
    }

    /// Words that did not change yet.
    pub(crate) fn poll_again(&self, unmet: Vec<Poll>) {
        self.lock().polls.extend(unmet);
    }

    /// Drops the blocks of a condemned context. Blocks in the hands of workers end as these return.
    pub(crate) fn end_context(&self, context: u64) {
        let finished: Vec<_> = {
            let state = &mut *self.lock();
            for active in &mut state.kernels {
                if active.run.stream.context.id == context {
                    active.doom(&mut state.occupancy[active.run.stream.context.gpu]);
                }
            }
            state.kernels.extract_if(.., |active| active.is_finished()).collect()
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
            state = self.park(state, None);
        }
    }

    /// One step of the worker that watches all that waits: spins, yields, then sleeps a little.
    fn back_off<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        idle: &mut Idle,
    ) -> MutexGuard<'a, State> {
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
        mut state: MutexGuard<'a, State>,
        time: Option<Duration>,
    ) -> MutexGuard<'a, State> {
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
    fn leave(&mut self, state: &mut State) {
        if self.polling {
            self.polling = false;
            state.poller = false;
        }
    }
}

impl State {
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
            || self.kernels.iter().any(Active::has_ready)
    }

    /// Streams first, as they bring new work; then copies and kernels in turn.
    fn take(&mut self) -> Option<Task> {
        if let Some(task) = self.streams.pop_front() {
            return Some(task);
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

    /// A block of the next kernel in turn that has one; the polls take their turn like a kernel.
    fn take_block(&mut self) -> Option<Task> {
        let seats = self.kernels.len() + 1;
        for _ in 0..seats {
            self.turn = (self.turn + 1) % seats;
            let Some(active) = self.kernels.get_mut(self.turn) else {
                if self.polls.is_empty() {
                    continue;
                }
                return Some(Task::Polls(std::mem::take(&mut self.polls)));
            };
            let occupancy = &mut self.occupancy[active.run.stream.context.gpu];
            if let Some(resident) = active.take(occupancy) {
                return Some(Task::Block(Arc::clone(&active.run), resident));
            }
        }
        None
    }
}
