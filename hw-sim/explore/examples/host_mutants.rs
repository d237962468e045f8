//! Prints `HOST-MUTANTS.md`: `cargo run --release -p hwsim-explore --example host_mutants >
//! hw-sim/explore/HOST-MUTANTS.md`, in the root of the repository. It copies the tracked files to
//! `target/host-mutants`, weakens all sites there, builds that copy once, and runs it with each
//! mutant in force: scenarios, unit tests of the library, and jobs on virtual hardware.

use hwsim_explore::mutant::host::{MODULE, Site, VARIABLE, rewrite, sites};
use hwsim_explore::scenario::run;
use hwsim_explore::{Kernels, Options, Scenario};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// Scenarios that run the engine, and seeds of each.
const TRIED: [(Scenario, u64); 15] = [
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
    (Scenario::Device, 20),
    (Scenario::DeviceFaults, 20),
    (Scenario::Members, 60),
    (Scenario::MembersFaults, 400),
];

/// Unit tests that are run: those of these modules.
const MODULES: [&str; 4] = ["engine::", "ring::", "shared::", "transport::"];

/// A job on virtual hardware.
struct Job {
    name: &'static str,
    of_hwsim: &'static [&'static str],
    settings: &'static [(&'static str, &'static str)],
    of_perf: &'static [&'static str],
}

const NODES: &[&str] = &["--machine", "pcie4 x 2", "--procs", "2"];
const SIZES: &[&str] = &["-b", "8", "-e", "256K", "-f", "32", "-n", "2", "-w", "0"];

const JOBS: [Job; 4] = [
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
        name: "device engines",
        of_hwsim: &["--machine", "ark", "--procs", "2"],
        settings: &[("RINGDOVE_ENGINE", "device")],
        of_perf: &["-g", "1"],
    },
];

const GAP: &str = "gap: nobody notices";

const HEAD: &str = "\
# Mutants of the host's code

Each row is one ordering, lap bit, credit, flag or check of the library's host code, weakened. All
sites are weakened in one copy of the source, and a variable says which
one is in force. The last column names what goes wrong with it: a scenario of `hwsim explore` and a
seed, a unit test of the library, or `ringdove perf all-reduce` on virtual hardware; or it says why
none does: *equivalent* ones change nothing that anybody can see; a *gap* is one that somebody
should notice. Written by `cargo run --release -p hwsim-explore --example host_mutants`; a test
compares sites and reasons with the code, and does not build the mutants anew.

| file | what | who notices |
|---|---|---|";

fn main() -> ExitCode {
    let result = match std::env::args().nth(1).as_deref() {
        None => print_table(),
        Some("probe") => {
            probe();
            Ok(())
        }
        Some(other) => Err(format!("expected probe or nothing, found {other}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("host_mutants: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// In the copy: prints the first scenario and seed that goes wrong, or nothing.
fn probe() {
    std::panic::set_hook(Box::new(|_| {}));
    for (scenario, seeds) in TRIED {
        for seed in 0..seeds {
            let options = Options::draw(scenario, seed);
            let outcome = std::panic::catch_unwind(|| run(&Kernels::committed(), &options).is_ok());
            if outcome.ok() != Some(true) {
                return println!("{} {seed}", scenario.name());
            }
        }
    }
}

/// The copy, built.
struct Built {
    tree: PathBuf,
    probe: PathBuf,
    tests: PathBuf,
    tool: PathBuf,
    hwsim: PathBuf,
}

fn print_table() -> Result<(), String> {
    let sites = sites()?;
    let built = Built::new(&sites)?;
    if let Some(seen) = built.notices(0)? {
        return Err(format!("something goes wrong without a mutant: {seen}"));
    }
    println!("{HEAD}");
    for (number, site) in (1..).zip(&sites) {
        let seen = built.notices(number)?;
        let verdict = seen.unwrap_or_else(|| site.reason.unwrap_or(GAP).to_owned());
        println!("| `{}` | {} | {verdict} |", site.file, site.what);
    }
    Ok(())
}

impl Built {
    fn new(sites: &[Site]) -> Result<Self, String> {
        let tree = PathBuf::from("target/host-mutants");
        let target = std::path::absolute("target").map_err(|error| error.to_string())?;
        copy_tree(&tree, sites)?;
        let build = |arguments: &[&str]| {
            let mut command = Command::new("cargo");
            command.current_dir(&tree).env("CARGO_TARGET_DIR", &target).args(arguments);
            let output = command.stderr(Stdio::inherit()).output().map_err(|it| it.to_string())?;
            match output.status.success() {
                true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
                false => Err(format!("cargo {}: {}", arguments.join(" "), output.status)),
            }
        };
        let json = "--message-format=json-render-diagnostics";
        let example =
            ["build", "--release", "-p", "hwsim-explore", "--example", "host_mutants", json];
        let probe = executable(&build(&example)?, "host_mutants")?;
        let tests = ["test", "--release", "-p", "ringdove", "--lib", "--no-run", json];
        let tests = executable(&build(&tests)?, "ringdove")?;
        let tool = ["build", "--release", "-p", "ringdove", "--bin", "ringdove", json];
        let tool = executable(&build(&tool)?, "ringdove")?;
        // The next build of this tree would replace them.
        let keep = |from: PathBuf, name: &str| {
            let kept = target.join("host-mutants").join(name);
            std::fs::copy(from, &kept).map_err(|error| error.to_string())?;
            Ok::<_, String>(kept)
        };
        let (tool, probe) = (keep(tool, "ringdove")?, keep(probe, "probe")?);
        let hwsim = target.join("release/hwsim");
        if !hwsim.exists() {
            return Err("build hwsim and its libraries first: cargo build --release".to_owned());
        }
        Ok(Self { tree, probe, tests, tool, hwsim })
    }

    /// What goes wrong with this mutant in force.
    fn notices(&self, number: u32) -> Result<Option<String>, String> {
        let command = |program: &Path| {
            let mut command = Command::new("timeout");
            command.arg("120").arg(program).env(VARIABLE, number.to_string());
            command.current_dir(&self.tree);
            command
        };
        let output = |command: &mut Command| command.output().map_err(|error| error.to_string());
        let tested = output(command(&self.tests).args(MODULES))?;
        if !tested.status.success() {
            let text = String::from_utf8_lossy(&tested.stdout);
            let failed = text.lines().find_map(|line| line.strip_suffix(" ... FAILED"));
            let name = failed.and_then(|line| line.strip_prefix("test "));
            return Ok(Some(format!("test `{}`", name.unwrap_or("that hangs"))));
        }
        let probed = output(command(&self.probe).arg("probe"))?;
        let text = String::from_utf8_lossy(&probed.stdout).trim().to_owned();
        if !text.is_empty() || !probed.status.success() {
            return Ok(Some(if text.is_empty() { "a scenario hangs".to_owned() } else { text }));
        }
        for Job { name, of_hwsim, settings, of_perf } in JOBS {
            let mut job = command(&self.hwsim);
            job.arg("run").args(of_hwsim).arg("--").arg(&self.tool).args(["perf", "all-reduce"]);
            job.args(of_perf).args(SIZES).env("RINGDOVE_TIMEOUT_MS", "5000");
            job.envs(settings.iter().copied());
            let ended = output(&mut job)?;
            if !ended.status.success() {
                return Ok(Some(format!("perf, {name}")));
            }
        }
        Ok(None)
    }
}

/// All tracked files, those with sites changed. A file that is as it was stays untouched.
fn copy_tree(tree: &Path, sites: &[Site]) -> Result<(), String> {
    let listed = Command::new("git").arg("ls-files").output().map_err(|error| error.to_string())?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    // What an earlier copy had, and was moved since, would be built with the rest.
    let stale = |folder: &str| remove_stale(tree, &tree.join(folder), &listed);
    ["src", "hw-sim/explore/src"].into_iter().try_for_each(stale)?;
    let with_sites: BTreeSet<&str> = sites.iter().map(|site| site.file).collect();
    for name in listed.lines() {
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
