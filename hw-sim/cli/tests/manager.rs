//! The communication manager below the system's own `librdmacm`, used by a C program that knows
//! nothing of hwsim. It needs Debian's package `librdmacm-dev`; `./x test` installs it.

mod sandbox;

use sandbox::{Sandbox, compile, library, text};

/// One job of the program on a machine.
fn job(machine: &str, arguments: &[&str]) {
    let sandbox = Sandbox::new();
    let program = sandbox.path("manager");
    compile("manager.c", &program, &["-lrdmacm", "-libverbs", "-pthread"]);
    let mut command = sandbox.hwsim(&["run", "-q", "-m", machine, "--no-label", "--"]);
    command.env("HWSIM_LIB", library()).env_remove("LD_LIBRARY_PATH");
    let output = command.arg(&program).args(arguments).output().unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let passed = output.status.success() && out.lines().all(|line| line == "done");
    assert!(passed && !out.is_empty(), "{machine} {arguments:?}: {}\n{out}{err}", output.status);
    sandbox.assert_nothing_left();
}

/// The first adapter of the first node, as everybody can compute it; one beyond the last.
const FIRST: &str = "10.0.0.1";
const NOBODY: &str = "10.0.0.31";

#[test]
fn connections_carry_what_both_sides_say_of_themselves() {
    for machine in ["pcie4", "quad-pc"] {
        job(machine, &["connect", FIRST]);
    }
}

#[test]
fn who_is_refused_learns_why() {
    job("pcie4", &["refusals", FIRST]);
}

#[test]
fn mistakes_have_the_kernels_numbers() {
    job("pcie4", &["mistakes", FIRST, NOBODY]);
}

/// A peer that is killed must neither wedge its partner nor keep its port.
#[test]
fn deaths_of_peers_are_told() {
    job("pcie4", &["deaths", FIRST]);
}

#[test]
fn datagrams_find_their_queue_pairs() {
    for machine in ["pcie4", "quad-pc"] {
        job(machine, &["datagrams", FIRST]);
    }
}

/// Frames of ours on the stack of a cancelled thread would end the process.
#[test]
fn threads_that_wait_for_events_can_be_cancelled() {
    job("pcie4", &["cancel", FIRST]);
}

#[test]
fn nodes_connect_by_addresses() {
    job("dgx-a100 x 2", &["node", FIRST]);
}
