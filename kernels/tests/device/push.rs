//! What a push of one descriptor costs a kernel, in instructions.

use crate::gpu::Running;
use crate::rank::Rank;
use ringdove_kernels::port::Port;
use ringdove_kernels::ptx;
use ringdove_kernels::user::{DeviceHandle, LanePorts, NO_PORT, WindowEntry};

const WINDOW_BYTES: u64 = 1 << 20;
const PUT_BYTES: u64 = 16;
/// Puts of each thread that are counted.
const PUTS: u32 = 32;
const RING_LOG2: u32 = 12;

/// A rank with one lane to rank 1, and a handle for kernels.
fn rank_and_handle() -> (Rank, u64) {
    let mut rank = Rank::new(RING_LOG2, 2, &[]);
    let port = Port { peer: 1, ..Port::default() };
    let (send, receive) = (rank.add_port(port, 0, true), rank.add_port(port, 0, false));
    let put = |bytes: &[u8]| {
        let address = rank.arena.allocate(bytes.len(), 0);
        rank.arena.put(address, bytes);
        address
    };
    let ports = [LanePorts { send: NO_PORT, receive: NO_PORT }, LanePorts { send, receive }];
    let window =
        WindowEntry { address: rank.arena.allocate(WINDOW_BYTES as usize, 0), bytes: WINDOW_BYTES };
    let handle = DeviceHandle {
        communicator: rank.address,
        ports: put(bytemuck::cast_slice(&ports)),
        windows: put(bytemuck::bytes_of(&window)),
        routes: put(bytemuck::bytes_of(&5u32)),
        lane_count: 1,
        window_count: 1,
        reached: put(&[0; 16]),
    };
    let address = put(bytemuck::bytes_of(&handle));
    (rank, address)
}

/// Warp instructions of a launch of one warp, of which `threads` put `puts` times each.
fn instructions(threads: u32, puts: u32) -> u64 {
    let (mut rank, handle) = rank_and_handle();
    let mut params = handle.to_le_bytes().to_vec();
    params.extend_from_slice(&PUT_BYTES.to_le_bytes());
    params.extend_from_slice(&puts.to_le_bytes());
    let mut running = Running::launch(ptx::TEST_PUSH, "test_push", 1, threads, params);
    while !running.step(&rank.arena, &rank.clock) {}
    assert_eq!(rank.record().state, 0, "{:?}", rank.record());
    let descriptors = std::iter::from_fn(|| rank.poll()).count();
    assert_eq!(descriptors, (threads * puts) as usize, "each thread has put");
    running.instructions()
}

/// benches/README.md has these numbers beside those of others. If this fails, a put has become
/// dearer: UCCL-EP's takes about 3 µs of a GPU, which is time for thousands of instructions.
#[test]
fn a_put_takes_few_instructions() {
    let cost = |threads| {
        let difference = instructions(threads, 2 * PUTS) - instructions(threads, PUTS);
        difference as f64 / f64::from(PUTS)
    };
    let (one, batch) = (cost(1), cost(32));
    println!("a put of one thread: {one} warp instructions");
    println!("32 puts by a warp: {batch} warp instructions, {} for each", batch / 32.0);
    assert!(one <= ONE_MAX, "{one}");
    assert!(batch <= BATCH_MAX, "{batch}");
}

/// The most: it opens its lane, checks, encodes, and has one fence, one atomic, one look at the
/// cached tail and one store of 16 bytes. A tenth is margin.
const ONE_MAX: f64 = 124.0;
/// The same instructions serve all threads of a warp.
const BATCH_MAX: f64 = ONE_MAX;
