//! What users ask when a job does not go on: `ringdove inspect`, the signal, and the watchdog, all
//! of them before any wait has expired.

mod hardware;

use hardware::perf::{on_real_hardware, perf};
use hardware::{World, on_machine, settings, sum, tool};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ringdove::{ReduceOp, Settings};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Runs `ringdove inspect` until what it prints satisfies `is_it`.
fn inspect(pid: u32, is_it: impl Fn(&str, Option<i32>) -> bool) -> String {
    let started = Instant::now();
    loop {
        let mut command = Command::new(tool("ringdove"));
        let output = command.args(["inspect", "--calls", &pid.to_string()]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        if is_it(&text, output.status.code()) {
            return text;
        }
        assert!(started.elapsed() < hardware::SOON, "{text}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// If this fails, `ringdove inspect` does not say who has not come, or what was called.
#[test]
fn a_rank_that_never_calls_is_named_before_any_wait_expires() {
    on_machine("pcie4", || {
        let world = World::with(3, &settings());
        let mut buffers = world.upload(&vec![vec![0; 4000]; 3]);
        for (rank, buffer) in buffers.iter_mut().enumerate() {
            sum(&world, rank, buffer, 1000).unwrap();
        }
        world.finish();
        let own = std::process::id();
        // It is seen within half a second that launches have ended.
        let fine = "no rank has anything left to do";
        inspect(own, |text, status| status == Some(0) && text.contains(fine));
        for rank in [0, 2] {
            sum(&world, rank, &mut buffers[rank], 900).unwrap();
        }
        let text = inspect(own, |_, status| status == Some(3));
        for part in [
            "3 of 3 ranks: rank 1 did not make the call",
            "in launch 1: all-reduce 1 of 900, plan ",
            "nothing left to do; last call: all-reduce 0 of 1000",
            "last calls and launches of rank 1:",
        ] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
        world.communicators[0].abort("the test is over");
        world.streams.iter().for_each(|stream| stream.synchronize().unwrap());
    });
}

/// If this fails, a process without ranks, or none at all, is taken for one in which all is well.
#[test]
fn what_has_no_recorder_is_said_so() {
    // This process has none, and the first one is another user's or has none either.
    for pid in [std::process::id(), 1] {
        let text = inspect(pid, |_, status| status == Some(1));
        assert!(text.contains(&format!("process {pid} has no flight recorder")), "{text}");
    }
}

/// If this fails, signals are of no use, or the watchdog is silent while nothing moves.
#[test]
fn a_signal_and_the_watchdog_report_a_process_that_is_stopped() {
    if on_real_hardware() {
        return;
    }
    let line = "all-reduce -g 1 -b 1M -e 1M -n 1000000 -w 1 -c 0";
    // Rank 0 is asked a while after rank 1 was seen to have stopped.
    let folder = tempfile::tempdir().unwrap();
    let stopped = folder.path().join("stopped");
    let script = format!(
        "export RINGDOVE_INSPECT_SIGNAL=USR1 RINGDOVE_WATCHDOG_MS=500 RINGDOVE_TIMEOUT_MS=12000
         until_it() {{ until \"$@\"; do sleep 0.1; done; }}
         [ $RANK = 1 ] && {{ (until_it grep -q '^State:.T' /proc/$$/status; touch {0}) & }}
         [ $RANK = 0 ] && {{ (until_it test -e {0}; sleep 5; kill -USR1 $$) & }}; true",
        stopped.display()
    );
    let (status, output) = perf(("pcie4", 2), "rank1:freeze-at=2000", &script, line);
    assert!(!status.success(), "{output}");
    let warned = "nothing has moved for a while";
    assert!(output.contains(warned), "no warning of the watchdog: {output}");
    let asked = output.lines().find(|line| line.contains("[0] ringdove: communicator"));
    let asked = asked.unwrap_or_else(|| panic!("no report on the signal: {output}"));
    assert!(asked.contains("rank 1 does not run"), "{asked}");
    // And when the wait has expired, the error comes with a report of its own.
    let reports = output.matches("rank 1 does not run").count();
    assert!(reports >= 2, "{output}");
}

/// Ranks of a job, each a process; this one makes a call less than the others.
const RANKS: usize = 4;
const ABSENT: usize = 2;
/// The folder that the processes of a job share with who watches them.
const JOB: &str = "RINGDOVE_TEST_INSPECT";

/// If this fails, users whose job hangs in its third all-reduce do not learn which rank has not
/// come, or not in each of three ways: by `ringdove inspect`, by the signal, and unasked.
#[test]
fn a_process_that_does_not_come_to_a_call_is_named_in_each_way() {
    if let Some(folder) = std::env::var_os(JOB) {
        return take_part(Path::new(&folder));
    }
    if on_real_hardware() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = |rank: usize, what: &str| folder.path().join(format!("{rank}.{what}"));
    let thread = std::thread::current();
    let test = thread.name().expect("libtest names its threads");
    let mut command = hardware::hwsim();
    command.args(["run", "--quiet", "--machine", "pcie4", "--procs", &RANKS.to_string(), "--"]);
    command.args(["bash", "-c", &format!("exec \"$@\" 2>\"${JOB}/$RANK.errors\""), "bash"]);
    command.arg(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    command.env(JOB, folder.path()).env("RINGDOVE_TIMEOUT_MS", "60000");
    command.env("RINGDOVE_INSPECT_SIGNAL", "USR1").env("RINGDOVE_WATCHDOG_MS", "500");
    let job = std::thread::spawn(|| hardware::run_bounded(command));

    let verdict = format!(
        "4 of 4 ranks: rank {ABSENT} did not make the call that others wait for: rank {ABSENT} \
         made 2 collectives, others 3"
    );
    let pid = |rank| until(|| std::fs::read_to_string(file(rank, "pid")).ok()?.parse().ok());
    let pids: Vec<u32> = (0..RANKS).map(pid).collect();
    // Whichever of them is asked.
    for pid in &pids {
        let text = inspect(*pid, |_, status| status == Some(3));
        assert!(text.contains(&verdict), "process {pid}: {text}");
    }
    kill(Pid::from_raw(pids[0] as i32), Signal::SIGUSR1).unwrap();
    // Rank 0 speaks for its node. The first is the watchdog's, the second the signal's.
    let has = |what: &str| {
        let text = std::fs::read_to_string(file(0, "errors")).ok()?;
        let said = text.lines().any(|line| line.contains(what) && line.contains(&verdict));
        said.then_some(())
    };
    until(|| has("nothing has moved for a while (RINGDOVE_WATCHDOG_MS): communicator"));
    until(|| has("ringdove: communicator"));
    std::fs::write(folder.path().join("over"), "").unwrap();
    let (status, output) = job.join().unwrap();
    assert!(status.success(), "{output}");
}

/// Asks again until there is an answer.
fn until<T>(ask: impl Fn() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(started.elapsed() < hardware::SOON, "no answer after {:?}", hardware::SOON);
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A rank of the job.
fn take_part(folder: &Path) {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let communicator =
        hardware::try_join_with(1, Settings::from_env().unwrap()).unwrap().swap_remove(0);
    let rank = communicator.rank() as usize;
    let stream = communicator.context().per_thread_stream();
    let mut buffer = stream.clone_htod(&vec![1_u32; 1000]).unwrap();
    for _ in 0..if rank == ABSENT { 2 } else { 3 } {
        communicator.all_reduce_in_place(&mut buffer, ReduceOp::Sum, &stream).unwrap();
    }
    // In one piece, so that who reads it does not see a part.
    let name = |what: &str| folder.join(format!("{rank}.{what}"));
    std::fs::write(name("new"), std::process::id().to_string()).unwrap();
    std::fs::rename(name("new"), name("pid")).unwrap();
    until(|| folder.join("over").exists().then_some(()));
    communicator.abort("the test is over");
    hardware::wait_for_error(&communicator);
}
