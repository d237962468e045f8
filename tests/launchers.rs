//! Ranks that real launchers start: without this, that a launcher's variables are understood is
//! shown for variables made by hand alone. Debian packages: `openmpi-bin`, `mpich`.

mod hardware;

use hardware::perf::{assert_right, on_real_hardware};
use hardware::{hwsim, run_bounded, tool};
use std::net::TcpListener;
use std::process::Command;

/// Four ranks of `ringdove perf`, started by `launcher` on one virtual node.
fn all_reduce_under(launcher: &[&str], variables: &[(&str, String)]) {
    if on_real_hardware() {
        return;
    }
    if Command::new(launcher[0]).arg("--version").output().is_err() {
        return tally::skip("launcher", &format!("{} is not installed", launcher[0]));
    }
    let mut command = hwsim();
    command.args(["run", "--quiet", "--machine", "pcie4", "--"]).args(launcher);
    command.arg(tool("ringdove"));
    command.args(["perf", "all-reduce", "-b", "8", "-e", "64K", "-f", "64", "-n", "2", "-w", "1"]);
    command.envs(variables.iter().cloned());
    let ended = run_bounded(command);
    assert_right(launcher[0], &ended);
    let output = ended.1;
    for rank in 0..4 {
        // One GPU each: the launcher's place on the node was understood, too.
        let place = output.lines().any(|line| {
            line.starts_with(&format!("#  Rank  {rank} "))
                && line.contains(&format!("device  {rank}"))
        });
        assert!(place, "rank {rank} of {launcher:?}: {output}");
    }
}

/// Open MPI says where its root can be reached, so nothing else is needed.
#[test]
fn open_mpi() {
    let launcher = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "4"];
    all_reduce_under(&launcher, &[]);
}

/// MPICH's process manager does not say where rank 0 is: the user does.
#[test]
fn mpich() {
    // Outside of the range from which the kernel hands out ports, so only a program that asked for
    // this one can have it; then the next is tried.
    let free = (29_500..29_600).find(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok());
    let address = format!("127.0.0.1:{}", free.expect("a free port"));
    all_reduce_under(&["mpirun.mpich", "-n", "4"], &[("RINGDOVE_BOOTSTRAP_ADDRESS", address)]);
}
