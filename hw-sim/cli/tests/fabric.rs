//! The fabric's folder as strangers and full disks see it. Processes map what lies there as memory:
//! if one of these tests fails, another user of the host decides what root's processes write to, or
//! a full disk ends a program by SIGBUS.

mod sandbox;

use nix::unistd::{Uid, geteuid};
use sandbox::{Sandbox, compile, library, text};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// `nobody`, of every Linux.
const NOBODY: u32 = 65534;

/// A program of this folder, compiled.
fn program(sandbox: &Sandbox, source: &str, libraries: &[&str]) -> PathBuf {
    let program = sandbox.path("program");
    compile(source, &program, libraries);
    program
}

/// `hwsim run` with the real library and `fabric` for its folder.
fn hwsim(sandbox: &Sandbox, fabric: &Path, options: &[&str]) -> Command {
    let mut command = sandbox.hwsim(&[&["run", "-q"], options, &["--"]].concat());
    command.env("HWSIM_LIB", library()).env_remove("LD_LIBRARY_PATH").env("HWSIM_FABRIC", fabric);
    command
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A folder with these rights.
fn folder(sandbox: &Sandbox, name: &str, mode: u32) -> PathBuf {
    let path = sandbox.path(name);
    fs::create_dir(&path).unwrap();
    set_mode(&path, mode);
    path
}

/// Refused in one line, before anything was started.
fn assert_refused(output: &Output, says: &[&str]) {
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{message}");
    assert_eq!(text(&output.stdout), "", "the command has run");
    assert_eq!(message.lines().count(), 1, "one line, not: {message}");
    says.iter().for_each(|part| assert!(message.contains(part), "`{part}` in: {message}"));
}

/// Is this root, who can play two users? Says so if not.
fn is_root() -> bool {
    let is_root = geteuid().is_root();
    if !is_root {
        tally::skip("root", "two users of one host");
    }
    is_root
}

#[test]
fn folders_that_others_may_write_are_refused() {
    let sandbox = Sandbox::new();
    let outside = sandbox.path("precious");
    fs::write(&outside, "as it was").unwrap();
    for mode in [0o777, 0o1777, 0o770, 0o702] {
        let fabric = folder(&sandbox, &format!("fabric-{mode:o}"), mode);
        for name in ["memory-node0", "bar-0-0"] {
            symlink(&outside, fabric.join(name)).unwrap();
        }
        let output =
            hwsim(&sandbox, &fabric, &["-m", "ark"]).args(["echo", "ran"]).output().unwrap();
        let mode = format!("mode {mode:04o}");
        assert_refused(&output, &[&fabric.display().to_string(), &mode, "mkdir -m 700"]);
        assert_eq!(fs::read(&outside).unwrap(), b"as it was");
        assert_eq!(fs::read_dir(&fabric).unwrap().count(), 2, "something was put there");
    }
    sandbox.assert_nothing_left();
}

#[test]
fn a_folder_of_another_user_is_refused() {
    let sandbox = Sandbox::new();
    // Everybody finds one that is not his own.
    let (fabric, owner) = match geteuid().is_root() {
        true => {
            let fabric = folder(&sandbox, "fabric", 0o755);
            chown(&fabric, Some(NOBODY), Some(NOBODY)).unwrap();
            (fabric, NOBODY)
        }
        false => (PathBuf::from("/usr"), 0),
    };
    let output = hwsim(&sandbox, &fabric, &[]).args(["echo", "ran"]).output().unwrap();
    let user = geteuid().as_raw();
    assert_refused(&output, &[&format!("user {user} "), &format!("owner {owner},")]);
    sandbox.assert_nothing_left();
}

/// The driver itself refuses, too: not every program is started by `hwsim run`, and its environment
/// may name another folder.
#[test]
fn the_driver_refuses_what_hwsim_would() {
    let sandbox = Sandbox::new();
    let program = program(&sandbox, "sharing.c", &["-ldl"]);
    let outside = sandbox.path("precious");
    fs::write(&outside, "as it was").unwrap();
    let good = folder(&sandbox, "good", 0o700);
    let run = |fabric: &Path| {
        let script = "exec env HWSIM_FABRIC=\"$0\" \"$@\"";
        let mut command = hwsim(&sandbox, &good, &[]);
        command.args(["sh", "-c", script]).arg(fabric).arg(&program);
        command.arg("identities").arg(sandbox.path("")).output().unwrap()
    };
    // Others may write it.
    let open = folder(&sandbox, "open", 0o777);
    symlink(&outside, open.join("memory-node0")).unwrap();
    // It is as it should be, but what lies there was not put by a process of the cluster.
    let planted = folder(&sandbox, "planted", 0o700);
    symlink(&outside, planted.join("memory-node0")).unwrap();
    for fabric in [open, planted] {
        let output = run(&fabric);
        let message = text(&output.stderr);
        assert!(!output.status.success(), "{message}");
        assert!(output.status.code().is_some_and(|code| code < 128), "a signal: {message}");
        assert_eq!(fs::read(&outside).unwrap(), b"as it was", "{message}");
    }
    let fine = run(&good);
    assert!(fine.status.success(), "{}", text(&fine.stderr));
}

/// What lies in a folder is its owner's alone, and only what a later run may want stays.
#[test]
fn files_are_private_and_sockets_go_with_their_processes() {
    let sandbox = Sandbox::new();
    let program = program(&sandbox, "sharing.c", &["-ldl"]);
    let fabric = folder(&sandbox, "fabric", 0o700);
    sandbox.fifo("there");
    sandbox.fifo("back");
    let mut command = hwsim(&sandbox, &fabric, &["-m", "ark", "-n", "2"]);
    // A program with a wide umask must not open what it makes to others.
    let script = "umask 000; exec \"$0\" \"$@\"";
    command.args(["sh", "-c", script]).arg(&program).arg("exchange").arg(sandbox.path(""));
    let output = command.output().unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && out.contains("300 rounds"), "{out}{err}");
    let mut names = Vec::new();
    for entry in fs::read_dir(&fabric).unwrap().flatten() {
        let status = entry.metadata().unwrap();
        let name = entry.file_name().into_string().unwrap();
        assert_eq!(status.mode() & 0o777, 0o600, "{name}");
        names.push(name);
    }
    assert!(names.iter().any(|name| name == "memory-node0"), "nobody was there: {names:?}");
    assert!(names.iter().any(|name| name == "bar-0-0"), "no engine was there: {names:?}");
    // What adapters count, later runs in this folder go on to count.
    let kept = ["memory-", "bar-", "counters-"];
    let left = names.iter().find(|name| !kept.iter().any(|kind| name.starts_with(kind)));
    assert_eq!(left, None, "left behind by processes that ended in order");
}

/// Two users of one host, neither of whom may get into the other's fabric.
#[test]
fn two_users_keep_to_their_own_folders() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    let program = program(&sandbox, "sharing.c", &["-ldl"]);
    // Where the other user can read and run all that he needs.
    set_mode(sandbox.folder.path(), 0o755);
    let [tool, shared] = ["hwsim", "libhwsim.so"].map(|name| sandbox.path(name));
    fs::copy(env!("CARGO_BIN_EXE_hwsim"), &tool).unwrap();
    fs::copy(library(), &shared).unwrap();
    set_mode(&program, 0o755);
    let theirs = folder(&sandbox, "theirs", 0o700);
    chown(&theirs, Some(NOBODY), Some(NOBODY)).unwrap();
    let scratch = folder(&sandbox, "scratch", 0o700);
    chown(&scratch, Some(NOBODY), Some(NOBODY)).unwrap();
    let ours = folder(&sandbox, "ours", 0o755);
    let run_as = |user: u32, fabric: &Path| {
        let mut command = Command::new(&tool);
        command.uid(user).gid(user).current_dir("/").env("HWSIM_LIB", &shared);
        command.env("HWSIM_FABRIC", fabric).env_remove("LD_LIBRARY_PATH");
        command.env(
            "TMPDIR",
            if Uid::from_raw(user).is_root() { sandbox.path("tmp") } else { scratch.clone() },
        );
        command.args(["run", "-q", "-m", "one-gpu", "--"]).arg(&program);
        command.arg("identities").arg("/").output().unwrap()
    };
    for (user, own, foreign) in [(NOBODY, &theirs, &ours), (0, &ours, &theirs)] {
        let fine = run_as(user, own);
        assert!(fine.status.success(), "user {user}: {}", text(&fine.stderr));
        assert!(text(&fine.stdout).contains("GPU-"), "{}", text(&fine.stdout));
        let refused = run_as(user, foreign);
        let owner = if user == 0 { NOBODY } else { 0 };
        assert_refused(&refused, &[&format!("user {user} "), &format!("owner {owner},")]);
    }
    // The driver of one user in the folder of the other, which it could read.
    let mut inside = Command::new(&tool);
    inside.uid(NOBODY).gid(NOBODY).current_dir("/").env("HWSIM_LIB", &shared);
    inside.env("TMPDIR", &scratch).env("HWSIM_FABRIC", &theirs).env_remove("LD_LIBRARY_PATH");
    inside.args(["run", "-q", "--", "sh", "-c", "exec env HWSIM_FABRIC=\"$0\" \"$@\""]);
    let output = inside.arg(&ours).arg(&program).arg("identities").arg("/").output().unwrap();
    assert!(!output.status.success());
    assert_eq!(fs::metadata(ours.join("memory-node0")).unwrap().uid(), 0);
    let mut names: Vec<_> =
        fs::read_dir(&ours).unwrap().map(|it| it.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["counters-0-0", "memory-node0"], "somebody else's files are there");
}

/// Runs a shell line in which `$FULL` is a file system in memory of 600 KiB: too little for a ring.
fn with_little_room(sandbox: &Sandbox, line: &str) -> Option<Output> {
    let full = folder(sandbox, "full", 0o700);
    let mounted = "mount -t tmpfs -o size=600k,mode=0700 none \"$FULL\" && ";
    let apart = |options: &str| {
        let mut command = Command::new("unshare");
        command.args([options, "--", "sh", "-c"]).env("FULL", &full);
        command
    };
    let options = ["-m", "-Urm"].into_iter().find(|options| {
        let tried = apart(options).arg(format!("{mounted} true")).output();
        tried.is_ok_and(|tried| tried.status.success())
    });
    let Some(options) = options else {
        tally::skip("namespaces", "a full disk: nothing may be mounted here");
        return None;
    };
    Some(apart(options).arg(format!("{mounted} {line}")).output().unwrap())
}

/// A queue pair's rings are a file, and a file without room would be a signal at the first message.
#[test]
fn a_full_disk_is_an_error_of_the_verb_that_needs_room() {
    let sandbox = Sandbox::new();
    let program = program(&sandbox, "adapters.c", &["-libverbs", "-ldl", "-pthread"]);
    let line = format!(
        "HWSIM_VERBOSE=1 HWSIM_LIB={} HWSIM_FABRIC=\"$FULL\" TMPDIR={} {} run -q -m one-gpu -- {} \
         states",
        library().display(),
        sandbox.path("tmp").display(),
        env!("CARGO_BIN_EXE_hwsim"),
        program.display()
    );
    let Some(output) = with_little_room(&sandbox, &line) else { return };
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "SIGBUS would be 135: {out}{err}");
    // ENOSPC, from `ibv_create_qp` itself.
    assert!(err.contains("(errno 28)"), "{out}{err}");
    assert!(err.contains("No space left on device") && err.contains("TMPDIR"), "{out}{err}");
    sandbox.assert_nothing_left();
}
