//! The threads that do the machine's work.

use crate::clock::WallClock;
use crate::error::Sticky;
use crate::kernel::{KernelRun, Resident};
use crate::memory::GlobalMemory;
use crate::report;
use crate::scheduler::{Idle, Outcome, Poll, Scheduler, Task, WaitFor};
use crate::tally;
use crate::vigil::Rest;
use hwsim_ptx::{Block, Clock, Fault, Progress};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::Builder;

/// Warp instructions that a block runs before others get their turn: some 100 µs.
const SLICE_INSTRUCTIONS: u64 = 8192;
/// What the start of a block counts for, in warp instructions.
const START_INSTRUCTIONS: u64 = 32;
/// Warp instructions that suffice to see whether a block that waited still does. A block that has
/// come to life is handed back, so that other workers learn of it.
const GLANCE_INSTRUCTIONS: u64 = 512;

/// How far the workers stand back behind the program's own threads.
const WORKER_NICE: i32 = 10;

/// A GPU's clock, which may leap.
struct GpuClock<'a> {
    clock: WallClock,
    memory: &'a GlobalMemory,
    gpu: usize,
}

impl Clock for GpuClock<'_> {
    fn now_ns(&self) -> u64 {
        self.memory.faults().clock(self.gpu, self.clock.now())
    }
}

/// What a worker works with.
#[derive(Clone)]
pub(crate) struct Worker {
    pub scheduler: Arc<Scheduler>,
    pub memory: Arc<GlobalMemory>,
    pub clock: WallClock,
}

impl Worker {
    /// Starts so many threads. They end when the machine stops, and hold no program alive.
    pub fn start(&self, count: usize) -> std::io::Result<()> {
        for index in 0..count {
            let worker = self.clone();
            Builder::new().name(format!("hwsim-worker{index}")).spawn(move || worker.run())?;
        }
        Ok(())
    }

    fn run(&self) {
        sleep_precisely();
        give_way();
        let mut idle = Idle::default();
        while let Some(task) = self.scheduler.next(&mut idle) {
            match task {
                Task::Resume(stream) => stream.resume(),
                Task::Drive(stream) => stream.go_on(),
                Task::Piece(job, offset) => {
                    if job.run(&self.memory, offset) {
                        self.scheduler.end_copy(&job);
                        Arc::clone(job.client()).resume();
                    }
                }
                Task::Block(run, resident) => self.run_block(&run, resident),
                Task::Polls(polls) => self.run_polls(polls),
            }
        }
    }

    /// Runs one slice of a block.
    fn run_block(&self, run: &Arc<KernelRun>, mut resident: Box<Resident>) {
        let epoch = self.memory.watches.epoch();
        let gpu = run.origin.gpu;
        if let Some(pause) = self.memory.faults().pause(gpu) {
            resident.paused = !resident.paused && !run.is_doomed();
            if resident.paused {
                let rest = Rest::Paused(self.clock.now() + pause.as_nanos() as u64);
                let block = Ok((resident, rest));
                self.scheduler.put_back(run, Outcome { block, epoch });
                return;
            }
        }
        let outcome = if run.is_doomed() {
            Ok(Ok(Progress::Finished))
        } else {
            let _access = self.memory.access();
            let slice = || self.run_slice(run, &mut resident).map_err(Box::new);
            catch_unwind(AssertUnwindSafe(slice))
        };
        let kept = match outcome {
            Ok(Ok(Progress::Finished)) => Err(resident.room),
            Ok(Ok(Progress::Waiting)) => {
                resident.waiting = true;
                let rest = resident.vigil.rest(&resident.block, self.clock.now());
                Ok((resident, rest))
            }
            Ok(Ok(Progress::Budget)) => {
                resident.waiting = false;
                Ok((resident, Rest::Again))
            }
            Ok(Err(fault)) => {
                run.client.fail(report::fault(&self.memory, gpu, &fault));
                Err(resident.room)
            }
            Err(_) => {
                eprintln!("hwsim: the interpreter failed in kernel {}", run.launch.kernel.name);
                run.client.fail(Sticky::LaunchFailed);
                Err(resident.room)
            }
        };
        let outcome = Outcome { block: kept, epoch };
        if self.scheduler.put_back(run, outcome) {
            Arc::clone(&run.client).resume();
        }
    }

    /// A slice's worth of work: of one block, or of some that follow one another, which spares the
    /// scheduler between them.
    #[allow(clippy::result_large_err)] // At most one for each kernel.
    fn run_slice(&self, run: &KernelRun, resident: &mut Resident) -> Result<Progress, Fault> {
        let mut left = if resident.waiting { GLANCE_INSTRUCTIONS } else { SLICE_INSTRUCTIONS };
        loop {
            let outcome = self.run_on(run, resident, left);
            let spent = resident.block.take_spent();
            if tally::is_on() {
                tally::ran(&run.launch.kernel.name, spent);
            }
            left = left.saturating_sub(spent + START_INSTRUCTIONS);
            let over = !matches!(outcome, Ok(Progress::Finished)) || left == 0;
            if over || self.scheduler.is_strict || !resident.follow(run) {
                return outcome;
            }
        }
    }

    #[allow(clippy::result_large_err)] // At most one for each kernel.
    fn run_on(
        &self,
        run: &KernelRun,
        resident: &mut Resident,
        budget: u64,
    ) -> Result<Progress, Fault> {
        let gpu = run.origin.gpu;
        let Resident { block, vigil, cursor, .. } = resident;
        let mut go_on = |block: &mut Block| {
            if self.memory.faults().leaps(gpu) {
                let clock = GpuClock { clock: self.clock, memory: &self.memory, gpu };
                return block.run_on(&run.view, cursor, &clock, budget);
            }
            block.run_on(&run.view, cursor, &self.clock, budget)
        };
        let effects = block.effects();
        let progress = go_on(block)?;
        let waits = progress == Progress::Waiting && block.effects() == effects;
        if waits && vigil.by_time {
            vigil.look_into(block, &self.clock, go_on)
        } else {
            Ok(progress)
        }
    }

    /// Looks at words that streams wait for.
    fn run_polls(&self, polls: Vec<Poll>) {
        let now = self.clock.now();
        let met = |wait: &WaitFor| match wait {
            WaitFor::Word(word) => word.is_met(&self.memory),
            WaitFor::Time(time) => now >= *time,
        };
        let over = |poll: &Poll| poll.stream.has_failed() || met(&poll.wait);
        let (met, unmet): (Vec<_>, Vec<_>) = polls.into_iter().partition(over);
        self.scheduler.polled(&met, unmet);
        for poll in met {
            poll.stream.resume();
        }
    }
}

/// Asks the kernel to end this thread's short sleeps in time: its default adds 50 µs.
fn sleep_precisely() {
    // SAFETY: the call takes integers only and changes nothing but this thread's timer slack.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1u64, 0u64, 0u64, 0u64) };
}

/// Lets host threads go first. A GPU does not compete with the program for its processors; here it
/// must, and a thread that wakes to serve a doorbell should not wait out a worker's time slice.
fn give_way() {
    // SAFETY: the call takes integers only; on Linux 0 means the calling thread alone. Where it is
    // refused, the thread keeps its priority.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, WORKER_NICE) };
}
