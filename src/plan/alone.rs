//! One rank alone: what it has is the result, once scaled. An average is not divided by one: in
//! place there would be no op to do it, and NaN has to come out alike.

use super::builder::{at, copy};
use super::{BlockProgram, Buffer, Choice, Modifiers, RankProgram};

/// What the rank does. Every collective of one rank moves its whole input to its output.
pub(super) fn program(choice: &Choice) -> RankProgram {
    let blocks = (0..choice.blocks).map(|block| {
        let mut program = BlockProgram::default();
        if choice.rounds > 0 {
            let reduces = choice.request.collective.reduces();
            let modifiers = Modifiers { scale: reduces, finish: false };
            let ops = choice.slices(block).map(|range| {
                let (to, from) = (at(Buffer::Output, range), at(Buffer::Input, range));
                copy(to, from, range, modifiers)
            });
            program.rounds(choice, ops.collect());
        }
        program
    });
    RankProgram { blocks: blocks.collect() }
}
