//! `ringdove perf` in several processes on virtual machines.

use super::{hwsim, is_real, run_bounded, tool};
use std::process::ExitStatus;

/// How it ended, and what all processes printed.
pub type Ended = (ExitStatus, String);

/// `ringdove perf LINE` in `processes` processes on `machine`, with `faults` of adapters. `inside`
/// is shell code that runs in each process before it.
pub fn perf((machine, processes): (&str, u32), faults: &str, inside: &str, line: &str) -> Ended {
    let mut command = hwsim();
    command.args(["run", "--quiet", "--machine", machine, "--procs", &processes.to_string()]);
    let script = format!("{inside}\nexec {} perf {line}", tool("ringdove").display());
    command.args(["--", "bash", "-c", &script]).env("HWSIM_FAULTS", faults);
    run_bounded(command)
}

/// True, with a word about it, where tests shall run on the GPUs and adapters of this machine.
pub fn on_real_hardware() -> bool {
    let real = is_real();
    if real {
        tally::skip("virtual-only", "this test places its ranks on virtual nodes");
    }
    real
}

/// The run succeeded, and found every element right.
pub fn assert_right(what: &str, (status, output): &Ended) {
    assert!(status.success(), "{what}: {status}\n{output}");
    assert!(output.contains("# Out of bounds values : 0 OK"), "{what}: {output}");
}
