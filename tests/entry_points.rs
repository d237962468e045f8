//! Everything that reads bytes from outside, and the test that feeds it with bytes that nobody
//! meant: bounded, from a seed that is printed, with a corpus of what was found once. If this
//! fails, a reader has no such test, or one that is not on the list reads what others wrote.
//!
//! Run for longer with `RINGDOVE_FUZZ_CASES` (`tests/support/mutation.rs`) or `PROPTEST_CASES`.

use std::fs;
use std::path::{Path, PathBuf};

/// A reader.
struct Entry {
    /// What it reads.
    what: &'static str,
    /// Where it is: a file, and what stands in it.
    reader: (&'static str, &'static str),
    /// Its test: a file, and the function.
    test: (&'static str, &'static str),
    /// Folders and files whose inputs are played in every run. None where all inputs are built by
    /// the test itself from values that are right.
    corpus: &'static [&'static str],
}

const fn entry(
    what: &'static str,
    reader: (&'static str, &'static str),
    test: (&'static str, &'static str),
    corpus: &'static [&'static str],
) -> Entry {
    Entry { what, reader, test, corpus }
}

const BOOTSTRAP: &str = "src/bootstrap/fuzz_tests.rs";

const ENTRIES: &[Entry] = &[
    entry(
        "messages of the control plane",
        ("src/bootstrap/message.rs", "fn decode("),
        (BOOTSTRAP, "no_bytes_break_the_reader_of_messages"),
        &["tests/fixtures/bootstrap/message"],
    ),
    entry(
        "greetings of strangers",
        ("src/bootstrap/handshake.rs", "fn decode("),
        (BOOTSTRAP, "no_bytes_break_the_reader_of_hellos"),
        &["tests/fixtures/bootstrap/hello"],
    ),
    entry(
        "streams of frames",
        ("src/bootstrap/frame.rs", "Opener"),
        (BOOTSTRAP, "a_changed_stream_of_frames_gives_its_unchanged_start_and_no_more"),
        &["tests/fixtures/bootstrap/frame"],
    ),
    entry(
        "values that ranks exchange and agree on",
        ("src/bootstrap/exchange.rs", "postcard::from_bytes"),
        (BOOTSTRAP, "a_rank_below_that_says_anything_ends_its_job_in_an_error_and_no_other"),
        &["tests/fixtures/bootstrap/message"],
    ),
    entry(
        "terms of an agreement",
        ("src/bootstrap/plane.rs", "postcard::from_bytes"),
        (BOOTSTRAP, "a_rank_below_that_says_anything_ends_its_job_in_an_error_and_no_other"),
        &["tests/fixtures/bootstrap/message"],
    ),
    entry(
        "records of calls",
        ("src/bootstrap/agreement/record.rs", "postcard::from_bytes"),
        ("src/bootstrap/agreement/record.rs", "no_bytes_break_the_reader_of_records"),
        &[],
    ),
    entry(
        "what ranks say of their memory",
        ("src/communicator/connect/peer_info.rs", "PeerInfo"),
        ("tests/peer_values.rs", "a_handle_of_another_length"),
        &[],
    ),
    entry(
        "unique ids",
        ("src/bootstrap/unique_id.rs", "fn from_bytes("),
        (BOOTSTRAP, "no_bytes_break_the_reader_of_ids"),
        &["tests/fixtures/bootstrap/id"],
    ),
    entry(
        "launchers' variables",
        ("src/bootstrap/environment.rs", "impl Launch"),
        (BOOTSTRAP, "no_variables_break_the_reader_of_launchers"),
        &["tests/fixtures/bootstrap/launch"],
    ),
    entry(
        "Slurm's lists of nodes",
        ("src/bootstrap/slurm.rs", "fn "),
        ("src/bootstrap/slurm.rs", "any_text_ends_in_an_answer"),
        &[],
    ),
    entry(
        "hosts and ports",
        ("src/bootstrap/address.rs", "fn parse("),
        (BOOTSTRAP, "no_text_breaks_the_reader_of_hosts_and_ports"),
        &[],
    ),
    entry(
        "settings",
        ("src/settings.rs", "TABLE"),
        ("tests/hostile/settings.rs", "mutated_environments_are_read_or_refused"),
        &[],
    ),
    entry(
        "command lines",
        ("src/bin/ringdove/perf/arguments.rs", "fn parse_types("),
        ("tests/hostile/commands.rs", "mutated_command_lines_end_with_a_message"),
        &["tests/hostile/corpus/commands.txt"],
    ),
    entry(
        "files of routings",
        ("src/bin/ringdove/perf/experts/routing.rs", "read_to_string"),
        ("src/bin/ringdove/perf/experts/routing.rs", "any_text_is_routings_or_refused"),
        &[],
    ),
    entry(
        "flight recorders of other processes",
        ("src/flight/view.rs", "fn read("),
        ("src/flight/fuzz_tests.rs", "no_words_break_the_reader_of_recorders"),
        &["tests/fixtures/flight"],
    ),
    entry(
        "descriptors of a ring",
        ("kernels/src/descriptor.rs", "fn decode("),
        ("kernels/tests/encoding.rs", "arbitrary_words_are_exact_or_refused"),
        &[],
    ),
    entry(
        "rings that a GPU has filled with garbage",
        ("src/ring/consumer.rs", "impl"),
        ("tests/hostile/memory.rs", "garbage_ends_in_errors_on_the_proxy"),
        &[],
    ),
    entry(
        "plans",
        ("src/plan/verify/mod.rs", "fn verify"),
        ("src/plan/verify/tests/refusal.rs", "no_plan_makes_the_verifier_panic"),
        &[],
    ),
    entry(
        "plans in files",
        ("src/bin/ringdove/plan/mod.rs", "serde_json::from_str"),
        ("tests/plan_files.rs", "mutated_plans_are_proved_or_refused"),
        &[],
    ),
    entry(
        "plans in files that settings name",
        ("src/communicator/state/plan_files.rs", "read_to_string"),
        ("tests/plan_import.rs", "mutated_files_are_imported_or_refused"),
        &[],
    ),
    entry(
        "plan files of this library",
        ("src/plan/file.rs", "serde_json::from_str"),
        ("tests/plan_files.rs", "mutated_plans_are_proved_or_refused"),
        &[],
    ),
    entry(
        "plans of MSCCL",
        ("src/plan/import/msccl.rs", "Document::parse"),
        ("tests/plan_import.rs", "mutated_files_are_imported_or_refused"),
        &[],
    ),
    entry(
        "plans of MSCCL++",
        ("src/plan/import/mscclpp.rs", "serde_json::from_str"),
        ("tests/plan_import.rs", "mutated_files_are_imported_or_refused"),
        &[],
    ),
    entry(
        "plans of others that the command is given",
        ("src/bin/ringdove/plan/import.rs", "ImportedPlan::read"),
        ("tests/plan_import.rs", "mutated_files_are_imported_or_refused"),
        &[],
    ),
    entry(
        "plans in files that the timing model plays",
        ("hw-sim/cli/src/predict/plan_file.rs", "ImportedPlan::read"),
        ("tests/plan_import.rs", "mutated_files_are_imported_or_refused"),
        &[],
    ),
    entry(
        "data-flow graphs in files",
        ("src/graph/file.rs", "serde_json::from_str"),
        ("tests/graph.rs", "mutated_graphs_are_read_or_refused"),
        &["tests/fixtures/graph"],
    ),
    entry(
        "data-flow graphs that the command is given",
        ("src/bin/ringdove/graph/mod.rs", "Graph::read"),
        ("tests/graph.rs", "mutated_graphs_are_read_or_refused"),
        &["tests/fixtures/graph"],
    ),
    entry(
        "models in ONNX",
        ("src/graph/onnx/mod.rs", "ModelProto::decode"),
        ("tests/graph_onnx.rs", "mutated_models_are_read_or_refused"),
        &["benches/graphs/models"],
    ),
    entry(
        "placements of models",
        ("src/graph/placement.rs", "serde_json::from_str"),
        ("tests/graph_onnx.rs", "mutated_placements_are_read_or_refused"),
        &["benches/graphs/models"],
    ),
    entry(
        "models and placements that the command is given",
        ("src/bin/ringdove/graph/mod.rs", "Graph::read_onnx"),
        ("tests/graph_onnx.rs", "mutated_models_are_read_or_refused"),
        &["benches/graphs/models"],
    ),
    entry(
        "topology files of NCCL's",
        ("src/bin/ringdove/topo/mod.rs", "Machine::from_nccl"),
        ("src/topology/xml_tests.rs", "mutations_are_read_or_refused"),
        &["tests/fixtures/topology"],
    ),
    entry(
        "addresses of adapters",
        ("src/transport/verbs/address.rs", "fn decode("),
        ("src/transport/verbs/address.rs", "an_address_survives_the_way_and_garbage_is_refused"),
        &[],
    ),
    entry(
        "structs and arguments of C callers",
        ("ffi/nccl/src/config.rs", "impl Config"),
        ("ffi/nccl/tests/client.rs", "arguments_and_configurations_at_random_are_refused"),
        &["ffi/nccl/tests/fuzz.c"],
    ),
    entry(
        "structs of C callers of NCCL EP",
        ("ffi/nccl/src/ep/tensor.rs", "unsafe fn optional("),
        ("ffi/nccl_ep/tests/client.rs", "structures_at_random_are_refused"),
        &["ffi/nccl_ep/tests/fuzz.c"],
    ),
    entry(
        "variables of NCCL's",
        ("ffi/nccl/src/variables.rs", "fn apply("),
        ("ffi/nccl/src/variables.rs", "any_values_of_variables_are_used_or_left"),
        &[],
    ),
    entry(
        "machine files",
        ("hw-sim/machine/src/description/file.rs", "toml::from_str"),
        ("hw-sim/machine/tests/fuzz.rs", "mutated_machine_files_are_machines_or_refused"),
        &["hw-sim/machine/tests/corpus", "hw-sim/machine/machines"],
    ),
    entry(
        "lists of faults",
        ("hw-sim/machine/src/fault/list.rs", "fn check_list("),
        ("hw-sim/machine/tests/fault_lists.rs", "mutated_lists_of_faults_are_read_or_refused"),
        &["hw-sim/machine/tests/corpus/faults.txt"],
    ),
    entry(
        "faults of the explorer",
        ("hw-sim/explore/src/fault.rs", "fn read("),
        ("hw-sim/explore/tests/fault_lists.rs", "mutated_faults_are_refused_or_borne"),
        &["hw-sim/explore/tests/fault_lists.rs"],
    ),
    entry(
        "descriptions of users' kernels",
        ("hw-sim/explore/src/user_kernel/file.rs", "serde_json::from_str"),
        ("hw-sim/explore/tests/user_kernel.rs", "mutated_descriptions_are_read_or_refused"),
        &[],
    ),
    entry(
        "profiles of the timing model",
        ("hw-sim/timing/src/text.rs", "read_to_string"),
        ("hw-sim/timing/tests/fuzz.rs", "mutated_profiles_give_times_or_are_refused"),
        &["hw-sim/timing/tests/corpus", "hw-sim/timing/profiles"],
    ),
    entry(
        "profiles of the cost model",
        ("src/cost/profile.rs", "toml::from_str"),
        ("tests/cost_profiles.rs", "mutated_profiles_are_read_or_refused"),
        &["src/cost/profiles"],
    ),
    entry(
        "networks and clusters of training",
        ("hw-sim/timing/src/training/files.rs", "toml::from_str"),
        ("hw-sim/timing/tests/training_fuzz.rs", "mutated_networks_are_predicted_or_refused"),
        &["hw-sim/timing/models", "hw-sim/timing/clusters"],
    ),
    entry(
        "PTX",
        ("hw-sim/cli/src/ptxas.rs", "fs::read"),
        ("hw-sim/ptx/tests/fuzz.rs", "mutated_modules_load_and_run_or_are_refused"),
        &["hw-sim/ptx/tests/corpus"],
    ),
    entry(
        "litmus tests",
        ("hw-sim/cli/src/litmus.rs", "read_to_string"),
        ("hw-sim/ptx/tests/litmus_fuzz.rs", "mutated_litmus_tests_run_or_are_refused"),
        &["hw-sim/ptx/tests/corpus/litmus"],
    ),
    entry(
        "counters of adapters",
        ("src/bin/ringdove/doctor/statistics.rs", "fn entries("),
        ("src/bin/ringdove/doctor/statistics.rs", "no_file_of_a_port_breaks_the_reader"),
        &[],
    ),
    entry(
        "what arrays of Python say of themselves",
        ("ffi/python/src/array.rs", "fn array("),
        ("ffi/python/tests/bad_input.py", "any_interfaces"),
        &[],
    ),
    entry(
        "fat binaries and other images",
        ("hw-sim/vendor-abi/src/driver/image.rs", "fs::read"),
        ("hw-sim/vendor-abi/tests/fuzz.rs", "damaged_images_are_answered_with_codes"),
        &["hw-sim/vendor-abi/tests/fixtures/fatbin"],
    ),
    entry(
        "tensor maps",
        ("hw-sim/ptx/src/tensor_map.rs", "fn from_bytes("),
        ("hw-sim/ptx/src/tensor_map.rs", "any_bytes_are_a_map_or_none"),
        &[],
    ),
    entry(
        "handles of other processes' memory",
        ("hw-sim/machine/src/memory/ipc.rs", "fn from_bytes("),
        ("hw-sim/machine/src/memory/ipc.rs", "changed_handles_open_nothing"),
        &[],
    ),
    entry(
        "descriptions of served models",
        ("src/serve/model.rs", "serde_json::from_str"),
        ("src/serve/model.rs", "any_text_is_a_model_or_refused"),
        &[],
    ),
    entry(
        "what servers and workers say of themselves when they meet",
        ("src/serve/fabric.rs", "postcard::from_bytes"),
        ("src/serve/fabric.rs", "no_bytes_break_the_reader_of_hellos"),
        &[],
    ),
    entry(
        "what servers and workers say of connections that are made anew",
        ("src/serve/lines.rs", "postcard::from_bytes"),
        ("src/serve/lines.rs", "no_bytes_break_the_reader_of_notes"),
        &[],
    ),
    entry(
        "what workers write into a server's memory",
        ("src/serve/shard.rs", "fn next_write("),
        ("src/serve/shard.rs", "any_slot_is_a_write_or_refused"),
        &[],
    ),
    entry(
        "graphs",
        ("hw-sim/vendor-abi/src/driver/graph/structure.rs", "fn "),
        ("hw-sim/vendor-abi/tests/fuzz.rs", "graphs_at_random_are_answered_with_codes"),
        &[],
    ),
    entry(
        "answers of drivers, to be compared",
        ("hw-sim/judge/src/main.rs", "read_to_string"),
        ("hw-sim/judge/src/compare.rs", "no_text_breaks_the_comparison"),
        &["hw-sim/judge/known"],
    ),
];

/// What marks a reader of what others wrote, and where it stands although it is none: files that
/// the kernel, this machine or the reader itself writes; and readers whose values are checked by
/// the entry that is named.
const MARKS: [&str; 4] = ["from_bytes(", "toml::from_str", "serde_json::from_", "read_to_string("];
const OTHERS: &[(&str, &str)] = &[
    ("benches/figures/src/bin/versus.rs", "times that `./x versus` has measured"),
    ("ffi/nccl/src/abi.rs", "unique ids"),
    ("ffi/python/src/init.rs", "unique ids"),
    ("hw-sim/cli/src/explore.rs", "PTX"),
    ("hw-sim/cli/src/sdk.rs", "the header that it has written itself"),
    ("hw-sim/cli/src/sysfs/nodes.rs", "/proc and /sys"),
    ("hw-sim/machine/src/engine/bar.rs", "/proc/self/maps"),
    ("hw-sim/ptx/src/exec/tensor_copy.rs", "tensor maps"),
    ("hw-sim/readme_section.rs", "this repository's documents"),
    ("hw-sim/vendor-abi/src/driver/peer.rs", "handles of other processes' memory"),
    ("hw-sim/vendor-abi/src/driver/tensor_map.rs", "tensor maps"),
    ("hw-sim/vendor-abi/src/nvml/device.rs", "/sys"),
    ("src/bin/ringdove/doctor/host.rs", "/proc and /sys"),
    ("src/bin/ringdove/plan/explain.rs", "topology files of NCCL's, profiles of the cost model"),
    ("src/bin/ringdove/perf/job.rs", "what the same command prints on other nodes"),
    ("src/bin/ringdove/perf/json.rs", "its own test"),
    ("src/bin/ringdove/perf/mod.rs", "/proc/sys/kernel/hostname"),
    ("src/bin/ringdove/perf/output.rs", "its own test"),
    ("src/bin/ringdove/serve/arguments.rs", "descriptions of served models"),
    ("src/communicator/api/membership.rs", "unique ids, of the control plane"),
    ("src/communicator/api/split.rs", "unique ids, of the control plane"),
    ("src/communicator/connect/handshake.rs", "notes between ranks that hold the job's secret"),
    ("src/communicator/connect/nodes.rs", "/proc/sys/kernel/random/boot_id"),
    ("src/communicator/connect/places.rs", "notes between ranks that hold the job's secret"),
    ("src/topology/adapter.rs", "/sys"),
    ("src/topology/discovery.rs", "/sys"),
    ("src/topology/engine.rs", "/sys"),
    ("src/topology/pci.rs", "/sys"),
    ("src/transport/traced.rs", "its own test"),
    ("src/transport/verbs/device.rs", "/sys"),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Is there an input of the corpus?
fn holds_inputs(path: &str) -> bool {
    let path = root().join(path);
    match fs::read_dir(&path) {
        Ok(mut entries) => entries.next().is_some(),
        Err(_) => fs::metadata(&path).is_ok_and(|file| file.len() > 0),
    }
}

#[test]
fn every_reader_of_what_is_outside_has_its_test_and_corpus() {
    let mut wrong = Vec::new();
    for Entry { what, reader, test, corpus } in ENTRIES {
        if !text(reader.0).contains(reader.1) {
            wrong.push(format!("{what}: `{}` is not in {}", reader.1, reader.0));
        }
        let has_test = |word: &str| text(test.0).contains(&format!("{word} {}(", test.1));
        if !(has_test("fn") || has_test("def")) {
            wrong.push(format!("{what}: no test {} in {}", test.1, test.0));
        }
        let empty = corpus.iter().filter(|path| !holds_inputs(path));
        wrong.extend(empty.map(|path| format!("{what}: no corpus in {path}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The files below a folder that hold Rust, tests and benchmarks left out.
fn sources(folder: PathBuf, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = entry.file_name().unwrap().to_string_lossy().into_owned();
        if entry.is_dir() {
            if !["tests", "target", "benches", "examples"].contains(&name.as_str()) {
                sources(entry, found);
            }
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            found.push(entry);
        }
    }
}

#[test]
fn nothing_else_reads_what_is_outside() {
    let mut files = Vec::new();
    for folder in ["src", "ffi", "hw-sim", "kernels/src", "benches/figures", "benches/graphs"] {
        sources(root().join(folder), &mut files);
    }
    assert!(files.len() > 400, "{} files were looked at", files.len());
    let mut unknown = Vec::new();
    let mut met = Vec::new();
    for file in files {
        let path = file.strip_prefix(root()).unwrap().display().to_string();
        let code = fs::read_to_string(&file).unwrap();
        // What is said of a reader is none.
        let reads = |line: &str| !line.trim_start().starts_with("//");
        let is_reader = |line: &&str| reads(line) && MARKS.iter().any(|mark| line.contains(mark));
        if !code.lines().any(|line| is_reader(&line)) {
            continue;
        }
        let is_known = ENTRIES.iter().any(|entry| entry.reader.0 == path)
            || OTHERS.iter().any(|(other, _)| *other == path);
        if !is_known {
            unknown.push(path.clone());
        }
        met.push(path);
    }
    assert!(
        unknown.is_empty(),
        "readers without an entry in ENTRIES, or a reason in OTHERS:\n{}",
        unknown.join("\n")
    );
    let gone: Vec<_> =
        OTHERS.iter().filter(|(other, _)| !met.iter().any(|it| it == other)).collect();
    assert!(gone.is_empty(), "OTHERS names files that read nothing any more: {gone:?}");
}
