//! Many ranks, and nothing left of them afterwards.

use crate::support::{each_rank, entry, in_a_process_of_its_own, ranks_possible, settings, within};
use ringdove::bootstrap::{ControlPlane, Root};
use ringdove::{Error, Settings};
use std::fs;
use std::time::{Duration, Instant};

#[test]
#[ignore = "run by a_thousand_ranks_assemble_and_exchange_in_seconds, in a process of its own"]
fn a_thousand_ranks() {
    let rank_count = ranks_possible(1000);
    let settings = settings(60_000);
    let root = Root::open(&settings).unwrap();
    let started = Instant::now();
    within(Duration::from_secs(40), || {
        each_rank(0..rank_count, |rank| {
            let plane = ControlPlane::join(entry(root.id(), rank, rank_count), &settings).unwrap();
            if rank == 0 {
                println!("{rank_count} ranks assembled after {:?}", started.elapsed());
            }
            // All have passed the root: what is left are the edges of the tree, both ends each, and
            // perhaps the last farewells to the root.
            plane.barrier().unwrap();
            if rank == 0 {
                let (sockets, threads) = left_behind();
                assert!(sockets <= 4 * rank_count as usize, "{sockets} sockets");
                assert_eq!(threads, 1);
            }
            let own = [rank.to_le_bytes(), (rank ^ 0x5555).to_le_bytes()].concat();
            for _ in 0..3 {
                let all = plane.all_gather(&own).unwrap();
                assert_eq!(all.len(), rank_count as usize);
                for (rank, bytes) in (0u32..).zip(&all) {
                    assert_eq!(bytes[..4], rank.to_le_bytes());
                }
            }
            if rank == 0 {
                println!("and gathered three times after {:?}", started.elapsed());
            }
            plane.close().unwrap();
        });
    });
    println!("and left after {:?}", started.elapsed());
}

#[test]
fn a_thousand_ranks_assemble_and_exchange_in_seconds() {
    // Or other tests would wait for the I/O thread that all ranks of a process share.
    in_a_process_of_its_own("scale::a_thousand_ranks");
}

#[test]
fn nothing_is_left_behind() {
    // Or other tests' sockets would be counted.
    in_a_process_of_its_own("scale::jobs_of_every_fate");
}

#[test]
#[ignore = "run by nothing_is_left_behind, in a process of its own"]
fn jobs_of_every_fate() {
    let settings = Settings { bootstrap_fan_out: 2, ..settings(500) };
    let patient = Settings { bootstrap_fan_out: 2, ..settings_of_a_minute() };
    assert_eq!(left_behind(), (0, 0));
    let join = |root: &Root, rank, settings: &Settings| {
        ControlPlane::join(entry(root.id(), rank, 5), settings)
    };
    {
        let root = Root::open(&patient).unwrap();
        each_rank(0..5, |rank| join(&root, rank, &patient).unwrap().close().unwrap());
    }
    {
        let root = Root::open(&patient).unwrap();
        each_rank(0..5, |rank| drop(join(&root, rank, &patient).unwrap()));
    }
    {
        let root = Root::open(&patient).unwrap();
        let planes = each_rank(0..5, |rank| join(&root, rank, &patient).unwrap());
        planes[3].abort("on purpose");
        for plane in planes {
            assert!(matches!(plane.barrier(), Err(Error::Aborted { .. })));
        }
    }
    {
        let root = Root::open(&settings).unwrap();
        each_rank(0..4, |rank| join(&root, rank, &settings).unwrap_err());
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    while left_behind() != (0, 0) {
        assert!(Instant::now() < deadline, "sockets and threads left: {:?}", left_behind());
        std::thread::yield_now();
    }
}

fn settings_of_a_minute() -> Settings {
    settings(60_000)
}

/// Sockets of this process, and I/O threads of the library.
fn left_behind() -> (usize, usize) {
    let links = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = links.filter_map(|entry| fs::read_link(entry.path()).ok());
    let sockets = targets.filter(|path| path.to_string_lossy().starts_with("socket:")).count();
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    (sockets, names.filter(|name| name.trim() == "ringdove-boot").count())
}
