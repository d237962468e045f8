//! Sends and receives between registered buffers: which of them move without a copy, and that what
//! arrives is right whoever has registered what (R15).

mod hardware;

use cudarc::driver::sys::{CUgraphInstantiate_flags as Flags, CUstreamCaptureMode_enum as Mode};
use cudarc::driver::{CudaSlice, CudaStream};
use hardware::captures::end_capture;
use hardware::engines::on_engines;
use hardware::{World, address, download, on_processes_env, on_processes_with};
use ringdove::{Collective, CollectiveSpec, Communicator, DataType, Error, Registration};
use std::sync::Arc;

/// More than the slots of a lane hold, and no whole number of messages.
const BYTES: usize = (3 << 20) + 40;

/// Between ranks of other processes: memory that the driver shares, opened at once.
const SHARED: [&str; 2] = ["--driver-key", "pools=peer"];
const AT_ONCE: [(&str, &str); 1] = [(hardware::AT_ONCE, "true")];

type Rank<'a> = (&'a Communicator, &'a Arc<CudaStream>);

/// A rank's two buffers.
struct Buffers {
    sent: CudaSlice<u8>,
    received: CudaSlice<u8>,
}

fn value(rank: u32, round: u32) -> u8 {
    (17 * rank + 31 * round + 1) as u8
}

impl Buffers {
    fn new((rank, stream): Rank<'_>) -> Self {
        let sent = stream.clone_htod(&vec![value(rank.rank(), 0); BYTES]).unwrap();
        Self { sent, received: stream.alloc_zeros(BYTES).unwrap() }
    }

    fn fill(&mut self, (rank, stream): Rank<'_>, round: u32) {
        stream.memcpy_htod(&vec![value(rank.rank(), round); BYTES], &mut self.sent).unwrap();
        stream.memset_zeros(&mut self.received).unwrap();
        stream.synchronize().unwrap();
    }
}

fn register((rank, _): Rank<'_>, buffer: &CudaSlice<u8>) -> Registration {
    // SAFETY: buffers outlive their registrations, or the communicator.
    unsafe { rank.register_local_raw(address(buffer), buffer.len()) }.unwrap()
}

/// Sends `bytes` to the next rank and receives as many from the one before; of `at` of the buffers.
fn shift((rank, stream): Rank<'_>, buffers: &Buffers, at: usize, bytes: usize) {
    let (own, count) = (rank.rank(), rank.rank_count());
    let mut group = rank.group();
    let [sent, received] = [&buffers.sent, &buffers.received].map(|it| address(it) + at as u64);
    // SAFETY: the buffers are left alone until the stream has passed.
    unsafe {
        group.send_raw(sent, bytes, DataType::U8, (own + 1) % count).unwrap();
        group.receive_raw(received, bytes, DataType::U8, (own + count - 1) % count).unwrap();
    }
    group.launch(stream).unwrap();
}

fn assert_shifted((rank, _): Rank<'_>, buffers: &Buffers, round: u32, at: usize, bytes: usize) {
    rank.check().unwrap();
    let count = rank.rank_count();
    let wanted = value((rank.rank() + count - 1) % count, round);
    let seen = download(&buffers.received);
    let is_right = |(place, byte): (usize, &u8)| {
        *byte == if (at..at + bytes).contains(&place) { wanted } else { 0 }
    };
    let wrong = seen.iter().enumerate().position(|it| !is_right(it));
    assert_eq!(wrong, None, "rank {}, round {round}: not {wanted}", rank.rank());
}

/// Waits until all ranks have come here.
fn meet(ranks: &[Rank<'_>]) {
    ranks.iter().for_each(|(rank, stream)| rank.barrier(stream).unwrap());
    ranks.iter().for_each(|(_, stream)| stream.synchronize().unwrap());
}

/// Rounds of a shift around all ranks: `registers` says what of a rank's memory is registered.
/// Gives how often each rank sent and received without a copy.
fn rounds(
    ranks: &[Rank<'_>],
    registers: impl Fn(u32) -> [bool; 2],
    count: u32,
    settle: impl Fn(),
) -> Vec<[u64; 2]> {
    let mut buffers: Vec<_> = ranks.iter().map(|&rank| Buffers::new(rank)).collect();
    for (&rank, buffers) in ranks.iter().zip(&buffers) {
        let [sent, received] = registers(rank.0.rank());
        let of = [(sent, &buffers.sent), (received, &buffers.received)];
        for (_, buffer) in of.into_iter().filter(|(wanted, _)| *wanted) {
            register(rank, buffer);
        }
    }
    for round in 0..count {
        for (&rank, buffers) in ranks.iter().zip(&mut buffers) {
            buffers.fill(rank, round);
        }
        ranks.iter().zip(&buffers).for_each(|(&rank, it)| shift(rank, it, 0, BYTES));
        for (&rank, buffers) in ranks.iter().zip(&buffers) {
            rank.1.synchronize().unwrap();
            assert_shifted(rank, buffers, round, 0, BYTES);
        }
        settle();
    }
    let counts = |rank: &Rank<'_>| {
        let statistics = rank.0.statistics();
        [statistics.sent_in_place, statistics.received_in_place]
    };
    let counts = ranks.iter().map(counts).collect();
    ranks.iter().for_each(|rank| rank.0.check().unwrap());
    // Communicators know the memory until they end.
    std::mem::forget(buffers);
    counts
}

/// If this fails, data between registered buffers is copied, or a rank whose peer has registered
/// nothing, or the other buffer, gets what is wrong.
#[test]
fn each_rank_decides_for_its_own_memory() {
    on_engines("pcie4", || {
        let cases: [[[bool; 2]; 2]; 4] = [
            [[true; 2], [true; 2]],
            [[true, false], [false, true]],
            [[false, true], [true, false]],
            [[false; 2], [true; 2]],
        ];
        for case in cases {
            let world = World::new(2);
            let ranks: Vec<_> = world.ranks().collect();
            let counts = rounds(&ranks, |rank| case[rank as usize], 3, || {});
            // Of one process: the memory is known from the first call on.
            let wanted = case.map(|rank| rank.map(|registered| 3 * u64::from(registered)));
            assert_eq!(counts, wanted, "{case:?}");
        }
    });
}

/// If this fails, a part of an allocation is taken for all of it, or the other way round, or
/// small messages lose data.
#[test]
fn parts_of_an_allocation_and_small_messages_arrive() {
    on_engines("pcie4", || {
        let world = World::new(3);
        let ranks: Vec<_> = world.ranks().collect();
        let mut buffers: Vec<_> = ranks.iter().map(|&rank| Buffers::new(rank)).collect();
        let part = 1 << 20;
        for (&(rank, _), buffers) in ranks.iter().zip(&buffers) {
            for buffer in [&buffers.sent, &buffers.received] {
                let at = address(buffer) + part as u64;
                // SAFETY: as in `register`.
                unsafe { rank.register_local_raw(at, BYTES - part) }.unwrap();
            }
        }
        let mut registered = 0;
        for (round, (at, bytes)) in [
            (part, BYTES - part),
            (part + 7, BYTES - part - 7),
            (0, BYTES),
            (part, 100),
            (part + 3, 200_001),
        ]
        .into_iter()
        .enumerate()
        {
            let round = round as u32;
            for (&rank, buffers) in ranks.iter().zip(&mut buffers) {
                buffers.fill(rank, round);
            }
            ranks.iter().zip(&buffers).for_each(|(&rank, it)| shift(rank, it, at, bytes));
            registered += u64::from(at >= part && bytes > 1 << 20);
            for (&rank, buffers) in ranks.iter().zip(&buffers) {
                rank.1.synchronize().unwrap();
                assert_shifted(rank, buffers, round, at, bytes);
                assert_eq!(rank.0.statistics().received_in_place, registered);
            }
        }
        std::mem::forget(buffers);
    });
}

/// If this fails, memory that took the place of registered memory is written by routes to what is
/// gone, or a buffer that was taken back is still granted.
#[test]
fn a_registration_is_never_stale() {
    on_engines("pcie4", || {
        let world = World::new(2);
        let ranks: Vec<_> = world.ranks().collect();
        let in_place = |rank: Rank<'_>| rank.0.statistics().received_in_place;
        for round in 0..3u32 {
            let mut kept = Vec::new();
            let mut buffers: Vec<_> = ranks.iter().map(|&rank| Buffers::new(rank)).collect();
            for (&rank, buffers) in ranks.iter().zip(&buffers) {
                kept.push([&buffers.sent, &buffers.received].map(|it| register(rank, it)));
            }
            let before: Vec<_> = ranks.iter().map(|&rank| in_place(rank)).collect();
            for (&rank, buffers) in ranks.iter().zip(&mut buffers) {
                buffers.fill(rank, round);
            }
            ranks.iter().zip(&buffers).for_each(|(&rank, it)| shift(rank, it, 0, BYTES));
            for (&rank, buffers) in ranks.iter().zip(&buffers) {
                rank.1.synchronize().unwrap();
                assert_shifted(rank, buffers, round, 0, BYTES);
            }
            for (&rank, before) in ranks.iter().zip(before) {
                assert_eq!(in_place(rank), before + 1);
            }
            let places: Vec<_> = buffers.iter().map(|it| address(&it.received)).collect();
            let is_taken_back = round != 1;
            if is_taken_back {
                for (&(rank, _), registrations) in ranks.iter().zip(&kept) {
                    for &registration in registrations {
                        rank.deregister_local(registration).unwrap();
                    }
                }
            }
            // Freed, whether it was taken back or not, and allocated again, at the same place.
            drop(buffers);
            ranks.iter().for_each(|(_, stream)| stream.synchronize().unwrap());
            let mut again: Vec<_> = ranks.iter().map(|&rank| Buffers::new(rank)).collect();
            let now: Vec<_> = again.iter().map(|it| address(&it.received)).collect();
            assert!(now.iter().any(|at| places.contains(at)), "nothing is where it was");
            let before: Vec<_> = ranks.iter().map(|&rank| in_place(rank)).collect();
            for (&rank, buffers) in ranks.iter().zip(&mut again) {
                buffers.fill(rank, round + 50);
            }
            ranks.iter().zip(&again).for_each(|(&rank, it)| shift(rank, it, 0, BYTES));
            for ((&rank, buffers), before) in ranks.iter().zip(&again).zip(before) {
                rank.1.synchronize().unwrap();
                assert_shifted(rank, buffers, round + 50, 0, BYTES);
                assert_eq!(in_place(rank), before, "a stale registration was granted");
            }
        }
    });
}

/// If this fails, a graph sends from a registration that has taken the place of the one that it was
/// captured with.
#[test]
fn a_graph_that_outlives_its_source_is_refused() {
    on_engines("pcie4", || {
        let world = World::new(2);
        let ranks: Vec<_> = world.ranks().collect();
        let mut buffers: Vec<_> = ranks.iter().map(|&rank| Buffers::new(rank)).collect();
        let sent: Vec<_> =
            ranks.iter().zip(&buffers).map(|(&rank, it)| register(rank, &it.sent)).collect();
        for (rank, _) in &ranks {
            // SAFETY: all uses of a buffer are on one stream, or waited for.
            unsafe { rank.context().disable_event_tracking() };
        }
        let capture = |buffers: &[Buffers]| {
            for (_, stream) in &ranks {
                stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
            }
            ranks.iter().zip(buffers).for_each(|(&rank, it)| shift(rank, it, 0, BYTES));
            let end = |rank: &Rank<'_>| rank.1.end_capture(Flags(0)).unwrap().unwrap();
            ranks.iter().map(end).collect::<Vec<_>>()
        };
        ranks.iter().zip(&buffers).for_each(|(&rank, it)| shift(rank, it, 0, BYTES));
        meet(&ranks);
        let before: Vec<_> = ranks.iter().map(|rank| rank.0.statistics().sent_in_place).collect();
        let graphs = capture(&buffers);
        for (rank, before) in ranks.iter().zip(before) {
            assert_eq!(rank.0.statistics().sent_in_place, before + 1, "the capture is staged");
        }
        for (&rank, buffers) in ranks.iter().zip(&mut buffers) {
            buffers.fill(rank, 3);
        }
        graphs.iter().for_each(|graph| graph.launch().unwrap());
        for (&rank, buffers) in ranks.iter().zip(&buffers) {
            rank.1.synchronize().unwrap();
            assert_shifted(rank, buffers, 3, 0, BYTES);
        }
        // Others take their places.
        let others: Vec<_> = ranks.iter().map(|&rank| Buffers::new(rank)).collect();
        for ((&rank, &sent), other) in ranks.iter().zip(&sent).zip(&others) {
            rank.0.deregister_local(sent).unwrap();
            register(rank, &other.sent);
        }
        ranks.iter().zip(&others).for_each(|(&rank, it)| shift(rank, it, 0, BYTES));
        meet(&ranks);
        graphs.iter().for_each(|graph| graph.launch().unwrap());
        for (rank, stream) in &ranks {
            stream.synchronize().unwrap();
            let error = rank.check().unwrap_err();
            let own = |error: &Error| matches!(error, Error::RegistrationGone { .. });
            let told = |error: &Error| error.to_string().contains("was deregistered after");
            assert!(own(&error) || told(&error), "{error}");
        }
    });
}

/// If this fails, large gathers and scatters copy what they need not, in place or not, or put parts
/// where they do not belong.
#[test]
fn gathers_and_scatters_go_between_registered_buffers() {
    on_engines("pcie4", || {
        const PART: usize = 1 << 20;
        let world = World::new(3);
        let ranks: Vec<_> = world.ranks().collect();
        let stream = |rank: usize| ranks[rank].1;
        for (registered, root) in [(true, 1usize), (false, 2), (true, 0)] {
            let part = |rank: usize| vec![rank as u8 + 1; PART];
            let all = [part(0), part(1), part(2)].concat();
            let parts: Vec<_> =
                (0..3).map(|rank| stream(rank).clone_htod(&part(rank)).unwrap()).collect();
            let whole: CudaSlice<u8> = stream(root).alloc_zeros(3 * PART).unwrap();
            let mut known = Vec::new();
            if registered {
                known.extend((0..3).map(|rank| (rank, register(ranks[rank], &parts[rank]))));
                known.push((root, register(ranks[root], &whole)));
            }
            let before: Vec<_> = ranks.iter().map(|rank| rank.0.statistics()).collect();
            let call = |collective, buffers: &dyn Fn(usize) -> [u64; 2]| {
                for (number, (rank, stream)) in ranks.iter().enumerate() {
                    let spec =
                        CollectiveSpec { collective, data_type: DataType::U8, reduction: None };
                    // SAFETY: the buffers are left alone until all streams have passed.
                    unsafe { rank.collective_raw(spec, buffers(number), PART, stream) }.unwrap();
                }
                world.finish();
            };
            let root_rank = root as u32;
            let gather = Collective::Gather { root: root_rank };
            call(gather, &|rank| [address(&parts[rank]), address(&whole)]);
            assert!(download(&whole) == all, "gather to {root}");
            // In place: the root's part is there already.
            let own = address(&whole) + (root * PART) as u64;
            let input = |rank| if rank == root { own } else { address(&parts[rank]) };
            call(gather, &|rank| [input(rank), address(&whole)]);
            assert!(download(&whole) == all, "gather to {root} in place");
            let scattered: Vec<u8> = all.iter().map(|value| value + 10).collect();
            let mut whole = whole;
            stream(root).memcpy_htod(&scattered, &mut whole).unwrap();
            stream(root).synchronize().unwrap();
            let scatter = Collective::Scatter { root: root_rank };
            call(scatter, &|rank| [address(&whole), address(&parts[rank])]);
            for (rank, seen) in parts.iter().enumerate() {
                let wrong = download(seen).iter().any(|value| *value != rank as u8 + 11);
                assert!(!wrong, "scatter from {root}: rank {rank}");
            }
            for (number, (rank, before)) in ranks.iter().zip(before).enumerate() {
                let now = rank.0.statistics();
                let sent = now.sent_in_place - before.sent_in_place;
                let received = now.received_in_place - before.received_in_place;
                let wanted = match (registered, number == root) {
                    (false, _) => (0, 0),
                    (true, true) => (2, 4),
                    (true, false) => (2, 1),
                };
                assert_eq!((sent, received), wanted, "rank {number}, root {root}");
            }
            for (rank, registration) in known {
                ranks[rank].0.deregister_local(registration).unwrap();
            }
        }
    });
}

/// Registered shifts of the ranks of this process, first as they come, then captured into a graph
/// that is launched again and again.
fn in_this_process(communicators: &[Communicator]) {
    let streams: Vec<_> =
        communicators.iter().map(|rank| rank.context().new_stream().unwrap()).collect();
    let ranks: Vec<_> = communicators.iter().zip(&streams).collect();
    // Grants of other processes come with the first calls.
    let counts = rounds(&ranks, |_| [true; 2], 6, || meet(&ranks));
    for [sent, received] in counts {
        assert_eq!(sent, 6);
        assert!(received >= 3, "{received} of 6 were received in place");
    }
    for (rank, _) in &ranks {
        // SAFETY: all uses of a buffer are on one stream, or waited for.
        unsafe { rank.context().disable_event_tracking() };
    }
    let mut buffers: Vec<_> = ranks.iter().map(|&rank| Buffers::new(rank)).collect();
    for (&rank, buffers) in ranks.iter().zip(&buffers) {
        for buffer in [&buffers.sent, &buffers.received] {
            register(rank, buffer);
        }
    }
    for _ in 0..4 {
        ranks.iter().zip(&buffers).for_each(|(&rank, it)| shift(rank, it, 0, BYTES));
        ranks.iter().for_each(|(_, stream)| stream.synchronize().unwrap());
        meet(&ranks);
    }
    let before: Vec<_> = ranks.iter().map(|rank| rank.0.statistics().received_in_place).collect();
    for stream in &streams {
        stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    }
    ranks.iter().zip(&buffers).for_each(|(&rank, it)| shift(rank, it, 0, BYTES));
    let end = |stream: &Arc<CudaStream>| end_capture(stream, Flags(0)).unwrap().unwrap();
    let graphs: Vec<_> = streams.iter().map(end).collect();
    for (rank, before) in ranks.iter().zip(before) {
        assert_eq!(rank.0.statistics().received_in_place, before + 1, "the capture is staged");
    }
    for round in 1..5 {
        for (&rank, buffers) in ranks.iter().zip(&mut buffers) {
            buffers.fill(rank, round);
        }
        meet(&ranks);
        graphs.iter().for_each(|graph| graph.launch().unwrap());
        for (&rank, buffers) in ranks.iter().zip(&buffers) {
            rank.1.synchronize().unwrap();
            assert_shifted(rank, buffers, round, 0, BYTES);
        }
    }
    meet(&ranks);
    std::mem::forget(buffers);
}

/// If this fails, memory of other processes is written where it is not, or is never opened.
#[test]
fn between_processes_of_a_node() {
    on_processes_with("pcie4", &SHARED, (2, 1), |ranks| in_this_process(&ranks));
}

/// If this fails, memory is not opened where a driver allows it at any time. (The strict one does
/// not: opening waits there for kernels that wait for engines.)
#[test]
fn memory_is_opened_beside_kernels_where_that_is_asked_for() {
    let lenient = ["--driver-profile", "lenient"];
    for division in [(2, 1), (2, 2)] {
        on_processes_env("pcie4", &lenient, &AT_ONCE, division, |ranks| in_this_process(&ranks));
    }
}

/// If this fails, adapters write where they have no key, or a graph does.
#[test]
fn between_nodes() {
    for division in [(2, 1), (4, 1)] {
        on_processes_with("pcie4 x 2", &SHARED, division, |ranks| in_this_process(&ranks));
    }
}

/// The same with device engines, whose peers are named by windows.
#[test]
fn between_nodes_with_device_engines() {
    let device = [("RINGDOVE_ENGINE", "device")];
    on_processes_env("ark x 2", &SHARED, &device, (2, 1), |ranks| in_this_process(&ranks));
}

/// Shifts of buffers that are new in each round, at places of those before.
fn with_the_cache(communicators: &[Communicator]) {
    let streams: Vec<_> =
        communicators.iter().map(|rank| rank.context().new_stream().unwrap()).collect();
    let ranks: Vec<_> = communicators.iter().zip(&streams).collect();
    let mut places = std::collections::BTreeSet::new();
    let (mut again, rounds) = (0, 8);
    for round in 0..rounds {
        let mut buffers: Vec<_> = ranks.iter().map(|&rank| Buffers::new(rank)).collect();
        again += usize::from(!places.insert(address(&buffers[0].received)));
        // The second call of a round finds what the first one has registered.
        for half in [2 * round, 2 * round + 1] {
            for (&rank, buffers) in ranks.iter().zip(&mut buffers) {
                buffers.fill(rank, half);
            }
            meet(&ranks);
            ranks.iter().zip(&buffers).for_each(|(&rank, it)| shift(rank, it, 0, BYTES));
            for (&rank, buffers) in ranks.iter().zip(&buffers) {
                rank.1.synchronize().unwrap();
                assert_shifted(rank, buffers, half, 0, BYTES);
            }
            meet(&ranks);
        }
    }
    assert!(again > 0, "no address came twice");
    for (rank, _) in &ranks {
        let statistics = rank.statistics();
        let all = 2 * u64::from(rounds);
        assert!(statistics.sent_in_place >= all / 2, "{statistics:?}");
        assert!(statistics.received_in_place > 0, "{statistics:?}");
    }
}

/// If this fails, the cache registers nothing, keeps what was freed, or takes memory for what was
/// at its address before.
#[test]
fn the_registration_cache_forgets_freed_memory() {
    let cache = [(hardware::CACHE, "2")];
    for machine in ["pcie4", "pcie4 x 2"] {
        on_processes_env(machine, &SHARED, &cache, (2, 1), |ranks| with_the_cache(&ranks));
    }
}
