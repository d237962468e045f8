//! The threads that do the machine's work.

use crate::clock::WallClock;
use crate::error::Sticky;
use crate::kernel::{KernelRun, Resident};
use crate::memory::GlobalMemory;
use crate::report;
use crate::scheduler::{Idle, Poll, Scheduler, Task, WaitFor};
use hwsim_ptx::Progress;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::Builder;

/// Warp instructions that a block runs before others get their turn: some 100 µs.
const SLICE_INSTRUCTIONS: u64 = 8192;
/// Warp instructions that suffice to see whether a block that waited still does. A block that has
/// come to life is handed back, so that other workers learn of it.
const GLANCE_INSTRUCTIONS: u64 = 512;
/// A look at a waiting block that takes longer than this has done more than wait.
const GLANCE_NS_MAX: u64 = 4_000;

/// How far the workers stand back behind the program's own threads.
const WORKER_NICE: i32 = 10;

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
            let progressed = match task {
                Task::Resume(stream) => {
                    stream.resume();
                    true
                }
                Task::Drive(stream) => {
                    stream.go_on();
                    true
                }
                Task::Piece(job, offset) => {
                    if job.run(&self.memory, offset) {
                        self.scheduler.end_copy(&job);
                        Arc::clone(job.client()).resume();
                    }
                    true
                }
                Task::Block(run, resident) => self.run_block(&run, resident),
                Task::Polls(polls) => self.run_polls(polls),
            };
            idle.fruitless = if progressed { 0 } else { idle.fruitless + 1 };
        }
    }

    /// Runs one slice of a block; false if it only waits.
    fn run_block(&self, run: &Arc<KernelRun>, mut resident: Box<Resident>) -> bool {
        let budget = if resident.waiting { GLANCE_INSTRUCTIONS } else { SLICE_INSTRUCTIONS };
        let place = resident.multiprocessor;
        let started = self.clock.now();
        if resident.waiting {
            run.view.clear_stored();
        }
        let outcome = if run.is_doomed() {
            Ok(Ok(Progress::Finished))
        } else {
            let _access = self.memory.access();
            let block = &mut resident.block;
            let slice = || block.run(&run.view, &self.clock, budget).map_err(Box::new);
            catch_unwind(AssertUnwindSafe(slice))
        };
        let mut progressed = true;
        let kept = match outcome {
            Ok(Ok(Progress::Finished)) => None,
            Ok(Ok(Progress::Waiting)) => {
                let took = self.clock.now() - started;
                progressed = took > GLANCE_NS_MAX || run.view.has_stored();
                resident.waiting = true;
                Some(resident)
            }
            Ok(Ok(Progress::Budget)) => {
                resident.waiting = false;
                Some(resident)
            }
            Ok(Err(fault)) => {
                run.client.fail(report::fault(&self.memory, run.origin.gpu, &fault));
                None
            }
            Err(_) => {
                eprintln!("hwsim: the interpreter failed in kernel {}", run.launch.kernel.name);
                run.client.fail(Sticky::LaunchFailed);
                None
            }
        };
        if self.scheduler.put_back(run, kept, place) {
            Arc::clone(&run.client).resume();
        }
        progressed
    }

    /// Looks at words that streams wait for; false if none changed.
    fn run_polls(&self, polls: Vec<Poll>) -> bool {
        let now = self.clock.now();
        let met = |wait: &WaitFor| match wait {
            WaitFor::Word(word) => word.is_met(&self.memory),
            WaitFor::Time(time) => now >= *time,
        };
        let over = |poll: &Poll| poll.stream.has_failed() || met(&poll.wait);
        let (met, unmet): (Vec<_>, Vec<_>) = polls.into_iter().partition(over);
        let progressed = !met.is_empty();
        if !unmet.is_empty() {
            self.scheduler.poll_again(unmet);
        }
        for poll in met {
            poll.stream.resume();
        }
        progressed
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
