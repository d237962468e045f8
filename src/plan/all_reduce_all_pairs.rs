//! All-pairs all-reduce: the low-latency path of small messages.
//!
//! Every rank packs its whole input once, as one LL message (R13), sends it to every other
//! rank on the LL lane of the pair, and reduces all contributions itself, in the order of
//! ranks. So there is one hop instead of `2 (n - 1)`, and all ranks get the same bits. What travels
//! in total is `n (n - 1)` inputs, twice their size because of the flags: for small data only.
//!
//! Nobody waits for credits. A rank packs message `m` only after it has read all messages before
//! `m` from each peer, and so does each peer. Hence message `m - 1` from a peer, which this rank
//! has read, was sent after that peer had read message `m - 2` from here: with two slots, the slot
//! of message `m` is free at both ends. And as all LL lanes carry messages in step, one packed
//! message has the right flag for each of them. The verifier holds plans to both rules.

use super::builder::{at, copy};
use super::{
    BlockProgram, Buffer, Choice, Lane, LaneKind, Modifiers, Op, Operand, PortIndex, Range,
    RankProgram, Segment, Side,
};
use ringdove_kernels::element::ReduceOp;

/// What one rank does.
pub(super) fn program(choice: &Choice, rank: u32) -> RankProgram {
    RankProgram { blocks: vec![block(choice, rank)] }
}

fn block(choice: &Choice, rank: u32) -> BlockProgram {
    let mut program = BlockProgram::default();
    if choice.rounds == 0 {
        return program;
    }
    let peers: Vec<u32> = (0..choice.request.rank_count).filter(|peer| *peer != rank).collect();
    let lane = |from, to| Lane { from, to, index: 0, kind: LaneKind::LowLatency };
    for &peer in &peers {
        program.port(lane(rank, peer), Side::Send);
    }
    for &peer in &peers {
        program.port(lane(peer, rank), Side::Receive);
    }
    let count = peers.len() as PortIndex;
    let range = Range { extent: 0, length: choice.slice_bytes };
    let packed = Operand::Slot { port: 0, message: 0, offset: 0 };
    let mut ops = Vec::new();
    let mut own = at(Buffer::Input, range);
    if choice.request.reduce_op == ReduceOp::PreMulSum {
        // Nobody needs this rank's output before it is collected, so it can hold the scaled input.
        ops.push(copy(at(Buffer::Output, range), own, range, Modifiers::SCALE));
        own = at(Buffer::Output, range);
    }
    ops.push(Op::Pack { port: 0, message: 0, source: own, range });
    // Each rank begins with the next one, so that not all of them put to rank 0 first.
    for port in (0..count).map(|place| (place + rank as PortIndex) % count) {
        ops.push(Op::Put {
            port,
            destination: Operand::Slot { port, message: 0, offset: 0 },
            source: packed,
            range,
            arrival: false,
            completion: false,
        });
    }
    ops.push(Op::Collect {
        destination: at(Buffer::Output, range),
        own,
        // Peers are in the order of ranks, so as many stand before this one as its number says.
        before: rank as u16,
        first: count,
        count,
        message: 0,
        range,
        finish: true,
    });
    for port in 0..2 * count {
        ops.push(Op::Advance { port, signals: 1, completions: 0 });
    }
    program.segments.push(Segment {
        rounds: choice.rounds,
        round_stride: choice.round_bytes(),
        limit: choice.request.bytes,
        ops,
    });
    program
}
