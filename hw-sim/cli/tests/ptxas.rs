//! The stand-in for `ptxas` that `hwsim run` brings: it is there for Triton, passes on what a
//! virtual GPU runs, and refuses the rest.

mod sandbox;

use sandbox::{Sandbox, text};
use std::fs;

const KERNEL: &str = ".version 8.4\n.target sm_80\n.address_size 64\n\
                      .visible .entry k() {\n.reg .b32 %r<3>;\nmov.b32 %r1, 1;\nret;\n}\n";

/// A script that runs on a virtual machine, with `$p` for the stand-in.
fn run(sandbox: &Sandbox, script: &str) -> (Option<i32>, String, String) {
    let script = format!("p=$TRITON_PTXAS_PATH; {script}");
    let command = ["run", "-q", "--", "sh", "-c", &script];
    let mut command = sandbox.hwsim(&command);
    for name in ["TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH", "TRITON_LIBCUDA_PATH"] {
        command.env_remove(name);
    }
    let output = command.current_dir(sandbox.folder.path()).output().unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// As Triton calls it.
const CALL: &str =
    "$p -lineinfo -v --regAllocOptLevel=2 --gpu-name=sm_80 kernel.ptx -o kernel.ptx.o";

#[test]
fn what_runs_is_passed_on() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("kernel.ptx"), KERNEL).unwrap();
    assert_eq!(run(&sandbox, CALL), (Some(0), String::new(), String::new()));
    // Whoever loads it from memory finds its end.
    assert_eq!(fs::read_to_string(sandbox.path("kernel.ptx.o")).unwrap(), format!("{KERNEL}\0"));
    sandbox.assert_nothing_left();
}

/// Triton takes the newest PTX that the release in this line knows, and keeps what it has compiled
/// by the whole text.
#[test]
fn it_names_a_release_and_itself() {
    let sandbox = Sandbox::new();
    let (status, out, error) = run(&sandbox, "$p --version");
    assert_eq!((status, error.as_str()), (Some(0), ""));
    assert!(out.contains("release 12.4,") && out.contains("hwsim"), "{out}");
}

#[test]
fn what_does_not_run_is_refused_with_its_line() {
    let sandbox = Sandbox::new();
    let wgmma = "wgmma.fence.sync.aligned";
    let cases = [
        (KERNEL.replace("mov.b32 %r1, 1", wgmma), "kernel.ptx, line 6", wgmma),
        (KERNEL.replace("mov.b32 %r1, 1", "mov.b32 %r1"), "line 6", "2 operands"),
        (KERNEL.replace("%r1, 1", "%q1, 1"), "line 6", "%q1"),
        (KERNEL.replace("sm_80", "sm_90"), "at most sm_80", "sm_90"),
    ];
    for (kernel, first, second) in cases {
        fs::write(sandbox.path("kernel.ptx"), kernel).unwrap();
        let (status, out, error) = run(&sandbox, CALL);
        assert_eq!((status, out.as_str()), (Some(1), ""));
        assert!(error.contains(first) && error.contains(second), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(!sandbox.path("kernel.ptx.o").exists());
    }
    let (status, _, error) = run(&sandbox, "$p missing.ptx -o out");
    assert_eq!(status, Some(1));
    assert!(error.contains("missing.ptx"), "{error}");
}

#[test]
fn triton_is_told_unless_the_user_has() {
    let sandbox = Sandbox::new();
    let show = "echo \"$TRITON_PTXAS_PATH $TRITON_PTXAS_BLACKWELL_PATH $TRITON_LIBCUDA_PATH\"; \
                ls $TRITON_LIBCUDA_PATH/libcuda.so.1 >/dev/null 2>&1 && echo found";
    let (_, out, _) = run(&sandbox, show);
    let lines: Vec<&str> = out.lines().collect();
    let paths: Vec<&str> = lines[0].split(' ').collect();
    assert!(paths[0].ends_with("/ptxas") && paths[0] == paths[1], "{out}");
    assert_eq!(lines[1..], ["found"], "{out}");
    let mut command = sandbox.hwsim(&["run", "-q", "--", "sh", "-c", show]);
    command.env("TRITON_PTXAS_PATH", "/mine").env("TRITON_PTXAS_BLACKWELL_PATH", "/newer");
    let out = text(&command.env("TRITON_LIBCUDA_PATH", "/there").output().unwrap().stdout);
    assert_eq!(out, "/mine /newer /there\n");
}
