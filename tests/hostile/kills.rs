//! Processes killed at random moments with the signal that nobody can catch: nothing of a job may
//! stay behind. If this fails, killed jobs fill machines with processes and folders.
//!
//! `RINGDOVE_FUZZ_CASES` makes the test longer, `RINGDOVE_FUZZ_SEED` plays one case again.

use crate::hardware::{hwsim, tool};
use crate::mutation::{CASES, SEED};
use fastrand::Rng;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Kills of a usual test run; half of them at new moments each time.
const USUAL_CASES: u64 = 8;
/// Processes of the job carry this in their environment.
const MARK: &str = "RINGDOVE_TEST_KILLED";
/// How long all of a job may take to be gone.
const GONE: Duration = Duration::from_secs(30);

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    /// `hwsim run`.
    Launcher,
    /// One of the processes that it started.
    Rank,
    /// All of them at once.
    Ranks,
    /// `hwsim run`, and then one that it started.
    Both,
    /// What stands by to tidy up, and then `hwsim run` is told to end: its own way has to do.
    Tidier,
}

/// A process of the job.
#[derive(Clone, Debug)]
struct Process {
    pid: i32,
    command: String,
}

/// Every process whose environment has the mark, except this one.
fn processes(mark: &str) -> Vec<Process> {
    let own = std::process::id() as i32;
    let numbers = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        entry.ok()?.file_name().to_str()?.parse::<i32>().ok().filter(|pid| *pid != own)
    });
    let marked = |pid: i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        let wanted = format!("{MARK}={mark}");
        environment.split(|byte| *byte == 0).find(|entry| *entry == wanted.as_bytes())?;
        let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        Some(Process { pid, command: String::from_utf8_lossy(&command).replace('\0', " ") })
    };
    numbers.filter_map(marked).collect()
}

/// Names of everything below a folder.
fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        found.push(entry.path().display().to_string());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(files(&entry.path()));
        }
    }
    found
}

/// Lines of a file of the system that speak of the job's folder.
fn lines_about(file: &str, folder: &Path) -> Vec<String> {
    let folder = folder.display().to_string();
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().filter(|line| line.contains(&folder)).map(str::to_owned).collect()
}

/// What is left of the job.
fn leftovers(mark: &str, folder: &Path, shared_before: &[String]) -> Vec<String> {
    let mut left: Vec<String> = processes(mark)
        .into_iter()
        .map(|process| format!("process {}: {}", process.pid, process.command))
        .collect();
    left.extend(files(folder).into_iter().map(|file| format!("file {file}")));
    let ours = |name: &String| name.contains("hwsim") || name.contains("ringdove");
    let new = files(Path::new("/dev/shm"));
    let new = new.into_iter().filter(ours).filter(|name| !shared_before.contains(name));
    left.extend(new.map(|file| format!("shared memory {file}")));
    for file in ["/proc/self/mountinfo", "/proc/net/unix"] {
        left.extend(lines_about(file, folder).into_iter().map(|line| format!("{file}: {line}")));
    }
    left
}

/// Starts a job of two nodes, whose ranks work until they are told otherwise.
fn start(mark: &str, folder: &Path, machine: &str, procs: u32) -> Child {
    let mut command = hwsim();
    command.args(["run", "--quiet", "--grace", "1", "--machine", machine]);
    command.args(["--procs", &procs.to_string(), "--"]).arg(tool("ringdove"));
    command.args(["perf", "all-reduce", "-b", "4K", "-e", "4K", "-n", "1000000", "-c", "0"]);
    command.env(MARK, mark).env("TMPDIR", folder).env("RINGDOVE_TIMEOUT_MS", "5000");
    command.env("RINGDOVE_BOOTSTRAP_TIMEOUT_MS", "20000");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

fn end(pid: i32) {
    signal("KILL", pid);
}

fn signal(name: &str, pid: i32) {
    let mut kill = Command::new("bash");
    kill.args(["-c", &format!("kill -{name} {pid}")]).stderr(Stdio::null());
    // Who has ended meanwhile cannot be told.
    let _ = kill.status().expect("bash is there");
}

/// Kills at one moment, and looks for what is left.
fn play(seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let victims = [Victim::Launcher, Victim::Rank, Victim::Ranks, Victim::Both, Victim::Tidier];
    let victim = rng.choice(victims).unwrap();
    let (machine, procs) = rng.choice([("pcie4", 2), ("pcie4 x 2", 2), ("ark x 2", 2)]).unwrap();
    let delay = Duration::from_millis(rng.u64(0..2500));
    let folder = tempfile::tempdir().unwrap();
    let shared_before = files(Path::new("/dev/shm"));
    let mark = format!("{}-{seed}", std::process::id());
    let mut launcher = start(&mark, folder.path(), machine, procs);
    std::thread::sleep(delay);
    let own = launcher.id() as i32;
    let is = |process: &Process, what: &str| process.command.contains(what);
    let all = processes(&mark);
    let ranks: Vec<i32> = all
        .iter()
        .filter(|process| process.pid != own && !is(process, " tidy "))
        .map(|process| process.pid)
        .collect();
    match victim {
        Victim::Launcher => end(own),
        Victim::Rank => rng.choice(&ranks).into_iter().for_each(|pid| end(*pid)),
        Victim::Ranks => ranks.iter().for_each(|pid| end(*pid)),
        Victim::Both => {
            end(own);
            rng.choice(&ranks).into_iter().for_each(|pid| end(*pid));
        }
        Victim::Tidier => {
            let tidier = all.iter().find(|process| is(process, " tidy "));
            tidier.into_iter().for_each(|process| end(process.pid));
        }
    }
    // Where there was nobody to kill yet, or the job does not notice, it is told to end: more than
    // once, since the first time it wants to end well.
    let tells = matches!(victim, Victim::Tidier) || ranks.is_empty();
    let started = Instant::now();
    let mut told = Duration::ZERO;
    let mut ended = false;
    loop {
        if tells && !ended && started.elapsed() >= told {
            told += Duration::from_secs(1);
            signal("TERM", own);
        }
        // Reaped, so that it is no process any more.
        ended |= launcher.try_wait().unwrap().is_some();
        let left = leftovers(&mark, folder.path(), &shared_before);
        if ended && left.is_empty() {
            return Ok(());
        }
        if started.elapsed() > GONE {
            processes(&mark).iter().for_each(|process| end(process.pid));
            let _ = launcher.wait();
            let left = left.join("\n  ");
            return Err(format!("{victim:?} of {machine} after {delay:?}; left:\n  {left}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn killed_jobs_leave_nothing_behind() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let fresh = 1_000_000 + since.as_secs() % 1_000_000 * 1000;
    let cases = number(CASES).unwrap_or(USUAL_CASES);
    let seeds: Vec<u64> = match number(SEED) {
        Some(seed) => vec![seed],
        None => (0..cases / 2).chain(fresh..fresh + cases - cases / 2).collect(),
    };
    let test = "kills::killed_jobs_leave_nothing_behind";
    for seed in seeds {
        println!("seed {seed}");
        play(seed).unwrap_or_else(|why| {
            panic!("{why}\nagain: {SEED}={seed} cargo test --release --test hostile {test}")
        });
    }
}
