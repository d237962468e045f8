//! The Python package on virtual GPUs: programs in Python, run by Python.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().unwrap().parent().unwrap().join(name);
    assert!(path.exists(), "no {}: run cargo build --release --workspace", path.display());
    path
}

/// The package, as a wheel installs it.
fn installed() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let module = built("libringdove_python.so");
    let mut assemble = Command::new(source("assemble"));
    assemble.arg("--package").arg(folder.path());
    assemble.env("CARGO_TARGET_DIR", module.parent().unwrap().parent().unwrap());
    let output = assemble.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    folder
}

fn python(installed: &TempDir, machine: &str, program: &str) -> Command {
    let mut command = Command::new(built("hwsim"));
    command.args(["run", "--quiet", "--driver-profile", "strict", "--machine", machine, "--"]);
    command.arg("python3").arg(source("tests").join(program));
    command.env("PYTHONPATH", installed.path()).env("PYTHONFAULTHANDLER", "1");
    command
}

fn assert_right(output: &Output) {
    let (out, err) = (&output.stdout, &output.stderr);
    let (out, err) = (String::from_utf8_lossy(out), String::from_utf8_lossy(err));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    assert!(out.trim_end().ends_with("right"), "{out}\n{err}");
}

#[test]
fn every_call_gives_what_lists_of_numbers_give() {
    assert_right(&python(&installed(), "pcie4", "collectives.py").output().unwrap());
}

/// If this fails, a mistake in a program in Python crashes it, hangs it, or is not explained.
#[test]
fn what_cannot_be_is_an_exception() {
    assert_right(&python(&installed(), "pcie4", "bad_input.py").output().unwrap());
}

/// If this fails, the other ranks of a program hang after one has failed, or do not say which.
#[test]
fn one_rank_that_fails_is_named_by_the_others() {
    assert_right(&python(&installed(), "pcie4", "failing_ranks.py").output().unwrap());
}

/// If this fails, ranks of two versions or builds of the package work together until one
/// misunderstands the other.
#[test]
fn ranks_of_two_builds_do_not_meet() {
    assert_right(&python(&installed(), "pcie4", "two_builds.py").output().unwrap());
}

/// If this fails, a call or the end of an object changes the GPU on which a program's other
/// libraries go on, or frees memory in a context that is not its own.
#[test]
fn the_current_gpu_stays() {
    assert_right(&python(&installed(), "pcie4", "current_gpu.py").output().unwrap());
}

/// If this fails, kernels that other compilers make do not communicate.
#[test]
fn functions_for_kernels_put_signal_and_wait() {
    let installed = installed();
    let mut command = python(&installed, "pcie4", "functions.py");
    assert_right(&command.env("RINGDOVE_USER_LANES", "1").output().unwrap());
}

/// If this fails, a kernel that reads what has not come passes a user's test in all orders, or one
/// that is right does not.
#[test]
fn kernels_are_explored_from_python() {
    let installed = installed();
    let hwsim = built("hwsim");
    let package = source("../../hw-sim/python/python");
    let path = std::env::join_paths([installed.path(), &package]).unwrap();
    let search = std::env::var("PATH").unwrap();
    let mut command = python(&installed, "pcie4", "explored.py");
    command.env("PYTHONPATH", path);
    command.env("PATH", format!("{}:{search}", hwsim.parent().unwrap().display()));
    assert_right(&command.output().unwrap());
}

/// If this fails, a drawing of a kernel shows what has not happened.
#[test]
fn a_timeline_is_drawn_of_what_kernels_have_marked() {
    assert_right(&python(&installed(), "pcie4", "timeline.py").output().unwrap());
}

/// If this fails, ranks that a launcher has started do not find one another from Python.
#[test]
fn ranks_of_a_launcher_meet() {
    let installed = installed();
    let mut command = Command::new(built("hwsim"));
    // It sets the variables of torchrun.
    command.args(["run", "--quiet", "--driver-profile", "strict", "--machine", "pcie4 x 2"]);
    command.args(["--procs", "4", "--", "python3"]).arg(source("tests").join("launched.py"));
    command.env("PYTHONPATH", installed.path()).env("PYTHONFAULTHANDLER", "1");
    assert_right(&command.output().unwrap());
}

/// If this fails, a token takes another way through experts from Python than from Rust, or a wrong
/// call harms a group.
#[test]
fn experts_of_four_ranks() {
    let installed = installed();
    for machine in ["pcie4", "dgx-a100 x 2"] {
        let mut command = Command::new(built("hwsim"));
        command.args(["run", "--quiet", "--driver-profile", "strict", "--machine", machine]);
        command.args(["--procs", "4", "--", "python3"]).arg(source("tests").join("experts.py"));
        command.env("PYTHONPATH", installed.path()).env("PYTHONFAULTHANDLER", "1");
        assert_right(&command.env("RINGDOVE_USER_LANES", "4").output().unwrap());
    }
}

/// If this fails, tests in Python cannot start ranks on virtual machines of their own, or give
/// these faults.
#[test]
fn python_starts_virtual_machines() {
    let hwsim = built("hwsim");
    let search = std::env::var("PATH").unwrap();
    let mut command = Command::new("python3");
    command.arg(source("../../hw-sim/python/tests/runs.py"));
    command.env("PYTHONPATH", source("../../hw-sim/python/python"));
    command.env("PATH", format!("{}:{search}", hwsim.parent().unwrap().display()));
    assert_right(&command.output().unwrap());
}
