//! What users ask when a job does not go on: `ringdove inspect`, the signal, and the watchdog, all
//! of them before any wait has expired.

mod hardware;

use hardware::perf::{on_real_hardware, perf};
use hardware::{World, on_machine, settings, sum, tool};
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
