//! `ringdove doctor` from outside: what it finds on machines that are known, and its exit status.

mod hardware;

use hardware::{hwsim, is_left_out, run_bounded, tool};
use serde_json::Value;
use socket2::{Domain, Socket, Type};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::{Command, ExitStatus};

/// Says so if this is a run on real GPUs, where nothing is known beforehand.
fn cannot_run() -> bool {
    is_left_out("this test knows virtual machines only")
}

/// `ringdove doctor` with these options of `hwsim run` and these variables.
fn doctor_on(options: &[&str], variables: &[(&str, &str)], json: bool) -> (ExitStatus, String) {
    let mut command = hwsim();
    command.args(["run", "--quiet"]).args(options).arg("--").arg(tool("ringdove")).arg("doctor");
    command.args(json.then_some("--json")).envs(variables.iter().copied());
    run_bounded(command)
}

/// The report for programs.
fn document_on(options: &[&str], variables: &[(&str, &str)]) -> (ExitStatus, Value) {
    let (status, output) = doctor_on(options, variables, true);
    let begin = output.find('{').unwrap_or_else(|| panic!("no JSON: {output}"));
    let document = serde_json::from_str(&output[begin..]);
    (status, document.unwrap_or_else(|error| panic!("{error}: {output}")))
}

/// The findings about `subject`, each as level and what was seen.
fn about<'a>(document: &'a Value, subject: &str) -> Vec<(&'a str, &'a str)> {
    let sections = document["sections"].as_array().unwrap().iter();
    sections
        .flat_map(|section| section["findings"].as_array().unwrap())
        .filter(|finding| finding["subject"] == subject)
        .map(|finding| (finding["level"].as_str().unwrap(), finding["seen"].as_str().unwrap()))
        .collect()
}

/// Whether the host lets hwsim show adapters; many containers do not.
fn has_adapters(document: &Value) -> bool {
    let shown = !document["adapters"].as_array().unwrap().is_empty();
    if !shown {
        tally::skip("virtual-adapters", "what the report says of adapters");
    }
    shown
}

fn chosen(document: &Value) -> Vec<&str> {
    let adapters = document["adapters"].as_array().unwrap().iter();
    adapters.map(|entry| entry["adapter"].as_str().unwrap_or("none")).collect()
}

#[test]
fn without_a_driver_it_fails_and_names_what_is_missing() {
    if ringdove::device_count().is_ok() {
        return tally::skip("cuda-driver", "what is said without a driver");
    }
    let mut command = Command::new(tool("ringdove"));
    command.arg("doctor");
    let (status, output) = run_bounded(command);
    assert_eq!(status.code(), Some(1), "{output}");
    let lines = || output.lines().map(str::trim_start);
    let missing: Vec<_> = lines().filter(|line| line.starts_with("missing  ")).collect();
    assert_eq!(missing.len(), 1, "{output}");
    assert!(missing[0].contains("CUDA driver") && missing[0].contains("libcuda.so.1"), "{output}");
    assert_eq!(
        lines().next_back().map(|line| line.starts_with("missing: CUDA driver")),
        Some(true)
    );
}

#[test]
fn known_machines_are_found_as_they_are() {
    if cannot_run() {
        return;
    }
    let machines: [(&str, usize, &[&str]); 3] = [
        ("one-gpu", 1, &["hwsim0"]),
        ("pcie4", 4, &["hwsim0", "hwsim0", "hwsim1", "hwsim1"]),
        (
            "dgx1v",
            8,
            &["hwsim0", "hwsim0", "hwsim1", "hwsim1", "hwsim2", "hwsim2", "hwsim3", "hwsim3"],
        ),
    ];
    for (machine, gpus, adapters) in machines {
        let (status, document) = document_on(&["--machine", machine], &[]);
        assert_eq!(status.code(), Some(0), "{machine}: {document:#}");
        assert_eq!(document["fine"], true, "{machine}");
        assert_eq!(document["gpus"].as_array().unwrap().len(), gpus, "{machine}");
        let pairs = document["pairs"].as_array().unwrap();
        assert_eq!(pairs.len(), gpus * (gpus - 1) / 2, "{machine}");
        let through_host = pairs.iter().filter(|pair| pair["transport"] == "host").count();
        assert_eq!(through_host, if machine == "dgx1v" { 12 } else { 0 }, "{machine}: {pairs:?}");
        assert_eq!(about(&document, "CUDA driver")[0].0, "ok");
        if has_adapters(&document) {
            assert_eq!(chosen(&document), adapters, "{machine}");
            assert_eq!(about(&document, "GPU memory")[0].0, "ok");
        }
    }
}

/// If this fails, a user of a machine without peer access does not learn which pairs are slow, and
/// why, or is told that the machine cannot be used.
#[test]
fn pairs_without_peer_access_go_through_the_host() {
    if cannot_run() {
        return;
    }
    for (machine, pairs) in [("dgx1v", "0-5 0-6 0-7 1-4"), ("quad-pc", "0-1 0-2 0-3 1-2")] {
        let (status, document) = document_on(&["--machine", machine, "--no-adapters"], &[]);
        assert_eq!(status.code(), Some(0), "{document:#}");
        let between = about(&document, "between GPUs");
        let warned: Vec<_> = between.iter().filter(|finding| finding.0 == "warning").collect();
        assert_eq!(warned.len(), 1, "{between:?}");
        assert!(warned[0].1.contains(pairs) && warned[0].1.contains("through host"), "{warned:?}");
    }
}

#[test]
fn links_between_gpus_are_counted() {
    if cannot_run() {
        return;
    }
    let (_, document) = document_on(&["--machine", "dgx1v", "--no-adapters"], &[]);
    let pairs = document["pairs"].as_array().unwrap();
    let path = |one: u64, other: u64| {
        let wanted = |pair: &&Value| pair["one"] == one && pair["other"] == other;
        pairs.iter().find(wanted).unwrap()["path"].as_str().unwrap()
    };
    assert_eq!(path(0, 3), "2 NVLinks");
    assert_eq!(path(0, 1), "1 NVLink");
    assert!(path(0, 7).starts_with("PCI"), "{}", path(0, 7));
    let gpu = about(&document, "GPU 0");
    assert!(gpu[0].1.contains("6 NVLinks"), "{gpu:?}");
    assert!(gpu[0].1.contains("0000:06:00.0"), "{gpu:?}");
}

/// A job on one node must not be told that it needs adapters; one on two nodes must be.
#[test]
fn adapters_are_missed_only_by_jobs_on_several_nodes() {
    if cannot_run() {
        return;
    }
    let (status, document) = document_on(&["--machine", "pcie4", "--no-adapters"], &[]);
    assert_eq!(status.code(), Some(0), "{document:#}");
    assert_eq!(chosen(&document), [""; 0]);
    let job = [
        ("RANK", "0"),
        ("WORLD_SIZE", "8"),
        ("LOCAL_RANK", "0"),
        ("LOCAL_WORLD_SIZE", "4"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "1"),
    ];
    let (status, document) = document_on(&["--machine", "pcie4", "--no-adapters"], &job);
    let launcher = about(&document, "launcher");
    assert!(launcher[0].1.contains("torchrun: rank 0 of 8"), "{launcher:?}");
    if ringdove::topology::adapter::read(std::path::Path::new("/sys")).is_empty() {
        assert_eq!(status.code(), Some(1), "{document:#}");
        assert_eq!(about(&document, "adapters")[0].0, "missing");
    } else {
        tally::skip("adapters", "a job on several nodes without any adapter");
    }
}

#[test]
fn a_port_that_is_down_is_passed_over_with_a_warning() {
    if cannot_run() {
        return;
    }
    let faults = [("HWSIM_FAULTS", "hwsim0:port-down")];
    let (status, document) = document_on(&["--machine", "pcie4"], &faults);
    assert_eq!(status.code(), Some(0), "{document:#}");
    if !has_adapters(&document) {
        return;
    }
    let port = about(&document, "hwsim0 port 1");
    assert!(port[0].0 == "warning" && port[0].1.starts_with("down"), "{port:?}");
    assert_eq!(chosen(&document), ["hwsim1"; 4]);
}

/// The counters that `doctor --adapters` shows of hwsim0 after 200 messages each way between two
/// processes, under this fault.
fn counted_under(fault: &str) -> Option<BTreeMap<String, u64>> {
    const TRAFFIC: &str = r#"
port=$1 doctor=$2
ibv_rc_pingpong -d hwsim0 -n 200 -p $port >/dev/null & server=$!
until grep -q ":$(printf %04X $port) .* 0A " /proc/net/tcp /proc/net/tcp6; do
    kill -0 $server || exit 9
done
ibv_rc_pingpong -d hwsim0 -n 200 -p $port 127.0.0.1 >/dev/null && wait $server || exit 8
exec $doctor doctor --adapters --json
"#;
    // The tool wants a port by number, and sets SO_REUSEADDR. Held but not listened on, it is given
    // to nobody else.
    let held = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    held.set_reuse_address(true).unwrap();
    held.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let port = held.local_addr().unwrap().as_socket().unwrap().port().to_string();
    let mut command = hwsim();
    command.args(["run", "--quiet", "--machine", "pcie4"]);
    command.args((!fault.is_empty()).then_some(["--fault", fault]).into_iter().flatten());
    command.args(["--", "bash", "-c", TRAFFIC, "traffic", &port]).arg(tool("ringdove"));
    let (status, output) = run_bounded(command);
    if output.contains("no virtual RDMA adapters") {
        tally::skip("virtual-adapters", "what the doctor says that adapters have counted");
        return None;
    }
    assert_eq!(status.code(), Some(0), "is ibverbs-utils installed? {output}");
    let begin = output.find('{').unwrap_or_else(|| panic!("no JSON: {output}"));
    let document: Value = serde_json::from_str(&output[begin..]).unwrap();
    let statistics = document["sections"].as_array().unwrap().last().unwrap();
    let of_port = about(&document, "hwsim0 port 1");
    let lines: Vec<_> = statistics["findings"].as_array().unwrap().iter().collect();
    assert!(lines.len() > 1 && of_port.len() > lines.len() - 1, "{document:#}");
    let mut counted = BTreeMap::new();
    for (_, seen) in of_port {
        // `NAME COUNT` behind some words, or `COUNT bytes sent`.
        for part in seen.rsplit(": ").next().unwrap().split(", ") {
            let found = match part.split_once(' ') {
                Some((name, count))
                    if name.contains('_') || name == "faults" || name == "retries" =>
                {
                    (name.to_owned(), count.parse())
                }
                Some((count, name)) => (name.to_owned(), count.parse()),
                None => continue,
            };
            if let (name, Ok(count)) = found {
                counted.insert(name, count);
            }
        }
    }
    Some(counted)
}

/// If this fails, the doctor shows retries or faults where there were none, or hides those there
/// were.
#[test]
fn adapters_tell_what_they_have_carried_and_what_went_wrong() {
    if cannot_run() {
        return;
    }
    // 200 messages of 4096 bytes, the tool's own size, from each of two processes.
    let Some(plain) = counted_under("") else { return };
    for (name, count) in [
        ("bytes sent", 1_638_400),
        ("bytes received", 1_638_400),
        ("packets sent", 400),
        ("queue_pairs_made", 2),
        ("queue_pairs_ended", 2),
        ("send_requests_posted", 400),
        ("messages_sent", 400),
    ] {
        assert_eq!(plain.get(name), Some(&count), "{name}: {plain:?}");
    }
    for name in ["faults", "retries", "receiver_not_ready", "requests_failed"] {
        assert_eq!(plain.get(name), None, "{plain:?}");
    }
    // The message that finds no receive request is sent again: each fault is one such.
    let late = counted_under("seed=7,hwsim0:receiver-not-ready=30").unwrap();
    let faults = late.get("faults").copied().unwrap_or(0);
    assert!((60..=180).contains(&faults), "30 % of 400: {late:?}");
    assert_eq!(late.get("receiver_not_ready"), Some(&faults), "{late:?}");
    assert_eq!(late.get("retries"), None, "{late:?}");
    assert_eq!(late.get("messages_sent"), Some(&400), "{late:?}");
    // While the port is down, a message is sent again each 67 ms (the tool's timeout of 14).
    let flap = counted_under("hwsim0:port-flap=100:200000").unwrap();
    assert!(flap.get("retries").is_some_and(|retries| (2..=14).contains(retries)), "{flap:?}");
    assert_eq!(flap.get("faults"), Some(&2), "one for each process: {flap:?}");
    assert_eq!(flap.get("messages_sent"), Some(&400), "{flap:?}");
}

#[test]
fn settings_show_where_they_come_from_and_bad_ones_stop_a_run() {
    if cannot_run() {
        return;
    }
    let variables = [
        ("RINGDOVE_ADAPTER", "hwsim1"),
        ("RINGDOVE_SLTS", "8"),
        ("RINGDOVE_BOOTSTRAP_SECRET", "a secret not to be seen"),
    ];
    let (status, document) = document_on(&["--machine", "pcie4"], &variables);
    assert_eq!(status.code(), Some(0), "{document:#}");
    assert_eq!(about(&document, "RINGDOVE_ADAPTER"), [("ok", "hwsim1 (environment)")]);
    assert_eq!(about(&document, "RINGDOVE_SLOTS"), [("ok", "4 (default)")]);
    assert_eq!(about(&document, "RINGDOVE_SLTS")[0].0, "warning");
    assert!(!document.to_string().contains("not to be seen"));
    if has_adapters(&document) {
        assert_eq!(chosen(&document), ["hwsim1"; 4]);
    }

    let bad = [("RINGDOVE_SLOTS", "3"), ("RANK", "1")];
    let (status, output) = doctor_on(&["--machine", "one-gpu", "--no-adapters"], &bad, false);
    assert_eq!(status.code(), Some(1), "{output}");
    let last = output.lines().last().unwrap();
    assert!(last.starts_with("missing: ") && last.contains("settings"), "{output}");
    assert!(output.contains("RINGDOVE_SLOTS=3"), "{output}");
}

/// If this fails, the doctor recommends LL messages over adapters that break them.
#[test]
fn adapters_that_write_words_in_halves_are_found() {
    if cannot_run() {
        return;
    }
    for (words, level) in [("whole", "ok"), ("halves", "missing")] {
        let key = format!("adapter-words={words}");
        let mut command = hwsim();
        command.args(["run", "--quiet", "-m", "one-gpu", "--driver-key", &key, "--"]);
        command.arg(tool("ringdove")).args(["doctor", "--json", "--adapter-words", "3"]);
        let (status, output) = run_bounded(command);
        let begin = output.find('{').unwrap_or_else(|| panic!("no JSON: {output}"));
        let document: Value = serde_json::from_str(&output[begin..]).unwrap();
        if !has_adapters(&document) {
            return;
        }
        let sections = document["sections"].as_array().unwrap();
        let tried = sections.last().unwrap()["findings"].as_array().unwrap();
        assert_eq!(tried.len(), 1, "{output}");
        assert_eq!(tried[0]["level"], level, "{words}: {output}");
        assert_eq!(status.success(), level == "ok", "{words}: {output}");
    }
}
