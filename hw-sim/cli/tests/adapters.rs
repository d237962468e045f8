//! Virtual adapters below the real verbs library of the system, with programs that know nothing of
//! hwsim: one in C that checks what the specification says, and the tools of rdma-core and
//! perftest.
//!
//! They need Debian's packages `libibverbs-dev`, `ibverbs-utils` and `perftest`; `./x test`
//! installs them.

mod sandbox;

use sandbox::{Sandbox, compile, library, text};
use socket2::{Domain, Socket, Type};
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The folder with the programs, compiled once.
fn programs() -> &'static Path {
    static PROGRAMS: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = PROGRAMS.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        for name in
            ["adapters", "windows", "datagrams", "xrc", "xrc_processes", "allocators", "mishaps"]
        {
            let flags = ["-libverbs", "-ldl", "-pthread"];
            compile(&format!("{name}.c"), &folder.path().join(name), &flags);
        }
        folder
    });
    folder.path()
}

/// The program most jobs are in.
fn program() -> PathBuf {
    programs().join("adapters")
}

/// `hwsim run` with the real library.
fn hwsim(sandbox: &Sandbox, options: &[&str]) -> Command {
    let mut command = sandbox.hwsim(&[&["run", "-q"], options, &["--"]].concat());
    command.env("HWSIM_LIB", library()).env_remove("LD_LIBRARY_PATH");
    command
}

/// One job of the program on a machine, with these variables.
fn job(name: &str, machine: &str, variables: &[(&str, &str)]) {
    job_of(&program(), name, machine, variables);
}

fn job_of(program: &Path, name: &str, machine: &str, variables: &[(&str, &str)]) {
    let sandbox = Sandbox::new();
    let mut command = hwsim(&sandbox, &["-m", machine]);
    let output = command.arg(program).arg(name).envs(variables.iter().copied()).output().unwrap();
    check(name, variables, &output);
    sandbox.assert_nothing_left();
}

fn check(name: &str, variables: &[(&str, &str)], output: &Output) {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let passed = output.status.success() && out.ends_with("done\n");
    assert!(passed, "{name} {variables:?}: {}\n{out}{err}", output.status);
}

#[test]
fn every_step_of_the_state_machine_needs_its_attributes() {
    job("states", "one-gpu", &[]);
}

#[test]
fn every_verb_moves_what_it_says() {
    job("verbs", "one-gpu", &[]);
    job("verbs", "pcie4", &[("ETHERNET", "1")]);
}

#[test]
fn the_work_request_interface_does_the_same() {
    job("work-requests", "one-gpu", &[]);
}

#[test]
fn what_is_not_allowed_fails_with_the_specifications_status() {
    job("protection", "one-gpu", &[]);
}

#[test]
fn a_receiver_that_is_not_ready_is_waited_for_as_long_as_was_asked() {
    job("receiver-not-ready", "one-gpu", &[]);
}

#[test]
fn a_peer_that_does_not_answer_ends_in_an_error() {
    job("unreachable", "one-gpu", &[]);
}

#[test]
fn events_come_once_for_each_time_that_they_are_asked_for() {
    job("events", "one-gpu", &[]);
}

#[test]
fn queue_pairs_share_a_receive_queue() {
    job("shared-receive", "one-gpu", &[]);
}

/// If this fails, messages of extended connections land in the memory of another queue, or in that
/// of a program that gave no right.
#[test]
fn messages_of_extended_connections_find_the_queue_that_they_name() {
    for name in ["queues", "strangers", "handles", "files"] {
        job_of(&programs().join("xrc"), name, "one-gpu", &[]);
    }
    let out_of_order = [("HWSIM_DRIVER_KEYS", "place-out-of-order=on")];
    job_of(&programs().join("xrc"), "queues", "one-gpu", &out_of_order);
}

/// If this fails, a domain that processes share loses messages, or lets one of them write where
/// another's queue is, or a killed one takes the others with it.
#[test]
fn processes_share_a_domain_of_extended_connections() {
    for name in ["shared", "killed", "owner-killed", "maker-ends", "changed"] {
        job_of(&programs().join("xrc_processes"), name, "one-gpu", &[]);
    }
    let adverse = [
        ("HWSIM_DRIVER_KEYS", "place-out-of-order=on"),
        ("HWSIM_FAULTS", "seed=5,*:delay=200,*:receiver-not-ready=30"),
    ];
    for variables in &adverse {
        for name in ["shared", "maker-ends", "changed"] {
            job_of(&programs().join("xrc_processes"), name, "one-gpu", &[*variables]);
        }
    }
}

/// Rights that a window does not give, or no longer gives, would let a peer write anywhere.
#[test]
fn windows_give_what_they_say_and_no_more() {
    for name in ["type-1", "type-2", "bad-bindings", "order-of-bindings", "reregistration"] {
        job_of(&programs().join("windows"), name, "one-gpu", &[]);
    }
    let profile = [("HWSIM_DRIVER_KEYS", "place-out-of-order=on")];
    job_of(&programs().join("windows"), "type-2", "one-gpu", &profile);
}

#[test]
fn extended_completion_queues_show_the_same_completions() {
    job_of(&programs().join("windows"), "extended-queue", "one-gpu", &[]);
}

/// No datagram changes memory but that of a fitting receive request, whatever its sender does.
#[test]
fn datagrams_arrive_whole_or_not_at_all() {
    for name in ["datagrams", "lost", "mistakes", "extended"] {
        for variables in [&[][..], &[("ETHERNET", "1")]] {
            job_of(&programs().join("datagrams"), name, "pcie4", variables);
        }
    }
    let held_back = [("HWSIM_FAULTS", "seed=3,*:delay=300")];
    job_of(&programs().join("datagrams"), "lost", "one-gpu", &held_back);
}

/// A program that wants multicast learns that there is none, and does not wait for datagrams.
#[test]
fn multicast_is_refused_by_name() {
    for variables in [&[][..], &[("ETHERNET", "1")]] {
        let sandbox = Sandbox::new();
        let mut command = hwsim(&sandbox, &["-m", "pcie4"]);
        command.arg(programs().join("datagrams")).arg("multicast");
        let output = command.envs(variables.iter().copied()).output().unwrap();
        check("multicast", variables, &output);
        let line = "hwsim: ibv_attach_mcast is refused: adapters have no multicast\n";
        assert_eq!(text(&output.stderr), line);
        sandbox.assert_nothing_left();
    }
}

#[test]
fn parent_domains_take_the_place_of_protection_domains() {
    job_of(&programs().join("datagrams"), "domains", "one-gpu", &[]);
}

#[test]
fn queues_lie_in_memory_that_a_parent_domain_gives() {
    for name in ["placed", "without"] {
        job_of(&programs().join("allocators"), name, "one-gpu", &[]);
    }
}

#[test]
fn unreliable_connections_lose_messages_without_a_word() {
    for variables in [&[][..], &[("ETHERNET", "1")]] {
        job_of(&programs().join("datagrams"), "unreliable", "pcie4", variables);
    }
    let profile = [("HWSIM_DRIVER_KEYS", "place-out-of-order=on")];
    job_of(&programs().join("datagrams"), "unreliable", "one-gpu", &profile);
}

/// On no transport may a message reach memory that a receive request or a key does not give.
#[test]
fn pieces_outside_of_regions_are_refused_on_each_transport() {
    for variables in [&[][..], &[("HWSIM_DRIVER_KEYS", "place-out-of-order=on")]] {
        job_of(&programs().join("mishaps"), "outside", "one-gpu", variables);
    }
}

/// On each transport one of two processes destroys its queue pair, or is killed, while messages are
/// under way: the other one gets the error that is meant for that, or none where none is, all that
/// arrives is whole, and memory of who has left is left alone.
#[test]
fn queue_pairs_end_under_traffic() {
    let adverse = [("HWSIM_FAULTS", "seed=5,*:delay=200,*:receiver-not-ready=30")];
    let out_of_order = [("HWSIM_DRIVER_KEYS", "place-out-of-order=on")];
    for (machine, variables) in [
        ("one-gpu", &[][..]),
        ("one-gpu x 2", &[]),
        ("one-gpu", &out_of_order),
        ("one-gpu x 2", &adverse),
    ] {
        let sandbox = Sandbox::new();
        let meeting = sandbox.path("meeting");
        fs::create_dir(&meeting).unwrap();
        let mut command = hwsim(&sandbox, &["-m", machine, "--procs", "2"]);
        command.arg(programs().join("mishaps")).arg("traffic").arg(&meeting);
        let output = command.envs(variables.iter().copied()).output().unwrap();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        let both = out.matches("done\n").count() == 2;
        assert!(output.status.success() && both, "{machine} {variables:?}: {out}{err}");
        sandbox.assert_nothing_left();
    }
}

/// A reader that sees a later write sees the earlier one whole, with no thread that polls.
#[test]
fn writes_of_one_queue_pair_land_in_order() {
    job("order", "one-gpu", &[]);
}

/// If this fails, programs that ask for relaxed ordering cannot find out on virtual adapters
/// whether they bear it, or those that do not ask get it.
#[test]
fn relaxed_ordering_is_played_for_memory_that_was_registered_with_it() {
    job("relaxed", "one-gpu", &[("HWSIM_DRIVER_KEYS", "place-out-of-order=relaxed")]);
}

/// Kernels wait for signals that adapters write: the data before a signal must be there.
#[test]
fn a_kernel_that_sees_the_signal_finds_the_data() {
    job("kernel", "one-gpu", &[]);
}

#[test]
fn threads_do_not_get_in_each_others_way() {
    job("threads", "one-gpu", &[]);
}

#[test]
fn gpu_memory_is_reached_as_dma_buf_and_as_peer_memory() {
    job("gpu", "one-gpu", &[]);
    let machine = hwsim_machine::description::Description::builtin("one-gpu").unwrap();
    let without = machine.source().replace("peer_memory = true", "peer_memory = false");
    let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    fs::write(file.path(), without).unwrap();
    job("gpu", file.path().to_str().unwrap(), &[("NO_PEER_MEMORY", "1")]);
}

#[test]
fn faults_show_as_the_specification_says() {
    let fault = |name, list| job(name, "one-gpu", &[("HWSIM_FAULTS", list)]);
    fault("port-down", "hwsim0:port-down");
    fault("port-down-later", "hwsim0:port-down-after=5");
    fault("qp-error", "node0/hwsim0:qp-error-after=2:0x99");
}

/// Messages that are late, overtaken, or find no receive request still arrive, in order.
#[test]
fn adverse_fabrics_lose_nothing() {
    for seed in [1, 2] {
        for fault in ["delay=300", "reorder=500", "receiver-not-ready=50"] {
            let list = format!("seed={seed},*:{fault}");
            job("adverse", "one-gpu", &[("HWSIM_FAULTS", &list)]);
        }
    }
}

/// The survivor gets an error, within its timeout, and nothing is left in the fabric.
#[test]
fn a_killed_peer_is_noticed() {
    let sandbox = Sandbox::new();
    let (meeting, fabric) = (sandbox.path("meeting"), sandbox.path("fabric"));
    fs::create_dir(&meeting).unwrap();
    fs::DirBuilder::new().mode(0o700).create(&fabric).unwrap();
    let mut command = hwsim(&sandbox, &["-m", "one-gpu x 2", "--procs", "2", "--grace", "60"]);
    command.arg(program()).arg("killed").arg(&meeting).env("HWSIM_FABRIC", &fabric);
    let output = command.output().unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(out.contains("learned of it"), "{out}{err}");
    assert_eq!(output.status.code(), Some(128 + 9), "{err}");
    // The next run on the fabric clears what the killed process could not.
    let mut command = hwsim(&sandbox, &["-m", "one-gpu"]);
    let next = command.arg(program()).arg("states").env("HWSIM_FABRIC", &fabric).output().unwrap();
    check("states", &[], &next);
    let left: Vec<_> = fs::read_dir(&fabric)
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name().into_string().unwrap())
        .filter(|name| ["qp-", "process-", "draft-"].iter().any(|kind| name.starts_with(kind)))
        .collect();
    assert!(left.is_empty(), "left in the fabric: {left:?}");
}

/// A tool of the system on a machine: what it writes.
fn tool(options: &[&str], command: &[&str]) -> String {
    let sandbox = Sandbox::new();
    let output = hwsim(&sandbox, options).args(command).output().unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success(),
        "{command:?}: {} (are ibverbs-utils and perftest installed?)\n{out}{err}",
        output.status
    );
    sandbox.assert_nothing_left();
    out + &err
}

#[test]
fn the_systems_tools_list_the_adapters() {
    let list = tool(&["-m", "dgx-a100"], &["ibv_devices"]);
    assert_eq!(list.matches("026873fffe0000").count(), 8, "{list}");
    let shown = tool(&["-m", "pcie4"], &["ibv_devinfo", "-v"]);
    for expected in ["hwsim0", "hwsim1", "PORT_ACTIVE", "InfiniBand", "Ethernet", "RoCE v2"] {
        assert!(shown.contains(expected), "no {expected}: {shown}");
    }
    assert!(shown.contains("::ffff:10.0.0.2"), "{shown}");
}

/// Starts a tool as server and, when its port is open, as client, in one run. `$1` is the port.
const PAIR: &str = r#"
port=$1; shift
"$@" -p $port & server=$!
hexport=$(printf %04X $port)
until grep -q ":$hexport .* 0A " /proc/net/tcp /proc/net/tcp6; do kill -0 $server || exit 9; done
"$@" -p $port 127.0.0.1 || exit 8
wait $server
"#;

/// Servers of these tools want a port by number, and set SO_REUSEADDR. Held but not listened on, it
/// is given to nobody else.
fn held_port() -> (Socket, String) {
    let held = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    held.set_reuse_address(true).unwrap();
    held.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let port = held.local_addr().unwrap().as_socket().unwrap().port().to_string();
    (held, port)
}

fn between_two(command: &[&str]) -> String {
    let (_held, port) = held_port();
    let run = [&["bash", "-c", PAIR, "pair", &port, "timeout", "60"], command].concat();
    tool(&["-m", "pcie4"], &run)
}

#[test]
fn rc_pingpong_runs_polling_and_with_events() {
    for options in [&["-d", "hwsim0"][..], &["-d", "hwsim0", "-e"], &["-d", "hwsim1", "-g", "3"]] {
        let command = [&["ibv_rc_pingpong", "-c", "-n", "200"], options].concat();
        let shown = between_two(&command);
        assert_eq!(shown.matches("200 iters in").count(), 2, "{options:?}: {shown}");
        assert!(!shown.contains("invalid data"), "{shown}");
    }
}

#[test]
fn pingpongs_of_unreliable_transports_run() {
    // Of datagrams that are lost these tools know nothing: without a receive request they wait for
    // ever. Their own depth of 500 leaves room for that on a busy host.
    for tool in ["ibv_ud_pingpong", "ibv_uc_pingpong"] {
        for options in
            [&["-d", "hwsim0"][..], &["-d", "hwsim0", "-e"], &["-d", "hwsim1", "-g", "3"]]
        {
            let shown = between_two(&[&[tool, "-n", "200"], options].concat());
            assert_eq!(shown.matches("200 iters in").count(), 2, "{tool} {options:?}: {shown}");
        }
    }
}

/// Between two processes.
#[test]
fn pingpongs_of_extended_connections_run() {
    for options in [&["-d", "hwsim0"][..], &["-d", "hwsim0", "-e"], &["-d", "hwsim1", "-g", "3"]] {
        let shown = between_two(&[&["ibv_xsrq_pingpong", "-n", "200"], options].concat());
        assert_eq!(shown.matches("success\n").count(), 2, "{options:?}: {shown}");
    }
}

/// The same tools between two nodes, each of which has one of the processes.
#[test]
fn pingpongs_of_all_transports_run_between_nodes() {
    const PAIR_OF_NODES: &str = r#"
port=$1; shift
[ $RANK = 0 ] && exec "$@" -p $port
hexport=$(printf %04X $port)
for i in $(seq 100000); do
    grep -q ":$hexport .* 0A " /proc/net/tcp /proc/net/tcp6 && exec "$@" -p $port 127.0.0.1
done
exit 9
"#;
    for tool in ["rc", "uc", "ud", "srq", "xsrq"] {
        // Datagrams that are lost are waited for: the depth of 500 leaves room.
        let name = format!("ibv_{tool}_pingpong");
        let (held, port) = held_port();
        let command = ["bash", "-c", PAIR_OF_NODES, "pair", &port, "timeout", "60", &name];
        let where_to = ["-n", "200", "-d", "hwsim0"];
        let checks: &[_] = if tool == "xsrq" { &[] } else { &["-c"] };
        let shown = self::tool(&["-m", "pcie4 x 2"], &[&command[..], &where_to, checks].concat());
        drop(held);
        let done = if tool == "xsrq" { "success" } else { " iters in" };
        assert_eq!(shown.matches(done).count(), 2, "{tool}: {shown}");
        assert!(!shown.contains("invalid data"), "{tool}: {shown}");
        for node in ["[0]", "[1]"] {
            assert!(shown.contains(node), "{tool}: {shown}");
        }
    }
}

#[test]
fn perftest_runs() {
    for command in [
        &["ib_write_bw", "-d", "hwsim0", "-s", "65536", "-n", "500"][..],
        &["ib_write_bw", "-d", "hwsim1", "-s", "8192", "-n", "500", "-q", "4"],
        &["ib_write_bw", "-d", "hwsim0", "-n", "500", "--use_old_post_send"],
        &["ib_write_lat", "-d", "hwsim0", "-n", "100"],
        &["ib_read_bw", "-d", "hwsim0", "-s", "65536", "-n", "500"],
        &["ib_send_bw", "-d", "hwsim0", "-s", "65536", "-n", "500"],
        &["ib_atomic_bw", "-d", "hwsim0", "-n", "500"],
        &["ib_send_lat", "-c", "UD", "-d", "hwsim0", "-n", "100"],
        &["ib_write_bw", "-c", "UC", "-d", "hwsim1", "-s", "65536", "-n", "500"],
        &["ib_send_lat", "-c", "XRC", "-d", "hwsim0", "-n", "100"],
        &["ib_write_bw", "-c", "XRC", "-d", "hwsim1", "-s", "65536", "-n", "500"],
        &["ib_read_bw", "-c", "XRC", "-d", "hwsim0", "-n", "500"],
        &["ib_atomic_lat", "-c", "XRC", "-d", "hwsim0", "-n", "100"],
    ] {
        let shown = between_two(command);
        assert!(shown.contains("#bytes"), "{command:?}: {shown}");
    }
}

/// `program`, by somebody who is not root.
fn as_nobody(program: impl AsRef<std::ffi::OsStr>) -> Command {
    if !nix::unistd::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program);
    command
}

/// As somebody who is not root, where the system lets such people make namespaces.
#[test]
fn it_works_without_privileges() {
    let sandbox = Sandbox::new();
    for path in [sandbox.path(""), sandbox.path("tmp")] {
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(path, all).unwrap();
    }
    // Copies: cargo's folder may be closed to others.
    for (from, name) in [
        (PathBuf::from(env!("CARGO_BIN_EXE_hwsim")), "hwsim"),
        (library(), "library.so"),
        (program(), "program"),
    ] {
        fs::copy(from, sandbox.path(name)).unwrap();
    }
    let allowed = as_nobody("unshare").args(["-Urm", "true"]).output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        return tally::skip("namespaces", "nobody but root can make namespaces here");
    }
    let output = as_nobody(sandbox.path("hwsim"))
        .args(["run", "-q", "-m", "one-gpu", "--"])
        .arg(sandbox.path("program"))
        .arg("verbs")
        .env("HWSIM_LIB", sandbox.path("library.so"))
        .env("TMPDIR", sandbox.path("tmp"))
        .env_remove("HWSIM_MACHINE")
        .output()
        .unwrap();
    check("verbs", &[], &output);
    sandbox.assert_nothing_left();
}
