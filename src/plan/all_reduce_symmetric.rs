//! Symmetric all-reduce: every rank reads its chunk of the data in the registered input of each
//! other rank, reduces it, and writes the result into the registered output of each. Nothing goes
//! through slots: each byte crosses a link once on its way in, and once on its way out, and no copy
//! is made beside that. NCCL has the same as a symmetric kernel, MSCCL++ as read-reduce-write.
//!
//! The data is cut as that of two-shot is: in round `r`, block `b` handles `n` chunks, and chunk
//! `j` belongs to rank `j`, which alone touches it in any rank's memory. So rounds wait for nobody,
//! in place neither. Each block lends its rank's buffers to the same block of each other rank, by a
//! message without data as it starts, and waits for the credit before it ends: the peer has read
//! and written all that it will. A stream has passed what was before the launch by then, and what
//! follows it comes after the credits.

use super::builder::{SlotHop, at, copy};
use super::part::Part;
use super::{BlockProgram, Buffer, Modifiers, Op};

/// What one block of one rank does; `peers` below are the lanes to and from each.
pub(super) fn program(part: Part<'_>) -> BlockProgram {
    let mut program = BlockProgram::default();
    if part.choice.rounds == 0 {
        return program;
    }
    let mut peers: Vec<SlotHop> = (1..part.rank_count())
        .map(|step| (part.rank + step) % part.rank_count())
        .map(|rank| part.lanes(&mut program, rank))
        .collect();
    program.once(lend(&mut peers));
    program.rounds(part.choice, reduce(part, &peers));
    program.once(take_back(peers));
    program
}

/// This rank's buffers are open to all peers, and theirs to it.
fn lend(peers: &mut [SlotHop]) -> Vec<Op> {
    let mut ops = Vec::new();
    for lanes in peers.iter_mut() {
        lanes.sender.announce(&mut ops);
    }
    for lanes in peers.iter().rev() {
        lanes.receiver.wait(&mut ops);
    }
    ops
}

/// The rank's chunk, from all inputs into all outputs. A rank begins with the peer behind it: no
/// GPU is everybody's first.
fn reduce(part: Part<'_>, peers: &[SlotHop]) -> Vec<Op> {
    let mut ops = Vec::new();
    let (range, last) = (part.range(part.rank, 1), peers.len() - 1);
    for (number, lanes) in peers.iter().enumerate() {
        let so_far = if number == 0 { Buffer::Input } else { Buffer::Output };
        ops.push(Op::Reduce {
            destination: at(Buffer::Output, range),
            a: lanes.receiver.at_peer(Buffer::Input, range),
            b: at(so_far, range),
            range,
            modifiers: Modifiers { scale: false, finish: number == last },
        });
    }
    for lanes in peers {
        let there = lanes.sender.at_peer(Buffer::Output, range);
        ops.push(copy(there, at(Buffer::Output, range), range, Modifiers::NONE));
    }
    ops
}

/// The peers' buffers are theirs again, and this rank's are its own.
fn take_back(mut peers: Vec<SlotHop>) -> Vec<Op> {
    let mut ops = Vec::new();
    for lanes in &mut peers {
        lanes.receiver.release(&mut ops);
    }
    for lanes in peers.iter().rev() {
        ops.push(lanes.sender.wait_returned());
    }
    for lanes in peers {
        lanes.advance(&mut ops);
    }
    ops
}
