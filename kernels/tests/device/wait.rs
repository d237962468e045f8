//! Waits: that they end in time, what they leave behind, and that data is read after them.

use crate::gpu::Arena;
use crate::rank::{
    BlockText, PlanText, Rank, advance, buffer, copy, slot, wait_completion, wait_signal,
};
use ringdove_kernels::launch::{RECORD_CLAIMED, WaitKind, WaitRecord};
use ringdove_kernels::op::{Op, Segment};
use ringdove_kernels::port::Port;
use ringdove_kernels::ptx;
use std::collections::{BTreeSet, VecDeque};

/// A rank with a send port (0) and a receive port (1), each with two slots of 64 bytes.
fn two_ports() -> Rank {
    let mut rank = Rank::new(3, 2, &[]);
    let port = Port { slot_bytes: 64, ..Default::default() };
    rank.add_port(Port { peer: 5, ..port }, 2, true);
    rank.add_port(Port { peer: 6, ..port }, 2, false);
    rank
}

/// Runs `ops` twice in a second segment, after an empty first one, and lets no signal come.
fn expire(rank: &mut Rank, ops: &[Op]) {
    let segment = Segment { rounds: 2, limit: u64::MAX, ..Default::default() };
    let block = BlockText {
        ports: vec![1, 0],
        segments: vec![(Segment::default(), Vec::new()), (segment, ops.to_vec())],
    };
    // A call before it, which does nothing.
    let idle = rank.arguments(&PlanText::single(32, &[], &[]));
    let arguments = rank.arguments(&PlanText { threads: 64, blocks: vec![block] }.encode());
    let mut launch = rank.launch(&[idle, arguments]);
    launch.sequence = 1234;
    rank.execute_launch(&launch, (1, 64), |_| {});
}

/// R10. If this fails, a user who meets a hang learns nothing, or the wrong thing, about its cause.
#[test]
fn an_expired_wait_leaves_a_complete_record() {
    // Place 0 in the block's list is port 1, place 1 is port 0.
    let cases = [
        (wait_signal(0, 3), WaitKind::Arrival, 1, 6),
        (wait_signal(1, 3), WaitKind::Credit, 0, 5),
        (wait_completion(1, 3), WaitKind::Completion, 0, 5),
    ];
    for (wait, kind, port, peer) in cases {
        let mut rank = two_ports();
        let signals = rank.ports();
        for address in [signals[0].signal, signals[0].completion, signals[1].signal] {
            rank.arena.write_as(address, 2u64);
        }
        // The first round's waits are satisfied; the second round, one on, needs a third signal.
        let advances = [advance(0, 2, 0), advance(1, 2, 2)];
        let first = Op { value: 2, ..wait };
        expire(&mut rank, &[first, advances[0], advances[1], Op { value: 0, ..wait }]);
        let record = rank.record();
        assert_eq!(record.state, 1, "{kind:?}");
        assert_eq!(record.kind, kind as u32);
        assert_eq!((record.block, record.segment, record.op, record.round), (0, 1, 0, 1));
        assert_eq!((record.port, record.peer), (port, peer));
        assert_eq!((record.expected, record.seen, record.position), (4, 2, 2));
        assert_eq!((record.sequence, record.call), (1234, 1));
        let timeout = rank.communicator.timeout_ns;
        assert!(record.waited_ns >= timeout && record.waited_ns < 2 * timeout);
        // Positions of a failed launch stay, as the record counts from them.
        assert!(rank.ports().iter().all(|port| port.position == 0));
        assert_eq!(rank.arena.read_as::<u32>(rank.communicator.record_claim), RECORD_CLAIMED);
    }
}

/// If this fails, one stray store into the claim silences this launch and all that follow: they do
/// nothing, and nobody learns why.
#[test]
fn a_claim_that_no_thread_wrote_is_recorded() {
    const STATE: u64 = std::mem::offset_of!(WaitRecord, state) as u64;
    let mut rank = two_ports();
    let plan = PlanText::single(32, &[1], &[wait_signal(0, 1)]);
    let arguments = rank.arguments(&plan);
    // Before the launch, and while its wait polls.
    for before_launch in [true, false] {
        rank.arena.write_as(rank.communicator.record + STATE, 0u32);
        let stray = |rank: &mut Rank| rank.arena.write_as(rank.communicator.record_claim, 7u32);
        rank.arena.write_as(rank.communicator.record_claim, 0u32);
        if before_launch {
            stray(&mut rank);
        }
        let mut steps = 0;
        rank.execute(&arguments, (1, 32), |rank| {
            steps += 1;
            if !before_launch && steps == 3 {
                stray(rank);
            }
        });
        let record = rank.record();
        assert_eq!((record.state, record.kind), (1, WaitKind::StrayClaim as u32));
        assert_eq!((record.expected, record.seen), (RECORD_CLAIMED.into(), 7));
        assert_eq!(rank.arena.read_as::<u32>(rank.communicator.record_claim), RECORD_CLAIMED);
    }
}

/// If this fails, an abort waits for the deadline, or looks like one.
#[test]
fn an_aborted_wait_says_so() {
    let mut rank = two_ports();
    rank.communicator.timeout_ns = u64::MAX;
    rank.arena.write_as(rank.address, rank.communicator);
    let arguments = rank.arguments(&PlanText::single(32, &[1], &[wait_signal(0, 1)]));
    let mut steps = 0;
    rank.execute(&arguments, (1, 32), |rank| {
        steps += 1;
        if steps == 3 {
            rank.arena.write_as(rank.communicator.abort, 1u32);
        }
    });
    let record = rank.record();
    assert_eq!((record.state, record.kind), (2, WaitKind::Arrival as u32));
}

/// A block without a deadline worth the name stops because another has failed. If this fails, a
/// launch outlasts its first failure by a whole timeout for each wait that is left.
#[test]
fn a_failure_stops_waits_of_other_blocks() {
    let mut rank = two_ports();
    rank.communicator.timeout_ns = u64::MAX;
    rank.arena.write_as(rank.address, rank.communicator);
    let waits = BlockText::once(&[1], &[wait_signal(0, 1)]);
    let is_refused = BlockText::once(&[0], &[wait_signal(9, 1)]);
    let plan = PlanText { threads: 32, blocks: vec![waits, is_refused] }.encode();
    let arguments = rank.arguments(&plan);
    rank.execute(&arguments, (2, 32), |_| {});
    assert_eq!((rank.record().kind, rank.record().block), (WaitKind::BadPlan as u32, 1));
}

/// One failure, one record, and a later launch does nothing. If this fails, a failed
/// communicator goes on with wrong positions.
#[test]
fn a_failed_communicator_stays_failed() {
    let mut rank = two_ports();
    let output = rank.arena.allocate(64, 0);
    let waits = BlockText::once(&[1], &[wait_signal(0, 1), advance(0, 1, 0)]);
    let others = BlockText::once(&[0], &[wait_signal(0, 9), advance(0, 1, 0)]);
    let plan = PlanText { threads: 32, blocks: vec![waits, others.clone(), others] }.encode();
    let arguments = rank.arguments(&plan);
    rank.execute(&arguments, (3, 32), |_| {});
    let first = rank.record();
    assert_eq!(first.state, 1);
    assert!(rank.ports().iter().all(|port| port.position == 0));

    let ops = [copy(buffer(0, 0), slot(0, 0, 0), 64), advance(0, 1, 0)];
    let mut arguments = rank.arguments(&PlanText::single(32, &[1], &ops));
    arguments.buffers[0] = output;
    let slots = rank.ports()[1].slots;
    rank.arena.put(slots, &[7; 64]);
    rank.execute(&arguments, (1, 32), |_| {});
    assert_eq!(rank.record(), first, "the first record stays");
    assert_eq!(rank.arena.get(output, 64), [0; 64]);
    assert!(rank.ports().iter().all(|port| port.position == 0));
}

/// The engine writes data, then the signal, while the block waits. If this fails, threads read a
/// slot before thread 0 has seen its signal.
#[test]
fn data_is_read_after_its_signal() {
    let mut rank = two_ports();
    let output = rank.arena.allocate(3 * 64, 0);
    let receive = rank.ports()[1];
    let ops: Vec<Op> = (0..3)
        .flat_map(|message| {
            let to = buffer(0, 64 * u64::from(message));
            [wait_signal(0, i64::from(message) + 1), copy(to, slot(0, message, 0), 64)]
        })
        .chain([advance(0, 3, 0)])
        .collect();
    let mut arguments = rank.arguments(&PlanText::single(96, &[1], &ops));
    arguments.buffers[0] = output;
    let deliver = |arena: &Arena, message: u64| {
        arena.put(receive.slots + message % 2 * 64, &[message as u8 + 1; 64]);
        arena.raise(receive.signal);
    };
    let mut delivered = 0;
    rank.execute(&arguments, (1, 96), |rank| {
        // A message may take its slot once the one two before it has been copied out.
        let is_read = |message: u64| rank.arena.get(output + message * 64, 64)[63] != 0;
        if delivered < 3 && (delivered < 2 || is_read(delivered - 2)) {
            deliver(&rank.arena, delivered);
            delivered += 1;
        }
    });
    let expected: Vec<u8> = (1..=3u8).flat_map(|message| [message; 64]).collect();
    assert_eq!(rank.arena.get(output, 3 * 64), expected);
    assert_eq!(rank.ports()[1].position, 3);
}

/// The ordering table's waits (rows 5, 7, 8 and 9): looks are relaxed, and a fence follows the one
/// that sees the value. If this fails, each look empties the first-level cache under the other
/// blocks' copies, or data is read that has not come. The word of a grant (row 18) is no wait: it
/// is read after the wait for its credit, and its fence.
#[test]
fn waits_poll_with_relaxed_loads_and_fence_once() {
    for (name, text, words) in
        [("executor", ptx::EXECUTOR, 1), ("example", ptx::EXAMPLE_EXCHANGE, 0)]
    {
        assert!(!text.contains("ld.acquire.sys"), "{name}: a wait polls with acquire");
        let (waits, without_fence) = waits_of(text);
        assert_eq!(without_fence.len(), words, "{name}: no fence behind {without_fence:?}");
        assert!(!waits.is_empty(), "{name}: no wait");
        // The search would notice.
        let bare = text.replace("fence.acq_rel.sys;", "");
        assert_eq!(waits_of(&bare).1.len(), waits.len(), "{name}: fences that are not there");
    }
}

/// The looks of a text, each once, and those of them that no fence follows.
fn waits_of(text: &str) -> (BTreeSet<&str>, Vec<&str>) {
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let (mut waits, mut without_fence) = (BTreeSet::new(), Vec::new());
    for (place, &line) in lines.iter().enumerate() {
        // A wait looks once in line, and again, into the same register, in a loop elsewhere.
        let is_wait = line.starts_with("ld.relaxed.sys.global.u64") && waits.insert(line);
        if is_wait && !reaches_fence(&lines, place + 1) {
            without_fence.push(line);
        }
    }
    (waits, without_fence)
}

/// Instructions of the longest way from a look that sees enough to its fence, and some more.
const WAY: usize = 24;

/// Does a way of at most `WAY` instructions lead from this line to a fence at system scope, before
/// it meets another look, fence, barrier or access to memory that others see? Blocks stand in the
/// text in any order.
fn reaches_fence(lines: &[&str], from: usize) -> bool {
    let ends = ["fence.", "bar.", "ld.global", "ld.relaxed.sys", "st.", "ret;"];
    let at = |label: &str| lines.iter().position(|line| line.strip_suffix(':') == Some(label));
    let mut seen = BTreeSet::new();
    let mut open = VecDeque::from([(from, 0)]);
    while let Some((place, way)) = open.pop_front() {
        let is_new = |_: &&&str| way < WAY && seen.insert(place);
        let Some(line) = lines.get(place).filter(is_new) else { continue };
        if line.starts_with("fence.acq_rel.sys;") {
            return true;
        }
        if ends.iter().any(|word| line.starts_with(word)) {
            continue;
        }
        let jump = line.split_once("bra").map(|(_, rest)| rest.trim_start_matches(".uni"));
        let target = jump.and_then(|rest| at(rest.trim().trim_end_matches(';')));
        open.extend(target.map(|place| (place, way + 1)));
        if !line.starts_with("bra.uni") {
            open.push_back((place + 1, way + 1));
        }
    }
    false
}
