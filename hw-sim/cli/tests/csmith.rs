//! Random C programs, compiled by clang, compute on a virtual GPU what they compute on the host.
//! `./x clients csmith` runs more of them.

use std::path::Path;
use std::process::Command;

/// The first seed and their number: the same programs every time, in some seconds.
const SEEDS: [&str; 2] = ["1", "4"];

fn is_there(tool: &str, folder: &Path) -> bool {
    // csmith leaves a file where it runs.
    let output = Command::new(tool).arg("--version").current_dir(folder).output();
    output.is_ok_and(|output| output.status.success())
}

/// If this fails, the interpreter computes something else than a processor does.
#[test]
fn random_programs_compute_what_the_host_computes() {
    let folder = tempfile::tempdir().unwrap();
    let header = Path::new("/usr/include/csmith/csmith.h").exists();
    let tools = ["csmith", "clang-19", "python3"];
    if !(header && tools.into_iter().all(|tool| is_there(tool, folder.path()))) {
        return tally::skip("csmith", "random C programs on a virtual GPU");
    }
    let library = std::env::current_exe().unwrap().parent().unwrap().join("libhwsim.so");
    let script =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/clients/csmith_programs.py");
    let mut command = Command::new("python3");
    command.arg(script).args(SEEDS).arg(folder.path());
    command.env("hwsim", env!("CARGO_BIN_EXE_hwsim")).env("HWSIM_LIB", library);
    let output = command.output().unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    assert!(out.contains("4 programs right at -O0 to -O3, 0 left out"), "{out}\n{err}");
}
