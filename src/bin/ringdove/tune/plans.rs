//! Plans that do little but what is to be measured, a number of times. They are proved, and run as
//! any plan of a file is: what differs between a short and a long one is what was repeated.

use ringdove::ReduceOp;
use ringdove::plan::{
    BlockProgram, Buffer, Collective, CollectiveRequest, Lane, LaneEnd, LaneKind, Modifiers, Op,
    Operand, Plan, PlanFile, Range, RankProgram, Segment, Side, SlotShape,
};

/// Bytes of a message whose bytes shall not count.
pub const FEW: u32 = 16;
/// Threads of a block, as in the library's plans of large data.
const THREADS: u32 = 256;
/// The ports of both ranks: to the peer, and from it.
const SEND: u16 = 0;
const RECEIVE: u16 = 1;

/// How messages go, with the slots of such lanes.
#[derive(Clone, Copy)]
pub struct Lanes {
    pub kind: LaneKind,
    pub slots: SlotShape,
}

fn range(length: u32) -> Range {
    Range { extent: 0, length }
}

fn of(buffer: Buffer) -> Operand {
    Operand::Buffer { buffer, offset: 0 }
}

fn slot(port: u16, message: u32) -> Operand {
    Operand::Slot { port, message, offset: 0 }
}

fn copy(destination: Operand, source: Operand, length: u32) -> Op {
    Op::Copy { destination, source, range: range(length), modifiers: Modifiers::NONE }
}

fn put(message: u32, length: u32) -> Op {
    let slot = slot(SEND, message);
    let range = range(length);
    Op::Put { port: SEND, destination: slot, source: slot, range, arrival: true, completion: false }
}

fn advance(port: u16, signals: u32) -> Op {
    Op::Advance { port, signals, completions: 0 }
}

/// A slot is free for the message with this number.
fn claim(lanes: Lanes, message: u32) -> Op {
    Op::WaitSignal { port: SEND, value: i64::from(message) + 1 - i64::from(lanes.slots.count) }
}

fn arrived(count: u32) -> Op {
    Op::WaitSignal { port: RECEIVE, value: i64::from(count) }
}

fn credit() -> Op {
    Op::Credit { port: RECEIVE }
}

fn segment(rounds: u32, length: u32, ops: Vec<Op>) -> Segment {
    Segment { rounds, round_stride: 0, limit: u64::from(length), ops }
}

/// Both ends of a rank's lanes, to and from the other one of two.
fn ports(rank: u32, kind: LaneKind) -> Vec<LaneEnd> {
    let lane = |from, to| Lane { from, to, index: 0, kind };
    vec![
        LaneEnd { lane: lane(rank, 1 - rank), side: Side::Send },
        LaneEnd { lane: lane(1 - rank, rank), side: Side::Receive },
    ]
}

fn file(
    collective: Collective,
    bytes: u32,
    ranks: Vec<Vec<BlockProgram>>,
    slots: SlotShape,
) -> PlanFile {
    let request = CollectiveRequest {
        collective,
        rank_count: ranks.len() as u32,
        bytes: u64::from(bytes),
        element_bytes: 4,
        reduce_op: ReduceOp::Sum,
        in_place: false,
        registered: false,
    };
    let ranks = ranks.into_iter().map(|blocks| RankProgram { blocks }).collect();
    PlanFile::new(request, Plan { ranks, thread_count: THREADS, slots })
}

/// Of two ranks, the first of which tells the second what it has.
fn told(length: u32, lanes: Lanes, segments: [Vec<Segment>; 2]) -> PlanFile {
    let block = |(rank, segments): (u32, Vec<Segment>)| {
        let mut segments = segments;
        segments.retain(|segment| segment.rounds > 0);
        vec![BlockProgram { ports: ports(rank, lanes.kind), segments }]
    };
    let ranks = (0..).zip(segments).map(block).collect();
    file(Collective::Broadcast { root: 0 }, length, ranks, lanes.slots)
}

/// What the first rank keeps of its own data.
fn kept(length: u32) -> Segment {
    segment(1, length, vec![copy(of(Buffer::Output), of(Buffer::Input), length)])
}

/// One rank copies a few bytes so many times; so many blocks beside the one have nothing to do.
pub fn passes(times: u32, blocks: u32) -> PlanFile {
    let repeated = copy(of(Buffer::Output), of(Buffer::Input), FEW);
    let segments = vec![segment(times + 1, FEW, vec![repeated])];
    let mut all = vec![BlockProgram { ports: Vec::new(), segments }];
    all.resize(blocks as usize + 1, BlockProgram::default());
    file(Collective::AllReduce, FEW, vec![all], SlotShape { bytes: 4096, count: 2 })
}

/// Two ranks give each other their data, and each reduces it so many times in one block.
pub fn reductions(times: u32, length: u32, lanes: Lanes) -> PlanFile {
    let both = Modifiers { scale: true, finish: true };
    let reduce = |destination: Buffer| Op::Reduce {
        destination: of(destination),
        a: slot(RECEIVE, 0),
        b: of(Buffer::Input),
        range: range(length),
        modifiers: both,
    };
    let out = Op::Copy {
        destination: slot(SEND, 0),
        source: of(Buffer::Input),
        range: range(length),
        modifiers: Modifiers::SCALE,
    };
    let block = |rank| {
        let begin = vec![claim(lanes, 0), out, put(0, length), arrived(1)];
        let end = vec![reduce(Buffer::Output), credit(), advance(SEND, 1), advance(RECEIVE, 1)];
        let segments = vec![
            segment(1, length, begin),
            segment(times, length, vec![reduce(Buffer::Scratch)]),
            segment(1, length, end),
        ];
        vec![BlockProgram { ports: ports(rank, lanes.kind), segments }]
    };
    file(Collective::AllReduce, length, (0..2).map(block).collect(), lanes.slots)
}

/// The second rank waits so many times for what has come already.
pub fn waits(times: u32, lanes: Lanes) -> PlanFile {
    let sent = vec![
        claim(lanes, 0),
        copy(slot(SEND, 0), of(Buffer::Input), FEW),
        put(0, FEW),
        advance(SEND, 1),
    ];
    let end = vec![copy(of(Buffer::Output), slot(RECEIVE, 0), FEW), credit(), advance(RECEIVE, 1)];
    let seconds = vec![segment(times + 1, FEW, vec![arrived(1)]), segment(1, FEW, end)];
    told(FEW, lanes, [vec![segment(1, FEW, sent), kept(FEW)], seconds])
}

/// The first rank rings for so many messages and ends, without a word of what becomes of them.
pub fn doorbells(count: u32, lanes: Lanes) -> PlanFile {
    let mut sent = vec![copy(of(Buffer::Output), of(Buffer::Input), FEW), claim(lanes, count - 1)];
    for message in 0..count {
        sent.extend([copy(slot(SEND, message), of(Buffer::Input), FEW), put(message, FEW)]);
    }
    sent.push(advance(SEND, count));
    let mut received = vec![arrived(count), copy(of(Buffer::Output), slot(RECEIVE, 0), FEW)];
    received.extend((0..count).map(|_| credit()));
    received.push(advance(RECEIVE, count));
    told(FEW, lanes, [vec![segment(1, FEW, sent)], vec![segment(1, FEW, received)]])
}

/// A few bytes go from the first rank to the second and back, so many times and once more.
pub fn round_trips(times: u32, lanes: Lanes) -> PlanFile {
    let send = |from: Operand| [claim(lanes, 0), copy(slot(SEND, 0), from, FEW), put(0, FEW)];
    let mut begin = send(of(Buffer::Input)).to_vec();
    begin.push(advance(SEND, 1));
    // The message goes out before the one that came is given back: that is not its way.
    let mut first = vec![arrived(1)];
    first.extend(send(of(Buffer::Input)));
    first.extend([credit(), advance(SEND, 1), advance(RECEIVE, 1)]);
    let end = vec![arrived(1), credit(), advance(RECEIVE, 1)];
    let mut second = vec![arrived(1)];
    second.extend(send(slot(RECEIVE, 0)));
    let mut last = second.clone();
    last.push(copy(of(Buffer::Output), slot(RECEIVE, 0), FEW));
    let given = [credit(), advance(SEND, 1), advance(RECEIVE, 1)];
    second.extend(given);
    last.extend(given);
    let firsts = [segment(1, FEW, begin), segment(times, FEW, first), segment(1, FEW, end)];
    let seconds = [segment(times, FEW, second), segment(1, FEW, last)];
    told(FEW, lanes, [[&firsts[..], &[kept(FEW)]].concat(), seconds.to_vec()])
}

/// So many messages and one more follow one another from the first rank to the second.
pub fn stream(times: u32, length: u32, lanes: Lanes) -> PlanFile {
    let sent = vec![
        claim(lanes, 0),
        copy(slot(SEND, 0), of(Buffer::Input), length),
        put(0, length),
        advance(SEND, 1),
    ];
    let received = vec![arrived(1), credit(), advance(RECEIVE, 1)];
    let last = vec![
        arrived(1),
        copy(of(Buffer::Output), slot(RECEIVE, 0), length),
        credit(),
        advance(RECEIVE, 1),
    ];
    let firsts = vec![segment(times + 1, length, sent), kept(length)];
    told(length, lanes, [firsts, vec![segment(times, length, received), segment(1, length, last)]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringdove::plan::Limits;

    /// If this fails, a plan of the measurement is refused, and what it measures is never measured.
    #[test]
    fn every_plan_is_proved() {
        let engines =
            Lanes { kind: LaneKind::Slots, slots: SlotShape { bytes: 1 << 20, count: 64 } };
        let stores = Lanes { kind: LaneKind::Stores, slots: Limits::store_slots() };
        let mut all = vec![passes(0, 0), passes(500, 0), passes(0, 15)];
        for lanes in [engines, stores] {
            for times in [1, 9] {
                all.push(waits(times, lanes));
                all.push(round_trips(times, lanes));
                all.push(stream(times, lanes.slots.bytes, lanes));
                all.push(reductions(times, 16 << 10, lanes));
            }
        }
        all.extend([doorbells(4, engines), doorbells(60, engines)]);
        for (number, file) in all.into_iter().enumerate() {
            let proved = file.prove();
            assert!(proved.is_ok(), "plan {number}: {}", proved.unwrap_err());
        }
    }
}
