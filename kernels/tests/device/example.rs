//! The example of a user's kernel, two ranks that exchange, with this test as both engines.

use crate::gpu::{Running, STEPS_MAX};
use crate::rank::Rank;
use ringdove_kernels::launch::{PlanFault, WaitKind};
use ringdove_kernels::port::Port;
use ringdove_kernels::ptx;
use ringdove_kernels::user::{DeviceHandle, LanePorts, NO_PORT};

const COUNT: usize = 200;
const SLOT_BYTES: u32 = 1024;
/// The route that every put of a rank takes.
const DATA: u32 = 3;
/// And its credits.
const CREDIT: u32 = 4;

fn rank() -> Rank {
    let mut rank = Rank::new(2, 2, &[]);
    let port = Port { peer: 1, slot_bytes: SLOT_BYTES, ..Default::default() };
    rank.add_port(Port { route: DATA, ..port }, 2, true);
    rank.add_port(Port { route: CREDIT, ..port }, 2, false);
    rank
}

/// The handle of a rank whose only peer is rank 1.
fn handle(rank: &Rank, receive_port: u32) -> u64 {
    let ports = [
        LanePorts { send: NO_PORT, receive: NO_PORT },
        LanePorts { send: 0, receive: receive_port },
    ];
    let table = rank.arena.allocate(size_of_val(&ports), 0);
    rank.arena.put(table, bytemuck::cast_slice(&ports));
    let handle = DeviceHandle {
        communicator: rank.address,
        ports: table,
        lane_count: 1,
        ..DeviceHandle::default()
    };
    let address = rank.arena.allocate(size_of_val(&handle), 0);
    rank.arena.put(address, bytemuck::bytes_of(&handle));
    address
}

fn launch(rank: &Rank, sequence: u64, receive_port: u32, input: u64, output: u64) -> Running {
    let mut params = Vec::new();
    for word in [handle(rank, receive_port), sequence] {
        params.extend_from_slice(&word.to_le_bytes());
    }
    for word in [1u32, 1] {
        params.extend_from_slice(&word.to_le_bytes());
    }
    for word in [input, output] {
        params.extend_from_slice(&word.to_le_bytes());
    }
    params.extend_from_slice(&(COUNT as u32).to_le_bytes());
    Running::launch(ptx::EXAMPLE_EXCHANGE, ptx::EXAMPLE_EXCHANGE_ENTRY, 1, 64, params)
}

/// Carries out what `from` has rung: its data goes to `to`.
fn serve(from: &mut Rank, to: &Rank) {
    while let Some(descriptor) = from.poll() {
        if descriptor.length > 0 {
            let source = from.communicator.staging + descriptor.source_offset;
            let data = from.arena.get(source, descriptor.length as usize);
            to.arena.put(to.ports()[1].slots + descriptor.destination_offset, &data);
        }
        assert!(descriptor.arrival);
        // Data raises the receiver's arrival signal, a credit the sender's credit signal.
        let port = if descriptor.route == DATA { 1 } else { 0 };
        to.arena.raise(to.ports()[port].signal);
    }
}

/// If this fails, `put`, `signal` and `wait` of ringdove.cuh do not do what they say.
#[test]
fn two_ranks_exchange_from_inside_a_kernel() {
    let mut ranks = [rank(), rank()];
    let values = |rank: usize, launch: usize| -> Vec<f32> {
        (0..COUNT).map(|i| (i + 1000 * rank + 7 * launch) as f32).collect()
    };
    for launch_number in 0..5 {
        let mut running = Vec::new();
        let mut outputs = Vec::new();
        for (index, rank) in ranks.iter().enumerate() {
            let input = rank.arena.allocate(COUNT * 4, 0);
            let output = rank.arena.allocate(COUNT * 4, 0);
            rank.arena.put(input, bytemuck::cast_slice(&values(index, launch_number)));
            running.push(launch(rank, launch_number as u64, 1, input, output));
            outputs.push(output);
        }
        let mut is_done = [false; 2];
        for _ in 0..STEPS_MAX {
            for index in 0..2 {
                is_done[index] = running[index].step(&ranks[index].arena, &ranks[index].clock);
            }
            let [first, second] = &mut ranks;
            serve(first, second);
            serve(second, first);
            if is_done == [true; 2] {
                break;
            }
        }
        assert_eq!(is_done, [true; 2], "the exchange does not end");
        let squares = |rank: usize| values(rank, launch_number).into_iter().map(|v| v * v);
        let expected: Vec<f32> = squares(0).zip(squares(1)).map(|(a, b)| a + b).collect();
        for (rank, output) in ranks.iter().zip(outputs) {
            assert_eq!(rank.record().state, 0, "{:?}", rank.record());
            assert_eq!(rank.arena.get(output, COUNT * 4), bytemuck::cast_slice::<_, u8>(&expected));
        }
    }
    assert!(ranks.iter().flat_map(Rank::ports).all(|port| port.position == 5));
}

/// R10 holds for users' kernels too, and a wrong port number is refused.
#[test]
fn a_kernel_without_a_peer_ends_with_a_record() {
    for (receive_port, kind) in [(1, WaitKind::Arrival), (2, WaitKind::BadCall)] {
        let rank = rank();
        let input = rank.arena.allocate(COUNT * 4, 0);
        let output = rank.arena.allocate(COUNT * 4, 0);
        let mut running = launch(&rank, 42, receive_port, input, output);
        let mut steps = 0;
        while !running.step(&rank.arena, &rank.clock) {
            steps += 1;
            assert!(steps < STEPS_MAX, "the launch does not end");
        }
        let record = rank.record();
        assert_eq!((record.state, record.kind, record.sequence), (1, kind as u32, 42));
        if kind == WaitKind::BadCall {
            assert_eq!(PlanFault::from_code(record.position), Some(PlanFault::PortNumber));
            assert_eq!((record.expected, record.seen), (2, 2));
        }
        assert!(rank.ports().iter().all(|port| port.position == 0));
    }
}
