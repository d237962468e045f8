//! `hwsim run` from outside: what the command sees, how it ends, and what is left behind.
//!
//! The library is stood in for by an empty file: these tests start programs that load no driver.

mod sandbox;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sandbox::{Sandbox, text};
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

#[test]
fn the_command_finds_the_vendors_names_and_the_machine() {
    let sandbox = Sandbox::new();
    let script = "d=${LD_LIBRARY_PATH%%:*}; stat -c %a $d; echo ${LD_LIBRARY_PATH#*:}; \
                  for l in libcuda.so.1 libcuda.so libnvidia-ml.so.1 libnvidia-ml.so; \
                  do readlink $d/$l; done; grep ^name $HWSIM_MACHINE | head -1; echo $#";
    let command = ["run", "--machine", "dgx1v", "--", "sh", "-c", script, "sh", "--machine", "x"];
    let output = sandbox.output(&command);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let library = sandbox.path("libhwsim.so").canonicalize().unwrap().display().to_string();
    let mut expected = vec!["700".to_owned(), "/already/there".into()];
    expected.extend([library.clone(), library.clone(), library.clone(), library]);
    expected.extend(["name = \"dgx1v\"".to_owned(), "2".into()]);
    assert_eq!(text(&output.stdout).lines().collect::<Vec<_>>(), expected);
    assert_eq!(
        text(&output.stderr),
        "hwsim: machine dgx1v, 8 x V100-SXM2-16GB (virtual); virtual hardware: times are \
         wall-clock times of a simulation\n"
    );
    sandbox.assert_nothing_left();
}

/// Programs of nvcc ask for the runtime by these names; an hwsim that was built without it runs the
/// others.
#[test]
fn the_command_finds_the_runtimes_that_lie_beside_the_library() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("libcudart12.so"), "").unwrap();
    let script = "d=${LD_LIBRARY_PATH%%:*}; readlink $d/libcudart.so.12; ls $d | grep -c cudart";
    let output = sandbox.output(&["run", "-q", "--", "sh", "-c", script]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let runtime = sandbox.path("libcudart12.so").canonicalize().unwrap();
    assert_eq!(text(&output.stdout), format!("{}\n1\n", runtime.display()));
}

#[test]
fn quiet_adds_nothing_to_the_commands_own_output() {
    let sandbox = Sandbox::new();
    let output = sandbox.output(&["run", "-q", "--", "echo", "-n", "all"]);
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("all".into(), String::new()));
}

#[test]
fn the_commands_status_is_hwsims_status() {
    let sandbox = Sandbox::new();
    for status in [0, 1, 7, 255] {
        let output = sandbox.output(&["run", "--", "sh", "-c", &format!("exit {status}")]);
        assert_eq!(output.status.code(), Some(status));
    }
    let output = sandbox.output(&["run", "-q", "--", "sh", "-c", "kill -SEGV $$"]);
    assert_eq!(output.status.code(), Some(128 + 11));
    assert_eq!(text(&output.stderr), "hwsim: `sh` was ended by SIGSEGV (signal 11)\n");
    sandbox.assert_nothing_left();
}

#[test]
fn signals_reach_the_command_which_may_tidy_up() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let sandbox = Sandbox::new();
        let name = signal.as_str().trim_start_matches("SIG");
        // A signal that comes just before a shell's `read` does not end it; `wait` has no such gap.
        let (mut child, mut output) = sandbox.start(&format!(
            "trap 'echo tidied; kill -9 $!; exit 5' {name}; \
             (read line <> {}) >/dev/null 2>&1 & echo ready; wait $!",
            sandbox.fifo("fifo")
        ));
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        let mut rest = String::new();
        output.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "tidied\n", "{signal} was lost");
        assert_eq!(child.wait().unwrap().code(), Some(5));
        sandbox.assert_nothing_left();
    }
}

/// The pipes close when their last holders are gone: were the command to live on, or whoever tidies
/// up, this would not end. A process that enters its own user namespace loses its tie to its
/// parent; it has to end nevertheless.
#[test]
fn the_command_dies_with_a_killed_hwsim() {
    for around in ["exec", "exec unshare -Ur"] {
        let permitted = Command::new("sh").args(["-c", &format!("{around} true")]).status();
        if !permitted.is_ok_and(|status| status.success()) {
            tally::skip("namespaces", "a command in a user namespace of its own");
            continue;
        }
        let sandbox = Sandbox::new();
        let fifo = sandbox.fifo("fifo");
        let script = format!("echo ready; while true; do read line <> {fifo}; done");
        let (mut child, mut output) = sandbox.start(&format!("{around} sh -c '{script}'"));
        kill(Pid::from_raw(child.id() as i32), Signal::SIGKILL).unwrap();
        child.wait().unwrap();
        let mut rest = String::new();
        output.read_to_string(&mut rest).unwrap();
        child.stderr.take().unwrap().read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "");
        sandbox.assert_nothing_left();
    }
}

fn refused(sandbox: &Sandbox, arguments: &[&str], status: i32, says: &[&str]) {
    let output = sandbox.output(arguments);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{message}");
    assert_eq!(message.lines().count(), 1, "one line, not: {message}");
    for expected in says {
        assert!(message.contains(expected), "expected `{expected}` in: {message}");
    }
    sandbox.assert_nothing_left();
}

#[test]
fn what_cannot_run_is_named() {
    let sandbox = Sandbox::new();
    let run = |command: &'static str| ["run", "--", command];
    refused(&sandbox, &run("no-such-program"), 127, &["not found", "no-such-program", "PATH"]);
    refused(&sandbox, &run("./no/such"), 127, &["not found", "./no/such"]);
    refused(&sandbox, &run("/etc"), 126, &["/etc", "a directory"]);
    refused(&sandbox, &run("/etc/passwd"), 126, &["/etc/passwd", "not executable"]);
    // This one is seen by the kernel only, in the child.
    let script = sandbox.path("script");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let script = script.to_str().unwrap();
    refused(&sandbox, &["run", "-q", "--", script], 126, &[script, "No such file"]);
}

#[test]
fn wrong_machines_are_refused_before_anything_starts() {
    let sandbox = Sandbox::new();
    let on = |machine| ["run", "--machine", machine, "--", "echo", "started"];
    refused(&sandbox, &on("dgx9"), 125, &["dgx9", "one-gpu", "pcie4", "dgx1v", "dgx-a100"]);
    refused(&sandbox, &on("/no/such.toml"), 125, &["/no/such.toml", "cannot be read"]);
    let file = sandbox.path("wrong.toml");
    fs::write(&file, "name = \"x\"\nsummary = \"y\"\ngpu = 3\n").unwrap();
    let file = file.to_str().unwrap();
    refused(&sandbox, &on(file), 125, &[&format!("{file}:3: gpu:"), "unknown field"]);
}

#[test]
fn a_missing_library_and_a_trace_that_cannot_be_written_are_named() {
    let sandbox = Sandbox::new();
    let output =
        sandbox.hwsim(&["run", "--", "true"]).env("HWSIM_LIB", "/no/libhwsim.so").output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("looked at /no/libhwsim.so"), "{}", text(&output.stderr));
    refused(&sandbox, &["run", "--trace", "/no/trace", "--", "true"], 125, &["trace", "/no/trace"]);
}

#[test]
fn the_trace_path_is_absolute_and_the_environments_machine_is_the_default() {
    let sandbox = Sandbox::new();
    let output = sandbox
        .hwsim(&["run", "--trace", "trace.txt", "--", "sh", "-c", "cd /; echo $HWSIM_TRACE"])
        .current_dir(sandbox.folder.path())
        .env("HWSIM_MACHINE", "one-gpu")
        .output()
        .unwrap();
    let trace = text(&output.stdout);
    assert!(Path::new(trace.trim()).is_absolute() && sandbox.path("trace.txt").exists(), "{trace}");
    assert!(text(&output.stderr).contains("machine one-gpu"), "{}", text(&output.stderr));
}

/// What the command line says reaches the driver, and what it cannot mean is refused before
/// anything starts.
#[test]
fn options_of_the_driver_become_its_variables() {
    let sandbox = Sandbox::new();
    let script = "cd /; echo $HWSIM_DRIVER $HWSIM_ROUND_ALLOCATIONS $HWSIM_REPORT";
    let options = ["--driver", "12.8", "--round-allocations", "--report", "done.json"];
    let output = sandbox
        .hwsim(&[&["run"], &options[..], &["--", "sh", "-c", script]].concat())
        .current_dir(sandbox.folder.path())
        .output()
        .unwrap();
    let (out, report) = (text(&output.stdout), sandbox.path("done.json"));
    assert!(out.starts_with("12.8 1 /") && out.ends_with("/done.json\n"), "{out}");
    assert_eq!(fs::read(report).unwrap(), b"", "nothing used the driver");
    let output = sandbox.output(&["run", "--", "sh", "-c", script]);
    assert_eq!(text(&output.stdout).trim(), "");
    let output = sandbox.output(&["run", "--driver", "12.5", "--", "true"]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("12.5") && error.contains("12.4, 12.8, 13.0"), "{error}");
    refused(&sandbox, &["run", "--report", "/no/file", "--", "true"], 125, &["/no/file"]);
}

#[test]
fn machines_lists_all_and_shows_one() {
    let sandbox = Sandbox::new();
    let all = text(&sandbox.output(&["machines"]).stdout);
    for expected in ["one-gpu: ", "pcie4: ", "dgx1v: ", "dgx-a100: ", "NV12", "PIX", "GPU7"] {
        assert!(all.contains(expected), "{all}");
    }
    let one = text(&sandbox.output(&["machines", "pcie4"]).stdout);
    assert!(one.contains("switch1") && one.contains("sm_70"), "{one}");
    let file = sandbox.path("mine.toml");
    fs::write(&file, sandbox.output(&["machines", "--toml", "dgx1v"]).stdout).unwrap();
    let again = sandbox.output(&["machines", file.to_str().unwrap()]);
    assert_eq!(text(&again.stdout), text(&sandbox.output(&["machines", "dgx1v"]).stdout));
    refused(&sandbox, &["machines", "nonesuch"], 125, &["nonesuch", "pcie4"]);
}

/// A driver for the engines finds them as Linux shows PCI functions, node by node, and nothing of
/// them is left.
#[test]
fn device_engines_are_shown_as_pci_functions() {
    let sandbox = Sandbox::new();
    let script = "cd $SYSFS_PATH/bus/pci/devices && grep -l 0x120000 */class | wc -l && \
                  cd 0000:8c:00.0 && cat device max_link_speed numa_node && \
                  head -c 8 resource0 && echo && od -An -tu8 -j16 -N8 resource0";
    let options = ["run", "-q", "-m", "ark x 2", "--", "sh", "-c", script];
    let output = sandbox.output(&options);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{err}");
    // The last word is the link address, which differs from node to node.
    for (process, address) in [("[0] ", "8"), ("[1] ", "72")] {
        let lines = out.lines().filter_map(|line| line.strip_prefix(process)).map(str::trim);
        let expected = ["8", "0x5244", "8.0 GT/s PCIe", "1", "RDENGINE", address];
        assert_eq!(lines.collect::<Vec<_>>(), expected, "{out}");
    }
    // A machine with engines alone needs no device files, and so no namespace.
    let source = text(&sandbox.output(&["machines", "--toml", "ark"]).stdout);
    let (head, rest) = source.split_once("[[adapters]]").unwrap();
    let (_, engines) = rest.split_once("[[engines]]").unwrap();
    let file = sandbox.path("engines.toml");
    fs::write(&file, format!("{head}[[engines]]{engines}")).unwrap();
    let script = "head -c 8 $SYSFS_PATH/bus/pci/devices/0000:08:00.0/resource0";
    let options = ["run", "-q", "-m", file.to_str().unwrap(), "--", "sh", "-c", script];
    assert_eq!(text(&sandbox.output(&options).stdout), "RDENGINE");
    let hidden = "test -z \"$SYSFS_PATH\"";
    let options = ["run", "-q", "-m", "ark", "--no-adapters", "--", "sh", "-c", hidden];
    assert!(sandbox.output(&options).status.success(), "the host's own tree stays in sight");
    sandbox.assert_nothing_left();
}

/// A behaviour that was asked for and not played would let a test pass that should fail.
#[test]
fn the_driver_profile_reaches_the_command_and_a_wrong_one_is_refused() {
    let sandbox = Sandbox::new();
    let print = ["sh", "-c", "echo $HWSIM_DRIVER_PROFILE $HWSIM_DRIVER_KEYS"];
    let asked = ["--driver-profile", "strict", "--driver-key", "connections=1"];
    let more = ["--driver-key", "memops=none", "--"];
    let output = sandbox.output(&[&["run"][..], &asked, &more, &print].concat());
    assert_eq!(text(&output.stdout), "strict connections=1,memops=none\n");
    let banner = text(&output.stderr);
    assert!(banner.contains("; driver strict connections=1 memops=none; "), "{banner}");
    for (wrong, expected) in [
        (["--driver-profile", "harsh"], "strict or lenient, found `harsh`"),
        (["--driver-key", "conections=1"], "`conections=1`: unknown driver key: expected one of"),
        (["--driver-key", "capture=maybe"], "expected on or off, found `maybe`"),
    ] {
        let output = sandbox.output(&[&["run"][..], &wrong, &["--", "true"]].concat());
        assert_eq!(output.status.code(), Some(125));
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
    sandbox.assert_nothing_left();
}
