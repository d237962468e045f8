//! Virtual hardware whose folder is on a full disk. If one of these tests fails, a full disk ends a
//! program by SIGBUS in the middle of a collective, and nobody says why.

mod hardware;

use hardware::perf::on_real_hardware;
use hardware::{on_strict_drivers, run_bounded, tool};
use std::process::Command;

/// `ringdove perf LINE` in two processes on `machine`, whose fabric's folder has room for `room`.
fn perf_with(room: &str, machine: &str, engine: &str) {
    if on_real_hardware() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mount = format!("mount -t tmpfs -o size={room},mode=0700 none \"$FULL\"");
    let apart = |options: &str, line: &str| {
        let mut command = Command::new("unshare");
        command.args([options, "--", "sh", "-c", line]).env("FULL", folder.path());
        command
    };
    let may_mount = |options: &&str| run_bounded(apart(options, &mount)).0.success();
    let Some(options) = ["-m", "-Urm"].into_iter().find(may_mount) else {
        return tally::skip("namespaces", "a full disk: nothing may be mounted here");
    };
    let [hwsim, ringdove] = ["hwsim", "ringdove"].map(|name| tool(name).display().to_string());
    let mut command = on_strict_drivers(apart(
        options,
        &format!(
            "{mount} && export HWSIM_FABRIC=\"$FULL\" && exec {hwsim} run -q -m '{machine}' \
             --procs 2 -- {ringdove} perf all-reduce -g 1 -b 4K -e 4K -n 1 -w 0"
        ),
    ));
    command.env("RINGDOVE_ENGINE", engine);
    let (status, output) = run_bounded(command);
    // A signal would be 128 and its number; `hwsim run` also names it.
    assert_eq!(status.code(), Some(1), "{status}: {output}");
    assert!(output.contains("ringdove:"), "the library has not spoken: {output}");
    assert!(output.contains("No space left on device"), "{output}");
}

#[cfg(feature = "verbs")]
#[test]
fn queue_pairs_without_room_are_refused() {
    perf_with("800k", "pcie4 x 2", "proxy");
}

#[test]
fn channels_without_room_are_refused() {
    perf_with("2m", "ark", "device");
}
