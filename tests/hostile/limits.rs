//! Limits of the system: files, locked memory, processes, address space, folders that cannot be
//! written; many lives of communicators in one process; the smallest settings on one processor.
//! If this fails, users of containers and batch systems see crashes and hangs instead of the
//! limit's name.

use crate::hardware::engines::on_engines;
use crate::hardware::{
    World, contexts, on_machine, on_strict_drivers, run_bounded, settings, sum, tool,
};
use crate::mutation::CASES;
use cudarc::driver::{CudaContext, result};
use ringdove::Settings;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Far above what a run under a limit takes; above every wait of the library's own.
const LIMITED_TIME: Duration = Duration::from_secs(100);
/// Lives of a communicator on each engine, beside the first ones; `RINGDOVE_FUZZ_CASES` says
/// another number.
const CYCLES: u64 = 30;
/// After so many lives a process has all that it keeps.
const FIRST_CYCLES: u64 = 5;

/// An all-reduce of two ranks of each process, with its results checked.
fn perf(machine: &str, options: &str) -> String {
    let (hwsim, ringdove) = (tool("hwsim"), tool("ringdove"));
    format!(
        "{} run --quiet --machine '{machine}' -- {} perf all-reduce -b 8K -e 8K -n 1 -w 0 -c 1 \
         -T 60 {options}",
        hwsim.display(),
        ringdove.display()
    )
}

/// Runs a line of a shell. It must end in time.
fn shell(line: &str) -> (ExitStatus, String) {
    let mut command = on_strict_drivers(Command::new("bash"));
    command.args(["-ec", line]);
    command.env("RINGDOVE_BOOTSTRAP_TIMEOUT_MS", "5000").env("RINGDOVE_TIMEOUT_MS", "20000");
    let started = Instant::now();
    let ended = run_bounded(command);
    assert!(started.elapsed() < LIMITED_TIME, "{line}: took {:?}\n{}", started.elapsed(), ended.1);
    ended
}

/// What makes a mount namespace for a command, if anything does: who is not root becomes root of a
/// user namespace.
fn apart() -> Option<&'static str> {
    let works = |options: &&str| shell(&format!("{options} mount -t tmpfs none /mnt")).0.success();
    ["unshare -m --", "unshare -Urm --"].into_iter().find(works)
}

/// It went well, or ended by itself with a message of ours that holds one of `says`.
fn well_or_named(line: &str, says: &[&str]) {
    let (status, output) = shell(line);
    let signal = status.signal().or_else(|| status.code().filter(|code| *code > 128));
    assert_eq!(signal, None, "{line}: {status}\n{output}");
    assert!(!output.contains("was ended by SIG"), "{line}: a rank was ended\n{output}");
    assert!(!output.contains("panicked at"), "{line}\n{output}");
    if status.success() {
        assert!(output.contains("# Out of bounds values : 0 OK"), "{line}\n{output}");
        return;
    }
    let lines =
        output.lines().filter(|line| line.contains("ringdove: ") || line.contains("hwsim: "));
    let mut messages = lines.clone().peekable();
    assert!(messages.peek().is_some(), "{line}: no message\n{output}");
    let named = messages.any(|message| says.iter().any(|word| message.contains(word)));
    assert!(named, "{line}: none of {says:?} is named\n{output}");
}

/// A limit that a run does not survive is named by it.
#[test]
fn limits_of_processes_are_named() {
    let one = perf("pcie4", "-g 2");
    for descriptors in [12, 24, 64] {
        well_or_named(&format!("ulimit -n {descriptors}; {one}"), &["open files", "ulimit -n"]);
    }
    well_or_named(&format!("ulimit -l 0; {one}"), &[]);
    well_or_named(&format!("ulimit -s 256; {one}"), &[]);
    for kib in [100_000, 1_000_000] {
        well_or_named(&format!("ulimit -v {kib}; {one}"), &["Cannot allocate memory", "ulimit -v"]);
    }
}

/// Processes and threads that cannot be started are named. The limit does not count for root.
#[test]
fn a_limit_of_threads_is_named() {
    let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    if !shell(&format!("{nobody} true")).0.success() {
        return tally::skip("root", "limits of threads: no other user to become");
    }
    let one = perf("pcie4", "-g 2");
    for processes in [2, 4, 6] {
        let line = format!("ulimit -u {processes}; exec {nobody} {one}");
        well_or_named(&line, &["Resource temporarily unavailable", "Permission denied"]);
    }
}

/// Folders that cannot be written, and no memory file system for programs.
#[test]
fn folders_that_cannot_be_written_are_named() {
    let Some(apart) = apart() else {
        return tally::skip("namespaces", "folders that cannot be written: nothing can be mounted");
    };
    let one = perf("pcie4", "-g 2");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display();
    for (options, over, says) in [
        ("ro", "/dev/shm", &[][..]),
        ("ro", "$TMPDIR", &["Read-only file system"]),
        ("nr_inodes=3", "$TMPDIR", &["No space left on device"]),
    ] {
        let inner = format!("mount -t tmpfs -o {options} none {over}; exec {one}");
        let inner = inner.replace('\'', "\"");
        well_or_named(&format!("TMPDIR={path} exec {apart} sh -ec '{inner}'"), says);
    }
}

/// Bytes of the first two GPUs that are in use.
fn device_bytes() -> usize {
    let used = |context: &Arc<CudaContext>| {
        context.bind_to_thread().unwrap();
        let (free, total) = result::mem_get_info().unwrap();
        total - free
    };
    contexts(2).iter().map(used).sum()
}

/// KiB of memory that the process has in use.
fn resident_kib() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// What a process holds: descriptors, threads, mappings, files, bytes.
fn holdings() -> BTreeMap<&'static str, usize> {
    let count = |path: &str| fs::read_dir(path).map_or(0, Iterator::count);
    let fabric = std::env::var("HWSIM_FABRIC").expect("hwsim names its fabric");
    let mappings = fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    BTreeMap::from([
        ("descriptors", count("/proc/self/fd")),
        ("threads", count("/proc/self/task")),
        ("mappings", mappings),
        ("bytes of GPUs", device_bytes()),
        ("KiB of the process", resident_kib()),
        ("files of the fabric", count(&fabric)),
        (
            "temporary files",
            fs::read_dir(std::env::temp_dir()).map_or(0, |it| {
                let ours = |entry: std::io::Result<fs::DirEntry>| {
                    let name = entry.ok()?.file_name();
                    name.to_str()?.starts_with("ringdove").then_some(())
                };
                it.filter_map(ours).count()
            }),
        ),
    ])
}

/// Makes, uses and drops two ranks, again and again: in the end the process holds what it did.
fn live(cycles: u64) {
    let small =
        Settings { slot_bytes: 4096, slot_count: 2, blocks_max: 1, ring_log2: 4, ..settings() };
    let mut before = BTreeMap::new();
    for cycle in 0..FIRST_CYCLES + cycles {
        if cycle == FIRST_CYCLES {
            before = holdings();
        }
        let world = World::with(2, &small);
        let mut buffers = world.upload(&vec![vec![0; 8000]; 2]);
        for (rank, buffer) in buffers.iter_mut().enumerate() {
            sum(&world, rank, buffer, 2000).unwrap();
        }
        world.finish();
    }
    let after = holdings();
    println!("{before:?}\n{after:?}");
    for (what, count) in &after {
        // Allocators keep some mappings and pages; a leak would show with every life.
        let slack = match *what {
            "mappings" => cycles as usize / 2,
            "KiB of the process" => 16 << 10,
            "bytes of GPUs" => 0,
            _ => 1,
        };
        assert!(*count <= before[what] + slack, "{what}: {before:?}, {after:?}");
    }
}

/// If this fails, a program that makes and drops communicators runs out of something.
#[test]
fn many_lives_leave_nothing_behind() {
    let cycles = std::env::var(CASES).map_or(CYCLES, |text| text.parse().expect(CASES));
    on_engines("pcie4", || live(cycles));
}

/// The same many more times, beside ranks that stay: then their device code does, too.
#[test]
fn a_thousand_lives_beside_others_leave_nothing_behind() {
    on_machine("pcie4", || {
        let others = World::with(2, &settings());
        live(1000);
        others.finish();
    });
}

/// The smallest settings, on one processor: every wait has somebody to wait for, and all progress
/// depends on waits that give the processor away.
#[test]
fn the_smallest_settings_work_on_one_processor() {
    let smallest = [
        "RINGDOVE_BLOCKS=1",
        "RINGDOVE_SLOT_BYTES=4096",
        "RINGDOVE_SLOTS=2",
        "RINGDOVE_RING_LOG2=4",
        "RINGDOVE_LOW_LATENCY_BYTES=0",
        "RINGDOVE_COALESCE_BYTES=1",
        "RINGDOVE_QUEUE_PAIRS=1",
        "RINGDOVE_QUEUE_DEPTH=16",
        "RINGDOVE_BOOTSTRAP_FANOUT=1",
    ];
    for (machine, options) in
        [("pcie4", "-g 4"), ("ark", "-g 3 --engine device"), ("pcie4 x 2", "-g 1")]
    {
        let line = perf(machine, options).replacen("run", "run --grace 1", 1);
        let line = format!("export {}; taskset -c 0 {line}", smallest.join(" "));
        let line = line.replace("-b 8K -e 8K", "-b 4 -e 64K -f 128");
        let mut command = Command::new("bash");
        command.args(["-ec", &line]);
        let (status, output) = run_bounded(command);
        assert!(status.success(), "{machine}: {status}\n{output}");
        assert!(output.contains("# Out of bounds values : 0 OK"), "{machine}: {output}");
    }
}

/// The tools that the limits are made with are there, or nothing above has been tested.
#[test]
fn the_tools_of_the_limits_are_there() {
    for tool in ["unshare", "setpriv", "taskset", "mount"] {
        let path = std::env::var("PATH").unwrap_or_default();
        let found = path.split(':').any(|folder| Path::new(folder).join(tool).exists());
        assert!(found, "{tool} is missing: it comes with util-linux or bash");
    }
}
