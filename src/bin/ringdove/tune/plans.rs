//! Plans that do little but what is to be measured, a number of times. They are proved, and run as
//! any plan of a file is: what differs between a short and a long one is what was repeated.

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
    Op::Credit { port: RECEIVE, messages: 1 }
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
    let request = CollectiveRequest::new(collective, ranks.len() as u32, u64::from(bytes));
    let ranks = ranks.into_iter().map(|blocks| RankProgram { blocks }).collect();
    PlanFile::new(request, Plan { ranks, thread_count: THREADS, slots })
}

/// Of two ranks that tell each other what they have. Plans of files serve no call with a root.
fn told(length: u32, lanes: Lanes, segments: [Vec<Segment>; 2]) -> PlanFile {
    let block = |(rank, mut segments): (u32, Vec<Segment>)| {
        segments.push(segment(
            1,
            length,
            vec![copy(part(rank, length), of(Buffer::Input), length)],
        ));
        segments.retain(|segment| segment.rounds > 0);
        vec![BlockProgram { ports: ports(rank, lanes.kind), segments }]
    };
    let ranks = (0..).zip(segments).map(block).collect();
    file(Collective::AllGather, length, ranks, lanes.slots)
}

/// Where a rank's part stands in the output.
fn part(rank: u32, length: u32) -> Operand {
    Operand::Buffer { buffer: Buffer::Output, offset: u64::from(rank) * u64::from(length) }
}

/// A rank sends what it has.
fn sent(length: u32, lanes: Lanes) -> Vec<Op> {
    let copied = copy(slot(SEND, 0), of(Buffer::Input), length);
    vec![claim(lanes, 0), copied, put(0, length), advance(SEND, 1)]
}

/// A rank takes what the other one has sent, and gives the slot back.
fn taken(rank: u32, length: u32) -> Vec<Op> {
    let copied = copy(part(1 - rank, length), slot(RECEIVE, 0), length);
    vec![arrived(1), copied, credit(), advance(RECEIVE, 1)]
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
    let once = |ops| segment(1, FEW, ops);
    let firsts = vec![once(sent(FEW, lanes)), once(taken(0, FEW))];
    let waiting = segment(times, FEW, vec![arrived(1)]);
    let seconds = vec![once(sent(FEW, lanes)), waiting, once(taken(1, FEW))];
    told(FEW, lanes, [firsts, seconds])
}

/// The first rank rings for so many messages and ends, without a word of what becomes of them.
pub fn doorbells(count: u32, lanes: Lanes) -> PlanFile {
    let mut rung = vec![claim(lanes, count - 1)];
    for message in 0..count {
        rung.extend([copy(slot(SEND, message), of(Buffer::Input), FEW), put(message, FEW)]);
    }
    rung.push(advance(SEND, count));
    let mut received = vec![arrived(count), copy(part(0, FEW), slot(RECEIVE, 0), FEW)];
    received.extend((0..count).map(|_| credit()));
    received.push(advance(RECEIVE, count));
    let once = |ops| segment(1, FEW, ops);
    let firsts = vec![once(taken(0, FEW)), once(rung)];
    told(FEW, lanes, [firsts, vec![once(sent(FEW, lanes)), once(received)]])
}

/// A few bytes go from the first rank to the second and back, so many times and once more.
pub fn round_trips(times: u32, lanes: Lanes) -> PlanFile {
    let send = [claim(lanes, 0), copy(slot(SEND, 0), of(Buffer::Input), FEW), put(0, FEW)];
    // A message goes out before the one that came is given back: that is not its way.
    let given = [credit(), advance(SEND, 1), advance(RECEIVE, 1)];
    let turn = [&[arrived(1)][..], &send, &given].concat();
    let last = [&[arrived(1)][..], &send, &[copy(part(0, FEW), slot(RECEIVE, 0), FEW)], &given];
    let firsts = vec![
        segment(1, FEW, sent(FEW, lanes)),
        segment(times, FEW, turn.clone()),
        segment(1, FEW, taken(0, FEW)),
    ];
    told(FEW, lanes, [firsts, vec![segment(times, FEW, turn), segment(1, FEW, last.concat())]])
}

/// So many messages and one more follow one another from the first rank to the second.
pub fn stream(times: u32, length: u32, lanes: Lanes) -> PlanFile {
    let once = |ops| segment(1, length, ops);
    let firsts = vec![once(taken(0, length)), segment(times + 1, length, sent(length, lanes))];
    let dropped = vec![arrived(1), credit(), advance(RECEIVE, 1)];
    let seconds =
        vec![once(sent(length, lanes)), segment(times, length, dropped), once(taken(1, length))];
    told(length, lanes, [firsts, seconds])
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
