//! Servers and workers whose processes are stopped, by a debugger, say: what counts as waited for.
//! All of them for longer than any limit: nobody is declared dead when they go on. One alone: it is
//! given up, since the others have waited all the while.

mod hardware;
mod serving;
mod stopping;

use hardware::{is_left_out, on_machine_env};
use nix::sys::signal::Signal;
use ringdove::error::ServeError;
use ringdove::serve::{Job, Server};
use ringdove::{Error, Settings};
use serving::*;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use stopping::{Ending, Marks, send, stop_for};

/// How long members wait for one another, and how long one may stand still.
const WAIT: Duration = Duration::from_secs(6);
const STALL: Duration = Duration::from_secs(3);
/// How long all are stopped.
const STOP: Duration = Duration::from_secs(8);
/// The step before which the last worker holds the others up, and the one in which they then wait
/// for it: they may be two gradients ahead, and wait in each third step for what they have sent.
const HOLD_STEP: u64 = 10;
const WAIT_STEP: u64 = 12;
/// The step after which one server is stopped for good.
const LOSE_STEP: u64 = 30;
const MEMBERS: u32 = 5;
const LOST: u32 = 1;

/// In the process of the test: stops the members at the moments that they show.
fn stop_members(marks: &Marks, is_over: &AtomicBool) -> Option<()> {
    let members = marks.processes(MEMBERS, is_over)?;
    for rank in 2..4 {
        marks.wait(&format!("step-{WAIT_STEP}-{rank}"), is_over)?;
    }
    marks.wait(&format!("step-{HOLD_STEP}-4"), is_over)?;
    stop_for(STOP, &members);
    marks.set("go-on", "");
    for rank in 2..MEMBERS {
        marks.wait(&format!("step-{LOSE_STEP}-{rank}"), is_over)?;
    }
    let lost = &members[LOST as usize..][..1];
    send(Signal::SIGSTOP, lost);
    marks.set("is-lost", "");
    for rank in 2..MEMBERS {
        marks.wait(&format!("end-{rank}"), is_over)?;
    }
    send(Signal::SIGCONT, lost);
    Some(())
}

/// One of the members.
fn take_part(marks: &Marks) {
    let (rank, never) = (launch().rank, AtomicBool::new(false));
    let settings = Settings { wait_timeout: WAIT, ..settings() };
    let job = Job { staleness: Some(2), stall_timeout: STALL, ..job(2, 3) };
    marks.set_process(rank);
    if rank < 2 {
        let ended = Server::join(job, &launch(), &settings).unwrap().run();
        println!("server {rank}: {ended:?}");
        // The one that was stopped may find the others gone.
        let removed = matches!(ended, Err(Error::Serve(ServeError::Removed { .. })));
        assert!(ended.is_ok() || removed && rank == LOST, "{ended:?}");
        return;
    }
    let seen = work(client_with(job, &settings), |step, client| {
        marks.set(&format!("step-{step}-{rank}"), "");
        if step == HOLD_STEP && rank == 4 {
            assert!(marks.wait("go-on", &never).is_some(), "nobody was stopped");
        }
        if step == LOSE_STEP {
            let removed = client.removed();
            assert!(removed.is_empty(), "{removed:?} declared dead, who was stopped with all");
            assert!(marks.wait("is-lost", &never).is_some(), "no server was stopped");
        }
    });
    marks.set(&format!("end-{rank}"), "");
    assert_eq!(seen.counts, vec![vec![STEPS; 3]; 2]);
    assert_eq!(seen.removed, [LOST as usize]);
}

/// If this fails, a job that was stopped in a debugger, or whose machine stood still, ends when it
/// goes on; or a member that stands still alone is waited for until somebody gives up.
#[test]
fn a_job_that_was_stopped_goes_on_and_a_member_that_stopped_alone_is_given_up() {
    if is_left_out("this test stops processes on virtual nodes") {
        return;
    }
    if let Some(folder) = std::env::var_os("RINGDOVE_TEST_FOLDER") {
        return take_part(&Marks(folder.into()));
    }
    let folder = tempfile::tempdir().unwrap();
    let (marks, is_over) = (Marks(folder.path().to_owned()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let stopper = scope.spawn(|| stop_members(&marks, &is_over));
        let end = Ending(&is_over);
        on_five(folder.path());
        drop(end);
        assert!(stopper.join().unwrap().is_some(), "the members were not stopped");
    });
}

fn on_five(folder: &Path) {
    let variables = [("RINGDOVE_TEST_FOLDER", folder.to_str().unwrap())];
    on_machine_env(NODES, &PROCESSES, &variables, || unreachable!("the body runs inside alone"));
}
