//! One-sided transfers between windows: in GPU and host memory, on a node and between nodes, by
//! threads, proxy and device engine.

mod hardware;

use cudarc::driver::CudaStream;
use hardware::engines::{ENGINE, on_engines};
use hardware::{
    World, on_machine, on_machine_env, on_machine_with, settings, try_join_with, wait_for_error,
};
use ringdove::id::EngineKind;
use ringdove::window::{DeviceWindow, HostWindow, Part, Signal, Window, Windows};
use ringdove::{Communicator, Error, Registered, Settings, Stores, VerbsOrder};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of a window: the first half is read, the second has a place for each transfer.
const BYTES: u64 = 64 << 10;
/// Bytes of a place, and so of a transfer at most.
const PLACE: u64 = 1 << 10;
/// Transfers that each rank makes in a round.
const TRANSFERS: u64 = 6;
const ROUNDS: usize = 3;

fn with_lane(stores: Stores) -> Settings {
    Settings { user_lanes: 1, stores, ..settings() }
}

/// A rank's part of a window.
enum Memory {
    Device(Registered<u8>),
    /// As processes can share it.
    Shared(DeviceWindow),
    Host(HostWindow),
}

impl Memory {
    fn window(&self) -> Window {
        match self {
            Self::Device(buffer) => Window::of(buffer),
            Self::Shared(part) => part.window(),
            Self::Host(host) => host.window(),
        }
    }

    fn store(&mut self, bytes: &[u8], stream: &Arc<CudaStream>) {
        match self {
            Self::Device(buffer) => stream.memcpy_htod(bytes, buffer).unwrap(),
            Self::Shared(part) => part.store(0, bytes, stream).unwrap(),
            Self::Host(host) => host.store(0, bytes).unwrap(),
        }
        stream.synchronize().unwrap();
    }

    fn load(&self, stream: &Arc<CudaStream>) -> Vec<u8> {
        match self {
            Self::Device(buffer) => stream.clone_dtoh(buffer).unwrap(),
            Self::Shared(part) => part.load(0, part.window().bytes(), stream).unwrap(),
            Self::Host(host) => host.load(0, host.window().bytes()).unwrap(),
        }
    }
}

/// One rank with two windows: its parts are in GPU and in host memory by turns.
struct Rank<'c> {
    communicator: &'c Communicator,
    /// Streams that transfers take in turns.
    streams: [Arc<CudaStream>; 2],
    windows: Windows<'c>,
    memory: Vec<Memory>,
}

fn ranks<'c>(local: &[(&'c Communicator, &Arc<CudaStream>)]) -> Vec<Rank<'c>> {
    let open = |&(communicator, stream): &(&'c Communicator, &Arc<CudaStream>)| {
        let windows = Windows::open(communicator, 0).unwrap();
        let part = |number: u32| match (number + communicator.rank()).is_multiple_of(2) {
            true if communicator.rank_count() as usize != local.len() => {
                Memory::Shared(windows.device(BYTES).unwrap())
            }
            true => {
                let zeros = stream.alloc_zeros::<u8>(BYTES as usize).unwrap();
                stream.synchronize().unwrap();
                Memory::Device(communicator.register(zeros).unwrap())
            }
            false => Memory::Host(windows.host(BYTES).unwrap()),
        };
        let memory: Vec<_> = (0..2).map(part).collect();
        let streams = [stream.clone(), communicator.context().new_stream().unwrap()];
        Rank { communicator, streams, windows, memory }
    };
    let ranks: Vec<_> = local.iter().map(open).collect();
    for rank in &ranks {
        rank.memory.iter().for_each(|part| rank.windows.prepare(part.window()).unwrap());
    }
    ranks
}

impl Rank<'_> {
    fn meet(ranks: &[Self]) {
        for rank in ranks {
            rank.communicator.barrier(&rank.streams[0]).unwrap();
        }
        ranks.iter().for_each(|rank| rank.streams[0].synchronize().unwrap());
    }
}

/// A transfer: who makes it, its ends (rank, window, offset), bytes, and whether it signals.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    by: u32,
    from: (u32, usize, u64),
    to: (u32, usize, u64),
    bytes: u64,
    signal: bool,
}

impl Transfer {
    /// Whom its signal is for.
    fn peer(&self) -> u32 {
        if self.to.0 == self.by { self.from.0 } else { self.to.0 }
    }
}

/// What a seed asks for; destinations are all different.
fn transfers(random: &mut fastrand::Rng, count: u32, may_read: bool) -> Vec<Transfer> {
    let mut all = Vec::new();
    for by in 0..count {
        for number in 0..TRANSFERS {
            let kind = if may_read { random.u32(0..3) } else { 0 };
            let other = |random: &mut fastrand::Rng| (by + random.u32(1..count)) % count;
            let (from, to) = match kind {
                0 => (by, other(random)),
                1 => (other(random), by),
                _ => (random.u32(0..count), random.u32(0..count)),
            };
            let bytes = if random.u8(..) < 20 { 0 } else { random.u64(1..=PLACE) };
            let place = BYTES / 2 + (u64::from(by) * TRANSFERS + number) * PLACE;
            let transfer = Transfer {
                by,
                from: (from, random.usize(0..2), random.u64(0..=BYTES / 2 - bytes)),
                to: (to, random.usize(0..2), place + random.u64(0..=PLACE - bytes)),
                bytes,
                signal: false,
            };
            let signal = transfer.peer() != by && random.bool();
            all.push(Transfer { signal, ..transfer });
        }
    }
    all
}

/// Random transfers between all parts of all ranks, on streams and from the host; what is there
/// afterwards is compared with a model. All processes have the same seed.
fn random_transfers(local: &[(&Communicator, &Arc<CudaStream>)], may_read: bool, seed: u64) {
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let count = local[0].0.rank_count();
    let mut ranks = ranks(local);
    for round in 0..ROUNDS {
        let mut expected: Vec<[Vec<u8>; 2]> = (0..count)
            .map(|_| [(); 2].map(|()| (0..BYTES).map(|_| random.u8(..)).collect()))
            .collect();
        for rank in &mut ranks {
            let bytes = &expected[rank.communicator.rank() as usize];
            for (memory, bytes) in rank.memory.iter_mut().zip(bytes) {
                memory.store(bytes, &rank.streams[0]);
            }
        }
        Rank::meet(&ranks);
        let all = transfers(&mut random, count, may_read);
        let ways: Vec<_> = all.iter().map(|_| random.usize(0..3)).collect();
        let mut pending = Vec::new();
        for rank in &ranks {
            let number = rank.communicator.rank();
            let names: Vec<_> = rank.memory.iter().map(Memory::window).collect();
            for (transfer, &way) in all.iter().zip(&ways).filter(|(one, _)| one.by == number) {
                let part = |(rank, window, offset): (u32, usize, u64)| {
                    names[window].part(rank, offset, transfer.bytes)
                };
                let (from, to) = (part(transfer.from), part(transfer.to));
                let signal = if transfer.signal { Signal::Raise } else { Signal::None };
                let (windows, stream) = (&rank.windows, &rank.streams[way % 2]);
                match (way, transfer.from.0 == number, transfer.to.0 == number) {
                    (2, ..) => pending.push(windows.start(&from, &to, signal).unwrap()),
                    (_, true, false) => windows.write(&from, &to, signal, stream).unwrap(),
                    (_, false, true) => windows.read(&from, &to, signal, stream).unwrap(),
                    _ => windows.copy(&from, &to, signal, stream).unwrap(),
                }
            }
        }
        for rank in &ranks {
            let number = rank.communicator.rank();
            for peer in (0..count).filter(|&peer| peer != number) {
                let is_mine = |one: &&Transfer| one.signal && one.by == peer;
                let mine = all.iter().filter(is_mine).filter(|one| one.peer() == number).count();
                match random_way(seed, round, number) {
                    true => rank.windows.wait(peer, mine as u32, &rank.streams[0]).unwrap(),
                    false => pending.push(rank.windows.start_wait(peer, mine as u32).unwrap()),
                }
            }
        }
        pending.into_iter().for_each(|one| one.finish().unwrap());
        for rank in &ranks {
            rank.streams.iter().for_each(|stream| stream.synchronize().unwrap());
            rank.communicator.check().unwrap();
        }
        Rank::meet(&ranks);
        for one in &all {
            let (from, to) = (one.from, one.to);
            let start = from.2 as usize;
            let data =
                expected[from.0 as usize][from.1][start..start + one.bytes as usize].to_vec();
            let start = to.2 as usize;
            expected[to.0 as usize][to.1][start..start + data.len()].copy_from_slice(&data);
        }
        for rank in &ranks {
            let number = rank.communicator.rank();
            for (window, memory) in rank.memory.iter().enumerate() {
                let seen = memory.load(&rank.streams[0]);
                let wanted = &expected[number as usize][window];
                let wrong = (0..seen.len()).find(|&at| seen[at] != wanted[at]);
                let place = wrong.and_then(|at| {
                    all.iter().find(|one| {
                        (one.to.0, one.to.1) == (number, window)
                            && (one.to.2..one.to.2 + one.bytes).contains(&(at as u64))
                    })
                });
                let at = format!("seed {seed}, round {round}, rank {number}, window {window}");
                assert_eq!(wrong, None, "{at}: {place:?}");
            }
        }
        Rank::meet(&ranks);
    }
}

fn random_way(seed: u64, round: usize, rank: u32) -> bool {
    (seed ^ round as u64 ^ u64::from(rank)).is_multiple_of(2)
}

/// Do ranks of this test read what their threads do not reach?
fn may_read(settings: &Settings) -> bool {
    settings.engine == EngineKind::Proxy
}

/// If this fails, a transfer goes to the wrong place, rank or memory, or a signal comes before its
/// data or never: GPU threads move the data, or, with device engines, those.
#[test]
fn random_transfers_arrive() {
    on_engines("pcie4", || {
        let settings = with_lane(Stores::Auto);
        let world = World::with(4, &settings);
        random_transfers(
            &world.ranks().collect::<Vec<_>>(),
            may_read(&settings),
            fastrand::u64(..),
        );
        world.finish();
    });
}

/// As above, by copy engines alone, on two GPUs.
#[test]
fn copy_engines_serve_where_stores_are_off() {
    on_machine("pcie4", || {
        let world = World::with(2, &with_lane(Stores::Never));
        random_transfers(&world.ranks().collect::<Vec<_>>(), true, fastrand::u64(..));
        world.finish();
    });
}

/// Two ranks in each of two processes.
fn over_processes(seed: u64, verbs_order: VerbsOrder) {
    let settings = Settings { verbs_order, ..with_lane(Stores::Auto) };
    let ranks = try_join_with(2, settings.clone()).unwrap();
    let streams: Vec<_> = ranks.iter().map(|rank| rank.context().new_stream().unwrap()).collect();
    let local: Vec<_> = ranks.iter().zip(&streams).collect();
    random_transfers(&local, may_read(&settings), seed);
}

/// As above, between processes of a node: parts of the other are opened by name.
#[test]
fn random_transfers_cross_processes() {
    on_machine_with("pcie4", &["--procs", "2"], || over_processes(20_261_125, VerbsOrder::Auto));
}

/// Files of host memory that this process maps, and whether they still have a name.
fn shared_files() -> BTreeMap<PathBuf, bool> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let places =
        maps.lines().filter_map(|line| line.find("/dev/shm/ringdove-").map(|at| &line[at..]));
    places
        .map(|place| match place.strip_suffix(" (deleted)") {
            Some(path) => (path.into(), false),
            None => (place.into(), true),
        })
        .collect()
}

/// Waits until none of `files` has a name any more.
fn wait_for_no_name<'a>(files: impl Iterator<Item = &'a PathBuf> + Clone) {
    let since = Instant::now();
    while files.clone().any(|path| path.exists()) {
        assert!(since.elapsed() < Duration::from_secs(30), "{:?}", files.collect::<Vec<_>>());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// If this fails, a program that is killed leaves its windows in `/dev/shm` for ever; or one that
/// has ended well those that it had not prepared.
#[test]
fn host_memory_has_no_name_once_all_have_opened_it() {
    on_machine_with("pcie4", &["--procs", "2"], || {
        let ranks = try_join_with(1, with_lane(Stores::Auto)).unwrap();
        let windows = Windows::open(&ranks[0], 0).unwrap();
        let prepared = windows.host(4096).unwrap();
        assert!(shared_files().values().eq(&[true]), "{:?}", shared_files());
        windows.prepare(prepared.window()).unwrap();
        // Of both processes: each maps the other's.
        let files = shared_files();
        assert_eq!(files.len(), 2, "{files:?}");
        wait_for_no_name(files.keys());
        let unprepared = windows.host(4096).unwrap();
        let files = shared_files();
        assert_eq!(files.values().filter(|named| **named).count(), 1, "{files:?}");
        drop((windows, prepared, unprepared));
        drop(ranks);
        wait_for_no_name(files.keys());
    });
}

/// As above, between nodes: adapters write and read, also what passes through a third rank.
#[test]
fn random_transfers_cross_nodes() {
    on_machine_with("pcie4 x 2", &["--procs", "2"], || {
        over_processes(20_261_126, VerbsOrder::Auto)
    });
}

/// As above, where signals are immediate data: those of reads go behind the read.
#[test]
fn random_transfers_cross_nodes_with_signals_as_immediates() {
    for order in [VerbsOrder::Immediate, VerbsOrder::Flush] {
        on_machine_with("pcie4 x 2", &["--procs", "2"], || over_processes(20_261_128, order));
    }
}

/// As above, where the network delays packets, and where a port is down for a while.
#[test]
fn random_transfers_cross_a_network_with_faults() {
    for fault in ["*:delay=100", "node0/*:port-flap=60:200000"] {
        let options = ["--procs", "2", "--fault", fault];
        on_machine_with("pcie4 x 2", &options, || over_processes(20_261_129, VerbsOrder::Auto));
    }
}

/// If this fails, a transfer hangs where a port goes down, or its error does not say where.
#[test]
fn a_port_that_goes_down_ends_reads_and_writes_in_an_error() {
    let options = ["--procs", "2", "--fault", "node1/*:port-down-after=60"];
    on_machine_with("pcie4 x 2", &options, || {
        let retry_timeout = Duration::from_millis(500);
        let settings = Settings { retry_timeout, ..with_lane(Stores::Auto) };
        let ranks = try_join_with(1, settings).unwrap();
        let windows = Windows::open(&ranks[0], 0).unwrap();
        let memory = windows.host(4096).unwrap();
        let (own, peer) = (ranks[0].rank(), 1 - ranks[0].rank());
        let (here, there) = (memory.window().all_of(own), memory.window().all_of(peer));
        // One reads and one writes, until it does not go on.
        let step = |count: u32| {
            let (from, to) = if own == 0 { (&there, &here) } else { (&here, &there) };
            assert!(count < 10_000, "no fault came");
            windows.start(from, to, Signal::None)?.finish()
        };
        let error = (0..).find_map(|count| step(count).err()).unwrap();
        println!("{error}");
        assert!(!matches!(error, Error::Argument { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("rank") || text.contains("adapter"), "{text}");
    });
}

/// As above, by device engines, which write.
#[test]
fn random_writes_cross_nodes_by_device_engines() {
    let engine = [(ENGINE, "device")];
    on_machine_env("ark x 2", &["--procs", "2"], &engine, || {
        over_processes(20_261_127, VerbsOrder::Auto)
    });
}

/// If this fails, a large transfer loses its end, or what several writers put beside one another.
#[test]
fn large_transfers_and_writers_beside_one_another() {
    on_machine("pcie4", || {
        const LARGE: u64 = 9 << 20;
        let world = World::with(4, &with_lane(Stores::Auto));
        let windows: Vec<_> =
            world.communicators.iter().map(|rank| Windows::open(rank, 0).unwrap()).collect();
        let memory: Vec<_> = windows.iter().map(|rank| rank.host(LARGE).unwrap()).collect();
        let window = memory[0].window();
        for (rank, part) in (0u8..).zip(&memory) {
            part.store(0, &vec![rank + 1; LARGE as usize]).unwrap();
        }
        // Each of the others writes a third of rank 0's part; larger than any descriptor carries.
        let third = LARGE / 3;
        let writes: Vec<_> = (1..4)
            .map(|rank| {
                let from = window.part(rank, 0, third);
                let to = window.part(0, u64::from(rank - 1) * third, third);
                windows[rank as usize].start(&from, &to, Signal::Raise).unwrap()
            })
            .collect();
        for rank in 1..4 {
            windows[0].start_wait(rank, 1).unwrap().finish().unwrap();
        }
        let seen = memory[0].load(0, LARGE).unwrap();
        for (rank, part) in (2u8..).zip(seen.chunks(third as usize)) {
            assert!(part.iter().all(|&byte| byte == rank), "of rank {}", rank - 1);
        }
        writes.into_iter().for_each(|write| write.finish().unwrap());
        drop(windows);
        world.finish();
    });
}

/// If this fails, a call that asks for nonsense touches memory, hangs, or ends the communicator.
#[test]
fn bad_calls_are_refused_and_leave_the_communicator_usable() {
    on_engines("pcie4", || {
        let world = World::with(2, &with_lane(Stores::Auto));
        let all = ranks(&world.ranks().collect::<Vec<_>>());
        let window = all[0].memory[0].window();
        let (own, theirs) = (window.part(0, 0, 64), window.part(1, 128, 64));
        let stream = all[0].streams[0].clone();
        let refused = |from: &Part, to: &Part, words: &[&str]| {
            let error = all[0].windows.copy(from, to, Signal::Raise, &stream).unwrap_err();
            assert!(matches!(error, Error::Argument { .. }), "{error:?}");
            let text = error.to_string();
            words.iter().for_each(|word| assert!(text.contains(word), "{word}: {text}"));
        };
        refused(&own, &window.part(1, 0, 65), &["64", "65"]);
        refused(&own, &window.part(1, BYTES - 63, 64), &["65536"]);
        refused(&own, &window.part(1, u64::MAX - 8, 64), &["65536"]);
        refused(&window.part(0, BYTES, 1), &window.part(1, 0, 1), &["65536"]);
        refused(&own, &window.part(2, 0, 64), &["rank 2"]);
        refused(&window.part(7, 0, 64), &theirs, &["rank 7"]);
        refused(&own, &window.part(0, 32, 64), &["overlap"]);
        refused(&own, &window.part(0, 64, 64), &["other ranks", "rank 0"]);
        let argument = |result: ringdove::Result<()>| {
            let error = result.unwrap_err();
            assert!(matches!(error, Error::Argument { .. }), "{error:?}");
        };
        let windows = &all[0].windows;
        argument(windows.write(&theirs, &own, Signal::None, &stream));
        argument(windows.read(&own, &theirs, Signal::None, &stream));
        argument(windows.wait(0, 1, &stream));
        argument(windows.signal(2, &stream));
        argument(windows.host(0).map(drop));
        argument(Windows::open(&world.communicators[0], 1).map(drop));
        let Memory::Host(host) = &all[0].memory[1] else { unreachable!("rank 0's second part") };
        argument(host.load(BYTES, 1).map(drop));
        argument(host.store(u64::MAX, &[1]));
        argument(windows.device(0).map(drop));
        argument(windows.host(u64::MAX).map(drop));
        // All of them were refused before anything was enqueued.
        windows.write(&own, &theirs, Signal::Raise, &stream).unwrap();
        all[1].windows.wait(0, 1, &all[1].streams[0]).unwrap();
        all[1].streams[0].synchronize().unwrap();
        drop(all);
        world.finish();
    });
}

/// If this fails, a window that was taken back is written, or a transfer to it hangs.
#[test]
fn a_window_that_was_taken_back_is_refused() {
    on_machine("pcie4", || {
        let world = World::with(2, &with_lane(Stores::Never));
        let windows: Vec<_> =
            world.communicators.iter().map(|rank| Windows::open(rank, 0).unwrap()).collect();
        let mut buffers: Vec<_> = world
            .ranks()
            .map(|(rank, stream)| {
                let zeros = stream.alloc_zeros::<u8>(4096).unwrap();
                stream.synchronize().unwrap();
                rank.register(zeros).unwrap()
            })
            .collect();
        let window = Window::of(&buffers[0]);
        let (own, theirs) = (window.part(0, 0, 64), window.part(1, 0, 64));
        let write = || windows[0].start(&own, &theirs, Signal::None);
        write().unwrap().finish().unwrap();
        for (rank, stream) in world.ranks() {
            rank.barrier(stream).unwrap();
        }
        std::thread::scope(|scope| {
            for (rank, buffer) in world.communicators.iter().zip(buffers.drain(..)) {
                scope.spawn(move || drop(rank.deregister(buffer).unwrap()));
            }
        });
        let error = write().map(drop).unwrap_err();
        assert!(matches!(error, Error::Argument { .. }), "{error:?}");
        world.communicators[0].check().unwrap();
        drop(windows);
        world.finish();
    });
}

/// If this fails, memory that is dropped under traffic is freed while others write there.
#[test]
fn windows_that_are_dropped_under_traffic_take_what_comes() {
    on_machine("pcie4", || {
        let world = World::with(2, &with_lane(Stores::Auto));
        let mut all = ranks(&world.ranks().collect::<Vec<_>>());
        let names: Vec<_> = all[0].memory.iter().map(Memory::window).collect();
        let write = |rank: &Rank<'_>, count: usize| {
            for number in 0..count {
                let window = names[number % 2];
                let (from, to) = (window.part(0, 0, 4096), window.part(1, 8192, 4096));
                rank.windows.write(&from, &to, Signal::Raise, &rank.streams[0]).unwrap();
            }
        };
        write(&all[0], 20);
        all[1].memory.clear();
        write(&all[0], 20);
        all[1].windows.wait(0, 40, &all[1].streams[0]).unwrap();
        all.iter().for_each(|rank| rank.streams[0].synchronize().unwrap());
        drop(all);
        world.finish();
    });
}

/// If this fails, a wait for a signal that nobody raises hangs, or does not say whom it waits for;
/// or an abort does not end what waits.
#[test]
fn waits_end_by_deadline_and_by_abort() {
    on_engines("pcie4", || {
        let short = Duration::from_millis(300);
        let world = World::with(2, &Settings { wait_timeout: short, ..with_lane(Stores::Auto) });
        let windows = Windows::open(&world.communicators[0], 0).unwrap();
        let pending = windows.start_wait(1, 1).unwrap();
        let text = pending.finish().unwrap_err().to_string();
        assert!(text.contains("rank 1"), "{text}");
        for rank in &world.communicators {
            wait_for_error(rank);
        }
        let error = windows.start_wait(1, 1).map(drop).unwrap_err().to_string();
        assert!(error.contains("rank 1"), "{error}");
        drop(windows);
        drop(world);
        let world = World::with(2, &with_lane(Stores::Auto));
        let windows = Windows::open(&world.communicators[0], 0).unwrap();
        let pending = windows.start_wait(1, 1).unwrap();
        world.communicators[1].abort("the test says so");
        let error = pending.finish().unwrap_err();
        assert!(matches!(error, Error::Aborted { .. }), "{error:?}");
    });
}

/// If this fails, with device engines a read is taken for a write, or tried.
#[test]
fn device_engines_refuse_to_read() {
    on_machine_env("ark", &[], &[(ENGINE, "device")], || {
        let world = World::with(2, &with_lane(Stores::Never));
        let all = ranks(&world.ranks().collect::<Vec<_>>());
        let window = all[0].memory[0].window();
        let (own, theirs) = (window.part(0, 0, 64), window.part(1, 0, 64));
        let error = all[0].windows.start(&theirs, &own, Signal::None).map(drop).unwrap_err();
        assert!(error.to_string().contains("RINGDOVE_ENGINE"), "{error}");
        all[0].windows.start(&own, &theirs, Signal::None).unwrap().finish().unwrap();
        drop(all);
        world.finish();
    });
}
