//! The library of GDRCopy that `hwsim run` brings, used by a C program that knows nothing of hwsim.

mod sandbox;

use sandbox::{Sandbox, beside, compile, library, text};

/// Runs the program on a machine; gives what it wrote on stderr.
fn run(machine: &str, arguments: &[&str]) -> String {
    let sandbox = Sandbox::new();
    let program = sandbox.path("gdrcopy");
    compile("gdrcopy.c", &program, &["-ldl"]);
    beside("libhwsim_gdrapi.so");
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
