//! Barrier by dissemination: in step `k` each rank sends an empty message to the rank `2^k` places
//! after it, and waits for the one from the rank `2^k` places before it. After `log2(n)` steps,
//! rounded up, each rank has word of all others.

use super::piece::distances;
use super::{BlockProgram, Choice, RankProgram};

/// What one rank does.
pub(super) fn program(choice: &Choice, rank: u32) -> RankProgram {
    let size = choice.request.rank_count;
    let mut program = BlockProgram::default();
    let mut ops = Vec::new();
    let mut lanes = Vec::new();
    for distance in distances(size) {
        let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
        let mut hop = program.hop([from, rank, to], 0, choice.slots.count);
        hop.sender.announce(&mut ops);
        hop.receiver.wait(&mut ops);
        hop.receiver.release(&mut ops);
        lanes.push(hop);
    }
    lanes.into_iter().for_each(|hop| hop.advance(&mut ops));
    program.once(ops);
    RankProgram { blocks: vec![program] }
}
