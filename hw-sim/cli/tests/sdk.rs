//! `hwsim sdk`: programs that link with the CUDA driver are built without it, and run.

mod sandbox;

use sandbox::{Sandbox, library, text};
use std::fs;
use std::path::Path;
use std::process::Command;

/// `hwsim sdk` with the library that cargo built for this test.
fn sdk(sandbox: &Sandbox, folder: &str) -> std::process::Output {
    let folder = sandbox.path(folder).display().to_string();
    sandbox.hwsim(&["sdk", &folder]).env("HWSIM_LIB", library()).output().unwrap()
}

fn build(folder: &Path, program: &Path) {
    let compiled = Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(folder.join("include"))
        .args(["-o".as_ref(), program.as_os_str()])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sdk.c"))
        .args(["-L".as_ref(), folder.join("lib64").as_os_str()])
        .arg("-lcuda")
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", text(&compiled.stderr));
}

/// Built against the folder, moved elsewhere in between: the folder is one that can be packed and
/// carried. The program runs under `hwsim run`, which brings its own driver, and without it.
#[test]
fn a_c_program_is_built_and_runs() {
    let sandbox = Sandbox::new();
    let output = sdk(&sandbox, "first");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let folder = sandbox.path("moved");
    fs::rename(sandbox.path("first"), &folder).unwrap();
    let program = sandbox.path("program");
    build(&folder, &program);
    let expected = "V100-PCIE-16GB (virtual)\n0 wrong of 65536; arrays: 801\n";

    let mut run = sandbox.hwsim(&["run", "-q", "--"]);
    let run = run.arg(&program).env("HWSIM_LIB", library()).env_remove("LD_LIBRARY_PATH");
    let output = run.output().unwrap();
    assert_eq!(text(&output.stdout), expected, "{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(0));

    let mut alone = Command::new(&program);
    alone.env("LD_LIBRARY_PATH", folder.join("lib64")).env("HWSIM_MACHINE", "pcie4");
    let output = alone.output().unwrap();
    assert_eq!(text(&output.stdout), expected, "{}", text(&output.stderr));
    sandbox.assert_nothing_left();
}

/// Drivers are installed as `libcuda.so.1`, some without any other name. A program that asked for
/// another would not start there.
#[test]
fn programs_ask_for_the_name_under_which_drivers_are_installed() {
    let sandbox = Sandbox::new();
    assert!(sdk(&sandbox, "sdk").status.success());
    let program = sandbox.path("program");
    build(&sandbox.path("sdk"), &program);
    fs::create_dir(sandbox.path("driver")).unwrap();
    fs::copy(library(), sandbox.path("driver/libcuda.so.1")).unwrap();
    let mut alone = Command::new(&program);
    let output = alone.env("LD_LIBRARY_PATH", sandbox.path("driver")).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn an_older_folder_is_brought_up_to_date_and_somebody_elses_is_left_alone() {
    let sandbox = Sandbox::new();
    for _ in 0..2 {
        let output = sdk(&sandbox, "sdk");
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains("CUDA_LIBRARY_PATH="), "{}", text(&output.stdout));
    }
    for link in ["sdk/lib64/libcuda.so", "sdk/lib64/stubs/libcuda.so"] {
        let target = sandbox.path(link).canonicalize().unwrap();
        assert_eq!(target, sandbox.path("sdk/lib64/libcuda.so.1").canonicalize().unwrap());
    }
    fs::create_dir_all(sandbox.path("cuda/include")).unwrap();
    fs::write(sandbox.path("cuda/include/cuda.h"), "/* of the vendor */\n").unwrap();
    let output = sdk(&sandbox, "cuda");
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("cuda/include/cuda.h"), "{}", text(&output.stderr));
    assert_eq!(fs::read_to_string(sandbox.path("cuda/include/cuda.h")).unwrap().lines().count(), 1);
    assert!(!sandbox.path("cuda/lib64").exists());
}
