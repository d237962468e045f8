//! `hwsim run` with several processes, from outside: what each sees, whose output is whose, and how
//! they end together.
//!
//! As in `run.rs`, the library is stood in for by an empty file.

mod sandbox;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use sandbox::{Sandbox, text};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::DirBuilderExt;
use std::process::Output;

/// The lines of each rank, without their labels.
fn by_rank(output: &[u8]) -> BTreeMap<u32, Vec<String>> {
    let mut ranks: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for line in text(output).lines() {
        let labelled = line.strip_prefix('[').and_then(|line| line.split_once("] "));
        let (rank, rest) = labelled.unwrap_or_else(|| panic!("no label: {line:.200}"));
        ranks.entry(rank.parse().unwrap()).or_default().push(rest.into());
    }
    ranks
}

fn run(sandbox: &Sandbox, options: &[&str], script: &str) -> Output {
    sandbox.output(&[&["run", "-q"], options, &["--", "sh", "-c", script]].concat())
}

const CLUSTER: [&str; 4] = ["--machine", "dgx1v x 2", "--procs", "4"];

#[test]
fn four_ranks_on_two_nodes_know_their_places() {
    let sandbox = Sandbox::new();
    let script = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK \
                  $GROUP_WORLD_SIZE $HWSIM_NODE $HWSIM_NODES; echo $MASTER_ADDR:$MASTER_PORT; \
                  echo $RINGDOVE_HOST_ID; echo $NCCL_HOSTID; echo $HWSIM_FABRIC; \
                  stat -c %a $HWSIM_FABRIC";
    let output = run(&sandbox, &CLUSTER, script);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let ranks = by_rank(&output.stdout);
    let places = ["0 4 0 2 0 2 0 2", "1 4 1 2 0 2 0 2", "2 4 0 2 1 2 1 2", "3 4 1 2 1 2 1 2"];
    assert_eq!(ranks.values().map(|lines| &lines[0]).collect::<Vec<_>>(), places);
    let all = |line: usize| ranks.values().map(|l| l[line].clone()).collect::<BTreeSet<_>>();
    let (address, port) = (all(1), ranks[&0][1].strip_prefix("127.0.0.1:").map(str::parse::<u16>));
    assert!(address.len() == 1 && matches!(port, Some(Ok(1..))), "{address:?}");
    for host in [2, 3] {
        assert_eq!(ranks[&0][host], ranks[&1][host]);
        assert_ne!(ranks[&1][host], ranks[&2][host], "two nodes would pass for one host");
    }
    assert_eq!((all(4).len(), all(5)), (1, ["700".to_owned()].into()));
    sandbox.assert_nothing_left();
}

#[test]
fn a_cluster_has_one_process_on_each_node_by_default() {
    let sandbox = Sandbox::new();
    let on = |options: &[&str]| by_rank(&run(&sandbox, options, "echo $HWSIM_NODE").stdout);
    let three = on(&["--machine", "one-gpu x 3"]);
    assert_eq!(three.values().flatten().collect::<Vec<_>>(), ["0", "1", "2"]);
    assert_eq!(on(&["--procs", "1"]), [(0, vec!["0".to_owned()])].into());
    let banner = sandbox.output(&["run", "-m", "dgx1v x 2", "-n", "4", "--", "true"]).stderr;
    let expected = "hwsim: machine dgx1v, 2 nodes of 8 x V100-SXM2-16GB (virtual); 4 processes; ";
    assert!(text(&banner).starts_with(expected), "{}", text(&banner));
}

#[test]
fn processes_that_cannot_be_spread_are_refused() {
    let sandbox = Sandbox::new();
    for (machine, processes) in [("pcie4 x 2", "3"), ("pcie4 x 4", "2"), ("pcie4", "0")] {
        let options = ["--machine", machine, "--procs", processes];
        let output = run(&sandbox, &options, "echo started");
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(125), String::new()));
        let message = text(&output.stderr);
        assert!(message.contains(&format!("--procs {processes}")), "{message}");
        assert!(message.contains("expected a multiple of"), "{message}");
    }
    sandbox.assert_nothing_left();
}

#[test]
fn the_environments_rendezvous_takes_precedence() {
    let sandbox = Sandbox::new();
    let output = sandbox
        .hwsim(&["run", "-q", "-n", "2", "--", "sh", "-c", "echo $MASTER_ADDR $MASTER_PORT"])
        .env("MASTER_ADDR", "::1")
        .env("MASTER_PORT", "4242")
        .output()
        .unwrap();
    assert_eq!(by_rank(&output.stdout)[&1], ["::1 4242"]);
}

/// Without a secret, other users of the machine could join the ranks' job or end it.
#[test]
fn every_run_has_a_secret_that_its_ranks_share_unless_it_was_given_one() {
    let sandbox = Sandbox::new();
    let script = "echo $RINGDOVE_BOOTSTRAP_SECRET";
    let secrets = |options: &[&str]| {
        let output = run(&sandbox, options, script);
        by_rank(&output.stdout).into_values().flatten().collect::<BTreeSet<_>>()
    };
    let (one, other) = (secrets(&["-n", "3"]), secrets(&["-n", "3"]));
    assert!(one.len() == 1 && other.len() == 1 && one != other, "{one:?} {other:?}");
    let secret = one.first().unwrap();
    assert!(secret.len() == 64 && secret.bytes().all(|byte| byte.is_ascii_hexdigit()));
    // A single process may start ranks by itself, as `mpirun` does.
    assert_eq!(text(&run(&sandbox, &[], script).stdout).trim().len(), 64);
    let mut given = sandbox.hwsim(&["run", "-q", "-n", "2", "--", "sh", "-c", script]);
    let output = given.env("RINGDOVE_BOOTSTRAP_SECRET", "given by the user").output().unwrap();
    assert_eq!(by_rank(&output.stdout)[&1], ["given by the user"]);
}

/// Each rank writes, to both of its streams at once, lines in pieces, a line longer than any pipe,
/// and one without an end; both of hwsim's streams are one pipe. Nothing may be lost, mixed, or
/// given to another.
#[test]
fn lines_of_ranks_that_write_at_once_stay_whole() {
    let sandbox = Sandbox::new();
    let script = "write() { i=0; while [ $i -lt 200 ]; do printf \"$1 \"; echo \"line $i\"; \
                  i=$((i+1)); done; printf \"$1 \"; head -c 300000 /dev/zero | tr '\\0' $RANK; \
                  echo; printf \"$1 end\"; }; write out & write err >&2 & wait";
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut command = sandbox.hwsim(&["run", "-q", "-n", "3", "--", "sh", "-c", script]);
    command.stdout(writer.try_clone().unwrap()).stderr(writer);
    let mut child = command.spawn().unwrap();
    // The command holds the pipe's writing end, too.
    drop(command);
    let mut output = Vec::new();
    reader.read_to_end(&mut output).unwrap();
    assert!(child.wait().unwrap().success());
    for (rank, lines) in by_rank(&output) {
        assert!(rank < 3);
        for stream in ["out", "err"] {
            let own = lines.iter().filter_map(|line| line.strip_prefix(&format!("{stream} ")));
            let mut expected: Vec<_> = (0..200).map(|i| format!("line {i}")).collect();
            expected.push(rank.to_string().repeat(300_000));
            expected.push("end".into());
            assert!(own.eq(expected), "rank {rank}, {stream}");
        }
        assert_eq!(lines.len(), 2 * 202);
    }
    sandbox.assert_nothing_left();
}

#[test]
fn streams_are_kept_apart_and_unlabelled_on_request() {
    let sandbox = Sandbox::new();
    let output = run(&sandbox, &["-n", "2"], "echo out; echo err >&2");
    assert_eq!(by_rank(&output.stdout).values().flatten().collect::<Vec<_>>(), ["out", "out"]);
    assert_eq!(by_rank(&output.stderr).values().flatten().collect::<Vec<_>>(), ["err", "err"]);
    let output = run(&sandbox, &["-n", "2", "--no-label"], "echo out; echo err >&2; cat");
    assert_eq!(
        (text(&output.stdout), text(&output.stderr)),
        ("out\nout\n".into(), "err\nerr\n".into())
    );
}

#[test]
fn a_rank_that_fails_ends_the_others() {
    let sandbox = Sandbox::new();
    let fifo = sandbox.fifo("never");
    let wait = format!("trap 'exit 9' TERM; (read line <> {fifo}) >/dev/null 2>&1 & wait $!");
    for (fails, status, says) in [
        ("exit 4", 4, "rank 2 (node 1, process "),
        ("exit 4", 4, ") ended with status 4; ending the other 3 ranks"),
        ("kill -SEGV $$", 139, ") was ended by SIGSEGV (signal 11); ending the other 3 ranks"),
    ] {
        let script = format!("if [ $RANK = 2 ]; then {fails}; fi; {wait}");
        let output = run(&sandbox, &CLUSTER, &script);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{message}");
        assert!(message.contains(says), "{message}");
        assert_eq!(message.matches("hwsim: ").count(), 1, "one line, not: {message}");
        sandbox.assert_nothing_left();
    }
}

/// The failing rank waits until the other one ignores SIGTERM, so that what ends that one must be
/// SIGKILL; and what it has started goes with it.
#[test]
fn a_rank_that_will_not_end_is_killed() {
    let sandbox = Sandbox::new();
    let (ready, never) = (sandbox.fifo("ready"), sandbox.fifo("never"));
    let script = format!(
        "if [ $RANK = 0 ]; then read line < {ready}; exit 3; fi; \
         trap '' TERM; (read line <> {never}) & echo > {ready}; read line <> {never}"
    );
    let output = run(&sandbox, &["-n", "2", "--grace", "0.1", "--no-label"], &script);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{message}");
    assert!(message.contains("rank 1 had not ended 0.1 s later: killed"), "{message}");
}

#[test]
fn ranks_that_all_succeed_leave_nothing_behind_that_writes() {
    let sandbox = Sandbox::new();
    let never = sandbox.fifo("never");
    // What the rank started holds its output open, and would for ever.
    let script = format!("echo done; read line <> {never} &");
    let output = run(&sandbox, &["-n", "2", "--grace", "0.1"], &script);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(by_rank(&output.stdout).values().flatten().collect::<Vec<_>>(), ["done", "done"]);
    sandbox.assert_nothing_left();
}

/// Sent to the group of hwsim, as a terminal does: were the ranks in it, they would get it twice.
/// The others tidy up until hwsim has seen the first one end: that must not get them a second
/// signal, either.
#[test]
fn signals_reach_each_rank_once() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let sandbox = Sandbox::new();
        let name = signal.as_str().trim_start_matches("SIG");
        let go = [0, 1, 2].map(|rank| sandbox.fifo(&format!("go{rank}")));
        let got = sandbox.path("got").display().to_string();
        // `wait` ends with a signal, and the loop with the word from the fifo. What reads there is
        // started while the signal is ignored, and so goes on ignoring it.
        let script = format!(
            "trap '' {name}; (read line < {}$RANK) >/dev/null 2>&1 & \
             trap 'echo once >> {got}$RANK; test $RANK = 0 && exit 5' {name}; \
             echo ready; until wait $!; do :; done; exit 6",
            go[0].trim_end_matches('0')
        );
        let (mut child, mut output) = sandbox.start_ranks(&["-n", "3"], 3, &script);
        killpg(Pid::from_raw(child.id() as i32), signal).unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        assert!(line.contains("ended with status 5; ending the other 2 ranks"), "{line}");
        for fifo in &go[1..] {
            std::fs::write(fifo, "go\n").unwrap();
        }
        let mut rest = String::new();
        output.read_to_string(&mut rest).unwrap();
        errors.read_to_string(&mut rest).unwrap();
        assert_eq!((rest.as_str(), child.wait().unwrap().code()), ("", Some(5)), "{signal}");
        for rank in 0..3 {
            let times = std::fs::read_to_string(format!("{got}{rank}")).unwrap();
            assert_eq!(times, "once\n", "{signal}, rank {rank}");
        }
        sandbox.assert_nothing_left();
    }
}

/// As in `run.rs`: the pipes close when their last holders are gone. The ranks have started
/// processes of their own, which hold them, too.
#[test]
fn all_ranks_die_with_a_killed_hwsim() {
    for whole_group in [false, true] {
        let sandbox = Sandbox::new();
        let never = sandbox.fifo("never");
        let script = format!("(read line <> {never}) & echo ready; read line <> {never}");
        let options = ["-n", "2", "--no-label"];
        let (mut child, mut output) = sandbox.start_ranks(&options, 2, &script);
        let pid = Pid::from_raw(child.id() as i32);
        let killing = if whole_group { killpg } else { kill };
        killing(pid, Some(Signal::SIGKILL)).unwrap();
        child.wait().unwrap();
        let mut rest = String::new();
        output.read_to_string(&mut rest).unwrap();
        child.stderr.take().unwrap().read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "");
        sandbox.assert_nothing_left();
    }
}

#[test]
fn a_program_that_cannot_start_fails_on_every_rank() {
    let sandbox = Sandbox::new();
    let script = sandbox.path("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, executable).unwrap();
    let output = sandbox.output(&["run", "-q", "-n", "2", "--", script.to_str().unwrap()]);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(126), "{message}");
    assert!(message.contains("] hwsim: cannot run"), "{message}");
    sandbox.assert_nothing_left();
}

#[test]
fn a_named_fabric_is_joined_and_stays() {
    let sandbox = Sandbox::new();
    let fabric = sandbox.path("fabric");
    // Whatever the umask is: a folder that others may write is refused.
    std::fs::DirBuilder::new().mode(0o700).create(&fabric).unwrap();
    let joined = |node: &str| {
        let script = "echo $HWSIM_FABRIC $HWSIM_NODE $RINGDOVE_HOST_ID";
        let mut command = sandbox.hwsim(&["run", "-q", "--", "sh", "-c", script]);
        command.env("HWSIM_FABRIC", &fabric).env("HWSIM_NODE", node).output().unwrap()
    };
    let (first, second) = (text(&joined("0").stdout), text(&joined("1").stdout));
    let path = fabric.canonicalize().unwrap().display().to_string();
    assert!(first.starts_with(&format!("{path} 0 ")), "{first}");
    assert!(second.starts_with(&format!("{path} 1 ")), "{second}");
    assert_eq!(first.trim_end().replace("node0", "node1").replace(" 0 ", " 1 "), second.trim_end());
    assert!(fabric.exists());
    let wrong = joined("one");
    assert_eq!(wrong.status.code(), Some(125));
    assert!(text(&wrong.stderr).contains("HWSIM_NODE is `one`: expected the index of a node"));
    std::fs::remove_dir_all(&fabric).unwrap();
    let missing = joined("0");
    assert_eq!(missing.status.code(), Some(125));
    assert!(text(&missing.stderr).contains("HWSIM_FABRIC names "), "{}", text(&missing.stderr));
    sandbox.assert_nothing_left();
}

/// A script that uses `hwsim run` works on a node as it does without one.
#[test]
fn hwsim_within_a_node_stays_on_it() {
    let sandbox = Sandbox::new();
    let hwsim = env!("CARGO_BIN_EXE_hwsim");
    let script = format!(
        "echo $HWSIM_NODE $HWSIM_FABRIC; {hwsim} run -q -- sh -c 'echo $HWSIM_NODE $HWSIM_FABRIC'"
    );
    let output = run(&sandbox, &["--machine", "pcie4 x 2"], &script);
    let ranks = by_rank(&output.stdout);
    assert_eq!(ranks.len(), 2, "{}", text(&output.stderr));
    for (rank, lines) in ranks {
        assert_eq!(lines[0], lines[1]);
        assert!(lines[0].starts_with(&format!("{rank} ")));
    }
    sandbox.assert_nothing_left();
}
