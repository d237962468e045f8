//! Prints `HOST-MUTANTS.md`: `cargo run --release -p hwsim-explore --example host_mutants ROWS`
//! in the root of the repository, whose output becomes `hw-sim/explore/HOST-MUTANTS.md`. `ROWS` is
//! a file that keeps rows as they come, so that a run which was cut short can go on. It copies the
//! tracked files to `target/host-mutants`, weakens all sites there, builds that copy once, in
//! `target/host-mutants-build`, and runs it with each mutant in force: unit tests of the library,
//! its tests of the same part, scenarios, and jobs on virtual hardware. What noticed a mutant in
//! the present table is tried first. What fails must fail once more, and be fine without the
//! mutant: a busy machine kills no mutant.
//!
//! The virtual hardware must have been built: `cargo build --release --workspace --bins`.

use hwsim_explore::mutant::host::{MODULE, Site, VARIABLE, rewrite, sites};
use hwsim_explore::scenario::run;
use hwsim_explore::{Kernels, Options, Scenario};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// The table as it is.
const TABLE: &str = include_str!("../HOST-MUTANTS.md");

/// Scenarios that run the engine, and seeds of each.
const OF_ENGINE: &[(Scenario, u64)] = &[
    (Scenario::Ring, 30),
    (Scenario::Grants, 20),
    (Scenario::Collectives, 40),
    (Scenario::Groups, 12),
    (Scenario::User, 10),
    (Scenario::Experts, 6),
    (Scenario::Abort, 30),
    (Scenario::CollectivesFaults, 30),
    (Scenario::GroupsFaults, 12),
    (Scenario::Expiry, 10),
    (Scenario::Graphs, 2),
];

/// The one that runs code which hands words over.
const OF_WORDS: &[(Scenario, u64)] = &[(Scenario::Words, 60)];

/// Scenarios that run the code around device engines.
const OF_DEVICE: &[(Scenario, u64)] =
    &[(Scenario::Words, 60), (Scenario::Device, 20), (Scenario::DeviceFaults, 20)];

/// Scenarios that run the bootstrap.
const OF_BOOTSTRAP: &[(Scenario, u64)] =
    &[(Scenario::Members, 60), (Scenario::Absences, 100), (Scenario::MembersFaults, 400)];

/// Scenarios that connect adapters.
const OF_CONNECTIONS: &[(Scenario, u64)] =
    &[(Scenario::Connections, 60), (Scenario::ConnectionsFaults, 200)];

/// Who may notice mutants of a part of the source.
struct Part {
    /// Where the part is: the first that fits counts.
    under: &'static str,
    /// Tests of the library, by file, and which of them: all where none is named.
    tests: &'static [(&'static str, &'static [&'static str])],
    scenarios: &'static [(Scenario, u64)],
    /// Jobs on virtual hardware may notice it.
    jobs: bool,
}

const PARTS: [Part; 12] = [
    Part { under: "src/shared/", tests: &[], scenarios: OF_WORDS, jobs: false },
    Part { under: "src/flight/", tests: &[], scenarios: OF_WORDS, jobs: false },
    Part { under: "src/engine/sleep.rs", tests: &[], scenarios: OF_WORDS, jobs: false },
    Part { under: "src/ring/", tests: &[("ring", &[])], scenarios: OF_ENGINE, jobs: false },
    Part { under: "src/engine/device/", tests: &[], scenarios: OF_DEVICE, jobs: true },
    Part {
        under: "src/engine/",
        tests: &[("engine", &[]), ("engine_oracle", &[]), ("engine_threads", &[])],
        scenarios: OF_ENGINE,
        jobs: true,
    },
    Part {
        under: "src/transport/verbs/",
        tests: &[("verbs", &[]), ("verbs_order", &[])],
        scenarios: &[],
        jobs: true,
    },
    Part { under: "src/transport/", tests: &[], scenarios: &[], jobs: true },
    Part { under: "src/bootstrap/", tests: &[], scenarios: OF_BOOTSTRAP, jobs: false },
    Part {
        under: "src/communicator/connect/handshake",
        tests: &[],
        scenarios: OF_CONNECTIONS,
        jobs: false,
    },
    Part {
        under: "src/communicator/",
        tests: &[
            ("failures", &["abort_wakes_every_rank"]),
            ("aborts", &["an_abort_ends_the_kernels_of_every_rank"]),
            ("nodes", &["a_rank_that_is_dropped_waits_until_its_messages_were_read"]),
        ],
        scenarios: &[],
        jobs: true,
    },
    Part { under: "src/", tests: &[], scenarios: &[], jobs: false },
];

/// Files of tests that are built.
const TEST_FILES: [&str; 9] = [
    "ring",
    "engine",
    "engine_oracle",
    "engine_threads",
    "verbs",
    "verbs_order",
    "failures",
    "aborts",
    "nodes",
];

/// A job on virtual hardware.
struct Job {
    name: &'static str,
    of_hwsim: &'static [&'static str],
    settings: &'static [(&'static str, &'static str)],
    of_perf: &'static [&'static str],
}

const NODES: &[&str] = &["--machine", "pcie4 x 2", "--procs", "2"];
const SIZES: &[&str] = &["-b", "8", "-e", "256K", "-f", "32", "-n", "2", "-w", "0"];

const JOBS: [Job; 5] = [
    Job {
        name: "one node",
        of_hwsim: &["--machine", "pcie4"],
        settings: &[("RINGDOVE_STORES", "never")],
        of_perf: &["-g", "4"],
    },
    Job { name: "two nodes", of_hwsim: NODES, settings: &[], of_perf: &["-g", "2"] },
    Job {
        name: "two nodes, short queues, immediate data",
        of_hwsim: NODES,
        settings: &[("RINGDOVE_VERBS_ORDER", "immediate"), ("RINGDOVE_QUEUE_DEPTH", "16")],
        of_perf: &["-g", "1"],
    },
    Job {
        name: "two nodes, late messages",
        of_hwsim: &[
            "--machine",
            "pcie4 x 2",
            "--procs",
            "2",
            "--fault",
            "seed=3",
            "--fault",
            "*:delay=5000",
        ],
        settings: &[("RINGDOVE_RETRY_TIMEOUT_MS", "500")],
        of_perf: &["-g", "1"],
    },
    Job {
        name: "device engines",
        of_hwsim: &["--machine", "ark", "--procs", "2"],
        settings: &[("RINGDOVE_ENGINE", "device")],
        of_perf: &["-g", "1"],
    },
];

const GAP: &str = "gap: nobody notices";

/// What stands above the rows, with DATE and COMMIT for those of the run.
const HEAD: &str = "\
# Mutants of the host's code

Each row is one ordering, lap bit, credit, flag or check of the library's host code, weakened. All
sites are weakened in one copy of the source, and a variable says which mutant is in force. The last
column names what fails with it: a unit test of the library, an integration test (with its file), a
scenario of `hwsim explore` and a seed, or `ringdove perf all-reduce` on virtual hardware. Or it
says why nothing does: *equivalent* mutants change nothing that anybody can see; a *gap* is one that
something should notice.

All rows are of one run of one commit, COMMIT, which ended on DATE: `cargo run --release -p
hwsim-explore --example host_mutants ROWS`. What failed was run twice with the mutant, and once
without it. A test compares sites and reasons with the code; it does not run the mutants again.

| file | what | who notices |
|---|---|---|";

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["probe", scenario, first, end] => probe(scenario, first, end),
        [rows] => print_table(Path::new(rows), ""),
        [rows, part] => print_table(Path::new(rows), part),
        _ => Err(format!("expected ROWS [PART], or probe SCENARIO FIRST END, found {arguments:?}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("host_mutants: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// In the copy: prints the first seed of a scenario that goes wrong, or nothing.
fn probe(scenario: &str, first: &str, end: &str) -> Result<(), String> {
    std::panic::set_hook(Box::new(|_| {}));
    let scenario = Scenario::named(scenario).ok_or("no such scenario")?;
    let number = |text: &str| text.parse::<u64>().map_err(|error| error.to_string());
    for seed in number(first)?..number(end)? {
        let options = Options::draw(scenario, seed);
        let outcome = std::panic::catch_unwind(|| run(&Kernels::committed(), &options).is_ok());
        if outcome.ok() != Some(true) {
            println!("{} {seed}", scenario.name());
            break;
        }
    }
    Ok(())
}

/// Something that may notice mutants, and how its name stands in the table.
#[derive(Clone, Debug)]
enum Witness {
    /// Unit tests of a module, or one test.
    Unit(String),
    /// A test of the library, by file; all tests of the file where none is named.
    Test(String, Option<String>),
    /// Seeds of a scenario.
    Seeds(Scenario, u64, u64),
    /// A job, by its place in [`JOBS`].
    Perf(usize),
}

impl Witness {
    /// What the table names.
    fn of_verdict(verdict: &str) -> Option<Self> {
        if let Some(name) = verdict.strip_prefix("test `").and_then(|it| it.strip_suffix('`')) {
            return Some(Self::Unit(name.to_owned()));
        }
        if let Some(name) = verdict.strip_prefix("tests/").and_then(|it| it.strip_suffix('`')) {
            let (file, name) = name.split_once(".rs `")?;
            return Some(Self::Test(file.to_owned(), Some(name.to_owned())));
        }
        if let Some(name) = verdict.strip_prefix("perf, ") {
            return JOBS.iter().position(|job| job.name == name).map(Self::Perf);
        }
        let (name, seed) = verdict.split_once(' ')?;
        let seed = seed.parse().ok()?;
        Some(Self::Seeds(Scenario::named(name)?, seed, seed + 1))
    }

    /// All of a site, the quick ones first.
    fn of_site(site: &Site) -> Vec<Self> {
        let part = PARTS.iter().find(|part| site.file.starts_with(part.under));
        let part = part.expect("the last part is all of the source");
        let module = site.file.trim_start_matches("src/").split('/').next().unwrap_or_default();
        let mut all = vec![Self::Unit(format!("{module}::"))];
        for (file, names) in part.tests {
            let named = names.iter().map(|name| Some((*name).to_owned()));
            let names: Vec<_> = if names.is_empty() { vec![None] } else { named.collect() };
            all.extend(names.into_iter().map(|name| Self::Test((*file).to_owned(), name)));
        }
        // Of those that have a reason fewer seeds, and no jobs.
        let share = if site.reason.is_some() { 4 } else { 1 };
        let seeds = part.scenarios.iter().map(|(it, seeds)| (it, seeds.div_ceil(share)));
        all.extend(seeds.map(|(it, seeds)| Self::Seeds(*it, 0, seeds)));
        all.extend((0..JOBS.len()).filter(|_| part.jobs && share == 1).map(Self::Perf));
        all
    }
}

/// The copy, built.
struct Built {
    tree: PathBuf,
    probe: PathBuf,
    unit: PathBuf,
    tests: BTreeMap<String, PathBuf>,
    tool: PathBuf,
    hwsim: PathBuf,
}

/// Prints the table of the sites whose file has `part` in its name. Rows are kept as they come:
/// where a run was cut short, the next one of the same commit takes them from there.
fn print_table(rows: &Path, part: &str) -> Result<(), String> {
    let sites = sites()?;
    let commit = Command::new("git").args(["describe", "--always", "--dirty"]).output();
    let commit = commit.map_err(|error| error.to_string())?.stdout;
    let first = format!("commit {}", String::from_utf8_lossy(&commit).trim());
    let mut kept = std::fs::read_to_string(rows).unwrap_or_else(|_| format!("{first}\n"));
    if kept.lines().next() != Some(&first) {
        return Err(format!("{} is of another commit than {first}", rows.display()));
    }
    let built = Built::new(&sites)?;
    for (number, site) in (1..).zip(&sites).filter(|(_, site)| site.file.contains(part)) {
        let start = row_start(site);
        if kept.lines().any(|row| row.starts_with(&start)) {
            continue;
        }
        let seen = built.notices(number, site)?;
        let verdict = seen.unwrap_or_else(|| site.reason.unwrap_or(GAP).to_owned());
        eprintln!("mutant {number} of {}: {verdict}", sites.len());
        kept.push_str(&format!("{start}{verdict} |\n"));
        std::fs::write(rows, &kept).map_err(|error| error.to_string())?;
    }
    let date = Command::new("date").args(["-u", "+%F"]).output().map_err(|it| it.to_string())?;
    let date = String::from_utf8_lossy(&date.stdout).trim().to_owned();
    let commit = first.trim_start_matches("commit ");
    println!("{}", HEAD.replace("DATE", &date).replace("COMMIT", &format!("`{commit}`")));
    let row = |site| kept.lines().find(|row| row.starts_with(&row_start(site)));
    sites.iter().filter_map(row).for_each(|row| println!("{row}"));
    Ok(())
}

/// How the row of a site begins.
fn row_start(site: &Site) -> String {
    format!("| `{}` | {} | ", site.file, site.what)
}

/// The verdict of the present table on a site.
fn present(site: &Site) -> Option<&'static str> {
    let start = row_start(site);
    TABLE.lines().find_map(|row| row.strip_prefix(&start)?.strip_suffix(" |"))
}

impl Built {
    fn new(sites: &[Site]) -> Result<Self, String> {
        let tree = PathBuf::from("target/host-mutants");
        let target = std::path::absolute("target").map_err(|error| error.to_string())?;
        copy_tree(&tree, sites)?;
        // A build folder of its own: packages of the copy have the names of those of the tree, and
        // cargo would take the ones for the others.
        let of_copy = target.join("host-mutants-build");
        let build = |arguments: &[&str]| {
            let mut command = Command::new("cargo");
            command.current_dir(&tree).env("CARGO_TARGET_DIR", &of_copy).args(arguments);
            let output = command.stderr(Stdio::inherit()).output().map_err(|it| it.to_string())?;
            match output.status.success() {
                true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
                false => Err(format!("cargo {}: {}", arguments.join(" "), output.status)),
            }
        };
        let json = "--message-format=json-render-diagnostics";
        // The next build would replace them. Tests look for commands in the folder above their own.
        let (bin, deps) = (tree.join("built"), tree.join("built/deps"));
        std::fs::create_dir_all(&deps).map_err(|error| error.to_string())?;
        let keep = |from: PathBuf, to: PathBuf| {
            // One that runs cannot be written over.
            let _ = std::fs::remove_file(&to);
            std::fs::copy(from, &to).map_err(|error| error.to_string())?;
            std::path::absolute(to).map_err(|error| error.to_string())
        };
        let release = target.join("release");
        if !release.join("hwsim").exists() {
            return Err("build hwsim and its libraries first: cargo build --release".to_owned());
        }
        for entry in std::fs::read_dir(&release).map_err(|error| error.to_string())?.flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            if path.is_file() && (name.contains(".so") || !name.contains('.')) {
                keep(path, bin.join(&*name))?;
            }
        }
        let example =
            ["build", "--release", "-p", "hwsim-explore", "--example", "host_mutants", json];
        let probe = keep(executable(&build(&example)?, "host_mutants")?, bin.join("probe"))?;
        let mut arguments = vec!["test", "--release", "-p", "ringdove", "--lib", "--no-run", json];
        arguments.extend(TEST_FILES.iter().flat_map(|file| ["--test", file]));
        let built = build(&arguments)?;
        let unit = keep(executable(&built, "ringdove")?, deps.join("unit"))?;
        let mut tests = BTreeMap::new();
        for file in TEST_FILES {
            let kept = keep(executable(&built, file)?, deps.join(file))?;
            tests.insert(file.to_owned(), kept);
        }
        let tool = ["build", "--release", "-p", "ringdove", "--bin", "ringdove", json];
        let tool = keep(executable(&build(&tool)?, "ringdove")?, bin.join("ringdove"))?;
        let hwsim = std::path::absolute(bin.join("hwsim")).map_err(|error| error.to_string())?;
        Ok(Self { tree, probe, unit, tests, tool, hwsim })
    }

    /// What goes wrong with this mutant in force.
    fn notices(&self, number: u32, site: &Site) -> Result<Option<String>, String> {
        let hint = present(site).and_then(Witness::of_verdict);
        for witness in hint.into_iter().chain(Witness::of_site(site)) {
            let Some((verdict, exact)) = self.ask(&witness, number)? else { continue };
            // Once more, and not without it.
            let again = self.ask(&exact, number)?.is_some();
            if again && self.ask(&exact, 0)?.is_none() {
                return Ok(Some(verdict));
            }
            eprintln!("mutant {number}: {verdict} does not fail again, or without it, too");
        }
        Ok(None)
    }

    /// What goes wrong, and the witness of that alone.
    fn ask(&self, witness: &Witness, number: u32) -> Result<Option<(String, Witness)>, String> {
        let command = |program: &Path| {
            let mut command = Command::new("timeout");
            command.arg("200").arg(program).env(VARIABLE, number.to_string());
            command.current_dir(&self.tree);
            command
        };
        let output = |command: &mut Command| command.output().map_err(|error| error.to_string());
        match witness {
            Witness::Unit(filter) => {
                let failed = failed_test(&output(command(&self.unit).arg(filter))?);
                let exact = |name: String| (format!("test `{name}`"), Witness::Unit(name));
                Ok(failed.map(exact))
            }
            Witness::Test(file, name) => {
                let Some(test) = self.tests.get(file) else { return Ok(None) };
                let failed = failed_test(&output(command(test).args(name))?);
                Ok(failed.map(|name| {
                    let verdict = format!("tests/{file}.rs `{name}`");
                    (verdict, Witness::Test(file.clone(), Some(name)))
                }))
            }
            Witness::Seeds(scenario, first, end) => {
                let mut probe = command(&self.probe);
                probe.args(["probe", scenario.name(), &first.to_string(), &end.to_string()]);
                let probed = output(&mut probe)?;
                let text = String::from_utf8_lossy(&probed.stdout).trim().to_owned();
                if !probed.status.success() {
                    return Ok(Some((format!("{} hangs", scenario.name()), witness.clone())));
                }
                let exact = Witness::of_verdict(&text);
                Ok(exact.map(|exact| (text, exact)))
            }
            Witness::Perf(at) => {
                let Job { name, of_hwsim, settings, of_perf } = &JOBS[*at];
                let mut job = command(&self.hwsim);
                job.arg("run").args(*of_hwsim).arg("--").arg(&self.tool);
                job.args(["perf", "all-reduce"]).args(*of_perf).args(SIZES);
                job.env("RINGDOVE_TIMEOUT_MS", "20000").envs(settings.iter().copied());
                let is_fine = output(&mut job)?.status.success();
                Ok((!is_fine).then(|| (format!("perf, {name}"), witness.clone())))
            }
        }
    }
}

/// The first test that failed, or that it hung.
fn failed_test(output: &std::process::Output) -> Option<String> {
    if output.status.success() {
        return None;
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let failed =
        |line: &str| Some(line.strip_suffix(" ... FAILED")?.strip_prefix("test ")?.to_owned());
    let running = || {
        // One that was not ended when its time was over: of those that are not told of.
        let name = |line: &'_ str| {
            Some(line.strip_prefix("test ")?.split_once(" has been running")?.0.to_owned())
        };
        text.lines().find_map(name)
    };
    let name = text.lines().find_map(failed).or_else(running);
    Some(name.unwrap_or_else(|| "that hangs".to_owned()))
}

/// The copy lies below this tree, whose settings count for it, too.
const CARGO_SETTINGS: &str = ".cargo/config.toml";

/// All tracked files, those with sites changed. A file that is as it was stays untouched.
fn copy_tree(tree: &Path, sites: &[Site]) -> Result<(), String> {
    let listed = Command::new("git").arg("ls-files").output().map_err(|error| error.to_string())?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    // What an earlier copy had, and was moved since, would be built with the rest.
    let stale = |folder: &str| remove_stale(tree, &tree.join(folder), &listed);
    ["src", "hw-sim/explore/src"].into_iter().try_for_each(stale)?;
    let with_sites: BTreeSet<&str> = sites.iter().map(|site| site.file).collect();
    // Cargo would read the settings of both trees, add their flags up, and build everything anew.
    let _ = std::fs::remove_file(tree.join(CARGO_SETTINGS));
    for name in listed.lines().filter(|name| *name != CARGO_SETTINGS) {
        let Ok(bytes) = std::fs::read(name) else { continue };
        let bytes = match (with_sites.contains(name), name) {
            (true, _) => rewrite(sites, name, &text_of(name, bytes)?)?.into_bytes(),
            (false, "src/lib.rs") => {
                format!("{}pub mod host_mutant;\n", text_of(name, bytes)?).into_bytes()
            }
            _ => bytes,
        };
        write(&tree.join(name), &bytes)?;
    }
    write(&tree.join("src/host_mutant.rs"), MODULE.trim_start().as_bytes())
}

/// Removes files below a folder of the copy that are not tracked.
fn remove_stale(tree: &Path, folder: &Path, listed: &str) -> Result<(), String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    for entry in entries.filter_map(Result::ok) {
        let path = entry.path();
        let name = path.strip_prefix(tree).map_err(|error| error.to_string())?;
        if path.is_dir() {
            remove_stale(tree, &path, listed)?;
        } else if !listed.lines().any(|line| Path::new(line) == name) {
            std::fs::remove_file(&path).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

fn text_of(name: &str, bytes: Vec<u8>) -> Result<String, String> {
    String::from_utf8(bytes).map_err(|error| format!("{name}: {error}"))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    if std::fs::read(path).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    let parent = path.parent().expect("a file of the tree");
    std::fs::create_dir_all(parent).map_err(|error| error.to_string())?;
    std::fs::write(path, bytes).map_err(|error| format!("{}: {error}", path.display()))
}

/// The executable of a target, from cargo's messages.
fn executable(messages: &str, target: &str) -> Result<PathBuf, String> {
    let of_target = messages.lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_it = message["target"]["name"] == target;
        message["executable"].as_str().filter(|_| is_it).map(PathBuf::from)
    });
    of_target.ok_or_else(|| format!("cargo names no executable of {target}"))
}
