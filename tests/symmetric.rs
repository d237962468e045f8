//! All-reduces whose blocks read and write the registered buffers of all ranks (`symmetric`):
//! results of every type and reduction, in threads and in processes, in graphs, on more buffers
//! than there is room for tables of addresses, and where a buffer cannot be reached so.

mod hardware;

use cudarc::driver::CudaGraph;
use cudarc::driver::sys::{CUgraphInstantiate_flags as Flags, CUstreamCaptureMode_enum as Mode};
use hardware::captures::end_capture;
use hardware::perf::{assert_right, last_words, on_real_hardware, perf};
use hardware::{World, is_real, on_machine, settings, wait_for_error};
use ringdove::{Algorithms, Communicator, Error, ReduceOp, Registered, Settings};

/// The table of selection takes them for every registered all-reduce from 16 KiB on, where
/// NVLink joins all GPUs.
fn by_table() -> Settings {
    Settings { algorithm: Algorithms::Table, store_blocks: 4, ..settings() }
}

const INSIDE: &str = "export RINGDOVE_ALGORITHM=table RINGDOVE_STORE_BLOCKS=3 \
                      RINGDOVE_LOG=ringdove=info HWSIM_DRIVER_KEYS=pools=peer";

/// A buffer of `count` numbers on each rank, registered; rank `r` has `r + 1` everywhere.
fn registered(world: &World, count: usize) -> Vec<Registered<u32>> {
    let each = world.ranks().map(|(rank, stream)| {
        let buffer = stream.clone_htod(&vec![rank.rank() + 1; count]).unwrap();
        stream.synchronize().unwrap();
        rank.register(buffer).unwrap()
    });
    each.collect()
}

/// Three ranks, whose buffers are not tracked, so that calls on them can be captured.
fn untracked() -> World {
    let world = World::with(3, &by_table());
    for (rank, _) in world.ranks() {
        // SAFETY: each buffer is used on one stream alone.
        unsafe { rank.context().disable_event_tracking() };
    }
    world
}

fn sum(world: &World, buffers: &mut [Registered<u32>]) {
    for ((rank, stream), buffer) in world.ranks().zip(buffers) {
        rank.all_reduce_in_place(buffer, ReduceOp::Sum, stream).unwrap();
    }
}

/// One sum, as a graph of each rank.
fn captured_sum(world: &World, buffers: &mut [Registered<u32>]) -> Vec<CudaGraph> {
    for (_, stream) in world.ranks() {
        stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    }
    sum(world, buffers);
    let end = |stream| end_capture(stream, Flags(0)).unwrap().unwrap();
    world.ranks().map(|(_, stream)| end(stream)).collect()
}

/// The first number of a rank's buffer that is not what `wanted` says of its place.
fn assert_each(
    world: &World,
    buffers: &[Registered<u32>],
    wanted: impl Fn(&Communicator, usize) -> u32,
) {
    for ((rank, stream), buffer) in world.ranks().zip(buffers) {
        let seen = stream.clone_dtoh(&buffer.as_view()).unwrap();
        let wrong = seen.iter().enumerate().find(|&(place, value)| *value != wanted(rank, place));
        assert_eq!(wrong, None, "rank {}", rank.rank());
    }
}

/// If this fails, an all-reduce between registered buffers is wrong for some type, reduction, size
/// or number of ranks, or is not done this way.
#[test]
fn every_type_and_reduction_is_right() {
    if on_real_hardware() {
        return;
    }
    for (machine, processes, gpus) in
        [("dgx-a100", 1, 2), ("dgx-a100", 1, 8), ("dgx-a100", 3, 1), ("dgx1v", 2, 2)]
    {
        let line = format!("all-reduce -g {gpus} -b 20K -e 300K -f 4 -n 1 -w 1 -d all -o all -R 1");
        let ended = perf((machine, processes), "", INSIDE, &line);
        assert_right(&format!("{machine}, {processes} processes: {line}"), &ended);
        assert!(ended.1.contains("\"symmetric\""), "{machine}: {}", ended.1);
    }
}

/// If this fails, a ring between registered buffers is wrong for some type, reduction, size or
/// number of ranks, out of place or in place, or is not done this way.
#[test]
fn every_type_and_reduction_is_right_around_a_ring() {
    if on_real_hardware() {
        return;
    }
    let inside = format!("{INSIDE}; export RINGDOVE_ALGORITHM=ring-symmetric");
    for (machine, processes, gpus) in [("pcie4", 1, 4), ("dgx-a100", 3, 1), ("dgx1v", 2, 2)] {
        let line = format!("all-reduce -g {gpus} -b 20K -e 300K -f 4 -n 1 -w 1 -d all -o all -R 1");
        let ended = perf((machine, processes), "", &inside, &line);
        assert_right(&format!("{machine}, {processes} processes: {line}"), &ended);
        assert!(ended.1.contains("\"ring symmetric\""), "{machine}: {}", ended.1);
    }
}

/// If this fails, several rounds of a block do not fit together.
#[test]
fn rounds_are_right() {
    if on_real_hardware() {
        return;
    }
    let line = "all-reduce -g 4 -b 8M -e 8388676 -i 68 -n 2 -w 1 -R 1";
    for (export, taken) in
        [("", "symmetric"), ("RINGDOVE_ALGORITHM=ring-symmetric", "ring symmetric")]
    {
        let ended = perf(("dgx-a100", 1), "", &format!("{INSIDE}; export A= {export}"), line);
        assert_right(line, &ended);
        assert!(ended.1.contains(&format!("\"{taken}\"")), "{}", ended.1);
    }
}

/// If this fails, what is not registered is reached all the same, or is not reduced.
#[test]
fn other_buffers_go_other_ways() {
    if on_real_hardware() {
        return;
    }
    for (machine, line, inside) in [
        ("dgx-a100", "all-reduce -g 4 -b 256K -e 256K -n 1 -w 1 -R 0", INSIDE),
        ("dgx-a100", "all-reduce -g 4 -b 256K -e 256K -n 1 -w 1 -R 1 -o mulsum", INSIDE),
        ("pcie4", "all-reduce -g 4 -b 256K -e 256K -n 1 -w 1 -R 1", INSIDE),
    ] {
        let ended = perf((machine, 1), "", inside, line);
        assert_right(&format!("{machine}: {line}"), &ended);
        assert!(!ended.1.contains("\"symmetric\""), "{machine}: {line}: {}", ended.1);
    }
    // Over PCI the model or a setting chooses them.
    let line = "all-reduce -g 4 -b 128K -e 128K -n 1 -w 1 -R 1";
    for (export, wanted) in [
        ("RINGDOVE_STORES=always", true),
        ("RINGDOVE_ALGORITHM=auto", true),
        ("RINGDOVE_ALGORITHM=auto RINGDOVE_STORES=never", false),
    ] {
        let ended = perf(("pcie4", 1), "", &format!("{INSIDE}; export {export}"), line);
        assert_right(line, &ended);
        assert_eq!(ended.1.contains("\"symmetric\""), wanted, "{export}: {}", ended.1);
    }
}

/// If this fails, a call takes the addresses of another one: there is room for some 500 tables on
/// the device, and each part of a buffer has its own.
#[test]
fn each_of_many_buffers_is_reached() {
    if is_real() {
        println!("this test wants GPUs that NVLink joins");
        return;
    }
    on_machine("dgx-a100", || {
        const PART: usize = 4096;
        const PARTS: usize = 1300;
        let world = World::with(2, &by_table());
        let mut buffers = registered(&world, PART * PARTS);
        let mut calls = vec![0; PARTS];
        let mut random = fastrand::Rng::with_seed(21);
        for number in (0..PARTS).chain((0..200).map(|_| random.usize(..PARTS))) {
            for ((rank, stream), buffer) in world.ranks().zip(&mut buffers) {
                let mut buffer = buffer.as_view_mut();
                let mut part = buffer.slice_mut(number * PART..(number + 1) * PART);
                rank.all_reduce_in_place(&mut part, ReduceOp::Sum, stream).unwrap();
            }
            calls[number] += 1;
        }
        world.finish();
        assert_each(&world, &buffers, |rank, place| match calls[place / PART] {
            0 => rank.rank() + 1,
            times => 3 << (times - 1),
        });
    });
}

/// If this fails, a graph that is launched again reads addresses that are no longer there.
#[test]
fn captured_calls_reach_the_same_buffers_again() {
    if is_real() {
        println!("this test wants GPUs that NVLink joins");
        return;
    }
    on_machine("dgx-a100", || {
        const COUNT: usize = 30_011;
        let world = untracked();
        let mut buffers = registered(&world, COUNT);
        let mut others = registered(&world, COUNT);
        let graphs = captured_sum(&world, &mut buffers);
        for _ in 0..3 {
            graphs.iter().for_each(|graph| graph.launch().unwrap());
            sum(&world, &mut others);
        }
        world.finish();
        // Six after the first, and three times as much after each other one.
        assert_each(&world, &buffers, |_, _| 54);
        assert_each(&world, &others, |_, _| 54);
    });
}

/// If this fails, a graph reaches memory that its ranks have taken back.
#[test]
fn a_graph_that_outlives_its_buffers_is_refused() {
    if is_real() {
        println!("this test wants GPUs that NVLink joins");
        return;
    }
    on_machine("dgx-a100", || {
        const COUNT: usize = 30_011;
        let world = untracked();
        let mut buffers = registered(&world, COUNT);
        let graphs = captured_sum(&world, &mut buffers);
        graphs.iter().for_each(|graph| graph.launch().unwrap());
        world.finish();
        assert_each(&world, &buffers, |_, _| 6);
        let given_back: Vec<_> = world
            .ranks()
            .zip(buffers)
            .map(|((rank, _), buffer)| rank.deregister(buffer).unwrap())
            .collect();
        graphs.iter().for_each(|graph| graph.launch().unwrap());
        for ((rank, stream), buffer) in world.ranks().zip(&given_back) {
            stream.synchronize().unwrap();
            let error = wait_for_error(rank);
            let known = matches!(error, Error::RegistrationGone { .. } | Error::Aborted { .. });
            assert!(known, "{error}");
            let seen = stream.clone_dtoh(buffer).unwrap();
            assert_eq!(seen.iter().position(|&value| value != 6), None, "{}", rank.rank());
        }
    });
}

/// If this fails, ranks wait for ever for one that is gone while it has their buffers.
#[test]
fn a_rank_that_is_killed_ends_the_others() {
    if on_real_hardware() {
        return;
    }
    let line = "all-reduce -g 1 -b 1M -e 1M -n 1000000 -w 1 -c 0 -R 1";
    let (status, output) = perf(("dgx-a100", 3), "rank1:kill-at=2000", INSIDE, line);
    assert!(!status.success(), "{output}");
    for survivor in [0, 2] {
        assert!(last_words(&output, survivor).contains("rank 1"), "{output}");
    }
}
