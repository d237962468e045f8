//! A C program that opens `libcuda.so.1` by name runs, and its calls are traced.

mod common;

use common::driver_folder;
use std::process::Command;

#[test]
fn a_c_program_runs_and_leaves_a_trace() {
    let folder = driver_folder();
    let program = folder.path().join("program");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/program.c");
    let compiled = Command::new("cc")
        .args(["-O1", "-Wall", "-Werror", "-o"])
        .arg(&program)
        .args([source, "-ldl"])
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let trace = folder.path().join("trace");
    let output = Command::new(&program)
        .env("LD_LIBRARY_PATH", folder.path())
        .env("HWSIM_MACHINE", "one-gpu")
        .env("HWSIM_TRACE", &trace)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "sum 999000.0\n", "{errors}");
    assert!(output.status.success(), "{errors}");
    let trace = std::fs::read_to_string(trace).unwrap();
    let calls: Vec<Vec<&str>> = trace.lines().map(|line| line.split(' ').collect()).collect();
    for name in ["cuInit", "cuLaunchKernel", "cuCtxDestroy_v2"] {
        let call = calls.iter().find(|call| call[2] == name);
        let call = call.unwrap_or_else(|| panic!("no {name} in:\n{trace}"));
        assert_eq!(call[3], "CUDA_SUCCESS");
        assert!(call[0].parse::<u64>().unwrap() > 0 && call[1].parse::<u32>().unwrap() > 0);
    }
}
