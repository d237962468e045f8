//! What a communicator of many ranks costs to make and to end, on virtual GPUs: wall time, and
//! memory of a process for each of its ranks.
//!
//! Eight nodes, a process on each; the ranks of a process share the node's eight GPUs. Nobody
//! calls a collective, so that ranks of other nodes are not connected.
//!
//! These are times of a simulation on few cores, in which all processes run at once: they compare
//! versions of this repository on one machine, and say nothing about clusters.

use ringdove::bootstrap::Launch;
use ringdove::settings::Remedies;
use ringdove::{Communicator, Settings, device_count, open_device};
use std::process::Command;
use std::time::{Duration, Instant};

const INSIDE: &str = "RINGDOVE_BENCH_INSIDE";
const NODES: u32 = 8;

/// Bytes of this process that lie in memory.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).expect("it is listed");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("KiB") << 10
}

/// One process of the measurement, with so many ranks.
fn measure(ranks: u32) {
    let settings = Settings {
        blocks_max: 1,
        slot_count: 2,
        slot_bytes: 16 << 10,
        staging_bytes: Some(4 << 20),
        ring_log2: 6,
        bootstrap_timeout: Duration::from_secs(300),
        // No kernels run here, so more ranks share a GPU than could run at a time.
        remedies: Remedies { sharing_check: false, ..Remedies::default() },
        ..Settings::from_env().expect("readable settings")
    };
    let launch = Launch::from_env().expect("readable").expect("hwsim sets torchrun's variables");
    let (id, _root) = launch.rendezvous(&settings).expect("a rendezvous");
    let devices = device_count().expect("a driver");
    let open = |rank| open_device(rank as usize % devices).expect("a device");
    let contexts: Vec<_> = (0..ranks).map(open).collect();
    let before = resident();
    let began = Instant::now();
    let first = launch.rank * ranks;
    let made =
        Communicator::init_ranks(&contexts, &id, first, launch.rank_count * ranks, &settings);
    let made = made.expect("a communicator");
    let creation = began.elapsed();
    let bytes = resident().saturating_sub(before) / u64::from(ranks);
    let began = Instant::now();
    drop(made);
    let end = began.elapsed();
    if launch.rank == 0 {
        let (creation, end) = (creation.as_secs_f64(), end.as_secs_f64());
        println!("| {} | {creation:.2} s | {end:.2} s | {} KiB |", NODES * ranks, bytes >> 10);
    }
}

fn main() {
    if let Ok(ranks) = std::env::var(INSIDE) {
        return measure(ranks.parse().expect("a number of ranks"));
    }
    let own = std::env::current_exe().expect("this program");
    let hwsim = own.parent().and_then(|deps| deps.parent()).expect("target").join("hwsim");
    println!("| ranks | made in | ended in | memory of a rank |\n|---|---|---|---|");
    for ranks in [1, 2, 4, 8, 16, 32, 64, 128] {
        let machine = format!("dgx-a100 x {NODES}");
        let status = Command::new(&hwsim)
            .args(["run", "--quiet", "--no-label", "--machine", &machine])
            .args(["--procs", &NODES.to_string(), "--"])
            .arg(&own)
            .env(INSIDE, ranks.to_string())
            .status();
        let status = status
            .unwrap_or_else(|error| panic!("{}: {error}; build the workspace", hwsim.display()));
        assert!(status.success(), "{ranks} ranks of each process: {status}");
    }
}
