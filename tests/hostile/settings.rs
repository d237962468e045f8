//! Settings and launchers' variables that nobody should set: an error that names the variable, or
//! values within their bounds; and values that are accepted make communicators that work, or say
//! why not. If this fails, an environment takes down every program that links the library.

use crate::hardware::data::{expected, input};
use crate::hardware::{World, download, on_machine, sum};
use crate::mutation::{Campaign, Input, mutate};
use fastrand::Rng;
use ringdove::bootstrap::Launch;
use ringdove::settings::{LAUNCH_TABLE, TABLE};
use ringdove::{Communicator, DataType, ReduceOp, Settings};
use std::collections::BTreeMap;
use std::time::Duration;

/// What launchers set.
const LAUNCHERS: &[(&str, &str)] = &[
    ("RANK", "1"),
    ("WORLD_SIZE", "4"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "2"),
    ("MASTER_ADDR", "node-1.example"),
    ("MASTER_PORT", "29500"),
    ("TORCHELASTIC_RUN_ID", "job7"),
    ("TORCHELASTIC_USE_AGENT_STORE", "True"),
    ("OMPI_COMM_WORLD_RANK", "0"),
    ("OMPI_COMM_WORLD_SIZE", "8"),
    ("PMIX_NAMESPACE", "prterun-host-1234@1"),
    ("PMI_RANK", "3"),
    ("PMI_SIZE", "4"),
    ("MPI_LOCALRANKID", "1"),
    ("SLURM_PROCID", "2"),
    ("SLURM_STEP_NUM_TASKS", "4"),
    ("SLURM_STEP_TASKS_PER_NODE", "2(x3),1"),
    ("SLURM_STEP_NODELIST", "node[003-010,12],gpu7"),
    ("SLURM_JOB_ID", "99"),
];

/// Values of other settings, which one is mutated into.
fn texts() -> Vec<Input> {
    let rows = TABLE.iter().chain(LAUNCH_TABLE).map(|row| row.default);
    let others = LAUNCHERS.iter().map(|(_, value)| *value);
    let more = [
        "proxy",
        "device",
        "immediate",
        "host",
        "mlx5_0:1",
        "0000:3b:00.0,0000:af:00.0",
        "10ee:9038",
        "0, 1,2,,4095",
        "eth0,ib*",
        "[::1]:29500",
        "127.0.0.1:1",
        "[fe80::1%eth0]:80",
        " 7 ",
        "+7",
        "0x10",
    ];
    let all = rows.chain(others).chain(more).filter(|text| !text.is_empty());
    all.map(|text| Input { name: text.into(), bytes: text.into() }).collect()
}

/// Lines of `NAME=VALUE`: some settings, and sometimes all that a launcher sets.
fn environment(rng: &mut Rng, texts: &[Input]) -> Vec<u8> {
    let mut lines = BTreeMap::new();
    if rng.bool() {
        lines.extend(LAUNCHERS.iter().map(|(name, value)| (*name, value.as_bytes().to_vec())));
    }
    let names: Vec<&str> = TABLE.iter().chain(LAUNCH_TABLE).map(|row| row.name).collect();
    for _ in 0..rng.u32(1..=4) {
        let known = rng.u32(0..3) > 0;
        let name = if known { rng.choice(&names).copied() } else { None };
        let name = name.unwrap_or_else(|| rng.choice(LAUNCHERS).unwrap().0);
        lines.insert(name, mutate(rng, texts));
    }
    let mut all = Vec::new();
    for (name, value) in lines {
        // A line is a value.
        let value = value.iter().copied().filter(|byte| *byte != b'\n').take(5000);
        all.extend(name.bytes().chain([b'=']).chain(value).chain([b'\n']));
    }
    all
}

/// What a program finds in such an environment.
fn lookup(bytes: &[u8]) -> BTreeMap<String, String> {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.split('\n').filter_map(|line| line.split_once('='));
    lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// What is wrong with settings that were accepted.
fn out_of_bounds(settings: &Settings) -> Option<String> {
    let day = Duration::from_secs(86_400);
    let times = [
        settings.wait_timeout,
        settings.bootstrap_timeout,
        settings.drop_timeout,
        settings.retry_timeout,
    ];
    let holds = [
        times.iter().all(|time| (Duration::from_millis(1)..=day).contains(time)),
        (1..=16).contains(&settings.blocks_max),
        (4096..=4 << 20).contains(&settings.slot_bytes) && settings.slot_bytes.is_multiple_of(16),
        (2..=64).contains(&settings.slot_count) && settings.slot_count.is_power_of_two(),
        settings.low_latency_bytes <= 262_144 && settings.low_latency_bytes.is_multiple_of(16),
        (4..=16).contains(&settings.ring_log2),
        (1..=64).contains(&settings.proxy_threads),
        settings.proxy_cpus.iter().all(|cpu| *cpu < 4096),
        (1..=1 << 30).contains(&settings.coalesce_bytes_max),
        (1..=16).contains(&settings.queue_pairs),
        (16..=8192).contains(&settings.queue_depth),
        (1..=1024).contains(&settings.bootstrap_fan_out),
        settings.service_level < 16,
    ];
    holds.contains(&false).then(|| format!("{settings:?}"))
}

fn play(bytes: &[u8]) -> Result<(), String> {
    let variables = lookup(bytes);
    let find = |name: &str| variables.get(name).cloned();
    match Settings::from_lookup(find) {
        Ok(settings) => {
            if let Some(wrong) = out_of_bounds(&settings) {
                return Err(format!("accepted: {wrong}"));
            }
        }
        Err(error) => named(&error.to_string(), &variables)?,
    }
    match Launch::from_lookup(find) {
        Ok(Some(launch)) if launch.rank >= launch.rank_count => {
            Err(format!("rank {} of {}", launch.rank, launch.rank_count))
        }
        Ok(_) => Ok(()),
        Err(error) => named(&error.to_string(), &variables),
    }
}

/// An error names a variable: one that is set, or one that is missing.
fn named(words: &str, variables: &BTreeMap<String, String>) -> Result<(), String> {
    let longest = variables.values().map(String::len).max().unwrap_or(0);
    let letter = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    let is_name = |word: &str| {
        word.len() > 3
            && word.starts_with(|c: char| c.is_ascii_uppercase())
            && word.bytes().all(letter)
    };
    let says = words.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(is_name);
    if words.len() > 4 * longest + 1000 {
        return Err(format!("an error of {} bytes", words.len()));
    }
    if says { Ok(()) } else { Err(format!("no variable is named: {words} ({variables:?})")) }
}

#[test]
fn mutated_environments_are_read_or_refused() {
    let campaign = Campaign {
        target: "-p ringdove --test hostile",
        test: "settings::mutated_environments_are_read_or_refused",
        cases: 2000,
    };
    let texts = texts();
    campaign.run(|rng| environment(rng, &texts), play);
}

/// Accepted values at the ends of their ranges, and what memory they may take.
fn extremes(rng: &mut Rng) -> Settings {
    let least = Settings {
        wait_timeout: Duration::from_secs(20),
        bootstrap_timeout: Duration::from_secs(20),
        drop_timeout: Duration::from_millis(1),
        blocks_max: 1,
        slot_bytes: 4096,
        slot_count: 2,
        low_latency_bytes: 0,
        ring_log2: 4,
        proxy_threads: 1,
        coalesce_bytes_max: 1,
        queue_pairs: 1,
        queue_depth: 16,
        bootstrap_fan_out: 1,
        ..Settings::default()
    };
    let mut some = least.clone();
    let most = |rng: &mut Rng| rng.u32(0..3) == 0;
    for change in [
        |s: &mut Settings| s.blocks_max = 16,
        |s: &mut Settings| s.slot_bytes = 65_536 + 16,
        |s: &mut Settings| s.slot_count = 64,
        |s: &mut Settings| s.low_latency_bytes = 262_144,
        |s: &mut Settings| s.low_latency_bytes = 16,
        |s: &mut Settings| s.ring_log2 = 16,
        |s: &mut Settings| s.proxy_threads = 64,
        |s: &mut Settings| s.coalesce_bytes_max = 1 << 30,
        |s: &mut Settings| s.proxy_cpus = vec![1023, 0],
        |s: &mut Settings| s.host_id = "x".repeat(5000),
        |s: &mut Settings| s.drop_timeout = Duration::from_secs(86_400),
    ] {
        if most(rng) {
            change(&mut some);
        }
    }
    // At most 64 MiB of slots for each lane between neighbours.
    while u64::from(some.blocks_max * some.slot_count) * u64::from(some.slot_bytes) > 64 << 20 {
        some.slot_count /= 2;
    }
    some
}

/// If this fails, a value that the reader accepts breaks what is built with it.
#[test]
fn settings_at_the_ends_of_their_ranges_work() {
    on_machine("pcie4", || {
        for seed in 0..12 {
            let settings = extremes(&mut Rng::with_seed(seed));
            println!("seed {seed}: {settings:?}");
            let contexts = crate::hardware::contexts(3);
            let communicators = match Communicator::init_all(&contexts, &settings) {
                Ok(communicators) => communicators,
                Err(error) => {
                    println!("seed {seed}: refused: {error}");
                    continue;
                }
            };
            let streams = contexts.iter().map(|it| it.new_stream().unwrap()).collect();
            let world = World { communicators, streams };
            for count in [1, 5000, 70_000] {
                let inputs: Vec<_> =
                    (0..3).map(|rank| input(DataType::F32, ReduceOp::Sum, rank, count)).collect();
                let mut buffers = world.upload(&inputs);
                for (rank, buffer) in buffers.iter_mut().enumerate() {
                    sum(&world, rank, buffer, count).unwrap();
                }
                world.finish();
                let right = expected(DataType::F32, ReduceOp::Sum, 3, count);
                assert!(buffers.iter().all(|buffer| download(buffer) == right), "seed {seed}");
            }
        }
    });
}
