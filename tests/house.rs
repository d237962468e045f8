//! The house rules, checked over the text of the repository: who may import whom, and what is cheap
//! to check of the style. Each failure names file and line, the rule, and the way out.

#[path = "house/circles.rs"]
mod circles;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Our crates: name, folder, and which of ours each may depend on. Nobody depends on the leaf
/// `hwsim-cli`: it appears in no list. Tests of all may depend on `tally`.
const CRATES: [(&str, &str, &[&str]); 21] = [
    ("ringdove-kernels", "kernels", &[]),
    // Sizes, tables and plots of results, for the two commands that print them.
    ("ringdove-figures", "benches/figures", &[]),
    ("ringdove", ".", &["ringdove-kernels", "ringdove-figures"]),
    ("ringdove-graphs", "benches/graphs", &["ringdove"]),
    ("ringdove-nccl", "ffi/nccl", &["ringdove"]),
    // Names alone: the functions are in the other library, which it finds when it runs.
    ("ringdove-nccl-ep", "ffi/nccl_ep", &[]),
    ("ringdove-python", "ffi/python", &["ringdove"]),
    ("hwsim-ptx", "hw-sim/ptx", &[]),
    ("hwsim-machine", "hw-sim/machine", &["hwsim-ptx", "ringdove-kernels"]),
    ("hwsim-timing", "hw-sim/timing", &["ringdove-kernels"]),
    // Compiles what programs load and reports what in it is wrong, so it sees the PTX crate too.
    ("hwsim-vendor-abi", "hw-sim/vendor-abi", &["hwsim-machine", "hwsim-ptx"]),
    // Runs the protocol's code on the weak memory; only the command line shows it.
    // Its device engines are those of virtual machines.
    (
        "hwsim-explore",
        "hw-sim/explore",
        &["ringdove", "ringdove-kernels", "hwsim-machine", "hwsim-ptx"],
    ),
    // The runtime knows the driver by its public interface alone, and links none of ours.
    ("hwsim-cudart", "hw-sim/cudart", &[]),
    ("hwsim-cudart-12", "hw-sim/cudart/12", &["hwsim-cudart"]),
    ("hwsim-cudart-13", "hw-sim/cudart/13", &["hwsim-cudart"]),
    ("hwsim-cudnn", "hw-sim/cudnn", &[]),
    ("hwsim-gdrapi", "hw-sim/gdrapi", &[]),
    // Asks any driver, and knows none of ours.
    ("hwsim-judge", "hw-sim/judge", &[]),
    // Reads the same list of faults as virtual devices.
    ("hwsim-libc", "hw-sim/libc", &["hwsim-machine"]),
    // Stands in for `ptxas`, so it sees the PTX crate too.
    (
        "hwsim-cli",
        "hw-sim/cli",
        &[
            "ringdove",
            "ringdove-figures",
            "hwsim-explore",
            "hwsim-machine",
            "hwsim-ptx",
            "hwsim-timing",
        ],
    ),
    ("tally", "tests/tally", &[]),
];

/// Modules of `src/`, and which others each may import. `id` and `error` are the vocabulary of all.
const MODULES: [(&str, &[&str]); 22] = [
    ("id", &[]),
    ("error", &["id"]),
    ("lived", &[]),
    ("settings", &["id", "error"]),
    ("shared", &["id", "error"]),
    ("ring", &["id", "error", "shared"]),
    ("plan", &["id", "error"]),
    ("topology", &["id", "error"]),
    ("cost", &["error", "plan", "topology"]),
    ("transport", &["id", "error", "lived", "settings", "shared", "gpu", "topology"]),
    ("gpu", &["id", "error", "lived", "shared"]),
    ("engine", &["id", "error", "lived", "settings", "shared", "ring", "transport"]),
    ("bootstrap", &["id", "error", "lived", "settings"]),
    ("flight", &["id", "error", "lived", "shared"]),
    ("communicator", EVERYTHING),
    // The second client of the device handle: the public API, and nothing below it.
    ("experts", &["id", "error", "gpu", "communicator"]),
    // The third: its collectives are the communicator's plans.
    ("program", &["id", "error", "lived", "gpu", "communicator", "shared"]),
    // The fourth: kernels of its own on a user lane.
    ("window", &["id", "error", "lived", "gpu", "communicator"]),
    // Its runner makes transfers between windows.
    ("graph", &["error", "gpu", "communicator", "window"]),
    // Servers and workers are no ranks of a communicator, which ends with any of them: they have
    // connections of their own. Parameters are in memory of GPUs, too.
    ("serve", &["id", "error", "lived", "settings", "shared", "gpu", "bootstrap", "transport"]),
    ("lib", EVERYTHING),
    ("bin", EVERYTHING),
];
const EVERYTHING: &[&str] = &["*"];

/// Where CUDA may be named in `src/`: the driver is behind these.
const CUDA_USERS: [&str; 10] = [
    "src/gpu",
    "src/transport/peer",
    "src/topology",
    "src/communicator",
    "src/experts",
    "src/program",
    "src/window",
    "src/graph",
    "src/bin",
    "src/lib.rs",
];

/// Where RDMA may be named in `src/`, and where libraries may be opened.
const RDMA_USERS: [&str; 1] = ["src/transport/verbs/"];
const RDMA: [&str; 2] = ["ibverbs_sys", "libloading"];

/// Where sockets may be opened in `src/`: whoever listens must authenticate.
const SOCKET_USERS: [&str; 1] = ["src/bootstrap/"];
const SOCKETS: [&str; 5] = ["mio", "socket2", "TcpListener", "TcpStream", "UdpSocket"];

/// Where files become memory in `src/`: what a device writes is reached through `shared` alone.
const MAPPING_USERS: [&str; 1] = ["src/shared/mapping.rs"];
const MAPPING: [&str; 3] = ["mman", "mmap", "munmap"];

/// Where `unsafe` may stand (STYLE, law 1). Examples launch a user's own kernel, which is unsafe
/// in cudarc. `communicator/raw` declares the calls on addresses, whose contract is the caller's,
/// and has no unsafe block; `tests/raw` makes those calls, `tests/cust` lends memory of cust, and
/// `tests/drivers` allocates beside collectives as a user does, `tests/symmetric` captures, and
/// `tests/enqueue` asks the virtual driver for the time that it took.
const UNSAFE_PLACES: [&str; 28] = [
    "benches/graphs/src/",
    "examples/",
    "ffi/",
    "src/communicator/api/raw.rs",
    "tests/captures.rs",
    "tests/collectives/groups.rs",
    "tests/cust.rs",
    "tests/cycles.rs",
    "tests/drivers.rs",
    "tests/enqueue.rs",
    "tests/experts/graphs.rs",
    "tests/hardware/captures.rs",
    "tests/support/layers.rs",
    "tests/raw.rs",
    "tests/symmetric.rs",
    "tests/user_kernels.rs",
    "tests/zero_copy.rs",
    "src/shared/",
    "src/gpu/",
    "src/transport/peer",
    "src/transport/verbs",
    "hw-sim/cudart/",
    "hw-sim/cudnn/",
    "hw-sim/gdrapi/",
    "hw-sim/judge/",
    "hw-sim/libc/",
    "hw-sim/machine/",
    "hw-sim/vendor-abi/",
];

const LINES_MAX: usize = 600;
const COLUMNS_MAX: usize = 100;

/// One file: its path from the root, and its text.
struct Source {
    path: String,
    text: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file of ours with one of these endings, in a fixed order.
fn sources(endings: &[&str]) -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders = vec![root().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = entry.file_name().unwrap().to_string_lossy().into_owned();
            // Fixtures are input of tests, in whatever form their tools give.
            let foreign = name.starts_with('.') || name == "target" || name == "fixtures";
            if entry.is_dir() {
                folders.extend((!foreign).then_some(entry));
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                let path = entry.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
                found.push(Source { path, text: fs::read_to_string(&entry).unwrap() });
            }
        }
    }
    assert!(!found.is_empty(), "no {endings:?} file found: is the walk broken?");
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Panics with all complaints at once: one run shows the whole list.
fn report(rule: &str, complaints: &[String]) {
    assert!(complaints.is_empty(), "{rule}\n  {}\n", complaints.join("\n  "));
}

/// Rust text with comments, strings and character literals blanked out, line by line as before.
fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = vec![b' '; bytes.len()];
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text.as_bytes()[at..];
        let skipped = match rest {
            [b'/', b'/', ..] => find(rest, b"\n").unwrap_or(rest.len()),
            [b'/', b'*', ..] => find(rest, b"*/").map_or(rest.len(), |end| end + 2),
            [b'"', ..] => string_length(rest),
            [b'r', b'"' | b'#', ..] if at == 0 || !is_word(bytes[at - 1]) => raw_length(rest),
            // A literal, not a lifetime: 'x' or '\...'.
            [b'\'', b'\\', ..] => 2 + find(&rest[2..], b"'").map_or(0, |end| end + 1),
            [b'\'', _, b'\'', ..] => 3,
            _ => 0,
        };
        if skipped == 0 {
            code[at] = bytes[at];
        }
        let next = (at + skipped.max(1)).min(bytes.len());
        for index in at..next {
            if bytes[index] == b'\n' {
                code[index] = b'\n';
            }
        }
        at = next;
    }
    String::from_utf8_lossy(&code).into_owned()
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}

/// Length of the string literal at the start of `text`.
fn string_length(text: &[u8]) -> usize {
    let mut at = 1;
    while at < text.len() && text[at] != b'"' {
        at += if text[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

/// Length of the raw string literal at the start of `text`; 0 if it is a raw identifier.
fn raw_length(text: &[u8]) -> usize {
    let hashes = text[1..].iter().take_while(|byte| **byte == b'#').count();
    if text.get(1 + hashes) != Some(&b'"') {
        return 0;
    }
    let mut end = vec![b'"'];
    end.extend(std::iter::repeat_n(b'#', hashes));
    let body = 2 + hashes;
    find(&text[body..], &end).map_or(text.len(), |at| body + at + end.len())
}

/// Identifiers of a line, with what stands before each.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Every path in the text that starts at the crate's root: its segments, and its line.
fn crate_paths(code: &str, module: &[String]) -> Vec<(Vec<String>, usize)> {
    let flat: Vec<(usize, &str)> = code
        .lines()
        .enumerate()
        .flat_map(|(line, text)| tokens(text).map(move |t| (line, t)))
        .collect();
    let mut paths = Vec::new();
    for start in 0..flat.len() {
        let (line, token) = flat[start];
        let follows_path = start > 0 && flat[start - 1].1 == "::";
        let mut base = match token {
            "crate" if !follows_path => Vec::new(),
            "super" if !follows_path => module[..module.len().saturating_sub(1)].to_vec(),
            _ => continue,
        };
        let mut at = start + 1;
        while at + 1 < flat.len() && flat[at].1 == "::" && flat[at + 1].1 == "super" {
            base.pop();
            at += 2;
        }
        follow(&flat, at, &base, line, &mut paths);
    }
    paths
}

/// Reads `:: a :: b` or `:: { a::b, c }` from `at` on, below `base`. Returns where it ends.
fn follow(
    tokens: &[(usize, &str)],
    mut at: usize,
    base: &[String],
    line: usize,
    paths: &mut Vec<(Vec<String>, usize)>,
) -> usize {
    let mut path = base.to_vec();
    while at + 1 < tokens.len() && tokens[at].1 == "::" {
        if tokens[at + 1].1 == "{" {
            at += 2;
            while at < tokens.len() && tokens[at].1 != "}" {
                let (line, token) = tokens[at];
                let mut branch = path.clone();
                if token != "," {
                    branch.push(token.to_owned());
                }
                let named = token != ",";
                at += 1;
                if named {
                    at = follow(tokens, at, &branch, line, paths);
                }
            }
            return at + 1;
        }
        path.push(tokens[at + 1].1.to_owned());
        at += 2;
    }
    paths.push((path, line + 1));
    at
}

/// Words, `::`, and the marks that group imports.
fn tokens(line: &str) -> impl Iterator<Item = &str> {
    let mut rest = line;
    std::iter::from_fn(move || {
        loop {
            rest = rest.trim_start();
            let first = rest.chars().next()?;
            let length = if first.is_ascii_alphanumeric() || first == '_' {
                rest.bytes().take_while(|byte| is_word(*byte)).count()
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            let (token, after) = rest.split_at(length);
            rest = after;
            if length > 1 || token.bytes().all(|b| is_word(b) || b"{},:;".contains(&b)) {
                return Some(token);
            }
        }
    })
}

/// The module path of a file in `src/`: `src/plan/verify/mod.rs` is `plan::verify`.
fn module_path(path: &str) -> Vec<String> {
    let path = path.trim_start_matches("src/").trim_end_matches(".rs");
    path.split('/').filter(|part| *part != "mod").map(str::to_owned).collect()
}

#[test]
fn crates_depend_on_the_crates_that_the_house_allows() {
    let mut complaints = Vec::new();
    for (name, folder, allowed) in CRATES {
        let path = root().join(folder).join("Cargo.toml");
        let Ok(text) = fs::read_to_string(&path) else {
            complaints.push(format!("{folder}/Cargo.toml: there is no {name}"));
            continue;
        };
        let manifest: toml::Table = text.parse().unwrap();
        let ours = |table: &str| -> Vec<String> {
            let table = manifest.get(table).and_then(|table| table.as_table());
            let keys = table.into_iter().flat_map(|table| table.keys());
            keys.filter(|key| CRATES.iter().any(|(ours, ..)| ours == key)).cloned().collect()
        };
        for dependency in ours("dependencies").iter().chain(&ours("build-dependencies")) {
            if !allowed.contains(&dependency.as_str()) {
                complaints.push(format!("{folder}/Cargo.toml: {name} depends on {dependency}"));
            }
        }
        // Tests may reach further, but never for a leaf.
        for dependency in ours("dev-dependencies") {
            if dependency == "hwsim-cli" {
                complaints.push(format!("{folder}/Cargo.toml: {name} depends on a leaf"));
            }
        }
    }
    report("A crate depends on one that it must not know (CRATES in tests/house.rs):", &complaints);
}

#[test]
fn every_crate_of_the_workspace_is_in_the_table() {
    let manifest: toml::Table =
        fs::read_to_string(root().join("Cargo.toml")).unwrap().parse().unwrap();
    let members = manifest["workspace"]["members"].as_array().unwrap();
    let known: BTreeSet<&str> = CRATES.iter().map(|(_, folder, _)| *folder).collect();
    let complaints: Vec<_> = members
        .iter()
        .filter_map(|member| member.as_str())
        .filter(|member| !known.contains(member))
        .map(|member| format!("Cargo.toml: {member} has no place in the house"))
        .collect();
    report("Say in CRATES (tests/house.rs) what this crate may depend on:", &complaints);
}

/// If this fails, a rule or a permission is about something that is not there.
#[test]
fn every_place_that_the_tables_name_exists() {
    let sources = sources(&[".rs"]);
    let modules = MODULES.iter().map(|(module, _)| format!("src/{module}"));
    let places = [&CUDA_USERS[..], &RDMA_USERS, &SOCKET_USERS, &MAPPING_USERS, &UNSAFE_PLACES];
    let places = places.concat().into_iter().map(str::to_owned).chain(modules);
    let missing = |place: &String| !sources.iter().any(|source| source.path.starts_with(place));
    let complaints: Vec<_> =
        places.filter(missing).map(|place| format!("{place}: no file")).collect();
    report("A table of tests/house.rs names what does not exist:", &complaints);
}

#[test]
fn modules_import_what_the_house_allows() {
    let table: BTreeMap<&str, &[&str]> = MODULES.into_iter().collect();
    let mut complaints = Vec::new();
    for Source { path, text } in sources(&[".rs"]) {
        if !path.starts_with("src/") {
            continue;
        }
        let module = module_path(&path);
        let own = module[0].as_str();
        let Some(allowed) = table.get(own) else {
            complaints.push(format!("{path}: module `{own}` has no place in MODULES"));
            continue;
        };
        for (import, line) in crate_paths(&code_only(&text), &module) {
            let Some(target) = import.first().map(String::as_str) else { continue };
            let foreign = table.contains_key(target) && target != own;
            if foreign && !allowed.contains(&target) && *allowed != EVERYTHING {
                complaints.push(format!("{path}:{line}: `{own}` imports `{target}`"));
            }
            let concrete = import.get(1).is_some_and(|part| part == "peer" || part == "verbs");
            if own == "engine" && target == "transport" && concrete {
                let what = &import[1];
                complaints.push(format!("{path}:{line}: the engine names `transport::{what}`"));
            }
        }
    }
    report(
        "A module imports one that it must not know (MODULES in tests/house.rs). Move what is \
         shared down, or what joins them up into `communicator`:",
        &complaints,
    );
}

#[test]
fn only_the_places_that_speak_cuda_name_cudarc() {
    let mut complaints = Vec::new();
    for Source { path, text } in sources(&[".rs"]) {
        if !path.starts_with("src/") || CUDA_USERS.iter().any(|user| path.starts_with(user)) {
            continue;
        }
        for (line, text) in code_only(&text).lines().enumerate() {
            if words(text).any(|word| word == "cudarc") {
                complaints.push(format!("{path}:{}: names cudarc", line + 1));
            }
        }
    }
    report("CUDA is behind `gpu` and `transport::peer` (CUDA_USERS):", &complaints);
}

/// Every place in `src/` outside of `users` that names one of `forbidden`.
fn named_elsewhere(users: &[&str], forbidden: &[&str]) -> Vec<String> {
    let mut complaints = Vec::new();
    for Source { path, text } in sources(&[".rs"]) {
        if !path.starts_with("src/") || users.iter().any(|user| path.starts_with(user)) {
            continue;
        }
        for (line, text) in code_only(&text).lines().enumerate() {
            if let Some(word) = words(text).find(|word| forbidden.contains(word)) {
                complaints.push(format!("{path}:{}: names {word}", line + 1));
            }
        }
    }
    complaints
}

#[test]
fn only_the_bootstrap_opens_sockets() {
    let complaints = named_elsewhere(&SOCKET_USERS, &SOCKETS);
    report("Sockets are behind `bootstrap` (SOCKET_USERS in tests/house.rs):", &complaints);
}

#[test]
fn only_the_verbs_transport_speaks_rdma() {
    let complaints = named_elsewhere(&RDMA_USERS, &RDMA);
    report("RDMA is behind `transport::verbs` (RDMA_USERS in tests/house.rs):", &complaints);
}

#[test]
fn only_the_shared_views_map_files() {
    let complaints = named_elsewhere(&MAPPING_USERS, &MAPPING);
    report("Files are mapped in `shared::mapping` (MAPPING_USERS in tests/house.rs):", &complaints);
}

#[test]
fn unsafe_stands_only_where_the_style_allows() {
    let mut complaints = Vec::new();
    for Source { path, text } in sources(&[".rs"]) {
        if UNSAFE_PLACES.iter().any(|place| path.starts_with(place)) {
            continue;
        }
        for (line, text) in code_only(&text).lines().enumerate() {
            if words(text).any(|word| word == "unsafe") {
                complaints.push(format!("{path}:{}: unsafe", line + 1));
            }
        }
    }
    report("Unsafe code outside UNSAFE_PLACES (tests/house.rs):", &complaints);
}

#[test]
fn inline_assembly_stands_in_one_device_header() {
    let mut complaints = Vec::new();
    for Source { path, text } in sources(&[".cuh", ".cu"]) {
        for (line, text) in code_only(&text).lines().enumerate() {
            if !path.ends_with("/ptx.cuh") && words(text).any(|word| word == "asm") {
                complaints.push(format!("{path}:{}: inline assembly", line + 1));
            }
        }
    }
    report("Inline assembly outside kernels/cuda/ptx.cuh:", &complaints);
}

#[test]
fn files_and_lines_are_short() {
    let mut complaints = Vec::new();
    for Source { path, text } in sources(&[".rs", ".cuh", ".cu"]) {
        let lines = text.lines().count();
        if lines > LINES_MAX {
            complaints.push(format!("{path}: {lines} lines; split it by subject"));
        }
        for (line, text) in text.lines().enumerate() {
            let columns = text.chars().count();
            if columns > COLUMNS_MAX {
                complaints.push(format!("{path}:{}: {columns} columns", line + 1));
            }
        }
    }
    let limits = format!("Files have at most {LINES_MAX} lines of {COLUMNS_MAX} columns:");
    report(&limits, &complaints);
}

/// If this fails, a test is left out and nobody counts it: see `tests/tally`.
#[test]
fn what_tests_skip_is_listed_and_counted() {
    let mut complaints = Vec::new();
    let mut ignored = BTreeSet::new();
    for Source { path, text } in sources(&[".rs"]) {
        // Printed by a test that passes, nobody sees it.
        let printed = ["println!", "print!"].map(|name| format!("{name}(\"skipped"));
        let lines: Vec<_> = text.lines().map(str::trim_start).collect();
        for (number, line) in lines.iter().enumerate() {
            let place = format!("{path}:{}", number + 1);
            if printed.iter().any(|call| line.contains(call)) && !path.starts_with("tests/tally/") {
                complaints.push(format!("{place}: call `tally::skip`"));
            }
            if !line.starts_with("#[ignore") {
                continue;
            }
            let name = lines[number..].iter().find_map(|line| line.strip_prefix("fn "));
            let name = name.and_then(|rest| rest.split('(').next()).unwrap_or_default();
            ignored.insert(name.to_owned());
            if !line.starts_with("#[ignore = \"") {
                complaints.push(format!("{place}: `#[ignore]` without a reason"));
            }
        }
    }
    let last = |name: &String| name.rsplit("::").next().unwrap_or_default().to_owned();
    let listed: BTreeSet<_> = tally::List::committed().ignored.keys().map(last).collect();
    let differ = listed.symmetric_difference(&ignored);
    complaints.extend(differ.map(|name| format!("{name}: ignored, or listed, but not both")));
    report("What is skipped stands in tests/skips.toml:", &complaints);
}

#[test]
fn nothing_is_left_for_later() {
    // In parts, so that this file is not its own first finding.
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
    let macros = [concat!("to", "do!"), concat!("unimple", "mented!"), concat!("db", "g!")];
    let mut complaints = Vec::new();
    for Source { path, text } in sources(&[".rs", ".cuh", ".cu", ".toml", ".md"]) {
        for (line, text) in text.lines().enumerate() {
            let marked = words(text).any(|word| marks.contains(&word));
            if marked || macros.iter().any(|name| text.contains(name)) {
                complaints.push(format!("{path}:{}: {}", line + 1, text.trim()));
            }
        }
    }
    report("Finish it, or write down in a sentence why it is as it is:", &complaints);
}

#[test]
fn the_checker_sees_imports_and_ignores_prose() {
    let code = code_only(
        "use crate::{ring::Ring, plan::{a, b}}; // crate::engine\nlet x = \"crate::gpu\";\n\
         fn f<'a>(c: char) { c == '\"'; crate::error::Error; super::super::id::Rank; }\n\
         let r = r#\"crate::shared\"#;",
    );
    let module = ["topology".to_owned(), "import".to_owned()];
    let paths: BTreeSet<String> =
        crate_paths(&code, &module).into_iter().map(|(path, _)| path.join("::")).collect();
    let expected = ["error::Error", "id::Rank", "plan::a", "plan::b", "ring::Ring"];
    assert_eq!(paths.iter().map(String::as_str).collect::<Vec<_>>(), expected);
}
