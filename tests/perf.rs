//! The `ringdove perf` command from outside: its exit status, its table, its files, its end.

mod hardware;

use hardware::{hwsim, is_real, on_virtual, run_bounded, tool};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, ExitStatus, Stdio};

/// `ringdove` with these arguments, on virtual hardware unless the real one is asked for.
fn ringdove_on(machine: &str, line: &str) -> Command {
    let ringdove = tool("ringdove");
    let mut command =
        if is_real() { Command::new(ringdove) } else { on_virtual(machine, ringdove) };
    command.args(line.split_whitespace());
    command
}

fn run_on(machine: &str, line: &str) -> (ExitStatus, String) {
    run_bounded(ringdove_on(machine, line))
}

fn bare(line: &str) -> (ExitStatus, String) {
    let mut command = Command::new(tool("ringdove"));
    command.args(line.split_whitespace());
    run_bounded(command)
}

/// The table's rows, as words.
fn rows(output: &str) -> Vec<Vec<&str>> {
    output
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|words| words.first().is_some_and(|word| word.parse::<u64>().is_ok()))
        .collect()
}

#[test]
fn a_bad_command_line_exits_with_2_and_says_what_was_expected() {
    for (line, expected) in [
        ("perf all-reduce -b 8Q", "8192, 8K"),
        ("perf all-reduce -b 8K -e 1K", "no more bytes than -e"),
        ("perf all-reduce -g 257", "at most 256 ranks"),
        ("perf all-reduce -d fp64", "bfloat16"),
        ("perf all-to-none", "all-to-none"),
    ] {
        let (status, output) = bare(line);
        assert_eq!(status.code(), Some(2), "{line}: {output}");
        assert!(output.contains(expected), "{line}: {output}");
    }
}

#[test]
fn without_a_driver_the_way_out_is_named() {
    if ringdove::device_count().is_ok() {
        return tally::skip("cuda-driver", "what is said without a driver");
    }
    let (status, output) = bare("perf all-reduce -g 4");
    assert_eq!(status.code(), Some(1), "{output}");
    assert!(output.contains("libcuda.so.1") && output.contains("hwsim run"), "{output}");
}

#[test]
fn an_output_file_that_cannot_be_written_is_refused_before_anything_runs() {
    let (status, output) = bare("perf all-reduce -J /nowhere/results.json");
    assert_eq!(status.code(), Some(1), "{output}");
    assert!(output.contains("/nowhere/results.json"), "{output}");
}

/// Table, JSON and plot of one sweep tell the same story.
#[test]
fn a_sweep_is_right_and_its_files_agree() {
    let folder = tempfile::tempdir().unwrap();
    let (json, plot) = (folder.path().join("results.json"), folder.path().join("plot.svg"));
    let line = format!(
        "perf all-reduce -g 4 -b 8K -e 64K -f 2 -n 2 -w 1 -c 1 -v -J {} --plot {}",
        json.display(),
        plot.display()
    );
    // By default all of these sizes go by stores, and the counters of engines stay at zero.
    let mut command = ringdove_on("pcie4", &line);
    command.env("RINGDOVE_ALGORITHM", "table");
    let (status, output) = run_bounded(command);
    assert!(status.success(), "{status}\n{output}");
    let rows = rows(&output);
    let sizes: Vec<_> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(sizes, ["8192", "16384", "32768", "65536"], "{output}");
    for row in &rows {
        assert_eq!((row.len(), row[8], row[12]), (13, "0", "0"), "{row:?}");
    }
    assert!(output.contains("# Out of bounds values : 0 OK\n"), "{output}");
    assert!(output.contains("# Avg bus bandwidth    : "), "{output}");
    // The smallest sizes may go by stores.
    let mut rung = output.lines().filter(|line| line.contains(" descriptors rung"));
    let rings = rung.any(|line| !line.contains(" 0 descriptors rung"));
    assert!(rings, "the GPUs rang nothing:\n{output}");
    if output.contains("(virtual)") {
        assert!(output.contains("wall-clock times of a simulation"), "{output}");
    }
    let document: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    let results = document["results"].as_array().unwrap();
    assert_eq!(results.len(), rows.len());
    for (result, row) in results.iter().zip(&rows) {
        assert_eq!(result["size"].to_string(), row[0]);
        let time = result["in_place"]["time"].as_f64().unwrap();
        let shown: f64 = row[9].parse().unwrap();
        assert!((time - shown).abs() <= shown * 0.01, "{time} and {shown}");
    }
    assert!(std::fs::read_to_string(plot).unwrap().contains("bus bandwidth"));
}

/// Every type with every reduction, at a count that no chunk divides, on ranks that share GPUs.
#[test]
fn every_type_and_reduction_is_right() {
    for options in ["-R 0", "-R 1"] {
        let line =
            format!("perf all-reduce -g 3 -b 40008 -e 40008 -n 1 -w 0 -d all -o all {options}");
        let (status, output) = run_on("one-gpu", &line);
        assert!(status.success(), "{options}: {status}\n{output}");
        assert_eq!(rows(&output).len(), 72, "{output}");
    }
}

/// Straight to outputs: whole slices and clipped ones, several rounds, every root.
#[test]
fn collectives_between_registered_buffers_are_right() {
    for machine in ["pcie4", "dgx-a100"] {
        for line in ["all-gather -d float", "all-to-all -d float", "broadcast -d float -r -1"] {
            let line = format!("perf {line} -g 4 -b 262144 -e 20000004 -f 76 -n 2 -w 1 -R 1");
            let (status, output) = run_on(machine, &line);
            assert!(status.success(), "{line}: {status}\n{output}");
        }
    }
}

#[test]
fn send_recv_moves_every_type_unchanged() {
    let line = "perf send-recv -g 4 -b 1000 -e 1M -f 1000 -n 2 -w 1 -c 2 -d all";
    let (status, output) = run_on("pcie4", line);
    assert!(status.success(), "{status}\n{output}");
    let rows = rows(&output);
    assert_eq!(rows.len(), 24, "{output}");
    assert!(rows.iter().all(|row| row[8] == "0" && row[12] == "N/A"), "{output}");
}

#[test]
fn threads_and_aggregation_give_the_same_results() {
    let line = "perf all-reduce -t 2 -g 2 -b 1M -e 4M -f 2 -n 3 -m 2 -w 1 -c 1 -d half -o avg";
    let (status, output) = run_on("pcie4", line);
    assert!(status.success(), "{status}\n{output}");
    assert_eq!(rows(&output).len(), 3, "{output}");
}

/// One interrupt ends the run: what was measured is shown, and the status says why it ended.
#[test]
fn an_interrupt_ends_the_run_with_what_was_measured() {
    let line = "perf all-reduce -g 2 -b 1K -e 1M -i 1K -n 50 -w 0 -c 0";
    let mut command = ringdove_on("pcie4", line);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while rows(&text).is_empty() {
        assert_ne!(output.read_line(&mut text).unwrap(), 0, "ended early:\n{text}");
    }
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    output.read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{text}");
    assert!(text.contains("# Interrupted"), "{text}");
    assert!(text.contains("# Avg bus bandwidth"), "{text}");
    assert!(rows(&text).len() < 1000, "it ran to its end");
}

/// If this fails, a token crosses to another node more than once, what crossed is not what the
/// report says, or `auto` takes no mode.
#[test]
fn experts_on_two_nodes_are_relayed() {
    if hardware::perf::on_real_hardware() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("json");
    let measured = |mode: &str| {
        let line = format!(
            "perf experts -g 2 -T 40 -E 16 -K 6 -H 256 -n 2 --mode {mode} --distribution none \
             -J {}",
            json.display()
        );
        let mut command = hwsim();
        command.args(["run", "--quiet", "--machine", "dgx-a100 x 2", "--procs", "2", "--"]);
        command.arg(tool("ringdove")).args(line.split_whitespace());
        let (status, output) = run_bounded(command);
        assert!(status.success(), "{line}: {output}");
        assert!(output.contains("Out of bounds values : 0 OK"), "{line}: {output}");
        let text = std::fs::read_to_string(&json).unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        document["results"][0].clone()
    };
    let [low, high, auto] = ["low-latency", "throughput", "auto"].map(measured);
    let number = |result: &serde_json::Value, name: &str| result[name].as_u64().unwrap();
    // Four choices of sixteen experts on average, of which two are on the other node.
    assert!(3 * number(&high, "engine_bytes") < 2 * number(&low, "engine_bytes"), "{low} {high}");
    for result in [&low, &high] {
        let crossed = number(&result["messages"], "between_nodes");
        assert_eq!(crossed, number(result, "engine_bytes"), "{result}");
        assert!(number(&result["messages"], "in_nodes") > 0, "{result}");
    }
    assert!(["low-latency", "throughput"].contains(&auto["mode"].as_str().unwrap()), "{auto}");
}

/// If this fails, dispatch or combine is measured with wrong results, or a distribution is not
/// read.
#[test]
fn experts_are_measured_and_checked_in_both_modes() {
    let folder = tempfile::tempdir().unwrap();
    let (routing, json) = (folder.path().join("routing"), folder.path().join("json"));
    std::fs::write(&routing, "0 5\n7 -1\n3 2\n").unwrap();
    let file = format!("file:{}", routing.display());
    for mode in ["low-latency", "throughput"] {
        for distribution in ["uniform", "zipf", "one", "empty", "none", file.as_str()] {
            let line = format!(
                "perf experts -g 4 -T 20 -E 8 -K 2 -H 256 -n 2 --mode {mode} \
                 --distribution {distribution} -J {}",
                json.display()
            );
            let (status, output) = run_on("pcie4", &line);
            assert!(status.success(), "{line}: {output}");
            assert!(output.contains("Out of bounds values : 0 OK"), "{line}: {output}");
            let text = std::fs::read_to_string(&json).unwrap();
            let document: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(document["results"][0]["wrong"], 0, "{text}");
            assert!(document["results"][0]["dispatch_us"].as_f64().unwrap() > 0.0, "{text}");
        }
    }
    // Of 8 bits, several numbers of tokens, with the figure. Engines move all that goes to others,
    // and it is as many bytes as messages have.
    let svg = folder.path().join("svg");
    for mode in ["low-latency", "throughput"] {
        for scales in ["f32", "ue8m0"] {
            let line = format!(
                "perf experts -g 4 -T 3,24 -E 8 -K 3 -H 256 -n 1 --mode {mode} --fp8 {scales} \
                 -J {} --plot {}",
                json.display(),
                svg.display()
            );
            let mut command = ringdove_on("pcie4", &line);
            command.env("RINGDOVE_STORES", "never");
            let (status, output) = run_bounded(command);
            assert!(status.success(), "{line}: {output}");
            assert!(output.contains("Out of bounds values : 0 OK"), "{line}: {output}");
            let text = std::fs::read_to_string(&json).unwrap();
            let document: serde_json::Value = serde_json::from_str(&text).unwrap();
            for (at, tokens) in [3, 24].into_iter().enumerate() {
                let result = &document["results"][at];
                assert_eq!(result["tokens"], tokens, "{text}");
                assert_eq!(result["wrong"], 0, "{text}");
                assert_eq!(result["messages"]["in_nodes"], result["engine_bytes"], "{text}");
                assert_eq!(result["messages"]["between_nodes"], 0, "{text}");
            }
            assert!(std::fs::read_to_string(&svg).unwrap().starts_with("<svg"));
        }
    }
    let (status, output) = run_on("pcie4", "perf experts -g 4 -E 9 -n 1");
    assert!(!status.success() && output.contains("a multiple of 4 ranks"), "{output}");
}
