//! `ringdove perf` in several processes on virtual machines.

use super::{hwsim, is_left_out, run_bounded, tool};
use std::process::ExitStatus;

/// How it ended, and what all processes printed.
pub type Ended = (ExitStatus, String);

/// `ringdove perf LINE` in `processes` processes on `machine`, with `faults` of adapters. `inside`
/// is shell code that runs in each process before it. A process whose job a fault kills stays for
/// a while, so that the others end by themselves and can say why.
pub fn perf((machine, processes): (&str, u32), faults: &str, inside: &str, line: &str) -> Ended {
    let mut command = hwsim();
    command.args(["run", "--quiet", "--machine", machine, "--procs", &processes.to_string()]);
    let job = format!("{} perf {line}", tool("ringdove").display());
    let script = match faults.contains("kill-at") {
        true => format!("{inside}\n{job}; status=$?; [ $status != 137 ] || sleep 60; exit $status"),
        false => format!("{inside}\nexec {job}"),
    };
    command.args(["--", "bash", "-c", &script]).env("HWSIM_FAULTS", faults);
    run_bounded(command)
}

/// The errors with which the command ended in the process of this rank.
///
/// # Panics
/// If it said none.
pub fn last_words(output: &str, rank: u32) -> String {
    let beginning = format!("[{rank}] ringdove: ");
    let words: Vec<_> = output.lines().filter(|line| line.starts_with(&beginning)).collect();
    assert!(!words.is_empty(), "rank {rank} does not say why it ended: {output}");
    words.join("\n")
}

/// True, with a word about it, where tests shall run on the GPUs and adapters of this machine.
pub fn on_real_hardware() -> bool {
    is_left_out("this test places its ranks on virtual nodes")
}

/// The run succeeded, and found every element right.
pub fn assert_right(what: &str, (status, output): &Ended) {
    assert!(status.success(), "{what}: {status}\n{output}");
    assert!(output.contains("# Out of bounds values : 0 OK"), "{what}: {output}");
}
