//! Low-latency (LL) messages (R13): the words that `Pack` writes, the descriptor of an LL put, the
//! words that `Collect` accepts and its deadline.

use crate::rank::{PlanText, Rank, advance, buffer, op, put, slot};
use ringdove_kernels::element::{DataType, ReduceOp};
use ringdove_kernels::launch::{PlanFault, WaitKind};
use ringdove_kernels::op::{
    MESSAGES_MAX, Op, OpCode, Operand, WHOLE_SLOT_PERIOD, flag_of, flags, ll_bytes,
};
use ringdove_kernels::port::Port;

pub const SLOT_BYTES: u32 = 512;

/// Ports 0 and 1 send, 2 and 3 receive; both peers' lanes have carried `position` messages.
pub fn rank(position: u64) -> Rank {
    let mut rank = Rank::new(4, 3, &[]);
    for number in 0..4 {
        let peer = number % 2 + 1;
        let port =
            Port { position, slot_bytes: SLOT_BYTES, route: number, peer, ..Port::default() };
        rank.add_port(port, 2, number < 2);
    }
    rank
}

/// For the ports of the set `puts`.
pub fn pack(length: u32, puts: i64) -> Op {
    let (destination, a) = (slot(0, 0, 0), buffer(0, 0));
    Op { length, value: puts, destination, a, ..op(OpCode::Pack, 0) }
}

/// Collects from the block's first ports; the rank's own data stands behind the first.
fn collect(length: u32, count: i64) -> Op {
    let flags = flags::FINISH;
    let (destination, a, b) = (buffer(1, 0), buffer(0, 0), slot(0, 0, 0));
    Op { length, flags, value: count, before: 1, destination, a, b, ..op(OpCode::Collect, 0) }
}

/// Both ports put what was packed for the first.
pub fn low_latency_put(port: u16, length: u32) -> Op {
    put(port, slot(port, 0, 0), slot(0, 0, 0), length, flags::LOW_LATENCY)
}

/// A slot's words for `data`, which is padded to a whole unit.
pub fn message(data: &[u8], number: u64) -> Vec<u8> {
    let mut data = data.to_vec();
    data.resize(data.len().next_multiple_of(8), 0);
    let flag = flag_of(number).to_le_bytes();
    data.chunks_exact(4).flat_map(|word| [word, &flag].concat()).collect()
}

pub fn slot_address(port: &Port, number: u64) -> u64 {
    port.slots + (number & u64::from(port.slot_mask)) * u64::from(port.slot_bytes)
}

/// If this fails, a receiver waits for words that never come, or takes padding for data.
#[test]
fn pack_writes_each_word_with_its_flag_and_the_put_moves_all_of_them() {
    for (position, misalignment) in [(7, 0), (7, 4), (8, 1)] {
        for length in [1, 3, 4, 16, 30, 100, 256] {
            let mut rank = rank(position);
            let ops = [pack(length, 0b11), low_latency_put(0, length), low_latency_put(1, length)];
            let ends = [advance(0, 1, 0), advance(1, 1, 0)];
            let ops = [ops.as_slice(), &ends].concat();
            let mut arguments = rank.arguments(&PlanText::single(64, &[0, 1], &ops));
            let input = rank.arena.allocate(length as usize, misalignment);
            let data: Vec<u8> = (0..length).map(|i| !(i as u8)).collect();
            rank.arena.put(input, &data);
            arguments.buffers[0] = input;
            let mut rung = Vec::new();
            rank.execute(&arguments, (1, 64), |rank| {
                rung.extend(std::iter::from_fn(|| rank.poll()))
            });
            assert_eq!(rank.record().state, 0, "{:?}", rank.record());
            let ports = rank.ports();
            let slot_bytes = ll_bytes(u64::from(length));
            let packed = slot_address(&ports[0], position);
            let seen = rank.arena.get(packed, slot_bytes as usize);
            assert_eq!(seen, message(&data, position), "{length} bytes at {misalignment}");
            assert!(ports[..2].iter().all(|port| port.position == position + 1));
            let offset = position % 2 * u64::from(SLOT_BYTES);
            for (descriptor, port) in rung.iter().zip(&ports) {
                assert_eq!(u64::from(descriptor.length), slot_bytes);
                assert_eq!(descriptor.route, port.route);
                assert!(!descriptor.arrival && !descriptor.completion);
                assert_eq!(rank.communicator.staging + descriptor.source_offset, packed);
                assert_eq!(descriptor.destination_offset, offset);
            }
            assert_eq!(rung.len(), 2);
        }
    }
}

/// If this fails, a word that only long messages reach keeps its flag, and after 2^32 short ones a
/// long one is taken before it has come.
#[test]
fn now_and_then_a_message_fills_its_slot() {
    let whole = WHOLE_SLOT_PERIOD;
    for (position, expected) in [(0, 512), (1, 512), (2, 16), (whole - 1, 16), (whole + 1, 512)] {
        let mut rank = rank(position);
        let ops = [pack(4, 0b1), low_latency_put(0, 4), advance(0, 1, 0)];
        let mut arguments = rank.arguments(&PlanText::single(32, &[0], &ops));
        arguments.buffers[0] = rank.arena.allocate(4, 0);
        let mut rung = Vec::new();
        rank.execute(&arguments, (1, 32), |rank| rung.extend(rank.poll()));
        let port = rank.ports()[0];
        let seen = rank.arena.get(slot_address(&port, position), SLOT_BYTES as usize);
        assert_eq!(seen[..expected], message(&vec![0; expected / 2], position), "at {position}");
        assert!(seen[expected..].iter().all(|byte| *byte == 0));
        assert_eq!(rung[0].length as usize, expected);
    }
}

fn collect_at(position: u64, length: usize, in_place: bool) {
    let mut rank = rank(position);
    let ops = [collect(length as u32, 2), advance(0, 1, 0), advance(1, 1, 0)];
    let mut arguments = rank.arguments(&PlanText::single(64, &[2, 3], &ops));
    (arguments.data_type, arguments.reduce_op) = (DataType::U8 as u32, ReduceOp::Sum as u32);
    let own: Vec<u8> = (0..length).map(|i| i as u8).collect();
    let input = rank.arena.allocate(length, 4);
    let output = if in_place { input } else { rank.arena.allocate(length, 0) };
    rank.arena.put(input, &own);
    (arguments.buffers[0], arguments.buffers[1]) = (input, output);
    let ports = rank.ports();
    let terms: Vec<Vec<u8>> = [3u8, 50]
        .iter()
        .map(|by| own.iter().map(|byte| byte.wrapping_mul(*by)).collect())
        .collect();
    // Words of the message arrive one by one, the last ones first, and those of one slot hold an
    // older message until then.
    let mut pieces = Vec::new();
    for (term, port) in terms.iter().zip(&ports[2..]) {
        let slot = slot_address(port, position);
        let old = message(&vec![0xee; length], position.wrapping_sub(2));
        rank.arena.put(slot, &old);
        let words = message(term, position);
        for (number, word) in words.chunks_exact(8).enumerate() {
            pieces.push((slot + 8 * number as u64, word.to_vec()));
        }
    }
    rank.execute(&arguments, (1, 64), |rank| {
        if let Some((address, word)) = pieces.pop() {
            rank.arena.put(address, &word);
        }
    });
    assert_eq!(rank.record().state, 0, "{:?}", rank.record());
    let expected: Vec<u8> =
        own.iter().map(|byte| byte.wrapping_add(byte.wrapping_mul(53))).collect();
    assert_eq!(rank.arena.get(output, length), expected, "{length} bytes at {position}");
    assert!(rank.ports()[2..].iter().all(|port| port.position == position + 1));
}

/// If this fails, a reduction takes words of another message, or writes past its end.
#[test]
fn collect_takes_each_word_once_it_has_its_flag() {
    for position in [2, 3, (1 << 32) - 1, (1 << 32) + 4] {
        for (length, in_place) in [(1, false), (5, true), (16, false), (100, true), (256, false)] {
            collect_at(position, length, in_place);
        }
    }
}

/// If this fails, a rank that has no data for another one reads memory that it was not given, or
/// sends a message that never arrives.
#[test]
fn a_message_without_data_is_zeros_with_their_flags() {
    for position in [7, 8] {
        let mut rank = rank(position);
        let ops = [Op { a: Operand::default(), ..pack(16, 0b10) }, low_latency_put(1, 16)];
        let ops = [ops.as_slice(), &[advance(0, 1, 0), advance(1, 1, 0)]].concat();
        // No buffer is bound.
        let arguments = rank.arguments(&PlanText::single(32, &[0, 1], &ops));
        assert_eq!(arguments.buffers, [0; 4]);
        let slot = slot_address(&rank.ports()[0], position);
        rank.arena.put(slot, &[0xaa; 64]);
        let mut rung = Vec::new();
        rank.execute(&arguments, (1, 32), |rank| rung.extend(rank.poll()));
        assert_eq!(rank.record().state, 0, "{:?}", rank.record());
        assert_eq!(rank.arena.get(slot, 32), message(&[0; 16], position));
        assert_eq!(rank.arena.get(slot + 32, 32), [0xaa; 32], "nothing behind it");
        assert_eq!(rung.iter().map(|descriptor| descriptor.length).collect::<Vec<_>>(), [32]);
    }
}

/// If this fails, an all-gather of odd sizes is refused, or a copy takes words of another message.
#[test]
fn one_message_alone_is_copied_to_any_address() {
    for (length, misalignment) in [(1, 0), (6, 1), (100, 4), (101, 3), (256, 0)] {
        let mut rank = rank(5);
        let ops = [Op { a: Operand::default(), before: 0, ..collect(length as u32, 1) }];
        let ops = [ops.as_slice(), &[advance(0, 1, 0)]].concat();
        let mut arguments = rank.arguments(&PlanText::single(64, &[2], &ops));
        // A reduction of such elements would want their alignment.
        (arguments.data_type, arguments.reduce_op) = (DataType::F64 as u32, ReduceOp::Avg as u32);
        let output = rank.arena.allocate(length + 8, misalignment);
        rank.arena.put(output, &vec![0xcd; length + 8]);
        arguments.buffers[1] = output;
        let data: Vec<u8> = (0..length).map(|i| !(i as u8)).collect();
        let slot = slot_address(&rank.ports()[2], 5);
        rank.arena.put(slot, &message(&vec![0x11; length], 3));
        let mut words: Vec<_> =
            message(&data, 5).chunks_exact(8).map(<[u8]>::to_vec).enumerate().collect();
        rank.execute(&arguments, (1, 64), |rank| {
            if let Some((number, word)) = words.pop() {
                rank.arena.put(slot + 8 * number as u64, &word);
            }
        });
        assert_eq!(rank.record().state, 0, "{:?}", rank.record());
        let seen = rank.arena.get(output, length + 8);
        assert_eq!(seen[..length], data, "{length} bytes at {misalignment}");
        assert_eq!(seen[length..], [0xcd; 8], "{length} bytes at {misalignment}");
    }
}

/// If this fails, a rank goes on before every other one has come, or writes what it was sent
/// without data.
#[test]
fn a_collect_without_destination_waits_for_every_message() {
    for missing in [None, Some(2), Some(3)] {
        let mut rank = rank(6);
        let nowhere = Operand::default();
        let wait = Op { destination: nowhere, a: nowhere, before: 0, ..collect(16, 2) };
        let ops = [wait, advance(0, 1, 0), advance(1, 1, 0)];
        let arguments = rank.arguments(&PlanText::single(32, &[2, 3], &ops));
        let ports = rank.ports();
        for number in [2, 3] {
            let mut words = message(&[1; 16], 6);
            if missing == Some(number) {
                words[28..32].copy_from_slice(&flag_of(4).to_le_bytes());
            }
            rank.arena.put(slot_address(&ports[number], 6), &words);
        }
        rank.execute(&arguments, (1, 32), |_| {});
        let (record, ports) = (rank.record(), rank.ports());
        let Some(number) = missing else {
            assert_eq!(record.state, 0, "{record:?}");
            assert!(ports[2..].iter().all(|port| port.position == 7));
            continue;
        };
        assert_eq!((record.state, record.kind), (1, WaitKind::Arrival as u32));
        assert_eq!((record.port, record.peer), (number as u32, number as u32 - 1));
        assert_eq!((record.expected, record.seen, record.position), (7, 5, 6));
        assert!(ports.iter().all(|port| port.position == 6));
    }
}

/// R10: if this fails, one lost message hangs a GPU, or nobody learns whose it was.
#[test]
fn a_message_that_does_not_come_leaves_its_record() {
    let mut rank = rank(6);
    let ops = [collect(100, 2), advance(0, 1, 0), advance(1, 1, 0)];
    let mut arguments = rank.arguments(&PlanText::single(96, &[2, 3], &ops));
    arguments.buffers = [rank.arena.allocate(100, 0), rank.arena.allocate(100, 0), 0, 0];
    let ports = rank.ports();
    // One message is there; of the other, one word is missing.
    rank.arena.put(slot_address(&ports[2], 6), &message(&[1; 100], 6));
    let mut words = message(&[1; 100], 6);
    words[8 * 9 + 4..8 * 10].copy_from_slice(&flag_of(4).to_le_bytes());
    rank.arena.put(slot_address(&ports[3], 6), &words);
    rank.execute(&arguments, (1, 96), |_| {});
    let record = rank.record();
    assert_eq!((record.state, record.kind), (1, WaitKind::Arrival as u32));
    assert_eq!((record.port, record.peer, record.op, record.segment), (3, 2, 0, 0));
    assert_eq!((record.expected, record.seen, record.position), (7, 5, 6));
    assert!(record.waited_ns >= rank.communicator.timeout_ns);
    assert!(
        rank.ports().iter().all(|port| port.position == 6),
        "a failed launch stays where it was"
    );
}

/// If this fails, an abort does not reach threads that wait for words.
#[test]
fn an_abort_ends_the_wait_for_words() {
    let mut rank = rank(6);
    rank.communicator.timeout_ns = u64::MAX;
    rank.arena.write_as(rank.address, rank.communicator);
    let ops = [collect(100, 2)];
    let mut arguments = rank.arguments(&PlanText::single(64, &[2, 3], &ops));
    arguments.buffers = [rank.arena.allocate(100, 0), rank.arena.allocate(100, 0), 0, 0];
    let mut steps = 0;
    rank.execute(&arguments, (1, 64), |rank| {
        steps += 1;
        if steps == 3 {
            rank.arena.write_as(rank.communicator.abort, 1u32);
        }
    });
    assert_eq!((rank.record().state, rank.record().kind), (2, WaitKind::Arrival as u32));
}

/// If this fails, a wrong plan writes past a slot, or past what a block keeps in shared memory.
#[test]
fn messages_that_cannot_be_are_refused() {
    let most = MESSAGES_MAX as u64;
    for (op, fault, limit, seen) in [
        (collect(16, 0), PlanFault::MessageCount, most, 0),
        (collect(16, 16), PlanFault::MessageCount, most, 16),
        (collect(16, 3), PlanFault::OpPort, 2, 2),
        (pack(257, 0b1), PlanFault::SlotRange, 256, 257),
        (
            Op { destination: slot(1, 1, 0), ..low_latency_put(1, 4) },
            PlanFault::MessageNumber,
            7,
            6,
        ),
        (Op { a: slot(2, 0, 0), ..low_latency_put(1, 4) }, PlanFault::OpPort, 2, 2),
        (collect(260, 2), PlanFault::SlotRange, 256, 260),
        (collect(6, 2), PlanFault::Alignment, 4, 2),
    ] {
        let mut rank = rank(6);
        let mut arguments = rank.arguments(&PlanText::single(32, &[0, 1], &[op]));
        arguments.buffers = [rank.arena.allocate(512, 0), rank.arena.allocate(512, 0), 0, 0];
        rank.execute(&arguments, (1, 32), |_| {});
        let record = rank.record();
        assert_eq!((record.state, record.kind), (1, WaitKind::BadPlan as u32));
        assert_eq!((record.position, record.expected, record.seen), (fault as u64, limit, seen));
    }
}
