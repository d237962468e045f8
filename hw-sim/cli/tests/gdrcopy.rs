//! The library of GDRCopy that `hwsim run` brings, used by a C program that knows nothing of hwsim.

mod sandbox;

use sandbox::{Sandbox, text};
use std::path::PathBuf;
use std::process::Command;

fn library() -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    for name in ["libhwsim.so", "libhwsim_gdrapi.so"] {
        assert!(folder.join(name).exists(), "{name} has not been built in {}", folder.display());
    }
    folder.join("libhwsim.so")
}

/// Runs the program on a machine; gives what it wrote on stderr.
fn run(machine: &str, arguments: &[&str]) -> String {
    let sandbox = Sandbox::new();
    let program = sandbox.path("gdrcopy");
    let source = format!("{}/tests/gdrcopy.c", env!("CARGO_MANIFEST_DIR"));
    // The calls go by name and without prototypes, as `dlsym` gives them.
    let compiled = Command::new("cc")
        .args(["-O1", "-std=gnu11", "-Wall", "-Wno-strict-prototypes", "-o"])
        .arg(&program)
        .args([&source, "-ldl"])
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", text(&compiled.stderr));
    let mut command = sandbox.hwsim(&["run", "-q", "-m", machine, "--"]);
    command.env("HWSIM_LIB", library()).env_remove("LD_LIBRARY_PATH");
    let output = command.arg(&program).args(arguments).output().unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && out == "done\n", "{machine}: {}\n{out}{err}", output.status);
    sandbox.assert_nothing_left();
    err
}

#[test]
fn mapped_device_memory_is_the_gpus_own() {
    for machine in ["dgx-a100", "dgx1v"] {
        assert_eq!(run(machine, &[]), "");
    }
}

/// Consumer GPUs do not give their memory to other devices.
#[test]
fn gpus_without_dma_bufs_refuse_to_be_pinned() {
    let said = run("quad-pc", &["none"]);
    assert!(said.contains("cuMemGetHandleForAddressRange"), "{said}");
}
