//! The Python package on virtual GPUs: programs in Python, run by Python.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
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
    let package = folder.path().join("ringdove");
    fs::create_dir(&package).unwrap();
    for file in fs::read_dir(source("python/ringdove")).unwrap() {
        let file = file.unwrap();
        if file.file_type().unwrap().is_file() {
            fs::copy(file.path(), package.join(file.file_name())).unwrap();
        }
    }
    let module = built("libringdove_python.so");
    fs::copy(module, package.join("_ringdove.abi3.so")).unwrap();
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

/// If this fails, ranks that torchrun has started do not find one another from Python.
#[test]
fn ranks_of_a_launcher_meet() {
    let installed = installed();
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let ranks: Vec<_> = (0..2)
        .map(|rank| {
            let mut command = python(&installed, "pcie4", "launched.py");
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2");
            command.env("LOCAL_RANK", rank.to_string()).env("LOCAL_WORLD_SIZE", "2");
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for rank in ranks {
        assert_right(&rank.wait_with_output().unwrap());
    }
}
