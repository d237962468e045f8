//! Ranks whose processes are all stopped for longer than any limit, by a debugger, say, or since
//! their machine stood still, while their hosts wait for one another: nobody fails when they go on.
//! Deadlines of kernels that wait are of the GPU's clock, and not tested here.

mod hardware;
mod stopping;

use hardware::*;
use ringdove::bootstrap::Launch;
use ringdove::{Communicator, ReduceOp, Settings};
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use stopping::{Ending, Marks, stop_for};

/// How long ranks wait for one another.
const LIMIT: Duration = Duration::from_secs(10);
/// How long all are stopped.
const STOP: Duration = Duration::from_secs(14);
/// Two ranks in each process, each process on a virtual node.
const MACHINE: &str = "pcie4 x 3";
const PROCESSES: u32 = 3;
const RANKS: u32 = 2;
/// The process for which the others wait.
const LATE: u32 = 2;
/// Its ranks come late to the rendezvous, and to a registration.
const WAITS: [&str; 2] = ["join", "register"];

/// In the process of the test: stops all in the middle of each wait.
fn stop_ranks(marks: &Marks, is_over: &AtomicBool) -> Option<()> {
    let processes = marks.processes(PROCESSES, is_over)?;
    for wait in WAITS {
        for process in (0..PROCESSES).filter(|process| *process != LATE) {
            marks.wait(&format!("{wait}-{process}"), is_over)?;
        }
        stop_for(STOP, &processes);
        marks.set(&format!("{wait}-go-on"), "");
    }
    Some(())
}

/// In each process: calls what all ranks call, the late one when all were stopped.
fn late<T>(wait: &str, marks: &Marks, process: u32, call: impl FnOnce() -> T) -> T {
    if process == LATE {
        let went_on = marks.wait(&format!("{wait}-go-on"), &AtomicBool::new(false));
        assert!(went_on.is_some(), "nobody was stopped during {wait}");
        return call();
    }
    std::thread::scope(|scope| {
        let (sender, called) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            // So that it has begun to wait. Where it has not, this tests less, and fails nothing.
            let _ = called.recv_timeout(Duration::from_millis(500));
            marks.set(&format!("{wait}-{process}"), "");
        });
        let value = call();
        drop(sender);
        value
    })
}

fn take_part(marks: &Marks) {
    let process = Launch::from_env().unwrap().expect("hwsim run starts ranks").rank;
    marks.set_process(process);
    let limits = Settings { wait_timeout: LIMIT, bootstrap_timeout: LIMIT, ..settings() };
    let ranks = late("join", marks, process, || try_join_with(RANKS, limits)).unwrap();
    late("register", marks, process, || {
        std::thread::scope(|scope| {
            for rank in &ranks {
                scope.spawn(move || sum_in_registered(rank));
            }
        });
    });
}

/// The first collective on a registered buffer waits on the host until all ranks have registered.
fn sum_in_registered(rank: &Communicator) {
    let stream = rank.context().new_stream().unwrap();
    let own = stream.clone_htod(&[rank.rank() as f32 + 1.0; 1000]).unwrap();
    let mut buffer = rank.register(own).unwrap();
    rank.all_reduce_in_place(&mut buffer, ReduceOp::Sum, &stream).unwrap();
    let sum: Vec<f32> = stream.clone_dtoh(&buffer).unwrap();
    rank.check().unwrap();
    let ranks = PROCESSES * RANKS;
    assert_eq!(sum, vec![(ranks * (ranks + 1) / 2) as f32; 1000]);
}

/// If this fails, a job that was stopped in a debugger, or whose machine stood still, ends when it
/// goes on, since hosts count the time in which they were stopped as waited for.
#[test]
fn ranks_that_were_stopped_while_they_wait_go_on() {
    if is_left_out("this test stops processes on virtual nodes") {
        return;
    }
    if let Some(folder) = std::env::var_os(FOLDER) {
        return take_part(&Marks(folder.into()));
    }
    let folder = tempfile::tempdir().unwrap();
    let (marks, is_over) = (Marks(folder.path().to_owned()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let stopper = scope.spawn(|| stop_ranks(&marks, &is_over));
        let end = Ending(&is_over);
        let (processes, variables) =
            (PROCESSES.to_string(), [(FOLDER, folder.path().to_str().unwrap())]);
        let options = ["--procs", processes.as_str()];
        on_machine_env(MACHINE, &options, &variables, || {
            unreachable!("the body runs inside alone")
        });
        drop(end);
        assert!(stopper.join().unwrap().is_some(), "the ranks were not stopped");
    });
}
