//! Two-shot all-reduce: every rank sends every other rank its chunk, reduces its own, and sends
//! the result to all. Two hops whatever the number of ranks, where a ring has `2 (n - 1)`: the
//! walk for small data, and for ranks that all reach one another at full rate.
//!
//! The data is cut round-major as the ring's is: in round `r`, block `b` handles `n` chunks, and
//! chunk `j` belongs to rank `j`. Everything goes through slots, so any buffers will do. A rank
//! serves its peers in the order `rank + 1`, `rank + 2`, ...: no receiver is everybody's first.

use super::builder::{SlotHop, at, copy};
use super::part::Part;
use super::{BlockProgram, Buffer, Modifiers, Op};

/// A peer, and the lanes to and from it.
struct Peer {
    rank: u32,
    lanes: SlotHop,
}

/// What one block of one rank does.
pub(super) fn program(part: Part<'_>) -> BlockProgram {
    let mut program = BlockProgram::default();
    let mut peers: Vec<Peer> = (1..part.rank_count())
        .map(|step| (part.rank + step) % part.rank_count())
        .map(|rank| Peer { rank, lanes: part.lanes(&mut program, rank) })
        .collect();
    let mut ops = Vec::new();
    scatter(part, &mut ops, &mut peers);
    gather(part, &mut ops, &mut peers);
    part.finish(&mut program, ops, peers.into_iter().map(|peer| peer.lanes));
    program
}

/// Each rank ends up with the reduction of its own chunk.
fn scatter(part: Part<'_>, ops: &mut Vec<Op>, peers: &mut [Peer]) {
    for Peer { rank, lanes } in peers.iter_mut() {
        let range = part.range(*rank, 1);
        let slot = lanes.sender.claim(ops);
        ops.push(copy(slot, at(Buffer::Input, range), range, Modifiers::SCALE));
        lanes.sender.put(ops, range);
    }
    let (range, last) = (part.range(part.rank, 1), peers.len() - 1);
    // Data arrives from the rank before this one first: it is the one that begins here.
    for (number, Peer { lanes, .. }) in peers.iter_mut().rev().enumerate() {
        let arrived = lanes.receiver.wait(ops);
        let is_first = number == 0;
        let so_far = if is_first { Buffer::Input } else { Buffer::Output };
        ops.push(Op::Reduce {
            destination: at(Buffer::Output, range),
            a: arrived,
            b: at(so_far, range),
            range,
            modifiers: Modifiers { scale: is_first, finish: number == last },
        });
        lanes.receiver.release(ops);
    }
}

/// Each rank's finished chunk goes to all.
fn gather(part: Part<'_>, ops: &mut Vec<Op>, peers: &mut [Peer]) {
    let range = part.range(part.rank, 1);
    for Peer { lanes, .. } in peers.iter_mut() {
        let slot = lanes.sender.claim(ops);
        ops.push(copy(slot, at(Buffer::Output, range), range, Modifiers::NONE));
        lanes.sender.put(ops, range);
    }
    for Peer { rank, lanes } in peers.iter_mut().rev() {
        let range = part.range(*rank, 1);
        let arrived = lanes.receiver.wait(ops);
        ops.push(copy(at(Buffer::Output, range), arrived, range, Modifiers::NONE));
        lanes.receiver.release(ops);
    }
}
