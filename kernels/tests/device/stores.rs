//! Lanes of stores: LL messages are packed into the peers' slots (R13), puts and credits are counts
//! at the other end (R14), and nothing is rung.

use crate::low_latency::{SLOT_BYTES, low_latency_put, message, pack, rank, slot_address};
use crate::rank::{PlanText, Rank, advance, buffer, copy, op, put, slot, wait_signal};
use ringdove_kernels::launch::{PlanFault, WaitKind};
use ringdove_kernels::op::{Op, OpCode, flags, ll_bytes};
use ringdove_kernels::port::Port;

/// What a peer's slots hold before.
const OLD: u8 = 0xaa;

/// Makes each port of `stored` the send port of a lane of stores; `edit` may change it.
fn store(rank: &mut Rank, stored: &[usize], edit: impl Fn(&mut Port)) {
    let mut ports = rank.ports();
    for &number in stored {
        let bytes = 2 * SLOT_BYTES as usize;
        let slots = rank.arena.allocate(bytes, 0);
        rank.arena.put(slots, &vec![OLD; bytes]);
        ports[number].peer_slots = slots;
        edit(&mut ports[number]);
    }
    rank.arena.put(rank.communicator.ports, bytemuck::cast_slice(&ports));
}

/// A message to the peers of ports 0 and 1, of which those in `stored` are reached by stores.
fn send(stored: &[usize], position: u64, length: u32, misalignment: usize) {
    let what = format!("{stored:?} stored, {length} bytes at {misalignment}, message {position}");
    let mut rank = rank(position);
    store(&mut rank, stored, |_| {});
    let ops = [pack(length, 0b11), low_latency_put(0, length), low_latency_put(1, length)];
    let ops = [ops.as_slice(), &[advance(0, 1, 0), advance(1, 1, 0)]].concat();
    let mut arguments = rank.arguments(&PlanText::single(64, &[0, 1], &ops));
    let input = rank.arena.allocate(length as usize, misalignment);
    let data: Vec<u8> = (0..length).map(|i| !(i as u8)).collect();
    rank.arena.put(input, &data);
    arguments.buffers[0] = input;
    let own = slot_address(&rank.ports()[0], position);
    rank.arena.put(own, &[OLD; SLOT_BYTES as usize]);
    let mut rung = Vec::new();
    rank.execute(&arguments, (1, 64), |rank| rung.extend(std::iter::from_fn(|| rank.poll())));
    assert_eq!(rank.record().state, 0, "{what}: {:?}", rank.record());
    let ports = &rank.ports()[..2];
    let expected = message(&data, position);
    let bytes = ll_bytes(u64::from(length)) as usize;
    let behind = vec![OLD; SLOT_BYTES as usize - bytes];
    for (number, port) in ports.iter().enumerate() {
        assert_eq!(port.position, position + 1, "{what}");
        if stored.contains(&number) {
            let there = Port { slots: port.peer_slots, ..*port };
            let seen = rank.arena.get(slot_address(&there, position), SLOT_BYTES as usize);
            assert_eq!(seen[..bytes], expected, "{what}, peer {number}");
            assert_eq!(seen[bytes..], behind, "{what}, peer {number}");
        }
    }
    let routes: Vec<usize> = rung.iter().map(|it| it.route as usize).collect();
    let by_engine: Vec<usize> = (0..2).filter(|number| !stored.contains(number)).collect();
    assert_eq!(routes, by_engine, "{what}");
    let seen = rank.arena.get(own, bytes);
    match by_engine.is_empty() {
        true => assert_eq!(seen, vec![OLD; bytes], "{what}: nobody takes it from there"),
        false => assert_eq!(seen, expected, "{what}"),
    }
}

/// If this fails, a peer waits for words that never come, or an engine moves others.
#[test]
fn a_message_is_packed_into_the_slot_of_each_peer_that_is_reached() {
    for stored in [&[0, 1][..], &[0], &[1], &[]] {
        for (position, misalignment) in [(7, 0), (8, 3)] {
            for length in [1, 4, 30, 256] {
                send(stored, position, length, misalignment);
            }
        }
    }
}

/// If this fails, a message stands in a peer's slot for another one, or past its end.
#[test]
fn stores_that_cannot_be_are_refused() {
    type Edit = fn(&mut Port);
    let cases: [(Op, Edit, PlanFault, u64, u64); 3] = [
        (pack(16, 0b10), |port| port.position += 1, PlanFault::MessageNumber, 6, 7),
        (pack(16, 0b10), |port| port.slot_bytes = 256, PlanFault::SlotRange, 512, 256),
        (pack(16, 0b110), |_| {}, PlanFault::OpPort, 2, 0b110),
    ];
    for (op, edit, fault, limit, seen) in cases {
        let mut rank = rank(6);
        store(&mut rank, &[1], edit);
        let mut arguments = rank.arguments(&PlanText::single(32, &[0, 1], &[op]));
        arguments.buffers[0] = rank.arena.allocate(16, 0);
        rank.execute(&arguments, (1, 32), |_| {});
        let record = rank.record();
        assert_eq!((record.state, record.kind), (1, WaitKind::BadPlan as u32));
        assert_eq!((record.position, record.expected, record.seen), (fault as u64, limit, seen));
        let peer = rank.ports()[1].peer_slots;
        assert_eq!(rank.arena.get(peer, 512), [OLD; 512], "nothing was stored");
    }
}

/// R14: if this fails, a peer reads what has not come, or waits for a count that does not come; or
/// a sender writes slots that are still read.
#[test]
fn puts_and_credits_on_a_lane_of_stores_are_counts_at_the_other_end() {
    for position in [0, 5] {
        let mut rank = Rank::new(2, 2, &[]);
        let shape = Port { position, slot_bytes: SLOT_BYTES, peer: 1, ..Port::default() };
        let send = rank.add_port(shape, 0, true);
        let receive = rank.add_port(Port { completion_position: position, ..shape }, 2, false);
        // At the peer: slots and their arrivals, and the word for credits.
        let slots = rank.arena.allocate(2 * SLOT_BYTES as usize, 0);
        let words = [rank.arena.allocate(8, 0), rank.arena.allocate(8, 0)];
        let mut ports = rank.ports();
        (ports[0].slots, ports[0].slot_mask, ports[0].peer_signal) = (slots, 1, words[0]);
        ports[1].peer_signal = words[1];
        rank.arena.put(rank.communicator.ports, bytemuck::cast_slice(&ports));
        rank.arena.write_as(ports[1].signal, position + 2);
        let mut ops = Vec::new();
        for message in 0..2 {
            let there = slot(0, message, 0);
            ops.push(copy(there, buffer(0, u64::from(message) * 100), 100));
            ops.push(put(0, there, there, 100, flags::ARRIVAL));
            ops.push(wait_signal(1, i64::from(message) + 1));
            ops.push(Op { value: 1, ..op(OpCode::Credit, 1) });
        }
        ops.extend([advance(0, 2, 0), advance(1, 2, 0)]);
        let mut arguments = rank.arguments(&PlanText::single(64, &[send, receive], &ops));
        let data: Vec<u8> = (0..200).collect();
        arguments.buffers[0] = rank.arena.allocate(200, 0);
        rank.arena.put(arguments.buffers[0], &data);
        let mut rung = 0;
        rank.execute(&arguments, (1, 64), |rank| rung += u32::from(rank.poll().is_some()));
        assert_eq!((rank.record().state, rung), (0, 0), "{:?}", rank.record());
        for message in 0..2 {
            let at = slots + ((position + message) & 1) * u64::from(SLOT_BYTES);
            let expected = &data[100 * message as usize..][..100];
            assert_eq!(rank.arena.get(at, 100), expected, "message {message} of {position}");
        }
        let counts = words.map(|word| rank.arena.read_as::<u64>(word));
        assert_eq!(counts, [position + 2; 2], "arrivals and credits");
        let ports = rank.ports();
        assert_eq!((ports[0].position, ports[1].position), (position + 2, position + 2));
        assert_eq!(ports[1].completion_position, position + 2, "credits, for the next launch");
    }
}
