//! Barrier by dissemination: in step `k` each rank sends an empty message to the rank `2^k` places
//! after it, and waits for the one from the rank `2^k` places before it. After `log2(n)` steps,
//! rounded up, each rank has word of all others.

use super::builder::{SlotReceiver, SlotSender};
use super::{BlockProgram, Choice, Lane, Range, RankProgram, Side};

/// What one rank does.
pub(super) fn program(choice: &Choice, rank: u32) -> RankProgram {
    let size = choice.request.rank_count;
    let empty = Range { extent: 0, length: 0 };
    let mut program = BlockProgram::default();
    let mut ops = Vec::new();
    let mut lanes = Vec::new();
    for distance in (0..u32::BITS).map(|bit| 1u32 << bit).take_while(|distance| *distance < size) {
        let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
        let send = program.port(Lane::slotted(rank, to, 0), Side::Send);
        let receive = program.port(Lane::slotted(from, rank, 0), Side::Receive);
        let mut sender = SlotSender::new(send, choice.slots.count);
        let mut receiver = SlotReceiver::new(receive);
        sender.claim(&mut ops);
        sender.put(&mut ops, empty);
        receiver.wait(&mut ops);
        receiver.release(&mut ops);
        lanes.push((sender, receiver));
    }
    for (sender, receiver) in lanes {
        sender.advance(&mut ops);
        receiver.advance(&mut ops);
    }
    program.once(ops);
    RankProgram { blocks: vec![program] }
}
