//! Communicators that are made, used and dropped, again and again.

mod hardware;

use cudarc::driver::result::mem_get_info;
use cudarc::driver::{CudaContext, CudaStream};
use hardware::engines::on_engines;
use hardware::{address, contexts, settings};
use ringdove::{Communicator, DataType, ReduceOp, Settings};
use std::sync::Arc;

const RANKS: usize = 2;
const CYCLES: usize = 1000;
/// What the driver, the allocator and the process make once is there after so many.
const WARM_UP: usize = 50;
/// More than the slots of a lane hold.
const BYTES: usize = (1 << 20) + (1 << 18);
/// What is in use of the heap may grow by so much, 1,100 bytes for each cycle. The allocator counts
/// what threads keep for later as in use, so with device engines it grows by 800 bytes for each
/// cycle, although no place in the code keeps more from cycle to cycle (seen with heaptrack).
const HEAP_BYTES: usize = 1 << 20;

/// What a process has of the system.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    threads: usize,
    files: usize,
    mappings: usize,
    shared_files: usize,
    device_bytes_free: Vec<usize>,
}

fn entries(folder: &str) -> usize {
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

/// Bytes of the heap that are in use.
fn allocated() -> usize {
    // SAFETY: it reads the allocator's counters, under its locks.
    let counters = unsafe { nix::libc::mallinfo2() };
    counters.uordblks + counters.hblkhd
}

fn held(contexts: &[Arc<CudaContext>]) -> Held {
    let free = |context: &Arc<CudaContext>| {
        context.bind_to_thread().unwrap();
        mem_get_info().unwrap().0
    };
    Held {
        threads: entries("/proc/self/task"),
        files: entries("/proc/self/fd"),
        mappings: std::fs::read_to_string("/proc/self/maps").unwrap().lines().count(),
        shared_files: entries("/dev/shm"),
        device_bytes_free: contexts.iter().map(free).collect(),
    }
}

/// Cycles with an abort of a usual test run: each takes as long as its kernels' last looks at the
/// abort word. `RINGDOVE_TEST_CYCLES=1000` is the whole.
const ABORTED: usize = 150;

fn aborted_cycles() -> usize {
    let whole = std::env::var("RINGDOVE_TEST_CYCLES").ok();
    whole.map_or(ABORTED, |text| text.parse().unwrap())
}

/// If this fails, a program that recovers from aborts again and again runs out of threads, files,
/// mappings, shared files, or memory of the host or of a GPU.
#[test]
fn communicators_that_are_aborted_in_kernels_leave_nothing_behind() {
    on_engines("pcie4", || {
        let contexts = contexts(RANKS);
        let streams: Vec<_> =
            contexts.iter().map(|context| context.new_stream().unwrap()).collect();
        let buffer = |stream: &Arc<CudaStream>| {
            let buffer = stream.alloc_zeros::<u8>(BYTES).unwrap();
            stream.synchronize().unwrap();
            buffer
        };
        let buffers: Vec<_> = streams.iter().map(buffer).collect();
        let settings = Settings { slot_bytes: 64 << 10, blocks_max: 1, ..settings() };
        let mut cycle = |number: usize| {
            let ranks = Communicator::init_all(&contexts, &settings).unwrap();
            let sum = |rank: usize| {
                let (at, kind, op) = (address(&buffers[rank]), DataType::U32, ReduceOp::Sum);
                let stream = &streams[rank];
                // SAFETY: the buffers outlive all communicators, and nobody else uses them before
                // the streams have passed.
                unsafe { ranks[rank].all_reduce_raw(at, at, BYTES / 4, kind, op, stream) }
            };
            (0..RANKS).for_each(|rank| sum(rank).unwrap());
            // One rank's kernel waits for the other's; of every other one it has not begun yet.
            sum(number % RANKS).unwrap();
            if number % 4 < 2 {
                streams[1 - number % RANKS].synchronize().unwrap();
            }
            ranks[number % RANKS].abort("the end of a cycle");
            streams.iter().for_each(|stream| stream.synchronize().unwrap());
            assert!(ranks.iter().all(|rank| rank.check().is_err()));
        };
        let cycles = aborted_cycles();
        (0..WARM_UP).for_each(&mut cycle);
        let (before, heap_before) = (held(&contexts), allocated());
        (WARM_UP..cycles).for_each(&mut cycle);
        let (after, heap_after) = (held(&contexts), allocated());
        assert_eq!(before, after, "after {WARM_UP} cycles, and after {cycles}");
        let grown = heap_after.saturating_sub(heap_before);
        assert!(grown < HEAP_BYTES, "{grown} bytes more after {} cycles", cycles - WARM_UP);
    });
}

/// If this fails, a program that makes communicators for a while each runs out of threads, files,
/// mappings, or memory of the host or of a GPU.
#[test]
fn a_thousand_communicators_leave_nothing_behind() {
    on_engines("pcie4", || {
        let contexts = contexts(RANKS);
        let streams: Vec<_> =
            contexts.iter().map(|context| context.new_stream().unwrap()).collect();
        let buffer = |stream: &Arc<CudaStream>| {
            let buffer = stream.alloc_zeros::<u8>(2 * BYTES).unwrap();
            stream.synchronize().unwrap();
            buffer
        };
        let buffers: Vec<_> = streams.iter().map(buffer).collect();
        let settings = Settings { slot_bytes: 64 << 10, blocks_max: 1, ..settings() };
        let mut cycles = 0;
        let mut cycle = || {
            cycles += 1;
            let ranks = Communicator::init_all(&contexts, &settings).unwrap();
            let at = |rank: usize| address(&buffers[rank]);
            let mut registrations = Vec::new();
            for (number, rank) in ranks.iter().enumerate() {
                // SAFETY: the buffers outlive all communicators.
                unsafe {
                    rank.register_raw(at(number), BYTES).unwrap();
                    let local = rank.register_local_raw(at(number) + BYTES as u64, BYTES);
                    registrations.push(local.unwrap());
                }
            }
            for (number, rank) in ranks.iter().enumerate() {
                let (address, stream) = (at(number), &streams[number]);
                let (kind, op) = (DataType::U32, ReduceOp::Sum);
                // SAFETY: nobody else uses the buffers before the streams have passed.
                unsafe {
                    rank.all_reduce_raw(address, address, BYTES / 4, kind, op, stream).unwrap();
                    let (mut group, peer) = (rank.group(), 1 - number as u32);
                    group.send_raw(address, BYTES, DataType::U8, peer).unwrap();
                    let to = address + BYTES as u64;
                    group.receive_raw(to, BYTES, DataType::U8, peer).unwrap();
                    group.launch(stream).unwrap();
                }
            }
            streams.iter().for_each(|stream| stream.synchronize().unwrap());
            ranks.iter().for_each(|rank| rank.check().unwrap());
            assert!(ranks.iter().all(|rank| rank.statistics().received_in_place == 1));
            // Of every other one, the ranks leave that to the drop.
            if cycles % 2 == 0 {
                for (rank, registration) in ranks.iter().zip(registrations) {
                    rank.deregister_local(registration).unwrap();
                }
            }
        };
        (0..WARM_UP).for_each(|_| cycle());
        let (before, heap_before) = (held(&contexts), allocated());
        (WARM_UP..CYCLES).for_each(|_| cycle());
        let (after, heap_after) = (held(&contexts), allocated());
        assert_eq!(before, after, "after {WARM_UP} cycles, and after {CYCLES}");
        let grown = heap_after.saturating_sub(heap_before);
        assert!(grown < HEAP_BYTES, "{grown} bytes more after {} cycles", CYCLES - WARM_UP);
    });
}
