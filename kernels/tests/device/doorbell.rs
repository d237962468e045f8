//! The producer's side of the ring, and the descriptors that puts and credits become.

use crate::gpu::BASE;
use crate::rank::{
    BlockText, HOST_STAGING_BEFORE, PlanText, Rank, advance, buffer, op, put, slot, wait_signal,
};
use ringdove_kernels::descriptor::Descriptor;
use ringdove_kernels::launch::WaitKind;
use ringdove_kernels::op::{OpCode, Segment, flags};
use ringdove_kernels::port::Port;

fn empty() -> Descriptor {
    Descriptor {
        route: 0,
        source_offset: 0,
        destination_offset: 0,
        length: 0,
        arrival: false,
        completion: false,
    }
}

/// R1 to R4: four blocks share a ring of 4 slots and ring 60 descriptors each, so that laps and
/// full rings are the rule. If this fails, descriptors are lost, doubled or torn.
#[test]
fn blocks_share_a_small_ring() {
    const BLOCKS: u32 = 4;
    const ROUNDS: u32 = 60;
    let mut rank = Rank::new(2, 2, &[]);
    let blocks: Vec<BlockText> = (0..BLOCKS)
        .map(|index| {
            let port = Port { route_index: index, peer: 1, ..Default::default() };
            let number = rank.add_port(port, 0, true);
            let ops = [put(0, buffer(1, 0), buffer(0, 0), 16, flags::ARRIVAL)];
            let segment =
                Segment { rounds: ROUNDS, round_stride: 16, limit: u64::MAX, ..Default::default() };
            BlockText { ports: vec![number], segments: vec![(segment, ops.to_vec())] }
        })
        .collect();
    let mut arguments = rank.arguments(&PlanText { threads: 32, blocks }.encode());
    arguments.region_offsets = [0x100, 0x2_0000, 0, 0];
    arguments.route_bases[1] = 40;
    let mut seen = vec![Vec::new(); BLOCKS as usize];
    let mut steps = 0;
    rank.execute(&arguments, (BLOCKS, 32), |rank| {
        // A slow engine: at most three descriptors, and not at each step.
        steps += 1;
        for _ in 0..steps % 4 {
            if let Some(descriptor) = rank.poll() {
                seen[descriptor.route as usize - 40].push(descriptor);
            }
        }
    });
    while let Some(descriptor) = rank.poll() {
        seen[descriptor.route as usize - 40].push(descriptor);
    }
    assert_eq!(rank.record().state, 0, "{:?}", rank.record());
    for (block, found) in seen.iter().enumerate() {
        let expected: Vec<Descriptor> = (0..u64::from(ROUNDS))
            .map(|round| Descriptor {
                route: 40 + block as u32,
                source_offset: 0x100 + 16 * round,
                destination_offset: 0x2_0000 + 16 * round,
                length: 16,
                arrival: true,
                completion: false,
            })
            .collect();
        assert_eq!(found, &expected, "block {block}, in the order of its program (R11)");
    }
    assert_eq!(rank.arena.read_as::<u64>(rank.communicator.ring_head), u64::from(BLOCKS * ROUNDS));
}

/// R4 and R10: with no engine the ring fills, and the launch ends with a record that names the
/// position, instead of spinning or overwriting.
#[test]
fn a_ring_that_stays_full_is_reported() {
    let mut rank = Rank::new(1, 2, &[]);
    let number = rank.add_port(Port { peer: 1, ..Default::default() }, 0, true);
    let ops = vec![put(0, buffer(1, 0), buffer(0, 0), 16, 0); 5];
    let arguments = rank.arguments(&PlanText::single(32, &[number], &ops));
    rank.execute(&arguments, (1, 32), |_| {});
    let record = rank.record();
    assert_eq!((record.state, record.kind), (1, WaitKind::RingSpace as u32));
    assert_eq!((record.op, record.position), (2, 2));
    assert_eq!((record.expected, record.seen), (1, 0), "position 2 needs a tail of 1");
    assert_eq!(record.port, number);
    assert!(record.waited_ns >= rank.communicator.timeout_ns);
    // The two that fitted are intact.
    assert!(rank.poll().is_some() && rank.poll().is_some() && rank.poll().is_none());
}

/// Messages take the slots of their numbers, over launches and laps of the lane's slots. If this
/// fails, the two ends of a lane disagree about where a message is.
#[test]
fn slots_follow_the_position() {
    const SLOT_BYTES: u32 = 256;
    let mut rank = Rank::new(4, 2, &[]);
    let port = Port { route: 9, peer: 1, slot_bytes: SLOT_BYTES, ..Default::default() };
    let number = rank.add_port(port, 4, true);
    let receive = rank.add_port(port, 4, false);
    let starts = [number, receive].map(|n| rank.ports()[n as usize].slots - BASE);
    let ops = [
        wait_signal(0, 1 - 4),
        put(0, slot(0, 0, 32), slot(0, 0, 16), 64, flags::ARRIVAL),
        wait_signal(0, 2 - 4),
        put(0, slot(0, 1, 0), slot(0, 1, 0), SLOT_BYTES, flags::ARRIVAL | flags::COMPLETION),
        advance(0, 1, 0),
        // Relative to the position after the advance: message 2 of this launch.
        put(0, slot(0, 1, 0), slot(0, 1, 0), 1, 0),
        // What arrived at another port goes on as it lies.
        put(0, slot(0, 1, 8), slot(1, 3, 24), 8, flags::ARRIVAL),
        advance(0, 2, 1),
    ];
    let arguments = rank.arguments(&PlanText::single(32, &[number, receive], &ops));
    for launch in 0..5u64 {
        let credits = rank.ports()[number as usize].signal;
        rank.execute(&arguments, (1, 32), |_| {});
        assert_eq!(rank.record().state, 0, "{:?}", rank.record());
        let slot_start = |message: u64| (3 * launch + message) % 4 * u64::from(SLOT_BYTES);
        let first = Descriptor {
            route: 9,
            source_offset: starts[0] + slot_start(0) + 16,
            destination_offset: slot_start(0) + 32,
            length: 64,
            arrival: true,
            ..empty()
        };
        let second = Descriptor {
            route: 9,
            source_offset: starts[0] + slot_start(1),
            destination_offset: slot_start(1),
            length: SLOT_BYTES,
            arrival: true,
            completion: true,
        };
        let third = Descriptor {
            route: 9,
            source_offset: starts[0] + slot_start(2),
            destination_offset: slot_start(2),
            length: 1,
            ..empty()
        };
        let forwarded = Descriptor {
            route: 9,
            source_offset: starts[1] + 3 * u64::from(SLOT_BYTES) + 24,
            destination_offset: slot_start(2) + 8,
            length: 8,
            arrival: true,
            ..empty()
        };
        let found: Vec<Descriptor> = std::iter::from_fn(|| rank.poll()).collect();
        assert_eq!(found, [first, second, third, forwarded]);
        let port = rank.ports()[number as usize];
        assert_eq!((port.position, port.completion_position), (3 * (launch + 1), launch + 1));
        for _ in 0..3 {
            rank.arena.raise(credits);
        }
    }
}

/// Where slots lie in host memory, offsets count from its own start. If this fails, a rank whose
/// adapter reaches no device memory sends from somewhere else.
#[test]
fn slots_in_host_memory_have_a_start_of_their_own() {
    let mut rank = Rank::new(4, 2, &[]);
    let port = Port { route: 3, peer: 1, slot_bytes: 64, in_host: 1, ..Default::default() };
    let number = rank.add_port(port, 2, true);
    let start = rank.ports()[number as usize].slots - BASE;
    let ops = [put(0, slot(0, 1, 0), slot(0, 1, 0), 64, flags::ARRIVAL)];
    let arguments = rank.arguments(&PlanText::single(32, &[number], &ops));
    rank.execute(&arguments, (1, 32), |_| {});
    let found = rank.poll().unwrap();
    assert_eq!(found.source_offset, HOST_STAGING_BEFORE + start + 64);
    assert_eq!((found.route, found.destination_offset), (3, 64));
}

/// What arrived in shared host memory goes on from there, by the route that has it as its source.
/// If this fails, a rank between one that it reaches and one that it does not sends something else.
#[test]
fn what_arrived_in_other_memory_goes_on_by_a_route_of_its_own() {
    let mut rank = Rank::new(4, 2, &[]);
    let arrived = Port { route: 4, peer: 1, slot_bytes: 64, in_host: 2, ..Default::default() };
    let arrived = rank.add_port(arrived, 2, false);
    let port = Port { route: 3, route_index: 9, peer: 1, slot_bytes: 64, ..Default::default() };
    let number = rank.add_port(port, 2, true);
    let starts = [arrived, number].map(|port| rank.ports()[port as usize].slots - BASE);
    let ops = [
        put(1, slot(1, 0, 0), slot(0, 1, 0), 64, flags::ARRIVAL),
        put(1, slot(1, 1, 0), slot(1, 1, 0), 64, flags::ARRIVAL),
    ];
    let arguments = rank.arguments(&PlanText::single(32, &[arrived, number], &ops));
    rank.execute(&arguments, (1, 32), |_| {});
    let [forwarded, own] = [(); 2].map(|()| rank.poll().unwrap());
    assert_eq!(forwarded.source_offset, 2 * HOST_STAGING_BEFORE + starts[0] + 64);
    assert_eq!((forwarded.route, forwarded.destination_offset), (9, 0));
    assert_eq!((own.route, own.source_offset), (3, starts[1] + 64));
}

/// A put that is clipped to nothing still raises its signals, and rings nothing if it has none; a
/// credit is an arrival without data on the port's own route. If this fails, counts at the two
/// ends drift apart.
#[test]
fn signals_go_without_data() {
    let mut rank = Rank::new(4, 2, &[]);
    let send = rank.add_port(Port { route_index: 2, peer: 1, ..Default::default() }, 0, true);
    let receive = rank.add_port(Port { route: 5, peer: 1, ..Default::default() }, 0, false);
    let ops = vec![
        put(0, buffer(1, 8), buffer(0, 8), 64, flags::ARRIVAL),
        put(0, buffer(1, 8), buffer(0, 8), 64, 0),
        put(0, buffer(1, 8), buffer(0, 8), 64, flags::ARRIVAL | flags::COMPLETION),
        op(OpCode::Credit, 1),
    ];
    let segment = Segment { rounds: 2, round_stride: 24, limit: 24, ..Default::default() };
    let block = BlockText { ports: vec![send, receive], segments: vec![(segment, ops)] };
    let mut arguments = rank.arguments(&PlanText { threads: 32, blocks: vec![block] }.encode());
    arguments.route_bases[1] = 10;
    rank.execute(&arguments, (1, 32), |_| {});
    let data = Descriptor {
        route: 12,
        source_offset: 8,
        destination_offset: 8,
        length: 24,
        arrival: true,
        ..empty()
    };
    let credit = Descriptor { route: 5, arrival: true, ..empty() };
    let expected = [
        data,
        Descriptor { arrival: false, ..data },
        Descriptor { completion: true, ..data },
        credit,
        Descriptor { route: 12, arrival: true, ..empty() },
        Descriptor { route: 12, arrival: true, completion: true, ..empty() },
        credit,
    ];
    let found: Vec<Descriptor> = std::iter::from_fn(|| rank.poll()).collect();
    assert_eq!(found, expected);
}
