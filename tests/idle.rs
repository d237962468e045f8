//! Proxy threads between launches: they rest, and a launch ends that.

mod hardware;

use hardware::drivers::sum_up;
use hardware::engines::BY_TABLE;
use hardware::{World, on_machine_env, on_traced_machine, settings};
use ringdove::Settings;
use ringdove::settings::Remedies;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The folders of this process's proxy threads.
fn proxies() -> Vec<PathBuf> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let is_proxy = |path: &PathBuf| {
        let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        name.starts_with("ringdove-proxy")
    };
    threads.map(|entry| entry.unwrap().path()).filter(is_proxy).collect()
}

/// How often the threads have gone to sleep, and their time on a processor.
fn spent() -> (u64, Duration) {
    let (mut sleeps, mut time) = (0, Duration::ZERO);
    for path in proxies() {
        let status = std::fs::read_to_string(path.join("status")).unwrap();
        let count = |line: &str| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok();
        sleeps += status.lines().find_map(count).unwrap_or(0u64);
        let schedule = std::fs::read_to_string(path.join("schedstat")).unwrap();
        let nanoseconds = schedule.split(' ').next().unwrap().parse().unwrap();
        time += Duration::from_nanos(nanoseconds);
    }
    (sleeps, time)
}

/// If this fails, a program whose communicators are idle pays for them.
#[test]
fn an_idle_communicator_costs_no_processor_time() {
    on_machine_env("pcie4", &[], &[BY_TABLE], || {
        let worlds = [World::new(4), World::new(2)];
        worlds.iter().for_each(|world| sum_up(world, 20).unwrap());
        assert_eq!(proxies().len(), 1);
        // The threads come to rest within their first parks.
        std::thread::sleep(Duration::from_millis(500));
        let (sleeps, time) = spent();
        std::thread::sleep(Duration::from_secs(2));
        let (sleeps, time) = (spent().0 - sleeps, spent().1 - time);
        println!("in 2 s: {sleeps} sleeps, {time:?} on a processor");
        assert!(sleeps <= 40, "{sleeps} sleeps in 2 s");
        assert!(time < Duration::from_millis(20), "{time:?} of 2 s");
        // A launch ends the rest: its first doorbell does not wait for the end of a park.
        let began = Instant::now();
        worlds.iter().for_each(|world| sum_up(world, 20).unwrap());
        println!("40 sums on six ranks after that took {:?}", began.elapsed());
    });
}

/// If this fails, communicators and ranks that share a GPU fill its hardware queues with streams.
#[test]
fn ranks_of_a_context_share_four_streams() {
    let body = || {
        // The trial of the check launches kernels, on streams of its own.
        let remedies = Remedies { sharing_check: false, ..Remedies::default() };
        let settings = Settings { remedies, ..settings() };
        let worlds = [World::with(2, &settings), World::with(2, &settings)];
        worlds.iter().for_each(|world| sum_up(world, 20).unwrap());
    };
    on_traced_machine("one-gpu", &[BY_TABLE], body, |trace| {
        let functions: Vec<_> =
            trace.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
        let launch = functions.iter().position(|name| name.starts_with("cuLaunchKernel"));
        let (before, after) = functions.split_at(launch.expect("a launch"));
        let count = |functions: &[&str], name: &str| {
            functions.iter().filter(|one| one.starts_with(name)).count()
        };
        let live = count(before, "cuStreamCreate") - count(before, "cuStreamDestroy");
        // Of each rank: the test's, and one that is never used, by which cudarc knows that there
        // are several.
        assert_eq!(live - 2 * 4, 4, "streams of the library's own");
        assert_eq!(count(after, "cuStreamCreateWithPriority"), 0, "made beside launches");
    });
}
