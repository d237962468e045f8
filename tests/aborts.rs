//! How long an abort takes to reach every rank, also those whose kernels wait; and that what was
//! aborted or has lost a rank can be left behind: survivors shrink and go on with right results.

mod hardware;

use hardware::engines::on_engines;
use hardware::{FOLDER, World, on_processes_env, settings, total, wait_for_all};
use ringdove::{Communicator, DataType, ReduceOp, Settings, Stores};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Every abort has an end: a test run shares its processors with others.
const LIMIT: Duration = Duration::from_secs(5);
/// How long an abort may take on a machine with nothing else to do: one of a few must show it.
/// `benches/abort.rs` measures more of them.
const BAR: Duration = Duration::from_millis(100);
/// A few: those between processes are all made, the others until one shows it.
const TRIES: usize = 5;
const BYTES: usize = 1 << 20;

/// Bytes, and whether GPU threads move them themselves: low-latency messages by stores and by
/// engines, and slots.
const CALLS: [(usize, Stores); 3] =
    [(1024, Stores::Auto), (1024, Stores::Never), (BYTES, Stores::Never)];

/// If this fails, a rank that is aborted while its kernel waits holds its program up.
#[test]
fn an_abort_ends_the_kernels_of_every_rank() {
    on_engines("dgx1v", || {
        for (bytes, stores) in CALLS {
            let settings = Settings { stores, ..settings() };
            let is_quick = (0..TRIES).any(|_| {
                let took = abort_once(bytes, &settings);
                println!("{bytes} bytes, stores {stores:?}: all kernels had ended after {took:?}");
                took < BAR
            });
            assert!(is_quick, "none of {TRIES} aborts took less than {BAR:?}");
        }
    });
}

/// How long it takes until kernels of three ranks have ended that wait for the one that aborts.
fn abort_once(bytes: usize, settings: &Settings) -> Duration {
    let world = World::with(4, settings);
    let mut buffers = world.upload(&vec![vec![0; BYTES]; 4]);
    // Loaded and planned; then all but one call, and wait for it.
    for (rank, buffer) in buffers.iter_mut().enumerate() {
        call(&world, rank, buffer, bytes);
    }
    world.finish();
    for (rank, buffer) in buffers.iter_mut().enumerate().take(3) {
        call(&world, rank, buffer, bytes);
    }
    await_kernels(&world);
    let started = Instant::now();
    world.communicators[3].abort("enough");
    world.streams.iter().for_each(|stream| stream.synchronize().unwrap());
    let took = started.elapsed();
    assert!(took < LIMIT, "{took:?}");
    assert!(world.communicators.iter().all(|one| one.check().is_err()));
    took
}

fn call(world: &World, rank: usize, buffer: &mut cudarc::driver::CudaSlice<u8>, bytes: usize) {
    let mut part = buffer.slice_mut(..bytes);
    let (communicator, stream) = (&world.communicators[rank], &world.streams[rank]);
    let (kind, op) = (DataType::U32, ReduceOp::Sum);
    communicator.all_reduce_bytes_in_place(kind, &mut part, op, stream).unwrap();
}

/// Until kernels wait: nothing of them is seen from outside, so for as long as they take to start.
fn await_kernels(world: &World) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(100) {
        assert!(world.communicators.iter().all(|one| one.check().is_ok()));
        std::thread::yield_now();
    }
}

/// The moment of the abort, for other processes, as nanoseconds since 1970.
fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()
}

/// If this fails, ranks of other processes learn of an abort late, or cannot go on without the rank
/// that was aborted.
#[test]
fn an_abort_reaches_other_processes_and_the_rest_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let variables = [(FOLDER, folder.path().to_str().unwrap())];
    on_processes_env("pcie4", &[], &variables, (4, 1), |ranks| {
        let communicator = &ranks[0];
        let parts = (1..TRIES).map(|_| communicator.split(Some(0), 0).unwrap().unwrap());
        let mut took: Vec<_> =
            parts.enumerate().filter_map(|(number, part)| abort_by_last(&part, number)).collect();
        wait_for_all(&ranks);
        took.extend(abort_by_last(communicator, TRIES));
        if communicator.rank() != 3 {
            println!("rank {}: its kernels had ended after {took:?}", communicator.rank());
            assert!(took.iter().any(|took| *took < BAR), "{took:?}");
            let fewer = communicator.shrink(&[3]).unwrap();
            assert_eq!(total(&fewer, 1 << communicator.rank()), 7);
        }
        wait_for_all(&ranks);
    });
}

/// The last of four ranks aborts; for each of the others, how long it takes until its kernel ends.
fn abort_by_last(communicator: &Communicator, number: usize) -> Option<Duration> {
    let aborted = PathBuf::from(std::env::var(FOLDER).unwrap()).join(format!("aborted-{number}"));
    // Loaded, planned and connected.
    assert_eq!(total(communicator, 1 << communicator.rank()), 15);
    if communicator.rank() == 3 {
        // As above: the others' kernels wait.
        std::thread::sleep(Duration::from_millis(300));
        std::fs::write(&aborted, now().to_string()).unwrap();
        communicator.abort("enough");
        return None;
    }
    wait_in_kernel(communicator);
    let ended = now();
    let begun: u128 = std::fs::read_to_string(&aborted).unwrap().parse().unwrap();
    let took = Duration::from_nanos(ended.saturating_sub(begun) as u64);
    assert!(took < LIMIT, "{took:?}");
    Some(took)
}

fn wait_in_kernel(communicator: &Communicator) {
    let stream = communicator.context().per_thread_stream();
    let mut buffer = stream.clone_htod(&vec![1u32; BYTES / 4]).unwrap();
    communicator.all_reduce_in_place(&mut buffer, ReduceOp::Sum, &stream).unwrap();
    stream.synchronize().unwrap();
    assert!(communicator.check().is_err());
}
