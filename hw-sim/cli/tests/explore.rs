//! `hwsim explore`: what its exit status says, and what it refuses.

use std::path::Path;
use std::process::Command;

fn explore(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hwsim"));
    let output = command.arg("explore").args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// If this fails, a script takes a command that could not do what it was asked for a run that
/// failed, or for runs that were fine.
#[test]
fn what_cannot_be_run_is_no_failing_run() {
    let folder = tempfile::tempdir().unwrap();
    let (file, missing) = (folder.path().join("file"), folder.path().join("missing/file"));
    std::fs::write(&file, "no text of a kernel").unwrap();
    let (file, missing) = (file.to_str().unwrap(), missing.to_str().unwrap());
    for (arguments, status, reason) in [
        (&["--runs", "0", "ring"][..], 2, "0 is not in 1.."),
        (&["--runs", "-1", "ring"], 2, "unexpected argument"),
        (&["--seed", "x", "ring"], 2, "invalid digit"),
        (&["--budget", "x", "ring"], 2, "expected seconds"),
        (&["no-such"], 2, "expected one of ring, "),
        (&[], 2, "SCENARIO"),
        (&["--with", "lanes=1", "ring"], 2, "NAME one of launches, "),
        (&["--with", "blocks=x", "ring"], 2, "expected a number after blocks="),
        (&["--fault", "gpu0:melts", "ring"], 2, "expected gpuN:stop-at=TURN"),
        (&["--fault", "rank7:kill-at=3", "ring"], 125, "the run of seed 0 has 2 ranks"),
        (&["--fault", "rank0:late", "ring"], 125, "has no jobs"),
        (&["--ptx", missing, "ring"], 125, "cannot read"),
        (&["--ptx", file, "ring"], 125, "hwsim: "),
        (&["--kernel", missing], 125, "cannot read"),
        (&["--kernel", file], 125, file),
        (&["--trace", missing, "ring"], 125, "cannot write"),
    ] {
        let (seen, text) = explore(arguments);
        assert_eq!(seen, Some(status), "{arguments:?}: {text}");
        assert!(text.contains(reason), "{arguments:?}: {text}");
    }
}

/// If this fails, a budget that is too short passes without a run.
#[test]
fn one_run_is_made_within_any_budget() {
    let (status, text) = explore(&["--budget", "0", "ring"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.starts_with("ring: 1 runs from seed 0, none failed"), "{text}");
}

/// If this fails, the command that is printed for a failing run does not make it fail again.
#[test]
fn a_failing_run_ends_in_one_and_prints_what_replays_it() {
    let folder = tempfile::tempdir().unwrap();
    let (text, trace) = (folder.path().join("mutant.ptx"), folder.path().join("trace.json"));
    let executor = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels/ptx/executor.ptx");
    let executor = std::fs::read_to_string(executor).unwrap();
    // Without the fence that publishes data.
    std::fs::write(&text, executor.replacen("fence.acq_rel.sys;", "", 1)).unwrap();
    let trace = trace.to_str().unwrap();
    let arguments = ["--ptx", text.to_str().unwrap(), "--shrink", "--trace", trace, "ring"];
    let (status, said) = explore(&arguments);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("drawn: ") && said.contains("shrunk from"), "{said}");
    let events: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(trace).unwrap()).unwrap();
    assert!(events["traceEvents"].as_array().is_some_and(|events| !events.is_empty()));
    let replay = said.lines().find_map(|line| line.strip_prefix("replay: hwsim explore "));
    let replay: Vec<&str> = replay.expect("a command").split(' ').collect();
    let (status, again) = explore(&replay);
    assert_eq!(status, Some(1), "{again}");
    let reason =
        |text: &str| text.lines().find(|line| line.contains(" fails: ")).map(str::to_owned);
    assert!(reason(&said).is_some() && reason(&said) == reason(&again), "{said}{again}");
}
