//! The threads that do the machine's work.

use crate::error::Sticky;
use crate::kernel::{KernelRun, Resident};
use crate::machine::Machine;
use crate::report;
use crate::scheduler::{Idle, Poll, Task, WaitFor};
use crate::stream::{HostCall, Stream};
use hwsim_ptx::Progress;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
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

/// Starts the workers. They end when the machine stops, and hold no program alive.
pub(crate) fn start(machine: &Arc<Machine>, count: usize) -> std::io::Result<()> {
    for index in 0..count {
        let machine = Arc::clone(machine);
        Builder::new().name(format!("hwsim-worker{index}")).spawn(move || run(&machine))?;
    }
    Ok(())
}

fn run(machine: &Arc<Machine>) {
    sleep_precisely();
    give_way();
    let mut idle = Idle::default();
    while let Some(task) = machine.scheduler.next(&mut idle) {
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
                if job.run(offset) {
                    machine.scheduler.end_copy(&job);
                    job.stream().resume();
                }
                true
            }
            Task::Block(run, resident) => run_block(machine, &run, resident),
            Task::Polls(polls) => run_polls(machine, polls),
        };
        idle.fruitless = if progressed { 0 } else { idle.fruitless + 1 };
    }
}

/// Runs one slice of a block; false if it only waits.
fn run_block(machine: &Machine, run: &Arc<KernelRun>, mut resident: Box<Resident>) -> bool {
    let budget = if resident.waiting { GLANCE_INSTRUCTIONS } else { SLICE_INSTRUCTIONS };
    let place = resident.multiprocessor;
    let started = machine.clock.now();
    if resident.waiting {
        run.view.clear_stored();
    }
    let outcome = if run.is_doomed() {
        Ok(Ok(Progress::Finished))
    } else {
        let _access = machine.memory.access();
        let block = &mut resident.block;
        let slice = || block.run(&run.view, &machine.clock, budget).map_err(Box::new);
        catch_unwind(AssertUnwindSafe(slice))
    };
    let mut progressed = true;
    let kept = match outcome {
        Ok(Ok(Progress::Finished)) => None,
        Ok(Ok(Progress::Waiting)) => {
            let took = machine.clock.now() - started;
            progressed = took > GLANCE_NS_MAX || run.view.has_stored();
            resident.waiting = true;
            Some(resident)
        }
        Ok(Ok(Progress::Budget)) => {
            resident.waiting = false;
            Some(resident)
        }
        Ok(Err(fault)) => {
            run.stream.context.fail(report::fault(machine, &run.stream.context, &fault));
            None
        }
        Err(_) => {
            eprintln!("hwsim: the interpreter failed in kernel {}", run.launch.kernel.name);
            run.stream.context.fail(Sticky::LaunchFailed);
            None
        }
    };
    if machine.scheduler.put_back(run, kept, place) {
        run.stream.resume();
    }
    progressed
}

/// Looks at words that streams wait for; false if none changed.
fn run_polls(machine: &Machine, polls: Vec<Poll>) -> bool {
    let now = machine.clock.now();
    let met = |wait: &WaitFor| match wait {
        WaitFor::Word(word) => word.is_met(&machine.memory),
        WaitFor::Time(time) => now >= *time,
    };
    let over = |poll: &Poll| poll.stream.context.has_failed() || met(&poll.wait);
    let (met, unmet): (Vec<_>, Vec<_>) = polls.into_iter().partition(over);
    let progressed = !met.is_empty();
    if !unmet.is_empty() {
        machine.scheduler.poll_again(unmet);
    }
    for poll in met {
        poll.stream.resume();
    }
    progressed
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

/// A host function and the stream that waits for it.
type Call = (HostCall, Arc<Stream>);

/// The thread that calls host functions: they may block, and so must not hold a worker.
#[derive(Default)]
pub(crate) struct Callbacks {
    sender: Mutex<Option<Sender<Call>>>,
}

impl Callbacks {
    /// Calls `call` later, then goes on with the stream.
    pub fn call(&self, call: HostCall, stream: Arc<Stream>) {
        let mut sender = self.sender.lock().unwrap();
        let sender = sender.get_or_insert_with(|| {
            let (sender, receiver) = channel::<Call>();
            let serve = move || {
                for (call, stream) in receiver {
                    call(stream.context.check());
                    stream.head_done();
                }
            };
            // If no thread can be had, `serve` is dropped and with it the receiver: see below.
            let _ = Builder::new().name("hwsim-callbacks".into()).spawn(serve);
            sender
        });
        // Without the thread the receiver is gone; the function is then called here, late but
        // once, as dropping it would lose the program's work.
        if let Err(returned) = sender.send((call, stream)) {
            let (call, stream) = returned.0;
            call(stream.context.check());
            stream.head_done();
        }
    }
}
