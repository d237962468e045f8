//! How long an abort takes: from the call on one rank until the pending work of every other rank
//! has ended, and the rank has the error. Kernels of all others wait for the rank that aborts.
//!
//! Ranks are threads of one process, processes of one node, or processes of two nodes, with a GPU
//! each. `cargo bench --bench abort -- NAME` measures one of these alone. Times are those of
//! virtual GPUs, which interpret kernels, on the processors of this machine.

use ringdove::bootstrap::Launch;
use ringdove::{Communicator, ReduceOp, Settings, device_count, open_device};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const INSIDE: &str = "RINGDOVE_BENCH_INSIDE";
const FOLDER: &str = "RINGDOVE_BENCH_FOLDER";
const ROUNDS: usize = 100;
const RANKS: usize = 4;
/// A low-latency message, and one that goes through slots.
const SIZES: [usize; 2] = [1 << 10, 1 << 20];
/// Kernels that were launched before wait by then.
const STARTED: Duration = Duration::from_millis(50);

/// Names, machines, and how many processes share them.
const WAYS: [(&str, &str, usize); 3] =
    [("threads", "pcie4", 1), ("processes", "pcie4", RANKS), ("nodes", "pcie4 x 2", RANKS)];

/// Now, as all processes of the machine tell it: nanoseconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64
}

/// All-reduces that a rank makes: one that ends, and one that does not.
struct Work {
    stream: std::sync::Arc<cudarc::driver::CudaStream>,
    buffer: cudarc::driver::CudaSlice<u32>,
}

impl Work {
    fn new(communicator: &Communicator, bytes: usize) -> Self {
        let stream = communicator.context().new_stream().expect("a stream");
        let buffer = stream.alloc_zeros(bytes / 4).expect("memory");
        Self { stream, buffer }
    }

    fn begin(&mut self, communicator: &Communicator) {
        let Self { stream, buffer } = self;
        communicator.all_reduce_in_place(buffer, ReduceOp::Sum, stream).expect("a call");
    }

    /// Waits until the work has ended, and gives when: the rank has its error then.
    fn end(&self, communicator: &Communicator) -> u64 {
        self.stream.synchronize().expect("the stream ends");
        assert!(communicator.check().is_err(), "work has ended, and nobody knows of the abort");
        now()
    }
}

/// A round of ranks of this process, of which the first one is the `first` of all: when one of them
/// aborted, 0 if none did, and when the work of the last one had ended.
fn round(communicators: &[Communicator], aborts: usize, bytes: usize) -> [u64; 2] {
    let new = |communicator| Work::new(communicator, bytes);
    let mut works: Vec<_> = communicators.iter().map(new).collect();
    for (communicator, work) in communicators.iter().zip(&mut works) {
        work.begin(communicator);
    }
    for (communicator, work) in communicators.iter().zip(&works) {
        work.stream.synchronize().expect("the stream ends");
        communicator.check().expect("nothing failed");
    }
    let is_other = |communicator: &Communicator| communicator.rank() as usize != aborts;
    for (communicator, work) in communicators.iter().zip(&mut works) {
        if is_other(communicator) {
            work.begin(communicator);
        }
    }
    std::thread::scope(|scope| {
        let others = communicators.iter().zip(&works).filter(|(it, _)| is_other(it));
        let ends: Vec<_> = others
            .map(|(communicator, work)| {
                scope.spawn(move || {
                    communicator.context().bind_to_thread().expect("a context");
                    work.end(communicator)
                })
            })
            .collect();
        let aborting = communicators.iter().find(|it| !is_other(it));
        let begun = aborting.map_or(0, |communicator| {
            std::thread::sleep(STARTED);
            let begun = now();
            communicator.abort("measured");
            begun
        });
        let ended = ends.into_iter().map(|end| end.join().expect("no panic")).max();
        [begun, ended.unwrap_or(0)]
    })
}

/// Writes what each round of this process was.
fn write(folder: &Path, process: u32, rounds: &[[u64; 2]]) {
    let lines: Vec<_> = rounds.iter().map(|[begun, ended]| format!("{begun} {ended}")).collect();
    std::fs::write(folder.join(process.to_string()), lines.join("\n")).expect("a file");
}

/// One process of the measurement.
fn measure(way: &str) {
    let folder = PathBuf::from(std::env::var(FOLDER).expect("the folder is given"));
    let settings = Settings::from_env().expect("readable settings");
    let open = |device| open_device(device).expect("a device");
    let rounds = SIZES.iter().flat_map(|bytes| (0..ROUNDS).map(move |round| (round, *bytes)));
    if way == "threads" {
        let contexts: Vec<_> = (0..RANKS).map(open).collect();
        let rounds = rounds.map(|(number, bytes)| {
            let ranks = Communicator::init_all(&contexts, &settings).expect("a communicator");
            round(&ranks, number % RANKS, bytes)
        });
        return write(&folder, 0, &rounds.collect::<Vec<_>>());
    }
    let launch = Launch::from_env().expect("readable").expect("hwsim sets torchrun's variables");
    let (id, _root) = launch.rendezvous(&settings).expect("a rendezvous");
    let device = launch.local_rank.unwrap_or(0) as usize % device_count().expect("a driver");
    let (rank, count) = (launch.rank, launch.rank_count);
    let world = Communicator::init_ranks(&[open(device)], &id, rank, count, &settings);
    let world = &world.expect("a communicator")[0];
    let rounds = rounds.map(|(number, bytes)| {
        let part = world.split(Some(0), 0).expect("a part").expect("with this rank");
        round(&[part], number % RANKS, bytes)
    });
    write(&folder, rank, &rounds.collect::<Vec<_>>());
    world.finalize().expect("nothing failed");
}

/// How long each round took: from the abort to the last end, of all processes.
fn times(folder: &Path, processes: usize) -> Vec<Duration> {
    let mut rounds = vec![(0, 0); ROUNDS * SIZES.len()];
    for process in 0..processes {
        let text =
            std::fs::read_to_string(folder.join(process.to_string())).expect("it was written");
        assert_eq!(text.lines().count(), rounds.len());
        for (line, (begun, ended)) in text.lines().zip(&mut rounds) {
            let (first, last) = line.split_once(' ').expect("two numbers");
            let number = |text: &str| text.parse::<u64>().expect("a number");
            (*begun, *ended) = (number(first).max(*begun), number(last).max(*ended));
        }
    }
    let took =
        |(begun, ended): (u64, u64)| ended.checked_sub(begun).expect("an end after the abort");
    rounds.into_iter().map(|round| Duration::from_nanos(took(round))).collect()
}

fn main() {
    if let Ok(way) = std::env::var(INSIDE) {
        return measure(&way);
    }
    let own = std::env::current_exe().expect("this program");
    let hwsim = own.parent().and_then(|deps| deps.parent()).expect("target").join("hwsim");
    let named: Vec<_> = std::env::args().skip(1).filter(|it| !it.starts_with('-')).collect();
    println!("| ranks | bytes | median | 90 of 100 | longest |\n|---|---|---|---|---|");
    for (way, machine, processes) in WAYS {
        if !named.is_empty() && !named.iter().any(|name| name == way) {
            continue;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let began = Instant::now();
        let status = Command::new(&hwsim)
            .args(["run", "--quiet", "--no-label", "--machine", machine])
            .args(["--procs", &processes.to_string(), "--"])
            .arg(&own)
            .envs([(INSIDE, way), (FOLDER, folder.path().to_str().expect("a plain path"))])
            .status();
        let status = status
            .unwrap_or_else(|error| panic!("{}: {error}; build the workspace", hwsim.display()));
        assert!(status.success(), "{way}: {status}");
        for (bytes, times) in SIZES.iter().zip(times(folder.path(), processes).chunks_mut(ROUNDS)) {
            times.sort_unstable();
            let ms = |at: usize| format!("{:.1} ms", 1e3 * times[at].as_secs_f64());
            let [median, most, longest] = [ROUNDS / 2, ROUNDS * 9 / 10, ROUNDS - 1].map(ms);
            println!("| {way} | {bytes} | {median} | {most} | {longest} |");
        }
        eprintln!("{way}: {:.1?} in all", began.elapsed());
    }
}
