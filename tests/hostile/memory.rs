//! Random and plausible words in all memory that kernels and engines share, while collectives run
//! on virtual GPUs, on both engines. Each run has to end in time, in a typed error or with the
//! right result; afterwards new communicators of the same process work.
//!
//! What a word can claim decides what a run may end with. Where it is only a hint, a count or a
//! report (ring slots of random bits, head, tail, record, abort word), a result that is called
//! right must be right. Where it is the protocol's own proof (a signal, an LL message, a
//! well-formed descriptor, a port, a plan, a register, the claim by which a rank's kernels know
//! that one of them has failed), whoever writes it *is* the sender: the result may be theirs, but
//! nothing may crash, hang or reach memory that is not the communicator's.
//!
//! `RINGDOVE_FUZZ_CASES` makes the test longer, `RINGDOVE_FUZZ_SEED` plays one run again.

use crate::hardware::data::{expected, input};
use crate::hardware::engines::engine;
use crate::hardware::{World, address, download, hwsim, run_bounded, settings, sum};
use crate::mutation::{CASES, SEED};
use crate::regions::{Memory, Part, RankMemory};
use cudarc::driver::CudaSlice;
use fastrand::Rng;
use ringdove::id::EngineKind;
use ringdove::{DataType, Error, ReduceOp, Settings};
use ringdove_kernels::descriptor::Descriptor;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Runs on each engine in a usual test run; half of them are new each time.
const USUAL_CASES: u64 = 26;
/// Which runs this process makes: `FIRST..END`.
const INSIDE: &str = "RINGDOVE_TEST_HOSTILE_RUNS";
/// No run takes longer, on a busy machine either: its waits expire after [`WAIT`].
const RUN_TIME: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_millis(400);
/// How soon a word that claims nothing must have become an error, if it becomes one.
const SETTLED: Duration = Duration::from_millis(500);

/// What a run does.
struct Attack {
    ranks: usize,
    count: usize,
    calls: usize,
    settings: Settings,
    part: Part,
    /// The rank whose memory is written.
    victim: usize,
    words: usize,
    /// Words that could be there, instead of random ones.
    plausible: bool,
    /// How long after the first launch; before it if `None`.
    delay: Option<Duration>,
}

impl Attack {
    fn of(seed: u64) -> (Self, Rng) {
        // Every part comes up equally often.
        let part = Part::ALL[(seed % Part::ALL.len() as u64) as usize];
        let mut rng = Rng::with_seed(seed);
        let ranks = rng.usize(2..=3);
        let attack = Self {
            ranks,
            count: rng.choice([64, 1000, 6000, 20_000]).unwrap(),
            calls: rng.usize(1..=3),
            settings: Settings {
                wait_timeout: WAIT,
                drop_timeout: WAIT,
                slot_bytes: 4096,
                slot_count: rng.choice([2, 4]).unwrap(),
                ring_log2: 4,
                blocks_max: rng.u32(1..=2),
                low_latency_bytes: rng.choice([0, 16_384]).unwrap(),
                ..settings()
            },
            part,
            victim: rng.usize(0..ranks),
            words: rng.usize(1..=6),
            plausible: rng.bool(),
            delay: rng.bool().then(|| Duration::from_micros(rng.u64(0..3000))),
        };
        (attack, rng)
    }

    /// May a run end well with another result?
    fn is_proof(&self) -> bool {
        match self.part {
            Part::Ring => self.plausible,
            Part::Head | Part::Tail | Part::TailCache => false,
            Part::Abort | Part::Record | Part::Claim => false,
            Part::Communicator | Part::Ports | Part::Signals => true,
            Part::Slots | Part::Plans | Part::Registers => true,
        }
    }

    fn describe(&self) -> String {
        let Self { ranks, count, part, victim, words, plausible, delay, .. } = self;
        let kind = if *plausible { "plausible" } else { "random" };
        format!(
            "{words} {kind} words in {part:?} of rank {victim} of {ranks}, {count} elements, \
             after {delay:?}"
        )
    }

    /// The words and where they go.
    fn words(&self, rng: &mut Rng, memory: &Memory, ranks: &[RankMemory]) -> Vec<(u64, u64)> {
        let victim = &ranks[self.victim];
        let ranges = victim.ranges(self.part, memory);
        let mut words = Vec::new();
        for _ in 0..self.words {
            let Some(range) = rng.choice(&ranges) else { break };
            let at = range.start + rng.u64(0..(range.end - range.start).max(8) / 8) * 8;
            if self.part == Part::Ring && rng.bool() {
                let (at, lap) = victim.next_slot(memory);
                let pair = if self.plausible { descriptor(rng, victim, lap) } else { random(rng) };
                words.extend([(at, pair[0]), (at + 8, pair[1])]);
            } else if self.plausible {
                words.push((at, plausible(rng, memory, at, range, ranks)));
            } else {
                words.push((at, rng.u64(..)));
            }
        }
        words
    }
}

fn random(rng: &mut Rng) -> [u64; 2] {
    [rng.u64(..), rng.u64(..)]
}

/// A descriptor that could be the next one, more or less.
fn descriptor(rng: &mut Rng, rank: &RankMemory, lap: u64) -> [u64; 2] {
    let routes = rank.communicator.port_count;
    let length = rng.choice([0, 16, 4096, 5000, 1 << 22]).unwrap();
    let offset = |rng: &mut Rng| {
        if length == 0 { 0 } else { rng.choice([0, 16, 4096, 1 << 20, (1 << 40) - 1]).unwrap() }
    };
    let descriptor = Descriptor {
        route: rng.u32(0..=routes),
        source_offset: offset(rng),
        destination_offset: offset(rng),
        length,
        arrival: rng.bool() || length == 0,
        completion: rng.bool(),
    };
    descriptor.encode(lap.is_multiple_of(2) != rng.choice([true, false, false]).unwrap())
}

/// A word that differs a little from what is there, or stands elsewhere.
fn plausible(
    rng: &mut Rng,
    memory: &Memory,
    at: u64,
    range: &std::ops::Range<u64>,
    ranks: &[RankMemory],
) -> u64 {
    let now: u64 = memory.read(at).unwrap_or(0);
    match rng.u32(0..8) {
        0 => now.wrapping_add(1),
        1 => now.wrapping_sub(1),
        2 => now ^ 1 << rng.u32(0..64),
        3 => now.wrapping_add(1 << 32),
        4 => rng.u64(0..64),
        5 => rng.choice([0, 1, 2, u64::MAX, 1 << 63, u64::from(u32::MAX)]).unwrap(),
        6 => {
            let other = range.start + rng.u64(0..(range.end - range.start).max(8) / 8) * 8;
            memory.read(other).unwrap_or(0)
        }
        _ => {
            let it = &rng.choice(ranks).expect("there are ranks").communicator;
            rng.choice([it.ports, it.abort, it.staging, it.ring_tail, it.record]).unwrap()
        }
    }
}

/// How a run ended.
enum End {
    Right,
    /// A typed error.
    Error(String),
    /// A result that whoever wrote the words made.
    Theirs,
}

/// One world, attacked.
struct Run {
    world: World,
    ranks: Vec<RankMemory>,
    memory: Memory,
}

impl Run {
    /// A world whose first collective went well. On a busy machine a wait may expire without any
    /// attack; then there is another.
    fn new(attack: &Attack) -> Self {
        for _ in 0..20 {
            let world = World::with(attack.ranks, &attack.settings);
            let (buffers, outcome) = Self::call(&world, attack, 1);
            if let Err(error) = outcome {
                assert!(matches!(error, Error::WaitExpired(_)), "without an attack: {error}");
                continue;
            }
            let memory = Memory::open();
            let is_device = engine() == EngineKind::Device;
            let find = |(rank, buffer): (usize, &CudaSlice<u8>)| {
                RankMemory::find(&memory, address(buffer), rank as u32, is_device)
            };
            let ranks = buffers[0].iter().enumerate().map(find).collect();
            return Self { world, ranks, memory };
        }
        panic!("no world of {} ranks in 20 has worked, without any attack", attack.ranks);
    }

    /// So many sums, on buffers of their own: these, and the first error of a call.
    fn call(
        world: &World,
        attack: &Attack,
        calls: usize,
    ) -> (Vec<Vec<CudaSlice<u8>>>, Result<(), Error>) {
        let inputs: Vec<_> = (0..attack.ranks)
            .map(|rank| input(DataType::F32, ReduceOp::Sum, rank, attack.count))
            .collect();
        let mut buffers: Vec<_> = (0..calls).map(|_| world.upload(&inputs)).collect();
        let mut outcome = Ok(());
        for call in &mut buffers {
            for (rank, buffer) in call.iter_mut().enumerate() {
                let called = sum(world, rank, buffer, attack.count);
                outcome = outcome.and(called);
            }
        }
        if calls == 1 {
            outcome = outcome.and_then(|()| finish(world));
        }
        (buffers, outcome)
    }

    fn attack(&self, attack: &Attack, rng: &mut Rng) -> Result<End, String> {
        let words = attack.words(rng, &self.memory, &self.ranks);
        let write = || words.iter().for_each(|(at, word)| self.memory.write(*at, *word));
        let calls = attack.calls + 1;
        let (buffers, called) = match attack.delay {
            None => {
                write();
                Self::call(&self.world, attack, calls)
            }
            Some(delay) => std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(delay);
                    write();
                });
                Self::call(&self.world, attack, calls)
            }),
        };
        let ended = called.and_then(|()| finish(&self.world));
        if let Err(error) = ended {
            return Ok(End::Error(error.to_string()));
        }
        let right = expected(DataType::F32, ReduceOp::Sum, attack.ranks, attack.count);
        let wrong = buffers.iter().flatten().any(|buffer| download(buffer) != right);
        match (wrong, attack.is_proof()) {
            (false, _) => Ok(End::Right),
            (true, true) => Ok(End::Theirs),
            (true, false) => Err(format!(
                "wrong data, and check() says Ok; {SETTLED:?} later: {:?}",
                self.later()
            )),
        }
    }

    /// What the communicators say after a while.
    fn later(&self) -> Option<Error> {
        std::thread::sleep(SETTLED);
        self.world.communicators.iter().find_map(|communicator| communicator.check().err())
    }
}

/// Waits for all ranks: the first error of a stream or a communicator.
fn finish(world: &World) -> Result<(), Error> {
    let mut outcome = Ok(());
    for (_, stream) in world.ranks() {
        let ended = stream.synchronize().map_err(|error| Error::Cuda {
            call: "cuStreamSynchronize".into(),
            code: error.0 as u32,
            name: format!("{error:?}"),
        });
        outcome = outcome.and(ended);
    }
    for (communicator, _) in world.ranks() {
        outcome = outcome.and(communicator.check());
    }
    outcome
}

/// Is the GPUs' context of use? A kernel that reached for foreign memory has ended it.
fn devices_work(world: &World) -> bool {
    world.streams.iter().all(|stream| stream.clone_htod(&[1u8]).is_ok())
}

/// Makes the runs of this process until the context of its GPUs is gone: prints each run's begin
/// and end.
fn inside(runs: &str) {
    let (first, end) = runs.split_once("..").expect(INSIDE);
    let (first, end): (u64, u64) = (first.parse().unwrap(), end.parse().unwrap());
    for seed in first..end {
        let (attack, mut rng) = Attack::of(seed);
        println!("run {seed} begins: {}", attack.describe());
        let guard = Watchdog::new(seed);
        let run = Run::new(&attack);
        let ended = run.attack(&attack, &mut rng);
        let works = devices_work(&run.world);
        let Run { world, ranks, memory } = run;
        drop(world);
        ranks.iter().for_each(|rank| rank.forget(&memory));
        if works && !matches!(ended, Ok(End::Right)) {
            // What the attacked world left behind must not hurt the next.
            let again = Run::new(&attack);
            again.ranks.iter().for_each(|rank| rank.forget(&memory));
        }
        drop(guard);
        match ended.unwrap_or_else(|why| panic!("run {seed}: {}: {why}", attack.describe())) {
            End::Right => println!("run {seed} ends right"),
            End::Theirs => println!("run {seed} ends theirs"),
            End::Error(error) => println!("run {seed} ends error {error}"),
        }
        if !works {
            return;
        }
    }
}

/// Ends the process when a run hangs.
struct Watchdog(Option<(mpsc::Sender<()>, std::thread::JoinHandle<()>)>);

impl Watchdog {
    fn new(seed: u64) -> Self {
        let (sender, receiver) = mpsc::channel::<()>();
        let watch = move || {
            if receiver.recv_timeout(RUN_TIME) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("run {seed} hangs: no end after {RUN_TIME:?}");
                std::process::abort();
            }
        };
        Self(Some((sender, std::thread::spawn(watch))))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let (sender, thread) = self.0.take().expect("dropped once");
        drop(sender);
        let _ = thread.join();
    }
}

/// Runs `seeds` on one engine, in as many processes as it takes. How they ended, by part.
fn play(test: &str, engine: EngineKind, seeds: std::ops::Range<u64>) -> BTreeMap<Part, [u64; 3]> {
    let mut next = seeds.start;
    let mut ends: BTreeMap<Part, [u64; 3]> = BTreeMap::new();
    while next < seeds.end {
        let (machine, name) = match engine {
            EngineKind::Proxy => ("pcie4", "proxy"),
            EngineKind::Device => ("ark", "device"),
        };
        let mut command = hwsim();
        command.args(["run", "--quiet", "--machine", machine, "--"]);
        command.arg(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
        command.env(INSIDE, format!("{next}..{}", seeds.end)).env("RINGDOVE_TEST_ENGINE", name);
        let (status, output) = run_bounded(command);
        let mut began = next;
        for line in output.lines() {
            let Some((seed, end)) = ended_run(line) else { continue };
            let part = Attack::of(seed).0.part;
            ends.entry(part).or_default()[end] += 1;
            began = seed + 1;
        }
        let again = format!("again: {SEED}={began} cargo test --release --test hostile {test}");
        assert!(status.success(), "{name}: run {began}: {status}\n{output}\n{again}");
        assert!(began > next, "{name}: no run was made\n{output}");
        next = began;
    }
    ends
}

/// The seed and the end of a run, if the line tells of one.
fn ended_run(line: &str) -> Option<(u64, usize)> {
    let (seed, end) = line.strip_prefix("run ")?.split_once(" ends ")?;
    let kinds = ["right", "theirs", "error"];
    let end = kinds.iter().position(|kind| end.starts_with(kind))?;
    Some((seed.parse().ok()?, end))
}

/// The test on one engine.
fn attack(test: &str, engine: EngineKind) {
    if let Ok(runs) = std::env::var(INSIDE) {
        return inside(&runs);
    }
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let started = Instant::now();
    let mut ends = BTreeMap::new();
    if let Some(seed) = number(SEED) {
        ends = play(test, engine, seed..seed + 1);
    } else {
        let cases = number(CASES).unwrap_or(USUAL_CASES);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let fresh = 1_000_000 + since.as_secs() % 1_000_000 * 1000;
        for seeds in [0..cases / 2, fresh..fresh + cases - cases / 2] {
            for (part, of_part) in play(test, engine, seeds) {
                let all: &mut [u64; 3] = ends.entry(part).or_default();
                all.iter_mut().zip(of_part).for_each(|(all, some)| *all += some);
            }
        }
        let total = |kind: usize| ends.values().map(|of_part| of_part[kind]).sum::<u64>();
        assert_eq!((0..3).map(total).sum::<u64>(), cases, "every run has ended");
        assert!(total(0) > 0, "no run has ended well: does the attack leave anything alive?");
        assert!(total(2) > 0, "no run has met an error: does the attack reach the memory?");
    }
    let mut table = String::new();
    for (part, [right, theirs, error]) in &ends {
        write!(table, "\n  {part:?}: {right} right, {theirs} theirs, {error} errors").unwrap();
    }
    println!("{test}: ended in {:.1?}{table}", started.elapsed());
}

/// If this fails, a stray store of one kernel takes the process down, or makes results silently
/// wrong.
#[test]
fn garbage_ends_in_errors_on_the_proxy() {
    attack("memory::garbage_ends_in_errors_on_the_proxy", EngineKind::Proxy);
}

/// As above, where a device drains the ring.
#[test]
fn garbage_ends_in_errors_on_device_engines() {
    attack("memory::garbage_ends_in_errors_on_device_engines", EngineKind::Device);
}
